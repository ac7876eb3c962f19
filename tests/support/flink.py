"""The environment of Flink's programs: tests and benchmarks that compare with it run them as processes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tests.benchmarks.meter import lines_with_meter

PACKAGE = "apache-flink==2.3.0"
_ROOT = Path(__file__).resolve().parents[2]
_ENVIRONMENT = _ROOT / ".environments" / "flink"
_STATEMENTS = _ROOT / "tests" / "benchmarks" / "flink_statements.py"


def flink_python() -> str:
    """Return the Python of an environment with PyFlink, which is made the first time."""
    python = _ENVIRONMENT / "bin" / "python"
    complete = _ENVIRONMENT / ".complete"
    if not (complete.exists() and complete.read_text() == PACKAGE):
        shutil.rmtree(_ENVIRONMENT, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(_ENVIRONMENT)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", PACKAGE], check=True)
        complete.write_text(PACKAGE)
    return str(python)


def csv_table(name: str, columns: str, path: str | Path) -> str:
    """Return the statement of Flink SQL that declares a table of a CSV file, or of a folder of such files."""
    source = f"'connector' = 'filesystem', 'path' = 'file://{path}', 'format' = 'csv'"
    return f"CREATE TABLE {name} ({columns}) WITH ({source})"


def run_flink(
    folder: Path,
    statements: Sequence[str],
    settings: Mapping[str, str] | None = None,
    seconds: float = threading.TIMEOUT_MAX,
) -> tuple[float, int]:
    """Run statements of Flink SQL in a process.

    Args:
        folder: The working folder. Rows of CSV files in its subfolder ``found`` are counted.
        statements: The statements.
        settings: Further settings of Flink.
        seconds: The time after which the process is killed.

    Returns:
        The CPU-seconds with those of the Java process, and the number of rows.
    """
    given = {"folder": str(folder), "settings": settings or {}, "statements": statements}
    command = [flink_python(), str(_STATEMENTS), json.dumps(given)]
    found = (0.0, 0)
    for line, meter in lines_with_meter(command, folder / "flink.log", seconds):
        if line.startswith("end"):
            found = meter.read().total, int(line.split()[1])
    return found


def cpu_seconds(pid: int | None = None) -> float:
    """Return the CPU-seconds of a process, by default of this one, and of those that it has started."""
    process = psutil.Process(pid)
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system + each.children_user + each.children_system for each in times)

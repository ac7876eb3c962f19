"""The environment of Flink's programs: tests and benchmarks that compare with it run them as processes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

PACKAGE = "apache-flink==2.3.0"
_ENVIRONMENT = Path(__file__).resolve().parents[2] / ".environments" / "flink"


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


def run_flink(program: Path, *arguments: str) -> tuple[float, str]:
    """Run a program of Flink, and return its CPU-seconds with those of its Java process, and the line that it prints.

    Args:
        program: It prints a line that begins with ``found``, and waits for its input to end, so that the times of its
            Java process can be read.
        arguments: Its arguments.
    """
    pipe = subprocess.PIPE
    command = [flink_python(), str(program), *arguments]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True) as child,
    ):
        assert child.stdout is not None
        line = next((line for line in child.stdout if line.startswith("found")), None)
        spent = 0.0 if line is None else cpu_seconds(child.pid)
        child.communicate()
        if line is None:
            errors.seek(0)
            raise RuntimeError(f"Flink failed:\n{errors.read()[-3000:]}")
    return spent, line


def cpu_seconds(pid: int | None = None) -> float:
    """Return the CPU-seconds of a process, by default of this one, and of those that it has started."""
    process = psutil.Process(pid)
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(each.user + each.system + each.children_user + each.children_system for each in times)

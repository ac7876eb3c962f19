"""The environment of Flink's programs: tests and benchmarks that compare with it run them as processes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

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

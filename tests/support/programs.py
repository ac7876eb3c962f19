"""Servers that tests install by themselves, into `.environments`."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ENVIRONMENTS = Path(__file__).parents[2] / ".environments"


class NoServer(Exception):
    """The server cannot be installed."""


def build_by_go(module: str, version: str) -> Path:
    """Return the program of a module of Go, building it if it is missing, which takes minutes.

    Raises:
        NoServer: There is no Go, or the build fails.
    """
    name = module.rpartition("/")[2]
    program = ENVIRONMENTS / name / version / name
    if not program.exists():
        go = shutil.which("go")
        if go is None:
            raise NoServer(f"{name} is built by Go, which is not on PATH")
        environment = {**os.environ, "GOBIN": str(program.parent), "CGO_ENABLED": "0"}
        command = [go, "install", f"{module}@{version}"]
        built = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if built.returncode:
            raise NoServer(f"{name} could not be built: {built.stderr[-500:]}")
    return program

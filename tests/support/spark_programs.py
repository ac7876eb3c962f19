"""Jobs on Spark in programs of their own, which tests kill: functions of the modules of `tests.keyed.runtimes.spark`.

``python -m tests.support.spark_programs FUNCTION FOLDER ARGUMENTS`` runs one; the further arguments are a JSON list.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil

import keyed
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
#: Seconds for a program to end. On a machine that does other things as well it takes long.
PATIENCE = 600


def say(*words: object) -> None:
    """Print a line for the test that started this program."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def say_batch(progress: keyed.Progress) -> None:
    """Print the id of a batch."""
    say("BATCH", progress.batch_id)


def start_session(folder: Path, master: str = "local[2]", config: dict[str, str] | None = None) -> Any:
    """Return a session whose files are in a folder."""
    own = {"spark.local.dir": str(folder / "tmp"), "spark.sql.warehouse.dir": str(folder / "spark-warehouse")}
    return keyed.spark_session("program", master=master, parallelism=2, config=own | (config or {}))


def program_command(function: str, folder: Path, *arguments: object) -> list[str]:
    """Return the command that runs a job: see `Program`."""
    return [sys.executable, "-m", "tests.support.spark_programs", function, str(folder), json.dumps(arguments)]


def kill(pids: Iterable[int]) -> None:
    """Kill processes, of which some may have ended."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Program:
    """A job in a session of its own, with what it prints in a file.

    Args:
        function: Its module in `tests.keyed.runtimes.spark` and its function there, such as ``lives.main``.
        folder: Its folder, and its first argument.
        arguments: Its further arguments.
    """

    def __init__(self, function: str, folder: Path, *arguments: object) -> None:
        self._output = folder / f"output-{time.monotonic_ns()}"
        command = program_command(function, folder, *arguments)
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    def said(self) -> str:
        """Return what it has printed."""
        return self._output.read_text()

    def _wait_until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition, or for its end."""
        ended = self.process.poll
        until(lambda: condition() or ended() is not None, seconds=PATIENCE, report=lambda: self.said()[-5000:])

    def wait_for(self, pattern: str) -> str:
        """Wait for a line, and return it."""
        search = re.compile(pattern, re.MULTILINE).search
        self._wait_until(lambda: search(self.said()))
        line = search(self.said())
        assert line, self.said()[-5000:]
        return line[0]

    def wait_for_batches(self, number: int) -> bool:
        """Wait until it has done so many batches; return whether it still runs."""
        return self.wait_for_lines(number, "BATCH")

    def wait_for_lines(self, number: int, pattern: str) -> bool:
        """Wait until it has printed so many lines that begin with a pattern; return whether it still runs."""
        lines = re.compile(f"^(?:{pattern})", re.MULTILINE)
        self._wait_until(lambda: len(lines.findall(self.said())) >= number)
        return self.process.poll() is None

    def members(self) -> dict[int, list[str]]:
        """Return the living processes of its session with their command lines: itself, its JVM and its workers."""
        living = {}
        for process in psutil.process_iter():
            with suppress(psutil.Error, ProcessLookupError):
                if os.getsid(process.pid) == self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    living[process.pid] = process.cmdline()
        return living

    def kill(self) -> None:
        """Kill it with its JVM and its workers, of which another one may have been started meanwhile."""

        def is_gone() -> bool:
            members = self.members()
            kill(members)
            self.process.poll()
            return not members

        until(is_gone)
        self.process.wait(300)

    def end(self) -> tuple[int, str]:
        """Wait for its end; return its exit status and what it has printed."""
        try:
            status = self.process.wait(PATIENCE)
        finally:
            self.kill()
        return status, self.said()


def main(function: str, folder: str, arguments: str) -> None:
    module, _, name = function.partition(".")
    getattr(import_module(f"tests.keyed.runtimes.spark.{module}"), name)(Path(folder), *json.loads(arguments))
    keyed.spark_session().stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

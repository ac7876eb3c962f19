"""The main job as a user starts it: in a terminal, with its page."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.limits import free_port
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]


class Job:
    """The main job in a terminal of its own."""

    def __init__(self, output: Path, *options: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self.output = output
        self.address = f"http://127.0.0.1:{self.port}"
        self.printed = ""
        master, terminal = os.openpty()
        command = [sys.executable, "-m", "examples.top_n", "--output", str(output), "--port", str(self.port), *options]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdin=terminal, stdout=terminal, stderr=terminal, process_group=0, close_fds=True
        )
        os.close(terminal)
        self._reader = threading.Thread(target=self._read, args=(master,), daemon=True)
        self._reader.start()

    def _read(self, master: int) -> None:
        # Reading from a terminal whose program has ended raises an error.
        try:
            while data := os.read(master, 65536):
                self.printed += data.decode(errors="replace")
        except OSError:
            pass
        os.close(master)

    def has_printed(self, text: str) -> None:
        """Wait until the program has printed a text."""
        until(lambda: text in self.printed or self.process.poll() is not None)
        assert text in self.printed, self.printed

    def asks(self, path: str) -> Any:
        """Return the answer of the page's server."""
        with urllib.request.urlopen(self.address + path, timeout=300) as answer:
            return json.load(answer)

    def serves(self) -> None:
        """Wait until the page is served."""

        def answers() -> bool:
            assert self.process.poll() is None, self.printed
            try:
                return bool(self.asks("/status")["batch"])
            except OSError:
                return False

        until(answers)

    def kill(self) -> None:
        """Kill the program and all its child processes with SIGKILL."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def wait(self) -> int:
        """Wait until the program has ended, and return the exit status."""
        self._reader.join(600)
        return self.process.wait(60)

    def interrupt(self) -> int:
        """Press Ctrl-C, and return the exit status."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(300)

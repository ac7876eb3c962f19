"""Waiting for another process or thread, and what they leave: the only module of the tests that sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from logging import LogRecord
from pathlib import Path

import psutil
import pytest


def until(condition: Callable[[], object], *, seconds: float = 300, report: Callable[[], str] = str) -> None:
    """Wait until a condition holds.

    Args:
        condition: Called repeatedly until it returns true.
        seconds: The time limit, which is generous because it is reached only if something is broken.
        report: Returns details for the message of a failure.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s without success; {report()}"
        time.sleep(0.02)


def no_more(now: Sequence[int], before: Sequence[int]) -> bool:
    """Return true if no count of this process has grown. What earlier tests have left may close meanwhile."""
    return all(each <= old for each, old in zip(now, before, strict=True))


def logged(caplog: pytest.LogCaptureFixture, beginning: str) -> list[str]:
    """Return the messages that begin so: what earlier tests have left may log meanwhile."""
    return [message for message in map(LogRecord.getMessage, caplog.records) if message.startswith(beginning)]


def open_below(folder: Path) -> list[str]:
    """Return the open descriptors of this process for files and folders below a folder, by path, sorted."""
    links = Path("/proc/self/fd")
    if not links.is_dir():
        return sorted(file.path for file in psutil.Process().open_files() if Path(file.path).is_relative_to(folder))
    paths = []
    for link in links.iterdir():
        with suppress(OSError):  # That of the listing itself is closed.
            paths.append(link.readlink())
    return sorted(str(path) for path in paths if path.is_relative_to(folder))

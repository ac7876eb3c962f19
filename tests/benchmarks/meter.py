"""Measures a process and all below it from outside: CPU time split by kind of process, and memory.

CPU time is read from the kernel's own sums, which for each process also hold the time of the children that it has
waited for: a Python worker that ends between two readings is counted in the daemon that forked it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import attrs
import psutil


@attrs.frozen
class Cpu:
    """CPU-seconds by kind of process.

    Attributes:
        jvm: Spark's Java process.
        workers: Python workers, with the daemons that fork them.
        driver: The Python process that runs the query.
    """

    jvm: float = 0.0
    workers: float = 0.0
    driver: float = 0.0

    @property
    def total(self) -> float:
        """All of them."""
        return self.jvm + self.workers + self.driver

    def __sub__(self, other: Cpu) -> Cpu:
        return Cpu(self.jvm - other.jvm, self.workers - other.workers, self.driver - other.driver)

    def __truediv__(self, divisor: float) -> Cpu:
        return Cpu(self.jvm / divisor, self.workers / divisor, self.driver / divisor)


@attrs.frozen
class Mark:
    """The moment at which a batch was committed.

    Attributes:
        at: Seconds of a monotonic clock.
        cpu: CPU time up to here.
        peak_bytes: Highest resident memory of all processes together since the mark before; shared pages count once.
    """

    at: float
    cpu: Cpu
    peak_bytes: int


def cpu_of(pid: int) -> Cpu:
    """CPU time so far of a process and all below it."""
    root = psutil.Process(pid)
    jvm = workers = driver = 0.0
    for process in [root, *root.children(recursive=True)]:
        try:
            times, name = process.cpu_times(), process.name()
        except psutil.NoSuchProcess:
            continue
        own, waited = times.user + times.system, times.children_user + times.children_system
        if process.pid == pid:
            driver += own + waited
        elif name == "java":
            # What the JVM has waited for are Python daemons that ended.
            jvm, workers = jvm + own, workers + waited
        else:
            workers += own + waited
    return Cpu(jvm, workers, driver)


class Watcher(threading.Thread):
    """Marks the commit of each batch of a running process.

    Args:
        pid: The process.
        committed: Says whether the batch with this number is committed.
    """

    def __init__(self, pid: int, committed: Callable[[int], bool]) -> None:
        super().__init__(daemon=True)
        self._pid, self._committed = pid, committed
        self._stopping = threading.Event()
        self.marks: list[Mark] = []

    def run(self) -> None:
        """Watch until `stop`, or until the process is gone."""
        peak, sampled = 0, 0.0
        try:
            while not self._stopping.is_set():
                now = time.monotonic()
                if now - sampled >= 0.25:
                    peak, sampled = max(peak, memory_of(self._pid)), now
                while self._committed(len(self.marks)):
                    peak = max(peak, memory_of(self._pid))
                    self.marks.append(Mark(time.monotonic(), cpu_of(self._pid), peak))
                    peak = 0
                time.sleep(0.01)
        except psutil.NoSuchProcess:
            return

    def stop(self) -> None:
        """End the watch."""
        self._stopping.set()
        self.join()


def memory_of(pid: int) -> int:
    """Return the resident bytes of a process and all below it; pages that several of them share count once."""
    root = psutil.Process(pid)
    total = 0
    for process in [root, *root.children(recursive=True)]:
        try:
            total += _share(process)
        except (psutil.NoSuchProcess, ProcessLookupError, FileNotFoundError):
            continue
    return total


def _share(process: psutil.Process) -> int:
    """Return the resident bytes of a process, with its share of each page that others have too (Linux)."""
    try:
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    except PermissionError:
        return int(process.memory_info().rss)
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)

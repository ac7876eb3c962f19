"""Measures a process and all below it from outside: CPU time split by kind of process, and memory (Linux).

The kernel adds the CPU time of a process to its parent when the parent waits for it, and drops it when the parent
ignores SIGCHLD, as the daemon of Spark's Python workers does. So a `Meter` remembers the last reading of each process.
A process that outlives its parent leaves the tree, unless its root adopts orphans: start that with `adopting`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import attrs
import psutil

_ROOT = Path(__file__).resolve().parents[2]
_TICKS = os.sysconf("SC_CLK_TCK")
_SET_CHILD_SUBREAPER = 36
_SIGCHLD_BIT = 1 << (signal.SIGCHLD - 1)
_SECONDS = 0.02
_SCAN = 5


@attrs.frozen
class Cpu:
    """CPU-seconds by kind of process.

    Attributes:
        jvm: Spark's Java process.
        workers: Python workers, with the daemons that fork them, and all other processes.
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


@attrs.frozen
class _Reading:
    """The state of a process, in clock ticks.

    Attributes:
        parent: The id of its parent.
        began: When it started; with its id, this identifies it.
        name: Its name.
        own: Its own CPU time.
        waited: That of the children for which it has waited, and of those for which they have.
    """

    parent: int
    began: int
    name: str
    own: int
    waited: int


@attrs.define
class _Process:
    """A process that runs, and the CPU time of those below it that have ended.

    Attributes:
        last: The last reading.
        ignores: It ignores SIGCHLD: the kernel does not add its children to it.
        seen: What it has waited for, as far as the last readings of its children tell.
        hidden: The last readings of those below it that the kernel adds to no process.
    """

    last: _Reading
    ignores: bool = False
    seen: int = 0
    hidden: int = 0

    @property
    def known(self) -> int:
        """Return its CPU time with all that the kernel adds to it."""
        return self.last.own + max(self.last.waited, self.seen)


class Meter(threading.Thread):
    """The CPU time of a process and all that was ever below it, also of processes that have ended.

    A process whose parent waits for it is counted exactly. Any other process that ends is counted up to the last
    reading, which is about 20 ms old; if it lives for less than 100 ms, it may be missed.

    Args:
        pid: The process. Processes that ended below it before are counted if their parents have waited for them.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self._lock, self._stopping = pid, threading.Lock(), threading.Event()
        self._running: dict[int, _Process] = {}
        self._others: set[int] = set()
        self._ended_jvm = 0
        self.read()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self.join()

    def run(self) -> None:
        """Read often, so that the last reading of a process is close to its end, and look for new ones."""
        rounds = 0
        with suppress(ProcessLookupError):
            while not self._stopping.wait(_SECONDS):
                rounds += 1
                with self._lock:
                    if rounds % _SCAN == 0:
                        self._discover()
                    self._update()

    def read(self) -> Cpu:
        """Return the CPU time up to now.

        Raises:
            ProcessLookupError: The process itself has ended, and its parent has waited for it.
        """
        with self._lock:
            self._discover()
            self._update()
            return self._sum()

    def _discover(self) -> None:
        """Find new processes below those that are known; parents come before their children."""
        pids = {int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()}
        readings = _read(sorted(pids - self._running.keys() - self._others))
        below: dict[int, list[int]] = {}
        for pid, reading in readings.items():
            below.setdefault(reading.parent, []).append(pid)
        if not self._running and self.pid in readings:
            self._running[self.pid] = _Process(readings[self.pid])
        waiting = list(self._running)
        while waiting:
            for pid in below.get(waiting.pop(), ()):
                if pid not in self._running:
                    self._running[pid] = _Process(readings[pid])
                    waiting.append(pid)
        self._others = pids - self._running.keys()
        for pid, process in self._running.items():
            process.ignores = _ignores_children(pid, process.ignores)

    def _update(self) -> None:
        """Read all that are known, and move the CPU time of those that are gone to their parents, from below.

        A parent is read before its children: what it has waited for does not hold those that are found to run.
        """
        readings = _read(self._running)
        gone = {
            pid: process
            for pid, process in self._running.items()
            if pid not in readings or readings[pid].began != process.last.began
        }
        if self.pid in gone or not self._running:
            raise ProcessLookupError(self.pid)
        while gone:
            parents = {process.last.parent for process in gone.values()}
            for pid in gone.keys() - parents or set(gone):
                process = self._running.pop(pid)
                del gone[pid]
                parent = self._running.get(process.last.parent)
                if parent is None or parent.ignores:
                    (parent or self._running[self.pid]).hidden += process.known + process.hidden
                else:
                    parent.seen = max(parent.seen, parent.last.waited) + process.known
                    parent.hidden += process.hidden
                if process.last.name == "java":
                    self._ended_jvm += process.last.own
        for pid, process in self._running.items():
            process.last = readings[pid]

    def _sum(self) -> Cpu:
        driver, jvm, total = self._running[self.pid].last.own, self._ended_jvm, 0
        for pid, process in self._running.items():
            total += process.known + process.hidden
            if process.last.name == "java" and pid != self.pid:
                jvm += process.last.own
        return Cpu(jvm, total - jvm - driver, driver) / _TICKS


def _read(pids: Iterable[int]) -> dict[int, _Reading]:
    """Read processes, without those that do not exist any more."""
    readings = {}
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        # The name is between parentheses and may hold any character.
        before, _, after = text.rpartition(")")
        fields = after.split()
        readings[pid] = _Reading(
            parent=int(fields[1]),
            began=int(fields[19]),
            name=before.partition("(")[2],
            own=int(fields[11]) + int(fields[12]),
            waited=int(fields[13]) + int(fields[14]),
        )
    return readings


def _ignores_children(pid: int, before: bool) -> bool:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return before
    return any(int(line.split()[1], 16) & _SIGCHLD_BIT for line in lines if line.startswith("SigIgn:"))


def lines_with_meter(
    command: Sequence[str], log: Path, seconds: float = threading.TIMEOUT_MAX, **environment: str
) -> Iterator[tuple[str, Meter]]:
    """Run a command in a process, and yield each line that it prints, with its meter.

    A process that has printed a line which begins with ``begin`` or ``end`` waits for a line of its input. It gets one
    when the next line is asked for, so that its times can be read before.

    Args:
        command: The command.
        log: Where its errors go.
        seconds: The time after which it is killed.
        environment: Further variables of its environment.

    Raises:
        TimeoutError: It was killed.
        RuntimeError: It failed; the message is the end of its log.
    """
    pipe = subprocess.PIPE
    with (
        log.open("w") as errors,
        subprocess.Popen(
            adopting(command),
            cwd=_ROOT,
            env=os.environ | environment,
            stdin=pipe,
            stdout=pipe,
            stderr=errors,
            text=True,
            start_new_session=True,
        ) as child,
        Meter(child.pid) as meter,
    ):
        assert child.stdin is not None
        assert child.stdout is not None
        limit = threading.Timer(seconds, lambda: os.killpg(child.pid, signal.SIGKILL))
        limit.start()
        try:
            for line in child.stdout:
                yield line, meter
                if line.startswith(("begin", "end")):
                    child.stdin.write("\n")
                    child.stdin.flush()
        finally:
            in_time = limit.is_alive()
            limit.cancel()
            child.communicate()
    if not in_time:
        raise TimeoutError(f"not through after {seconds:.0f} s")
    if child.returncode:
        raise RuntimeError(f"exit status {child.returncode}: {log.read_text()[-3000:]}")


def mark(text: str) -> None:
    """Print a line that `lines_with_meter` yields, and wait until the times of this process are read."""
    print(text, flush=True)
    sys.stdin.readline()


def adopting(command: Sequence[str]) -> list[str]:
    """Return the command that runs this one in a process that adopts orphans, from the root of the repository."""
    return [sys.executable, "-m", "tests.benchmarks.meter", *command]


def adopt_orphans() -> None:
    """Make this process the parent of those below it whose parent ends; a program that it executes keeps that."""
    ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


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
        with suppress(psutil.NoSuchProcess, ProcessLookupError), Meter(self._pid) as meter:
            while not self._stopping.is_set():
                now = time.monotonic()
                if now - sampled >= 0.25:
                    peak, sampled = max(peak, memory_of(self._pid)), now
                while self._committed(len(self.marks)):
                    peak = max(peak, memory_of(self._pid))
                    self.marks.append(Mark(time.monotonic(), meter.read(), peak))
                    peak = 0
                time.sleep(0.01)

    def stop(self) -> None:
        """End the watch."""
        self._stopping.set()
        self.join()


def marks_of(
    module: str, arguments: Sequence[str], folder: Path, batches: int, committed: Callable[[int], bool]
) -> list[Mark] | None:
    """Run a module of the benchmarks in a process of its own, and return the commits of its batches.

    Args:
        module: Its name in this package.
        arguments: Those of its command line.
        folder: Where its log goes.
        batches: How many batches have to be committed; otherwise the end of its log is printed, and there is no result.
        committed: Says whether the batch with this number is committed.
    """
    environment = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), sys.executable)
    environment |= {"PYTHONPATH": str(_ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            adopting([sys.executable, "-m", f"tests.benchmarks.{module}", *arguments]),
            cwd=_ROOT,
            env=os.environ | environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        watcher = Watcher(process.pid, committed)
        watcher.start()
        try:
            status = process.wait()
        finally:
            # Whatever ends the run, also Ctrl-C: nothing of it is left to disturb the next one.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            watcher.stop()
    marks = watcher.marks[:batches]
    if status or len(marks) < batches:
        tail = "\n".join((folder / "log").read_text(errors="replace").splitlines()[-25:])
        print(f"failed, status {status}, {len(marks)} of {batches} batches seen\n{tail}", file=sys.stderr)
        return None
    return marks


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


if __name__ == "__main__":
    adopt_orphans()
    os.execvp(sys.argv[1], sys.argv[1:])

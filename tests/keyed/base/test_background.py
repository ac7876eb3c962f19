"""Threads beside the rows: their one status, the errors that they end with, and what they leave."""

from __future__ import annotations

import logging
import os
import platform
import re
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import keyed
from keyed.base import background
from keyed.base.background import Background, Status
from keyed.errors import ChangelogError, CorruptionError, KeyedError, StateAccessError
from tests.support.waiting import logged, no_more, until


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "_FIRST_WAIT", 0.0)


def failing(error: BaseException) -> Background:
    """Work that ended with an error."""

    def step() -> None:
        raise error

    work = Background("the work", step)
    work.start()
    until(lambda: not work.is_running)
    return work


class Awkward(Exception):
    """An exception that cannot be made from its arguments."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")
        self.one = one


@pytest.mark.parametrize(
    "error",
    [
        ChangelogError("gone"),
        CorruptionError("broken", where="file", offset=7),
        OSError(28, "No space left on device", "some file"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
        Awkward("a", "b"),
        RuntimeError("dictionary changed size during iteration"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_each_look_raises_the_error_anew_with_the_first_as_its_cause(error):
    work = failing(error)
    seen = []
    for _ in range(50):
        with pytest.raises(type(error)) as raised:
            work.check()
        seen.append(raised.value)
        assert raised.value.__cause__ is error
        assert type(raised.value) is type(error)
        assert (str(raised.value), raised.value.args) == (str(error), error.args)
        kept = {name: value for name, value in vars(error).items() if name != "__notes__"}
        assert {name: value for name, value in vars(raised.value).items() if name != "__notes__"} == kept
        note = "the work ended with this error; close it and open it again"
        assert raised.value.__notes__ == [*getattr(error, "__notes__", []), note]
    assert len({id(each) for each in seen}) == 50
    # Neither grows, however often it is raised.
    assert len({len(traceback.format_exception(each)) for each in seen}) == 1
    assert (work.status, work.error) == (Status.FAILED, error)
    work.close()
    with pytest.raises(type(error)):
        work.check()
    with pytest.raises(type(error)):
        work.start()
    assert work.status is Status.FAILED


def test_an_end_that_is_no_exception_does_not_end_those_who_look():
    work = failing(SystemExit(3))
    with pytest.raises(KeyedError, match="ended by SystemExit: 3"):
        work.check()


def test_failures_that_may_pass_are_logged_once_and_counted(caplog):
    caplog.set_level(logging.INFO)
    calls = iter([*[ChangelogError("away")] * 20, *[OSError("full")] * 20, None, *[ChangelogError("away")] * 5, None])
    over = threading.Event()

    def step() -> float:
        error = next(calls, over)
        if isinstance(error, Exception):
            raise error
        if error is over:
            over.set()
        return 0.0

    work = Background("the work", step, is_transient=lambda error: isinstance(error, ChangelogError | OSError))
    work.start()
    assert over.wait(300)
    work.close()
    assert (work.failures, work.trouble, work.status) == (45, None, Status.CLOSED)
    assert logged(caplog, "the work:") == [
        "the work: away; retrying; further failures are counted",
        "the work: full; retrying; further failures are counted",
        "the work: recovered after 40 failures",
        "the work: away; retrying; further failures are counted",
        "the work: recovered after 5 failures",
    ]
    work.check()


def test_tries_are_spaced_and_end(monkeypatch, caplog):
    """By a clock that waiting moves."""
    now, waits = [0.0], []
    monkeypatch.setattr(background, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(background, "_FIRST_WAIT", 0.1)

    def step() -> None:
        raise ChangelogError("away")

    work = Background("the work", step, is_transient=lambda _: True, patience=60.0)

    def wait(seconds: float) -> None:
        waits.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(work._stopping, "wait", wait)
    work.start()
    while work.is_running:
        pass
    assert waits[:8] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0]
    assert (max(waits), sum(waits) <= 60.0 < sum(waits) + 10.0) == (10.0, True)
    with pytest.raises(ChangelogError) as raised:
        work.check()
    assert f"the work: {len(waits) + 1} attempts in 60 s failed" in raised.value.__notes__
    levels = [record.levelname for record in caplog.records if record.getMessage().startswith("the work:")]
    assert levels == ["WARNING", "ERROR"]


def test_the_status_is_starting_until_a_call_succeeds():
    allowed, errors = threading.Event(), iter([ChangelogError("away")])

    def step() -> float:
        for error in errors:
            raise error
        allowed.wait()
        return 60.0

    work = Background("the work", step, is_transient=lambda _: True)
    assert (work.status, work.age, work.is_running) == (Status.STARTING, None, False)
    work.start()
    # It has looked, in vain.
    assert work.wait(300)
    assert (work.status, work.age, str(work.trouble)) == (Status.STARTING, None, "away")
    with pytest.raises(StateAccessError, match="the work runs already"):
        work.start()
    allowed.set()
    until(lambda: work.status is Status.FOLLOWING)
    assert (work.trouble, work.age is not None) == (None, True)
    work.stop()
    assert (work.status, work.is_running) == (Status.FOLLOWING, False)
    work.start()
    work.close()
    work.close()
    assert (work.status, work.is_running) == (Status.CLOSED, False)
    with pytest.raises(StateAccessError, match="the work is closed"):
        work.start()


def test_a_thread_that_is_started_while_the_one_before_is_joined_is_not_lost(monkeypatch):
    work = Background("the work", lambda: 60.0)
    work.start()
    first: Any = work._thread
    join = first.join

    def join_and_start(timeout):
        join(timeout)
        work.start()

    monkeypatch.setattr(first, "join", join_and_start)
    work.stop()
    second: Any = work._thread
    assert work.is_running
    work.close()
    assert not second.is_alive()


def test_work_that_is_being_closed_does_not_start(monkeypatch):
    work, stop, refused = Background("the work", lambda: 60.0), Background.stop, []

    def stop_and_start(self, timeout=None):
        stop(self, timeout)
        with pytest.raises(StateAccessError, match="the work is closed"):
            work.start()
        refused.append(work.status)

    monkeypatch.setattr(Background, "stop", stop_and_start)
    work.close()
    assert (refused, work.is_running) == ([Status.CLOSED], False)


def test_work_without_more_to_do_is_closed():
    work = Background("the work", lambda: None)
    work.start()
    until(lambda: work.status is Status.CLOSED)
    work.check()


def test_a_thread_may_close_its_own_work():
    def step() -> None:
        work.close()

    work = Background("the work", step)
    work.start()
    until(lambda: not work.is_running)
    assert work.status is Status.CLOSED


@pytest.mark.slow
def test_a_thousand_rounds_leave_no_thread_and_no_descriptor():
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").is_dir() else 0

    before = threading.active_count(), descriptors(), len(background._running)
    for number in range(1_000):
        work = Background("the work", (lambda: 0.0) if number % 2 else (lambda: None))
        work.start()
        work.wait()
        work.close()
    until(lambda: no_more((threading.active_count(), descriptors(), len(background._running)), before))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_nothing_of_it():
    work = Background("the work", lambda: 0.001)
    work.start()
    work.wait()
    # As the thread may hold it at the moment of the fork.
    work._lock.acquire()
    child = os.fork()
    if not child:
        problem = 1
        try:
            work.close()
            work.stop()
            background._end_all()
            work.check()
        except StateAccessError as error:
            if work.status is Status.CLOSED and f"process {os.getppid()}" in str(error):
                problem = 0
        finally:
            os._exit(problem)
    work._lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert (work.status, work.is_running) == (Status.FOLLOWING, True)
    work.close()


@pytest.fixture
def script() -> str:
    return """
from keyed.base.background import Background
class Noisy:
    def __del__(self):
        print("released", flush=True)
def step():
    noisy = Noisy()
    while not work.is_stopping:
        pass
    print("ends", flush=True)
work = Background("the work", step)
work.start()
"""


def test_a_process_that_ends_waits_for_its_threads(script):
    command = [sys.executable, "-W", "error", "-c", script]
    environment = {**os.environ, "PYTHONPATH": str(Path(keyed.__file__).parents[1])}
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300, env=environment)
    assert (ended.stdout.split(), ended.stderr) == (["ends", "released"], "")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is glibc's")
@pytest.mark.parametrize(("environment", "arenas"), [({}, {2}), ({"MALLOC_ARENA_MAX": "4"}, {3, 4})])
def test_threads_share_two_arenas_unless_the_environment_says_otherwise(environment, arenas):
    program = """if True:
        import ctypes, threading
        from keyed.base.background import keep_little_free_memory
        keep_little_free_memory()
        libc = ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_void_p
        together = threading.Barrier(20)
        def allocate():
            together.wait()
            for _ in range(100):
                libc.malloc(10_000)
            together.wait()
        threads = [threading.Thread(target=allocate) for _ in range(20)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        libc.malloc_stats()
    """
    without = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=without | environment, capture_output=True, text=True, check=True
    )
    assert done.stderr.count("Arena ") in arenas


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator is glibc's")
def test_large_blocks_are_mapped_also_after_one_was_freed():
    program = """if True:
        import ctypes
        from keyed.base.background import keep_little_free_memory
        keep_little_free_memory()
        libc = ctypes.CDLL(None)
        libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        libc.free(libc.malloc(8 << 20))
        for _ in range(10):
            libc.malloc(1 << 20)
        libc.malloc_stats()
    """
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    (most,) = re.findall(r"max mmap bytes *= *(\d+)", done.stderr)
    assert int(most) > 10 << 20

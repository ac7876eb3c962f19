"""A job that dies at each named point of writing a changelog, compacting it, or restoring from it.

The process kills itself by SIGKILL at the given occurrence of the point; then it is recovered from the checkpoint, or
from the changelog alone, and has written in the end what an undisturbed run writes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keyed.changelog.directory import DirectoryChangelog, compaction
from keyed.changelog.directory import directory_writer as writer
from keyed.changelog.directory import disk as files
from keyed.engine import loader
from keyed.stores import CommitStore
from tests.keyed.recovery import jobs
from tests.keyed.recovery.jobs import Life

CONTEXT = multiprocessing.get_context("forkserver")
JOB, ROWS = "functions", 1_200


def _die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _half_written(file: int, data: Any) -> None:
    os.write(file, bytes(data)[: len(data) // 2])
    _die()


class _Calls:
    """The module `os` as a module of the changelog sees it, with one call replaced."""

    def __init__(self, name: str, call: Callable[..., Any]) -> None:
        self.__dict__[name] = call

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


#: Point → what of the program it stands in: an object, a name, and what happens there instead or before.
POINTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "before append": (writer.DirectoryWriter, "append", _die),
    "mid-record": (files, "write", _half_written),
    "after append before fsync": (files, "fsync", _die),
    "after fsync before commit": (files, "link", _die),
    "after commit before the folder is synced": (files, "sync_folder", _die),
    "after the position before the export": (DirectoryChangelog, "put_position", _die),
    "before the checkpoint's commit": (CommitStore, "make_durable", _die),
    "mid-compaction": (compaction, "remove", _die),
    "mid-compaction, in the new base": (compaction, "publish", _die),
    "mid-restore": (loader, "encode_rows", _die),
    "mid-restore, between two meta records": (loader.Loader, "write_meta", _die),
}
AFTER = {"after the position before the export"}
#: One of each part: writing, compacting, restoring. The others are slow tests.
FAST = {(point, "changelog") for point in ("mid-record", "mid-compaction, in the new base", "mid-restore")}
CRASHES = [
    pytest.param(*crash, marks=() if crash in FAST else pytest.mark.slow)
    for crash in ((point, recovered_from) for point in POINTS for recovered_from in ("checkpoint", "changelog"))
]


def dying(point: str, nth: int) -> None:
    """Let this process die at the nth occurrence of a point."""
    place, name, death = POINTS[point]
    count = 0

    def call(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == nth and point not in AFTER:
            death(*arguments)
        result = real(*arguments, **options)
        if count == nth:
            _die()
        return result

    if hasattr(place, name):
        real = getattr(place, name)
        setattr(place, name, call)
    else:
        real = getattr(os, name)
        place.os = _Calls(name, call)


def work(folder: Path, point: str, nth: int) -> None:
    dying(point, nth)
    jobs.run(Life(folder, JOB), rows=ROWS, compact_every=2)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Any:
    life = Life(tmp_path_factory.mktemp("undisturbed"), JOB)
    jobs.run(life, rows=ROWS)
    return jobs.written(life.folder), jobs.final_state(life)


def killed(life: Life, point: str, nth: int) -> None:
    process = CONTEXT.Process(target=work, args=(life.folder, point, nth))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL, "the point was not reached"


@pytest.mark.parametrize(("point", "recovered_from"), CRASHES)
def test_recovery_from_a_crash(tmp_path, undisturbed, point, recovered_from):
    CONTEXT.set_forkserver_preload(["tests.keyed.recovery.jobs", "rocksdict"])
    life = Life(tmp_path, JOB)
    if point.startswith("mid-restore"):
        killed(life, "before append", 10)
        life.lose_checkpoint()
        killed(life, point, 2)
    else:
        for nth in (1, 6):
            killed(life, point, nth)
            if recovered_from == "changelog":
                life.lose_checkpoint()
    if recovered_from == "changelog":
        life.lose_checkpoint()
    jobs.run(life, rows=ROWS)
    assert jobs.written(life.folder) == undisturbed[0]
    assert jobs.final_state(life) == undisturbed[1]

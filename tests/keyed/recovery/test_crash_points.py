"""A job that dies at each named point of writing a changelog, compacting it, or restoring from it.

The process kills itself by SIGKILL at the given occurrence of the point; then it is recovered from the checkpoint, or
from the changelog alone, and has written in the end what an undisturbed run writes.

Between any two steps of the runner (commit, position, export) a run is only broken off: what it leaves is sound.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import keyed
from keyed.changelog.directory import DirectoryChangelog
from keyed.changelog.directory import directory_changelog as writer
from keyed.changelog.directory import disk as files
from keyed.changelog.directory.group_folder import GroupFolder
from keyed.engine import replica
from keyed.errors import ChangelogError
from keyed.recovery import flush, verify
from keyed.recovery.cut import header_of, newest_sequence
from keyed.stores.commit_store import CommitStore
from tests.keyed.recovery import jobs
from tests.keyed.recovery.jobs import Life
from tests.keyed.recovery.test_restore import Count

CONTEXT = multiprocessing.get_context("forkserver")
JOB, ROWS = "functions", 1_200


def _die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


#: Point → what of the program it stands in: an object, a name, and what happens there instead or before. Deaths at
#: each call to the operating system are in `tests/keyed/changelog/directory/test_crashes.py`.
POINTS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "before append": (writer.DirectoryWriter, "append", _die),
    "after commit before the folder is synced": (files, "sync_folder", _die),
    "after the position before the export": (DirectoryChangelog, "put_position", _die),
    "before the checkpoint's commit": (CommitStore, "make_durable", _die),
    "mid-compaction": (GroupFolder, "remove", _die),
    "mid-compaction, in the new base": (GroupFolder, "publish", _die),
    "mid-restore": (replica, "encode_rows", _die),
    "mid-restore, between two meta records": (replica.Loader, "write_meta", _die),
}
AFTER = {"after the position before the export"}
#: One of each part: writing, compacting, restoring.
FAST = ("after commit before the folder is synced", "mid-compaction, in the new base", "mid-restore")


def mark(point: str, recovered_from: str) -> pytest.MarkDecorator | tuple[()]:
    """Of each point one way to recover is fast or slow, the checkpoint for every second; the other one is long."""
    if point in FAST:
        return () if recovered_from == "changelog" else pytest.mark.long
    is_first = recovered_from == ("checkpoint", "changelog")[[*POINTS].index(point) % 2]
    return pytest.mark.slow if is_first else pytest.mark.long


CRASHES = [
    pytest.param(point, recovered_from, marks=mark(point, recovered_from))
    for point in POINTS
    for recovered_from in ("checkpoint", "changelog")
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

    real = getattr(place, name)
    setattr(place, name, call)


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


class Stop(BaseException):
    """Ends a run as a kill does: nothing is flushed."""


class Steps:
    """Stops before the nth step of what commits a batch and writes changelogs."""

    def __init__(self, monkeypatch: Any, nth: int) -> None:
        self._left = nth
        for place, name in (
            (CommitStore, "make_durable"),
            (DirectoryChangelog, "put_position"),
            (writer.DirectoryWriter, "append"),
        ):
            monkeypatch.setattr(place, name, self._counted(getattr(place, name)))

    def _counted(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self._left -= 1
            if not self._left:
                raise Stop
            return step(*arguments)

        return call


def counted(folder: Path, rows: int, checkpoint: Path, *, changelogs: str = "", restore_from: str = "") -> Any:
    """Count numbers, and the numbers of each count, in two operators."""

    def options(name: str) -> dict[str, Any]:
        at = {"changelog": changelogs, "restore_from": restore_from}
        return {"name": name} | {key: log_of(folder / to / name) for key, to in at.items() if to}

    numbers = keyed.stream(range(rows)).key_by(lambda number: number % 10)
    counts = numbers.process(Count(), "n bigint, count bigint", parallelism=2, **options("numbers"))
    output = counts.key_by("count").process(Count(), **options("counts"))
    return output.run(rows_per_batch=10, checkpoint=checkpoint, drain=False)


def log_of(folder: Path) -> DirectoryChangelog:
    return DirectoryChangelog(folder, auto_compact=False)


def logs_in(folder: Path) -> dict[str, DirectoryChangelog]:
    logs = {name: log_of(folder / name) for name in ("numbers", "counts")}
    return {name: log for name, log in logs.items() if log.header() is not None}


BEGINNINGS: dict[str, Callable[[Path], Any]] = {
    "a new query": lambda folder: counted(folder, 20, folder / "ck", changelogs="new"),
    "one that goes on": lambda folder: counted(folder, 40, folder / "with", changelogs="new"),
    "one that is restored": lambda folder: counted(folder, 40, folder / "ck", changelogs="new", restore_from="old"),
    "one that had no changelog": lambda folder: counted(folder, 40, folder / "without", changelogs="new"),
    "a flush into empty changelogs": lambda folder: flush(
        folder / "without", {name: log_of(folder / "new" / name) for name in ("numbers", "counts")}
    ),
}


@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_what_is_left_between_two_steps_is_sound_and_is_restored(tmp_path, beginning):
    before = tmp_path / "before"
    counted(before, 30, before / "old-checkpoint", changelogs="old")
    counted(before, 30, before / "without")
    if beginning == "one that goes on":
        counted(before, 30, before / "with", changelogs="new")
    whole = counted(before, 50, tmp_path / "whole").values
    for nth in itertools.count(1):
        folder = tmp_path / str(nth)
        shutil.copytree(before, folder)
        with pytest.MonkeyPatch.context() as patched:
            Steps(patched, nth)
            try:
                BEGINNINGS[beginning](folder)
                break
            except Stop:
                pass
        logs = logs_in(folder / "new")
        assert [group.problem for log in logs.values() for group in verify(log) if group.problem] == []
        readers = [[log.reader(group) for group in range(header_of(log).parallelism)] for log in logs.values()]
        if len(logs) < 2 or not all(map(newest_sequence, readers)):
            with pytest.raises(ChangelogError, match=r"does not exist yet|not have a commit of each key group yet"):
                counted(folder, 50, folder / "restored", restore_from="new")
        else:
            result = counted(folder, 50, folder / "restored", restore_from="new")
            assert result.restored.with_position
            assert result.values == whole[-len(result.values) :]
    assert nth > 5

"""A job that draws numbers and kills itself and all that belongs to it.

Reads ``FOLDER/in``, one file a batch, keeps the numbers in ``FOLDER/log`` and, in an operator that is chained to the
first, in ``FOLDER/copied``, and writes ``FOLDER/out/<batch>``. A batch that is run again draws others, and has the
ingestion time that it had; each attempt tells it in ``FOLDER/seen``.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import psutil
import pyarrow.parquet as pq

import keyed
from keyed import KeyedProcessFunction, ValueState
from keyed.changelog import DirectoryChangelog
from keyed.changelog.directory.directory_changelog import DirectoryWriter
from keyed.changelog.model import Commit
from tests.keyed.runtimes.spark import functions
from tests.keyed.runtimes.spark.functions import files_source
from tests.support.explained import explained
from tests.support.spark_programs import say, start_session

#: When it is killed: in the middle of a batch; its batch is staged and not committed; it is committed; one key group of
#: it is published.
KILLS = ("row", "written", "committed", "half")
#: As above with an export interval: when three batches are written; their positions are logged; one key group of the
#: others has exported several commits; in the middle of a batch.
GROUPED_KILLS = ("written", "exported", "written", "positioned", "row")


class Draw(KeyedProcessFunction):
    """Keeps and emits a random number."""

    drawn = ValueState(int)

    def __init__(self, folder: Path, when: str) -> None:
        self.folder = folder
        self.when = when

    def process_element(self, value: Any, ctx: Any) -> Any:
        with (self.folder / "seen").open("a") as seen:
            seen.write(f"{value.k} {value.t} {ctx.timestamp()}\n")
        if (self.when, value.k, value.t % 3) == ("row", "d", 1):
            (self.folder / "KILL row").touch()
            kill(self.when)
        self.drawn.update(random.SystemRandom().getrandbits(60))
        yield value.k, self.drawn.value(), ctx.timestamp()


class Copy(KeyedProcessFunction):
    """Keeps what was drawn."""

    copied = ValueState(int)

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.copied.update(value.drawn)
        yield value.k, value.drawn, ctx.timestamp()


OUTPUT = "k string, drawn bigint, at bigint"
_published: list[bool] = []


@attrs.frozen
class KilledChangelog(DirectoryChangelog):
    """A changelog that kills its job when something is to be published or exported."""

    when: str = attrs.field(default="", kw_only=True)

    def put_position(self, sequence: int, data: bytes) -> None:
        super().put_position(sequence, data)
        if self.when == "positioned" and data[:4] == b"KCLQ":
            kill(self.when)

    def writer(self, group: int) -> DirectoryWriter:
        writer = super().writer(group)
        append_all = writer.append_all

        def killing(commits: Sequence[Any]) -> Commit:
            last = append_all(commits)
            if self.when == "exported" and len(commits) > 1:
                (Path(self.path).parent / "KILL exported").touch()
                kill(self.when)
            return last

        writer.append_all = killing  # type: ignore[method-assign]
        return writer

    def publish(self, group: int, sequence: int, attempt: str) -> bool:
        with functions.PUBLISHING:
            if (self.when, len(_published)) in (("committed", 0), ("half", 1)):
                kill(self.when)
            _published.append(super().publish(group, sequence, attempt))
            return _published[-1]


def kill(when: str) -> None:
    say("KILL", when)
    session = os.getsid(0)
    for process in psutil.process_iter():
        with suppress(ProcessLookupError):
            if process.pid != os.getpid() and os.getsid(process.pid) == session:
                os.kill(process.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def main(folder: Path, when: str, interval: int) -> None:
    log, copied = (KilledChangelog(folder / name, when=when, export_interval=interval) for name in ("log", "copied"))
    # Rows that are written, by batch. Not every file has one: that of a batch that was given up is taken with the next.
    batches: dict[int, int] = {}

    def sink(frame: Any, batch: int) -> None:
        pq.write_table(frame.toArrow(), _new(folder / "out" / str(batch)) / "rows")
        batches[batch] = read_rows(folder / "out")
        if when == "written" and len(batches) == 3:
            kill(when)

    source = files_source(start_session(folder), folder / "in", timestamp=keyed.INGESTION_TIME).key_by("k")
    drawn = source.process(Draw(folder, when), OUTPUT, name="drawn", changelog=log)
    copy = drawn.key_by("k").process(Copy(), OUTPUT, name="copy", changelog=copied)
    assert "copy: chained to drawn" in explained(copy)
    query = copy.start(sink, checkpoint=folder / "checkpoint", trigger="100 milliseconds")
    rows = read_rows(folder / "in")
    while not any(written == rows and batch in query.batches for batch, written in list(batches.items())):
        query.await_termination(0.2)
    query.stop()


def read_rows(folder: Path) -> int:
    return sum(pq.read_metadata(path).num_rows for path in folder.rglob("*") if path.is_file())


def _new(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder

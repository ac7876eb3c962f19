"""What a batch costs the program of a Spark query for its changelogs: ``python -m tests.benchmarks.driver``.

The calls of a batch are made as the query makes them, without Spark: its reports and checkpoint files are written here,
and the commits are staged as its key groups stage them, which is not counted. Prints CPU-seconds and the calls of the
system that are made for files, for each batch: with every batch published, and with an export interval.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any, Self

from keyed.changelog import DirectoryChangelog
from keyed.engine.group_log import COUNTERS
from keyed.runtimes.spark.checkpoint.begin import Begin
from keyed.runtimes.spark.checkpoint.folder import open_checkpoint
from keyed.runtimes.spark.query.exports import Exports
from keyed.runtimes.spark.worker.wire import GroupMark
from keyed.testing.changelog_conformance import SampleGroup

#: Measured after two that are not.
_BATCHES = 5
_CALLS = ("open", "fsync", "link", "unlink", "stat", "listdir", "scandir", "rename", "replace")


class _Session:
    """The settings of a session: Spark's defaults."""

    @property
    def conf(self) -> _Session:
        return self

    def get(self, _name: str, default: str) -> str:
        return default


class _Query:
    """A query with the report of its last batch as Spark keeps it: as text."""

    report = "null"

    @property
    def lastProgress(self) -> Mapping[str, Any] | None:  # noqa: N802 - pyspark's name
        return json.loads(self.report)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    options = _parser().parse_args(arguments)
    print("| export | CPU-s a batch | calls for files a batch |\n|---|---|---|")
    for interval in (0, 3_600_000):
        with TemporaryDirectory() as folder, Job(Path(folder), options.groups, interval) as job:
            job.batch()
            job.batch()
            job.reset()
            for _ in range(_BATCHES):
                job.batch()
            calls = ", ".join(f"{name} {count / _BATCHES:.4g}" for name, count in job.calls.most_common())
            cost = job.seconds / _BATCHES
            print(f"| {'every hour' if interval else 'each batch'} | {cost:.3f} | {calls} |", flush=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.driver", description=__doc__)
    parser.add_argument("--groups", type=int, default=400, help="key groups")
    return parser


class Job:
    """The program's part of a query over one operator."""

    def __init__(self, folder: Path, groups: int, interval: int) -> None:
        self.seconds = 0.0
        self.calls: Counter[str] = Counter()
        self._folder = folder / "checkpoint"
        for name in ("offsets", "commits"):
            (self._folder / name).mkdir(parents=True)
        self._changelog = DirectoryChangelog(folder / "log", auto_compact=False, export_interval=interval)
        self._changelog.prepare("op", groups)
        self._groups = [SampleGroup(Random(group), group) for group in range(groups)]
        self._writers = [self._changelog.writer(group) for group in range(groups)]
        self._interval = interval
        self._number = 0
        self._query: Any = _Query()
        session: Any = _Session()
        checkpoint = open_checkpoint(str(self._folder))
        assert checkpoint is not None
        self._exports = Exports(session, checkpoint, {"op": self._changelog}, ticks=True)
        self._exports.start(Begin(), groups, [["op"]], lambda: self._query)
        self._system = {name: getattr(os, name) for name in _CALLS}

    def __enter__(self) -> Self:
        for name, call in self._system.items():
            setattr(os, name, self._counted(name, call))
        return self

    def __exit__(self, *_: object) -> None:
        for name, call in self._system.items():
            setattr(os, name, call)

    def reset(self) -> None:
        """Forget what was measured."""
        self.seconds = 0.0
        self.calls.clear()

    def batch(self) -> None:
        """Make the calls of one batch."""
        number, self._number = self._number, self._number + 1
        time = 1_700_000_000_000 + number * 1000
        lines = ["v1", json.dumps({"batchTimestampMs": time}), json.dumps({"topic": {"0": number}}), "0"]
        (self._folder / "offsets" / str(number)).write_text("\n".join(lines))
        self._measured(lambda: self._exports.before_batch(number))
        report = self._report(number, time)
        self._query.report = report
        (self._folder / "commits" / str(number)).write_text("v1")
        self._measured(lambda: self._committed(number))

    def _committed(self, number: int) -> None:
        """Do what the query's thread does when a batch is committed."""
        report = self._exports.committed_report(number)
        assert report is not None
        self._exports.next_work(report)
        self._exports.after_batch(report)
        self._exports.next_work(report)
        assert self._interval or not number or self._exports.has(report)

    def _measured(self, call: Callable[[], object]) -> None:
        before = process_time()
        call()
        self.seconds += process_time() - before

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            self.calls[name] += 1
            return call(*args, **options)

        return counted

    def _report(self, number: int, time: int) -> str:
        """Let the key groups stage a batch, and return Spark's report of it."""
        calls = self.calls.copy()
        marks = []
        for group, (sample, writer) in enumerate(zip(self._groups, self._writers, strict=True)):
            commit, blocks = sample.commit(5)
            staged = ""
            writer.last()
            if not self._interval and number:
                assert writer.stage(commit, blocks)
                staged = commit.attempt
            elif not number:
                writer.append(commit, blocks)
            metrics = dict.fromkeys(COUNTERS, 123456789)
            mark = GroupMark(
                "op",
                group,
                watermark=time,
                clock=time,
                end=False,
                metrics=metrics,
                commit=commit.sequence,
                changed=True,
                staged=staged,
                starts_run=not number,
                export_at=time + self._interval,
            )
            marks.append(mark.note()[1:].decode())
        self.calls = calls
        return json.dumps(
            {
                "batchId": number,
                "durationMs": {"addBatch": 1},
                "sources": [],
                "observedMetrics": {"keyed.op": {"marks": f"[{','.join(marks)}]"}},
            }
        )


if __name__ == "__main__":
    raise SystemExit(main())

"""Copies of a job, as each task on Spark gets one: a thousand in one process leave no thread and no descriptor."""

from __future__ import annotations

import gc
import pickle
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from pyspark import cloudpickle

import keyed
from keyed import DirectoryChangelog
from keyed.engine.batch import Batch
from keyed.engine.replica import Replica
from keyed.joins import AsyncLookup, lookup_join
from keyed.kafka.kafka_source import KafkaSource
from keyed.rows import row_class
from keyed.runtimes.recording import Recorder
from keyed.runtimes.spark.worker import processor
from keyed.runtimes.spark.worker.processor import Operation
from keyed.runtimes.spark.worker.wire import Emitter
from keyed.stores import MemoryStore
from keyed.stores.commit_store import MemoryCommitStore
from keyed.vectorized import TIMESTAMP_COLUMN
from keyed.windows import Count as Rows
from keyed.windows import EventTimeSessionWindows
from tests.support.waiting import until

if TYPE_CHECKING:
    from keyed.runtimes.spark.worker.processor import SparkGroupLog

COPIES = 1000
TABLE = pa.table({"k": ["a", "b"], "t": [1, 2], "v": [3, 4]})

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="reads /proc")


class Count(keyed.KeyedProcessFunction):
    n = keyed.ValueState(int)
    seen = keyed.MapState(int, int)

    def process_element(self, value, ctx):
        self.n.update((self.n.value() or 0) + 1)
        self.seen[value.v] = value.t
        ctx.timer_service().register_event_time_timer(value.t + 10)
        yield value.k, self.n.value()

    def on_timer(self, timestamp, ctx):
        return ()


async def doubled(key):
    return (len(key) * 2,)


def stream():
    return keyed.stream(TABLE, timestamp="t").key_by("k")


JOBS: dict[str, Any] = {
    "rows": lambda path: stream().process(Count(), "k string, n bigint"),
    "changelog": lambda path: stream().process(
        Count(), "k string, n bigint", changelog=DirectoryChangelog(path / "log")
    ),
    "look-up": lambda path: lookup_join(stream(), AsyncLookup(doubled), "double bigint", ttl=1),
    "sessions": lambda path: stream().window(EventTimeSessionWindows.with_gap(5)).aggregate(n=Rows()),
}


def living():
    """The threads of the process and its descriptors."""
    gc.collect()
    return {each.name for each in threading.enumerate()}, len(list(Path("/proc/self/fd").iterdir()))


def has_grown(before):
    """True if there are more threads or descriptors than before. Those of earlier tests may end meanwhile."""
    threads, descriptors = living()
    return not threads <= before[0] or descriptors > before[1]


def batch_at(task):
    """A batch of two rows, for both kinds of functions."""
    rows = TABLE.set_column(1, "t", pa.array([task, task + 1]))
    made = [row_class(tuple(rows.column_names))(row.values()) for row in rows.to_pylist()]
    return Batch(
        chunks=lambda: ((["a", "b"], [row.t for row in made], made, None),),
        table=lambda: rows.append_column(TIMESTAMP_COLUMN, rows["t"]),
        highest={(0, ""): task},
        processing_time=task * 1000,
        key_type="str",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind == "changelog" else pytest.mark.long) for kind in JOBS]
)
def test_a_thousand_tasks_leave_no_thread_and_no_descriptor(kind, tmp_path):
    stage = JOBS[kind](tmp_path).stage
    spec = stage.spec(1, output_timestamps=False)
    log_id = "" if spec.changelog is None else spec.changelog.prepare(spec.name, 1).log_id
    sent = cloudpickle.dumps(
        Operation(spec, (), "str", Emitter(spec.name, 0, stage.output, {}, False), "memory", None, log_id)
    )
    commits, replica = MemoryCommitStore(), Replica(MemoryStore())
    log = commits.group_log(spec.name, 0)
    before = None
    for task in range(COPIES):
        operation = pickle.loads(sent)
        batch = batch_at(task)
        batch.consumer = operation.emitter.rows()
        processor._work(operation, cast("SparkGroupLog", log), 0, log.meta("test"), "the-log", replica, batch)
        commits.commit()
        if task == 2:
            before = living()
    until(lambda: not has_grown(before))
    meta = log.meta("test")
    assert meta is not None
    assert meta.commit == COPIES


def test_what_else_travels_is_plain(tmp_path):
    """Copies of sources, sinks, changelogs and recorders have made nothing."""
    changelog = DirectoryChangelog(tmp_path / "log")
    changelog.prepare("Count", 1)
    plain = [
        changelog,
        keyed.KafkaChangelog("topic", bootstrap="localhost:1"),
        KafkaSource("topic", bootstrap="localhost:1"),
        keyed.parquet_sink(tmp_path / "out"),
        keyed.collect_sink(),
        Recorder(str(tmp_path / "record"), "Count"),
    ]
    sent = cloudpickle.dumps(plain)
    before = living()
    copies = [pickle.loads(sent) for _ in range(COPIES)]
    assert len({each[0].header().log_id for each in copies}) == 1
    assert not has_grown(before)


def test_copies_of_a_look_up_share_one_event_loop():
    sent = cloudpickle.dumps(AsyncLookup(doubled))
    assert pickle.loads(sent)(["a"]) == {"a": (2,)}
    before = living()
    for _ in range(COPIES):
        assert pickle.loads(sent)(["a", "bc"]) == {"a": (2,), "bc": (4,)}
    assert not has_grown(before)

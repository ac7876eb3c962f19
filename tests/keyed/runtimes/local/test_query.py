"""Runs of the local runtime: resuming, draining, refusals, failures, sources and bad rows."""

from __future__ import annotations

import datetime as dt
import resource
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import keyed
from keyed.rows import row
from tests.keyed.runtimes.local import job
from tests.support.jobs import Tally, collect

BAD = keyed.OutputTag("bad", "k string, ts bigint, v bigint")
ROOT = Path(__file__).parents[4]


class Sum(keyed.KeyedProcessFunction):
    total = keyed.ValueState(int, default=0)

    def process_element(self, value, ctx):
        if value.v == 13:
            raise LookupError("unlucky")
        self.total.update(self.total.value() + value.v)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() // 10 * 10 + 9)
        yield ctx.get_current_key(), value.v, self.total.value()

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), -timestamp, self.total.value()


def rows(*values, start=0):
    return [{"k": "ab"[i % 2], "ts": i, "v": v} for i, v in enumerate(values, start)]


def chain(source, function=None, *, name="Sum", on_bad_row=None, **options):
    stream = keyed.stream(source, timestamp="ts", watermark=keyed.bounded_out_of_orderness(5), on_bad_row=on_bad_row)
    return stream.key_by("k").process(function or Sum(), "k string, v bigint, n bigint", name=name, **options)


@pytest.mark.parametrize("store", ["memory", "rocksdb", "lmdb"])
def test_a_job_that_was_moved_copied_or_put_back_runs_on_with_all_its_folders(tmp_path, store):
    def run(name, count):
        at = tmp_path / name
        log = keyed.DirectoryChangelog(at / "log")
        chain(rows(*range(20, 20 + count)), changelog=log, parallelism=2, store=store).run(
            at / "out",
            checkpoint=at / "ck",
            tables=at / "tables",
            local_dir=at / "stores",
            rows_per_batch=7,
            drain=False,
        )
        assert [group.problem for group in keyed.recovery.verify(at / "ck", log)] == ["", ""]
        return sorted(map(str, ds.dataset(at / "out").to_table().to_pylist()))

    run("undisturbed", 14)
    run("first", 14)
    shutil.copytree(tmp_path / "first", tmp_path / "copied")
    shutil.copytree(tmp_path / "first", tmp_path / "backup")
    shutil.move(tmp_path / "first", tmp_path / "moved")
    whole = run("undisturbed", 28)
    assert run("moved", 28) == whole
    assert run("copied", 28) == whole
    # What another copy did since is not in the one that is put back.
    shutil.rmtree(tmp_path / "moved")
    shutil.move(tmp_path / "backup", tmp_path / "moved")
    assert run("moved", 28) == whole


def test_a_changelog_that_was_moved_alone_is_continued_at_its_new_path(tmp_path):
    source = rows(*range(20, 60))
    chain(source[:17], changelog=keyed.DirectoryChangelog(tmp_path / "log")).run(
        checkpoint=tmp_path / "ck", rows_per_batch=7
    )
    moved = keyed.DirectoryChangelog(shutil.move(tmp_path / "log", tmp_path / "moved"))
    chain(source, changelog=moved).run(checkpoint=tmp_path / "ck", rows_per_batch=7)
    assert not any(group.problem for group in keyed.recovery.verify(tmp_path / "ck", moved))


def test_draining_again_does_nothing_and_new_rows_are_refused(tmp_path):
    source = rows(1, 2, 3)
    assert chain(source).run(checkpoint=tmp_path, drain=True).batches == 2
    for drain in (True, False):
        assert chain(source).run(checkpoint=tmp_path, drain=drain).batches == 0
    with pytest.raises(keyed.errors.CheckpointFinished, match="drained"):
        chain([*source, *rows(4, start=3)]).run(checkpoint=tmp_path)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_run_without_new_rows_has_the_counters_of_the_last_batch(tmp_path, parallelism):
    source = rows(1, 2, 3)
    first = chain(source, parallelism=parallelism).run(checkpoint=tmp_path)
    again = chain(source, parallelism=parallelism).run(checkpoint=tmp_path)
    assert (again.batches, again.metrics) == (0, first.metrics)
    assert chain([], parallelism=parallelism).run(drain=False).metrics == {"Sum": {}}


def test_a_changed_query_is_refused_with_old_and_new_printed(tmp_path):
    class Other(Sum):
        total = keyed.ValueState(str, default="")

    source = rows(1, 2, 3)
    chain(source, parallelism=2).run(checkpoint=tmp_path)
    more = rows(1, 2, 3, 4)
    with pytest.raises(keyed.errors.OperatorChanged, match=r"'Sum'.*'Renamed'"):
        chain(more, name="Renamed").run(checkpoint=tmp_path)
    for other in (more, source):
        # Also where there are no new rows, and before a changelog is made.
        log = keyed.DirectoryChangelog(tmp_path / "log")
        with pytest.raises(keyed.errors.ParallelismChanged, match=r"2 key groups, the query 3; set parallelism=2,"):
            chain(other, parallelism=3, changelog=log).run(checkpoint=tmp_path)
        assert not (tmp_path / "log").exists()
    with pytest.raises(keyed.errors.StateSchemaChanged, match=r"(?s)int.*str"):
        chain(more, Other(), parallelism=2).run(checkpoint=tmp_path)
    assert chain(more, parallelism=2).run(checkpoint=tmp_path).values == [("b", 4, 6)]


def test_an_error_of_the_function_leaves_the_checkpoint_at_the_last_commit(tmp_path):
    source = rows(1, 2, 3, 4, 5, 13, 6)
    for _ in range(2):
        with pytest.raises(
            keyed.errors.UserFunctionError, match=r"'Sum'.*process_element.*v=13.*key 'b'.*LookupError: unlucky"
        ):
            chain(source).run(checkpoint=tmp_path, rows_per_batch=2)
    source[5]["v"] = 0
    resumed = chain(source).run(checkpoint=tmp_path, rows_per_batch=2, drain=True)
    fresh = chain(source).run(rows_per_batch=2)
    assert resumed.values == fresh.values[4:]


def generator(rows):
    yield from rows
    raise LookupError("no more")


class Lines(list):
    """Has positions, and ends with an error."""

    at = 0

    def __iter__(self):
        for element in self[self.at :]:
            self.at += 1
            yield element
        raise LookupError("no more")

    def position(self):
        return self.at

    def seek(self, position):
        self.at = position


class Tables(Lines):
    """The same in tables."""

    def batches(self):
        self.at = len(self)
        yield pa.Table.from_pylist(list(self[:]))
        raise LookupError("no more")


class Closed(Lines):
    """Raises an error of the library."""

    def __iter__(self):
        raise keyed.errors.SourceError("the topic 'x' is gone")


def record_batches(rows):
    table = pa.Table.from_pylist(rows)
    return pa.RecordBatchReader.from_batches(table.schema, generator(table.to_batches(max_chunksize=1)))


def test_an_operator_that_cannot_begin_leaves_its_stores_although_the_error_is_kept(tmp_path):
    changelog = keyed.DirectoryChangelog(tmp_path / "log")

    def run():
        output = keyed.stream(range(8)).key_by(str).process(Tally(), changelog=changelog, store="lmdb", parallelism=2)
        return output.run(checkpoint=tmp_path / "ck", drain=False)

    run()
    (segment,) = tmp_path.glob("log/groups/00001/*.segment")
    content = segment.read_bytes()
    segment.write_bytes(content[:-1] + b"x")
    with pytest.raises(keyed.errors.CorruptionError) as failed:
        run()
    segment.write_bytes(content)
    run()
    assert failed.value.__traceback__ is not None


@pytest.mark.parametrize("size", [1, 2, 1000])
@pytest.mark.parametrize("failing", [generator, Lines, Tables, record_batches, Closed])
def test_the_source_that_fails_is_named_with_its_rows(tmp_path, failing, size):
    def join(first, second, **options):
        streams = [keyed.stream(each, timestamp="ts") for each in (first, second)]
        return streams[0].union(streams[1]).key_by("k").process(Sum()).run(rows_per_batch=size, **options)

    data = rows(1, 2, 3)
    kind = type(failing(data)).__name__
    said = "0 rows: the topic 'x' is gone" if failing is Closed else "3 rows: LookupError: no more"
    error = keyed.errors.SourceError if failing is Closed else keyed.errors.QueryFailed
    for number, sources in (1, (failing(data), data)), (2, (rows(*range(9)), failing(data))):
        with pytest.raises(error, match=rf"^source {number} \({kind}\) failed after {said}(\n|$)"):
            join(*sources)
    if failing is generator:
        join(data, data, checkpoint=tmp_path / "c")
        for count in (1, 3):
            with pytest.raises(error, match=rf"^source 2 \(generator\) failed after {count} rows: LookupError"):
                join(data, generator(data[:count]), checkpoint=tmp_path / "c")
        with pytest.raises(keyed.errors.CheckpointError) as caught:
            join(data, rows(1), checkpoint=tmp_path / "c")
        assert "in source 2 (list), after 3 rows" in caught.value.__notes__


def test_a_function_for_keys_or_timestamps_that_raises_is_named_with_its_element():
    data = rows(1, 2)

    def fails(value):
        return 1 / (value["v"] - 2)

    for source in (data, pa.Table.from_pylist(data)):
        with pytest.raises(keyed.errors.UserFunctionError, match=r"'Sum', key of .*v=2.*: ZeroDivisionError"):
            keyed.stream(source).key_by(fails).process(Sum()).run()
        with pytest.raises(keyed.errors.UserFunctionError, match=r"'Sum', timestamp of .*v=2.*: ZeroDivisionError"):
            keyed.stream(source, timestamp=lambda row: int(fails(row))).key_by("k").process(Sum()).run()


def test_close_runs_for_every_group_and_its_error_is_named():
    closed = []

    class Closing(Sum):
        def open(self, context):
            self.group = context.get_index_of_this_subtask()

        def close(self):
            closed.append(self.group)
            if self.group == 1:
                raise LookupError("stuck")

    with pytest.raises(keyed.errors.UserFunctionError, match="close: LookupError: stuck"):
        chain(rows(1, 2, 3), Closing(), parallelism=3).run()
    assert sorted(closed) == [0, 1, 2]


def test_bad_rows_fail_the_query_or_leave_by_their_tag():
    source = [*rows(1, 2), {"k": None, "ts": 3, "v": 3}, {"k": "a", "ts": None, "v": 4}, *rows(5, start=4)]
    with pytest.raises(keyed.errors.NullKeyError, match="on_bad_row"):
        chain(source).run()
    for time, remedy in (
        (None, "filter such rows"),
        (1.5, "convert seconds"),
        ("1970-01-01T00:00:00Z", "convert text"),
        (dt.datetime(2026, 1, 1), "give a datetime its zone"),
    ):
        with pytest.raises(keyed.errors.TimestampError, match=rf"or a datetime with a time zone; {remedy}.*on_bad_row"):
            chain([*source[:2], {**source[3], "ts": time}]).run()
    for kind in (list, pd.DataFrame, pa.Table.from_pylist):
        output = chain(kind(source), on_bad_row=BAD)
        (good, bad), _ = collect(output, output.side_output(BAD))
        assert [value for value in good if value[1] >= 0] == [("a", 1, 1), ("b", 2, 2), ("a", 5, 6)]
        assert [row.v for row in bad] == [3, 4]


class Everything(keyed.KeyedProcessFunction):
    seen = keyed.ListState()

    def process_element(self, value, ctx):
        self.seen.add(value.v)
        yield ctx.get_current_key(), ctx.timestamp(), value.v, value.k, len(self.seen.get())


def test_all_kinds_of_sources_give_the_same():
    import polars as pl

    values = [{"k": f"k{i % 3}", "ts": (i * 7) % 20, "v": i} for i in range(30)]
    sources = {
        "list": lambda: values,
        "generator": lambda: (value for value in values),
        "pandas": lambda: pd.DataFrame(values),
        "arrow": lambda: pa.Table.from_pylist(values),
        "batch": lambda: pa.RecordBatch.from_pylist(values),
        "batches": lambda: [pa.RecordBatch.from_pylist(values[:9]), pa.RecordBatch.from_pylist(values[9:])],
        "reader": lambda: pa.Table.from_pylist(values).to_reader(7),
        "polars": lambda: pl.DataFrame(values),
        "lazy": lambda: pl.LazyFrame(values),
        "frames": lambda: (pd.DataFrame(values[:9]), pl.DataFrame(values[9:])),
        "rows": lambda: [row(**value) for value in values],
    }
    for parallelism in (1, 3):
        found = {
            name: keyed.stream(make(), timestamp="ts", watermark=keyed.bounded_out_of_orderness(3))
            .key_by("k")
            .process(Everything(), parallelism=parallelism)
            .run(rows_per_batch=8)
            .values
            for name, make in sources.items()
        }
        assert len(found["list"]) == 30
        assert all(one == found["list"] for one in found.values())


def test_timestamps_may_be_datetimes():
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    times = [epoch + dt.timedelta(microseconds=us) for us in (1_500, -1_500)]
    values = [{"k": "a", "ts": time, "v": 1} for time in times]
    for source in (values, pd.DataFrame(values)):
        stream = keyed.stream(source, timestamp="ts", watermark=keyed.bounded_out_of_orderness(10))
        assert [value[1] for value in stream.key_by("k").process(Everything()).run().values] == [-2, 1]


def test_a_started_query_runs_in_a_thread_and_stops_after_a_batch(tmp_path):
    begin, arrived, go_on = threading.Event(), threading.Event(), threading.Event()

    def source():
        assert begin.wait(300)
        for value in rows(*range(20, 40)):
            if value["ts"] == 10:
                arrived.set()
                assert go_on.wait(300)
            yield value

    sink = keyed.collect_sink()
    query = chain(source()).start(sink, checkpoint=tmp_path, rows_per_batch=5)
    assert query.status.value == "starting"
    assert query.metrics() == {"Sum": {"query_status": 0}}
    begin.set()
    assert arrived.wait(300)
    assert query.is_active
    assert query.status.value == "following"
    assert not query.await_termination(0.01)
    counters = query.metrics()["Sum"]
    assert (counters["rows_in"], counters["query_status"]) == (10, 1)
    stopper = threading.Thread(target=query.stop)
    stopper.start()
    go_on.set()
    stopper.join(300)
    assert query.await_termination(30)
    assert not query.is_active
    assert query.status.value == "closed"
    assert query.metrics()["Sum"]["query_status"] == 3
    done = query.progress.batch_id + 1
    assert 2 <= done <= 3
    rest = chain(rows(*range(20, 40))).run(checkpoint=tmp_path, rows_per_batch=5, drain=True)
    assert sink.values + rest.values == chain(rows(*range(20, 40))).run(rows_per_batch=5).values


def test_a_query_can_be_stopped_from_its_own_progress_and_fails_where_it_is_awaited(tmp_path):
    queries: list[Any] = []
    ready = threading.Event()

    def stop(progress):
        assert ready.wait(300)
        queries[0].stop()

    queries.append(chain(rows(1, 2, 3, 4)).start(keyed.collect_sink(), rows_per_batch=1, on_progress=stop))
    ready.set()
    assert queries[0].await_termination(30)
    assert queries[0].progress.batch_id == 0
    failing = chain(rows(1, 13)).start(keyed.collect_sink(), rows_per_batch=1)
    with pytest.raises(keyed.errors.UserFunctionError, match="unlucky"):
        failing.await_termination(30)
    assert failing.status.value == "failed"
    assert failing.metrics()["Sum"]["query_status"] == 2
    assert repr(failing) == "Query('Sum', batch 0, failed)"


def test_a_checkpoint_in_use_or_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(keyed.errors.CheckpointError, match="file"):
        chain(rows(1)).run(checkpoint=tmp_path / "file" / "checkpoint")

    class Nested(Sum):
        def process_element(self, value, ctx):
            chain(rows(1)).run(checkpoint=tmp_path / "own")
            return ()

    with pytest.raises(keyed.errors.CheckpointError, match="in use"):
        chain(rows(1), Nested()).run(checkpoint=tmp_path / "own")


LIMITED = """
import resource, sys
sys.path.insert(0, {root!r})
from pathlib import Path
from typing import Any
from keyed.errors import KeyedError
from keyed.rows import row
from tests.keyed.runtimes.local import job
job.run(Path({folder!r}), 600, drain=False)
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try:
    job.run(Path({folder!r}))
except KeyedError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "limit", [3000, pytest.param(0, marks=pytest.mark.long), pytest.param(20_000, marks=pytest.mark.long)]
)
def test_a_full_disk_is_a_typed_error_and_the_run_goes_on_when_there_is_room(tmp_path, limit):
    program = LIMITED.format(root=str(ROOT), folder=str(tmp_path / "limited"), limit=limit)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:1] in (["CheckpointError"], ["QueryFailed"], ["CorruptionError"]), done.stdout
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != limit
    job.run(tmp_path / "limited")
    job.run(tmp_path / "free", 600, drain=False)
    job.run(tmp_path / "free")
    assert job.written(tmp_path / "limited") == job.written(tmp_path / "free")


def test_an_unknown_option_and_an_unusable_source_are_refused():
    with pytest.raises(TypeError, match="'chekpoint'"):
        chain(rows(1)).run(chekpoint="x")
    with pytest.raises(
        keyed.errors.DefinitionError, match="elements of the source are of type RecordBatch; give a list of them"
    ):
        chain(pa.RecordBatch.from_pylist(rows(value)) for value in (1, 2)).run()
    for source in ("text", 5, b"bytes"):
        with pytest.raises(keyed.errors.DefinitionError, match="is not a stream"):
            chain(source).run()
    with pytest.raises(keyed.errors.DefinitionError, match="'k'"):
        chain(pd.DataFrame({"ts": [1]})).run()


@pytest.mark.parametrize("tag", [None, keyed.OutputTag("bad", "v strng")])
def test_a_type_that_spark_does_not_know_is_refused_before_the_first_row(tag):
    stream = keyed.stream(iter(lambda: pytest.fail("a row was read"), None)).key_by("k")
    output = stream.process(Sum(), "v strng" if tag is None else "v bigint")
    with pytest.raises(keyed.errors.OutputDefinitionError, match="column 'v': 'strng' is not a Spark type"):
        (output if tag is None else output.side_output(tag)).run()

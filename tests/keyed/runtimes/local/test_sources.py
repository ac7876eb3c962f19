"""The digest of a source in a checkpoint, sources with positions, and sources that wait."""

from __future__ import annotations

import datetime as dt
import inspect
import itertools
import math
import shutil
import threading
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest

import keyed
from keyed import DirectoryChangelog, KeyedProcessFunction
from keyed.errors import CheckpointError, DefinitionError
from keyed.runtimes.local.local_position import ROWS, Tracker
from keyed.testing import KeyedTestHarness
from tests.support.jobs import Number, PassTuple, Sides


def counts(source, output: Any = "k string, v bigint, n bigint", **options):
    return keyed.stream(source).key_by("k").process(Number(), output, **options)


def rows(*values):
    return [{"k": "a", "v": value} for value in values]


def reader(*values, batch=2, read: Any = None):
    """A reader of these rows, which notes the sizes of the record batches that were read."""
    table = pa.Table.from_pylist(list(values))

    def batches():
        for each in table.to_batches(max_chunksize=batch):
            if read is not None:
                read.append(each.num_rows)
            yield each

    return pa.RecordBatchReader.from_batches(table.schema, batches())


# What was consumed ----------------------------------------------------------------------------------------------------

KINDS: dict[str, Any] = {
    "list": list,
    "generator": lambda values: (value for value in values),
    "pandas": pd.DataFrame,
    "arrow": pa.Table.from_pylist,
    "reader": lambda values: reader(*values),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_source_that_gives_only_what_is_new_or_has_lost_rows_is_refused(tmp_path, kind):
    make = KINDS[kind]
    counts(make(rows(1, 2))).run(checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match=r"has consumed 2 rows, and the first 2 .* differ from this source"):
        counts(make(rows(3, 4, 5))).run(checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match="has consumed 2 rows of the source, which has only 1"):
        counts(make(rows(1))).run(checkpoint=tmp_path)
    values = counts(make(rows(1, 2, 3, 4, 5))).run(checkpoint=tmp_path).values
    assert values == [("a", 3, 3), ("a", 4, 4), ("a", 5, 5)]


def test_the_last_rows_are_compared_too_and_not_those_between(tmp_path):
    whole = list(range(3 * ROWS))
    counts(rows(*whole)).run(checkpoint=tmp_path, rows_per_batch=700)
    for at, refused in ((0, "first"), (ROWS - 1, "first"), (2 * ROWS, "last"), (3 * ROWS - 1, "last")):
        other = [*whole]
        other[at] = -1
        with pytest.raises(CheckpointError, match=rf"the {refused} 1000 of them"):
            counts(rows(*other, 7)).run(checkpoint=tmp_path)
    whole[ROWS + 5] = -1
    assert counts(rows(*whole, 7)).run(checkpoint=tmp_path).values == [("a", 7, 3 * ROWS + 1)]


def test_the_same_rows_may_come_by_another_way(tmp_path):
    values = [{"k": "a", "v": v, "x": x} for v, x in ((1, 1.5), (2, None), (3, 2.0))]
    ways: list[Any] = [values, pd.DataFrame(values), pa.Table.from_pylist(values), map(dict, values), reader(*values)]
    for number, way in enumerate(ways):
        counts(way, None).run(checkpoint=tmp_path / str(number))
        more: list[Any] = [*values, {"k": "a", "v": 4, "x": 2}]
        # pandas makes floats of integers where one is missing.
        frames: list[Any] = [pd.DataFrame([*more, {"k": "b"}])[:4], pa.Table.from_pylist(more)]
        for later in (more, *frames, reader(*more), reader(*more, batch=3)):
            shutil.copytree(tmp_path / str(number), tmp_path / "copy")
            assert counts(later, None).run(checkpoint=tmp_path / "copy").values == [("a", 4, 4)]
            shutil.rmtree(tmp_path / "copy")


def test_a_source_may_use_one_dictionary_for_all_rows(tmp_path):
    def reusing(last):
        element: dict[str, Any] = {"k": "a"}
        for value in range(last):
            element["v"] = value
            yield element

    for last in (3, 5):
        result = counts(reusing(last)).run(rows_per_batch=2, checkpoint=tmp_path / "checkpoint")
    assert result.values == [("a", 3, 4), ("a", 4, 5)]
    harness = KeyedTestHarness(Number(), key="k")
    with harness.batch():
        for element in reusing(3):
            harness.process(element)
    assert [record.value for record in harness.take_output()] == [("a", 0, 1), ("a", 1, 2), ("a", 2, 3)]


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 50])
def test_batches_of_a_reader_do_not_depend_on_its_record_batches(tmp_path, batch, size):
    whole = rows(*range(10))
    found = []
    for source in (pa.Table.from_pylist(whole), reader(*whole, batch=batch)):
        progress: list[Any] = []
        result = counts(source).run(rows_per_batch=size, on_progress=progress.append)
        found.append((result.values, [each.rows for each in progress]))
    assert found[0] == found[1]


def test_a_reader_is_not_read_before_its_rows_are_needed():
    read: list[int] = []
    progress: list[Any] = []
    source = reader(*rows(*range(40)), batch=4, read=read)
    counts(source).run(rows_per_batch=8, on_progress=lambda _: progress.append(sum(read)))
    assert progress[:5] == [8, 16, 24, 32, 40]


def test_tables_without_a_schema_before_they_are_read_are_refused():
    with pytest.raises(DefinitionError, match=r"of type Table; give a list of them, a pyarrow\.RecordBatchReader"):
        counts(iter([pa.Table.from_pylist(rows(1))])).run()


TIMES = pd.DataFrame({"t": pd.date_range("2024-01-01", periods=3), "k": ["a", "b", "a"]})


@pytest.mark.parametrize(
    "elements",
    [
        list(TIMES.t),
        tuple(TIMES.t),
        list(TIMES.itertuples(index=False)),
        TIMES.itertuples(index=False),
        [pd.NA, pd.NaT],
        [TIMES.k, TIMES.t],
        list(pa.array([1, 2])),
        [pl.Series([1]), pl.lit(1)],
    ],
    ids=["timestamps", "tuple", "rows", "generator", "nulls", "series", "scalars", "polars"],
)
def test_objects_of_the_libraries_of_tables_are_elements_like_others(elements):
    class Kinds(KeyedProcessFunction):
        def process_element(self, value, ctx):
            yield type(value)

    elements = list(elements)
    found = keyed.stream(iter(elements)).key_by(lambda value: 1).process(Kinds()).run().values
    assert found == list(map(type, elements))


def test_a_subclass_of_a_table_is_a_table():
    class Places(pd.DataFrame):
        pass

    assert counts(Places(rows(1, 2))).run().values == [("a", 1, 1), ("a", 2, 2)]


@pytest.mark.parametrize("index", ["u", ["u", "v"], pd.Index(["x", "y"]), pd.DatetimeIndex([0, 1])], ids=str)
def test_an_index_that_holds_data_is_not_lost(index):
    frame = pd.DataFrame({"u": [1, 2], "v": [3, 4], "k": ["a", "b"]})
    with pytest.raises(DefinitionError, match=r"index would be lost: give frame\.reset_index\(\)"):
        keyed.stream(frame.set_index(index))
    for numbers in (frame, frame[frame.v > 3], frame[:0], pd.DataFrame()):
        assert counts(numbers).stage.source.data.column_names == [*numbers]


def test_digests_are_those_of_values():
    def of(*rows):
        return Tracker(len(rows), rows, rows).consumed()

    class Plain:
        pass

    assert of({"a": 1, "b": None}) == of({"a": 1.0}) == of({"b": float("nan"), "a": Decimal(1)})
    assert of({"a": 1}) != of({"a": 2})
    assert of({"a": 1}) != of({"b": 1})
    assert of(1, 2) != of(2, 1)
    assert of(float("inf"), Decimal("-Infinity"), Decimal("NaN")) == of(float("inf"), Decimal("-Infinity"), None)
    assert of(Plain()) == of(Plain())
    assert of({"a": Decimal("1.50")}) == of({"a": 1.5}) != of({"a": Decimal("1.51")})
    assert of({"a": 2**70}) == of({"a": float(2**70)}) != of({"a": 2**70 + 1})
    assert of({"a": np.int64(1), "b": np.float32(0.5)}) == of({"a": 1, "b": 0.5})
    assert of({"a": Decimal("1E+999999999")}) != of({"a": Decimal("1E+999999998")})
    assert of(["\ud800"]) != of(["\udfff"])
    holds_itself: list[Any] = []
    holds_itself.append(holds_itself)
    assert of(holds_itself) == of([holds_itself])
    zones = [dt.timezone(dt.timedelta(hours=hours)) for hours in (-5, 5)]
    assert of(*(dt.datetime(1, 1, 1, 5, tzinfo=zone) for zone in zones)) != of(
        dt.datetime(1, 1, 1), dt.datetime(1, 1, 1)
    )


def test_a_changelog_remembers_what_was_consumed(tmp_path):
    changelog = DirectoryChangelog(tmp_path / "log")
    counts(rows(1, 2), changelog=changelog).run(checkpoint=tmp_path / "first")
    with pytest.raises(CheckpointError, match="differ from this source"):
        counts(rows(3, 4, 5), restore_from=changelog).run(checkpoint=tmp_path / "second")
    assert counts(rows(1, 2, 3), restore_from=changelog).run().values == [("a", 3, 3)]


# Positions of their own -----------------------------------------------------------------------------------------------


class Numbers:
    """Gives numbers on and on, from its position to before an end."""

    def __init__(self, end, at=0):
        self.at, self.end, self.sought = at, end, []

    def __iter__(self):
        while self.at < self.end:
            self.at += 1
            yield {"k": "a", "v": self.at - 1}

    def position(self):
        return {"at": self.at}

    def seek(self, position):
        self.sought.append(position)
        self.at = position["at"]


def test_a_source_that_knows_its_position_goes_on_from_it(tmp_path):
    changelog = DirectoryChangelog(tmp_path / "log")
    assert isinstance(Numbers(1), keyed.SeekableSource)
    first = counts(Numbers(5), changelog=changelog).run(checkpoint=tmp_path / "ck", rows_per_batch=2)
    assert [value.v for value in first.values] == [0, 1, 2, 3, 4]
    later = Numbers(7)
    assert counts(later, changelog=changelog).run(checkpoint=tmp_path / "ck").values == [("a", 5, 6), ("a", 6, 7)]
    assert later.sought == [{"at": 5}]
    assert counts(Numbers(8), restore_from=changelog).run().values == [("a", 7, 8)]
    with pytest.raises(CheckpointError, match=r"has the position {'at': 7} of a source with seek\(.*list has none"):
        counts(rows(1)).run(checkpoint=tmp_path / "ck")


class Tables(Numbers):
    """Gives them in tables of up to three, with pauses."""

    def batches(self):
        while rows := list(itertools.islice(Numbers(self.end, self.at), 3)):
            self.at += len(rows)
            yield pa.Table.from_pylist(rows)
            yield keyed.PAUSE


def test_an_attribute_named_batches_is_no_method_of_tables():
    source: Any = Numbers(3)
    source.batches = 2
    assert [value.v for value in counts(source).run().values] == [0, 1, 2]


def test_tables_of_a_source_are_its_batches(tmp_path):
    ends = []
    run = counts(Tables(5)).run
    found = run(checkpoint=tmp_path, rows_per_batch=2, on_progress=lambda progress: ends.append(progress.rows))
    assert [value.v for value in found.values] == [0, 1, 2, 3, 4]
    assert [each for each in ends if each] == [3, 2]
    assert counts(Tables(6)).run(checkpoint=tmp_path).values == [("a", 5, 6)]


def test_positions_that_cannot_be_kept_or_used_are_refused(tmp_path):
    counts(rows(1, 2)).run(checkpoint=tmp_path)
    with pytest.raises(CheckpointError, match="consumed 2 rows of a source without positions"):
        counts(Numbers(3)).run(checkpoint=tmp_path)
    for position in (None, object(), {1, 2}):
        source = Numbers(3)
        source.position = lambda position=position: position  # type: ignore[method-assign,misc]
        with pytest.raises(DefinitionError, match="which a checkpoint cannot store"):
            counts(source).run()


class Waits(Numbers):
    """Records for how long it may wait."""

    def __init__(self, end):
        super().__init__(end)
        self.first: set[float] = set()
        self.more: set[float] = set()

    def set_waits(self, first, more):
        self.first.add(first)
        self.more.add(more)


def test_a_batch_waits_for_further_rows_only_where_it_makes_a_file(tmp_path):
    def waited(*sinks, changelog=None, **options):
        source = Waits(3)
        output = counts(source, changelog=changelog)
        keyed.run(*(output.to(sink) for sink in sinks), **options)
        (more,) = source.more
        return more

    log = DirectoryChangelog(tmp_path / "rare", export_interval=1000)
    assert waited(keyed.collect_sink()) == waited(lambda rows, batch: None, checkpoint=tmp_path / "ck") == 0
    assert waited(keyed.collect_sink(), changelog=log) == 0
    assert waited(keyed.collect_sink(), tmp_path / "out") == 1
    assert waited(keyed.collect_sink(), changelog=DirectoryChangelog(tmp_path / "log")) == 1
    again = DirectoryChangelog(tmp_path / "rare-2", export_interval=1000)
    assert waited(keyed.collect_sink(), changelog=again, record=tmp_path / "recorded", checkpoint=tmp_path / "ck2") == 1


def test_one_of_several_sources_waits_for_a_share_of_their_silence():
    alone, left, right = Waits(3), Waits(3), Waits(3)
    counts(alone).run()
    assert alone.first == {math.inf}
    keyed.stream(left).union(keyed.stream(right)).key_by("k").process(Number(), "k string, v bigint, n bigint").run()
    assert left.first == right.first
    assert max(left.first) < math.inf


# Sources that wait ----------------------------------------------------------------------------------------------------


class Remind(KeyedProcessFunction):
    """Says that a row came, and again 100 ms of processing time later."""

    def process_element(self, value, ctx):
        ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time() + 100)
        yield "came", value.v

    def on_timer(self, timestamp, ctx):
        yield "again", timestamp


def test_a_source_that_is_read_again_waits_as_before(tmp_path):
    clock = [0]

    def source(pauses):
        yield from rows(1)
        yield keyed.PAUSE
        yield from rows(2)
        for clock[0] in range(0, pauses, 10):
            yield keyed.PAUSE
        yield from rows(*([3] if pauses else []))

    def run(pauses):
        sink, batches = keyed.collect_sink(), []
        keyed.stream(source(pauses)).key_by("k").process(Remind()).run(
            sink,
            checkpoint=tmp_path,
            processing_time=lambda: clock[0],
            on_progress=lambda progress: batches.append(progress.rows),
        )
        return sink.values, batches

    assert run(0) == ([("came", 1), ("came", 2)], [1, 1])
    assert run(1000) == ([("again", 100), ("came", 3)], [0, 1])


def test_a_waiting_source_stops_at_once():
    waiting = threading.Event()

    def source():
        yield from rows(1)
        while True:
            waiting.set()
            yield keyed.PAUSE

    query = counts(source()).start(sink := keyed.collect_sink())
    assert waiting.wait(300)
    query.stop()
    assert query.await_termination(30)
    assert sink.values == [("a", 1, 1)]


class Late(Numbers):
    """A source that was closed before its iteration begins, as `KafkaSource` may be: it does not know that it was."""

    def __init__(self):
        super().__init__(0)
        self.began, self.closed_before, self.closed = threading.Event(), threading.Event(), threading.Event()

    def __iter__(self):
        self.began.set()
        self.closed_before.wait(30)
        self.closed.clear()
        self.closed.wait(300)
        yield from ()

    def close(self):
        self.closed.set()
        self.closed_before.set()


def test_a_query_stops_whose_source_was_closed_before_it_began():
    query = counts(late := Late()).start(keyed.collect_sink())
    assert late.began.wait(30)
    threading.Thread(target=query.stop, daemon=True).start()
    assert query.await_termination(30)


@pytest.mark.parametrize("make", [lambda: iter(rows(1)), lambda: Numbers(1)], ids=["iterator", "positions"])
def test_a_source_that_another_query_is_reading_is_refused_before_anything_is_written(tmp_path, make):
    """Each element would reach only one of the two queries."""
    source, begun, allowed = make(), threading.Event(), threading.Event()

    def write(_rows, _batch):
        begun.set()
        assert allowed.wait(30)

    first = counts(source).start(write)
    assert begun.wait(30)
    try:
        with pytest.raises(DefinitionError, match=r"another query of this program is reading this .*one for each"):
            counts(source).run(tmp_path / "out", checkpoint=tmp_path / "ck")
    finally:
        allowed.set()
    assert first.await_termination(30)
    assert [*tmp_path.iterdir()] == []


class Connected(Numbers):
    """A source that notes whether its iteration has ended."""

    is_connected = False

    def __iter__(self):
        self.is_connected = True
        try:
            yield from super().__iter__()
        finally:
            self.is_connected = False


def test_a_failed_query_ends_the_iterations_of_its_sources_although_its_error_is_kept():
    def write(_rows, _batch):
        raise ValueError("no")

    def broken():
        yield from rows(1)
        raise ValueError("the other source")

    alone, beside = Connected(100), Connected(100)
    query = counts(alone).start(write, rows_per_batch=1)
    with pytest.raises(keyed.errors.QueryFailed, match="cannot take batch 0"):
        query.await_termination(30)
    first, second = (keyed.stream(each).key_by("k") for each in (beside, broken()))
    with pytest.raises(keyed.errors.QueryFailed, match="the other source") as failed:
        first.connect(second).process(Sides()).run(rows_per_batch=1)
    assert (alone.is_connected, beside.is_connected) == (False, False)
    assert failed.value.__traceback__ is not None


@pytest.mark.parametrize(
    "make",
    [
        lambda: ({"k": "a"} for _ in range(3)),
        lambda: iter([{"k": "a"}] * 3),
        lambda: map(dict, [[("k", "a")]] * 3),
        lambda: reader(*[{"k": "a"}] * 3),
    ],
    ids=["generator", "list", "map", "reader"],
)
def test_a_second_run_over_an_iterator_that_was_read_is_refused_before_it_replaces_anything(tmp_path, make):
    sink = keyed.parquet_sink(tmp_path / "out", mode="overwrite")

    job = keyed.stream(make()).key_by("k").process(PassTuple(), "k string")
    job.run(sink)
    with pytest.raises(keyed.errors.SourceError, match=r"was read to its end already.*a new iterator"):
        job.run(sink)
    assert len(pa.parquet.read_table(tmp_path / "out")) == 3
    generator = make()
    list(generator)
    if inspect.isgenerator(generator):
        with pytest.raises(keyed.errors.SourceError, match="was read to its end already"):
            keyed.stream(generator).key_by("k").process(PassTuple(), "k string").run(sink)


def test_an_iterator_that_has_nothing_yet_and_one_that_goes_on_are_no_error():
    assert counts(iter([])).run().values == []
    job = counts(rows(1))
    assert len(job.run().values) == len(job.run().values) == 1

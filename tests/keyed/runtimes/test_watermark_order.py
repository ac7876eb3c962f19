"""``order="watermark"``: rows wait in state until the watermark has passed them, and run by event time."""

from __future__ import annotations

import random
from datetime import timedelta

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyed
from keyed import StateTtl, TimeDomain, bounded_out_of_orderness
from keyed.changelog import DirectoryChangelog
from keyed.errors import DefinitionError, EncodingError, StateSchemaChanged
from keyed.recovery import verify
from keyed.testing import KeyedTestHarness
from keyed.vectorized import VectorizedFunction
from keyed.windows import Count, TumblingEventTimeWindows
from tests.keyed.runtimes.spark.functions import SCHEMA
from tests.support.jobs import Pass, Sides
from tests.support.tables import poll_tables

DELAY = 10


class Everything(keyed.KeyedProcessFunction):
    """Depends on the order of rows, on timers between them, on the watermark and on time to live."""

    seen = keyed.ListState(int)
    brief = keyed.ValueState(int, ttl=StateTtl(20, time_domain=TimeDomain.EVENT_TIME))

    def shown(self, kind, key, time, ctx):
        watermark = ctx.timer_service().current_watermark()
        return kind, key, time, watermark, " ".join(map(str, self.seen)), self.brief.value(), ctx.is_late()

    def process_element(self, value, ctx):
        timers, time = ctx.timer_service(), ctx.timestamp()
        yield self.shown("row", value["k"], time, ctx)
        self.seen.add(time)
        if self.brief.value() is None:
            self.brief.update(time)
        timers.register_event_time_timer(time + value["v"] - 8)
        timers.set_timer("last", time + 5)

    def on_timer(self, timestamp, ctx):
        yield self.shown("timer", ctx.get_current_key(), timestamp, ctx)
        if len(list(self.seen)) > 3:
            self.seen.clear()
            ctx.timer_service().register_event_time_timer(timestamp + 3)


class Wait(keyed.KeyedProcessFunction):
    """Emits each row from a processing-time timer, so without a timestamp, and once more at once."""

    def process_element(self, value, ctx):
        timers = ctx.timer_service()
        timers.set_timer("later", timers.current_processing_time(), TimeDomain.PROCESSING_TIME)
        yield value

    def on_timer(self, timestamp, ctx):
        yield {"k": ctx.get_current_key(), "t": -1, "v": 0}


@attrs.frozen
class Reading:
    k: str
    t: int


def job(rows, function=None, *, order="watermark", delay=DELAY, **options):
    stream = keyed.stream(rows, timestamp="t", watermark=bounded_out_of_orderness(delay))
    return stream.key_by("k").process(function or Everything(), order=order, name="held", **options)


@st.composite
def streams(draw):
    """Rows of distinct times in order, and the same rows as they may arrive within the delay."""
    times = sorted(draw(st.sets(st.integers(0, 120), min_size=1, max_size=25)))
    rows = [{"k": draw(st.sampled_from("ab")), "t": time, "v": draw(st.integers(0, 30))} for time in times]
    shifts = draw(st.lists(st.integers(0, DELAY), min_size=len(rows), max_size=len(rows)))
    shifted = sorted(zip(rows, shifts, strict=True), key=lambda each: each[0]["t"] + each[1])
    return rows, [row for row, _ in shifted]


def in_key_order(values):
    """Outputs of a key keep their order; those of different key groups have none between them."""
    return sorted(map(tuple, values), key=lambda value: value[1])


@given(streams(), st.integers(1, 26), st.sampled_from([None, "memory", "rocksdb", "lmdb"]), st.integers(1, 2))
def test_results_depend_neither_on_batches_nor_on_arrival(tmp_path_factory, rows, size, store, parallelism):
    ordered, arrived = rows
    expected = job(ordered).run().values
    options = {"drain": True, "checkpoint": tmp_path_factory.mktemp("ck")} if store else {}
    found = job(arrived, store=store or "memory", parallelism=parallelism).run(rows_per_batch=size, **options)
    assert in_key_order(found.values) == in_key_order(expected)
    assert found.metrics["held"]["rows_in"] == len(arrived)
    assert found.metrics["held"].get("rows_held") == found.metrics["held"]["rows_late"] == 0


def some_rows(seed, number=60):
    chance = random.Random(seed)
    times = [3 * n for n in range(number)]
    rows = {time: {"k": chance.choice("abc"), "t": time, "v": chance.randrange(30)} for time in times}
    arrived = sorted(times, key=lambda time: time + chance.randrange(DELAY))
    return list(rows.values()), [rows[time] for time in arrived]


def test_late_rows_run_at_once_and_are_counted():
    rows = [{"k": "a", "t": time, "v": 0} for time in (100, 200, 50, 189, 190, 300)]
    result = job(rows).run(rows_per_batch=1)
    found = [(value[2], value[-1]) for value in result.values if value[0] == "row"]
    assert found == [(100, False), (50, True), (189, True), (190, False), (200, False), (300, False)]
    assert result.metrics["held"]["rows_late"] == 2


def test_rows_of_equal_times_keep_the_order_of_arrival():
    rows = [{"k": "a", "t": 5, "v": n} for n in (3, 1, 2)]

    for size in (1, 2, 3):
        assert [row.v for row in job(rows, Pass()).run(rows_per_batch=size).values] == [3, 1, 2]


def test_both_sides_of_connected_streams_wait(tmp_path):
    left = [{"k": "a", "t": time} for time in (30, 10, 50)]
    right = [{"k": "a", "t": time} for time in (20, 40)]

    def sides(left, right, **options):
        streams = [keyed.stream(each, timestamp="t", watermark=bounded_out_of_orderness(30)) for each in (left, right)]
        return streams[0].connect(streams[1]).key_by("k", "k").process(Sides(), order="watermark", **options)

    expected = [(1, 10), (2, 20), (1, 30), (2, 40), (1, 50)]
    assert [(side, row.t) for side, row in sides(left, right).run(rows_per_batch=1).values] == expected
    values = sides(left[:2], right[:1]).run(checkpoint=tmp_path, rows_per_batch=1).values
    values += sides(left, right).run(checkpoint=tmp_path, rows_per_batch=1, drain=True).values
    assert [(side, row.t) for side, row in values] == expected


def test_rows_of_another_operator_wait_for_its_watermark():
    ordered, arrived = some_rows(3)

    def two(rows, size):
        first = job(rows, Pass(), order="event_time").key_by("k")
        return first.process(Everything(), order="watermark").run(rows_per_batch=size)

    expected = two(ordered, 100).values
    assert [two(arrived, size).values for size in (1, 7, 100)] == [expected] * 3


def test_rows_without_a_timestamp_run_at_once():
    rows = [{"k": "a", "t": time, "v": 0} for time in (5, 1, 30)]

    class Times(keyed.KeyedProcessFunction):
        def process_element(self, value, ctx):
            yield ctx.timestamp()

    waited = job(rows, Wait(), order="event_time", delay=100).key_by("k").process(Times(), order="watermark")
    found = waited.run(rows_per_batch=3).values
    assert [time for time in found if time is not None] == [1, 5, 30]
    assert found.count(None) >= 1


def test_windows_take_the_order():
    _, arrived = some_rows(4)
    windows = {}
    for order in ("event_time", "watermark"):
        stream = keyed.stream(arrived, timestamp="t", watermark=bounded_out_of_orderness(DELAY)).key_by("k")
        counts = stream.window(TumblingEventTimeWindows.of(30)).aggregate({"n": Count()}, order=order)
        windows[order] = sorted(map(tuple, counts.run(rows_per_batch=7).values))
    assert windows["event_time"] == windows["watermark"]


def values(harness):
    return [record.value for record in harness.take_output()]


def test_elements_of_the_harness_wait_for_the_watermark():
    harness = KeyedTestHarness(Everything(), key="k", order="watermark")
    for time in (7, 3):
        harness.process({"k": "a", "t": time, "v": 0}, time)
    assert harness.take_output() == []
    assert harness.metrics()["rows_held"] == 2
    harness.advance_watermark(6)
    assert [value[:4] for value in values(harness)] == [("row", "a", 3, 2), ("timer", "a", -5, 2)]
    again = KeyedTestHarness.restore(Everything(), harness.snapshot(), key="k", order="watermark", parallelism=2)
    again.advance_watermark(7)
    assert ("row", "a", 7, 6) in [value[:4] for value in values(again)]


def test_waiting_rows_are_not_a_table_of_their_own(tmp_path):
    log = DirectoryChangelog(tmp_path / "log")
    result = job(some_rows(5)[1], changelog=log).run(checkpoint=tmp_path / "ck", rows_per_batch=4)
    assert result.metrics["held"]["rows_held"]
    with poll_tables(log, str(tmp_path / "tables")) as tables:
        assert sorted(tables) == ["brief", "seen"]


def test_another_order_continues_only_if_it_has_the_waiting_rows(tmp_path):
    _, arrived = some_rows(6)
    job(arrived[:30], order="event_time").run(checkpoint=tmp_path)
    job(arrived[:40]).run(checkpoint=tmp_path)
    with pytest.raises(StateSchemaChanged, match="order='watermark'"):
        job(arrived, order="event_time").run(checkpoint=tmp_path)
    job(arrived).run(checkpoint=tmp_path, drain=True)


def test_a_row_that_cannot_be_stored_is_an_error_that_names_it(tmp_path):
    rows = [Reading("a", 1), Reading("a", 2)]
    stream = keyed.stream(rows, timestamp="t").key_by("k")

    assert stream.process(Pass(), order="watermark").run().values == rows
    with pytest.raises(EncodingError, match=r"order='watermark' keeps rows in state.*Reading\(k='a', t=2"):
        stream.process(Pass(), order="watermark").run(checkpoint=tmp_path)


class Whole(VectorizedFunction):
    def process_batch(self, table, ctx):
        return table


@pytest.mark.parametrize(
    ("stream", "function", "message"),
    [
        (lambda: keyed.stream([{"k": 1}]), Everything, "the stream has no event time"),
        (lambda: keyed.stream([{"k": 1}], timestamp=keyed.INGESTION_TIME), Everything, "in ingestion time"),
        (lambda: keyed.stream([{"k": 1, "t": 1}], timestamp="t"), Whole, "for functions over rows"),
    ],
)
def test_streams_whose_rows_cannot_wait_are_refused(stream, function, message):
    with pytest.raises(DefinitionError, match=message):
        stream().key_by("k").process(function(), order="watermark")


def test_the_delay_may_be_a_timedelta():
    rows = [{"k": "a", "t": time, "v": 0} for time in (2000, 1000)]
    stream = keyed.stream(rows, timestamp="t", watermark=bounded_out_of_orderness(timedelta(seconds=2)))
    found = stream.key_by("k").process(Everything(), order="watermark").run(rows_per_batch=1).values
    assert [value[2] for value in found if value[0] == "row"] == [1000, 2000]


# Both runtimes --------------------------------------------------------------------------------------------------------


OUTPUT = "kind string, k string, t bigint, w bigint, seen string, brief bigint, late boolean"


def test_rows_wait_across_restarts_and_a_restore_at_another_parallelism(runtime, tmp_path):
    ordered, arrived = some_rows(7)
    runtime.size = 4
    log = DirectoryChangelog(tmp_path / "log")
    values, held = [], []

    def run(checkpoint, rows, **options):
        runtime.add(tmp_path / "in", [tuple(row.values()) for row in rows])
        stream = runtime.source(tmp_path / "in", watermark=bounded_out_of_orderness(DELAY)).key_by("k")
        query = stream.process(Everything(), OUTPUT, order="watermark", name="held", **options)
        result = query.run(checkpoint=tmp_path / checkpoint, drain="restore_from" in options, **runtime.batches)
        values.extend(result.values)
        held.append(result.metrics["held"]["rows_held"])

    for start, end in ((0, 15), (15, 16), (16, 40)):
        run("ck", arrived[start:end], parallelism=2, changelog=log)
    assert not any(each.problem for each in verify(log))
    run("ck2", arrived[40:], parallelism=3, restore_from=log)
    assert in_key_order(values) == in_key_order(job(ordered).run().values)
    assert all(held[:-1])
    assert held[-1] == 0


def test_a_batch_dataframe_runs_by_event_time(spark):
    ordered, arrived = some_rows(8)
    frame = spark.createDataFrame([tuple(row.values()) for row in arrived], SCHEMA)
    found = job(frame, output=OUTPUT, parallelism=2).run().values
    assert in_key_order(found) == in_key_order(job(ordered).run().values)

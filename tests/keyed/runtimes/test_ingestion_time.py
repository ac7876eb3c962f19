"""Ingestion time: each row has the time of its batch, which never goes back and is the same when a batch runs again."""

from collections import Counter
from itertools import accumulate

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyed
from keyed import INGESTION_TIME, PAUSE, KeyedProcessFunction, MapState, bounded_out_of_orderness
from keyed.windows import Count, TumblingEventTimeWindows
from tests.keyed.runtimes.spark.functions import Stamp, files_source, parquet_rows, write_file
from tests.support.waiting import until


class Times(KeyedProcessFunction):
    """Emits each element with its timestamp and whether it is late."""

    def process_element(self, value, ctx):
        yield value.v, ctx.timestamp(), ctx.is_late()


class Window(KeyedProcessFunction):
    """Counts by windows of 10 ms."""

    counts = MapState(int, int)

    def process_element(self, value, ctx):
        start = ctx.timestamp() // 10 * 10
        self.counts[start] = self.counts.get(start, 0) + 1
        ctx.timer_service().register_event_time_timer(start + 9)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp - 9, self.counts[timestamp - 9], ctx.timer_service().current_watermark()
        self.counts.remove(timestamp - 9)


class Clock:
    """Gives one time after the other, and then the last one."""

    def __init__(self, times):
        self.times = list(times)

    def __call__(self):
        return self.times.pop(0) if len(self.times) > 1 else self.times[0]


def rows(count):
    return [{"k": f"k{i % 3}", "v": i} for i in range(count)]


def ingested(source, **options):
    return keyed.stream(source, timestamp=INGESTION_TIME, **options).key_by("k")


@given(
    times=st.lists(st.integers(0, 100), min_size=1, max_size=12), size=st.integers(1, 5), parallelism=st.integers(1, 3)
)
def test_the_timestamp_is_the_time_of_the_batch_and_never_goes_back(times, size, parallelism):
    source = rows(len(times) * size)
    result = (
        ingested(source)
        .process(Times(), parallelism=parallelism)
        .run(rows_per_batch=size, processing_time=Clock(times))
    )
    highest = list(accumulate(times, max))
    assert sorted(result.values) == [(i, highest[i // size], False) for i in range(len(source))]


@given(steps=st.lists(st.integers(-5, 40), min_size=1, max_size=8), delay=st.integers(0, 25), is_table=st.booleans())
def test_windows_by_hand_and_of_the_library_count_the_rows_by_the_time_of_their_batch(steps, delay, is_table):
    times = list(accumulate(steps, initial=1000))
    source = rows(4 * len(times))
    data = pa.Table.from_pylist(source) if is_table else source
    expected: Counter[tuple[str, int]] = Counter()
    for i, row in enumerate(source):
        expected[row["k"], max(times[: i // 4 + 1]) // 10 * 10] += 1
    stream = ingested(data, watermark=bounded_out_of_orderness(delay))
    by_hand = stream.process(Window()).run(rows_per_batch=4, processing_time=Clock(times), drain=True)
    assert {(k, start): n for k, start, n, _ in by_hand.values} == expected
    counted = stream.window(TumblingEventTimeWindows.of(10)).aggregate({"n": Count()})
    made = counted.run(rows_per_batch=4, processing_time=Clock(times), drain=True)
    assert {(row.k, row.window_start): row.n for row in made.values} == expected


def test_windows_close_while_the_source_is_silent():
    source = [{"k": "a", "v": 1}, PAUSE, PAUSE, PAUSE, {"k": "b", "v": 2}]
    #: Asked for once before a pause, and again if a batch is run.
    clock = Clock([1003, 1009, 1010, 1010, 1012, 1012])
    seen: list[keyed.Progress] = []
    result = ingested(source).process(Window()).run(processing_time=clock, drain=False, on_progress=seen.append)
    assert result.values == [("a", 1000, 1, 1009)]
    assert [(progress.rows, progress.watermark) for progress in seen] == [(1, 1002), (0, 1009), (1, 1011)]


def test_a_stage_behind_another_wakes_by_itself_too():
    source = [{"k": "a", "v": 1}, PAUSE, PAUSE]
    first = ingested(source).process(Times(), "k bigint, time bigint, late boolean", name="first")
    result = first.key_by("k").process(Window()).run(processing_time=Clock([1003, 1010, 1010]), drain=False)
    assert result.values == [(1, 1000, 1, 1009)]


@pytest.mark.parametrize("kind", ["rows", "pauses", "table"])
def test_a_batch_that_runs_again_has_its_rows_and_their_time_again(tmp_path, kind):
    source = rows(10)
    data = {"rows": source, "pauses": [*source[:3], PAUSE, *source[3:]], "table": pa.Table.from_pylist(source)}[kind]
    got = {}

    def run(size, time, *, fails_at=None):
        def sink(values, batch):
            got[batch] = values
            if batch == fails_at:
                raise RuntimeError("the disk is full")

        made = ingested(data).process(Times())
        made.run(sink, checkpoint=tmp_path / "ck", rows_per_batch=size, processing_time=lambda: time)

    with pytest.raises(keyed.errors.QueryFailed, match="the disk is full"):
        run(4, 100, fails_at=1)
    before = got[1]
    assert {time for _, time, _ in before} == {100}
    run(3, 200)
    assert got[1] == before
    assert {time for _, time, _ in got[2]} == {200}
    assert sorted(v for values in got.values() for v, _, _ in values) == list(range(10))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_restored_query_goes_on_after_the_time_at_which_it_was_restored(tmp_path, parallelism):
    log = keyed.DirectoryChangelog(tmp_path / "log")
    first = ingested(rows(4)).process(Window(), changelog=log, parallelism=2)
    first.run(checkpoint=tmp_path / "ck", processing_time=lambda: 1003, drain=False)
    second = ingested(rows(8)).process(Window(), restore_from=log, parallelism=parallelism)
    result = second.run(processing_time=Clock([900, 1010]), rows_per_batch=2, drain=True)
    assert min(result.values)[:2] == ("k0", 1000)
    counts: Counter[str] = Counter()
    for key, _, count, _ in result.values:
        counts[key] += count
    assert counts == {"k0": 3, "k1": 3, "k2": 2}


def test_what_it_is_not_is_refused():
    with pytest.raises(keyed.errors.DefinitionError, match="must be a column name"):
        keyed.stream([], timestamp=1)  # type: ignore[arg-type]
    assert repr(keyed.stream([], timestamp=INGESTION_TIME)) == "Stream(list, timestamp=keyed.INGESTION_TIME)"


# On Spark ------------------------------------------------------------------------------------------------------------


STAMPED = "k string, v bigint, t bigint"


def test_each_row_has_the_time_of_its_batch_and_timers_fire_without_rows(spark, tmp_path):
    for number in range(2):
        write_file(tmp_path / "in", number, [(key, 0, number) for key in "abcde"])
    seen: dict[int, int] = {}
    source = files_source(spark, tmp_path / "in", timestamp=INGESTION_TIME)
    query = (
        source.key_by("k")
        .process(Stamp(), STAMPED, parallelism=2)
        .start(
            tmp_path / "out",
            checkpoint=tmp_path / "ck",
            trigger="100 milliseconds",
            on_progress=lambda progress: seen.setdefault(progress.batch_id, progress.processing_time),
        )
    )
    until(lambda: query.metrics().get("Stamp", {}).get("rows_out") == 20 or not query.is_active)
    assert query.is_active
    query.stop()
    rows = parquet_rows(tmp_path / "out")
    times = {v: t for _, v, t in rows if v >= 0}
    assert times[0] < times[1]
    assert set(times.values()) <= set(seen.values())
    expected = [(k, v, times[v]) for k in "abcde" for v in (0, 1)]
    assert sorted(row for row in rows if row[1] >= 0) == expected
    assert sorted((k, t) for k, v, t in rows if v < 0) == [(k, t) for k, _, t in expected]
    # The batch that fired the last timers had no rows.
    assert query.metrics()["Stamp"]["rows_late"] == 0


@pytest.mark.parametrize("path", ["auto", pytest.param("row", marks=pytest.mark.long)])
def test_windows_over_a_batch_dataframe_are_those_of_its_one_batch(spark, path):
    frame = spark.createDataFrame([(key, i) for key in "ab" for i in range(6)], "k string, v bigint")
    stream = keyed.stream(frame, timestamp=INGESTION_TIME).key_by("k")
    counted = stream.window(TumblingEventTimeWindows.of(1000)).path(path).aggregate({"n": Count()}, parallelism=2)
    seen: list[keyed.Progress] = []
    result = counted.run(on_progress=seen.append)
    start = seen[0].processing_time // 1000 * 1000
    assert sorted((row.k, row.n) for row in result.values) == [("a", 6), ("b", 6)]
    assert {row.window_start for row in result.values} == {start}

"""Connected and united streams, in both runtimes and the harness."""

from __future__ import annotations

import random
import time
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

import keyed
from keyed import OutputTag, bounded_out_of_orderness
from keyed.changelog import DirectoryChangelog
from keyed.errors import DefinitionError, KeyTypeError, StateDefinitionError
from keyed.testing import KeyedTestHarness
from tests.keyed.runtimes.spark.functions import (
    COUNTED,
    EVERY,
    SCHEMA,
    Both,
    BothColumns,
    Count,
    CountColumns,
    CountInWindows,
    files,
    write_file,
)
from tests.support.jobs import Sides, collect, watermarks_of
from tests.support.waiting import until

BAD, BAD2 = OutputTag("bad"), OutputTag("bad2")


def rows_of(seed, number, *, key="k", time="t", disorder=0):
    chance = random.Random(seed)
    return [
        {key: chance.choice("abc"), time: i + chance.randint(-disorder, disorder), "v": chance.randrange(100)}
        for i in range(number)
    ]


COUNTS = "k string, first bigint, second bigint"


def connect(left, right, function=None, *, on_bad_row=None, **options):
    first = keyed.stream(left, timestamp="t", watermark=bounded_out_of_orderness(5))
    second = keyed.stream(right, timestamp="u", watermark=bounded_out_of_orderness(7), on_bad_row=on_bad_row)
    return first.connect(second).key_by("k", "other").process(function or Both(), COUNTS, name="both", **options)


def expected(left, right):
    """The last output of `Both` for each key: the numbers of rows of each side."""
    counts: dict[str, list[int]] = {}
    for row in left:
        counts.setdefault(row["k"], [0, 0])[0] += 1
    for row in right:
        counts.setdefault(row["other"], [0, 0])[1] += 1
    return {key: tuple(value) for key, value in counts.items()}


def last_counts(values):
    return {key: (first, second) for key, first, second in values}


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("make", [list, pa.Table.from_pylist, pd.DataFrame])
@pytest.mark.parametrize("function", [Both(), BothColumns()], ids=["rows", "columns"])
def test_both_sides_share_the_state_of_their_key(function, make, parallelism):
    left, right = rows_of(1, 200, disorder=5), rows_of(2, 150, key="other", time="u", disorder=7)
    for size in (7, 1000):
        result = connect(make(left), make(right), function, parallelism=parallelism).run(rows_per_batch=size)
        assert last_counts(result.values) == expected(left, right)
        assert result.metrics["both"]["rows_in"] == 350


class Silences(keyed.KeyedCoProcessFunction):
    """Tells of a key that was silent for ten milliseconds on the first side, and of what it had on the second."""

    seen = keyed.ValueState(int, default=0)

    def process_element1(self, value, ctx):
        ctx.timer_service().set_timer("silent", ctx.timestamp() + 10)

    def process_element2(self, value, ctx):
        self.seen.update(self.seen.value() + 1)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, self.seen.value()


@pytest.mark.parametrize("after", range(1, 10))
def test_what_is_restored_knows_how_far_each_source_was(tmp_path, after):
    # The second source ends in the third batch: nobody will ever hear of it again.
    left = [{"k": "abc"[i % 3], "t": i * 7} for i in range(60)]
    right = [{"k": "abc"[i % 3], "t": i * 30} for i in range(15)]

    def silences(changelog, **options):
        first, second = (keyed.stream(side, timestamp="t") for side in (left, right))
        return first.connect(second).key_by("k").process(Silences(), changelog=DirectoryChangelog(changelog), **options)

    uninterrupted = silences(tmp_path / "log").run(checkpoint=tmp_path / "whole", rows_per_batch=6, drain=False)
    found = []

    def stop(progress):
        if progress.batch_id == after - 1:
            query.stop()

    query = silences(tmp_path / "old", parallelism=2).start(
        sink := keyed.collect_sink(), checkpoint=tmp_path / "first", rows_per_batch=6, drain=False, on_progress=stop
    )
    query.await_termination()
    found += sink.values
    again = silences(tmp_path / "new", parallelism=3, restore_from=DirectoryChangelog(tmp_path / "old"))
    found += again.run(checkpoint=tmp_path / "second", rows_per_batch=6, drain=False).values
    assert sorted(found) == sorted(uninterrupted.values)
    assert len(found) > 40


def test_idleness_alone_makes_a_batch_where_sources_pause():
    clock = [0]

    def left():
        yield {"k": "a", "t": 50, "v": 0}
        yield keyed.PAUSE
        clock[0] = 99
        yield keyed.PAUSE
        clock[0] = 100
        yield keyed.PAUSE

    strategy = keyed.bounded_out_of_orderness(0).with_idleness(100)
    second = keyed.stream([{"other": "a", "u": 10, "v": 0}], timestamp="u", watermark=strategy)
    connected = keyed.stream(left(), timestamp="t").connect(second).key_by("k", "other").process(Both())
    seen = []
    connected.run(processing_time=lambda: clock[0], on_progress=lambda each: seen.append((each.rows, each.watermark)))
    assert seen == [(2, 9), (0, 49), (0, keyed.MAX_TIMESTAMP)]


@pytest.mark.parametrize("how", ["checkpoint", "changelog"])
def test_silence_adds_up_over_runs_and_an_idle_source_stays_idle(tmp_path, how):
    clock, told = [0], [10, 20, 30, 40, 50]

    def run(number, rows):
        def left():
            for t in told[:rows]:
                clock[0] += 60
                yield {"k": "a", "t": t, "v": 0}

        strategy = keyed.bounded_out_of_orderness(0).with_idleness(100)
        second = keyed.stream([{"other": "a", "u": 5, "v": 0}], timestamp="u", watermark=strategy)
        options: dict[str, Any] = {"changelog": DirectoryChangelog(tmp_path / f"log{number}")}
        if how == "changelog" and number:
            options["restore_from"] = DirectoryChangelog(tmp_path / f"log{number - 1}")
        connected = keyed.stream(left(), timestamp="t").connect(second).key_by("k", "other")
        folder = tmp_path / (how if how == "checkpoint" else str(number))
        both = connected.process(Both(), **options)
        seen = watermarks_of(both, checkpoint=folder, rows_per_batch=1, processing_time=lambda: clock[0])
        # Time between two runs is no silence.
        clock[0] += 10_000
        return seen

    assert run(0, 2) == [4, 4]
    assert run(0 if how == "checkpoint" else 1, 4) == [4, 39]
    assert run(0 if how == "checkpoint" else 2, 5) == [49]


@pytest.mark.parametrize("function", [Count(), CountColumns()], ids=["rows", "columns"])
@pytest.mark.parametrize("make", [list, pa.Table.from_pylist], ids=["elements", "table"])
def test_partitions_of_a_source_hold_its_watermark_back(make, function):
    rows = make([{"k": "a", "t": t, "v": 0, "p": p} for t, p in [(10, 0), (5, 1), (50, 0), (20, 1)]])
    stream = keyed.stream(rows, timestamp="t", watermark=keyed.bounded_out_of_orderness(0).with_partitions("p"))
    assert watermarks_of(stream.key_by("k").process(function), rows_per_batch=2) == [4, 19, keyed.MAX_TIMESTAMP]


@pytest.mark.parametrize("make", [list, pa.Table.from_pylist], ids=["elements", "table"])
@pytest.mark.parametrize("function", [Count(), CountInWindows(), CountColumns()])
def test_a_union_runs_the_rows_of_all_by_time(make, function):
    parts = [rows_of(seed, 200) for seed in range(3)]
    whole = sorted((row for part in parts for row in part), key=lambda row: row["t"])
    streams = [keyed.stream(make(part), timestamp="t") for part in parts]
    united = streams[0].union(*streams[1:]).key_by("k").process(function).run()
    assert united.values == keyed.stream(make(whole), timestamp="t").key_by("k").process(function).run().values != []


def test_what_cannot_be_connected_is_refused_before_the_first_row():
    stream = keyed.stream(rows_of(1, 3), timestamp="t")
    with pytest.raises(DefinitionError, match="Both takes two streams"):
        stream.key_by("k").process(Both())
    with pytest.raises(DefinitionError, match="Count is not a KeyedCoProcessFunction"):
        stream.connect(stream).key_by("k").process(Count())
    with pytest.raises(DefinitionError, match="different keys"):
        stream.connect(stream).key_by(("k", "v"), "k")
    with pytest.raises(DefinitionError, match="has timestamps and another has none"):
        stream.connect(keyed.stream([]))
    with pytest.raises(DefinitionError, match=r"key both streams"):
        stream.key_by("k").connect(stream)  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="key column 'v' is not in the output of 'Count': k"):
        stream.connect(stream.key_by("k").process(Count(), "k string")).key_by("k", "v").process(Both())
    with pytest.raises(DefinitionError, match="one of these is connected"):
        stream.connect(stream).key_by("k").connect(stream.key_by("k"))
    numbers = keyed.stream(pa.table({"k": [1], "t": [1]}), timestamp="t")
    with pytest.raises(DefinitionError, match="different columns"):
        numbers.union(keyed.stream(pa.table({"b": [1], "t": [1]}), timestamp="t"))
    connected = stream.connect(numbers).key_by("k").process(Both())
    with pytest.raises(KeyTypeError, match="keys of types int and str"):
        connected.run()


@pytest.mark.parametrize("make", [iter, lambda rows: (row for row in rows)])
def test_two_streams_of_one_iterator_are_refused(make):
    data = make(rows_of(1, 3))
    first, second = keyed.stream(data), keyed.stream(data)
    for both in (first.connect(second).key_by("k").process(Both()), first.union(second).key_by("k").process(Count())):
        with pytest.raises(DefinitionError, match="each element would reach only one of them"):
            both.run()
    # One stream of it is read once, and its rows come to both sides.
    connected = first.connect(first).key_by("k").process(Sides())
    found = sorted((row.k, side) for side, row in connected.run().values)
    assert found == sorted((row["k"], side) for row in rows_of(1, 3) for side in (1, 2))


def test_a_failure_names_the_side():
    class Fails(Both):
        def process_element2(self, value, ctx):
            raise ValueError("no")

    stream = keyed.stream([{"k": "a", "t": 1}], timestamp="t")
    connected = keyed.stream([], timestamp="t").connect(stream).key_by("k").process(Fails())
    with pytest.raises(keyed.errors.UserFunctionError, match=r"process_element2 of element Row\(k='a'"):
        connected.run()


def test_methods_of_the_harness_for_the_other_number_of_inputs_are_refused():
    with (
        KeyedTestHarness(Both(), key="k", key2="other") as harness,
        pytest.raises(DefinitionError, match="use process_element1 and process_element2"),
    ):
        harness.process({"k": "a"})
    with KeyedTestHarness(Count(), key="k") as harness, pytest.raises(DefinitionError, match="use process"):
        harness.process_element1({"k": "a"})


def test_partitions_by_a_column_that_is_not_there_are_refused():
    unknown = keyed.bounded_out_of_orderness(0).with_partitions("q")
    stream = keyed.stream(pa.table({"k": ["a"], "t": [1]}), timestamp="t", watermark=unknown).key_by("k")
    with pytest.raises(DefinitionError, match=r"operator '.*': column 'q' is not in the source"):
        stream.process(CountColumns()).run()


def late_of(harness):
    return [tuple(record.value) for record in harness.take_side_output("late")]


def test_late_rows_are_told_of_the_first_side_and_then_of_the_second():
    first, second = ([{key: "a", "t": t} for t in times] for key, times in (("k", [50, 9]), ("other", [9, 50])))
    with KeyedTestHarness(BothColumns(), key="k", key2="other") as harness:
        harness.advance_watermark1(10)
        harness.advance_watermark2(20)
        harness.process_batches(pa.Table.from_pylist(first), pa.Table.from_pylist(second), "t")
        assert late_of(harness) == [("first", 9), ("second", 9)]
        harness.process_batches(None, pa.Table.from_pylist(second), "t")
        assert late_of(harness) == [("second", 9)]
        assert harness.state_entries() == 1


def test_vectorized_functions_that_do_not_fit_two_inputs_are_refused():
    rows = pa.table({"k": ["a"], "t": [1]})
    one, other = keyed.stream(rows, timestamp="t"), keyed.stream(rows, timestamp="t")
    with pytest.raises(DefinitionError, match="BothColumns takes two streams"):
        one.key_by("k").process(BothColumns())

    class NoMethod(keyed.vectorized.VectorizedCoFunction):
        pass

    class Combines(BothColumns):
        def combine(self, table):
            return table

    for function, said in ((NoMethod, "does not define process_batches"), (Combines, "of two streams has none")):
        with pytest.raises(StateDefinitionError, match=said):
            one.connect(other).key_by("k").process(function())
    numbers = keyed.stream(pa.table({"k": [1], "t": [1]}), timestamp="t")
    with pytest.raises(KeyTypeError, match="keys of types int and str"):
        one.connect(numbers).key_by("k").process(BothColumns()).run()
    with KeyedTestHarness(BothColumns(), key="k") as harness, pytest.raises(DefinitionError, match="process_batches"):
        harness.process_batch(rows, "t")


def test_a_checkpoint_is_of_so_many_sources(tmp_path):
    def united(*parts):
        streams = [keyed.stream([{"k": 1, "t": t, "v": t} for t in part], timestamp="t") for part in parts]
        stream = streams[0].union(*streams[1:]) if len(streams) > 1 else streams[0]
        return stream.key_by("k").process(Count(), name="told")

    united([1, 2], [3]).run(checkpoint=tmp_path)
    for parts in ([1, 2],), ([1, 2], [3], [4]):
        with pytest.raises(keyed.errors.CheckpointError, match=f"over 2 sources, and this one has {len(parts)}"):
            united(*parts).run(checkpoint=tmp_path)
    assert len(united([1, 2], [3, 5]).run(checkpoint=tmp_path).values) == 1


# On Spark ------------------------------------------------------------------------------------------------------------


OTHER = "other string, u bigint, v bigint"


def tuples(rows):
    return [tuple(row.values()) for row in rows]


def in_order(values):
    return sorted(map(tuple, values))


@pytest.mark.smoke
def test_batch_dataframes_give_what_the_local_runtime_gives(spark):
    left, right = rows_of(1, 60, disorder=5), rows_of(2, 50, key="other", time="u", disorder=7)
    bad = [(None, 3, 3)]
    frames = spark.createDataFrame(tuples(left), SCHEMA), spark.createDataFrame(tuples(right) + bad, OTHER)
    out = connect(*frames, on_bad_row=BAD, parallelism=2)
    (main, aside, diverted), result = collect(out, out.side_output(EVERY), out.side_output(BAD))
    assert in_order(main) == in_order(connect(left, right).run().values)
    assert in_order(aside) == sorted((row.get("k") or row["other"], row["v"]) for row in left + right if row["v"] > 90)
    assert list(map(tuple, diverted)) == bad
    assert result.metrics["both"]["rows_bad"] == 1
    # One shuffle: what both sides send is united before it.
    plan = out.df._jdf.queryExecution().executedPlan().toString()
    assert plan.count("Exchange hashpartitioning") == 1


def test_a_vectorized_function_of_both_sides(spark):
    left, right = rows_of(1, 60, disorder=5), rows_of(2, 50, key="other", time="u", disorder=7)
    frames = spark.createDataFrame(tuples(left), SCHEMA), spark.createDataFrame(tuples(right), OTHER)
    assert last_counts(connect(*frames, BothColumns(), parallelism=2).run().values) == expected(left, right)


def test_a_query_over_two_streams_goes_on_and_is_restored_with_another_parallelism(runtime, tmp_path):
    left, right = rows_of(1, 90, disorder=5), rows_of(2, 60, key="other", time="u", disorder=7)
    changelog = DirectoryChangelog(tmp_path / "log")
    values, watermarks = [], []
    runtime.size = 30

    def run(checkpoint, left_rows, right_rows, *, drain=False, **options):
        for name, rows, schema in (("in", left_rows, SCHEMA), ("in2", right_rows, OTHER)):
            if rows:
                runtime.add(tmp_path / name, tuples(rows), schema)
        first = runtime.source(tmp_path / "in", watermark=bounded_out_of_orderness(5))
        second = runtime.source(tmp_path / "in2", "u", OTHER, watermark=bounded_out_of_orderness(7))
        job = first.connect(second).key_by("k", "other").process(Both(), COUNTS, name="both", **options)
        options = {"checkpoint": tmp_path / checkpoint, "drain": drain, **runtime.batches}
        result = job.run(on_progress=lambda each: watermarks.append(each.watermark), **options)
        values.extend(result.values)
        return result

    run("ck", left[:30], [], changelog=changelog, parallelism=2)
    assert watermarks[-1] == keyed.MIN_TIMESTAMP
    run("ck", left[30:60], right[:30], changelog=changelog, parallelism=2)
    assert watermarks[-1] == max(row["u"] for row in right[:30]) - 7 - 1
    result = run("ck2", left[60:], right[30:], restore_from=changelog, parallelism=1, drain=True)
    assert result.restored is not None
    assert result.restored.with_position
    assert last_counts(values) == expected(left, right)
    assert len(values) == 150 + len(expected(left, right))


def test_the_watermark_is_the_least_over_the_partitions_that_a_column_names(spark, tmp_path):
    strategy = keyed.bounded_out_of_orderness(0).with_partitions("v")
    stream = keyed.stream(files(spark, tmp_path / "in"), timestamp="t", watermark=strategy)
    counted = stream.key_by("k").process(Count(), COUNTED, parallelism=2)
    write_file(tmp_path / "in", 0, [("a", 100, 1), ("b", 50, 2)])
    assert watermarks_of(counted, checkpoint=tmp_path / "ck")[-1] == 49
    write_file(tmp_path / "in", 1, [("a", 300, 2), ("b", 60, 2)])
    assert watermarks_of(counted, checkpoint=tmp_path / "ck")[-1] == 99
    aligned = strategy.with_watermark_alignment("group", 10)
    stream = keyed.stream(files(spark, tmp_path / "in"), timestamp="t", watermark=aligned)
    with pytest.raises(DefinitionError, match="chooses the rows of a batch from each source before the batch"):
        stream.key_by("k").process(Count(), COUNTED).run(checkpoint=tmp_path / "other")


def test_what_spark_cannot_unite_is_refused(spark, tmp_path):
    frame = keyed.stream(spark.createDataFrame([("a", 1, 1)], SCHEMA), timestamp="t")
    with pytest.raises(DefinitionError, match="a streaming and a batch DataFrame"):
        frame.connect(keyed.stream(files(spark, tmp_path / "in"), timestamp="t"))
    with pytest.raises(DefinitionError, match="cannot be in one query"):
        frame.connect(keyed.stream([], timestamp="t"))
    other = keyed.stream(spark.createDataFrame([(1, 1, 1)], "k bigint, t bigint, v bigint"), timestamp="t")
    connected = frame.connect(other).key_by("k").process(Both(), COUNTS)
    with pytest.raises(DefinitionError, match="keys of types int and str"):
        connected.run()


def connect_idle(spark, folder, timeout):
    """Connect a stream with one that becomes idle."""
    strategy = keyed.bounded_out_of_orderness(0).with_idleness(timeout)
    second = keyed.stream(files(spark, folder / "in2"), timestamp="t", watermark=strategy)
    both = keyed.stream(files(spark, folder / "in"), timestamp="t").connect(second)
    return both.key_by("k").process(Both(), COUNTS, parallelism=1)


@pytest.mark.long
def test_silence_wakes_a_query_and_lets_it_go_on(spark, tmp_path):
    write_file(tmp_path / "in", 0, [("a", 1_000, 1)])
    write_file(tmp_path / "in2", 0, [("a", 10, 1)])
    both = connect_idle(spark, tmp_path, 1_500)
    query = both.start(tmp_path / "out", checkpoint=tmp_path / "ck", trigger="100 milliseconds")
    watermarks = []

    def is_over():
        watermarks.append(query.progress.watermark if query.progress else keyed.MIN_TIMESTAMP)
        return watermarks[-1] == 999 or not query.is_active

    until(is_over)
    assert query.is_active
    assert set(watermarks) <= {keyed.MIN_TIMESTAMP, 9, 999}
    query.stop()


@pytest.mark.long
def test_idleness_survives_restarts_and_time_between_them_is_no_silence(spark, tmp_path):
    def run(number, timeout):
        write_file(tmp_path / "in", number, [("a", 100 * (number + 1), 1)])
        return watermarks_of(connect_idle(spark, tmp_path, timeout), checkpoint=tmp_path / "ck")

    write_file(tmp_path / "in2", 0, [("a", 10, 1)])
    watermarks, ended = run(0, 2_000), time.time()
    until(lambda: time.time() > ended + 2.5)
    assert {*watermarks, *run(1, 2_000)} == {9}
    # With a shorter time-out than it was silent while it ran, it is idle, and stays so from one run to the next.
    both = connect_idle(spark, tmp_path, 300)
    query = both.start(tmp_path / "out", checkpoint=tmp_path / "ck", trigger="100 milliseconds")
    until(lambda: (query.progress and query.progress.watermark == 199) or not query.is_active)
    query.stop()
    assert run(2, 300)[0] == 299


def test_a_silent_input_whose_others_wait_is_named(spark, tmp_path, caplog):
    for number in range(7):
        write_file(tmp_path / "in", number, [("a", 1000 * number, number)])
    write_file(tmp_path / "in2", 0, [("a", 0, 0)])
    right = files(spark, tmp_path / "in2").withColumnsRenamed({"k": "other", "t": "u"})
    job = connect(files(spark, tmp_path / "in"), right, parallelism=2)
    result = job.run(checkpoint=tmp_path / "ck")
    assert result.metrics["both"]["batches_held"] == 6
    (message,) = [message for message in caplog.messages if "waits for" in message]
    assert message.startswith("operator 'both' waits for source 2, no idleness: it has held the watermark for ")

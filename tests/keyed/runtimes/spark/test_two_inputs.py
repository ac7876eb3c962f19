"""Connected and united streams on Spark: one query, one shuffle, and the results of the local runtime."""

from __future__ import annotations

import time

import pytest

import keyed
from keyed import OutputTag, bounded_out_of_orderness
from keyed.changelog import DirectoryChangelog
from keyed.errors import DefinitionError
from tests.keyed.runtimes.local.test_two_inputs import both, expected, last_counts, rows_of
from tests.keyed.runtimes.spark.functions import COUNTED, EVERY, SCHEMA, Both, BothColumns, Count, write_file
from tests.support.waiting import until

BAD = OutputTag("bad")
OTHER = "other string, u bigint, v bigint"
COUNTS = "k string, first int, second int"


def connected(left, right, *, on_bad_row=None, **options):
    first = keyed.stream(left, timestamp="t", watermark=bounded_out_of_orderness(5))
    second = keyed.stream(right, timestamp="u", watermark=bounded_out_of_orderness(7), on_bad_row=on_bad_row)
    options = {"parallelism": 2, **options}
    return first.connect(second).key_by("k", "other").process(Both(), COUNTS, name="both", **options)


def files(spark, folder):
    folder.mkdir(parents=True, exist_ok=True)
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder))


def tuples(rows):
    return [tuple(row.values()) for row in rows]


def in_order(values):
    return sorted(map(tuple, values))


@pytest.mark.smoke
def test_batch_dataframes_give_what_the_local_runtime_gives(spark):
    left, right = rows_of(1, 60, disorder=5), rows_of(2, 50, key="other", time="u", disorder=7)
    bad = [(None, 3, 3)]
    frames = spark.createDataFrame(tuples(left), SCHEMA), spark.createDataFrame(tuples(right) + bad, OTHER)
    out = connected(*frames, on_bad_row=BAD)
    main, aside, diverted = (keyed.collect_sink() for _ in range(3))
    result = keyed.run(out.to(main), out.side_output(EVERY).to(aside), out.side_output(BAD).to(diverted))
    local = both(left, right).run().values
    assert in_order(main.values) == in_order(local)
    assert in_order(aside.values) == sorted(
        (row.get("k") or row["other"], row["v"]) for row in left + right if row["v"] > 90
    )
    assert [(row.other, row.u, row.v) for row in diverted.values] == bad
    assert result.metrics["both"]["rows_bad"] == 1
    # One shuffle: what both sides send is united before it.
    plan = out.df._jdf.queryExecution().executedPlan().toString()
    assert plan.count("Exchange hashpartitioning") == 1


def test_a_vectorized_function_of_both_sides(spark):
    left, right = rows_of(1, 60, disorder=5), rows_of(2, 50, key="other", time="u", disorder=7)
    first = keyed.stream(spark.createDataFrame(tuples(left), SCHEMA), timestamp="t")
    second = keyed.stream(spark.createDataFrame(tuples(right), OTHER), timestamp="u")
    connected = first.connect(second).key_by("k", "other")
    found = connected.process(BothColumns(), COUNTS.replace("int", "bigint"), parallelism=2).run().values
    assert last_counts(found) == expected(left, right)


def test_a_query_over_two_streams_goes_on_and_is_restored_with_another_parallelism(spark, tmp_path):
    left, right = rows_of(1, 90, disorder=5), rows_of(2, 60, key="other", time="u", disorder=7)
    sources = [
        files(spark, tmp_path / "in"),
        files(spark, tmp_path / "in2").withColumnsRenamed({"k": "other", "t": "u"}),
    ]
    changelog = DirectoryChangelog(tmp_path / "log")
    values = []

    def add(number, left_rows, right_rows):
        write_file(tmp_path / "in", number, tuples(left_rows))
        if right_rows:
            write_file(tmp_path / "in2", number, tuples(right_rows))

    add(0, left[:30], [])
    job = connected(*sources, changelog=changelog)
    watermarks = []

    def run(job, checkpoint, **options):
        result = job.run(checkpoint=checkpoint, on_progress=lambda each: watermarks.append(each.watermark), **options)
        values.extend(result.values)
        return result

    run(job, tmp_path / "ck")
    assert watermarks[-1] == keyed.MIN_TIMESTAMP
    add(1, left[30:60], right[:30])
    run(job, tmp_path / "ck")
    assert watermarks[-1] == max(row["u"] for row in right[:30]) - 7 - 1
    add(2, left[60:], right[30:])
    again = connected(*sources, restore_from=changelog, parallelism=1)
    result = run(again, tmp_path / "ck2", drain=True)
    assert result.restored is not None
    assert result.restored.with_position
    assert last_counts(values) == expected(left, right)
    assert len(values) == 150 + len(expected(left, right))


def test_a_union_of_dataframes(spark):
    parts = [rows_of(seed, 40) for seed in range(2)]
    frames = [spark.createDataFrame(tuples(parts[0]), SCHEMA)]
    frames.append(spark.createDataFrame(tuples(parts[1]), SCHEMA).select("v", "t", "k"))
    streams = [keyed.stream(frame, timestamp="t") for frame in frames]
    united = streams[0].union(streams[1]).key_by("k").process(Count(), COUNTED, parallelism=2).run().values
    local = [keyed.stream(part, timestamp="t") for part in parts]
    assert in_order(united) == in_order(local[0].union(local[1]).key_by("k").process(Count()).run().values)


def test_the_watermark_is_the_least_over_the_partitions_that_a_column_names(spark, tmp_path):
    strategy = keyed.bounded_out_of_orderness(0).with_partitions("v")
    watermarks = []

    def run(number, rows):
        write_file(tmp_path / "in", number, rows)
        stream = keyed.stream(files(spark, tmp_path / "in"), timestamp="t", watermark=strategy)
        counted = stream.key_by("k").process(Count(), COUNTED, parallelism=2)
        counted.run(checkpoint=tmp_path / "ck", on_progress=lambda each: watermarks.append(each.watermark))

    run(0, [("a", 100, 1), ("b", 50, 2)])
    assert watermarks[-1] == 49
    run(1, [("a", 300, 2), ("b", 60, 2)])
    assert watermarks[-1] == 99
    aligned = strategy.with_watermark_alignment("group", 10)
    stream = keyed.stream(files(spark, tmp_path / "in"), timestamp="t", watermark=aligned).key_by("k")
    with pytest.raises(DefinitionError, match="chooses the rows of a batch from each source before the batch"):
        stream.process(Count(), COUNTED).run(checkpoint=tmp_path / "other")


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


@pytest.mark.long
def test_silence_wakes_a_query_and_lets_it_go_on(spark, tmp_path):
    write_file(tmp_path / "in", 0, [("a", 1_000, 1)])
    write_file(tmp_path / "in2", 0, [("a", 10, 1)])
    strategy = keyed.bounded_out_of_orderness(0).with_idleness(1_500)
    second = keyed.stream(files(spark, tmp_path / "in2"), timestamp="t", watermark=strategy)
    both = keyed.stream(files(spark, tmp_path / "in"), timestamp="t").connect(second)
    query = (
        both.key_by("k")
        .process(Both(), COUNTS, parallelism=1)
        .start(tmp_path / "out", checkpoint=tmp_path / "ck", trigger="100 milliseconds")
    )
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
    watermarks = []

    def run(number, timeout):
        write_file(tmp_path / "in", number, [("a", 100 * (number + 1), 1)])
        strategy = keyed.bounded_out_of_orderness(0).with_idleness(timeout)
        second = keyed.stream(files(spark, tmp_path / "in2"), timestamp="t", watermark=strategy)
        both = keyed.stream(files(spark, tmp_path / "in"), timestamp="t").connect(second)
        query = both.key_by("k").process(Both(), COUNTS, parallelism=1)
        query.run(checkpoint=tmp_path / "ck", on_progress=lambda each: watermarks.append(each.watermark))
        return time.time()

    write_file(tmp_path / "in2", 0, [("a", 10, 1)])
    ended = run(0, 2_000)
    until(lambda: time.time() > ended + 2.5)
    run(1, 2_000)
    assert set(watermarks) == {9}
    # Told of a shorter time-out than it was silent while it ran, it is idle, and stays so from one run to the next.
    strategy = keyed.bounded_out_of_orderness(0).with_idleness(300)
    second = keyed.stream(files(spark, tmp_path / "in2"), timestamp="t", watermark=strategy)
    both = keyed.stream(files(spark, tmp_path / "in"), timestamp="t").connect(second)
    query = both.key_by("k").process(Both(), COUNTS, parallelism=1)
    started = query.start(tmp_path / "out", checkpoint=tmp_path / "ck", trigger="100 milliseconds")
    until(lambda: (started.progress and started.progress.watermark == 199) or not started.is_active)
    started.stop()
    watermarks.clear()
    run(2, 300)
    assert watermarks[0] == 299


def test_a_silent_input_whose_others_wait_is_named(spark, tmp_path, caplog):
    for number in range(7):
        write_file(tmp_path / "in", number, [("a", 1000 * number, number)])
    write_file(tmp_path / "in2", 0, [("a", 0, 0)])
    right = files(spark, tmp_path / "in2").withColumnsRenamed({"k": "other", "t": "u"})
    job = connected(files(spark, tmp_path / "in"), right)
    result = job.run(checkpoint=tmp_path / "ck")
    assert result.metrics["both"]["batches_held"] == 6
    named = "operator 'both' waits for source 2, no idleness: it has held the watermark for 6 batches"
    assert [message.partition(",")[0] for message in caplog.messages if "waits for" in message] == [
        named.partition(",")[0]
    ]

"""Vectorized functions on Spark: alone and beside row functions they do what they do locally, and what rows do."""

import os
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import keyed
from keyed import bounded_out_of_orderness, collect_sink
from keyed.errors import UserFunctionError
from keyed.job.vectorized_functions import combines
from tests.keyed.runtimes.spark.functions import (
    BIG,
    EVERY,
    Best,
    BestColumns,
    CombinedColumns,
    CountColumns,
    CountInWindows,
    best,
    files_source,
    write_file,
)
from tests.keyed.runtimes.spark.random_table_program import INPUT, OUTPUT, SIDE, ScriptedTable, batches

KEYS = ["a", "b", "c", "d", "e", "f", "g"]
#: Seeds of the programs; ``KEYED_AGREEMENT=20`` tries as many.
SEEDS = range(int(os.environ.get("KEYED_AGREEMENT", "2")))


def rows_of(seed, number):
    chance = random.Random(seed)
    return [
        (chance.choice(KEYS), seed * number + i + chance.randint(-60, 60), chance.randrange(100)) for i in range(number)
    ]


def outcome(source, function, then, **options):
    """All outputs of the chain, sorted, and its counters."""
    windows, ranked = best(source, function, then)
    sinks = [collect_sink() for _ in range(4)]
    sides = [windows.side_output(EVERY)] + ([] if combines(function) else [windows.side_output(BIG)])
    outputs = [output.to(sink) for output, sink in zip([windows, ranked, *sides], sinks, strict=False)]
    result = keyed.run(*outputs, drain=True, **options)
    counters = ("rows_in", "rows_out", "rows_late", "rows_side_output", "rows_dropped", "live_entries", "live_bytes")
    metrics = [{name: result.metrics[stage].get(name, 0) for name in counters} for stage in ("windows", "best")]
    return [sorted(tuple(row) for row in sink.values) for sink in sinks], metrics


def files(folder, count, size):
    """Write batches as files, and give all rows as elements."""
    written = [rows_of(number, size) for number in range(count)]
    for number, rows in enumerate(written):
        write_file(folder, number, rows)
    return [{"k": k, "t": t, "v": v} for rows in written for k, t, v in rows]


LATENESS = bounded_out_of_orderness(milliseconds=30)


@pytest.mark.long
@pytest.mark.parametrize(("function", "then"), [(CountColumns, BestColumns), (CountInWindows, BestColumns)])
def test_chains_of_row_and_vectorized_functions_do_what_rows_do(spark, tmp_path, function, then):
    elements = files(tmp_path / "in", 3, 200)
    local = keyed.stream(elements, timestamp="t", watermark=LATENESS)
    rows, _ = outcome(local, CountInWindows(), Best(), rows_per_batch=200)
    assert all(rows)
    expected, counters = outcome(local, function(), then(), rows_per_batch=200)
    assert expected == rows
    source = files_source(spark, tmp_path / "in", watermark=LATENESS)
    found = outcome(source, function(), then(), checkpoint=tmp_path / "ck")
    assert found == (expected, counters)


@pytest.mark.long
def test_combining_before_the_shuffle_changes_no_result(spark, tmp_path):
    elements = files(tmp_path / "in", 3, 200)
    local = keyed.stream(elements, timestamp="t", watermark=LATENESS)
    plain, plain_counters = outcome(local, CountColumns(), Best(), rows_per_batch=200)
    source = files_source(spark, tmp_path / "in", watermark=LATENESS)
    combined, counters = outcome(source, CombinedColumns(), Best(), checkpoint=tmp_path / "ck")
    assert combined[:3] == plain[:3]
    assert counters[0]["rows_dropped"] == len(plain[3])
    assert counters[0]["rows_in"] == plain_counters[0]["rows_in"] == 600
    assert (counters[1], counters[0]["live_entries"]) == (plain_counters[1], 0)


def test_a_batch_dataframe_runs_through_a_vectorized_function(spark):
    rows = rows_of(1, 100)
    frame = spark.createDataFrame(rows, "k string, t bigint, v bigint").repartition(3)
    windows, ranked = best(keyed.stream(frame, timestamp="t"), CombinedColumns(), BestColumns())
    counts, winners = collect_sink(), collect_sink()
    keyed.run(windows.to(counts), ranked.to(winners))
    assert sum(row.n for row in counts.values) == 100
    assert sorted(winners.values) == [
        (start, *max((row.n, row.k) for row in counts.values if row.start == start)[::-1])
        for start in sorted({row.start for row in counts.values})
    ]


@pytest.mark.smoke
def test_an_error_in_a_vectorized_function_comes_back_typed(spark):
    frame = spark.createDataFrame([("a", 1, 1)], "k string, t bigint, v bigint")
    windows = keyed.stream(frame, timestamp="t").key_by("k").process(Wrong(), "k string", name="wrong")
    with pytest.raises(UserFunctionError, match=r"operator 'wrong', key group \d, process_batch of 1 rows: KeyError"):
        windows.run()


class Wrong(CountColumns):
    def process_batch(self, table, ctx):
        table["nothing"]


def job(source, parallelism, store):
    stream = keyed.stream(source, timestamp="t", watermark=bounded_out_of_orderness(milliseconds=10))
    return stream.key_by("k").process(
        ScriptedTable(), output=OUTPUT, parallelism=parallelism, store=store, name="scripted"
    )


def scripted_outcome(output, options):
    main, side = collect_sink(), collect_sink()
    result = keyed.run(output.to(main), output.side_output(SIDE).to(side), drain=True, **options)
    metrics = result.metrics["scripted"]
    counters = ("rows_in", "rows_out", "rows_late", "rows_side_output", "rows_dropped", "entries_expired")
    gauges = ("live_entries", "live_bytes")
    found = {name: metrics.get(name, 0) for name in (*counters, *gauges)}
    return sorted(map(repr, main.values)), sorted(map(repr, side.values)), found


@pytest.mark.parametrize("seed", SEEDS)
def test_random_vectorized_functions_do_on_spark_what_they_do_locally(spark, tmp_path, seed):
    inputs = batches(seed, count=4, size=150)
    folder = tmp_path / "in"
    folder.mkdir()
    for number, table in enumerate(inputs):
        file = folder / f"{number}.parquet"
        pq.write_table(table, file)
        os.utime(file, (1_600_000_000 + number,) * 2)
    expected = scripted_outcome(job(pa.concat_tables(inputs), 1, "memory"), {"rows_per_batch": 150})
    assert all(expected)
    source = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1).parquet(str(folder))
    found = scripted_outcome(job(source, 2, "rocksdb" if seed % 2 else "memory"), {"checkpoint": str(tmp_path / "ck")})
    assert found == expected, f"seed {seed}"

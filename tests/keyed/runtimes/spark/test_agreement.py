"""Local = Spark: the same random functions over the same batches give the same outputs, timers, state and counters."""

import collections
import os
from itertools import chain

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import keyed
from tests.keyed.runtimes.spark.random_program import INPUT, OUTPUT, SIDE, Scripted, batches

#: Seeds of the programs; ``KEYED_AGREEMENT=20`` tries as many.
SEEDS = range(int(os.environ.get("KEYED_AGREEMENT", "2")))


def job(source, parallelism, store):
    stream = keyed.stream(source, timestamp="t", watermark=keyed.bounded_out_of_orderness(milliseconds=10))
    return stream.key_by("k").process(Scripted(), output=OUTPUT, parallelism=parallelism, store=store, name="scripted")


def outcome(output, options):
    main, side = keyed.collect_sink(), keyed.collect_sink()
    result = keyed.run(output.to(main), output.side_output(SIDE).to(side), drain=True, **options)
    # Per key the order is that of events; over keys it depends on the groups.
    by_key = collections.defaultdict(list)
    for row in main.values:
        by_key[row.k].append(row.shown)
    metrics = result.metrics["scripted"]
    counters = ("rows_in", "rows_out", "rows_late", "rows_side_output", "timers_registered", "timers_fired")
    gauges = ("timers_pending", "live_entries", "live_bytes")
    return dict(by_key), sorted(side.values), {name: metrics[name] for name in (*counters, *gauges)}


@pytest.mark.parametrize("seed", SEEDS)
def test_random_functions_do_on_spark_what_they_do_locally(spark, tmp_path, seed):
    inputs = batches(seed, count=4, size=150)
    names = ["k", "t", "ops"]
    whole = pa.table([pa.array(column) for column in zip(*chain.from_iterable(inputs), strict=True)], names=names)
    folder = tmp_path / "in"
    folder.mkdir()
    for number, rows in enumerate(inputs):
        file = folder / f"{number}.parquet"
        pq.write_table(pa.table([pa.array(column) for column in zip(*rows, strict=True)], names=names), file)
        os.utime(file, (1_600_000_000 + number,) * 2)
    # With a checkpoint the local runtime has bytes to count.
    expected = outcome(job(whole, 1, "memory"), {"rows_per_batch": 150, "checkpoint": str(tmp_path / "local")})
    assert expected[2]["timers_fired"] > 100
    source = spark.readStream.schema(INPUT).option("maxFilesPerTrigger", 1).parquet(str(folder))
    found = outcome(job(source, 2, "rocksdb" if seed % 2 else "memory"), {"checkpoint": str(tmp_path / "ck")})
    assert found == expected, f"seed {seed}"

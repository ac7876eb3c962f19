"""Graphs on Spark: one query, in which each operator gives what it gives in the local runtime."""

import random

import keyed
from keyed import OutputTag, bounded_out_of_orderness
from tests.keyed.runtimes.spark.functions import SCHEMA, Split, branches, files_source, parquet_rows, write_file

DELAY = bounded_out_of_orderness(3)


def rows_of(seed):
    chance = random.Random(seed)
    return [(chance.choice("abc"), seed * 30 + i + chance.randint(-3, 3), chance.randrange(100)) for i in range(30)]


def test_side_outputs_are_processed_and_outputs_feed_several_operators(spark, tmp_path):
    batches = [rows_of(seed) for seed in range(3)]
    rows = [dict(zip("ktv", row, strict=True)) for batch in batches for row in batch]
    local = branches(keyed.stream(rows, timestamp="t", watermark=DELAY))
    keyed.run(*(output.to(tmp_path / "local" / name) for name, output in local.items()), rows_per_batch=30)

    for number, names in ((0, sorted(local)), (1, sorted(local, reverse=True))):
        for batch in range(number, 2 * number + 1):
            write_file(tmp_path / "in", batch, batches[batch])
        made = branches(files_source(spark, tmp_path / "in", watermark=DELAY))
        bound = [made[name].to(tmp_path / "spark" / name) for name in names]
        result = keyed.run(*bound, checkpoint=tmp_path / "ck", drain=bool(number))
    assert list(result.metrics) == ["split", "even", "totals", "odd", "odd_totals"]
    for name in local:
        assert parquet_rows(tmp_path / "spark" / name) == parquet_rows(tmp_path / "local" / name), name


def test_bad_rows_can_be_keyed_too(spark):
    bad = OutputTag("bad")
    frame = spark.createDataFrame([(None, 1, 3), ("a", 1, 5), ("b", 1, 4)], SCHEMA)
    first = keyed.stream(frame, timestamp="t", on_bad_row=bad).key_by("k").process(Split(), SCHEMA, name="split")
    odd = first.side_output(bad).key_by("v").process(Split(), SCHEMA, name="bad", parallelism=2)
    result = odd.side_output(OutputTag("odd", SCHEMA)).run()
    assert list(map(tuple, result.values)) == [(None, 1, 3)]

"""Look-up joins on Spark, where the function and its event loop are those of a worker."""

import keyed
from keyed.joins import AsyncLookup, lookup_join
from tests.keyed.runtimes.spark.functions import SCHEMA, upper


def test_rows_are_joined_with_what_calls_beside_one_another_gave(spark):
    keys = [key for key in "abcdef" for _ in range(3)]
    frame = spark.createDataFrame([(key, 0, i) for i, key in enumerate(keys)], SCHEMA)
    stream = keyed.stream(frame).key_by("k")
    made = lookup_join(stream, AsyncLookup(upper, concurrency=4), "name string, n bigint", how="inner", parallelism=2)
    expected = [(key, 0, i, key.upper(), 1) for i, key in enumerate(keys) if key != "c"]
    assert sorted(map(tuple, made.run().values)) == expected

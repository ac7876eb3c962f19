"""Initial state on Spark: the first batch of a new checkpoint starts with it, from tables or from Spark's own state."""

import pandas as pd
import pyarrow as pa
import pytest

import keyed
from keyed import DirectoryChangelog
from keyed.errors import RowError
from keyed.testing import KeyedTestHarness
from tests.keyed.runtimes.spark.functions import SCHEMA, CountOn, PlainCount, files_source, parquet_rows, write_file

OUTPUT = "k string, n bigint, rest string"


def counted(source, initial_state, **options):
    return source.key_by("k").process(CountOn(), OUTPUT, initial_state=initial_state, parallelism=2, **options)


def test_a_new_checkpoint_starts_with_it_and_an_older_one_does_not_look_at_it(spark, tmp_path):
    write_file(tmp_path / "in", 0, [(key, 10, 1) for key in "abc"])
    log = DirectoryChangelog(tmp_path / "log")
    frames = {
        "count": spark.createDataFrame([(key, 100) for key in "abd"], "key string, value bigint"),
        "items": pa.table({"k": ["a", "a"], "entry": [1, 0], "value": ["y", "x"]}),
        "prices": pd.DataFrame({"key": ["b"], "entry": ["z"], "value": [0.5]}),
        "timer:event_time": pd.DataFrame({"key": ["d"], "value": [5]}),
    }
    made = counted(files_source(spark, tmp_path / "in"), frames, changelog=log)
    made.run(tmp_path / "out", checkpoint=tmp_path / "ck")
    first = [("a", 101, "['x', 'y'] {}"), ("b", 101, "[] {'z': 0.5}"), ("c", 1, "[] {}"), ("d", 5, "timer")]
    assert parquet_rows(tmp_path / "out") == first
    changes = {
        (change.key, change.state): change.value
        for change in keyed.recovery.read_changelog(log)
        if change.state == "count"
    }
    assert changes == {("a", "count"): 101, ("b", "count"): 101, ("c", "count"): 1, ("d", "count"): 100}

    write_file(tmp_path / "in", 1, [("d", 20, 1), ("e", 20, 1)])
    again = counted(
        files_source(spark, tmp_path / "in"),
        {"count": frames["count"].selectExpr("'e' key", "7L value")},
        changelog=log,
    )
    again.run(tmp_path / "out", checkpoint=tmp_path / "ck")
    assert parquet_rows(tmp_path / "out") == sorted([*first, ("d", 101, "[] {}"), ("e", 1, "[] {}")])


def test_a_batch_dataframe_starts_with_it_and_a_bad_row_is_named(spark, tmp_path):
    frame = spark.createDataFrame([("a", 0, 1)], SCHEMA)
    with KeyedTestHarness(CountOn(), key="k", changelog=DirectoryChangelog(tmp_path / "log")) as harness:
        harness.process({"k": "a", "v": 40})
    with keyed.tables.open_tables(DirectoryChangelog(tmp_path / "log"), tmp_path / "tables") as tables:
        tables.poll()
        known = {"count": tables["count"].dataset()}
        assert [row.n for row in counted(keyed.stream(frame), known).run().values] == [41]
    good = pa.table({"k": ["a"], "count": [41]})
    assert [row.n for row in counted(keyed.stream(frame), good).run().values] == [42]
    with pytest.raises(RowError, match=r"initial_state, row .*'many'.*Expected `int`, got `str`"):
        counted(keyed.stream(frame), pa.table({"k": ["b"], "count": ["many"]})).run()


@pytest.mark.long
def test_the_state_of_a_plain_query_of_spark_is_a_source_of_it(spark, tmp_path):
    write_file(tmp_path / "in", 0, [("a", 0, 3), ("a", 0, 4), ("b", 0, 5)])
    reader = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "in"))
    plain = reader.groupBy("k").transformWithStateInPandas(PlainCount(), "n bigint", "append", "none")
    plain.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "plain")).trigger(
        availableNow=True
    ).start().awaitTermination()

    def state(name):
        return spark.read.format("statestore").option("stateVarName", name).load(str(tmp_path / "plain"))

    rows = spark.createDataFrame([("a", 0, 1), ("b", 0, 1)], SCHEMA)
    result = counted(keyed.stream(rows), {name: state(name) for name in ("count", "items", "prices")}).run()
    local = keyed.stream([{"k": "a", "v": 1}, {"k": "b", "v": 1}])
    assert sorted(counted(local, {name: state(name) for name in ("count", "items", "prices")}).run().values) == [
        *map(tuple, sorted(result.values))
    ]
    assert sorted(map(tuple, result.values)) == [
        ("a", 8, "['item 3', 'item 4'] {'item 3': 1.5, 'item 4': 2.0}"),
        ("b", 6, "['item 5'] {'item 5': 2.5}"),
    ]

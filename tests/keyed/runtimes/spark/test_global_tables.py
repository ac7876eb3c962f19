"""Global tables on Spark: DataFrames beside batches, and versions that a stream keeps in its checkpoint."""

from __future__ import annotations

import pytest

import keyed
from keyed import DefinitionError
from keyed.changelog import DirectoryChangelog
from tests.keyed.runtimes.local.test_global_tables import rates, table_of
from tests.keyed.runtimes.spark.functions import Convert, write_file
from tests.support.waiting import until

COLUMNS = "user string, rate double, country string"
#: `write_file` writes (k, t, v).
SCHEMA = "k string, t bigint, v bigint"


def converted(frame, source, **options):
    stream = keyed.stream(frame.selectExpr("CAST(v AS STRING) AS user", "k AS currency")).key_by("user")
    options = {"parallelism": 2, **options}
    return stream.connect(table_of(source)).process(Convert(), COLUMNS, name="convert", **options)


def in_order(values):
    return sorted((row.user, row.rate) for row in values)


def test_a_dataframe_beside_a_batch(spark):
    payments = spark.createDataFrame([("EUR", 1, 1), ("USD", 2, 2), ("GBP", 3, 3)], SCHEMA)
    table = spark.createDataFrame(rates(EUR=1, USD=2).to_pandas())
    found = converted(payments, table).run()
    assert sorted(((row.user, row.rate) for row in found.values), key=str) == [("1", 1.0), ("2", 2.0), ("3", None)]


def files(spark, folder):
    folder.mkdir(parents=True, exist_ok=True)
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder))


@pytest.mark.long
def test_a_stream_keeps_versions_in_its_checkpoint(spark, tmp_path):
    table = [rates(EUR=1, USD=2)]
    changelog = DirectoryChangelog(tmp_path / "log")
    payments = files(spark, tmp_path / "in")

    def run(number, checkpoint, **options):
        write_file(tmp_path / "in", number, [("EUR", number, 1), ("USD", number, 2)])
        return converted(payments, lambda: table[0], **options).run(checkpoint=tmp_path / checkpoint)

    assert in_order(run(0, "ck", changelog=changelog).values) == [("1", 1.0), ("2", 2.0)]
    # It has not changed, so there is no new version.
    assert in_order(run(1, "ck", changelog=changelog).values) == [("1", 1.0), ("2", 2.0)]
    assert len(list((tmp_path / "ck" / "keyed-global" / "rates").glob("*.parquet"))) == 1
    table[0] = rates(EUR=5, USD=6)
    assert in_order(run(2, "ck", changelog=changelog).values) == [("1", 5.0), ("2", 6.0)]
    table[0] = rates(EUR=7, USD=8)
    restored = run(3, "ck2", restore_from=changelog, parallelism=3)
    assert restored.restored is not None
    assert restored.restored.with_position
    assert in_order(restored.values) == [("1", 7.0), ("2", 8.0)]
    with pytest.raises(DefinitionError, match="keeps the versions of a table in its checkpoint"):
        _ = converted(payments, table[0]).df


def test_a_running_query_takes_a_changed_table(spark, tmp_path):
    table = [rates(EUR=1)]
    write_file(tmp_path / "in", 0, [("EUR", 0, 0)])
    sink = keyed.collect_sink()
    query = converted(files(spark, tmp_path / "in"), lambda: table[0]).start(
        sink, checkpoint=tmp_path / "ck", trigger="100 milliseconds"
    )
    until(lambda: len(sink.values) == 1 or not query.is_active)
    table[0] = rates(EUR=2)
    until(lambda: len(list((tmp_path / "ck" / "keyed-global" / "rates").glob("*.parquet"))) == 2)
    batches = query.progress.batch_id
    # The version is a batch of its own where no row comes.
    until(lambda: query.progress.batch_id > batches or not query.is_active)
    write_file(tmp_path / "in", 1, [("EUR", 1, 1)])
    until(lambda: len(sink.values) == 2 or not query.is_active)
    query.stop()
    assert in_order(sink.values) == [("0", 1.0), ("1", 2.0)]

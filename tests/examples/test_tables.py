"""The examples of state tables say what their pages say; payments on Spark as in this process."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

import keyed
from examples import movie_tickets, payments, recency_cache, sensor_readings
from tests.support.data_files import read_data

PRINTED = read_data("examples/printed.json")


@pytest.mark.parametrize("example", [movie_tickets, sensor_readings, recency_cache, payments])
def test_examples(example, tmp_path, capsys):
    example.main(str(tmp_path))
    assert capsys.readouterr().out.splitlines() == PRINTED[example.__name__.rpartition(".")[2]]


@pytest.mark.long
def test_payments_on_spark(spark, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    pq.write_table(payments.PAYMENTS, folder / "payments.parquet")
    source = spark.readStream.schema("customer string, amount decimal(10,2), paid_at timestamp").parquet(str(folder))
    log = keyed.DirectoryChangelog(tmp_path / "log")
    payments.per_customer(source, log).run(tmp_path / "out", checkpoint=tmp_path / "checkpoint")
    with keyed.tables.open_tables(log, tmp_path / "tables") as tables:
        tables.poll()
        found = {entry.key: entry.value for entry in tables["customers"]}
    local = payments.per_customer(payments.PAYMENTS, keyed.DirectoryChangelog(tmp_path / "local"))
    rows = {row.customer: row._asdict() for row in local.run(checkpoint=tmp_path / "local-checkpoint").values}
    assert found == {key: {n: v for n, v in row.items() if n != "customer"} for key, row in rows.items()}

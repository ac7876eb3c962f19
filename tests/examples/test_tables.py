"""The examples of state tables say what their pages say; payments on Spark as in this process."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

import keyed
from examples import movie_tickets, payments, recency_cache, sensor_readings

TICKETS = """\
While it runs: {'tickets': 3, 'revenue': 48}
Die Hard {'tickets': 3, 'revenue': 48}
The Big Lebowski {'tickets': 2, 'revenue': 24}
The Godfather {'tickets': 4, 'revenue': 84}
"""
SENSORS = """\
The changelog is an audit trail: [('sensor-1', 45.0), ('sensor-2', 41.0), ('sensor-1', 68.5), ('sensor-2', 27.0), \
('sensor-2', 48.0)]
Pull: {'avg': 68.5} {'avg': 45.0}
Push: [('sensor-4', None, 95.0), ('sensor-3', None, 67.0), ('sensor-3', 67.0, 59.5), ('sensor-4', 95.0, 75.0), \
('sensor-3', 59.5, 52.0)]
A stale store reads what is new: 10 records
A lost one reads everything: 20 records
{'sensor-1': 68.5, 'sensor-2': 48.0, 'sensor-3': 52.0, 'sensor-4': 75.0}
Compaction leaves a record a key, and the newest batch: ['sensor-1', 'sensor-2', 'sensor-3', 'sensor-3', 'sensor-4']
"""
RECENCY = """\
sensor-1 {'arrived': 92, 'reading': 92, 'area': 'wheel'}
sensor-2 {'arrived': 13, 'reading': 90, 'area': 'engine'}
"""
PAYMENTS = """\
{'payments': 3, 'total': Decimal('59.75'), 'largest': Decimal('40.00'), 'last': Decimal('40.00')}
[{'customer': 'bob', 'total': Decimal('99.99')}, {'customer': 'ann', 'total': Decimal('59.75')}]
"""


@pytest.mark.parametrize(
    ("example", "printed"),
    [(movie_tickets, TICKETS), (sensor_readings, SENSORS), (recency_cache, RECENCY), (payments, PAYMENTS)],
    ids=lambda value: getattr(value, "__name__", "").rpartition(".")[2],
)
def test_examples(example, printed, tmp_path, capsys):
    example.main(str(tmp_path))
    assert capsys.readouterr().out == printed


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

"""Streams that are written without a key: ``stream.map_batches(...).to(sink)``."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import keyed
from keyed.errors import DefinitionError
from keyed.job.graph import Kept
from tests.support.jobs import Tally

ROWS = [{"k": f"k{n % 3}", "n": n, "at": 1_000 * n} for n in range(10)]
COLUMNS = "k string, n bigint, at bigint"


def large(table: pa.Table) -> pa.Table:
    return table.filter(pc.greater(table["n"], pa.scalar(6)))


def without_nines(table: pa.Table) -> Kept:
    """Leave out the row of 9 as a bad one."""
    kept = table.filter(pc.not_equal(table["n"], pa.scalar(9)))
    return Kept(kept, table.num_rows - kept.num_rows, "it is 9")


def values(sink: Any) -> list[Any]:
    return sorted(tuple(row) for row in sink.values)


def numbers(sink: Any) -> list[int]:
    return sorted(row.n for row in sink.values)


@pytest.mark.parametrize("as_table", [True, False])
def test_rows_are_written_as_they_come(as_table: bool, tmp_path: Any) -> None:
    stream = keyed.stream(pa.Table.from_pylist(ROWS) if as_table else ROWS, timestamp="at")
    sinks = [keyed.collect_sink() for _ in range(4)]
    united = stream.filter(lambda row: row["n"] < 1 if isinstance(row, dict) else row.n < 1)
    result = keyed.run(
        stream.map_batches(large).to(sinks[0], name="large"),
        stream.map_batches(without_nines, output=COLUMNS).to(sinks[1], name="fine"),
        united.union(stream.map_batches(large)).to(sinks[2], name="both"),
        stream.key_by("k").process(Tally(), "k string, n bigint").to(sinks[3]),
        rows_per_batch=4,
    )
    assert numbers(sinks[0]) == [7, 8, 9]
    assert numbers(sinks[1]) == list(range(9))
    assert numbers(sinks[2]) == [0, 7, 8, 9]
    assert values(sinks[3])[-1] == ("k2", 3)
    assert result.metrics["fine"]["rows_bad"] == 1
    again = [keyed.run(stream.map_batches(large).to(tmp_path / "out"), checkpoint=tmp_path / "state") for _ in range(2)]
    assert [each.batches for each in again] == [1, 0]


def test_names_are_checked_and_distinct() -> None:
    stream = keyed.stream(ROWS)
    with pytest.raises(DefinitionError, match="operator name 'a b' must match"):
        stream.to(keyed.collect_sink(), name="a b")
    with pytest.raises(DefinitionError, match="operator name 'rows' is used twice in this query"):
        keyed.run(stream.to(keyed.collect_sink()), stream.filter(bool).to(keyed.collect_sink()))


@pytest.mark.slow
def test_on_spark_it_is_a_plain_write(spark: Any, tmp_path: Any, capsys: Any) -> None:
    frame = spark.createDataFrame([tuple(row.values()) for row in ROWS], COLUMNS)
    stream = keyed.stream(frame, timestamp="at")
    sinks = [keyed.collect_sink() for _ in range(3)]
    counted = stream.key_by("k").process(Tally(), "k string, n bigint", parallelism=2)
    result = keyed.run(
        stream.map_batches(large).to(sinks[0], name="large"),
        keyed.Stream(counted.filter(lambda row: row.n > 3).inputs).to(sinks[1], name="many"),
        counted.to(sinks[2]),
    )
    assert numbers(sinks[0]) == [7, 8, 9]
    assert values(sinks[1]) == [("k0", 4)]
    assert len(values(sinks[2])) == 10
    assert result.metrics["large"]["rows_out"] == 3

    plan: Any = stream.map_batches(large).to(sinks[0]).output
    plan.df.explain()
    assert "Exchange" not in capsys.readouterr().out
    plan.explain()
    assert "rows: written as it comes, without a shuffle or state" in capsys.readouterr().out

    folder = tmp_path / "in"
    counts = []
    for part in (ROWS[:8], ROWS[8:]):
        spark.createDataFrame([tuple(row.values()) for row in part], COLUMNS).coalesce(1).write.mode("append").parquet(
            str(folder)
        )
        streaming = keyed.stream(spark.readStream.schema(frame.schema).parquet(str(folder)), timestamp="at")
        output = streaming.map_batches(without_nines).to(tmp_path / "out", name="fine")
        counts.append(keyed.run(output, checkpoint=tmp_path / "state", drain=True).metrics["fine"])
    assert [each["rows_bad"] for each in counts] == [0, 1]
    assert sorted(row.n for row in spark.read.parquet(str(tmp_path / "out")).collect()) == list(range(9))
    assert not any((tmp_path / "state" / "state").glob("*"))

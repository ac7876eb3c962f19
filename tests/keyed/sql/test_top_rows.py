"""``QUALIFY row_number() OVER (...) <= n``: the first rows of each partition, a table keyed by their ranks."""

import math
import random
from typing import Any

import pytest

from keyed import sql
from keyed.sql.script_runs import ScriptResult

ORDERS = "CREATE STREAM orders (id INT KEY, card STRING, total DOUBLE) WITH (FORMAT = 'JSON');"
TABLE = ORDERS.replace("STREAM", "TABLE").replace("KEY", "PRIMARY KEY")
TOP = (
    "CREATE TABLE top AS SELECT card, id, row_number() OVER (PARTITION BY card ORDER BY total DESC) AS place "
    "FROM orders WHERE total IS NULL OR total <> 0 QUALIFY place <= 2;"
)


def order(number: int, card: str, total: float | None, time: int) -> dict[str, Any]:
    return {"id": number, "card": card, "total": total, "ROWTIME": time}


def places(found: ScriptResult, name: str = "top") -> dict[Any, Any]:
    """The ids by card and place."""
    return {tuple(cell for _, cell in key): row["id"] for key, row in found.table(name).items()}


@pytest.mark.parametrize("kind", ["STREAM", "TABLE"])
@pytest.mark.parametrize("seed", range(4))
def test_the_table_has_the_first_rows_of_all_whatever_the_batches(kind, seed, tmp_path):
    draw = random.Random(seed)
    totals = [0.0, 1.0, 2.0, 3.0, None, math.nan, math.inf]
    rows = [order(draw.randrange(9), draw.choice("abc"), draw.choice(totals), time) for time in range(20)]
    kept = rows if kind == "STREAM" else list({row["id"]: row for row in rows}.values())
    kept = [row for row in kept if row["total"] != 0]
    by_id = (lambda row: row["id"]) if kind == "TABLE" else (lambda row: row["ROWTIME"])
    expected: dict[Any, Any] = {}
    for card in "abc":
        # Nulls are last, and NaN is the greatest number, as in DuckDB.
        ordered = sorted((row for row in kept if row["card"] == card), key=by_id)
        ordered.sort(key=lambda row: (row["total"] is None, not _is_nan(row["total"]), -(row["total"] or 0)))
        expected |= {(card, place + 1): row["id"] for place, row in enumerate(ordered[:2])}
    text = (ORDERS if kind == "STREAM" else TABLE) + TOP
    for size in (1, draw.randrange(2, 9), 100):
        assert places(sql.script(text, {"orders": rows}, rows_per_batch=size)) == expected
    found = sql.script(text, {"orders": rows}, rows_per_batch=3, tables=tmp_path)
    assert found.run is not None
    with found.run.tables as tables:
        ranked = tables.sql("SELECT card, place, id FROM top").to_pylist()
    assert {(row["card"], row["place"]): row["id"] for row in ranked} == expected


def _is_nan(total: float | None) -> bool:
    return total is not None and math.isnan(total)


def test_ranks_go_on_after_a_checkpoint_and_other_queries_read_them(tmp_path):
    text = ORDERS + TOP + "CREATE TABLE winners AS SELECT id, COUNT(*) AS n FROM top GROUP BY id;"
    rows = [order(number, "ab"[number % 2], number, number) for number in range(1, 7)]
    for end in (3, 6):
        found = sql.script(text, {"orders": rows[:end]}, checkpoint=tmp_path / "c", tables=tmp_path / f"t{end}")
    assert found.run is not None
    with found.run.tables as tables:
        ranked = tables.sql("SELECT card, place, id FROM top ORDER BY ALL").to_pylist()
        assert [tuple(row.values()) for row in ranked] == [("a", 1, 6), ("a", 2, 4), ("b", 1, 5), ("b", 2, 3)]
        assert [row["id"] for row in tables.sql("SELECT id FROM winners ORDER BY id").to_pylist()] == [3, 4, 5, 6]

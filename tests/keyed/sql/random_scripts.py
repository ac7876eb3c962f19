# ruff: noqa: E501, T201 - queries stand on one line
"""Random scripts beside DuckDB over all rows: ``python -m tests.keyed.sql.random_scripts --seeds 0:1000``.

The texts of both are written here, independently of each other; batches are cut at random.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import signal
import sys
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

from keyed.arrow.write import arrow_schema
from keyed.extending import schema_of
from keyed.sql.script_runs import script

DECLARED = "k STRING {role}, g INT, b BIGINT, d DOUBLE, e DECIMAL(8, 2), t STRING, f BOOLEAN"
TYPES: dict[str, str] = {"g": "INT", "b": "BIGINT", "d": "DOUBLE", "e": "DECIMAL(8,2)", "t": "VARCHAR", "f": "BOOLEAN"}
ARROW = arrow_schema(
    schema_of("k string, g int, b bigint, d double, e decimal(8,2), t string, f boolean, ts bigint, no bigint")
)


def rows(draw: random.Random, count: int, keys: int, *, times: str) -> list[dict[str, Any]]:
    """Return random rows; times are ``ascending``, ``equal`` or ``mixed``."""
    found = []
    time = 0
    for number in range(count):
        time += draw.choice([0, 0, 1, 7, 400, 1500])
        at = {"ascending": time, "equal": 5, "mixed": draw.randrange(4000)}[times]

        def maybe(value: Any) -> Any:
            return None if draw.random() < 0.15 else value

        found.append(
            {
                "k": f"k{draw.randrange(keys)}",
                "g": maybe(draw.randrange(-2, 3)),
                "b": maybe(draw.choice([0, 1, -1, 2**40, 7])),
                "d": maybe(draw.choice([0.0, -0.0, 1.5, 2.25, -3.0])),
                "e": maybe(Decimal(draw.randrange(-500, 500)).scaleb(-2)),
                "t": maybe(draw.choice(["", "a", "B", "äö", "abc"])),
                "f": maybe(draw.random() < 0.5),
                "ts": at,
                "no": number,
            }
        )
    return found


def scalar(draw: random.Random, depth: int = 2) -> str:
    """Return an expression that fails for no row."""
    if depth == 0 or draw.random() < 0.3:
        return draw.choice(["g", "b % 1000", "d", "e", "length(t)", "1", "NULL::INT", "CASE WHEN f THEN 1 ELSE 0 END"])
    a, b = scalar(draw, depth - 1), scalar(draw, depth - 1)
    return draw.choice(
        [
            f"({a}) + ({b})",
            f"({a}) - ({b})",
            f"coalesce({a}, {b})",
            f"CASE WHEN {condition(draw, 1)} THEN {a} ELSE {b} END",
            f"greatest({a}, {b})",
            f"abs({a})",
        ]
    )


def condition(draw: random.Random, depth: int = 2) -> str:
    """Return a condition that fails for no row."""
    if depth == 0 or draw.random() < 0.3:
        return draw.choice(["g > 0", "f", "t LIKE 'a%'", "e IS NULL", "b IN (1, 7)", "d = 0", "t <> 'B'", "NOT f"])
    a, b = condition(draw, depth - 1), condition(draw, depth - 1)
    return draw.choice([f"({a}) AND ({b})", f"({a}) OR ({b})", f"NOT ({a})", f"g IS DISTINCT FROM {draw.randrange(3)}"])


AGGREGATES = {
    "COUNT(*)": "count(*)",
    "COUNT(g)": "count(g)",
    "SUM(g)": "sum(g)::BIGINT",
    "SUM(e)": "sum(e)",
    "AVG(d)": "avg(d)",
    "AVG(g)": "avg(g)",
    "SUM(d)": "sum(d)",
    "COUNT(*) FILTER (WHERE f)": "count(*) FILTER (WHERE f)",
    "STDDEV_SAMP(g)": "stddev_samp(g)",
}
STREAM_ONLY = {
    "MIN(e)": "min(e)",
    "MAX(t)": "max(t)",
    "COUNT(DISTINCT t)": "count(DISTINCT t)",
    "COUNT_DISTINCT(d)": "count(DISTINCT d)",
    "LATEST_BY_OFFSET(b)": "last(b ORDER BY no) FILTER (WHERE b IS NOT NULL)",
    "EARLIEST_BY_OFFSET(b)": "first(b ORDER BY no) FILTER (WHERE b IS NOT NULL)",
    "COLLECT_LIST(g)": "list(g ORDER BY no)",
}


def aggregates(draw: random.Random, *, of_table: bool) -> list[tuple[str, str]]:
    known = list((AGGREGATES if of_table else AGGREGATES | STREAM_ONLY).items())
    return draw.sample(known, draw.randrange(1, 4))


def plain(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else round(value, 9) + 0.0
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value


def expected(query: str, tables: dict[str, list[dict[str, Any]]]) -> list[tuple[Any, ...]]:
    connection = duckdb.connect()
    connection.execute("SET threads = 1")
    for name, given in tables.items():
        connection.register(f"{name}_", pa.Table.from_pylist(given, ARROW))
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM {name}_")
    return sorted((tuple(plain(each) for each in row) for row in connection.sql(query).fetchall()), key=repr)


class Drawn(NamedTuple):
    """A random script with its rows, and the query of DuckDB that gives the rows of its output ``o``."""

    kind: str
    text: str
    right: str
    given: dict[str, list[dict[str, Any]]]
    read: list[str]
    is_table: bool
    rows_per_batch: int

    def streams(self, part: float = 1) -> dict[str, Any]:
        """The rows that the script reads, or the first part of them."""
        return {
            name: [
                {("ROWTIME" if c == "ts" else c): v for c, v in row.items()}
                for row in self.given[name][: round(part * len(self.given[name]))]
            ]
            for name in self.read
        }


def drawn(seed: int) -> Drawn:
    """Return the random script of a seed."""
    draw = random.Random(seed)
    kind = draw.choice(
        ["project", "group", "table_group", "window", "session", "table", "join", "stream_join", "foreign", "chain"]
    )
    times = "ascending" if kind in ("window", "session", "stream_join", "join") else draw.choice(["ascending", "equal"])
    if kind in ("window", "session") and draw.random() < 0.4:
        times = "mixed"
    given = rows(draw, draw.randrange(0, 30), 4, times=times)
    other = rows(draw, draw.randrange(0, 20), 5, times=times)
    declare = "".join(
        f"CREATE {name} ({DECLARED.format(role=role)}, no BIGINT) WITH (FORMAT='JSON');"
        for names, role in (("STREAM s, STREAM r", "KEY"), ("TABLE t, TABLE u", "PRIMARY KEY"))
        for name in names.split(", ")
    )
    latest = "(SELECT * FROM {0} QUALIFY row_number() OVER (PARTITION BY k ORDER BY no DESC) = 1)"
    is_table = True
    final = " EMIT FINAL" * (seed % 2)
    where = f" WHERE {condition(draw)}" if draw.random() < 0.5 else ""
    if kind == "project":
        is_table = False
        items = [scalar(draw) for _ in range(draw.randrange(1, 4))]
        shown = ", ".join(f"({each}) AS c{i}" for i, each in enumerate(items))
        text = f"CREATE STREAM o AS SELECT k, {shown} FROM s{where};"
        right = f"SELECT k, {shown} FROM s{where}"
    elif kind in ("group", "table_group", "chain"):
        source = "s" if kind == "group" else "t"
        made = aggregates(draw, of_table=kind != "group")
        group = draw.choice(["g", "f", "k", "coalesce(g, 0)", "t"])
        mine, theirs = (", ".join(f"{each} AS c{i}" for i, each in enumerate(of)) for of in zip(*made, strict=True))
        having = draw.choice(["", f" HAVING {draw.choice(['COUNT(*) > 1', 'SUM(g) > 0', 'AVG(d) IS NOT NULL'])}"])
        alias = "x" if group != "k" else "k"
        if kind == "chain":
            text = f"CREATE TABLE m AS SELECT k, g, b, d, e, t, f, no FROM t{where};"
            text += f"CREATE TABLE o AS SELECT {group} AS {alias}, {mine} FROM m GROUP BY {group}{having};"
        else:
            text = f"CREATE TABLE o AS SELECT {group} AS {alias}, {mine} FROM {source}{where} GROUP BY {group}{having};"
        base = "s" if kind == "group" else latest.format("t")
        inner = f"(SELECT * FROM {base}{where})"
        kept = f"{inner} WHERE ({group}) IS NOT NULL"
        right = f"SELECT {group} AS {alias}, {theirs} FROM {kept} GROUP BY {group}{having}"
    elif kind == "window":
        size = draw.choice([1000, 700])
        advance = draw.choice([size, size // 2])
        made = aggregates(draw, of_table=False)
        made = [each for each in made if "BY_OFFSET" not in each[0] and "COLLECT" not in each[0]] or [
            ("COUNT(*)", "count(*)")
        ]
        mine, theirs = (", ".join(f"{each} AS c{i}" for i, each in enumerate(of)) for of in zip(*made, strict=True))
        window = (
            f"TUMBLING (SIZE {size} MILLISECONDS, RETENTION 2 DAYS, GRACE PERIOD 1 DAY)"
            if advance == size
            else f"HOPPING (SIZE {size} MILLISECONDS, ADVANCE BY {advance} MILLISECONDS, RETENTION 2 DAYS, GRACE PERIOD 1 DAY)"
        )
        text = f"CREATE TABLE o AS SELECT k, {mine}, WINDOWSTART AS ws FROM s WINDOW {window}{where} GROUP BY k{final};"
        right = (
            f"SELECT k, {theirs}, start AS ws FROM (SELECT *, unnest(list_filter(range(ts - ts % {advance} - {size}, ts + 1, "
            f"{advance}), lambda x: x >= 0 AND x % {advance} = 0 AND x + {size} > ts)) AS start FROM s{where}) GROUP BY k, start"
        )
        if size % advance:
            right = right.replace(
                f"ts - ts % {advance} - {size}", f"ts - ts % {advance} - {advance * (size // advance + 1)}"
            )
    elif kind == "session":
        gap = draw.choice([1000, 300])
        text = (
            f"CREATE TABLE o AS SELECT k, COUNT(*) AS c0, SUM(g) AS c1 FROM s WINDOW SESSION ({gap} MILLISECONDS, "
            f"RETENTION 2 DAYS, GRACE PERIOD 1 DAY){where} GROUP BY k{final};"
        )
        right = (
            f"SELECT k, count(*) c0, sum(g)::BIGINT c1 FROM (SELECT *, sum(fresh) OVER (PARTITION BY k ORDER BY ts, no) AS "
            f"n FROM (SELECT *, CASE WHEN ts - lag(ts) OVER (PARTITION BY k ORDER BY ts, no) <= {gap} THEN 0 ELSE 1 END AS "
            f"fresh FROM s{where})) GROUP BY k, n"
        )
    elif kind == "table":
        how = draw.choice(["", "LEFT", "FULL"])
        text = f"CREATE TABLE o AS SELECT {'ROWKEY' if how == 'FULL' else 't.k'} AS k, t.g, t.e, u.k AS uk, u.t AS ut FROM t {how} JOIN u ON t.k = u.k;"
        key = "coalesce(a.k, b.k)"
        right = f"SELECT {key} AS k, a.g, a.e, b.k, b.t FROM {latest.format('t')} a {how} JOIN {latest.format('u')} b ON a.k = b.k"
    elif kind == "foreign":
        how = draw.choice(["", "LEFT"])
        text = f"CREATE TABLE o AS SELECT t.k AS k, t.g, u.e AS ue FROM t {how} JOIN u ON ('k' || t.g::VARCHAR) = u.k;"
        right = f"SELECT a.k, a.g, b.e FROM {latest.format('t')} a {how} JOIN {latest.format('u')} b ON ('k' || a.g::VARCHAR) = b.k"
    elif kind == "join":
        is_table = False
        how = draw.choice(["INNER", "LEFT"])
        text = f"CREATE STREAM o AS SELECT s.k AS k, s.no, t.no AS tno FROM s {how} JOIN t ON s.k = t.k;"
        right = "SELECT a.k, a.no, (SELECT max(b.no) FROM t b WHERE b.k = a.k AND b.ts <= a.ts) AS tno FROM s a"
        right = f"SELECT * FROM ({right})" + (" WHERE tno IS NOT NULL" if how == "INNER" else "")
    else:
        is_table = False
        before, after = draw.choice([(500, 500), (0, 800)])
        text = f"CREATE STREAM o AS SELECT s.k AS k, s.no, r.no AS rno FROM s JOIN r WITHIN ({before} MILLISECONDS, {after} MILLISECONDS) GRACE PERIOD 1 DAY ON s.k = r.k;"
        right = (
            f"SELECT a.k, a.no, b.no FROM s a JOIN r b ON a.k = b.k AND b.ts BETWEEN a.ts - {before} AND a.ts + {after}"
        )
    names = {"s": given, "r": other, "t": given if kind != "join" else other, "u": other}
    read = [name for name in names if f" {name}" in text.split("AS SELECT", 1)[1] or f"FROM {name}" in text]
    return Drawn(kind, declare + text, right, names, read, is_table, draw.choice([1, 2, 5, 1000]))


def check(seed: int, spark: Any = None) -> str | None:
    """Return how a random script differs from DuckDB, in this process or on Spark; ``None`` if it does not."""
    one = drawn(seed)
    text, streams, options = one.text, one.streams(), dict[str, Any](rows_per_batch=one.rows_per_batch, drain=True)
    if spark is not None:
        types = {**TYPES, "t": "STRING", "k": "STRING", "ROWTIME": "BIGINT", "no": "BIGINT"}
        columns = ["k", *TYPES, "ROWTIME", "no"]
        ddl = ", ".join(f"{name} {types[name]}" for name in columns)
        streams = {
            name: spark.createDataFrame([tuple(row[each] for each in columns) for row in of], ddl).coalesce(1)
            for name, of in streams.items()
        }
        # There the input has no end.
        text, options = text.replace(" EMIT FINAL", ""), {}
    wanted = expected(one.right, one.given)
    result = script(text, streams, **options)
    if one.is_table:
        seen = [(key, *value.values()) for key, value in result.table("o").items()]
        seen = [
            ((row[0][0] if isinstance(row[0], tuple) and isinstance(row[0][1], tuple) else row[0]), *row[1:])
            for row in seen
        ]
    else:
        seen = [(each.key, *each.value.values()) for each in result["o"]]
    found = sorted((tuple(plain(each) for each in row) for row in seen), key=repr)
    may_skip = ("group", "table_group", "chain", "foreign", "table")
    if found != wanted or (result.skipped and one.kind not in may_skip):
        return (
            f"seed {seed} ({one.kind}, batches of {one.rows_per_batch}): {one.text}\n  seen   {found}\n"
            f"  wanted {wanted}\n  skipped {result.skipped}"
        )
    return None


def stored(seed: int, folder: Path, *, stops: Sequence[float] = (), kill_at: int | None = None) -> list[Any]:
    """Run a script of a table with a checkpoint; return the rows of the table, without their times, and floats with 12 digits.

    Args:
        seed: The seed.
        folder: Folder of the checkpoint and of the tables.
        stops: Parts of the rows after which runs before the last one end.
        kill_at: Number of the batch after which the process is killed.
    """
    one = drawn(seed)

    def on_progress(progress: Any) -> None:
        if progress.batch_id == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    for part in (*stops, 1):
        result = script(
            one.text,
            one.streams(part),
            checkpoint=folder / "state",
            tables=folder / "tables",
            rows_per_batch=3,
            drain=part == 1,
            on_progress=on_progress,
        )
        assert result.run is not None
        # A part without rows leaves no batch to read.
        rows = result.run.tables.sql("SELECT * EXCLUDE (ROWTIME) FROM o").to_pylist() if part == 1 else []
        result.run.tables.close()
    return sorted(repr({name: _rounded(value) for name, value in row.items()}) for row in rows)


def _rounded(value: Any) -> Any:
    """Return a value; of a float, whose last digits depend on how batches are cut, 12 digits."""
    return float(f"{value:.12g}") if isinstance(value, float) else value


def main() -> int:
    """Check seeds; return the number of those that differ."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", default="0:100")
    parser.add_argument("--kill-at", type=int, help="run the first seed in --folder, and die after this batch")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    first, last = map(int, options.seeds.split(":"))
    if options.kill_at is not None:
        stored(first, options.folder, kill_at=options.kill_at)
        return 1
    failed = 0
    for seed in range(first, last):
        try:
            difference = check(seed)
        except Exception as error:  # noqa: BLE001 - the seed is what counts
            difference = f"seed {seed}: {type(error).__name__}: {str(error)[:600]}"
        if difference:
            failed += 1
            print(difference, flush=True)
    print(f"{last - first} scripts, {failed} differ")
    return failed


if __name__ == "__main__":
    sys.exit(min(main(), 1))

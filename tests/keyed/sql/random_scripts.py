"""Random scripts over random records, with the same queries for DuckDB over all rows.

``python -m tests.keyed.sql.random_scripts --scripts 10000`` runs many of them and reports the first that differs;
with ``--spark`` they run on Spark.

A `RandomScript` has the statements, the records in the order in which they arrive, and for each output a DuckDB query
of what it holds at the end. DuckDB sees the rows of each topic with ``i``, the place of a record, ``t``, its timestamp,
and ``m``, the highest timestamp up to it.
"""

# ruff: noqa: ISC004, T201 - pairs of expressions, one in each language; a program that reports

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

import keyed
from keyed import sql

KEYS = ("p", "q", "r", "s", None)
TEXTS = ("ab", "Abc", "b", "", "xyz", "a%b", None)
DUCK = {"STRING": "VARCHAR", "INT": "BIGINT", "BIGINT": "BIGINT", "DOUBLE": "DOUBLE", "BOOLEAN": "BOOLEAN"}
_PARTITIONS = "spark.sql.shuffle.partitions"
_ARROW: dict[str, pa.DataType] = {
    "STRING": pa.string(), "INT": pa.int32(), "BIGINT": pa.int64(), "DOUBLE": pa.float64(), "BOOLEAN": pa.bool_(),
    "DECIMAL": pa.decimal128(6, 2),
}  # fmt: skip
#: Topics: name, and its columns; the first one is the key.
TOPICS = {
    "S": (("k", "STRING"), ("a", "INT"), ("b", "BIGINT"), ("x", "DOUBLE"), ("s", "STRING"), ("d", "DECIMAL(6, 2)"),
          ("f", "BOOLEAN")),
    "T": (("k", "STRING"), ("a", "INT"), ("s", "STRING")),
    "U": (("k", "STRING"), ("n", "INT"), ("r", "STRING")),
    "V": (("k", "STRING"), ("n", "INT"), ("w", "BIGINT")),
}  # fmt: skip


@attrs.frozen
class Expr:
    """An expression in both languages."""

    ksql: str
    duck: str
    type: str


@attrs.frozen
class Rel:
    """A relation that a query can read: a stream, or a table.

    Attributes:
        name: Its name, also of DuckDB's view.
        is_table: It is a table; the view has its rows at the end.
        columns: Names and types; the first one is the key.
        ordered: The rows have an order (``i``), the same in both.
        versions: Name of the view with all rows that a table has had, for the groups that were ever there.
    """

    name: str
    is_table: bool
    columns: tuple[tuple[str, str], ...]
    ordered: bool = True
    versions: str | None = None


@attrs.frozen
class Check:
    """An output and what it holds.

    Attributes:
        name: The output.
        keys: Columns of its key.
        values: The others.
        query: DuckDB's query: the columns of the key, the others, and with windows start and end.
        is_table: It is a table. Of a stream all rows are compared.
        unsorted: Names of columns that are lists without an order.
        counted: Name of a count: rows in which it is 0 are left out.
    """

    name: str
    keys: tuple[str, ...]
    values: tuple[str, ...]
    query: str
    is_table: bool = True
    is_windowed: bool = False
    unsorted: frozenset[str] = frozenset()
    counted: str | None = None


@attrs.define
class RandomScript:
    """A script, its records, and the checks."""

    text: str = ""
    records: list[Any] = attrs.field(factory=list)
    views: list[str] = attrs.field(factory=list)
    checks: list[Check] = attrs.field(factory=list)
    #: Rows are dropped as late, so that results depend on batches.
    drops: bool = False


class _Maker:
    """Makes a script. One for Spark has records in the order of their timestamps, which differ, and no tombstones."""

    def __init__(self, seed: int, size: int, *, for_spark: bool = False) -> None:
        self.random = random.Random(seed)
        self.script = RandomScript()
        self.names = 0
        self.size = size
        self.for_spark = for_spark
        self.jitter = 0 if for_spark else self.random.choice((0, 0, 5, 40, 200))
        self.end = 0

    def pick(self, *options: Any) -> Any:
        return self.random.choice(options)

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    # Expressions.

    def column(self, columns: Any, *types: str) -> Expr | None:
        found = [(n, t) for n, t in columns if t in types or (t.startswith("DECIMAL") and "DECIMAL" in types)]
        if not found:
            return None
        name, type_ = self.pick(*found)
        return Expr(name, name, type_)

    def number(self, columns: Any, depth: int = 2) -> Expr:
        found = self.column(columns, "INT", "BIGINT")
        if depth == 0 or found is None or self.chance(0.4):
            if found is None or self.chance(0.2):
                digit = str(self.random.randint(0, 9))
                return Expr(digit, f"{digit}::BIGINT", "INT")
            return found
        match self.random.randrange(9):
            case 0 | 1:
                a, b = self.number(columns, depth - 1), self.number(columns, depth - 1)
                sign = self.pick("+", "-", "*")
                type_ = "BIGINT" if "BIGINT" in (a.type, b.type) else "INT"
                return Expr(f"({a.ksql} {sign} {b.ksql})", f"({a.duck} {sign} {b.duck})", type_)
            case 2:
                a, by = self.number(columns, depth - 1), self.pick(2, 3, 7)
                return Expr(f"({a.ksql} / {by})", f"({a.duck} // {by})", a.type)
            case 3:
                a, by = self.number(columns, depth - 1), self.pick(2, 3, 7)
                return Expr(f"({a.ksql} % {by})", f"({a.duck} % {by})", a.type)
            case 4:
                a = self.number(columns, depth - 1)
                return Expr(f"ABS({a.ksql})", f"abs({a.duck})", a.type)
            case 5:
                c, a, b = self.condition(columns, depth - 1), found, self.number(columns, 0)
                type_ = "BIGINT" if "BIGINT" in (a.type, b.type) else "INT"
                return Expr(
                    f"(CASE WHEN {c.ksql} THEN {a.ksql} ELSE {b.ksql} END)",
                    f"(CASE WHEN {c.duck} THEN {a.duck} ELSE {b.duck} END)",
                    type_,
                )
            case 6:
                value = self.random.randint(-3, 3)
                return Expr(f"COALESCE({found.ksql}, {value})", f"coalesce({found.duck}, {value})", found.type)
            case 7:
                text = self.text(columns, 0)
                return Expr(f"LEN({text.ksql})", f"length({text.duck})::BIGINT", "INT")
            case _:
                name = self.pick("GREATEST", "LEAST")
                a, b = found, self.number(columns, 0)
                type_ = "BIGINT" if "BIGINT" in (a.type, b.type) else "INT"
                return Expr(f"{name}({a.ksql}, {b.ksql})", f"{name}({a.duck}, {b.duck})", type_)

    def text(self, columns: Any, depth: int = 2) -> Expr:
        found = self.column(columns, "STRING")
        if depth == 0 or found is None or self.chance(0.4):
            return found or Expr("'b'", "'b'", "STRING")
        match self.random.randrange(8):
            case 0:
                a, b = self.text(columns, depth - 1), self.text(columns, depth - 1)
                return Expr(f"({a.ksql} + {b.ksql})", f"({a.duck} || {b.duck})", "STRING")
            case 1:
                a, b = self.text(columns, depth - 1), self.text(columns, depth - 1)
                return Expr(f"CONCAT({a.ksql}, {b.ksql})", f"concat({a.duck}, {b.duck})", "STRING")
            case 2 | 3:
                name = self.pick(("UCASE", "upper"), ("LCASE", "lower"), ("TRIM", "trim"))
                a = self.text(columns, depth - 1)
                return Expr(f"{name[0]}({a.ksql})", f"{name[1]}({a.duck})", "STRING")
            case 4:
                a, start, length = self.text(columns, depth - 1), self.random.randint(1, 3), self.random.randint(1, 3)
                return Expr(
                    f"SUBSTRING({a.ksql}, {start}, {length})", f"substring({a.duck}, {start}, {length})", "STRING"
                )
            case 5:
                a = self.number(columns, depth - 1)
                return Expr(f"CAST({a.ksql} AS STRING)", f"CAST({a.duck} AS VARCHAR)", "STRING")
            case 6:
                return Expr(f"IFNULL({found.ksql}, 'none')", f"coalesce({found.duck}, 'none')", "STRING")
            case _:
                return Expr(f"REPLACE({found.ksql}, 'b', 'cc')", f"replace({found.duck}, 'b', 'cc')", "STRING")

    def condition(self, columns: Any, depth: int = 2) -> Expr:
        if depth > 0 and self.chance(0.35):
            a = self.condition(columns, depth - 1)
            if self.chance(0.3):
                return Expr(f"(NOT {a.ksql})", f"(NOT {a.duck})", "BOOLEAN")
            b, sign = self.condition(columns, depth - 1), self.pick("AND", "OR")
            return Expr(
                f"({a.ksql} {sign} {b.ksql})",
                f"(coalesce({a.duck}, false) {sign} coalesce({b.duck}, false))",
                "BOOLEAN",
            )
        match self.random.randrange(9):
            case 0 | 1:
                a, b = self.number(columns, max(0, depth - 1)), self.number(columns, 0)
            case 2:
                a = b = self.column(columns, "DOUBLE", "DECIMAL") or self.number(columns, 0)
                value = self.pick("1.5", "0.25", "3.00")
                b = Expr(value, value, "DOUBLE")
            case 3:
                a, b = self.text(columns, max(0, depth - 1)), self.text(columns, 0)
            case 4:
                found = self.column(columns, "BOOLEAN")
                if found is not None:
                    return found
                a = b = self.number(columns, 0)
            case 5:
                a = self.text(columns, 0)
                pattern = self.pick("a%", "%b%", "_b%", "", "%")
                return Expr(f"({a.ksql} LIKE '{pattern}')", f"coalesce({a.duck} LIKE '{pattern}', false)", "BOOLEAN")
            case 6:
                a = self.pick(self.number, self.text)(columns, 0)
                how = self.pick("IS NULL", "IS NOT NULL")
                return Expr(f"({a.ksql} {how})", f"({a.duck} {how})", "BOOLEAN")
            case 7:
                a = self.number(columns, 0)
                low = self.random.randint(-3, 5)
                return Expr(
                    f"({a.ksql} BETWEEN {low} AND {low + 4})",
                    f"coalesce({a.duck} BETWEEN {low} AND {low + 4}, false)",
                    "BOOLEAN",
                )
            case _:
                a = self.number(columns, 0)
                return Expr(f"({a.ksql} IN (1, 2, 5))", f"coalesce({a.duck} IN (1, 2, 5), false)", "BOOLEAN")
        sign = self.pick("=", "<>", "<", "<=", ">", ">=")
        if sign == "=" and self.chance(0.3):
            return Expr(f"({a.ksql} IS DISTINCT FROM {b.ksql})", f"({a.duck} IS DISTINCT FROM {b.duck})", "BOOLEAN")
        return Expr(f"({a.ksql} {sign} {b.ksql})", f"coalesce({a.duck} {sign} {b.duck}, false)", "BOOLEAN")

    def any_expr(self, columns: Any, depth: int = 2) -> Expr:
        kind = self.random.randrange(6)
        if kind == 5:
            found = self.column(columns, "DOUBLE", "DECIMAL", "BOOLEAN")
            if found is not None:
                return found
        if kind == 4:
            return self.condition(columns, depth)
        return self.number(columns, depth) if kind < 2 else self.text(columns, depth)

    # Sources.

    def records(self) -> None:
        script, rng = self.script, self.random
        rows: dict[str, list[Any]] = {name: [] for name in TOPICS}
        highest = clock = 0
        for place in range(self.size):
            topic = self.pick("S", "S", "S", "T", "T", "U", "U", "V")
            clock += self.pick(*((1, 2, 3, 10, 60) if self.for_spark else (0, 1, 1, 3, 10, 60)))
            if self.for_spark and place >= self.size - len(TOPICS):
                # On Spark a stream has its own time: that of each goes on until all windows before are closed.
                topic = list(TOPICS)[place - self.size]
                clock += 2000 * (place == self.size - len(TOPICS))
            moment = max(0, clock - (rng.randint(0, self.jitter) if self.chance(0.5) else 0))
            highest = max(highest, moment)
            is_table = topic in "UV"
            key = self.pick(*(KEYS[:-1] if is_table else KEYS))
            row: list[Any] | None = [self.cell(type_) for _, type_ in TOPICS[topic][1:]]
            if is_table and self.chance(0.2) and not self.for_spark:
                row = None
            value = None if row is None else {n.upper(): v for (n, _), v in zip(TOPICS[topic][1:], row, strict=True)}
            script.records.append((topic.lower(), key, value, moment))
            rows[topic].append((place, moment, highest, key, *(row or [None] * (len(TOPICS[topic]) - 1)), row is None))
        self.end = highest if not self.for_spark else self.script.records[-len(TOPICS)][3]
        for topic, columns in TOPICS.items():
            kind = "TABLE" if topic in "UV" else "STREAM"
            (key, key_type), *others = columns
            declared = ", ".join(f"{n} {t}" for n, t in others)
            script.text += (
                f"CREATE {kind} {topic} ({key} {key_type} {'PRIMARY ' if kind == 'TABLE' else ''}KEY, {declared}) "
                f"WITH (KAFKA_TOPIC='{topic.lower()}', VALUE_FORMAT='JSON');\n"
            )
            typed = ", ".join(f"{n} {DUCK.get(t, t)}" for n, t in columns)
            script.views.append(f"CREATE TABLE {topic}_all (i BIGINT, t BIGINT, m BIGINT, {typed}, gone BOOLEAN)")
            for row in rows[topic]:
                script.views.append(f"INSERT INTO {topic}_all VALUES ({', '.join(map(_literal, row))})")
            names = ", ".join(n for n, _ in columns)
            if kind == "STREAM":
                script.views.append(f"CREATE VIEW {topic} AS SELECT i, t, m, {names} FROM {topic}_all")
            else:
                last = f"SELECT * FROM {topic}_all QUALIFY row_number() OVER (PARTITION BY k ORDER BY i DESC) = 1"
                script.views.append(f"CREATE VIEW {topic} AS SELECT {names}, t FROM ({last}) WHERE NOT gone")

    def cell(self, type_: str) -> Any:
        if self.chance(0.15):
            return None
        match type_:
            case "INT" | "BIGINT":
                return self.random.randint(-6, 9)
            case "DOUBLE":
                return self.random.randint(-8, 20) / 4
            case "STRING":
                return self.pick(*TEXTS)
            case "BOOLEAN":
                return self.chance(0.5)
        return Decimal(self.random.randint(-300, 900)) / 100

    def name(self, what: str) -> str:
        self.names += 1
        return f"{what}{self.names}"

    # Queries.

    def projection(self, source: Rel) -> Rel:
        """Create a stream or table of a source's rows."""
        name = self.name("F")
        key = source.columns[0]
        where = self.condition(source.columns) if self.chance(0.7) else None
        outputs = [(f"{name.lower()}_c{n}", self.any_expr(source.columns)) for n in range(self.random.randint(1, 3))]
        partition = None
        if not source.is_table and self.chance(0.3):
            others = [each for each in source.columns[1:] if each[1] in DUCK and each[1] != "BOOLEAN"]
            partition = self.pick(*others) if others else None
        key_name = (partition or key)[0]
        # A copy of the key has to be marked.
        outputs = [(n, attrs.evolve(e, ksql=f"AS_VALUE({e.ksql})") if e.ksql == key_name else e) for n, e in outputs]
        selected = ", ".join([key_name, *(f"{each.ksql} AS {n}" for n, each in outputs)])
        kind = "TABLE" if source.is_table else "STREAM"
        self.script.text += f"CREATE {kind} {name} AS SELECT {selected} FROM {source.name}"
        self.script.text += f" WHERE {where.ksql}" if where else ""
        self.script.text += f" PARTITION BY {key_name};\n" if partition else ";\n"
        duck = ", ".join([key_name, *(f"{each.duck} AS {n}" for n, each in outputs)])
        hidden = "t" if source.is_table else "i, t, m"
        self.script.views.append(
            f"CREATE VIEW {name} AS SELECT {hidden}, {duck} FROM {source.name}"
            + (f" WHERE {where.duck}" if where else "")
        )
        columns = ((partition or key), *((n, each.type) for n, each in outputs))
        query = f"SELECT {', '.join(n for n, _ in columns)}" + (", t" if not source.is_table else "") + f" FROM {name}"
        values = tuple(n for n, _ in columns[1:])
        self.script.checks.append(Check(name, (key_name,), values, query, source.is_table))
        return Rel(name, source.is_table, columns, source.ordered and not self.for_spark)

    def stream_join(self, left: Rel, right: Rel) -> Rel:
        """Join two streams."""
        name = self.name("J")
        kind = self.pick("INNER", "LEFT", "FULL")
        if left.name == right.name or self.for_spark:
            kind = "INNER"
        before, after = self.pick((20, 20), (0, 30), (100, 100), (15, 0))
        within = f"{before} MILLISECONDS" if before == after else f"({before} MILLISECONDS, {after} MILLISECONDS)"
        on = f"l.k = r.k AND r.t BETWEEN l.t - {before} AND l.t + {after}"
        columns = [("la", left, "l"), ("ra", right, "r")]
        pairs = []
        for alias, rel, side in columns:
            if len(rel.columns) > 1:
                source, type_ = self.pick(*rel.columns[1:])
                pairs.append((alias, f"{side}.{source}", type_))
        selected = ", ".join(f"{expr} AS {alias}" for alias, expr, _ in pairs)
        key = "ROWKEY AS k" if kind == "FULL" else "l.k AS k"
        self.script.text += (
            f"CREATE STREAM {name} AS SELECT {key}, {selected} FROM {left.name} l {kind} JOIN {right.name} r "
            f"WITHIN {within} ON l.k = r.k;\n"
        )
        parts = [
            f"SELECT greatest(l.i, r.i) AS i, greatest(l.t, r.t) AS t, greatest(l.m, r.m) AS m, l.k AS k, {selected} "
            f"FROM {left.name} l JOIN {right.name} r ON {on}"
        ]
        # A row without an earlier partner is emitted at once.
        for side, other, wanted in (("l", "r", ("LEFT", "FULL")), ("r", "l", ("FULL",))):
            if kind not in wanted:
                continue
            rel, that = (left, right) if side == "l" else (right, left)
            # Of the rows of one record the left one comes first.
            earlier = "<" if side == "l" else "<="
            shown = ", ".join(
                f"{expr} AS {alias}" if expr.startswith(side) else f"NULL::{DUCK.get(type_, type_)} AS {alias}"
                for alias, expr, type_ in pairs
            )
            parts.append(
                f"SELECT {side}.i, {side}.t, {side}.m, {side}.k AS k, {shown} FROM {rel.name} {side} WHERE {side}.k IS "
                "NOT NULL AND NOT EXISTS "
                f"(SELECT 1 FROM {that.name} {other} WHERE {on} AND {other}.i {earlier} {side}.i)"
            )
        self.script.views.append(f"CREATE VIEW {name} AS {' UNION ALL '.join(parts)}")
        names = tuple(alias for alias, _, _ in pairs)
        query = f"SELECT k, {', '.join(names)}, t FROM {name}"
        self.script.checks.append(Check(name, ("k",), names, query, is_table=False))
        return Rel(name, False, (("k", "STRING"), *((alias, type_) for alias, _, type_ in pairs)), ordered=False)

    def table_join(self, left: Rel, right: str) -> Rel:
        """Join a stream with the rows that a table has at that moment."""
        name, kind = self.name("E"), self.pick("INNER", "LEFT")
        mine, other = self.pick(*left.columns[1:]), self.pick(*TOPICS[right][1:])
        self.script.text += (
            f"CREATE STREAM {name} AS SELECT l.k AS k, l.{mine[0]} AS la, r.{other[0]} AS ra FROM {left.name} l "
            f"{kind} JOIN {right} r ON l.k = r.k;\n"
        )
        keeps = "" if kind == "LEFT" else " AND r.i IS NOT NULL AND NOT r.gone"
        # A stream row without a key joins nothing.
        self.script.views.append(
            f"CREATE VIEW {name} AS SELECT l.i, l.t, l.m, l.k AS k, l.{mine[0]} AS la, r.{other[0]} AS ra FROM "
            f"{left.name} l ASOF LEFT JOIN {right}_all r ON l.k = r.k AND l.i >= r.i WHERE true{keeps}"
        )
        self.script.checks.append(Check(name, ("k",), ("la", "ra"), f"SELECT k, la, ra, t FROM {name}", is_table=False))
        return Rel(
            name, False, (("k", "STRING"), ("la", mine[1]), ("ra", other[1])), left.ordered and not self.for_spark
        )

    def tables_join(self) -> Rel:
        """Join two tables, by their keys or by a column of the left one."""
        name = self.name("B")
        foreign = self.chance(0.4) and not self.for_spark
        kind = self.pick("INNER", "LEFT") if foreign else self.pick("INNER", "LEFT", "FULL")
        on = "l.r = r.k" if foreign else "l.k = r.k"
        key = "ROWKEY AS k" if kind == "FULL" else "l.k AS k"
        self.script.text += (
            f"CREATE TABLE {name} AS SELECT {key}, l.n AS ln, l.r AS lr, r.n AS rn, r.w AS rw "
            f"FROM U l {kind} JOIN V r ON {on};\n"
        )
        key = "coalesce(l.k, r.k) AS k" if kind == "FULL" else "l.k AS k"
        self.script.views.append(
            f"CREATE VIEW {name} AS SELECT {key}, l.n AS ln, l.r AS lr, r.n AS rn, r.w AS rw, 0 AS t "
            f"FROM U l {kind} JOIN V r ON {on}"
        )
        values = ("ln", "lr", "rn", "rw")
        self.script.checks.append(Check(name, ("k",), values, f"SELECT k, {', '.join(values)} FROM {name}"))
        return Rel(name, True, (("k", "STRING"), ("ln", "INT"), ("lr", "STRING"), ("rn", "INT"), ("rw", "BIGINT")))

    def aggregate(self, source: Rel, *, ordered: bool) -> tuple[str, str, str, bool]:
        """Return an aggregate in both languages, its type, and whether it is a list without an order."""
        columns = source.columns
        number = self.number(columns, 1)
        decimal = self.column(columns, "DOUBLE", "DECIMAL")
        value = decimal if decimal is not None and self.chance(0.3) else number
        text = self.text(columns, 1)
        either = self.pick(number, text)
        options = [
            (f"SUM({value.ksql})", f"coalesce(sum({value.duck}), 0)", value.type, False),
            (f"COUNT({either.ksql})", f"count({either.duck})", "BIGINT", False),
            (f"AVG({value.ksql})", f"coalesce(avg({value.duck}::DOUBLE), 0.0)", "DOUBLE", False),
            (
                f"STDDEV_SAMP({number.ksql})",
                f"CASE WHEN count({number.duck}) < 2 THEN 0.0 ELSE var_samp({number.duck}) END",
                "VARIANCE",
                False,
            ),
            (f"COLLECT_LIST({either.ksql})", f"coalesce(list({either.duck}), [])", "LIST", True),
            (f"HISTOGRAM({text.ksql})", f"coalesce(histogram({text.duck}), MAP {{}})", "MAP", False),
        ]
        if not source.is_table:
            options += [
                (f"MIN({either.ksql})", f"min({either.duck})", either.type, False),
                (f"MAX({either.ksql})", f"max({either.duck})", either.type, False),
                (f"COUNT_DISTINCT({either.ksql})", f"count(DISTINCT {either.duck})", "BIGINT", False),
                (f"COLLECT_SET({either.ksql})", f"list(DISTINCT {either.duck})", "LIST", True),
                (f"TOPK({number.ksql}, 3)", f"coalesce(list({number.duck} ORDER BY {number.duck} DESC) FILTER "
                 f"({number.duck} IS NOT NULL), [])[:3]", "LIST", False),
                (f"TOPKDISTINCT({text.ksql}, 2)", f"list_reverse_sort(coalesce(list(DISTINCT {text.duck}) FILTER "
                 f"({text.duck} IS NOT NULL), []))[:2]", "LIST", False),
            ]  # fmt: skip
            if ordered:
                options += [
                    (f"LATEST_BY_OFFSET({either.ksql})", f"arg_max({either.duck}, i) FILTER ({either.duck} IS NOT "
                     "NULL)", either.type, False),
                    (f"EARLIEST_BY_OFFSET({either.ksql})", f"arg_min({either.duck}, i) FILTER ({either.duck} IS NOT "
                     "NULL)", either.type, False),
                ]  # fmt: skip
        ksql, duck, type_, unsorted = self.pick(*options)
        if ksql.startswith(("SUM(", "COUNT(")) and self.chance(0.4):
            kind = self.pick("DISTINCT", "FILTER")
            if kind == "DISTINCT":
                ksql, duck = (
                    ksql.replace("(", "(DISTINCT ", 1),
                    re.sub(r"(sum|count)\(", r"\1(DISTINCT ", duck, count=1),
                )
            else:
                kept = self.condition(columns, 1)
                ksql = f"{ksql} FILTER (WHERE {kept.ksql})"
                inner = duck.removeprefix("coalesce(").removesuffix(", 0)")
                duck = f"coalesce({inner} FILTER (WHERE {kept.duck}), 0)"
        return ksql, duck, type_, unsorted

    def grouping(self, source: Rel) -> Rel | None:
        """Create a table of aggregates."""
        script, name = self.script, self.name("G")
        groups = [self.pick(*[Expr(n, n, t) for n, t in source.columns if t in ("STRING", "INT", "BIGINT")])]
        if self.chance(0.3):
            more = self.pick(self.number, self.text)(source.columns, 1)
            if more.ksql != groups[0].ksql and not more.ksql.isdigit() and more.ksql != "'b'":
                groups.append(more)
        where = self.condition(source.columns) if self.chance(0.4) else None
        window, size, advance, grace, kind = "", 0, 0, None, None
        if not source.is_table and self.chance(0.6):
            kind = self.pick("TUMBLING", "HOPPING", "SESSION")
            size = self.pick(10, 64, 300)
            advance = size if kind == "TUMBLING" else self.pick(size, (size + 1) // 2, size // 3 + 1)
            grace = self.pick(None, 0, 30, 400)
            inner = f"SIZE {size} MILLISECONDS" if kind != "SESSION" else f"{size} MILLISECONDS"
            inner += f", ADVANCE BY {advance} MILLISECONDS" if kind == "HOPPING" else ""
            inner += "" if grace is None else f", GRACE PERIOD {grace} MILLISECONDS"
            window = f" WINDOW {kind} ({inner})"
        final = kind is not None and self.chance(0.3)
        late = grace if grace is not None else 0 if final else 86_400_000 - size
        if kind == "SESSION" and late < 1000 and self.jitter:
            # The sessions of rows that come late depend on the order in which they arrive.
            return None
        # The rows of sessions that merge do not come in the order of arrival.
        ordered = source.ordered and kind != "SESSION"
        aggregates = [self.aggregate(source, ordered=ordered) for _ in range(self.random.randint(1, 3))]
        having = None
        if self.chance(0.3):
            number = self.random.randint(0, 4)
            having = Expr(f"COUNT(*) > {number}", f"count(*) > {number}", "BOOLEAN")
        # Names that no source has: in DuckDB, GROUP BY prefers columns of the source.
        keys = [f"{name.lower()}_k{n}" for n in range(len(groups))]
        cnt, outs = f"{name.lower()}_n", [f"{name.lower()}_v{n}" for n in range(len(aggregates))]
        values = [cnt, *outs]
        selected = ", ".join(
            [
                *(f"{g.ksql} AS {n}" for g, n in zip(groups, keys, strict=True)),
                f"COUNT(*) AS {cnt}",
                *(f"{each[0]} AS {out}" for out, each in zip(outs, aggregates, strict=True)),
            ]
        )
        by = ", ".join(each.ksql for each in groups)
        options = " WITH (KEY_FORMAT='JSON')" if len(groups) > 1 else ""
        script.text += f"CREATE TABLE {name}{options} AS SELECT {selected} FROM {source.name}{window}"
        script.text += f" WHERE {where.ksql}" if where else ""
        script.text += f" GROUP BY {by}" + (f" HAVING {having.ksql}" if having else "")
        script.text += f" EMIT {'FINAL' if final else 'CHANGES'};\n"
        # DuckDB: the rows that count, with their windows.
        grouped = ", ".join(f"{each.duck} AS {key}" for each, key in zip(groups, keys, strict=True))
        inner = f"SELECT *, {grouped} FROM {source.name}"
        inner += f" WHERE {where.duck}" if where else ""
        rows = f"SELECT * FROM ({inner}) WHERE {' AND '.join(f'{n} IS NOT NULL' for n in keys)}"
        partition = ", ".join(keys)
        if kind in ("TUMBLING", "HOPPING"):
            # As many windows as hold a timestamp; those that a row comes too late for are left out.
            rows = (
                f"SELECT *, ws + {size} AS we FROM (SELECT *, unnest(range(greatest(0, t - {size} + {advance}) // "
                f"{advance} * {advance}, t + 1, {advance})) AS ws FROM ({rows})) WHERE ws + {size} + {late} > m"
            )
        elif kind == "SESSION":
            fresh = f"t - lag(t) OVER (PARTITION BY {partition} ORDER BY t, i) > {size}"
            rows = f"SELECT *, coalesce({fresh}, true)::INT AS fresh FROM ({rows})"
            rows = f"SELECT *, sum(fresh) OVER (PARTITION BY {partition} ORDER BY t, i) AS session FROM ({rows})"
            rows = (
                f"SELECT *, min(t) OVER (PARTITION BY {partition}, session) AS ws, "
                f"max(t) OVER (PARTITION BY {partition}, session) AS we FROM ({rows})"
            )
        bounds = ", ws, we" if kind else ""
        query = f"SELECT {partition}, count(*) AS {cnt}, "
        query += ", ".join(f"{each[1]} AS {out}" for out, each in zip(outs, aggregates, strict=True))
        query += f"{bounds} FROM ({rows}) GROUP BY {partition}{bounds}"
        closed = []
        if having:
            closed.append(having.duck)
        if final:
            end = "we" if kind != "SESSION" else f"we + {size} + 1"
            closed.append(f"{end} + {late} <= {self.end}")
        query += f" HAVING {' AND '.join(closed)}" if closed else ""
        if kind and self.jitter > late:
            script.drops = True
        unsorted = frozenset(out for out, each in zip(outs, aggregates, strict=True) if each[3])
        counted = cnt if source.is_table else None
        script.checks.append(Check(name, tuple(keys), tuple(values), query, True, kind is not None, unsorted, counted))
        if kind or len(keys) > 1:
            return None
        self.script.views.append(f"CREATE VIEW {name} AS SELECT *, 0 AS t FROM ({query})")
        columns = [(keys[0], groups[0].type), (cnt, "BIGINT")]
        plain = ("INT", "BIGINT", "STRING")
        columns += [(out, each[2]) for out, each in zip(outs, aggregates, strict=True) if each[2] in plain]
        return Rel(name, True, tuple(columns))

    def make(self) -> RandomScript:
        self.records()
        streams = [Rel("S", False, TOPICS["S"]), Rel("T", False, TOPICS["T"])]
        tables = [Rel("U", True, TOPICS["U"]), Rel("V", True, TOPICS["V"])]
        for _ in range(self.random.randint(1, 3)):
            match self.random.randrange(10):
                case 0:
                    source = self.pick(*streams)
                    made = self.projection(source)
                    if made.columns[0][1] == "STRING" and made.columns[0][0] == "k":
                        streams.append(made)
                case 1:
                    tables.append(self.projection(self.pick(*tables)))
                case 2:
                    named = [each for each in streams if each.columns[0][0] == "k" and each.ordered]
                    left, right = self.pick(*named), self.pick(*named)
                    if left.name != right.name:
                        streams.append(self.stream_join(left, right))
                case 3:
                    left = self.pick(*[each for each in streams if each.columns[0][0] == "k"])
                    streams.append(self.table_join(left, self.pick("U", "V")))
                case 4:
                    tables.append(self.tables_join())
                case 5:
                    self.grouping(self.pick(*tables))
                case _:
                    found = self.grouping(self.pick(*streams))
                    if found is not None and self.chance(0.6):
                        self.grouping(found) if self.chance(0.6) else self.projection(found)
        if not self.script.checks:
            self.projection(streams[0])
        return self.script


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return str(value)


def random_script(seed: int, size: int = 60, *, for_spark: bool = False) -> RandomScript:
    """Return the script of a seed."""
    return _Maker(seed, size, for_spark=for_spark).make()


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.9g}") + 0.0
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return value


def _sorted(values: Any) -> Any:
    return sorted(values, key=lambda each: (each is None, str(each)))


def expected(script: RandomScript, check: Check, connection: duckdb.DuckDBPyConnection) -> Any:
    """Return what an output should hold, after DuckDB."""
    found = connection.sql(check.query)
    names = found.columns
    rows = []
    for each in found.fetchall():
        cells = {name: _plain(value) for name, value in zip(names, each, strict=True)}
        for name in check.unsorted:
            if isinstance(cells[name], list):
                cells[name] = _sorted(cells[name])
        rows.append(cells)
    if not check.is_table:
        return Counter(
            (repr(tuple(row[n] for n in check.keys)), repr([row[n] for n in check.values]), row["t"]) for row in rows
        )
    result = {}
    for row in rows:
        if check.counted and not row[check.counted]:
            continue
        key = tuple(row[n] for n in check.keys)
        place = (key, (row["ws"], row["we"])) if check.is_windowed else key
        result[place] = {n: row[n] for n in check.values}
    return result


def actual(check: Check, records: Any) -> Any:
    """Return what the records of an output hold."""
    rows: dict[Any, Any] = {}
    counted: Counter[Any] = Counter()
    for record in records:
        key = record.key
        key = tuple(key.values()) if isinstance(key, dict) else (key,)
        value = record.value
        if value is not None:
            cells = {name: _plain(value[name.upper()]) for name in check.values}
            for name in check.unsorted:
                if isinstance(cells[name], list):
                    cells[name] = _sorted(cells[name])
            value = cells
        if not check.is_table:
            counted[repr(key), repr(list((value or {}).values())), record.timestamp] += 1
            continue
        place = (key, record.window) if check.is_windowed else key
        rows.pop(place, None)
        if value is not None and not (check.counted and not value[check.counted]):
            rows[place] = value
    return rows if check.is_table else counted


def differences(script: RandomScript, records: Any) -> list[str]:
    """Return where the records of outputs differ from DuckDB's rows."""
    found = []
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        for view in script.views:
            connection.execute(view)
        for check in script.checks:
            want, have = expected(script, check, connection), actual(check, records[check.name])
            if want != have:
                places = [each for each in {**want, **have} if want.get(each) != have.get(each)]
                lines = [f"    {each}: DuckDB {want.get(each)}, script {have.get(each)}" for each in places[:4]]
                found.append("\n".join([f"  {check.name} differs in {len(places)} of {len(want)} places", *lines]))
    return found


def run(script: RandomScript, **options: Any) -> Any:
    """Return the records of each output of a script."""
    result = sql.script(script.text, topics=script.records, **options)
    return {check.name: result[check.name] for check in script.checks}


def by_key(records: Any) -> Any:
    """Return the records of each key in their order."""
    found: dict[Any, list[Any]] = {}
    for record in records:
        found.setdefault(repr((record.key, record.window)), []).append((record.value, record.timestamp))
    return found


def verify(seed: int, size: int = 60) -> list[str]:
    """Run the script of a seed record by record and in batches. Returns what differs."""
    script = random_script(seed, size)
    single = run(script)
    found = differences(script, single)
    rows_per_batch = random.Random(seed).choice((2, 7, size))
    batched = run(script, rows_per_batch=rows_per_batch)
    for name, records in single.items():
        if by_key(records) != by_key(batched[name]):
            found.append(f"  {name} differs with rows_per_batch={rows_per_batch}")
    return found


def verify_restart(seed: int, folder: Path, size: int = 60) -> list[str]:
    """Run the script of a seed with a stop in between. Returns what differs from a run without one."""
    script = random_script(seed, size)
    rng = random.Random(seed)
    single, rows_per_batch = run(script), rng.choice((1, 3, 11))
    stop = rng.randrange(1, size)
    records: dict[str, list[Any]] = {check.name: [] for check in script.checks}
    for end in (stop, size):
        result = sql.script(
            script.text, topics=script.records[:end], checkpoint=str(folder / "state"), rows_per_batch=rows_per_batch
        )
        for name, found in records.items():
            found += result[name]
    return [
        f"  {name} differs after a stop at record {stop} with rows_per_batch={rows_per_batch}"
        for name, found in records.items()
        if by_key(found) != by_key(single[name])
    ]


def _parts(script: RandomScript, folder: Path, cuts: Sequence[int]) -> dict[str, str]:
    """Write the records of each topic that a script reads as files, cut at these places; returns their columns."""
    found = {}
    bounds = [0, *cuts, len(script.records)]
    for topic, columns in TOPICS.items():
        if not re.search(rf"(FROM|JOIN) {topic}\b", script.text):
            continue
        (folder / topic).mkdir(parents=True)
        fields = [(name, _ARROW[type_.partition("(")[0]]) for name, type_ in columns]
        for number, (start, end) in enumerate(pairwise(bounds)):
            rows = [
                {columns[0][0]: key, **{each.lower(): cell for each, cell in value.items()}, "rowtime": moment}
                for name, key, value, moment in script.records[start:end]
                if name == topic.lower()
            ]
            path = folder / topic / f"{number}.parquet"
            pq.write_table(pa.Table.from_pylist(rows, pa.schema([*fields, ("rowtime", pa.int64())])), path)
            # Spark reads files in the order of these times.
            os.utime(path, (1_000_000 + number, 1_000_000 + number))
        found[topic] = ", ".join([*(f"{name} {type_}" for name, type_ in columns), "rowtime BIGINT"])
    return found


def verify_columns(seed: int, folder: Path, size: int = 60) -> list[str]:
    """Run the script of a seed over columns, whose expressions DuckDB computes: what differs from a run over rows."""
    script = random_script(seed, size, for_spark=True)
    files = {topic: folder / topic / "0.parquet" for topic in _parts(script, folder, ())}
    tables = {topic: pq.read_table(path) for topic, path in files.items()}
    rows = {topic: table.to_pylist() for topic, table in tables.items()}
    expected, rows_per_batch = sql.script(script.text, rows), random.Random(seed).choice((1, 3, size))
    found = []
    for how, given in (("files", files), ("tables", tables)):
        result = sql.script(script.text, given, rows_per_batch=rows_per_batch)
        if any(by_key(result[each.name]) != by_key(expected[each.name]) for each in script.checks):
            found.append(f"  over {how} with rows_per_batch={rows_per_batch}")
    return found


def verify_on_spark(seed: int, session: Any, folder: Path, size: int = 60) -> list[str]:
    """Run the script of a seed on Spark: what differs.

    It runs over batch DataFrames with one to four key groups, and over streams with a restart.
    """
    script = random_script(seed, size, for_spark=True)
    cut = random.Random(seed).randrange(1, size)
    partitions = session.conf.get(_PARTITIONS)
    session.conf.set(_PARTITIONS, str(1 + seed % 4))
    try:
        kinds = _parts(script, folder / "batch", ())
        frames = {
            topic: session.read.schema(columns).parquet(str(folder / "batch" / topic))
            for topic, columns in kinds.items()
        }
        result = sql.script(script.text, frames)
    finally:
        session.conf.set(_PARTITIONS, partitions)
    found = differences(script, {check.name: result[check.name] for check in script.checks})
    records: dict[str, list[Any]] = {check.name: [] for check in script.checks}
    _parts(script, folder / "all", (cut,))
    for number in range(2):
        streams = {}
        for topic, columns in kinds.items():
            where = folder / "in" / topic
            where.mkdir(parents=True, exist_ok=True)
            (folder / "all" / topic / f"{number}.parquet").rename(where / f"{number}.parquet")
            streams[topic] = session.readStream.schema(columns).parquet(str(where))
        result = sql.script(script.text, streams, checkpoint=str(folder / "state"))
        for name, written in records.items():
            written += result[name]
    return found + [f"in streams, stopped at record {cut}: {each}" for each in differences(script, records)]


def stored_on_spark(
    seed: int, session: Any, folder: Path, size: int = 60, kill_at: int | None = None
) -> dict[str, list[Any]]:
    """Run the script of a seed on Spark in batches of a dozen records. See `stored`."""
    script = random_script(seed, size, for_spark=True)
    kinds = _parts(script, folder / "in", range(12, size, 12)) if not (folder / "in").exists() else None
    kinds = kinds or _parts(script, folder / "again", ())
    streams = {
        topic: session.readStream.schema(columns).option("maxFilesPerTrigger", 1).parquet(str(folder / "in" / topic))
        for topic, columns in kinds.items()
    }
    return _rows_of_tables(script, folder, kill_at, streams=streams)


def stored(seed: int, folder: Path, size: int = 60, kill_at: int | None = None) -> dict[str, list[Any]]:
    """Run the script of a seed with a checkpoint. Returns the rows of its tables, from their states.

    Args:
        seed: The seed.
        folder: Folder of the checkpoint and of the tables.
        size: Records of the script.
        kill_at: Number of the batch after which the process is killed.
    """
    script = random_script(seed, size)
    return _rows_of_tables(script, folder, kill_at, topics=script.records, rows_per_batch=7)


def _rows_of_tables(script: RandomScript, folder: Path, kill_at: int | None, **given: Any) -> dict[str, list[Any]]:
    def on_progress(progress: Any) -> None:
        if progress.batch_id == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    result = sql.script(
        script.text,
        checkpoint=str(folder / "state"),
        tables=str(folder / "tables"),
        on_progress=on_progress,
        **given,
    )
    assert result.run is not None
    names = [check.name for check in script.checks if check.is_table]
    return {
        name: sorted(map(repr, result.run.tables.sql(f'SELECT * FROM "{name.lower()}"').to_pylist())) for name in names
    }


def main() -> int:
    """Run scripts of many seeds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scripts", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--size", type=int, default=60, help="records of a script")
    parser.add_argument("--failures", type=int, default=1, help="stop after so many")
    parser.add_argument("--spark", action="store_true", help="run them on Spark, in --folder")
    parser.add_argument("--columns", action="store_true", help="run them over Parquet files, in --folder")
    parser.add_argument("--kill-at", type=int, help="run the first seed in --folder, and die after this batch")
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    session = keyed.spark_session("scripts", master="local[2]", parallelism=2) if given.spark else None
    if given.kill_at is not None:
        if session is None:
            stored(given.seed, given.folder, given.size, given.kill_at)
        else:
            stored_on_spark(given.seed, session, given.folder, given.size, given.kill_at)
        return 1
    began, failed, done = time.process_time(), 0, 0
    for seed in range(given.seed, given.seed + given.scripts):
        done += 1
        try:
            if given.columns:
                found = verify_columns(seed, given.folder / str(seed), given.size)
            elif session is None:
                found = verify(seed, given.size)
            else:
                found = verify_on_spark(seed, session, given.folder / str(seed), given.size)
        except Exception as error:  # noqa: BLE001 - the seed is what counts
            found = [f"  {type(error).__name__}: {error}"]
        if found:
            failed += 1
            print(f"seed {seed}:\n{random_script(seed, given.size, for_spark=given.spark or given.columns).text}")
            print("\n".join(found), flush=True)
            if failed >= given.failures:
                break
    print(f"{done} scripts, {failed} that differ, {time.process_time() - began:.0f} CPU-seconds")
    return min(1, failed)


if __name__ == "__main__":
    sys.exit(main())

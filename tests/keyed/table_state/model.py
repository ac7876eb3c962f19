"""A table state in a plain dictionary, and a vectorized function that carries out a script on the real one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import keyed

EPOCH = datetime(2024, 1, 1, tzinfo=UTC)
TYPES: dict[str, Any] = {
    "k": pa.string(),
    "n": pa.int64(),
    "w": pa.int64(),
    "total": pa.int64(),
    "weight": pa.float64(),
    "low": pa.int32(),
    "high": pa.string(),
    "price": pa.decimal128(10, 2),
    "at": pa.timestamp("us", "UTC"),
    "any": pa.bool_(),
    "tags": pa.list_(pa.string()),
}
SCHEMA = pa.schema(TYPES)
KEY = ("k", "w")
HOW: dict[str, Any] = {
    "n": "sum",
    "total": "sum",
    "weight": "sum",
    "low": "min",
    "high": "max",
    "price": "sum",
    "at": "first",
    "any": "max",
    "tags": "last",
}
OPERATORS = {
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    "==": lambda a, b: a == b,
    ">=": lambda a, b: a >= b,
    ">": lambda a, b: a > b,
}
Rows = dict[tuple[Any, ...], dict[str, Any]]


def row(k: str | None, w: int | None, number: int | None) -> dict[str, Any]:
    """A row whose values follow from one number; ``None`` makes them null."""
    if number is None:
        return dict.fromkeys(SCHEMA.names) | {"k": k, "w": w}
    return {
        "k": k,
        "n": 1,
        "w": w,
        "total": number * 10**12,
        "weight": number / 7,
        "low": number % 5,
        "high": chr(ord("a") + number % 7) * (number % 3),
        "price": Decimal(number) / 4,
        "at": EPOCH + timedelta(milliseconds=number),
        "any": number % 2 == 0,
        "tags": [str(number)] * (number % 3),
    }


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def combine(how: str, old: Any, new: Any) -> Any:
    if how in ("first", "last"):
        return old if how == "first" else new
    if old is None or new is None:
        return new if old is None else old
    return old + new if how == "sum" else (min if how == "min" else max)(old, new)


class Model:
    """The table in a dictionary."""

    def __init__(self) -> None:
        self.rows: Rows = {}

    def call(self, call: str, *arguments: Any) -> Any:
        return getattr(self, call)(*arguments)

    def merge(self, rows: list[dict[str, Any]]) -> None:
        for new in rows:
            key = (new["k"], new["w"])
            old = self.rows.get(key)
            self.rows[key] = new if old is None else {**old, **{c: combine(h, old[c], new[c]) for c, h in HOW.items()}}

    def upsert(self, rows: list[dict[str, Any]]) -> None:
        self.rows.update({(new["k"], new["w"]): new for new in rows})

    def delete(self, keys: list[tuple[Any, ...]]) -> None:
        for key in keys:
            self.rows.pop(key, None)

    def take(self, predicate: Any) -> list[dict[str, Any]]:
        taken = self.scan(predicate)
        self.delete([(found["k"], found["w"]) for found in taken])
        return taken

    def lookup(self, keys: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
        return [self.rows[key] for key in keys if key in self.rows]

    def scan(self, predicate: Any = None) -> list[dict[str, Any]]:
        comparisons = [] if predicate is None else [predicate] if isinstance(predicate, tuple) else predicate
        return [
            found
            for found in self.rows.values()
            if all(found[c] is not None and OPERATORS[op](found[c], value) for c, op, value in comparisons)
        ]

    def num_rows(self) -> int:
        return len(self.rows)

    def clear(self) -> None:
        self.rows.clear()


def expression(comparisons: list[tuple[str, str, Any]]) -> pc.Expression:
    """A predicate as an expression of Arrow."""
    made: Any = None
    for column, operator, value in comparisons:
        scalar = pa.scalar(value, SCHEMA.field(column).type)
        term = OPERATORS[operator](pc.field(column), scalar)
        made = term if made is None else made & term
    return made


class Program(keyed.vectorized.VectorizedFunction):
    """Carries out what stands in ``script`` and keeps what the calls gave."""

    rows = keyed.vectorized.TableState(SCHEMA, key=KEY)

    def __init__(self) -> None:
        self.script: list[tuple[Any, ...]] = []
        self.results: list[Any] = []

    def process_batch(self, table, ctx):
        self.results.clear()
        for call, *arguments in self.script:
            if call == "fail":
                raise ZeroDivisionError
            self.results.append(self.call(call, *arguments))

    def call(self, call: str, *arguments: Any) -> Any:
        state = self.rows
        if call == "merge":
            return state.merge(table(*arguments), HOW)
        if call == "upsert":
            return state.upsert(table(*arguments))
        if call == "num_rows":
            return state.num_rows
        if call == "clear":
            return state.clear()
        if call in ("delete", "lookup"):
            keys = pa.table(
                {"w": pa.array([w for _, w in arguments[0]], pa.int64()), "k": [k for k, _ in arguments[0]]}
            )
            result = getattr(state, call)(keys.cast(pa.schema([SCHEMA.field("w"), SCHEMA.field("k")])))
        else:
            predicate, as_expression = arguments
            if as_expression and predicate is not None:
                predicate = expression([predicate] if isinstance(predicate, tuple) else predicate)
            result = getattr(state, call)(predicate)
        return None if result is None else result.to_pylist()


def normal(result: Any, *, ordered: bool) -> Any:
    """A result in a form in which equal ones compare equal."""
    if not isinstance(result, list) or ordered:
        return result
    return sorted(result, key=lambda found: repr((found["k"], found["w"])))

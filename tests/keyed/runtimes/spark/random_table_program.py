"""A vectorized function that does what its rows say, so that one query on Spark runs many random functions."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from keyed import OutputTag, StateTtl, TimeDomain
from keyed.vectorized import TIMESTAMP_COLUMN, TableState, VectorizedFunction

#: The published types of its functions take no plain values.
pc: Any = pyarrow.compute

SIDE = OutputTag("side", "k string, slot bigint, at timestamp")
INPUT = "k string, t bigint, call string, number bigint, note string"
OUTPUT = "k string, slot bigint, n bigint, total double, least string, what string"
CALLS = ("merge", "upsert", "delete", "take", "lookup", "scan", "fade", "side", "drop")


class Scripted(VectorizedFunction):
    """Rows with one call are one operation on the state of all their keys; what it gives is emitted."""

    table = TableState("k string, slot bigint, n bigint, total double, least string", key=("k", "slot"))
    fading = TableState("k string, n bigint", key="k", ttl=StateTtl(milliseconds=40, time_domain=TimeDomain.EVENT_TIME))

    def process_batch(self, table: Any, ctx: Any) -> None:
        late = table.filter(ctx.late)
        ctx.output(SIDE, _side(late))
        for call in CALLS:
            rows = table.filter(pc.equal(table["call"], call))
            if rows.num_rows:
                getattr(self, call)(_state_rows(rows), rows, ctx)

    def on_watermark(self, watermark: int, ctx: Any) -> None:
        done = self.table.take([("slot", "<=", max(watermark, 0) // 10 - 5), ("n", ">=", 2)])
        ctx.emit(_shown(done, "done").append_column(TIMESTAMP_COLUMN, pa.array(done["slot"].to_numpy() * 10)))

    def merge(self, state: Any, rows: Any, ctx: Any) -> None:
        self.table.merge(state, {"n": "sum", "total": "sum", "least": "min"})

    def upsert(self, state: Any, rows: Any, ctx: Any) -> None:
        self.table.upsert(state)

    def delete(self, state: Any, rows: Any, ctx: Any) -> None:
        self.table.delete(state.select(["k", "slot"]))

    def take(self, state: Any, rows: Any, ctx: Any) -> None:
        # Which keys share a group depends on their number, so only keys with rows are touched.
        ctx.emit(_shown(self.table.take((pc.field("total") > 5.0) & pc.field("k").isin(state["k"].unique())), "taken"))

    def lookup(self, state: Any, rows: Any, ctx: Any) -> None:
        ctx.emit(_shown(self.table.lookup(state.select(["k", "slot"])), "found"))

    def scan(self, state: Any, rows: Any, ctx: Any) -> None:
        held = self.table.scan()
        ctx.emit(_shown(held.filter(pc.is_in(held["k"], state["k"].unique())), "scanned"))

    def fade(self, state: Any, rows: Any, ctx: Any) -> None:
        ctx.emit(_shown(_wide(self.fading.lookup(state.select(["k"]))), "faded"))
        written = pa.table({"k": rows["k"], "n": rows["number"], TIMESTAMP_COLUMN: rows[TIMESTAMP_COLUMN]})
        self.fading.upsert(written)

    def side(self, state: Any, rows: Any, ctx: Any) -> None:
        ctx.output(SIDE, _side(rows))

    def drop(self, state: Any, rows: Any, ctx: Any) -> None:
        ctx.drop(rows.num_rows)


def _state_rows(rows: Any) -> Any:
    numbers = rows["number"].to_numpy()
    return pa.table(
        {
            "k": rows["k"],
            "slot": pa.array(rows["t"].to_numpy() // 10),
            "n": pa.array(np.where(numbers % 3, 1, 0)),
            "total": pa.array(numbers / 7, mask=numbers % 5 == 0),
            "least": rows["note"],
        }
    )


def _wide(rows: Any) -> Any:
    nulls: dict[str, Any] = {"slot": pa.int64(), "total": pa.float64(), "least": pa.string()}
    for name, type_ in nulls.items():
        rows = rows.append_column(name, pa.nulls(rows.num_rows, type_))
    return rows


def _shown(rows: Any, what: str) -> Any:
    return rows.append_column("what", pa.repeat(what, rows.num_rows))


def _side(rows: Any) -> Any:
    at = rows["t"].cast(pa.timestamp("ms", "UTC"))
    return pa.table({"k": rows["k"], "slot": rows["number"], "at": at})


def batches(seed: int, count: int, size: int) -> list[Any]:
    """Random tables of ``INPUT``, in mild disorder. The same seed makes the same rows."""
    chance = Random(seed)
    made = []
    for batch in range(count):
        rows = []
        for position in range(batch * size, (batch + 1) * size):
            key = f"k{chance.randrange(12)}"
            time = max(0, position + chance.randint(-25, 5))
            note = chance.choice([None, "", "x", "long note", "é"])
            rows.append((key, time, chance.choice(CALLS), chance.randrange(1, 60), note))
        names = ["k", "t", "call", "number", "note"]
        types = [pa.string(), pa.int64(), pa.string(), pa.int64(), pa.string()]
        columns = [pa.array(column, type_) for column, type_ in zip(zip(*rows, strict=True), types, strict=True)]
        made.append(pa.table(columns, names=names))
    return made

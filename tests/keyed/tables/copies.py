"""Copies of state tables: jobs with every kind of state, and what a topic and a table hold."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pytest

import keyed
from keyed import windows as w
from keyed.formats.json_writer import as_json
from keyed.tables import StateTables, open_tables
from keyed.topics import UpsertTopic
from keyed.vectorized import TableState, VectorizedFunction
from tests.keyed.changelog.kafka import topics
from tests.support.tables import rows_with_dicts
from tests.support.waiting import until

_SUMS: dict[str, Any] = {"k": pa.string(), "day": pa.date32(), "n": pa.int64(), "at": pa.timestamp("ms")}
SUMS = pa.schema(_SUMS)
AT = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)


@attrs.frozen
class Sale:
    n: int
    at: dt.datetime
    price: Decimal
    raw: bytes | None


class EveryKind(keyed.KeyedProcessFunction):
    """An element is (key, number). Every state is changed, cleared and written again."""

    number = keyed.ValueState(int)
    sale = keyed.ValueState(Sale)
    texts = keyed.ListState(str)
    sales = keyed.ListState(Sale)
    counts = keyed.MapState(str, float)
    nested = keyed.MapState(int, dict[str, int])
    version = keyed.VersionedState(int, history=dt.timedelta(hours=1))
    fading = keyed.ValueState(int, ttl=keyed.StateTtl(dt.timedelta(seconds=2), time_domain=keyed.TimeDomain.EVENT_TIME))

    def process_element(self, value, ctx):
        number = value["n"]
        sale = Sale(number, AT + dt.timedelta(milliseconds=number), Decimal(number) / 4, bytes([number % 256]))
        self.number.update(number)
        self.sale.update(sale)
        self.texts.add(f"t{number}")
        self.sales.add(sale)
        self.counts.put(f"c{number % 3}", number / 2)
        self.nested.put(number % 2, {"n": number})
        self.version.put(number, 1000 * number)
        self.fading.update(number)
        if number % 5 == 4:
            self.number.clear()
            self.sale.clear()
            self.texts.clear()
            self.sales.clear()
            self.counts.remove("c1")
            self.nested.clear()
            self.version.delete(1000 * number + 500)
        yield number


class Columns(VectorizedFunction):
    """Sums by key and day in a table state; a number that can be divided by seven removes the row."""

    sums = TableState(SUMS, key=["k", "day"])

    def process_batch(self, table, ctx):
        rows = table.to_pylist()
        days = [dt.date(2026, 1, 1 + row["n"] % 3) for row in rows]
        columns: dict[str, Any] = {
            "k": [row["k"] for row in rows],
            "day": pa.array(days, pa.date32()),
            "n": [row["n"] for row in rows],
            "at": pa.array([row["n"] for row in rows], pa.timestamp("ms")),
        }
        given = pa.table(columns)
        self.sums.upsert(given)
        gone = [row["n"] % 7 == 0 for row in rows]
        self.sums.delete(given.filter(pa.array(gone)))
        ctx.emit(table.select(["k", "n", "t"]))


def rows_of(count: int) -> list[dict[str, Any]]:
    return [{"k": "abc"[n % 3], "n": n, "t": 1000 * n} for n in range(1, count + 1)]


def _by_key(rows: Any) -> Any:
    return keyed.stream(rows, timestamp="t", watermark=keyed.bounded_out_of_orderness(0)).key_by("k")


def windows_of(window: Any, path: str) -> Callable[[Any, Any], Any]:
    def made(rows: Any, options: Any) -> Any:
        # The types of the columns are known.
        windowed = _by_key(pa.Table.from_pylist(rows)).window(window).path(path)
        output = "k string, window_start timestamp, n bigint"
        return windowed.aggregate({"n": w.Sum("n"), "most": w.Max("n")}, output=output, **options)

    return made


JOBS: dict[str, Callable[[Any, Any], Any]] = {
    "states": lambda rows, options: _by_key(rows).process(EveryKind(), **options),
    "table": lambda rows, options: _by_key(rows).process(Columns(), "k string, n bigint, t bigint", **options),
    "tumbling": windows_of(w.TumblingEventTimeWindows.of(4000), "vectorized"),
    "sessions": windows_of(w.EventTimeSessionWindows.with_gap(3500), "row"),
}
#: The kinds of windows are the same to a copy.
FEW = [name if name in ("states", "table") else pytest.param(name, marks=pytest.mark.long) for name in JOBS]


class Job:
    """A job whose rows come in parts.

    Args:
        name: One of `JOBS`.
        folder: Its folder.
        rows: The number of rows of its first run.
    """

    def __init__(self, name: str, folder: Path, rows: int = 0) -> None:
        self.name = name
        self.folder = folder
        self.lives = 1
        self.rows = 0
        self.options: dict[str, Any] = {"parallelism": 2}
        if rows:
            self.run(rows)

    @property
    def log(self) -> keyed.DirectoryChangelog:
        return keyed.DirectoryChangelog(self.folder / f"log-{self.lives}", auto_compact=False)

    def restored(self, parallelism: int) -> None:
        """Go on from the changelog in a new query."""
        self.options = {"parallelism": parallelism, "restore_from": keyed.RestorePoint(self.log)}
        self.lives += 1

    def run(self, rows: int) -> None:
        """Run so many rows more, two a batch."""
        self.rows += rows
        output = JOBS[self.name](rows_of(self.rows), {"changelog": self.log, **self.options})
        output.run(checkpoint=self.folder / f"checkpoint-{self.lives}", rows_per_batch=2, drain=False)

    def tables(self, **options: Any) -> StateTables:
        """Return the tables, which follow the changelog."""
        return open_tables(self.log, self.folder / "tables", **options).start(every=0.05)


def folded(kafka: str, topic: str, partitions: int = 1) -> dict[bytes, bytes]:
    """The committed records of a topic as its readers fold them."""
    found: dict[bytes, bytes] = {}
    for number in range(partitions):
        for message in topics.messages(kafka, topic, number):
            found.pop(message.key(), None)
            if message.value() is not None:
                found[message.key()] = message.value()
    return found


def expected(tables: StateTables, name: str, key: tuple[str, ...]) -> dict[bytes, bytes]:
    """A table as SQL has it, as records: JSON of the key and of all columns. A list is one row."""
    found: dict[bytes, dict[str, Any]] = {}
    kind = tables[name].schema.kind
    for row in rows_with_dicts(tables[name].dataset().to_table()):
        if kind not in ("table", "window"):
            assert row.pop("namespace", None) is None
        if kind != "versioned":
            row.pop("expires", None)
        if kind == "list":
            row.pop("entry")
            value = row.pop("value", None) or {column: row.pop(column) for column in [*row] if column not in key}
            row["value"] = [value]
        record = as_json({column: row[column] for column in key})
        if record in found:
            found[record]["value"] += row["value"]
        else:
            found[record] = row
    return {record: as_json(row) for record, row in found.items()}


KEYS = {
    **dict.fromkeys(("number", "sale", "texts", "sales", "fading"), ("k",)),
    **dict.fromkeys(("counts", "nested"), ("k", "entry")),
    "version": ("k", "valid_from"),
    "sums": ("k", "day"),
    "window": ("k", "window_start", "window_end"),
}


def key_of(tables: StateTables, name: str) -> tuple[str, ...]:
    return KEYS["window" if tables[name].schema.kind == "window" else name]


def check(kafka: str, tables: StateTables, name: str, topic: str, partitions: int = 1) -> None:
    """Check that a topic holds a table."""
    # A commit returns before the broker has ended the transaction in each partition.
    until(lambda: topics.ended(kafka, topic))
    assert folded(kafka, topic, partitions) == expected(tables, name, key_of(tables, name))


def new_topic(kafka: str, **options: Any) -> UpsertTopic:
    return UpsertTopic(topics.new_topic(), bootstrap=kafka, **options)


def caught_up(replication: Any, tables: StateTables, batch: int) -> None:
    """Wait until tables and their copy have a batch."""
    tables.wait_for(batch, 300)
    replication.wait_for(batch, 300)
    until(lambda: replication.lag == 0)


def as_objects(records: dict[bytes, bytes]) -> list[Any]:
    return sorted((json.loads(value) for value in records.values()), key=str)


def topic_of(copy: Any) -> str:
    """The topic of a replication."""
    name: str = copy.to.topic
    return name

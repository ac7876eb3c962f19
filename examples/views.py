"""Six views, each in SQL and in Python, with equal rows: averages, counts, the last value, a top list, and two joins.

``python -m examples.views`` prints the rows of both. ``python -m examples.views views`` writes the statements and rows
of each view into a folder ``views``, and prints the commands that run them over these files. With ``--bootstrap
localhost:9092`` it also sends the rows to Kafka topics, and the commands run over them.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs

import keyed
from keyed import sql
from keyed.joins import IntervalJoin, TableJoin
from keyed.windows import Count, Latest, Mean, TopK, TumblingEventTimeWindows, aggregate

MINUTE, HOUR = 60_000, 3_600_000
#: The format of sources that name none, as of ``keyed run``.
FORMAT = {"ksql.persistence.default.format.value": "JSON"}
Rows = list[dict[str, Any]]


@attrs.frozen
class View:
    """A view: its statements, the rows of its sources, and the same in Python.

    Attributes:
        text: The statements; the view is the last one.
        sources: The rows of each stream and table, with ``ROWTIME``.
        python: Returns the rows of the view for the sources.
    """

    text: str
    sources: dict[str, Rows]
    python: Callable[..., list[tuple[Any, ...]]]

    def by_sql(self) -> list[tuple[Any, ...]]:
        """Return the rows of the view in SQL: of a table those at its end, of a stream all."""
        result = sql.script(self.text, self.sources, properties=FORMAT)
        name, records = list(result.records.items())[-1]
        if "CREATE TABLE view" in self.text:
            table = result.table(name)
            return sorted((key, *value.values()) for key, value in table.items())
        return sorted((each.key, *each.value.values()) for each in records)

    def write(self, folder: Path) -> str:
        """Write the statements and the rows of each source as files, and return the command that runs them."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "view.sql").write_text(self.text)
        command = f"keyed run {folder / 'view.sql'}"
        for name, rows in self.sources.items():
            file = folder / f"{name}.jsonl"
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
            command += f" --input {name}={file}"
        return command

    def send(self, bootstrap: str, since: int) -> None:
        """Send the rows of each source to its topic, by a script that copies them.

        Args:
            bootstrap: Address of a broker.
            since: The time from which ``ROWTIME`` counts, in the last days: Kafka deletes records of 1970.
        """
        for kind, name, topic in re.findall(r"CREATE (\w+) (\w+) \(.*\) WITH \(KAFKA_TOPIC = '(\S+)'\);", self.text):
            [declared] = re.findall(rf"(CREATE {kind} {name} \(.*\)) WITH", self.text)
            rows = [row | {"ROWTIME": since + row.get("ROWTIME", 0)} for row in self.sources[name]]
            copy = f"{declared}; CREATE {kind} sent WITH (KAFKA_TOPIC = '{topic}') AS SELECT * FROM {name};"  # noqa: S608 - names of this file
            kafka = sql.Kafka(bootstrap, bounded=True, transactional_id=f"views-{time.time_ns()}")
            with TemporaryDirectory() as folder:
                # A batch writes the last change of each key.
                sql.script(copy, {name: rows}, kafka=kafka, properties=FORMAT, rows_per_batch=1, checkpoint=folder)

    def by_python(self) -> list[tuple[Any, ...]]:
        """Return the rows of the view in Python."""
        return sorted(self.python(*self.sources.values()))


def _last(output: keyed.Output) -> list[tuple[Any, ...]]:
    """Return the last row of each key."""
    return list({row[0]: tuple(row) for row in output.run().values}.values())


def _averages(readings: Rows) -> list[tuple[Any, ...]]:
    return _last(aggregate(keyed.stream(readings).key_by("sensor"), {"avg": Mean("reading"), "n": Count()}))


def _sold(sales: Rows) -> list[tuple[Any, ...]]:
    return _last(aggregate(keyed.stream(sales).key_by("title"), {"tickets": Count()}))


def _recent(prices: Rows) -> list[tuple[Any, ...]]:
    return _last(aggregate(keyed.stream(prices).key_by("symbol"), {"price": Latest("price")}))


def _top(sales: Rows) -> list[tuple[Any, ...]]:
    shops = keyed.stream(sales, timestamp="ROWTIME").key_by("shop")
    tops = shops.window(TumblingEventTimeWindows.of(HOUR)).aggregate(top=TopK(2, "amount"))
    return [((row.shop, (row.window_start, row.window_end)), row.top) for row in tops.run().values]


def _paid(orders: Rows, payments: Rows) -> list[tuple[Any, ...]]:
    def pair(order: Any, payment: Any) -> tuple[Any, ...]:
        return order.id, order.item, payment.amount

    joined = (
        keyed.stream(orders, timestamp="ROWTIME")
        .connect(keyed.stream(payments, timestamp="ROWTIME"))
        .key_by("id")
        .process(IntervalJoin(pair, lower=-HOUR, upper=HOUR), output="id bigint, item string, amount bigint")
    )
    return list(map(tuple, joined.run().values))


def _suspicious(payments: Rows, cards: Rows) -> list[tuple[Any, ...]]:
    def pair(payment: Any, card: Any) -> tuple[Any, ...]:
        return payment.card, payment.amount, card is not None and payment.amount > card.most

    joined = (
        keyed.stream(payments, timestamp="ROWTIME")
        .connect(keyed.stream(cards, timestamp="ROWTIME"))
        .key_by("card")
        .process(TableJoin(pair, how="left"), output="card string, amount bigint, suspicious boolean")
    )
    return [row[:2] for row in map(tuple, joined.run().values) if row[2]]


VIEWS = {
    "the average of each sensor": View(
        """
        CREATE STREAM readings (sensor STRING KEY, reading INT) WITH (KAFKA_TOPIC = 'readings');
        CREATE TABLE view WITH (KAFKA_TOPIC = 'averages') AS
            SELECT sensor, AVG(reading) AS avg, COUNT(*) AS n FROM readings GROUP BY sensor;
        """,
        {"readings": [{"sensor": s, "reading": r} for s, r in (("attic", 45), ("cellar", 41), ("attic", 92))]},
        _averages,
    ),
    "tickets sold by title": View(
        """
        CREATE STREAM sales (title STRING) WITH (KAFKA_TOPIC = 'ticket-sales');
        CREATE TABLE view WITH (KAFKA_TOPIC = 'tickets-sold') AS
            SELECT title, COUNT(*) AS tickets FROM sales GROUP BY title;
        """,
        {"sales": [{"title": title} for title in ("Aliens", "Big", "Aliens", "Aliens")]},
        _sold,
    ),
    "a recency cache": View(
        """
        CREATE STREAM prices (symbol STRING KEY, price INT) WITH (KAFKA_TOPIC = 'prices');
        CREATE TABLE view WITH (KAFKA_TOPIC = 'last-prices') AS
            SELECT symbol, LATEST_BY_OFFSET(price) AS price FROM prices GROUP BY symbol;
        """,
        {"prices": [{"symbol": s, "price": p} for s, p in (("A", 10), ("B", 7), ("A", 12), ("A", 11))]},
        _recent,
    ),
    "the top two sales of each hour": View(
        """
        CREATE STREAM sales (shop STRING KEY, amount INT) WITH (KAFKA_TOPIC = 'shop-sales');
        CREATE TABLE view WITH (KAFKA_TOPIC = 'top-sales') AS SELECT shop, TOPK(amount, 2) AS top
            FROM sales WINDOW TUMBLING (SIZE 1 HOUR) GROUP BY shop;
        """,
        {
            "sales": [
                {"shop": shop, "amount": amount, "ROWTIME": minute * MINUTE}
                for shop, amount, minute in (("a", 3, 0), ("b", 9, 5), ("a", 8, 20), ("a", 5, 59), ("a", 1, 61))
            ]
        },
        _top,
    ),
    "orders that are paid within an hour": View(
        """
        CREATE STREAM orders (id BIGINT KEY, item STRING) WITH (KAFKA_TOPIC = 'orders');
        CREATE STREAM payments (id BIGINT KEY, amount BIGINT) WITH (KAFKA_TOPIC = 'payments');
        CREATE STREAM view WITH (KAFKA_TOPIC = 'paid-orders') AS SELECT orders.id AS id, item, amount
            FROM orders JOIN payments WITHIN 1 HOUR ON orders.id = payments.id;
        """,
        {
            "orders": [
                {"id": 1, "item": "lamp", "ROWTIME": 0},
                {"id": 2, "item": "desk", "ROWTIME": 10 * MINUTE},
            ],
            "payments": [
                {"id": 1, "amount": 30, "ROWTIME": 30 * MINUTE},
                {"id": 2, "amount": 90, "ROWTIME": 80 * MINUTE},
            ],
        },
        _paid,
    ),
    "payments above the limit of their card": View(
        """
        CREATE STREAM payments (card STRING KEY, amount BIGINT) WITH (KAFKA_TOPIC = 'card-payments');
        CREATE TABLE cards (card STRING PRIMARY KEY, most BIGINT) WITH (KAFKA_TOPIC = 'cards');
        CREATE STREAM view WITH (KAFKA_TOPIC = 'suspicious-payments') AS SELECT payments.card AS card, amount
            FROM payments JOIN cards ON payments.card = cards.card WHERE amount > most;
        """,
        {
            "payments": [
                {"card": "c1", "amount": amount, "ROWTIME": time} for amount, time in ((50, 1), (500, 2), (500, 4))
            ],
            "cards": [{"card": "c1", "most": 100, "ROWTIME": 0}, {"card": "c1", "most": 900, "ROWTIME": 3}],
        },
        _suspicious,
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the rows of each view, or write them to files and topics."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="write the statements and rows of each view here")
    parser.add_argument("--bootstrap", help="send the rows to topics of this broker, too")
    given = parser.parse_args(arguments)
    for name, view in VIEWS.items():
        print(name)
        if given.folder is None:
            print(f"  SQL     {view.by_sql()}\n  Python  {view.by_python()}")
            continue
        folder = given.folder / name.replace(" ", "-")
        command = view.write(folder)
        if given.bootstrap is not None:
            view.send(given.bootstrap, time.time_ns() // 3_600_000_000_000 * HOUR - 24 * HOUR)
            command = f"keyed run {folder / 'view.sql'} --bootstrap {given.bootstrap} --checkpoint {folder / 'state'}"
        print(f"  {command}")


if __name__ == "__main__":
    main()

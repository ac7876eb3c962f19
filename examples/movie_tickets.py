"""Tickets sold and money taken for each film, as a table that is queried while the job runs.

The sales are those of Confluent's tutorials on counting and on summing, where the tables are ``MOVIE_TICKETS_SOLD`` and
``MOVIE_REVENUE``.

    python -m examples.movie_tickets FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from queue import Empty, Queue
from typing import Any

import keyed
from keyed.windows import Count, Sum, aggregate

SALES = [
    {"title": "Die Hard", "sale_ts": "2019-07-18T10:00:00Z", "ticket_total_value": 12},
    {"title": "Die Hard", "sale_ts": "2019-07-18T10:01:00Z", "ticket_total_value": 12},
    {"title": "The Godfather", "sale_ts": "2019-07-18T10:01:31Z", "ticket_total_value": 12},
    {"title": "Die Hard", "sale_ts": "2019-07-18T10:01:36Z", "ticket_total_value": 24},
    {"title": "The Godfather", "sale_ts": "2019-07-18T10:02:00Z", "ticket_total_value": 18},
    {"title": "The Big Lebowski", "sale_ts": "2019-07-18T11:03:21Z", "ticket_total_value": 12},
    {"title": "The Big Lebowski", "sale_ts": "2019-07-18T11:03:50Z", "ticket_total_value": 12},
    {"title": "The Godfather", "sale_ts": "2019-07-18T11:40:00Z", "ticket_total_value": 36},
    {"title": "The Godfather", "sale_ts": "2019-07-18T11:40:09Z", "ticket_total_value": 18},
]


def sold(sales: Any) -> keyed.Output:
    """Return the job."""
    totals = {"tickets": Count(), "revenue": Sum("ticket_total_value")}
    return aggregate(keyed.stream(sales).key_by("title"), totals, name="sold")


def box_office(sales: Queue[Any]) -> Iterator[Any]:
    """Yield the sales from the queue until a ``None``."""
    while True:
        try:
            sale = sales.get(timeout=0.05)
        except Empty:
            yield keyed.PAUSE
            continue
        if sale is None:
            return
        yield sale


def main(folder: str) -> None:
    """Run the job; query its table while it runs and after it has ended."""
    sales: Queue[Any] = Queue()
    for sale in SALES[:4]:
        sales.put(sale)
    query = sold(box_office(sales)).start(tables=f"{folder}/tables", checkpoint=f"{folder}/checkpoint")
    query.tables.wait_for(0)
    print("While it runs:", query.tables["sold"].get("Die Hard"))
    for sale in SALES[4:]:
        sales.put(sale)
    sales.put(None)
    query.await_termination()
    for entry in query.tables["sold"]:
        print(entry.key, entry.value)
    query.tables.close()


if __name__ == "__main__":
    main(sys.argv[1])

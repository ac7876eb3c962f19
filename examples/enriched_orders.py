"""Orders with the names of their customers, which may arrive later; orders that wait too long go to a side output.

python -m examples.enriched_orders
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import keyed
from keyed.joins import EnrichmentJoin

UNKNOWN = keyed.OutputTag("unknown", "order bigint, customer bigint, placed bigint")
SECOND = 1_000
ORDERS = [
    {"order": 1, "customer": 7, "placed": 1 * SECOND},
    {"order": 2, "customer": 8, "placed": 2 * SECOND},
    {"order": 3, "customer": 9, "placed": 3 * SECOND},
    {"order": 4, "customer": 7, "placed": 40 * SECOND},
]
CUSTOMERS = [
    {"id": 7, "name": "Ann", "changed": 0},
    {"id": 8, "name": "Bob", "changed": 20 * SECOND},
    {"id": 7, "name": "Anne", "changed": 30 * SECOND},
    {"id": 9, "name": "Cy", "changed": 60 * SECOND},
]


def named(order: Any, customer: Any) -> tuple[int, str]:
    """Return the row of an order and its customer."""
    return order.order, customer.name


def enriched(orders: Any, customers: Any) -> keyed.Output:
    """Return the job."""
    join = EnrichmentJoin(named, timeout=timedelta(seconds=30), timed_out=UNKNOWN)
    return (
        keyed.stream(orders, timestamp="placed")
        .connect(keyed.stream(customers, timestamp="changed"))
        .key_by("customer", "id")
        .process(join, output="order bigint, name string", name="enriched")
    )


def main() -> None:
    """Run the job and print its results."""
    job, names, unknown = enriched(ORDERS, CUSTOMERS), keyed.collect_sink(), keyed.collect_sink()
    keyed.run(job.to(names), job.side_output(UNKNOWN).to(unknown))
    for row in names.values:
        print(row.order, row.name)
    for row in unknown.values:
        print(row.order, "was not matched")


if __name__ == "__main__":
    main()

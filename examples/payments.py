"""Payments of each customer: number, sum and time of the last one; queried by customer and in SQL.

python -m examples.payments FOLDER
"""

from __future__ import annotations

import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

import keyed
from keyed.windows import Count, Latest, Max, Sum, aggregate

PAYMENTS = pa.table(
    {
        "customer": ["ann", "bob", "ann", "eve", "bob", "ann"],
        "amount": pa.array(map(Decimal, ["12.50", "80.00", "7.25", "3.10", "19.99", "40.00"]), pa.decimal128(10, 2)),
        "paid_at": pa.array([1, 2, 3, 4, 5, 6], pa.timestamp("s", "UTC")),
    }
)


def per_customer(payments: Any, log: keyed.Changelog) -> keyed.Output:
    """Return the job, over an Arrow table or a DataFrame of Spark."""
    totals = {
        "payments": Count(),
        "total": Sum("amount"),
        "largest": Max("amount"),
        "last": Latest("amount", by_time=True),
    }
    stream = keyed.stream(payments, timestamp="paid_at").key_by("customer")
    return aggregate(stream, totals, name="customers", changelog=log)


def main(folder: str) -> None:
    """Run the job and query its table."""
    path = Path(folder)
    log = keyed.DirectoryChangelog(path / "log")
    per_customer(PAYMENTS, log).run(checkpoint=path / "checkpoint", drain=False)
    with keyed.tables.open_tables(log, path / "tables") as tables:
        tables.poll()
        print(tables["customers"].get("ann"))
        print(tables.sql("select customer, total from customers where total > 50 order by total desc").to_pylist())


if __name__ == "__main__":
    main(sys.argv[1])

"""A job that writes four tables and may kill itself.

Reads ``FOLDER/in``, one file a batch. It is killed, with all that belongs to it, at a table of a batch. The place is
``before-N``, ``after-N`` or, with the rows of an Iceberg table committed and its property not set, ``between-N``; N is
the number of the table. ``none`` lets it live. It prints a line before and after each table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keyed
from keyed.destinations.iceberg_table import IcebergLakeTable
from keyed.destinations.table_sink import LakeTable
from tests.keyed.runtimes.spark.functions import files_source
from tests.keyed.runtimes.spark.publishing import kill
from tests.support.lake import lake_settings
from tests.support.spark_programs import say, start_session

OUTPUT = "k string, n bigint, v bigint, gone boolean"
UPSERT: dict[str, Any] = {"mode": "upsert", "key": "k", "deleted": "gone"}


class Ledger(keyed.KeyedProcessFunction):
    """Counts the rows of each key; every other row of "d" deletes it."""

    seen = keyed.ValueState(int, default=0)

    def process_element(self, value: Any, ctx: keyed.Context) -> Iterator[Any]:
        n = self.seen.value() + 1
        self.seen.update(n)
        yield value.k, n, value.v, value.k == "d" and n % 2 == 0


def ledger(source: keyed.Stream, **options: Any) -> keyed.Output:
    return source.key_by("k").process(Ledger(), OUTPUT, name="ledger", **options)


def sinks(folder: Path, namespace: str) -> list[Any]:
    """A table of each format and mode."""
    return [
        keyed.delta_sink(folder / "rows"),
        keyed.delta_sink(folder / "latest", **UPSERT),
        keyed.iceberg_sink(f"{namespace}.rows", catalog="local"),
        keyed.iceberg_sink(f"{namespace}.latest", catalog="local", **UPSERT),
    ]


def kill_at(place: str, batch: int) -> None:
    """Let a batch's write to a table kill the program."""
    write_table, once = LakeTable.write, IcebergLakeTable._once
    number = [-1, 0]

    def written(self: LakeTable, rows: Any, batch_id: int) -> None:
        number[:] = [0 if number[1] != batch_id else number[0] + 1, batch_id]
        at = f"{number[0]}" if batch_id == batch else ""
        say(f"TABLE {number[0]} of {batch_id}")
        if place == f"before-{at}":
            kill(place)
        write_table(self, rows, batch_id)
        say(f"WRITTEN {number[0]} of {batch_id}")
        if place == f"after-{at}":
            kill(place)

    def in_between(self: IcebergLakeTable, batch_id: int, write: Callable[[], None]) -> None:
        def committed() -> None:
            write()
            if batch_id == batch and place == f"between-{number[0]}":
                kill(place)

        once(self, batch_id, committed)

    LakeTable.write = written  # type: ignore[method-assign]
    IcebergLakeTable._once = in_between  # type: ignore[method-assign]


def main(folder: Path, place: str, batch: int) -> None:
    kill_at(place, batch)
    session = start_session(folder, config=lake_settings(folder))
    output = ledger(files_source(session, folder / "in"))
    keyed.run(*(output.to(sink) for sink in sinks(folder, "a")), checkpoint=folder / "checkpoint")

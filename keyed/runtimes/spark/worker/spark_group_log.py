"""A key group's log in Spark's state store, committed by Spark together with the micro-batch.

An operator has two state variables: the map ``log`` from row number (long) to record (binary), and the value ``meta``
(binary). The variables of operators that are chained to the first one of a task end with their number: ``log1``,
``meta1``. Records are framed and versioned by `keyed.engine.group_log`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from keyed.engine.group_log import GroupLog

if TYPE_CHECKING:
    from pyspark.sql.streaming import StatefulProcessorHandle  # type: ignore[attr-defined]
    from pyspark.sql.types import StructType


def state_variables(place: int) -> tuple[str, str]:
    """Return the names of the variables of an operator, log and meta record.

    Args:
        place: Index of the operator in its chained line, from 0.
    """
    number = str(place) if place else ""
    return f"log{number}", f"meta{number}"


@cache
def state_schemas() -> tuple[StructType, StructType]:
    """Return the schemas ``row long`` and ``record binary``.

    If Spark gets a text, the worker sends it to the JVM to be parsed, six times for each key group and batch.
    """
    from pyspark.sql.types import BinaryType, LongType, StructField, StructType

    return StructType([StructField("row", LongType())]), StructType([StructField("record", BinaryType())])


class SparkGroupLog(GroupLog):
    """A `GroupLog` over the handle of a stateful processor.

    Every call goes to the JVM, at about a millisecond and 20 ms per MB, so the meta record is read once.

    Args:
        handle: The processor's handle. The key that Spark serves determines the group of the log.
        place: Index of the operator in its chained line.
    """

    def __init__(self, handle: StatefulProcessorHandle, place: int = 0) -> None:
        log, meta = state_variables(place)
        row, record = state_schemas()
        self._rows = handle.getMapState(log, row, record)
        self._meta = handle.getValueState(meta, record)
        self._known: bytes | None = None
        self._read = False

    def start(self) -> None:
        """Drop the cached meta record, before another key group."""
        self._known, self._read = None, False

    def read_meta(self) -> bytes | None:
        if not self._read:
            value = self._meta.get()
            self._known, self._read = (None if value is None else bytes(value[0])), True
        return self._known

    def read(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        for row in range(first, last + 1):
            value = self._rows.getValue((row,))
            if value is not None:
                yield row, bytes(value[0])

    def append(self, row: int, record: bytes) -> None:
        self._rows.updateValue((row,), (record,))

    def drop(self, row: int) -> None:
        self._rows.removeKey((row,))

    def write_meta(self, meta: bytes) -> None:
        self._meta.update((meta,))
        self._known, self._read = meta, True

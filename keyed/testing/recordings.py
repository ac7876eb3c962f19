"""Recorded input of a job (``record=``), as rows for a harness and for replay."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from keyed.arrow.read import table_rows
from keyed.base.arguments import Shown
from keyed.codec.tagged import decode_tagged
from keyed.destinations.parquet import batch_of
from keyed.errors import CorruptionError, DefinitionError
from keyed.runtimes.recording import ELEMENT_COLUMN, METADATA
from keyed.testing.timed_records import Record, SecondRecord
from keyed.vectorized import TIMESTAMP_COLUMN


class Recording(Shown):
    """The folder in which a job has recorded the rows of its batches.

    Only batches in the job's changelog were committed; for a later one the folder may have an attempt.

    Args:
        path: The folder of ``record=``.

    Attributes:
        operator: Name of the operator whose rows they are.

    Raises:
        DefinitionError: No job has recorded rows there.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._files: dict[int, list[Path]] = {}
        for file in sorted(self._path.glob("part-*.parquet")):
            number = batch_of(file.name)
            if number is not None:
                self._files.setdefault(number, []).append(file)
        if not self._files:
            raise DefinitionError(f"no job has recorded rows in {str(path)!r}: give the folder of record=")
        self.operator: str = self._about(next(iter(self._files.values()))[0])["operator"]

    def __repr__(self) -> str:
        return f"Recording({str(self._path)!r}, batches {min(self._files)} to {max(self._files)})"

    def batch(self, number: int) -> list[Record]:
        """Return the rows of a batch in order of arrival; those of a second side are `keyed.testing.SecondRecord`.

        Args:
            number: Id of the batch, as sinks get it.
        """
        return [row for file in self._files.get(number, ()) for row in self._read(file)]

    def between(self, after: int, last: int) -> list[Record]:
        """Return the rows of the batches after one, up to another one."""
        return [row for number in self._files if after < number <= last for row in self.batch(number)]

    def _about(self, file: Path) -> dict[str, Any]:
        try:
            metadata = (pq.read_schema(file).metadata or {}).get(METADATA)
        except (OSError, pa.ArrowException) as error:
            raise CorruptionError(f"a record of rows cannot be read: {error}", where=str(file)) from error
        if metadata is None:
            raise DefinitionError(f"{str(file)!r} is not a record of rows: give the folder of record=")
        about: dict[str, Any] = json.loads(metadata)
        return about

    def _read(self, file: Path) -> list[Record]:
        kind = SecondRecord if self._about(file)["side"] else Record
        try:
            table = pq.read_table(file, partitioning=None)
        except (OSError, pa.ArrowException) as error:
            raise CorruptionError(f"a record of rows cannot be read: {error}", where=str(file)) from error
        times = table[TIMESTAMP_COLUMN].to_pylist()
        if ELEMENT_COLUMN in table.column_names:
            values = [decode_tagged(each or b"") for each in table[ELEMENT_COLUMN].to_pylist()]
        else:
            values = list(table_rows(table.drop_columns([TIMESTAMP_COLUMN])))
        return list(map(kind, values, times))

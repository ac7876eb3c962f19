"""Folders of Parquet files as sinks. See `keyed.destinations.parquet_folder` for who may write to one."""

from __future__ import annotations

import os
from collections.abc import Hashable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import attrs

from keyed.base.arguments import path_text
from keyed.base.private_files import folder_path
from keyed.base.schemas import Schema
from keyed.destinations.ownership import Owner
from keyed.destinations.parquet_folder import (
    BatchFiles,
    LocalFolder,
    check_columns,
    claim_folder,
    last_file,
    locked_folder,
    replace_file,
)
from keyed.destinations.parquet_on_spark import ParquetOnSpark
from keyed.destinations.sink import Sink, SinkBatch, SinkWriter, SparkSide, folder_identity
from keyed.errors import DefinitionError

if TYPE_CHECKING:
    import pyarrow as pa

SinkMode = Literal["error", "overwrite"]


@attrs.frozen
class ParquetSink(Sink):
    """Parquet files ``<path>/part-<batch id>-<n>.parquet``; a repeated batch replaces its own files.

    Attributes:
        path: The folder, or its URI.
        mode: For a folder that another query has written: ``"error"`` refuses it, ``"overwrite"`` replaces its files.
    """

    path: str
    mode: SinkMode = "error"

    makes_files = True

    def __attrs_post_init__(self) -> None:
        if self.mode not in ("error", "overwrite"):
            raise DefinitionError(f"mode={self.mode!r} of the Parquet sink must be 'error' or 'overwrite'")

    @property
    def title(self) -> str:
        """See `Sink`."""
        return f"the Parquet sink {self.path!r}"

    @property
    def identity(self) -> Hashable:
        """See `Sink`."""
        return folder_identity(self.path)

    @property
    def clash(self) -> str:
        """See `Sink`."""
        return super().clash.replace(self.title, f"the folder {self.path!r}")

    def check(self, schema: Schema | None, spark: SparkSide | None) -> None:
        """See `Sink`."""
        if spark is None:
            folder_path(self.path, "Parquet sink")

    def open(self, owner: Owner, schema: Schema | None) -> SinkWriter:
        """See `Sink`."""
        return ParquetWriter(self, owner, schema)

    def open_on_spark(self, owner: Owner, schema: Schema, spark: SparkSide) -> SinkWriter:
        """See `Sink`."""
        return ParquetOnSpark(self.path, owner, schema, spark, replaces=self.mode == "overwrite")


def parquet_sink(path: str | os.PathLike[str], *, mode: SinkMode = "error") -> ParquetSink:
    """Write Parquet files into a folder, which belongs to one query.

    If another query has written it, ``mode="error"`` refuses, and ``"overwrite"`` removes that query's Parquet files
    when this one starts, though not when it resumes from its checkpoint.
    """
    return ParquetSink(path_text(path, "parquet_sink: path", "the path of a folder"), mode)


class ParquetWriter(SinkWriter):
    """Writes a file for each batch, in the local runtime. It holds a lock on the folder.

    Args:
        sink: The sink.
        owner: The query.
        schema: The declared columns of the output.

    Raises:
        SinkError: Another query is running there, or the folder cannot be created.
    """

    def __init__(self, sink: ParquetSink, owner: Owner, schema: Schema | None) -> None:
        self._sink = sink
        self._owner = owner
        self._schema = schema
        #: Columns that are not declared were not compared yet with those of existing files.
        self._compares = schema is None
        self._files = BatchFiles(Path(sink.path))
        self._lock = ExitStack()
        self._lock.enter_context(locked_folder(sink.path))

    def claim(self, repeated: int | None = None) -> None:
        """See `SinkWriter`."""
        claim_folder(LocalFolder(self._sink.path), self._owner, replaces=self._sink.mode == "overwrite")

    def prepare(self, schema: pa.Schema) -> None:
        """Compare the columns with those of existing files. See `SinkWriter`."""
        import pyarrow.parquet as pq

        from keyed.arrow.kinds import kinds

        path = self._sink.path
        last = last_file(LocalFolder(path).parquet_files())
        if last is not None:
            check_columns(path, last, kinds(pq.read_schema(Path(path, last))), kinds(schema))

    def write(self, rows: SinkBatch, batch_id: int) -> None:
        """Write one file, published by a rename; none if there are no rows, and other files exist."""
        import pyarrow.parquet as pq

        from keyed.arrow.write import arrow_schema

        table = rows.table
        if self._compares and table is not None:
            if not rows.is_bad_rows:
                self.prepare(table.schema)
            self._compares = False
        Path(self._sink.path).mkdir(parents=True, exist_ok=True)
        targets = self._files.replace(batch_id, int(table is not None), int(self._schema is not None))
        if targets and table is None and self._schema is not None:
            table = arrow_schema(self._schema).empty_table()
        if table is not None:
            replace_file(targets[0], lambda file: pq.write_table(table, file))

    def close(self) -> None:
        """See `SinkWriter`."""
        self._lock.close()

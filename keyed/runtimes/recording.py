"""The recording of a job's input: the rows of each batch for its first operator, in a folder, for replay.

The folder holds Parquet files ``part-<batch id>-<number>.parquet``, as a sink's folder does, and the mark of the query
(`keyed.destinations.parquet`). The number is two digits of the input and six of the partition. Rows of tables
and of Spark are stored in their columns; other elements in a column ``__keyed_element``, encoded by
`keyed.codec.tagged`. A column ``__keyed_timestamp`` has their event time. The schema's metadata has the name of the
operator and the side of the input, as JSON under ``keyed.record``.

A batch is written before it is committed, and written again in the same place if it runs again. The record of a batch
in the job's changelog is therefore complete. Bad rows are not recorded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from keyed.base.ids import random_id
from keyed.base.private_files import file_mode, folder_path, make_private
from keyed.codec.tagged import encode_tagged
from keyed.destinations.parquet import LocalFolder, claim_folder
from keyed.destinations.sink import Owner
from keyed.errors import DefinitionError, EncodingError, SinkError
from keyed.job.functions import TIMESTAMP_COLUMN
from keyed.job.graph import Stage

if TYPE_CHECKING:
    import pyarrow as pa

ELEMENT_COLUMN = "__keyed_element"
METADATA = b"keyed.record"


@attrs.frozen
class Recorder:
    """The recording of a job's input. It is sent to the tasks that write it.

    Attributes:
        path: The folder, which all tasks reach.
        operator: Name of the first operator.
        first_batch: Number that is added to the ids of batches.
    """

    path: str
    operator: str
    first_batch: int = 0

    def claim(self, owner: Owner) -> None:
        """Claim the folder for this query. See `claim_folder`.

        Raises:
            SinkError: It belongs to another query, or cannot be used.
        """
        try:
            make_private(Path(self.path))
            claim_folder(LocalFolder(self.path), owner)
        except (OSError, SinkError) as error:
            raise SinkError(
                f"record={self.path!r}: {error.__cause__ or error}; give the folder of this query, or another one"
            ) from error

    def begin(self, batch: int) -> None:
        """Remove the records of an earlier attempt of a batch, which may have had other partitions.

        Raises:
            SinkError: The folder cannot be written.
        """
        folder = Path(self.path)
        number = self.first_batch + batch
        with self._naming_itself():
            for old in (*folder.glob(f"part-{number:010d}-*.parquet"), *folder.glob(f".part-{number:010d}-*.tmp")):
                old.unlink(missing_ok=True)

    def write(self, batch: int, number: int, side: int, tables: Iterable[pa.Table]) -> None:
        """Write rows of one input of a batch, if there are any.

        Raises:
            SinkError: The folder cannot be written.
        """
        with self.writer(batch, number, 0, side) as add:
            for table in tables:
                add(table)

    @contextmanager
    def writer(self, batch: int, number: int, partition: int, side: int) -> Iterator[Any]:
        """Yield a writer for the rows of one partition of an input, table by table; the file is published at the end.

        Raises:
            SinkError: The folder cannot be written.
        """
        import pyarrow.parquet as pq

        name = f"part-{self.first_batch + batch:010d}-{number:02d}{partition:06d}.parquet"
        target = Path(self.path, name)
        staged = target.with_name(f".{name}.{random_id()}.tmp")
        description = json.dumps({"operator": self.operator, "side": side}).encode()
        file = writer = schema = None

        def add(table: pa.Table) -> None:
            nonlocal file, writer, schema
            with self._naming_itself():
                if file is None or writer is None:
                    descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                    file = os.fdopen(descriptor, "wb")
                    os.fchmod(descriptor, file_mode(target.parent))
                    metadata = {**(table.schema.metadata or {}), METADATA: description}
                    schema = table.schema.with_metadata(metadata)
                    writer = pq.ParquetWriter(file, schema)
                writer.write_table(table.cast(schema))

        try:
            yield add
            if file is not None and writer is not None:
                with self._naming_itself():
                    writer.close()
                    file.flush()
                    os.fsync(file.fileno())
                    staged.replace(target)
        finally:
            if file is not None:
                # Unwritten rows are not needed any more: the file was published, or the attempt has failed.
                with suppress(OSError):
                    file.close()
                staged.unlink(missing_ok=True)

    @contextmanager
    def _naming_itself(self) -> Iterator[None]:
        """Translate errors into errors that name the folder.

        Raises:
            SinkError: The folder cannot be written.
        """
        try:
            yield
        except OSError as error:
            raise SinkError(
                f"record={self.path!r}: {error.strerror or error}; no batch is committed without its record: free "
                "space or make the folder writable, and run again from the checkpoint"
            ) from error


def recorder(path: Any, first: Stage) -> Recorder | None:
    """Return the recorder of the input of a job's first operator; ``None`` if it is not recorded.

    Raises:
        DefinitionError: It is not the path of a folder, or the operator has no changelog, which a replay needs.
    """
    if path is None:
        return None
    if first.changelog is None:
        raise DefinitionError(
            f"record={path!r}: operator {first.name!r} has no changelog, which holds the state before each batch and "
            "the committed batches; give process(..., changelog=...)"
        )
    return Recorder(folder_path(path, "record"), first.name)


def table_of_elements(values: Sequence[Any], timestamps: Sequence[int | None] | None) -> pa.Table:
    """Return elements of any type as a table.

    Raises:
        DefinitionError: One is an object of a class.
    """
    import pyarrow as pa

    try:
        encoded = pa.array([encode_tagged(value) for value in values], pa.binary())
    except EncodingError as error:
        raise DefinitionError(
            f"record=: an element cannot be recorded: {error}; the source has to yield rows: dictionaries, tuples, a "
            "table"
        ) from error
    return with_timestamps(pa.table({ELEMENT_COLUMN: encoded}), timestamps)


def with_timestamps(table: pa.Table, timestamps: Any) -> pa.Table:
    """Return a table with the column of timestamps; by default with its own timestamps, or null."""
    import pyarrow as pa

    from keyed.table_state.batches import timestamped

    if timestamps is None:
        return timestamped(table)
    return table.append_column(TIMESTAMP_COLUMN, pa.array(timestamps, pa.int64()))

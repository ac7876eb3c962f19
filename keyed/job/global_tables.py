"""Global tables: tables that rarely change, of which every key group has a full copy as broadcast state.

A *version* of a table is one broadcast element: the name of its state and all its rows, as an Arrow IPC stream. Rows
missing from a version are removed from the broadcast state, so elements with a key never see a partial version.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from keyed.base.arguments import Duration, Shown, milliseconds_of, named
from keyed.base.extras import arrow_table, is_instance
from keyed.base.sources import PAUSE
from keyed.errors import DefinitionError, KeyedError, SourceError
from keyed.job.context import check_descriptors
from keyed.job.state import MapState

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)


@attrs.frozen(eq=False)
class GlobalTable(Shown):
    """A table for `KeyedStream.connect`, created by ``global_table``.

    Attributes:
        every_ms: Least time between two reads, milliseconds.
    """

    source: Any
    state: MapState[Any, Any]
    key: tuple[str, ...]
    every_ms: int

    def __repr__(self) -> str:
        source = named(self.source) if callable(self.source) else type(self.source).__name__
        return f"GlobalTable({source}, {self.state!r}, key={', '.join(self.key)})"

    def version(self) -> TableVersion:
        """Read the current table.

        Raises:
            SourceError: It cannot be read, lacks a key column, has a null key, or has one key twice.
        """
        from keyed.codec.arrow_streams import write_stream

        try:
            table = _read(self.source)
        except KeyedError:
            raise
        except Exception as error:
            raise SourceError(f"global table {self.state.name!r} cannot be read: {error}") from error
        missing = [name for name in self.key if name not in table.column_names]
        if missing:
            raise SourceError(
                f"global table {self.state.name!r} has no column {missing[0]!r}, which is part of its key; it has "
                f"{', '.join(table.column_names)}"
            )
        keys = table.select(list(self.key))
        distinct = keys.group_by(list(self.key)).aggregate([])
        if any(column.null_count for column in keys.columns) or distinct.num_rows < table.num_rows:
            raise SourceError(
                f"global table {self.state.name!r}: a key of {', '.join(self.key)} is null or occurs twice; each row "
                "needs its own"
            )
        rows = write_stream(table.combine_chunks())
        return TableVersion(hashlib.sha256(rows).hexdigest(), rows)


@attrs.frozen
class TableVersion:
    """The content of a table at one time.

    Attributes:
        digest: Identifies the version.
        rows: Its rows, as an Arrow IPC stream.
    """

    digest: str
    rows: bytes


class TableReader:
    """Polls a table, and yields each version once. A `keyed.SeekableSource`.

    Args:
        table: The table.
        clock: Seconds.
    """

    def __init__(self, table: GlobalTable, clock: Callable[[], float] = time.monotonic) -> None:
        self._table = table
        self._clock = clock
        self._digest = ""
        self._looked: float | None = None
        #: Failed reads since the last successful one.
        self._failures = 0

    def changed(self) -> TableVersion | None:
        """Return the table if it has changed since the last version; ``None`` before the next read is due.

        Raises:
            SourceError: The first read failed. Later failures keep the last version.
        """
        now = self._clock()
        if self._looked is not None and now < self._looked + self._table.every_ms / 1000:
            return None
        self._looked = now
        try:
            version = self._table.version()
        except SourceError as error:
            if not self._digest:
                raise
            self._failures += 1
            if self._failures == 1:
                _log.warning("%s; the last version is kept; further failures are counted", error)
            return None
        if self._failures:
            _log.warning("global table %r is read again after %d failures", self._table.state.name, self._failures)
            self._failures = 0
        if version.digest == self._digest:
            return None
        self._digest = version.digest
        return version

    def __iter__(self) -> Iterator[Any]:
        while True:
            version = self.changed()
            if version is not None:
                yield {"name": self._table.state.name, "rows": version.rows}
            yield PAUSE

    def position(self) -> str:
        """Return the digest of the last version."""
        return self._digest

    def seek(self, position: Any) -> None:
        """Set the last version."""
        self._digest = str(position)


def global_table(
    source: Any, state: MapState[Any, Any], *, key: str | tuple[str, ...], every: Duration = 10_000
) -> GlobalTable:
    """Return a table for `KeyedStream.connect` that every key group has a full copy of.

    A `KeyedProcessFunction` reads it with ``ctx.get_broadcast_state(state)``, by key. It is loaded before the first
    row; after a change the next micro-batch begins with the whole new version.

    Args:
        source: An Arrow or pandas table; or, to be read again, a batch DataFrame of Spark, a Parquet file or a folder
            of such files, or a function that returns a table.
        state: A descriptor with a name, of the key's type and the type of a row: a class with the columns, or none for
            dictionaries.
        key: The columns of the key; several give tuples.
        every: Least time between two reads.

    Raises:
        DefinitionError: A parameter breaks a rule.
    """
    check_descriptors((state,))
    keys = (key,) if isinstance(key, str) else tuple(key)
    if not keys or not all(isinstance(name, str) for name in keys):
        raise DefinitionError(f"global_table(key={key!r}): give one or more column names")
    return GlobalTable(source, state, keys, milliseconds_of(every, "every"))


def _read(source: Any) -> pa.Table:
    """Return the Arrow table of a source.

    Raises:
        DefinitionError: The source is of another kind.
    """
    if isinstance(source, str | Path):
        import pyarrow.parquet as pq

        return pq.read_table(source)
    table: pa.Table | None = (
        source.toArrow() if is_instance(source, "pyspark.sql", "DataFrame") else arrow_table(source)
    )
    if table is not None:
        return table
    if callable(source):
        return _read(source())
    raise DefinitionError(
        f"global_table: {type(source).__name__} is not a table; give an Arrow, pandas or Spark table, a path of "
        "Parquet files, or a function that returns one of those"
    )

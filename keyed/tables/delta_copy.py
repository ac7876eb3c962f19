"""Copies of a state table in Delta tables, with the package deltalake. See `keyed.tables.replication_target.Target`.

Each batch is one commit of the table. The commit has Delta's transaction identifier ``keyed-changes``, whose version is
the number of commits, and in its information ``keyed-table``, ``keyed-token``, ``keyed-batch`` and ``keyed-columns`` (a
digest of the columns). The description of the Delta table names the state table.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from xxhash import xxh3_64_hexdigest

from keyed.base.extras import extra
from keyed.destinations.delta_table import DeltaSink, merge_rows
from keyed.errors import DefinitionError, KeyedError, SinkError
from keyed.tables.entries import Entry
from keyed.tables.replicated_rows import ReplicatedRows
from keyed.tables.replication_target import Change, Copied, Written

if TYPE_CHECKING:
    from collections.abc import Mapping

_ID = "keyed-changes"
#: The newest commits of a table among which the last one of the copy is looked for.
_COMMITS = 100
_ROWS = 8192
_DELETED = "__keyed_deleted"


class DeltaCopy:
    """Writes a table to a Delta table.

    Args:
        to: The Delta table, with ``mode="upsert"``.
        table: Operator and table.

    Raises:
        DefinitionError: The mode is another one, or ``deleted`` is given.
        ExtraNotInstalled: The package is not installed.
    """

    namespaces = False

    def __init__(self, to: DeltaSink, table: str) -> None:
        if to.mode != "upsert" or to.deleted is not None:
            raise DefinitionError(f'replicate: {to!r} must have mode="upsert", and no deleted=')
        with extra("delta", repr(to)):
            import deltalake
        self._delta: Any = deltalake
        self._to = to
        self._described = f"keyed: changes of {table}"
        self._name = table
        self._place = to.location
        self.name = f"the Delta table {self._place!r}"
        self._options = dict(to.storage_options) or None
        self._table: Any = None
        #: Number of commits; 0 before the first.
        self._commits = 0

    def claim(self) -> Copied | None:
        """See `Target`."""
        self._commits, self._table = 0, None
        if not self._delta.DeltaTable.is_deltatable(self._place, self._options):
            return None
        self._table = self._delta.DeltaTable(self._place, storage_options=self._options)
        if self._table.metadata().description != self._described:
            raise SinkError(f"{self._to!r}: the Delta table is not a copy of {self._name!r}; give another one")
        self._commits = self._table.transaction_version(_ID) or 0
        found = next((each for each in self._table.history(_COMMITS) if "keyed-token" in each), None)
        return None if found is None else Copied(found["keyed-token"], found["keyed-columns"])

    def shape(self, rows: ReplicatedRows) -> str:
        """See `Target`."""
        if set(self._to.key) != set(rows.key):
            raise DefinitionError(
                f"replicate: {self._to!r}: the columns that identify a row of {self._name!r} are "
                f"{', '.join(rows.key)}; give key={list(rows.key)!r}"
            )
        return xxh3_64_hexdigest(str(_stored(rows.schema())).encode()) if rows.are_types_known else ""

    def write(self, rows: ReplicatedRows, changes: Iterator[Change], token: str, batch: int) -> Written:
        """See `Target`."""
        found = list(changes)
        upserts = rows.table(entry for entry, is_removed in found if not is_removed)
        keys = rows.table((entry for entry, is_removed in found if is_removed), of_keys=True)
        self._check_keys(upserts, rows.key)
        parts = [
            each.append_column(_DELETED, pa.array([is_removed] * each.num_rows, pa.bool_()))
            for each, is_removed in ((upserts, False), (keys, True))
        ]
        source = pa.concat_tables(parts, promote_options="default")
        types = pa.schema([*_stored(upserts.schema), (_DELETED, pa.bool_())])
        source = source.select(types.names).cast(types)
        self._check_last()
        merge_rows(self._table, source, rows.key, _DELETED, self._properties(token, batch, self.shape(rows)))
        self._commits += 1
        return Written(upserts.num_rows, keys.num_rows)

    def replace(self, rows: ReplicatedRows, snapshot: Iterator[Entry], token: str, batch: int) -> Written:
        """See `Target`."""
        written = Written(was_empty=self._table is None)
        if not rows.are_types_known:
            # The table has no rows, and the types of its keys are not known.
            if self._table is not None:
                self._append_nothing("overwrite", token, batch, "")
            return written
        schema = _stored(rows.schema())
        if self._table is None:
            self._table = self._delta.DeltaTable.create(
                self._place,
                self._delta.Schema.from_arrow(schema),
                mode="ignore",
                description=self._described,
                storage_options=self._options,
            )
        self._check_last()

        def batches() -> Iterator[pa.RecordBatch]:
            while part := list(islice(snapshot, _ROWS)):
                table = rows.table(part)
                self._check_keys(table, rows.key)
                written.rows += table.num_rows
                yield from table.cast(schema).to_batches()

        self._delta.write_deltalake(
            self._table,
            pa.RecordBatchReader.from_batches(schema, batches()),
            mode="overwrite",
            schema_mode="overwrite",
            commit_properties=self._properties(token, batch, self.shape(rows)),
        )
        self._commits += 1
        return written

    def note(self, token: str, batch: int) -> None:
        """See `Target`."""
        if self._table is not None:
            found = next((each for each in self._table.history(_COMMITS) if "keyed-columns" in each), None)
            self._check_last()
            self._append_nothing("append", token, batch, "" if found is None else found["keyed-columns"])

    def is_transient(self, error: Exception) -> bool:
        """See `Target`."""
        return isinstance(error, self._delta.exceptions.CommitFailedError | OSError)

    def translated(self, error: Exception) -> Exception:
        """Return the error to raise for one of the package."""
        if isinstance(error, KeyedError):
            return error
        return SinkError(f"{self._to!r}: {type(error).__name__}: {error}")

    def close(self) -> None:
        """See `Target`."""
        self._table = None

    def _append_nothing(self, mode: str, token: str, batch: int, shape: str) -> None:
        nothing = pa.schema(self._table.schema()).empty_table()
        self._delta.write_deltalake(
            self._table, nothing, mode=mode, commit_properties=self._properties(token, batch, shape)
        )
        self._commits += 1

    def _check_last(self) -> None:
        """Check that no other replication has written."""
        self._table.update_incremental()
        if (self._table.transaction_version(_ID) or 0) != self._commits:
            raise SinkError(
                f"{self._to!r}: another replication of this table has written; it goes on in the place of this one"
            )

    def _properties(self, token: str, batch: int, shape: str) -> Any:
        about: Mapping[str, str] = {
            "keyed-table": self._name,
            "keyed-token": token,
            "keyed-batch": str(batch),
            "keyed-columns": shape,
        }
        return self._delta.CommitProperties(
            custom_metadata=dict(about), app_transactions=[self._delta.Transaction(_ID, self._commits + 1)]
        )

    def _check_keys(self, table: pa.Table, key: tuple[str, ...]) -> None:
        for name in key:
            if table.column(name).null_count:
                raise SinkError(f"{self._to!r}: a row has a null in {name!r}, a column of the key")


def _stored(schema: pa.Schema) -> pa.Schema:
    """Return the columns with times in microseconds, as Delta has them."""
    types = pa.types
    return pa.schema(
        [
            (field.name, pa.timestamp("us", field.type.tz) if types.is_timestamp(field.type) else field.type)
            for field in schema
        ]
    )

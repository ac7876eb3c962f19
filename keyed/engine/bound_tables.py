"""`TableState` in a key group.

pyarrow is imported with `keyed.table_state`, so only if there are tables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from keyed.base.arguments import MAX_TIMESTAMP, MIN_TIMESTAMP
from keyed.engine.bound import Outside, Scope, kind_of
from keyed.engine.changes import Changes
from keyed.errors import StateAccessError, StateDefinitionError
from keyed.job.functions import TIMESTAMP_COLUMN
from keyed.job.table_declaration import MergeHow, Predicate, TableState
from keyed.job.ttl import StateVisibility, TimeDomain

if TYPE_CHECKING:
    import pyarrow as pa

    from keyed.table_state.overlay import Overlay


def check_key(state: TableState, keys: Sequence[str], operator: str) -> None:
    """Check that each row of a table belongs to one key of the stream.

    Raises:
        StateDefinitionError: Its key does not start with the key columns of the stream.
    """
    if state.key[: len(keys)] != tuple(keys):
        raise StateDefinitionError(
            f"table state {state.name!r} of operator {operator!r}: its key {', '.join(state.key)} must start with the "
            f"columns of key_by, {', '.join(keys)}"
        )


class BoundTableState(TableState):
    """`TableState` in a key group."""

    def __init__(self, declaration: TableState, scope: Scope, state_id: int) -> None:
        from keyed.table_state.layout import Layout

        self.declaration = declaration
        self.name = declaration.name
        self.key = declaration.key
        self.schema = declaration.schema
        self.ttl = declaration.ttl
        self._scope = scope
        self._state_id = state_id
        self._where = f"table state {self.name!r}"
        self._clock_kind = kind_of(self.ttl)
        self.layout = Layout.of(declaration)
        self._outside: Any = Outside(self._unbound)
        self.deactivate()
        self._expired = 0

    _open: Overlay

    def activate(self) -> None:
        """Allow access: a batch runs."""
        from keyed.table_state.chunks import ChunkedTable
        from keyed.table_state.overlay import Overlay

        stored = self._scope.store.table(self._state_id)
        self._open = Overlay(self.layout, stored if stored is not None else ChunkedTable(self.key))
        self._expired = 0

    def deactivate(self) -> None:
        """End the access that `activate` allowed."""
        self._open = self._outside

    @property
    def _overlay(self) -> Overlay:
        """The table with the changes of the batch, without expired rows."""
        overlay = self._open
        if self.ttl is not None and self.ttl.visibility is StateVisibility.NEVER_RETURN_EXPIRED:
            self._expire(overlay)
        return overlay

    def merge(self, delta: pa.Table, how: Mapping[str, MergeHow]) -> None:
        from keyed.table_state.overlay import check_how

        check_how(self.layout, how)
        self._merge(delta, dict(how))

    def upsert(self, table: pa.Table) -> None:
        self._merge(table, dict.fromkeys((name for name in self.layout.visible if name not in self.key), "last"))

    def delete(self, keys: pa.Table) -> None:
        self._overlay.delete(self.layout.conform(keys, self.key))

    def take(self, predicate: Predicate) -> pa.Table:
        return self.layout.shown(self._overlay.take(self._parsed(predicate)))

    def lookup(self, keys: pa.Table) -> pa.Table:
        return self.layout.shown(self._overlay.lookup(self.layout.conform(keys, self.key)))

    def scan(self, predicate: Predicate | None = None) -> pa.Table:
        parsed = None if predicate is None else self._parsed(predicate)
        return self.layout.shown(self._overlay.scan(parsed))

    def clear(self) -> None:
        self._overlay.take(None)

    @property
    def num_rows(self) -> int:
        return self._overlay.num_rows

    def flush(self, changes: Changes) -> None:
        """Write the net change of the batch. Expired rows are removed."""
        overlay = self._open
        if self.ttl is not None:
            self._expire(overlay)
        net = overlay.net_change(self._state_id, spell_out=changes.spells_out)
        if net is not None:
            changes.write_table(*net)
        changes.expired += self._expired

    def _merge(self, table: pa.Table, how: dict[str, str]) -> None:
        from keyed.table_state.layout import DUE_COLUMN

        columns = [name for name in self.layout.schema.names if name != DUE_COLUMN]
        rows = self.layout.conform(table, columns)
        if self.ttl is not None:
            rows = rows.append_column(self.layout.schema.field(DUE_COLUMN), self._due(table))
            how[DUE_COLUMN] = "max"
        overlay = self._overlay
        if rows.num_rows:
            overlay.merge(rows, how)

    def _parsed(self, predicate: Predicate) -> Any:
        from keyed.table_state.chunks import parse

        return parse(predicate, self.layout.schema, self._where)

    # Time to live -----------------------------------------------------------------------------------------------

    def _due(self, table: pa.Table) -> Any:
        """Return the due times of rows that are written now."""
        import numpy as np
        import pyarrow as pa

        from keyed.arrow.event_times import event_times

        assert self.ttl is not None
        clock = self._scope.clock(self._clock_kind)
        if self.ttl.time_domain is TimeDomain.PROCESSING_TIME:
            return pa.array(np.full(table.num_rows, min(clock + self.ttl.milliseconds, MAX_TIMESTAMP - 1)))
        if TIMESTAMP_COLUMN not in table.column_names:
            raise StateAccessError(
                f"{self._where} has a time to live in event time: rows that are written need the column "
                f"{TIMESTAMP_COLUMN} (keyed.vectorized.TIMESTAMP_COLUMN), the time of the update in milliseconds"
            )
        column = event_times(table.column(TIMESTAMP_COLUMN), TIMESTAMP_COLUMN)
        times = column.fill_null(MIN_TIMESTAMP).to_numpy()
        latest = MAX_TIMESTAMP - 1 - self.ttl.milliseconds
        return pa.array(np.minimum(np.maximum(times, clock), latest) + self.ttl.milliseconds)

    def _expire(self, overlay: Overlay) -> None:
        from keyed.table_state.layout import DUE_COLUMN

        clock = self._scope.clock(self._clock_kind)
        self._expired += overlay.take([(DUE_COLUMN, MIN_TIMESTAMP, clock)]).num_rows

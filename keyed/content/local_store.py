"""The protocols of local stores, from which a key group's state is read.

A *local store* is a disposable cache of the committed entries of one key group of one operator; the group's log is the
truth. A store only ever applies what is committed, together with its position in the log, so it can be behind the log
but never ahead of it, and losing it loses nothing.

Entries and addresses are laid out in `keyed.content.addresses`. Beyond the signatures every store keeps these rules,
and `keyed.testing.store_conformance` holds the tests for them:

- ``apply`` applies all changes and moves the position, or neither. A later change of an address wins; removing what is
  not there is no error. When it raises, the store is as before, or empty.
- ``scan`` and ``due`` are lazy and cost in proportion to what is taken from them, not to what the store holds. ``due``
  is ordered by (time, prefix, sub), ``scan`` by sub; ``items`` comes in any order.
- Iterators are good until the next ``apply``, ``reset`` or ``close``. A store is used by one thread at a time.
- ``reset`` drops everything, and ``position`` is ``None`` after it. ``close`` may be called again.
- What cannot be read or written raises `LocalStoreError`, never gives a wrong value. The engine then resets the store,
  or opens another one, and rebuilds it from the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from keyed.content.blocks import Change, Range, TableDelta

if TYPE_CHECKING:
    import pyarrow as pa


class StoredTable(Protocol):
    """The committed rows of a table state. A position is a row's number, good until the next ``apply``."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Columns of the key."""

    @property
    def num_rows(self) -> int:
        """Number of rows."""

    @property
    def positions(self) -> int:
        """Number of positions, some of which may have no row."""

    def select(self, ranges: Sequence[Range] | None) -> Iterator[tuple[Any, pa.Table]]:
        """Yield the rows in ranges, or all of them, with their positions, in parts."""

    def at(self, positions: Any) -> pa.Table | None:
        """Return the rows at positions, in that order; ``None`` if there are no positions."""

    def find(self, wanted: Any) -> Any:
        """Return the position of each key, -1 where there is none. Keys come as the store's tables hold them."""

    def rows_of(self, keys: pa.Table) -> pa.Table | None:
        """Return the rows that are there of some keys, each once; ``None`` if none is."""

    def live(self, rows: pa.Table) -> Any:
        """Return the positions of those of some rows that are there just as they are given."""


class ReadStore(Protocol):
    """Committed entries, unchanged while a batch runs."""

    def get(self, prefix: bytes, sub: bytes) -> bytes | None:
        """Return the value at an address."""

    def scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the (sub, value) pairs of exactly this prefix, in order of sub."""

    def due(self, kind: int, up_to: int) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield the (time, prefix, sub) of the entries of a kind that are due by ``up_to``, in that order."""

    def items(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Yield all (prefix, sub, value)."""

    def table(self, state_id: int) -> StoredTable | None:
        """Return the rows of a table state, ``None`` if it has none."""


class Applies(Protocol):
    """A store to which changes can be applied."""

    def apply(self, log_id: str, row: int, changes: Iterable[Change], tables: Sequence[TableDelta] = ()) -> None:
        """Apply changes in order, and those of tables, atomically with the position."""


class LocalStore(ReadStore, Applies, Protocol):
    """A disposable cache of the committed entries of one key group. Implementations: `keyed.stores`."""

    def position(self) -> tuple[str, int] | None:
        """Return the (log id, last applied row), or ``None`` if the store is empty."""

    def reset(self) -> None:
        """Drop everything."""

    def close(self) -> None:
        """Release what the store holds."""


@runtime_checkable
class SharedStore(LocalStore, Protocol):
    """A local store that several processes of a machine have open, of which one at a time serves the key group.

    It also has the log rows of the batch that ran last, committed or not: the next process takes them from here and not
    from the log.
    """

    def refresh(self) -> None:
        """Show what other processes have applied since. Called at the start of a batch."""

    def release(self) -> None:
        """Stop reading until the next `refresh`."""

    def keep_rows(self, attempt: str, rows: dict[int, bytes]) -> None:
        """Keep the log rows of an attempt, by number, instead of those of the one before."""

    def kept_rows(self, attempt: str) -> dict[int, bytes] | None:
        """Return the log rows of an attempt; ``None`` if others are kept, or none."""

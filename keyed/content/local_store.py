"""The protocols of local stores, from which a key group's state is read.

A *local store* is a disposable cache of the committed entries of one key group of one operator; the group's log is the
truth. A store applies only committed changes, together with their position in the log, so it can be behind the log but
never ahead of it, and its loss loses no data.

Entries and addresses are laid out in `keyed.content.addresses`. Every store follows these rules, which
`keyed.testing.store_conformance` tests:

- ``apply`` applies all changes and moves the position, or neither. A later change of an address wins; removing a
  missing entry is not an error. When it raises, the store is as before, or empty.
- ``scan`` and ``due`` are lazy: their cost is proportional to the consumed entries, not to the size of the store, nor
  to what is before ``start``.
  ``due`` is ordered by (time, prefix, sub), ``scan`` by sub; ``items`` comes in any order.
- Iterators are valid until the next ``apply``, ``reset`` or ``close``. A store is used by one thread at a time.
- ``reset`` drops everything, and ``position`` is ``None`` after it. ``close`` may be called again.
- A failed read or write raises `LocalStoreError` and never returns a wrong value. The engine then resets the store, or
  opens another one, and rebuilds it from the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from keyed.content.blocks import Change, Range, TableDelta

if TYPE_CHECKING:
    import pyarrow as pa


class StoredTable(Protocol):
    """The committed rows of a table state. A position is a row's number, valid until the next ``apply``."""

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

    def find(self, keys: Any) -> Any:
        """Return the position of each key, -1 if there is none. Keys have the types of the store's tables."""

    def rows_of(self, keys: pa.Table) -> pa.Table | None:
        """Return the existing rows of some keys, each once; ``None`` if there are none."""

    def live(self, rows: pa.Table) -> Any:
        """Return the positions of those rows that exist unchanged."""


class ReadStore(Protocol):
    """Committed entries, unchanged while a batch runs."""

    def get(self, prefix: bytes, sub: bytes) -> bytes | None:
        """Return the value at an address."""

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield the (sub, value) pairs of exactly this prefix, in order of sub, from the sub ``start`` on."""

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
        """Release the resources of the store."""


@runtime_checkable
class SharedStore(LocalStore, Protocol):
    """A local store shared by several processes of a machine, of which one at a time serves the key group.

    It also has the log rows of the last batch, committed or not: the next process reads them from it instead of the
    log.
    """

    def refresh(self) -> None:
        """Show the changes that other processes applied since. Called at the start of a batch."""

    def release(self) -> None:
        """Stop reading until the next `refresh`."""

    def is_doubtful(self) -> bool:
        """Return true if a process ended while it worked in the store: `check` has not been called since."""

    def check(self) -> None:
        """Compare the index of times with the entries. The caller has compared the entries with the log's counts.

        Raises:
            LocalStoreError: They do not fit.
        """

    def keep_rows(self, attempt: str, rows: dict[int, bytes]) -> None:
        """Keep the log rows of an attempt, by number, in place of those of the previous one."""

    def kept_rows(self, attempt: str) -> dict[int, bytes] | None:
        """Return the log rows of an attempt; ``None`` if others are kept, or none."""


def shared_store(store: LocalStore) -> SharedStore | None:
    """Return the store if it is one that processes share."""
    # A comparison with the protocol would cost as much as a small batch.
    return cast("SharedStore", store) if hasattr(store, "keep_rows") else None

"""The order-independent hash of a set of entries, which verifies copies of a key group's state.

Each live entry is hashed by itself, and the hashes are added modulo 2^128. A commit subtracts replaced entries and adds
written ones, without reading the others, and any two programs with the same entries get the same sum (the incremental
multiset hash of Clarke et al., 2003, with addition).

    hash of an entry   XXH3 (128 bits, seed 0) over  length of prefix (u32 BE) | prefix | sub | value
    of no entries      0
    as text            32 hexadecimal digits

The length of sub is not hashed: under one prefix all subs are prefix-free encodings. Rows of tables are hashed by
`keyed.content.row_hash`, and their hashes are added like those of entries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING

from keyed.content.blocks import TableDelta
from keyed.content.delta import Delta
from keyed.content.local_store import ReadStore
from keyed.errors import CorruptionError

if TYPE_CHECKING:
    import pyarrow as pa

MODULUS = 1 << 128
_DIGITS = 32
#: The packed lengths of usual prefixes.
_LENGTHS = tuple(size.to_bytes(4, "big") for size in range(256))


@cache
def _hasher() -> Callable[[bytes], int]:
    """Return the hash function; its package is loaded only if a changelog is used."""
    from xxhash import xxh3_128_intdigest

    return xxh3_128_intdigest


def hash_sum(entries: Iterable[tuple[bytes, bytes, bytes | None]], start: int = 0) -> int:
    """Return ``start`` plus the hashes of entries, modulo 2^128. A value of ``None`` adds nothing."""
    return sum(map(_hasher(), _hashed(entries)), start) % MODULUS


def _hashed(entries: Iterable[tuple[bytes, bytes, bytes | None]]) -> Iterator[bytes]:
    """Return the hashed bytes of the entries that have a value."""
    return (
        b"".join((_LENGTHS[len(prefix)] if len(prefix) < 256 else len(prefix).to_bytes(4, "big"), prefix, sub, value))
        for prefix, sub, value in entries
        if value is not None
    )


class LiveHash:
    """The hash and the number of live entries and rows, updated with each change.

    Args:
        store: The live entries and rows before each change; empty by default.
        value: Its hash.

    Attributes:
        value: The hash, modulo 2^128.
        live: Number of entries and rows, relative to the start.
    """

    def __init__(self, store: ReadStore | None = None, value: int = 0) -> None:
        self._store = store
        self.value = value
        self.live = 0

    def add(self, delta: Delta, replaced: Mapping[int, pa.Table] | None = None) -> None:
        """Add a change that the store does not have yet.

        Args:
            delta: The change, with each address once.
            replaced: The rows that it removes or overwrites, by state id, if they are known.
        """
        digest, store = _hasher(), self._store
        total, live = self.value, self.live
        if store is None:
            hashes = list(map(digest, _hashed(delta.entries)))
            total, live = sum(hashes, total), live + len(hashes)
        else:
            for prefix, sub, value in delta.entries:
                head = len(prefix).to_bytes(4, "big") + prefix + sub
                old = store.get(prefix, sub)
                if value is not None:
                    total += digest(head + value)
                    live += 1
                if old is not None:
                    total -= digest(head + old)
                    live -= 1
        for table in delta.tables:
            from keyed.content.row_hash import rows_hash

            old_rows = _stored(store, table) if replaced is None else replaced.get(table.state_id)
            for sign, rows in ((1, table.upserts), (-1, old_rows)):
                if rows is not None:
                    total += sign * rows_hash(rows, table.state_id)
                    live += sign * rows.num_rows
        self.value, self.live = total % MODULUS, live


def _stored(store: ReadStore | None, table: TableDelta) -> pa.Table | None:
    """Return the rows that a change removes or overwrites."""
    stored, keys = None if store is None else store.table(table.state_id), table.changed_keys
    return None if stored is None or keys is None else stored.rows_of(keys)


def hash_text(value: int) -> str:
    """Return the text form of a hash, for storage and display."""
    return f"{value:0{_DIGITS}x}"


def hash_of_text(text: str, where: str) -> int:
    """Return the hash of a text from `hash_text`.

    Raises:
        CorruptionError: It is not a hash.
    """
    if len(text) != _DIGITS or not all(digit in "0123456789abcdef" for digit in text):
        raise CorruptionError(f"{text!r} is not a hash of {_DIGITS} hexadecimal digits", where=where)
    return int(text, 16)

"""The order-independent hash of a set of entries, by which a copy of a key group's state is told to be whole and right.

Each live entry is hashed by itself, and the hashes are added modulo 2^128: a commit takes away what it replaced and
adds what it wrote, without a look at the rest, and any two programs that hold the same entries get the same sum
(the incremental multiset hash of Clarke et al., 2003, with addition).

    hash of an entry   XXH3 (128 bits, seed 0) over  length of prefix (u32 BE) | prefix | sub | value
    of no entries      0
    as text            32 hexadecimal digits

The length of sub is not hashed: under one prefix all subs are prefix-free encodings, which say where they end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

from keyed.errors import CorruptionError

MODULUS = 1 << 128
_DIGITS = 32


@cache
def _hasher() -> Callable[[bytes], int]:
    """The hash function; its package is loaded where a changelog is used and nowhere else."""
    from xxhash import xxh3_128_intdigest

    return xxh3_128_intdigest


def hash_sum(entries: Iterable[tuple[bytes, bytes, bytes | None]], start: int = 0) -> int:
    """``start`` plus the hashes of entries, modulo 2^128. What is ``None`` is no entry and adds nothing."""
    digest = _hasher()
    total = start
    for prefix, sub, value in entries:
        if value is not None:
            total += digest(len(prefix).to_bytes(4, "big") + prefix + sub + value)
    return total % MODULUS


def hash_text(value: int) -> str:
    """A hash as it is stored and shown."""
    return f"{value:0{_DIGITS}x}"


def hash_of_text(text: str, where: str) -> int:
    """Read what `hash_text` gave.

    Raises:
        CorruptionError: It is no hash.
    """
    if len(text) != _DIGITS or not all(digit in "0123456789abcdef" for digit in text):
        raise CorruptionError(f"{text!r} is no hash of {_DIGITS} hexadecimal digits", where=where)
    return int(text, 16)

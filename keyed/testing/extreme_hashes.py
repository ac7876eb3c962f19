"""Extreme results of `hash` for the user's own code: values with text, whose hash depends on ``PYTHONHASHSEED``.

Half of all hash seeds leave `hash(x) % 2` of a text as it is, and hardly any makes `hash(x) % 1_000` zero. So in one
process of `keyed.testing.other_process` the hash of each text is negative and a multiple of all usual numbers of
buckets, and in another one it is positive and one below such a multiple. A process uses one of the two from its start,
because a table that a module builds by `hash` has to be found again. The order of sets stays that of the hash seed.
"""

from __future__ import annotations

import builtins
import sys
from datetime import date, datetime, time
from enum import Enum
from typing import Any, Literal

from keyed.testing.moved_clocks import is_of_user

Extreme = Literal["low", "high"]
#: All numbers to 16, powers of two to 4,096 and of ten to 10,000 divide it.
_BUCKETS = 2**12 * 3**2 * 5**4 * 7 * 11 * 13
#: Number of different hashes: few enough to be near the least and the largest one.
_HASHES = 2**22
_MOST = 2**63 // _BUCKETS


class ExtremeHashes:
    """The hashes of a process, which must not be used for anything else; set before user code is imported.

    Args:
        extreme: The kind.

    Attributes:
        text_hashes: Number of hashes of values with text that the user's code has asked for.
    """

    def __init__(self, extreme: Extreme) -> None:
        self.text_hashes = 0
        real = hash

        def extreme_hash(value: object, /) -> int:
            hashed = real(value)
            # The hash of an empty text is 0 with any seed.
            if not hashed or not has_text(value) or not is_of_user(sys._getframe(1).f_globals):  # noqa: SLF001
                return hashed
            self.text_hashes += 1
            multiple = (_MOST - hashed % _HASHES) * _BUCKETS
            return -multiple if extreme == "low" else multiple - 1

        names: Any = builtins
        names.hash = extreme_hash


def has_text(value: Any) -> bool:
    """Return true if the hash of a value depends on the hash seed of the process; classes may have their own hash."""
    hashed: Any = type(value).__hash__
    if hashed in (tuple.__hash__, frozenset.__hash__):
        return any(map(has_text, value))
    if hashed in (datetime.__hash__, time.__hash__):
        # With a zone it is the hash of a duration.
        return bool(value.utcoffset() is None)
    return hashed in (str.__hash__, bytes.__hash__, date.__hash__, Enum.__hash__)

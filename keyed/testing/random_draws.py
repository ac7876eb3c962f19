"""Extreme random numbers and hashes: the next draws of `random`, `secrets` and NumPy are low, high, or of another seed.

Hypothesis seeds `random` and NumPy equally before each example, so two runs of an example would draw the same numbers,
and an event of small probability, such as ``random.random() < 0.001``, would hardly ever occur. The first numbers are
set to the lowest, or the highest, possible; later ones follow a seed, for functions that draw until a number fits.

`secrets`, `random.SystemRandom` and `uuid.uuid4` read the system's random bytes, which no seed repeats: an example that
failed once would pass when it is tried again, and could not be shrunk. So numbers that the user's own code draws there
come from here. Identifiers, which have more bytes, still come from the system, so that they are unique.

``hash`` of a value with text depends on ``PYTHONHASHSEED``. For the user's own code it is a multiple of all usual
numbers of buckets in the low run, and one below a multiple in the high run: `hash(x) % n` is 0, then n - 1.
"""

from __future__ import annotations

import builtins
import os
import random
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, time
from enum import Enum
from types import FrameType
from typing import Any, Literal

Draws = Literal["low", "high", "seeded"]
#: Number of extreme words of 32 bits, and of extreme numbers of the system; a floating-point number uses two words.
_EXTREME_WORDS = 64
#: Up to this many bytes of the system are a number; more are an identifier.
_NUMBER = 8
#: All numbers to 16, powers of two to 128 and of ten to 10,000 divide it; times 33 bits of a hash it fits in 63 bits.
_BUCKETS = 2**7 * 3**2 * 5**4 * 7 * 11 * 13
_STDLIB = sysconfig.get_path("stdlib")


def _undone(word: int) -> int:
    """Return the state word of a Mersenne twister whose tempered output is ``word``."""
    word ^= word >> 18
    word ^= (word << 15) & 0xEFC60000
    undone = word
    for _ in range(5):
        undone = word ^ ((undone << 7) & 0x9D2C5680)
    word = undone & 0xFFFFFFFF
    for _ in range(3):
        undone = word ^ (undone >> 11)
    return undone & 0xFFFFFFFF


_HIGHEST = _undone(0xFFFFFFFF)


@contextmanager
def drawing(draws: Draws, seed: int) -> Iterator[None]:
    """Set the next draws of `random`, and of NumPy if it is imported; within the context those of the system and `hash`.

    Args:
        draws: The first numbers; "seeded" leaves ``hash`` as it is.
        seed: The seed of the later ones.
    """
    _set_next(draws, seed)
    system = os.urandom
    thread = threading.get_ident()
    following = random.Random(f"{draws} {seed}")  # noqa: S311 - chance of tests
    numbers = 0

    def urandom(size: int, /) -> bytes:
        nonlocal numbers
        if size > _NUMBER or threading.get_ident() != thread or not _is_of_user(sys._getframe(1)):  # noqa: SLF001
            return system(size)
        numbers += 1
        if draws == "seeded" or numbers > _EXTREME_WORDS:
            return following.randbytes(size)
        return (b"\0" if draws == "low" else b"\xff") * size

    real_hash = hash

    def extreme_hash(value: object, /) -> int:
        found, caller = real_hash(value), sys._getframe(1)  # noqa: SLF001
        # A class with its own hash looks its objects up by it, in dictionaries of the other run too.
        if not found or not _has_text(value) or caller.f_code.co_name == "__hash__":
            return found
        if threading.get_ident() != thread or not _is_of_user(caller):
            return found
        multiple = (found & (2**33 - 1)) * _BUCKETS
        return multiple if draws == "low" else -1 - multiple

    # `random` has a name of its own for it.
    module: Any = random
    names: Any = builtins
    os.urandom = module._urandom = urandom  # noqa: SLF001
    if draws != "seeded":
        names.hash = extreme_hash
    try:
        yield
    finally:
        os.urandom = module._urandom = system  # noqa: SLF001
        names.hash = real_hash


def _has_text(value: object) -> bool:
    """Return true if the hash of a value depends on the hash seed of the process."""
    if isinstance(value, tuple | frozenset):
        return any(map(_has_text, value))
    # The hash of a date is that of its bytes, the hash of a member of an enum that of its name.
    return isinstance(value, str | bytes | date | time | Enum)


def _is_of_user(frame: FrameType | None) -> bool:
    """Return true if the innermost caller outside the standard library is neither a library nor part of keyed."""
    while frame is not None:
        file = frame.f_code.co_filename
        is_installed = "site-packages" in file
        if is_installed or not (file.startswith(_STDLIB) or "frozen" in file):
            package = str(frame.f_globals.get("__name__")).partition(".")[0]
            return not is_installed and package not in ("keyed", "windows")
        frame = frame.f_back
    return False


def _set_next(draws: Draws, seed: int) -> None:
    words = list(random.Random(seed).getstate()[1][:-1])  # noqa: S311 - chance of tests
    if draws != "seeded":
        words[:_EXTREME_WORDS] = [0 if draws == "low" else _HIGHEST] * _EXTREME_WORDS
    random.setstate((3, (*words, 0), None))
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.set_state(("MT19937", words, 0, 0, 0.0))

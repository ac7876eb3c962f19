"""Extreme random numbers: the next draws of `random`, `secrets` and NumPy are low, high, or from another seed.

Hypothesis seeds `random` and NumPy equally before each example, so two runs of an example would draw the same numbers,
and an event of small probability, such as ``random.random() < 0.001``, would hardly ever occur. The first numbers are
set to the lowest, or the highest, possible; later ones follow a seed, for functions that draw until a number fits.

`secrets`, `random.SystemRandom` and `uuid.uuid4` read the system's random bytes, which no seed repeats: an example that
failed once would pass when it is tried again, and could not be shrunk. So numbers that the user's own code draws there
come from here. Identifiers, which have more bytes, still come from the system, so that they are unique.
"""

from __future__ import annotations

import os
import random
import sys
import sysconfig
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Literal

from keyed.testing.moved_clocks import is_of_user

Draws = Literal["low", "high", "seeded"]
#: Number of extreme words of 32 bits, and of extreme numbers of the system; a floating-point number uses two words.
_EXTREME_WORDS = 64
#: Up to this many bytes of the system are a number; more are an identifier.
_NUMBER = 8
#: The state of a Mersenne twister for which the next number is 0xFFFFFFFF: its tempering, undone.
_HIGHEST = 0x12DD9BB3
_STDLIB = sysconfig.get_path("stdlib")


@contextmanager
def drawing(draws: Draws, seed: int) -> Iterator[None]:
    """Set the next draws of `random`, and of NumPy if it is imported; within the context those of the system, too."""
    _set_next(draws, seed)
    system = os.urandom
    thread = threading.get_ident()
    following = random.Random(f"{draws} {seed}")  # noqa: S311 - chance of tests
    numbers = 0

    def urandom(size: int, /) -> bytes:
        nonlocal numbers
        if size > _NUMBER or threading.get_ident() != thread or not _is_users(sys._getframe(1)):  # noqa: SLF001
            return system(size)
        numbers += 1
        if draws == "seeded" or numbers > _EXTREME_WORDS:
            return following.randbytes(size)
        return (b"\0" if draws == "low" else b"\xff") * size

    # `random` has a name of its own for it.
    module: Any = random
    os.urandom = module._urandom = urandom  # noqa: SLF001
    try:
        yield
    finally:
        os.urandom = module._urandom = system  # noqa: SLF001


def _is_users(frame: FrameType | None) -> bool:
    """Return true if the innermost caller outside the standard library is neither a library nor part of keyed."""
    while frame is not None:
        file = frame.f_code.co_filename
        if "site-packages" in file or not (file.startswith(_STDLIB) or "frozen" in file):
            return is_of_user(frame.f_globals)
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

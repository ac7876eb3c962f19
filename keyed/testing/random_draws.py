"""Extreme random numbers: the next draws of `random` and NumPy are low, high, or from another seed.

Hypothesis seeds both equally before each example, so two runs of an example would draw the same numbers, and an event
of small probability, such as ``random.random() < 0.001``, would hardly ever occur. The first numbers are set to the
lowest, or the highest, possible; later ones follow a seed, for functions that draw until a number fits.
"""

from __future__ import annotations

import random
import sys
from typing import Literal

Draws = Literal["low", "high", "seeded"]
#: Number of extreme words of 32 bits; a floating-point number uses two.
_EXTREME_WORDS = 64


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


def draw_next(draws: Draws, seed: int) -> None:
    """Set the next draws of `random`, and of NumPy if it is imported."""
    words = list(random.Random(seed).getstate()[1][:-1])  # noqa: S311 - chance of tests
    if draws != "seeded":
        words[:_EXTREME_WORDS] = [0 if draws == "low" else _HIGHEST] * _EXTREME_WORDS
    random.setstate((3, (*words, 0), None))
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.set_state(("MT19937", words, 0, 0, 0.0))

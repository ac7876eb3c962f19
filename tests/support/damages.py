"""Damage to the files of local stores: what disks, other programs and restored copies leave."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from random import Random

PAGE = 4096
KINDS = ("flip", "zero page", "swap pages", "cut", "old copy", "old page")


def damage(file: Path, kind: str, random: Random, old: bytes, *, among: Callable[[bytes], bool] = bool) -> None:
    """Damage a file in place.

    Args:
        file: The file.
        kind: One of `KINDS`.
        random: Chooses the place.
        old: Its content at an earlier time.
        among: Chooses the pages; all that are not empty by default.
    """
    data = bytearray(file.read_bytes())
    pages = [at for at in range(0, len(data), PAGE) if among(bytes(data[at : at + PAGE]))] or [0]
    at = random.choice(pages)
    if kind == "flip":
        for _ in range(8):
            place = random.choice(pages)
            bits = range(place, min(place + PAGE, len(data)))
            if bits:
                data[random.choice(bits)] ^= 1 << random.randrange(8)
    elif kind == "zero page":
        data[at : at + PAGE] = bytes(len(data[at : at + PAGE]))
    elif kind == "swap pages":
        other = random.choice(pages)
        one, two = data[at : at + PAGE], data[other : other + PAGE]
        if len(one) == len(two):
            data[at : at + PAGE], data[other : other + PAGE] = two, one
    elif kind == "cut":
        del data[random.randrange(len(data) + 1) :]
    elif kind == "old copy":
        data = bytearray(old)
    else:
        data[at : at + PAGE] = old[at : at + PAGE]
    with file.open("r+b") as opened:
        opened.write(data)
        opened.truncate()


def is_leaf_of_entries(page: bytes) -> bool:
    """Return true for a page of LMDB's with keys and values of a store, and not of its list of free pages."""
    if len(page) < PAGE:
        return False
    flags, lower = struct.unpack_from("<HH", page, 10)
    if flags != 2 or lower <= 16:
        return False
    (node,) = struct.unpack_from("<H", page, 16)
    return page[node + 8 : node + 9] in (b"E", b"I")

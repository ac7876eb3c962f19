"""Approximate number of distinct values in bounded space: HyperLogLog.

Registers are updated as in Flajolet et al. (2007); the estimate is Ertl's improved one ("New cardinality estimation
algorithms for HyperLogLog sketches", 2017, algorithm 6), which needs no correction tables and is accurate for small
numbers too. With precision p the relative standard error is 1.04 / √(2^p): 1.6 % for p = 12.

Equal values of int, float and decimal have equal hashes (1, 1.0 and Decimal(1)). Hash: xxh64 with seed 0 of
a tag byte and the value: ``s`` UTF-8 text, ``b`` bytes, ``i`` decimal text of a whole number, ``f`` float64 big-endian,
``t`` microseconds since the epoch of an aware datetime as text, ``p`` bool as ``0`` or ``1``, ``r`` the values of a
tuple each as length and hash input, and ``o`` type name and text of anything else that is plain data.

An accumulator is a dict of register to rank while few registers are set, and 2^p bytes from then on.
"""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

import datetime as dt
import math
import struct
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from xxhash import xxh64_intdigest

from keyed.errors import DefinitionError, EncodingError
from keyed.windows.aggregates import Column, ColumnAggregate

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_ALPHA = 1 / (2 * math.log(2))


class ApproxCountDistinct(ColumnAggregate):
    """Approximate number of distinct values, with a relative standard error of 1.04 / √(2^precision).

    It takes 2^precision bytes; precision is 4 to 16.

    Raises:
        DefinitionError: The precision is out of range.
    """

    _result = "bigint"

    def __init__(self, column: Column = None, *, precision: int = 12) -> None:
        super().__init__(column)
        if not isinstance(precision, int) or isinstance(precision, bool) or not 4 <= precision <= 16:
            raise DefinitionError(f"precision={precision!r} must be an int from 4 to 16")
        self.precision = precision
        self._sparse_limit = (1 << precision) // 16

    def create_accumulator(self) -> Any:
        return {}

    def add(self, value: Any, accumulator: Any) -> Any:
        value = self._value(value)
        if value is None:
            return accumulator
        hashed = xxh64_intdigest(_hash_input(value))
        width = 64 - self.precision
        register = hashed >> width
        rest = hashed & ((1 << width) - 1)
        rank = width - rest.bit_length() + 1
        if accumulator.__class__ is bytes:
            if accumulator[register] < rank:
                return accumulator[:register] + bytes((rank,)) + accumulator[register + 1 :]
            return accumulator
        if accumulator.get(register, 0) < rank:
            accumulator[register] = rank
            if len(accumulator) > self._sparse_limit:
                return self._dense(accumulator)
        return accumulator

    def merge(self, a: Any, b: Any) -> Any:
        if a.__class__ is dict and b.__class__ is dict:
            merged = dict(a)
            for register, rank in b.items():
                if merged.get(register, 0) < rank:
                    merged[register] = rank
            return self._dense(merged) if len(merged) > self._sparse_limit else merged
        return bytes(map(max, self._dense(a), self._dense(b)))

    def get_result(self, accumulator: Any) -> Any:
        width = 64 - self.precision
        counts = [0] * (width + 2)
        ranks = accumulator if accumulator.__class__ is bytes else accumulator.values()
        for rank in ranks:
            counts[rank] += 1
        if accumulator.__class__ is not bytes:
            counts[0] += (1 << self.precision) - len(accumulator)
        return round(estimate(counts))

    def _of_parts(self, part: Callable[[str], Any]) -> Any:
        return {each >> 6: each & 63 for each in part(f"registers_{self.precision}") or ()}

    def _dense(self, accumulator: Any) -> bytes:
        if accumulator.__class__ is bytes:
            return accumulator
        registers = bytearray(1 << self.precision)
        for register, rank in accumulator.items():
            registers[register] = rank
        return bytes(registers)


def estimate(counts: list[int]) -> float:
    """Return the estimate from the number of registers with each rank (Ertl's algorithm 6).

    Args:
        counts: Number of registers by rank, from 0 to 65 − precision.
    """
    registers = sum(counts)
    z = registers * _tau(1 - counts[-1] / registers)
    for count in reversed(counts[1:-1]):
        z = 0.5 * (z + count)
    z += registers * _sigma(counts[0] / registers)
    return _ALPHA * registers * registers / z


def hash_value(value: Any) -> int:
    """Return the 64-bit hash of a value, as the sketch uses it.

    Raises:
        EncodingError: The value is not plain data.
    """
    return xxh64_intdigest(_hash_input(value))


def _hash_input(value: Any) -> bytes:
    cls = value.__class__
    if cls is str:
        return b"s" + value.encode()  # type: ignore[no-any-return]
    if cls is int:
        return b"i%d" % value
    if cls is bool:
        return b"p1" if value else b"p0"
    if cls is float:
        if math.isnan(value):
            value = math.nan  # every NaN, whatever its bits
        return b"i%d" % value if math.isfinite(value) and value == int(value) else b"f" + struct.pack(">d", value)
    if cls is bytes:
        return b"b" + value  # type: ignore[no-any-return]
    if cls is Decimal:
        return b"i%d" % value if value.is_finite() and value == int(value) else b"f" + struct.pack(">d", float(value))
    if cls is dt.datetime and value.tzinfo is not None:
        return b"t%d" % ((value - _EPOCH) // _MICROSECOND)
    if cls in (dt.datetime, dt.date, dt.time, dt.timedelta, uuid.UUID):
        return f"o{cls.__name__}{value}".encode()
    if isinstance(value, tuple):
        parts = [_hash_input(item) if item is not None else b"n" for item in value]
        return b"r" + b"".join(b"%d:" % len(part) + part for part in parts)
    raise EncodingError(
        f"a {cls.__name__} cannot be counted approximately; give a function that converts it to plain data"
    )


def _sigma(x: float) -> float:
    if x == 1:
        return math.inf
    y, z, before = 1.0, x, -1.0
    while z != before:
        x *= x
        before = z
        z += x * y
        y += y
    return z


def _tau(x: float) -> float:
    if x in (0, 1):
        return 0.0
    y, z, before = 1.0, 1 - x, -1.0
    while z != before:
        x = math.sqrt(x)
        before = z
        y *= 0.5
        z -= (1 - x) ** 2 * y
    return z / 3

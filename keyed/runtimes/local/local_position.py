"""Position of a query of the local runtime in its sources.

The position is committed with each batch, and logged to the changelogs of the query before the batch is exported, so
that a restored query resumes where the batch ended. It is a frame (`keyed.codec.frames`) of kind ``KRUN``, version 1,
whose payload is msgpack of the fields of `LocalPosition` as a map.

With ingestion time the rows and the time of a batch are committed before it runs, as a frame of kind ``KBEG``, version
1, with the fields of `BegunBatch`, so that a rerun of the batch has the same.

The position in a source without positions of its own has digests of the consumed rows, to check that the source still
begins with them. There is a digest for the first thousand rows, and one for the last thousand. A row's digest is the
same for all kinds of sources: dictionaries, rows, a DataFrame. It is BLAKE2b over the MessagePack of the row's plain
form: numbers are compared by value and times by instant, a null equals a missing field, and objects other than data
count by their type. A row that contains itself, or is nested more than `MAX_VALUE_DEPTH` deep, counts as such a row.
The digest of several rows is BLAKE2b over their digests.
"""

from __future__ import annotations

import dataclasses
import enum
import numbers
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from hashlib import blake2b
from math import isfinite
from operator import itemgetter
from typing import Any
from uuid import UUID

import attrs
from msgspec.msgpack import Encoder

from keyed.base.ids import random_id
from keyed.changelog.model import batch_id
from keyed.codec.frames import RecordFormat
from keyed.codec.keys import encode_key
from keyed.codec.tagged import MAX_VALUE_DEPTH
from keyed.engine.replica import Loader
from keyed.job.results import Restored
from keyed.recovery.cut import Cut, lineage
from keyed.rows import fields_of
from keyed.stores.commit_store import BufferedCommits

#: Number of rows at either end that are compared.
ROWS = 1000
#: Digits of the largest number with a fraction that is compared with ints: those of the largest float.
_MOST_DIGITS = 308
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_pack = Encoder().encode


@attrs.frozen
class Consumed:
    """The digests of the first and of the last consumed rows."""

    first: bytes
    last: bytes


class Tracker:
    """Tracks the consumed rows.

    Args:
        count: Number of rows that were consumed before.
        first: The first `ROWS` of them.
        last: The last `ROWS` of them.
    """

    def __init__(self, count: int = 0, first: Iterable[Any] = (), last: Iterable[Any] = ()) -> None:
        self._first = [_digest(row) for row in first]
        self._last = deque((_digest(row) for row in last), ROWS)
        self._digest_of_first = _joined(self._first)
        assert len(self._first) == len(self._last) == min(count, ROWS)

    def add(self, count: int, rows: Callable[[int, int], Iterable[Any]]) -> None:
        """Record a batch.

        Args:
            count: Number of its rows.
            rows: Returns the rows from an index up to, not including, another one.
        """
        missing = min(ROWS - len(self._first), count)
        if missing:
            self._first += [_digest(row) for row in rows(0, missing)]
            self._digest_of_first = _joined(self._first)
        self._last.extend(_digest(row) for row in rows(max(0, count - ROWS), count))

    def consumed(self) -> Consumed:
        """Return the digests for the checkpoint."""
        return Consumed(self._digest_of_first, _joined(self._last))


def _joined(digests: Iterable[bytes]) -> bytes:
    return blake2b(b"".join(digests), digest_size=16).digest()


def _digest(row: Any) -> bytes:
    try:
        plain = _encoded(_plain(row, 0))
    except _TooDeepError:
        plain = b"..."
    return blake2b(plain, digest_size=16).digest()


class _TooDeepError(Exception):
    """A row is nested too deep, or contains itself."""


def _encoded(plain: Any) -> bytes:
    try:
        return _pack(plain)
    except (OverflowError, UnicodeEncodeError):
        return _pack(_spelt(plain))


def _spelt(plain: Any) -> Any:
    """Return a plain form with bytes for the numbers and texts that MessagePack lacks: big ones, lone surrogates."""
    if isinstance(plain, list):
        return list(map(_spelt, plain))
    if isinstance(plain, str):
        return plain.encode("utf-8", "surrogatepass")
    if plain.__class__ is int and not -(1 << 63) <= plain < 1 << 64:
        return plain.to_bytes(plain.bit_length() // 8 + 1, "big", signed=True)
    return plain


def _plain(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None or kind is bytes:
        return value
    if kind is float:
        return _of_float(value)
    if depth > MAX_VALUE_DEPTH:
        raise _TooDeepError
    return _plain_data(value, depth + 1)


def _of_float(value: float) -> Any:
    # NaN is pandas' null.
    if value != value:  # noqa: PLR0124
        return None
    return int(value) if isfinite(value) and value.is_integer() else value


def _plain_data(value: Any, depth: int) -> Any:
    # Not `isinstance`, which believes an object that names another class.
    kind = type(value)
    if issubclass(kind, enum.Enum):
        return value.name
    if issubclass(kind, Mapping):
        return _fields(value.items(), depth)
    if (names := fields_of(kind)) is not None:
        return _fields(zip(names, value, strict=False), depth)
    if issubclass(kind, list | tuple | deque):
        return [_plain(item, depth) for item in value]
    if issubclass(kind, set | frozenset):
        return sorted(_encoded(_plain(item, depth)) for item in value)
    if attrs.has(kind):
        return _fields(((field.name, getattr(value, field.name)) for field in attrs.fields(kind)), depth)
    if dataclasses.is_dataclass(kind):
        return _fields(((field.name, getattr(value, field.name)) for field in dataclasses.fields(kind)), depth)
    return _of_scalar(value, kind)


def _of_scalar(value: Any, kind: type) -> Any:
    """Return the plain form of a value that has no parts."""
    if issubclass(kind, str):
        return str.__str__(value)
    if issubclass(kind, bytes | bytearray):
        return bytes(value)
    if issubclass(kind, datetime):
        if value != value:  # noqa: PLR0124 - pandas' NaT
            return None
        return [(value - _EPOCH) // _MICROSECOND] if value.utcoffset() is not None else value.isoformat()
    if issubclass(kind, date | time):
        return value.isoformat()
    if issubclass(kind, timedelta):
        return [value.days, value.seconds, value.microseconds]
    if issubclass(kind, UUID):
        return value.bytes
    if issubclass(kind, Decimal):
        return _of_decimal(value)
    if issubclass(kind, numbers.Integral):
        return int(value)
    try:
        return _of_float(float(value)) if issubclass(kind, numbers.Real) else kind.__qualname__
    except OverflowError:
        return kind.__qualname__


def _of_decimal(value: Decimal) -> Any:
    if value.is_nan():
        return None
    # Others may have a billion digits.
    if value.is_finite() and value.adjusted() <= _MOST_DIGITS and value == value.to_integral_value():
        return int(value)
    number = float(value)
    return _of_float(number) if Decimal(number) == value else encode_key(value)


def _fields(items: Iterable[tuple[Any, Any]], depth: int) -> list[Any]:
    plain = [(_name(name, depth), _plain(value, depth)) for name, value in items]
    return sorted(([name, value] for name, value in plain if value is not None), key=itemgetter(0))


def _name(name: Any, depth: int) -> bytes:
    return name.encode("utf-8", "surrogatepass") if name.__class__ is str else _encoded(_plain(name, depth))


_KIND = b"KRUN"


@attrs.define
class SourcePosition:
    """Position of a query in one of its sources. The attributes are those of `LocalPosition`."""

    rows: int = 0
    digests: Consumed | None = None
    source: Any = None


@attrs.define
class LocalPosition:
    """The runner's own record.

    Attributes:
        operators: Names of the operators in order.
        batches: Batches committed so far; the next batch has this id.
        rows: Rows of the source consumed so far.
        ended: True if the input has ended.
        queries: Id of the query, after those of the queries that it was restored from.
        digests: Digests of the first and last consumed rows; ``None`` if the source has positions.
        source: The position of a `keyed.SeekableSource`.
        beside: The positions in its other sources, in their order.
        restored: Number of batches of the earlier query from whose changelogs this one was restored.
        sizes: Numbers of chained operators, in order (`keyed.job.chaining.lines`).
    """

    operators: list[str]
    batches: int = 0
    rows: int = 0
    ended: bool = False
    queries: list[str] = attrs.field(factory=list)
    restored: int = 0
    digests: Consumed | None = None
    source: Any = None
    beside: list[SourcePosition] = attrs.field(factory=list)
    sizes: list[int] = attrs.field(factory=list)


@attrs.frozen
class BegunBatch:
    """A batch that was begun, and may have been committed since.

    Attributes:
        batch: Its id.
        rows: Number of its rows from the source.
        processing_time: Its time, milliseconds.
    """

    batch: int
    rows: int
    processing_time: int


_BEGUN: RecordFormat[BegunBatch] = RecordFormat(b"KBEG", 1, BegunBatch)
encode_begun = _BEGUN.encode
decode_begun = _BEGUN.decode
_RECORD: RecordFormat[LocalPosition] = RecordFormat(_KIND, 1, LocalPosition)
encode_position = _RECORD.encode
decode_position = _RECORD.decode


def commit_restored(
    commits: BufferedCommits, operators: list[str], sizes: list[int], cut: Cut, loaders: Iterable[Loader]
) -> tuple[LocalPosition, Restored]:
    """Commit the loaded state of a restored query with its position, together: a partially restored one is not valid.

    Args:
        commits: The store of commits.
        operators: Names of its operators in order.
        sizes: Numbers of chained operators, as in `LocalPosition`.
        cut: The cut of the restore.
        loaders: The loaders of all key groups.

    Returns:
        The position, and whether the changelogs have one of this runtime.

    Raises:
        CorruptionError: The position is damaged.
    """
    position, batch = LocalPosition(operators), batch_id(cut.sequence)
    with_position = cut.position is not None and cut.position.startswith(_KIND)
    if cut.position is not None and with_position:
        position = decode_position(cut.position, f"position of batch {batch} in a changelog")
    position.operators, position.sizes, position.queries = operators, sizes, [*lineage(cut), random_id()]
    position.batches = position.restored = cut.sequence
    for loader in loaders:
        loader.write_meta()
    commits.write("run", encode_position(position))
    commits.commit()
    return position, Restored(batch, with_position=with_position)

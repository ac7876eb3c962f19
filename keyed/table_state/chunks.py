"""A stored table: chunks of rows in the order of the hashes of their keys, each row in one place only.

Writing appends: the rows that a commit writes become a new *run* of chunks, and the rows that they replace are marked
dead in place. So a binary search in each run finds a row, no row shadows another, and a scan only filters. Runs of
similar size are merged, as in a log-structured merge tree (O'Neil et al., 1996): a row is rewritten a number of times
that grows with the logarithm of the table.

A chunk has the least and greatest hash and the bounds of its integer columns, so that reads can skip it.

Predicates over the rows are ranges of integers, which are data and can skip rows unread, or expressions. A range is
``(column, least, greatest)``, both included, over the integer that an integer, date or timestamp column holds; several
of them must all hold. That is what a removed range is in the log. Null is in no range.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from numbers import Integral
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from keyed.content.blocks import Range, TableDelta
from keyed.content.row_hash import Words, row_hashes
from keyed.errors import StateAccessError

#: Maximal number of rows of a chunk.
CHUNK_ROWS = 1 << 15
#: Numbers of rows.
Positions = np.ndarray[Any, np.dtype[np.int64]]


@attrs.define(eq=False)
class Sorted:
    """Rows with unique keys in the order of the hashes of their keys."""

    hashes: Words
    table: pa.Table

    def find(self, hashes: Words, keys: pa.Table) -> Positions:
        """Return the row with each key, −1 where there is none.

        Args:
            hashes: The hashes of the keys, ascending.
            keys: The key columns, in any order of the columns.
        """
        places = np.searchsorted(self.hashes, hashes)
        places[places == len(self.hashes)] = 0
        positions = np.full(len(hashes), -1)
        hits = np.flatnonzero(self.hashes[places] == hashes) if len(self.hashes) else places[:0]
        if not len(hits):
            return positions
        mine = self.table.select(keys.column_names).take(places[hits])
        same = _same_rows(mine, keys.take(hits) if len(hits) < len(hashes) else keys)
        positions[hits[same]] = places[hits[same]]
        for hit in hits[~same].tolist():
            # Another key has this hash; the requested one may follow it.
            key = keys.slice(hit, 1)
            end = int(np.searchsorted(self.hashes, hashes[hit], side="right"))
            for place in range(int(places[hit]) + 1, end):
                if _same_rows(self.table.select(keys.column_names).slice(place, 1), key)[0]:
                    positions[hit] = place
        return positions


def in_hash_order(table: pa.Table, keys: Sequence[str]) -> Sorted:
    """Return the rows of a table in the order of the hashes of their keys."""
    hashes = row_hashes(table, keys)
    if not bool((hashes[1:] < hashes[:-1]).any()):
        return Sorted(hashes, table)
    order = np.argsort(hashes, kind="stable")
    return Sorted(hashes[order], table.take(order))


def _same_rows(one: pa.Table, other: pa.Table) -> Mask:
    """Return which rows are equal; nulls are equal to each other, floats by their bytes."""
    same = np.ones(one.num_rows, dtype="bool")
    for name in one.column_names:
        a: Any = one.column(name)
        b: Any = other.column(name)
        if pa.types.is_floating(a.type):
            width = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[a.type.bit_width]
            a, b = (column.combine_chunks().view(width) for column in (a, b))
        equal = pc.equal(a, b)
        if equal.null_count:
            equal = pc.fill_null(equal, pc.and_(a.is_null(), b.is_null()))
        same &= equal.to_numpy(zero_copy_only=False) if isinstance(equal, pa.Array) else equal.to_numpy()
    return same


class Chunk:
    """Up to `CHUNK_ROWS` rows. This one holds them in memory.

    Attributes:
        rows: Number of rows, dead ones included.
        dead: Which rows are dead, ``None`` if none is.
        low: Least hash.
        high: Greatest hash.
        bounds: Least and greatest integer of each range column.
    """

    def __init__(self, content: Sorted) -> None:
        self._content = content
        self.rows = content.table.num_rows
        self.dead: Mask | None = None
        self.low, self.high = content.hashes[0], content.hashes[-1]
        self.bounds = bounds_of(content.table)

    def content(self) -> Sorted:
        """Return the rows, dead ones included."""
        return self._content

    @property
    def alive(self) -> int:
        """Number of rows that are not dead."""
        return self.rows if self.dead is None else self.rows - int(np.count_nonzero(self.dead))

    def kill(self, rows: Any) -> None:
        """Mark rows as dead: their numbers, or a mask."""
        if self.dead is None:
            self.dead = np.zeros(self.rows, dtype="bool")
        self.dead[rows] = True


class ChunkedTable:
    """The rows of one table state of a key group. A position is a row's number over all chunks.

    Args:
        keys: Columns of the key.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self.keys = tuple(keys)
        self.runs: list[list[Chunk]] = []

    # Reading ----------------------------------------------------------------------------------------------------

    @property
    def chunks(self) -> Iterator[tuple[int, Chunk]]:
        """All chunks, each with the position of its first row."""
        start = 0
        for run in self.runs:
            for chunk in run:
                yield start, chunk
                start += chunk.rows

    @property
    def positions(self) -> int:
        """Number of positions."""
        return sum(chunk.rows for run in self.runs for chunk in run)

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return sum(chunk.alive for run in self.runs for chunk in run)

    def find(self, sought: Sorted) -> Positions:
        """Return the position of each key, −1 where it is not there."""
        positions = np.full(len(sought.hashes), -1)
        for start, chunk in self.chunks:
            first = int(np.searchsorted(sought.hashes, chunk.low))
            last = int(np.searchsorted(sought.hashes, chunk.high, side="right"))
            if first >= last:
                continue
            keys = sought.table.select(self.keys).slice(first, last - first)
            rows = chunk.content().find(sought.hashes[first:last], keys)
            if chunk.dead is not None:
                rows[(rows >= 0) & chunk.dead[rows]] = -1
            hits = np.flatnonzero(rows >= 0)
            positions[first + hits] = start + rows[hits]
        return positions

    def at(self, positions: Positions) -> pa.Table | None:
        """Return the rows at positions, in that order; ``None`` if there are no positions."""
        if not len(positions):
            return None
        order = None
        if bool((positions[1:] < positions[:-1]).any()):
            order = np.argsort(positions, kind="stable")
            positions = positions[order]
        parts = [chunk.content().table.take(rows) for chunk, rows in self._by_chunk(positions)]
        table = pa.concat_tables(parts, promote_options="default")
        return table if order is None else table.take(np.argsort(order))

    def select(self, ranges: Sequence[Range] | None) -> Iterator[tuple[Positions, pa.Table]]:
        """Yield the rows in ranges, or all of them, with their positions, a chunk at a time."""
        for start, chunk in self.chunks:
            mask = self._mask(chunk, ranges)
            if mask is None:
                yield np.arange(start, start + chunk.rows), chunk.content().table
            elif mask.any():
                rows = np.flatnonzero(mask)
                yield start + rows, chunk.content().table.take(rows)

    def _by_chunk(self, positions: Positions) -> Iterator[tuple[Chunk, Positions]]:
        """Yield the chunks of ascending positions, each with the numbers of its rows."""
        for start, chunk in self.chunks:
            first, last = np.searchsorted(positions, [start, start + chunk.rows]).tolist()
            if first < last:
                yield chunk, positions[first:last] - start

    @staticmethod
    def _mask(chunk: Chunk, ranges: Sequence[Range] | None) -> Mask | None:
        """Return the live rows of a chunk that are in ranges; ``None`` for all of its rows."""
        mask: Mask | None = None
        if ranges:
            if not meets(ranges, chunk.bounds):
                return np.zeros(1, dtype="bool")
            mask = mask_of(ranges, chunk.content().table)
        if chunk.dead is not None:
            mask = ~chunk.dead if mask is None else mask & ~chunk.dead
        return mask

    def rows_of(self, keys: pa.Table) -> pa.Table | None:
        """Return the existing rows of some keys, each once; ``None`` if there are none."""
        positions = self.find(in_hash_order(keys, self.keys))
        return self.at(np.unique(positions[positions >= 0]))

    def live(self, rows: pa.Table) -> Positions:
        """Return the positions of those rows that exist unchanged."""
        ordered = in_hash_order(rows, self.keys)
        positions = self.find(ordered)
        hits = np.flatnonzero(positions >= 0)
        stored = self.at(positions[hits])
        if stored is None:
            return hits
        same = row_hashes(stored) == row_hashes(ordered.table.take(hits))
        live: Positions = positions[hits[same]]
        return live

    # Writing ----------------------------------------------------------------------------------------------------

    def apply(self, delta: TableDelta) -> None:
        """Apply the changes of a commit. Call `compact` after the last one."""
        for ranges in delta.ranges:
            for run in self.runs:
                for chunk in run:
                    mask = self._mask(chunk, ranges)
                    if mask is None or mask.any():
                        chunk.kill(slice(None) if mask is None else mask)
        for rows in (delta.removed, delta.upserts):
            if rows is not None and rows.num_rows:
                content = in_hash_order(rows, self.keys)
                self._kill(self.find(content))
                if rows is delta.upserts:
                    self.runs.append(self._run(content))

    def _kill(self, positions: Positions) -> None:
        for chunk, rows in self._by_chunk(np.sort(positions[positions >= 0])):
            chunk.kill(rows)

    @staticmethod
    def _run(content: Sorted) -> list[Chunk]:
        """Return a run of new chunks."""
        size = content.table.num_rows
        return [
            Chunk(Sorted(content.hashes[start : start + CHUNK_ROWS], content.table.slice(start, CHUNK_ROWS)))
            for start in range(0, size, CHUNK_ROWS)
        ]

    def keep(self, chunk: Chunk) -> Chunk:
        """Store a new chunk."""
        return chunk

    def compact(self) -> None:
        """Drop chunks without live rows, and merge runs until each is larger than those after it together."""
        for run in self.runs:
            run[:] = [chunk for chunk in run if chunk.alive]
        self.runs = [run for run in self.runs if run]
        first = len(self.runs)
        newer = 0
        for index in reversed(range(len(self.runs))):
            alive = sum(chunk.alive for chunk in self.runs[index])
            mostly_dead = 2 * alive < sum(chunk.rows for chunk in self.runs[index])
            if (newer and alive <= newer) or mostly_dead:
                first = index
            newer += alive
        if first < len(self.runs):
            self.runs[first:] = [self._merged([chunk for run in self.runs[first:] for chunk in run])]
        for run in self.runs:
            run[:] = map(self.keep, run)

    def _merged(self, chunks: list[Chunk]) -> list[Chunk]:
        """Merge the live rows of chunks into a run, by parts of the range of hashes, so that few are in memory."""
        parts = -(-sum(chunk.alive for chunk in chunks) * 4 // (3 * CHUNK_ROWS))
        ends = [(1 << 64) * part // parts for part in range(parts + 1)]
        run: list[Chunk] = []
        for low, end in pairwise(ends):
            within = self._find_within(chunks, np.uint64(low), np.uint64(end - 1))
            if within is not None:
                run += map(self.keep, self._run(within))
        return run

    @staticmethod
    def _find_within(chunks: list[Chunk], low: Any, high: Any) -> Sorted | None:
        """Return the live rows whose hashes are in a range."""
        hashes, tables = [], []
        for chunk in chunks:
            if chunk.low > high or chunk.high < low:
                continue
            content = chunk.content()
            first = int(np.searchsorted(content.hashes, low))
            last = int(np.searchsorted(content.hashes, high, side="right"))
            part, rows = content.hashes[first:last], content.table.slice(first, last - first)
            if chunk.dead is not None:
                live = ~chunk.dead[first:last]
                part, rows = part[live], rows.filter(live)
            if len(part):
                hashes.append(part)
                tables.append(rows)
        if not tables:
            return None
        table = pa.concat_tables(tables, promote_options="default")
        joined = np.concatenate(hashes)
        order = np.argsort(joined, kind="stable")
        return Sorted(joined[order], table.take(order).combine_chunks())


Mask = np.ndarray[Any, np.dtype[np.bool_]]

_LEAST, _GREATEST = -(2**63), 2**63 - 1
_PER_MILLISECOND = {"ms": 1, "us": 1_000, "ns": 1_000_000}
_OPERATORS = {"<": pc.less, "<=": pc.less_equal, "==": pc.equal, ">=": pc.greater_equal, ">": pc.greater}


def parse(predicate: Any, schema: pa.Schema, where: str) -> list[Range] | pc.Expression:
    """Return a user's predicate in normal form.

    Args:
        predicate: A comparison, a list of comparisons, or an expression.
        schema: The columns that it may name.
        where: For messages.

    Raises:
        StateAccessError: It is something else, names another column, or compares with a value of another type.
    """
    if isinstance(predicate, pc.Expression):
        return predicate
    comparisons = [predicate] if isinstance(predicate, tuple) else predicate
    if not isinstance(comparisons, list) or not comparisons:
        raise _refused(predicate, where)
    ranges: list[Range] = []
    expression: Any = None
    for comparison in comparisons:
        if not isinstance(comparison, tuple) or len(comparison) != 3 or comparison[1] not in _OPERATORS:
            raise _refused(predicate, where)
        column, _, value = comparison
        if column not in schema.names:
            raise StateAccessError(f"{where}: predicate {predicate!r}: there is no column {column!r}")
        type_: Any = schema.field(column).type
        try:
            operator, scalar = _limit(comparison[1], value, type_)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise StateAccessError(
                f"{where}: predicate {predicate!r}: {value!r} is not of type {type_}: {error}"
            ) from error
        if not scalar.is_valid:
            raise StateAccessError(f"{where}: predicate {predicate!r} compares with null, which never holds")
        term = _OPERATORS[operator](pc.field(column), scalar)
        expression = term if expression is None else expression & term
        if _is_range_type(type_):
            ranges.append((column, *_bounds(operator, scalar.as_py() if pa.types.is_integer(type_) else scalar.value)))
    return ranges if len(ranges) == len(comparisons) else expression


def _limit(operator: str, value: Any, type_: Any) -> tuple[str, Any]:
    """Return a comparison with a value in the type of the column.

    Integers are milliseconds where the column holds timestamps, as times are everywhere. One beyond what the column can
    hold becomes the comparison with the end of its range that holds for the same rows: a limit such as ``watermark -
    60_000`` is beyond 64 bits before the first row.

    Raises:
        ArrowException, TypeError, ValueError, OverflowError: It is no value of the type.
    """
    if isinstance(value, pa.Scalar):
        if not pa.types.is_integer(value.type) or not value.is_valid:
            return operator, value.cast(type_)
        value = value.as_py()
    if not isinstance(value, Integral) or isinstance(value, bool):
        return operator, pa.scalar(value, type_)
    number, least, greatest = int(value), _LEAST, _GREATEST
    if pa.types.is_timestamp(type_):
        if type_.tz is None or type_.unit not in _PER_MILLISECOND:
            raise TypeError("an integer is a number of milliseconds since the epoch; give a datetime")
        number *= _PER_MILLISECOND[type_.unit]
    elif pa.types.is_signed_integer(type_):
        least, greatest = -(1 << (type_.bit_width - 1)), (1 << (type_.bit_width - 1)) - 1
    elif pa.types.is_integer(type_):
        least, greatest = 0, (1 << type_.bit_width) - 1
    else:
        return operator, pa.scalar(number, type_)
    if number < least:
        operator, number = (">=" if operator in (">", ">=") else "<"), least
    elif number > greatest:
        operator, number = ("<=" if operator in ("<", "<=") else ">"), greatest
    return operator, pa.scalar(number, type_)


def _refused(predicate: Any, where: str) -> StateAccessError:
    return StateAccessError(
        f"{where}: predicate {predicate!r} is neither a pyarrow.compute.Expression nor (column, operator, value), with "
        f"one of {' '.join(_OPERATORS)}, nor a list of those"
    )


def _is_range_type(type_: Any) -> bool:
    types = pa.types
    signed = types.is_signed_integer(type_) or (types.is_unsigned_integer(type_) and type_.bit_width < 64)
    return signed or types.is_timestamp(type_) or types.is_date(type_)


def _integers(column: Any) -> Any:
    """Return a range column as an array of integers."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_integer(array.type):
        return array
    return array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())


def _bounds(operator: str, value: int) -> tuple[int, int]:
    if (operator == "<" and value == _LEAST) or (operator == ">" and value == _GREATEST):
        return 1, 0
    return {
        "<": (_LEAST, value - 1),
        "<=": (_LEAST, value),
        "==": (value, value),
        ">=": (value, _GREATEST),
        ">": (value + 1, _GREATEST),
    }[operator]


def mask_of(predicate: Sequence[Range] | pc.Expression, table: pa.Table) -> Mask:
    """Return a mask of the rows for which a predicate holds."""
    if isinstance(predicate, pc.Expression):
        rows = table.append_column("__keyed_row", pa.array(np.arange(table.num_rows)))
        mask: Mask = np.zeros(table.num_rows, dtype="bool")
        mask[rows.filter(predicate).column("__keyed_row").to_numpy()] = True
        return mask
    mask = np.ones(table.num_rows, dtype="bool")
    for column, least, greatest in predicate:
        if column not in table.column_names:
            # Added since these rows were written, so it is null in them.
            return np.zeros(table.num_rows, dtype="bool")
        integers = _integers(table.column(column))
        numbers = integers.fill_null(0).to_numpy() if integers.null_count else integers.to_numpy()
        if greatest < _GREATEST:
            mask &= numbers <= greatest
        if least > _LEAST:
            mask &= numbers >= least
        if integers.null_count:
            mask &= integers.is_valid().to_numpy(zero_copy_only=False)
    return mask


def bounds_of(table: pa.Table) -> dict[str, tuple[int, int]]:
    """Return the least and the greatest integer of each range column that has one."""
    bounds = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if _is_range_type(column.type):
            ends: Any = pc.min_max(_integers(column)).as_py()
            if ends["min"] is not None:
                bounds[name] = (ends["min"], ends["max"])
    return bounds


def meets(ranges: Sequence[Range], bounds: Mapping[str, tuple[int, int]]) -> bool:
    """Return whether rows with these bounds can be in the ranges."""
    for column, least, greatest in ranges:
        ends = bounds.get(column)
        if ends is None or ends[1] < least or ends[0] > greatest:
            return False
    return True

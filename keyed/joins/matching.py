"""Matching rows of two sides by key and time, over whole columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

#: Numbers of rows, or codes of keys.
Numbers = np.ndarray[Any, np.dtype[np.int64]]


def codes_of(tables: Sequence[pa.Table], keys: Sequence[str]) -> list[Numbers]:
    """Return a number for the key of each row of some tables: equal for equal keys, in order of first appearance."""
    codes: Any = None
    for key in keys:
        chunks = [chunk for table in tables for chunk in table.column(key).chunks]
        column: Any = pa.chunked_array(chunks, tables[0].schema.field(key).type)
        encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
        indices = encoded.indices.to_numpy(zero_copy_only=False).astype("int64")
        if codes is not None:
            # Renumbered, so that the product stays far below 2^63.
            both = pa.array(codes * max(len(encoded.dictionary), 1) + indices)
            indices = both.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype("int64")
        codes = indices
    return np.split(codes, np.cumsum([table.num_rows for table in tables])[:-1])


def distinct(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return the first row of each key, in order of first appearance; only the columns of the key."""
    table = table.select(list(keys))
    (codes,) = codes_of([table], keys)
    return table.take(np.flatnonzero(np.diff(np.maximum.accumulate(codes), prepend=-1)))


def last_rows(table: pa.Table, keys: Sequence[str]) -> Numbers:
    """Return the position of the last row of each key, ascending."""
    (codes,) = codes_of([table], keys)
    last = np.empty(int(codes.max(initial=-1)) + 1, dtype=np.int64)
    # Of several writes to one position, the last one is kept.
    last[codes] = np.arange(len(codes))
    return np.sort(last)


class Ordered:
    """Rows to be matched, by key, time and number.

    Args:
        codes: The codes of their keys.
        times: Their times.
        numbers: Their order within a key and time.
    """

    def __init__(self, codes: Numbers, times: Numbers, numbers: Numbers) -> None:
        # Times come nearly sorted, which this sort uses and `np.unique` does not.
        by_time = np.sort(times, kind="stable")
        self._times = by_time[np.diff(by_time, prepend=by_time[:1] - 1) != 0]
        places = codes * (len(self._times) + 1) + np.searchsorted(self._times, times)
        self.order = np.lexsort((numbers, places))
        self._places = places[self.order]

    def before(self, codes: Numbers, times: Numbers, *, inclusive: bool) -> Numbers:
        """Return the number of rows, in order, up to a key and time, or before it."""
        ranks = np.searchsorted(self._times, times, side="right" if inclusive else "left")
        return np.searchsorted(self._places, codes * (len(self._times) + 1) + ranks)

    def between(self, codes: Numbers, least: Numbers, greatest: Numbers) -> tuple[Numbers, Numbers]:
        """Return all pairs of a probe and a row with its key between two times, both included.

        Returns:
            The numbers of the probes, one per match, and those of the matched rows.
        """
        starts = self.before(codes, least, inclusive=False)
        counts = self.before(codes, greatest, inclusive=True) - starts
        looking = np.repeat(np.arange(len(codes)), counts)
        within = np.arange(len(looking)) - np.repeat(np.cumsum(counts) - counts, counts)
        return looking, self.order[np.repeat(starts, counts) + within]

    def last(self, codes: Numbers, times: Numbers, *, inclusive: bool) -> Numbers:
        """Return the last row of a key up to a time, or before it; −1 if there is none."""
        places = self.before(codes, times, inclusive=inclusive) - 1
        rows = np.full(len(codes), -1)
        # The preceding row has this key unless it precedes the key's first row.
        has = places >= np.searchsorted(self._places, codes * (len(self._times) + 1))
        rows[has] = self.order[places[has]]
        return rows

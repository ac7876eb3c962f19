"""Rows that wait for the watermark, with ``order="watermark"``.

Flink's CEP operator and its SQL sort hold rows in the same way (``CepOperator``, ``RowTimeSortOperator``).

A row waits as an element of a list of its key, with a time to live of event time. It is due at its own timestamp, so
the store finds the rows that the watermark has passed without reading the others. The value of an element is the pair
(side, row) as `keyed.codec.tagged` writes it. Elements sort by arrival.

If nothing reads the changes of a batch (`keyed.engine.bound.Scope.retains`), rows wait here and are not encoded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import repeat
from operator import gt, itemgetter
from typing import Any

from keyed.base.arguments import MAX_TIMESTAMP, shown
from keyed.codec.keys import decode_key_at
from keyed.codec.tagged import decode_tagged, encode_tagged
from keyed.content.addresses import TTL_EVENT, encode_time, list_sub, split_value, state_id_of, state_prefix
from keyed.engine.batch import Chunk, merged_by_time, order_of
from keyed.engine.bound import BoundState, Scope
from keyed.engine.changes import Changes
from keyed.errors import EncodingError
from keyed.job.state import ListState, inner_state
from keyed.job.ttl import StateTtl, TimeDomain

#: Name of the state, which no table shows.
HELD_ROWS = "held_rows"
#: The length of the prefix before the key.
_HEAD = len(state_prefix(TTL_EVENT, 0, b"", b""))
_by_arrival = itemgetter(0, 2)


def held_rows_state() -> ListState[Any]:
    """Return the declaration of the state."""
    ttl = StateTtl(1, time_domain=TimeDomain.EVENT_TIME)
    shown_as = {"view": "", "subject": "the state of order='watermark', the rows that wait for the watermark,"}
    return inner_state(ListState(object, name=HELD_ROWS, ttl=ttl), table=shown_as)


class HeldRows(BoundState):
    """The waiting rows of a key group.

    Args:
        declaration: The state.
        scope: The scope, which `keyed.engine.key_group.KeyGroup` sets to each batch.
        state_id: Id of the state.
        sided: True if the function reads two streams, so that chunks have the side of each row.

    Attributes:
        arrived: Number of rows that began to wait in this batch.
        released: Number of rows that waited before this batch and run in it.
    """

    kind = "list"
    cells = ()

    def __init__(self, declaration: ListState[Any], scope: Scope, state_id: int, *, sided: bool) -> None:
        #: The rows that wait without a store: time, number of the arrival, key, side, row.
        self._waiting: list[tuple[int, int, Any, int, Any]] = []
        self._arrivals = 0
        self._sided = sided
        self.bind(declaration, scope, state_id)

    def activate(self) -> None:
        super().activate()
        self.arrived = self.released = 0
        #: The rows that begin to wait, and the addresses of the stored rows that run.
        self._new: list[tuple[Any, int, int, Any]] = []
        self._passed: list[tuple[bytes, bytes]] = []

    def in_order(self, chunks: Iterable[Chunk], watermark: int) -> Iterator[Chunk]:
        """Yield the rows that the watermark has passed by time: those of a batch, and those that waited for it.

        The other rows of the batch wait. Rows of equal times keep the order of arrival. Late rows, and rows without a
        time, come first.

        Args:
            chunks: The rows of the batch by time.
            watermark: The watermark after the batch.
        """
        waited = self._release(watermark)
        waited_times, start = order_of(waited[1] or ()), 0
        for keys, times, values, sides in chunks:
            chunk: Chunk = keys, times, list(values), sides
            order = order_of(times or ())
            if order is not times and any(map(gt, order, order[1:])):
                # The test harness keeps the order of arrival where a row has no time.
                chunk = merged_by_time([chunk])
                order = order_of(chunk[1] or ())
            end = bisect_right(order, watermark)
            self._hold(_cut(chunk, end, len(order)))
            if not end:
                continue
            chunk, stop = _cut(chunk, 0, end), bisect_right(waited_times, order[end - 1], start)
            if stop > start:
                chunk = merged_by_time([_cut(waited, start, stop), chunk])
                start = stop
            yield chunk
        if start < len(waited_times):
            yield _cut(waited, start, len(waited_times))

    def _hold(self, chunk: Chunk) -> None:
        keys, times, values, sides = chunk
        self.arrived += len(keys)
        for key, time, side, value in zip(keys, times or (), sides or repeat(0, len(keys)), values, strict=True):
            if self._scope.retains:
                self._arrivals += 1
                heappush(self._waiting, (time, self._arrivals, key, side, value))
            else:
                self._new.append((key, time, side, value))

    def _release(self, watermark: int) -> Chunk:
        """Return the rows that no longer wait as a chunk."""
        rows: list[tuple[Any, int, int, Any]] = []
        while self._waiting and self._waiting[0][0] <= watermark:
            time, _, key, side, value = heappop(self._waiting)
            rows.append((key, time, side, value))
        store, keys = self._scope.store, dict[bytes, Any]()
        passed = () if self._scope.retains else store.due(TTL_EVENT, min(watermark, MAX_TIMESTAMP - 1))
        due = [each for each in passed if state_id_of(each[1]) == self._state_id]
        for time, prefix, sub in sorted(due, key=_by_arrival):
            if prefix not in keys:
                key, end = decode_key_at(prefix, _HEAD)
                keys[prefix] = key
                self._scope.key_bytes.setdefault(key, prefix[_HEAD:end])
            stored = store.get(prefix, sub)
            assert stored is not None
            side, value = decode_tagged(split_value(prefix, stored)[1])
            rows.append((keys[prefix], time, side, value))
            self._passed.append((prefix, sub))
        self.released += len(rows)
        return (
            [row[0] for row in rows],
            [row[1] for row in rows],
            [row[3] for row in rows],
            [row[2] for row in rows] if self._sided else None,
        )

    def _flush(self, changes: Changes) -> None:
        clock, commit = self._scope.clock(TTL_EVENT), self._scope.commit
        for prefix, sub in self._passed:
            changes.write_timed(prefix, sub, None, clock)
        for index, (key, time, side, value) in enumerate(self._new):
            try:
                data = encode_tagged((side, value))
            except EncodingError as error:
                raise EncodingError(
                    f"order='watermark' keeps rows in state until the watermark has passed them, and {shown(value)} "
                    f"cannot be kept: {error}; or map the rows first: "
                    "stream.map(lambda row: ..., output='k string, n bigint')"
                ) from error
            changes.write_timed(self.prefix(key), list_sub(commit, index), encode_time(time) + data, clock)


def _cut(chunk: Chunk, start: int, end: int) -> Chunk:
    keys, times, values, sides = chunk
    assert times is not None
    assert isinstance(values, Sequence)
    return keys[start:end], times[start:end], values[start:end], None if sides is None else sides[start:end]

"""A local store in plain dictionaries.

Value entries (empty sub) are one dictionary from prefix to value, so the hot call `get` is one look-up. Other entries
are grouped by prefix: most keys have a single timer or list element, and a pair needs a quarter of a dictionary's
memory, so a single entry is held as (sub, value), and a dictionary is created with the second one.

A `_TimeIndex` per kind finds entries by time: a heap of the distinct times with a bucket of addresses for each.
Addresses are sorted when they are read, and only within one time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import TYPE_CHECKING

import attrs

from keyed.base.arguments import MAX_TIMESTAMP, MIN_TIMESTAMP
from keyed.content.addresses import PLAIN, decode_time, encode_time
from keyed.content.blocks import Change, TableDelta

if TYPE_CHECKING:
    from keyed.table_state.chunks import ChunkedTable

_Address = tuple[bytes, bytes]
_prefix = itemgetter(0)
_sub = itemgetter(1)
#: Shorter heaps are not compacted.
_SMALL_HEAP = 64
#: Number of due times that are looked up singly before the others are sorted.
_ONE_BY_ONE = 256


@attrs.define(eq=False)
class _TimeIndex:
    """The addresses of the entries of one kind, by the time at which they are due.

    Attributes:
        buckets: Per time, its only address or the set of its addresses; never an empty set.
        heap: A heap that holds every time in ``buckets``, and times that have left it. A time that is added again is
            pushed again, so a time may occur twice.
    """

    buckets: dict[bytes, _Address | set[_Address]] = attrs.field(factory=dict)
    heap: list[bytes] = attrs.field(factory=list)

    def add(self, time: bytes, prefix: bytes, sub: bytes) -> None:
        buckets = self.buckets
        bucket = buckets.get(time)
        if bucket is None:
            buckets[time] = (prefix, sub)
            heappush(self.heap, time)
        elif isinstance(bucket, set):
            bucket.add((prefix, sub))
        else:
            buckets[time] = {bucket, (prefix, sub)}

    def remove(self, time: bytes, prefix: bytes, sub: bytes) -> None:
        bucket = self.buckets.get(time)
        if isinstance(bucket, set):
            bucket.discard((prefix, sub))
            if not bucket:
                del self.buckets[time]
        elif bucket == (prefix, sub):
            del self.buckets[time]

    def prune(self) -> None:
        """Remove times without entries from the heap; the cost is proportional to the number removed."""
        heap, buckets = self.heap, self.buckets
        if len(heap) > 2 * len(buckets) + _SMALL_HEAP:
            self.heap = list(buckets)
            heapify(self.heap)
            return
        while heap and heap[0] not in buckets:
            heappop(heap)

    def due(self, limit: bytes) -> Iterator[tuple[int, bytes, bytes]]:
        """Iterate over (time in milliseconds, prefix, sub) up to a time, in order, without removing them."""
        buckets = self.buckets
        last = b""
        for time in self._times(limit):
            # A time may be in the heap twice; one without a bucket has no entries any more.
            bucket = buckets.get(time) if time != last else None
            last = time
            if bucket is None:
                continue
            timestamp = decode_time(time)
            if isinstance(bucket, tuple):
                yield timestamp, bucket[0], bucket[1]
                continue
            # Two stable sorts by bytes take half the time of one by pairs, and usually all subs are equal.
            addresses = sorted(bucket, key=_sub)
            addresses.sort(key=_prefix)
            for prefix, sub in addresses:
                yield timestamp, prefix, sub

    def _times(self, limit: bytes) -> Iterator[bytes]:
        """Walk the heap from its root, in order of time, up to a limit.

        The first times are found one by one, so that reading the next due time is cheap. A caller that reads more
        usually reads all, and sorting those at once is faster.
        """
        heap = self.heap
        size = len(heap)
        frontier = [(heap[0], 0)] if heap and heap[0] <= limit else []
        position = 0
        while frontier and position < _ONE_BY_ONE:
            time, at = heappop(frontier)
            position += 1
            yield time
            for child in (2 * at + 1, 2 * at + 2):
                if child < size and heap[child] <= limit:
                    heappush(frontier, (heap[child], child))
        rest = []
        positions = [at for _, at in frontier]
        while positions:
            at = positions.pop()
            rest.append(heap[at])
            left = 2 * at + 1
            if left < size and heap[left] <= limit:
                positions.append(left)
            if left + 1 < size and heap[left + 1] <= limit:
                positions.append(left + 1)
        rest.sort()
        yield from rest


class _Subs(dict[bytes, bytes]):
    """The values of the subs of a prefix.

    Attributes:
        order: The subs in order, from the first `scan` on, so that it costs what it yields.
    """

    __slots__ = ("order",)

    def __init__(self, *entries: tuple[bytes, bytes]) -> None:
        super().__init__(entries)
        self.order: list[bytes] | None = None

    def scan(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over (sub, value) in order, from ``start`` on."""
        order = self.order
        if order is None:
            order = self.order = sorted(self)
        if not start:
            return zip(order, map(self.__getitem__, order), strict=True)
        subs = map(order.__getitem__, range(bisect_left(order, start), len(order)))
        return ((sub, self[sub]) for sub in subs)


class MemoryStore:
    """A `LocalStore` in the memory of the process."""

    __slots__ = ("_indexes", "_nested", "_position", "_tables", "_values")

    _position: tuple[str, int] | None

    def __init__(self) -> None:
        self.reset()

    def position(self) -> tuple[str, int] | None:
        """See `LocalStore.position`."""
        return self._position

    def get(self, prefix: bytes, sub: bytes) -> bytes | None:
        """See `LocalStore.get`."""
        if not sub:
            return self._values.get(prefix)
        held = self._nested.get(prefix)
        if held is None:
            return None
        if isinstance(held, dict):
            return held.get(sub)
        return held[1] if held[0] == sub else None

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """See `LocalStore.scan`."""
        held = self._nested.get(prefix)
        entries: Iterator[tuple[bytes, bytes]]
        if held is None:
            entries = iter(())
        elif isinstance(held, dict):
            entries = held.scan(start)
        else:
            entries = iter((held,) if held[0] >= start else ())
        value = self._values.get(prefix)
        return entries if value is None or start else iter([(b"", value), *entries])

    def due(self, kind: int, up_to: int) -> Iterator[tuple[int, bytes, bytes]]:
        """See `LocalStore.due`."""
        index = self._indexes.get(kind)
        if index is None or up_to < MIN_TIMESTAMP:
            return iter(())
        return index.due(encode_time(min(up_to, MAX_TIMESTAMP)))

    def items(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        """See `LocalStore.items`."""
        for prefix, value in self._values.items():
            yield prefix, b"", value
        for prefix, held in self._nested.items():
            if isinstance(held, dict):
                for sub, value in held.items():
                    yield prefix, sub, value
            else:
                yield prefix, held[0], held[1]

    def table(self, state_id: int) -> ChunkedTable | None:
        """See `LocalStore.table`."""
        return self._tables.get(state_id)

    def apply(self, log_id: str, row: int, changes: Iterable[Change], tables: Sequence[TableDelta] = ()) -> None:
        """See `LocalStore.apply`. When ``changes`` raises, the store is empty afterwards."""
        values = self._values
        indexes = self._indexes
        nest = self._nest
        try:
            for prefix, sub, value in changes:
                kind = prefix[0]
                if kind == PLAIN:
                    if sub:
                        nest(prefix, sub, value)
                    elif value is None:
                        values.pop(prefix, None)
                    else:
                        values[prefix] = value
                    continue
                if sub:
                    old = nest(prefix, sub, value)
                else:
                    old = values.get(prefix)
                    if value is not None:
                        values[prefix] = value
                    elif old is not None:
                        del values[prefix]
                index = indexes.get(kind)
                if index is None:
                    index = indexes[kind] = _TimeIndex()
                if value is None:
                    if old is not None:
                        index.remove(old[:8], prefix, sub)
                elif old is None:
                    index.add(value[:8], prefix, sub)
                elif old[:8] != value[:8]:
                    index.remove(old[:8], prefix, sub)
                    index.add(value[:8], prefix, sub)
            for index in indexes.values():
                index.prune()
            for delta in tables:
                from keyed.table_state.chunks import ChunkedTable

                self._tables.setdefault(delta.state_id, ChunkedTable(delta.keys)).apply(delta)
            for state_id in {delta.state_id for delta in tables}:
                self._tables[state_id].compact()
        except BaseException:
            self.reset()
            raise
        self._position = (log_id, row)

    def _nest(self, prefix: bytes, sub: bytes, value: bytes | None) -> bytes | None:
        """Set or remove an entry with a sub, and return its previous value."""
        nested = self._nested
        held = nested.get(prefix)
        if held is None:
            if value is not None:
                nested[prefix] = (sub, value)
            return None
        if isinstance(held, dict):
            old, order = held.get(sub), held.order
            if value is not None:
                held[sub] = value
                if old is None and order is not None:
                    insort(order, sub)
            elif old is not None:
                del held[sub]
                if order is not None:
                    del order[bisect_left(order, sub)]
                if not held:
                    del nested[prefix]
            return old
        only, old_value = held
        if only != sub:
            if value is not None:
                nested[prefix] = _Subs(held, (sub, value))
            return None
        if value is None:
            del nested[prefix]
        else:
            nested[prefix] = (sub, value)
        return old_value

    def reset(self) -> None:
        """See `LocalStore.reset`."""
        self._position = None
        self._values: dict[bytes, bytes] = {}
        self._nested: dict[bytes, tuple[bytes, bytes] | _Subs] = {}
        self._indexes: dict[int, _TimeIndex] = {}
        self._tables: dict[int, ChunkedTable] = {}

    def close(self) -> None:
        """See `LocalStore.close`."""
        self.reset()

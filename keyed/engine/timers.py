"""Pending timers of a key group in one time domain: what is stored and due, over it what the batch set and deleted.

Timers wait in buckets by timestamp, and a heap holds the timestamps: setting one costs a dictionary look-up, and an
advance costs in proportion to the timers that fire. Only stored timers that the batch's clock reaches are read.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, NamedTuple

from keyed.codec.keys import decode_key, encode_key
from keyed.content.addresses import decode_time, encode_time, named_timer_sub, timer_prefix, timer_sub
from keyed.durations import MAX_TIMESTAMP, MIN_TIMESTAMP
from keyed.engine.changes import Changes
from keyed.engine.scope import Scope
from keyed.errors import DefinitionError

__all__ = ["TimerQueue"]

_UNNAMED = 0
_NAMED = 1


class Slot(NamedTuple):
    """A named timer: its key and its encoded name."""

    key: Any
    name: bytes


class TimerQueue:
    """Timers of one domain.

    Args:
        scope: The batch's scope.
        kind: `TIMER_EVENT` or `TIMER_PROCESSING`.
    """

    def __init__(self, scope: Scope, kind: int) -> None:
        self._scope = scope
        self._kind = kind
        self.heap: list[int] = []
        self._unnamed: dict[int, set[Any]] = {}
        self._named: dict[int, set[Slot]] = {}
        # Where each named timer that the batch touched stands now; None where it is not set.
        self._slots: dict[Slot, int | None] = {}
        # Timers taken out of their bucket that have not fired yet, by timestamp.
        self._firing: dict[int, set[Any]] = {}
        self._loaded: list[tuple[int, Any, bytes, bytes]] = []
        self._loaded_up_to = MIN_TIMESTAMP - 1
        # Deleted unnamed timers, and whether the first deletion of each was counted.
        self._deleted: dict[tuple[int, Any], bool] = {}
        # Where to look for the timers of one key, once `index` was called: timestamps that it may have, and its names.
        self._times: dict[Any, set[int]] | None = None
        self._names: dict[Any, set[bytes]] = {}
        self.fired = 0
        self.deleted = 0
        self.closed = False

    def load(self, up_to: int) -> None:
        """Read the stored timers that are due by ``up_to`` and that were not read before."""
        before, self._loaded_up_to = self._loaded_up_to, up_to
        keys: dict[bytes, Any] = {}
        for time, prefix, sub in self._scope.store.due(self._kind, up_to):
            if time <= before:
                continue
            key = keys.get(prefix)
            if key is None:
                key = keys[prefix] = decode_key(prefix[1:])
                self._scope.key_bytes.setdefault(key, prefix[1:])
            self._loaded.append((time, key, prefix, sub))
            if sub[0] == _NAMED:
                slot = Slot(key, sub[1:])
                # One that the batch has moved or cancelled stands where it put it.
                if self._slots.setdefault(slot, time) == time:
                    self._put(self._named, time, slot)
                    self._note_name(slot)
            elif (counted := self._deleted.get((time, key))) is None:
                self._put(self._unnamed, time, key)
                if self._times is not None:
                    self._times.setdefault(key, set()).add(time)
            elif not counted:
                self.deleted += 1

    # Setting and deleting, for the current key ------------------------------------------------------------------

    def register(self, timestamp: int) -> None:
        """Set the unnamed timer of the current key at ``timestamp``."""
        bucket = self._unnamed.get(timestamp)
        if bucket is not None:
            bucket.add(self._scope.key)
        else:
            timestamp = _checked(timestamp)
            firing = self._firing.get(timestamp)
            if firing is None or self._scope.key not in firing:
                self._put(self._unnamed, timestamp, self._scope.key)

    def register_indexed(self, timestamp: int) -> None:
        """As `register`, once there is an index."""
        self.register(timestamp)
        assert self._times is not None
        self._times.setdefault(self._scope.key, set()).add(timestamp)

    def delete(self, timestamp: int) -> None:
        """Delete the unnamed timer of the current key at ``timestamp``, if it is set."""
        key = self._scope.key
        found = False
        for waiting in (self._unnamed.get(timestamp), self._firing.get(timestamp)):
            if waiting is not None and key in waiting:
                waiting.discard(key)
                found = True
        if found:
            self.deleted += 1
        self._deleted.setdefault((_checked(timestamp), key), found)

    def set_named(self, name: Any, timestamp: int) -> None:
        """Set the named timer of the current key, replacing where it stood."""
        timestamp = _checked(timestamp)
        slot = self._slot(name)
        if self.closed:
            return
        self._withdraw(slot)
        self._note_name(slot)
        self._slots[slot] = timestamp
        self._put(self._named, timestamp, slot)

    def cancel(self, name: Any) -> None:
        """Cancel the named timer of the current key, if it is set."""
        slot = self._slot(name)
        if self._withdraw(slot):
            self.deleted += 1
        self._slots[slot] = None

    # Listing ----------------------------------------------------------------------------------------------------

    def index(self) -> None:
        """Make it cheap to find the timers of one key. From now on they are set by `register_indexed`."""
        times: dict[Any, set[int]] = {}
        for buckets in (self._unnamed, self._firing):
            for time, waiting in buckets.items():
                for item in waiting:
                    if item.__class__ is not Slot:
                        times.setdefault(item, set()).add(time)
        self._times = times
        for slot in self._slots:
            self._note_name(slot)

    def pending(self, key: Any) -> list[tuple[int, Any]]:
        """The (timestamp, name or None) of the pending timers of ``key`` in the order they fire in, after `index`."""
        assert self._times is not None
        unnamed, firing, slots = self._unnamed, self._firing, self._slots
        found = {t for t in self._times.get(key, ()) if key in unnamed.get(t, ()) or key in firing.get(t, ())}
        # Those that have fired or were deleted are looked at once.
        self._times[key] = set(found)
        prefix = timer_prefix(self._kind, self._scope.encoded(key))
        for sub, value in self._scope.store.scan(prefix):
            time = decode_time(value)
            if sub[0] == _NAMED:
                slot = Slot(key, sub[1:])
                slots.setdefault(slot, time)
                self._note_name(slot)
            elif time > self._loaded_up_to and (time, key) not in self._deleted:
                found.add(time)
        timers = [(time, b"") for time in found]
        timers += [(at, name) for name in self._names.get(key, ()) if (at := slots[Slot(key, name)]) is not None]
        return [(time, decode_key(name) if name else None) for time, name in sorted(timers)]

    # Firing -----------------------------------------------------------------------------------------------------

    def advance(self, up_to: int, fire: Callable[[int, Any, Any], None]) -> None:
        """Fire all timers up to ``up_to`` by timestamp, key and name, and those that this makes due.

        Args:
            up_to: The clock's new time.
            fire: Called with timestamp, key and name after the timer was removed.
        """
        heap = self.heap
        scope = self._scope
        stack: list[tuple[int, list[Any], set[Any], bool]] = []
        while True:
            # What a handler sets at or before the timestamp that is firing comes before the rest of that timestamp.
            while heap and heap[0] <= (stack[-1][0] if stack else up_to):
                taken = self._take(heappop(heap))
                if not taken[1]:
                    continue
                if stack and stack[-1][0] == taken[0]:
                    time, items, waiting, named = stack.pop()
                    self._merge(items, taken[1])
                    taken = (time, items, waiting, named or taken[3])
                stack.append(taken)
            if not stack:
                return
            time, items, waiting, named = stack[-1]
            while items:
                item = items.pop()
                if item in waiting:
                    waiting.discard(item)
                    self.fired += 1
                    if named and item.__class__ is Slot:
                        self._slots[item] = None
                        scope.key = item.key
                        fire(time, item.key, decode_key(item.name))
                    else:
                        again = self._unnamed.get(time)
                        if again is not None:
                            again.discard(item)
                        scope.key = item
                        fire(time, item, None)
                    if heap and heap[0] <= time:
                        break
            else:
                stack.pop()
                if not waiting:
                    self._firing.pop(time, None)

    def _take(self, time: int) -> tuple[int, list[Any], set[Any], bool]:
        """Take the bucket of a timestamp out.

        Returns:
            The timestamp, its timers with the last to fire first, the set of those waiting, and whether any is named.
        """
        waiting = self._unnamed.pop(time, None) or set()
        named = self._named.pop(time, None)
        if not waiting and not named:
            return time, [], waiting, False
        encoded = self._scope.encoded
        first = next(iter(waiting), None)
        if named:
            order = [(encoded(key), b"", key) for key in waiting] + [
                (encoded(slot.key), slot.name, slot) for slot in named
            ]
            order.sort(key=lambda item: item[:2], reverse=True)
            items = [item for _, _, item in order]
            waiting |= named
        elif type(first) is str or type(first) is int:
            # Strings and integers sort as their encodings do.
            items = sorted(waiting, reverse=True)
        else:
            items = sorted(waiting, key=encoded, reverse=True)
        earlier = self._firing.get(time)
        if earlier is not None:
            earlier |= waiting
            waiting = earlier
        else:
            self._firing[time] = waiting
        return time, items, waiting, bool(named)

    def _merge(self, items: list[Any], new: list[Any]) -> None:
        """Put timers that a handler has set at the timestamp that is firing among those that wait there, last first.

        They are of the key that fires, the least that waits, so their places are near the end.
        """
        for item in new:
            order = self._order(item)
            place = len(items)
            while place and self._order(items[place - 1]) < order:
                place -= 1
            items.insert(place, item)

    def _order(self, item: Any) -> tuple[bytes, bytes]:
        """What orders timers of one timestamp."""
        if item.__class__ is Slot:
            return self._scope.encoded(item.key), item.name
        return self._scope.encoded(item), b""

    # At the end of the batch ------------------------------------------------------------------------------------

    def flush(self, changes: Changes) -> None:
        """Write which timers were set, moved and removed."""
        write, encoded, kind = changes.write, self._scope.encoded, self._kind
        for time, key, prefix, sub in self._loaded:
            if sub[0] == _UNNAMED and key not in self._unnamed.get(time, ()):
                write(prefix, sub, None)
        for (time, key), counted in self._deleted.items():
            if time > self._loaded_up_to and key not in self._unnamed.get(time, ()):
                before = changes.timers
                write(timer_prefix(kind, encoded(key)), timer_sub(time), None)
                if not counted:
                    self.deleted += before - changes.timers
        for time, keys in self._unnamed.items():
            if keys:
                sub, value = timer_sub(time), encode_time(time)
                for key in keys:
                    write(timer_prefix(kind, encoded(key)), sub, value)
        for (key, name), at in self._slots.items():
            write(timer_prefix(kind, encoded(key)), named_timer_sub(name), None if at is None else encode_time(at))

    def _put(self, buckets: dict[int, set[Any]], time: int, item: Any) -> None:
        bucket = buckets.get(time)
        if bucket is None:
            buckets[time] = {item}
            heappush(self.heap, time)
        else:
            bucket.add(item)

    def _note_name(self, slot: Slot) -> None:
        if self._times is not None:
            self._names.setdefault(slot.key, set()).add(slot.name)

    def _slot(self, name: Any) -> Slot:
        if name is None:
            raise DefinitionError("a timer's name cannot be None; use register_event_time_timer for an unnamed one")
        return Slot(self._scope.key, encode_key(name))

    def _withdraw(self, slot: Slot) -> bool:
        """Take a named timer out of its bucket. Whether it was set."""
        at = self._slots.get(slot, MIN_TIMESTAMP - 1)
        if at == MIN_TIMESTAMP - 1:
            stored = self._scope.store.get(
                timer_prefix(self._kind, self._scope.encoded(slot.key)), named_timer_sub(slot.name)
            )
            return stored is not None
        if at is None:
            return False
        for waiting in (self._named.get(at), self._firing.get(at)):
            if waiting is not None:
                waiting.discard(slot)
        return True


def _checked(timestamp: int) -> int:
    """A timestamp that is an int in the range of int64.

    Raises:
        DefinitionError: Anything else.
    """
    if type(timestamp) is not int:
        if not isinstance(timestamp, int) or isinstance(timestamp, bool):
            raise DefinitionError(
                f"timer timestamp {timestamp!r} is a {type(timestamp).__name__}; give int milliseconds since the epoch"
            )
        timestamp = int(timestamp)
    if not MIN_TIMESTAMP <= timestamp <= MAX_TIMESTAMP:
        raise DefinitionError(f"timer timestamp {timestamp} is beyond int64; give milliseconds since the epoch")
    return timestamp

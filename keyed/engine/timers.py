"""Pending timers of a key group in one time domain: stored due timers, with the changes of the batch over them.

Timers wait in buckets by timestamp, and a heap holds the timestamps: setting a timer costs a dictionary look-up, and
the cost of an advance is proportional to the timers that fire. Only stored timers that the batch's clock reaches are
read.

A named timer that is moved to a later time stays in its bucket; when the bucket is due, the timer is moved to the
bucket of its current time. Moving a timer at each row, as an idle time-out does, therefore costs no bucket.

If nothing reads the changes of a batch (`keyed.engine.bound.Scope.retains`), timers are retained here from batch to
batch, and nothing is stored.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from datetime import datetime, timedelta
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import Any

import attrs

from keyed.base.arguments import MAX_TIMESTAMP, MIN_TIMESTAMP, type_of
from keyed.codec.keys import decode_key, encode_key
from keyed.content.addresses import decode_time, encode_time, named_timer_sub, timer_prefix, timer_sub
from keyed.engine.bound import Scope
from keyed.engine.changes import Changes
from keyed.errors import DefinitionError

_UNNAMED = 0
_NAMED = 1
#: Maximal number of stored timers that are skipped to find the earliest one left. A store returns the first ones one by
#: one, and they are removed from it at the next batch.
_PASSED = 32
#: Number of leftovers of removed timers that are tolerated before they are cleared.
_SLACK = 64
#: Classes of keys that sort as their encodings do.
_SORTED = frozenset({str, int})
_key_and_name = attrgetter("key", "name")


@attrs.define(eq=False)
class _Named:
    """A named timer that the batch touched; or an unnamed one, with an empty name, if both are in one list.

    Attributes:
        key: Its key.
        name: Its name, encoded.
        at: Its time; ``None`` if it is not set.
        waits: The bucket that it waits in, at or before its time. In other buckets it does not count.
    """

    key: Any
    name: bytes
    at: int | None = None
    waits: int | None = None


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
        self._named: dict[int, list[_Named]] = {}
        # Each named timer that the batch touched, by key and encoded name.
        self._touched: dict[tuple[Any, bytes], _Named] = {}
        # Text names by encoding and back: mostly a timer has the same name for all keys.
        self._texts: dict[str, bytes] = {}
        self._texts_of: dict[bytes, str] = {}
        # Unnamed timers that were removed from their bucket and have not fired yet, by timestamp.
        self._firing: dict[int, set[Any]] = {}
        self._loaded: list[tuple[int, Any, bytes, bytes]] = []
        self._loaded_up_to = MIN_TIMESTAMP - 1
        # Deleted unnamed timers; true if the first deletion was counted.
        self._deleted: dict[tuple[int, Any], bool] = {}
        # Index of the timers of one key, once `index` was called: timestamps, and names.
        self._times: dict[Any, set[int]] | None = None
        self._names: dict[Any, set[bytes]] = {}
        # Stored unnamed timers that were not loaded, of the keys whose timers were listed.
        self._beyond: dict[Any, set[int]] = {}
        # Named timers that fired or were cancelled, and the number of timers in buckets in which they no longer wait.
        self._discarded: list[_Named] = []
        self._left = 0
        self.closed = False
        #: Checks and returns the timestamp of a timer that is set.
        self.check: Callable[[int], int] = check_timestamp

    def start(self) -> None:
        """Start a batch."""
        self.fired = self.deleted = 0
        #: Number of timers that were set and not just moved; exact only for retained timers.
        self.added = 0

    def load(self, up_to: int) -> None:
        """Read the stored timers that are due by ``up_to`` and that were not read before."""
        before, self._loaded_up_to = self._loaded_up_to, up_to
        self._beyond.clear()
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
                timer = self._touched.get((key, sub[1:]))
                # A timer that the batch has moved or cancelled keeps the time that the batch set.
                if timer is None:
                    timer = self._touch(key, sub[1:], time)
                if timer.at == time:
                    self._wait(timer, time)
            elif (counted := self._deleted.get((time, key))) is None:
                self._put(time, key)
                if self._times is not None:
                    self._times.setdefault(key, set()).add(time)
            elif not counted:
                self.deleted += 1

    # Setting and deleting, for the current key ------------------------------------------------------------------

    def register(self, timestamp: int) -> None:
        """Set the unnamed timer of the current key at ``timestamp``."""
        bucket, key = self._unnamed.get(timestamp), self._scope.key
        if bucket is not None:
            if key not in bucket:
                bucket.add(key)
                self.added += 1
        else:
            timestamp = self.check(timestamp)
            firing = self._firing.get(timestamp)
            if firing is None or key not in firing:
                self._put(timestamp, key)
                self.added += 1

    def register_indexed(self, timestamp: int) -> None:
        """Set a timer as `register` does, with an index."""
        self.register(timestamp)
        assert self._times is not None
        self._times.setdefault(self._scope.key, set()).add(timestamp)

    def delete(self, timestamp: int) -> None:
        """Delete the unnamed timer of the current key at ``timestamp``, if it is set."""
        key = self._scope.key
        is_set = False
        for buckets in (self._unnamed, self._firing):
            waiting = buckets.get(timestamp)
            if waiting is not None and key in waiting:
                waiting.discard(key)
                is_set = True
                if not waiting and buckets is self._unnamed:
                    del buckets[timestamp]
        if is_set:
            self.deleted += 1
            self._forget(timestamp, key)
        if key in self._beyond:
            self._beyond[key].discard(timestamp)
        self._deleted.setdefault((check_timestamp(timestamp), key), is_set)

    def set_named(self, name: Any, timestamp: int) -> None:
        """Set the named timer of the current key, replacing its earlier time."""
        timestamp = self.check(timestamp)
        key, encoded = self._scope.key, self._encoded(name)
        if self.closed:
            return
        timer = self._touched.get((key, encoded))
        if timer is None:
            timer = self._touch(key, encoded, None)
        if timer.at is None:
            self.added += 1
            if self._times is not None:
                self._names.setdefault(key, set()).add(encoded)
        timer.at = timestamp
        if timer.waits is None or timer.waits > timestamp:
            self._wait(timer, timestamp)

    def cancel(self, name: Any) -> None:
        """Cancel the named timer of the current key, if it is set."""
        key, encoded = self._scope.key, self._encoded(name)
        timer = self._touched.get((key, encoded))
        if timer is None:
            timer = self._touch(key, encoded, self._stored(key, encoded))
        if timer.at is not None:
            self.deleted += 1
        self._unset(timer)

    # Listing ----------------------------------------------------------------------------------------------------

    @property
    def is_indexed(self) -> bool:
        """True if `index` was called."""
        return self._times is not None

    def index(self) -> None:
        """Build the index of timers by key. From now on timers are set by `register_indexed`."""
        times: dict[Any, set[int]] = {}
        for buckets in (self._unnamed, self._firing):
            for time, waiting in buckets.items():
                for key in waiting:
                    times.setdefault(key, set()).add(time)
        self._times = times
        for (key, name), timer in self._touched.items():
            if timer.at is not None:
                self._names.setdefault(key, set()).add(name)

    def pending(self, key: Any) -> list[tuple[int, Any]]:
        """Return the (timestamp, name or None) of the pending timers of ``key`` in firing order, after `index`."""
        assert self._times is not None
        unnamed, firing = self._unnamed, self._firing
        if not self._scope.retains and key not in self._beyond:
            beyond = self._beyond[key] = set()
            for sub, value in self._scope.store.scan(timer_prefix(self._kind, self._scope.encoded(key))):
                time = decode_time(value)
                if sub[0] == _NAMED:
                    if (key, sub[1:]) not in self._touched:
                        self._touch(key, sub[1:], time)
                elif time > self._loaded_up_to and (time, key) not in self._deleted:
                    beyond.add(time)
        times = {t for t in self._times.get(key, ()) if key in unnamed.get(t, ()) or key in firing.get(t, ())}
        timers = [(time, b"") for time in times.union(self._beyond.get(key, ()))]
        timers += [(self._touched[key, name].at or 0, name) for name in self._names.get(key, ())]
        return [(time, decode_key(name) if name else None) for time, name in sorted(timers)]

    # Firing -----------------------------------------------------------------------------------------------------

    def advance(self, up_to: int, fire: Callable[[int, Any, Any], None]) -> None:
        """Fire all timers up to ``up_to`` by timestamp, key and name, including timers that become due by it.

        Args:
            up_to: The clock's new time.
            fire: Called with timestamp, key and name after the timer was removed.
        """
        heap, named, unnamed, scope = self.heap, self._named, self._unnamed, self._scope
        while heap and heap[0] <= up_to:
            # Mostly a named timer is alone at its time, so nothing has to be sorted.
            time = heap[0]
            names = named.get(time, ())
            if len(names) > 1 or time in unnamed:
                self._advance(up_to, fire)
                return
            heappop(heap)
            if names:
                (timer,) = named.pop(time)
                if timer.waits == time:
                    timer.waits = None
                    if timer.at == time:
                        self._unset(timer)
                        self.fired += 1
                        scope.key = timer.key
                        fire(time, timer.key, self._decoded(timer.name))
                    elif timer.at is not None:
                        self._wait(timer, timer.at)

    def _advance(self, up_to: int, fire: Callable[[int, Any, Any], None]) -> None:
        """Fire timers as `advance` does, in the general case."""
        heap = self.heap
        scope = self._scope
        stack: list[tuple[int, list[Any], set[Any], bool]] = []
        while True:
            # Timers that a handler sets at or before the firing timestamp come before the rest of that timestamp.
            while heap and heap[0] <= (stack[-1][0] if stack else up_to):
                timers = self._take(heappop(heap))
                if not timers[1]:
                    continue
                if stack and stack[-1][0] == timers[0]:
                    timers = self._merged(stack.pop(), timers)
                stack.append(timers)
            if not stack:
                return
            time, items, waiting, named = stack[-1]
            while items:
                item = items.pop()
                if named and item.name:
                    if item.at != time:
                        continue
                    self._unset(item)
                    key, name = item.key, self._decoded(item.name)
                else:
                    key, name = item.key if named else item, None
                    if key not in waiting:
                        continue
                    waiting.discard(key)
                    again = self._unnamed.get(time)
                    if again is not None:
                        again.discard(key)
                    self._forget(time, key)
                self.fired += 1
                scope.key = key
                fire(time, key, name)
                if heap and heap[0] <= time:
                    break
            else:
                stack.pop()
                if not waiting:
                    self._firing.pop(time, None)

    def _take(self, time: int) -> tuple[int, list[Any], set[Any], bool]:
        """Remove the bucket of a timestamp.

        Returns:
            The timestamp, its timers with the last to fire first, the set of the waiting unnamed ones, and true if
            there are named ones: the timers are then objects, and otherwise keys.
        """
        waiting = self._unnamed.pop(time, None) or set()
        due = self._take_named(time)
        if not waiting and not due:
            return time, [], waiting, False
        encoded = self._scope.encoded
        items: list[Any]
        if due:
            items = [*due, *(_Named(key, b"") for key in waiting)]
            if len(items) > 1:
                items.sort(key=_key_and_name if type(items[0].key) in _SORTED else self._order, reverse=True)
        elif type(next(iter(waiting))) in _SORTED:
            items = sorted(waiting, reverse=True)
        else:
            items = sorted(waiting, key=encoded, reverse=True)
        if waiting:
            earlier = self._firing.get(time)
            if earlier is not None:
                earlier |= waiting
                waiting = earlier
            else:
                self._firing[time] = waiting
        return time, items, waiting, bool(due)

    def _take_named(self, time: int) -> list[_Named]:
        """Remove the named timers of a timestamp. Timers that have moved are put into the bucket of their time."""
        due = []
        for timer in self._named.pop(time, ()):
            if timer.waits == time:
                timer.waits = None
                if timer.at == time:
                    due.append(timer)
                elif timer.at is not None:
                    self._wait(timer, timer.at)
        return due

    def _merged(self, firing: Any, new: Any) -> tuple[int, list[Any], set[Any], bool]:
        """Insert timers that a handler has set at the firing timestamp among those that wait there, last first."""
        time, items, waiting, named = firing
        _, added, added_waiting, added_named = new
        if added_named and not named:
            items[:] = [_Named(key, b"") for key in items]
            named = True
        elif named and not added_named:
            added = [_Named(key, b"") for key in added]
        order: Callable[[Any], Any] = self._order if named else self._scope.encoded
        for item in added:
            after = order(item)
            items.insert(bisect_left(items, True, key=lambda waits: order(waits) < after), item)
        return time, items, waiting or added_waiting, named

    def _order(self, timer: _Named) -> tuple[bytes, bytes]:
        """Return the sort key of timers of one timestamp."""
        return self._scope.encoded(timer.key), timer.name

    def earliest(self) -> int | None:
        """Return the timestamp of the earliest pending timer, or an earlier one; ``None`` if there is none."""
        heap = self.heap
        while heap and not self._unnamed.get(heap[0]):
            time = heap[0]
            if any(timer.waits == timer.at == time for timer in self._named.get(time, ())):
                break
            heappop(heap)
            self._unnamed.pop(time, None)
            # None of them has this time: they are put into the buckets of their times.
            self._take_named(time)
        earliest = heap[0] if heap else None
        up_to = MAX_TIMESTAMP if earliest is None else earliest
        for passed, (time, prefix, sub) in enumerate(self._scope.store.due(self._kind, up_to)):
            if passed == _PASSED or not self._is_gone(time, prefix, sub):
                return time
        return earliest

    def _is_gone(self, time: int, prefix: bytes, sub: bytes) -> bool:
        """Return true if the batch has fired, moved or deleted a stored timer."""
        if time <= self._loaded_up_to:
            return True
        key = decode_key(prefix[1:])
        if sub[0] == _NAMED:
            timer = self._touched.get((key, sub[1:]))
            return timer is not None and timer.at != time
        return (time, key) in self._deleted and key not in self._unnamed.get(time, ())

    # At the end of the batch ------------------------------------------------------------------------------------

    def flush(self, changes: Changes) -> None:
        """Write the timers that were set, moved and removed; retained timers are only counted."""
        if self._scope.retains:
            changes.timers += self.added - self.fired - self.deleted
            self._compact()
            return
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
        for timer in self._touched.values():
            at = None if timer.at is None else encode_time(timer.at)
            write(timer_prefix(kind, encoded(timer.key)), named_timer_sub(timer.name), at)

    def _compact(self) -> None:
        """Clear the leftovers of removed timers; the cost is proportional to their number."""
        touched, heap = self._touched, self.heap
        # Many of them are set again.
        if len(self._discarded) > len(touched) // 2 + _SLACK:
            for timer in self._discarded:
                if timer.at is None and touched.pop((timer.key, timer.name), None) is not None:
                    self._left += timer.waits is not None
            self._discarded.clear()
        self._deleted.clear()
        self._texts.clear()
        self._texts_of.clear()
        if self._left > len(touched) + _SLACK:
            self._named, self._left = {}, 0
            for timer in touched.values():
                if timer.waits is not None:
                    self._named.setdefault(timer.waits, []).append(timer)
        if len(heap) > 2 * (len(self._unnamed) + len(self._named)) + _SLACK:
            heap[:] = {*self._unnamed, *self._named}
            heapify(heap)

    def _forget(self, time: int, key: Any) -> None:
        """Remove an unnamed timer from the index."""
        if self._times is not None:
            _discard(self._times, key, time)

    def _put(self, time: int, key: Any) -> None:
        bucket = self._unnamed.get(time)
        if bucket is None:
            self._unnamed[time] = {key}
            heappush(self.heap, time)
        else:
            bucket.add(key)

    def _touch(self, key: Any, name: bytes, at: int | None) -> _Named:
        """Return the object of a named timer that the batch has not touched yet."""
        timer = self._touched[key, name] = _Named(key, name, at)
        if self._times is not None and at is not None:
            self._names.setdefault(key, set()).add(name)
        return timer

    def _unset(self, timer: _Named) -> None:
        """Set a named timer to no time."""
        timer.at = None
        self._discarded.append(timer)
        if self._times is not None:
            _discard(self._names, timer.key, timer.name)

    def _wait(self, timer: _Named, time: int) -> None:
        """Put a named timer into a bucket."""
        if timer.waits is not None:
            self._left += 1
        timer.waits = time
        bucket = self._named.get(time)
        if bucket is None:
            self._named[time] = [timer]
            heappush(self.heap, time)
        else:
            bucket.append(timer)

    def _stored(self, key: Any, name: bytes) -> int | None:
        """Return the time of a named timer before the batch."""
        value = self._scope.store.get(timer_prefix(self._kind, self._scope.encoded(key)), named_timer_sub(name))
        return None if value is None else decode_time(value)

    def _encoded(self, name: Any) -> bytes:
        if type(name) is str:
            encoded = self._texts.get(name)
            if encoded is None:
                encoded = self._texts[name] = encode_key(name)
                self._texts_of[encoded] = name
            return encoded
        if name is None:
            raise DefinitionError("a timer's name cannot be None; use register_event_time_timer for an unnamed one")
        return encode_key(name)

    def _decoded(self, name: bytes) -> Any:
        text = self._texts_of.get(name)
        return decode_key(name) if text is None else text


def _discard(sets: dict[Any, set[Any]], key: Any, item: Any) -> None:
    """Remove an item from the set of a key, and the set if it is empty."""
    members = sets.get(key)
    if members is not None:
        members.discard(item)
        if not members:
            del sets[key]


def check_timestamp(timestamp: int) -> int:
    """Check that a timestamp is an int in the range of int64, and return it.

    Raises:
        DefinitionError: Anything else.
    """
    if type(timestamp) is not int:
        if not isinstance(timestamp, int) or isinstance(timestamp, bool):
            remedy = {
                timedelta: "; a timer is set at a time: ctx.timestamp() + 60_000 is a minute after the row",
                datetime: "; convert it: int(time.timestamp() * 1000)",
            }.get(type(timestamp), "")
            raise DefinitionError(
                f"timer timestamp {timestamp!r} is {type_of(timestamp)}; give int milliseconds since the epoch{remedy}"
            )
        timestamp = int(timestamp)
    if not MIN_TIMESTAMP <= timestamp <= MAX_TIMESTAMP:
        raise DefinitionError(f"timer timestamp {timestamp} is beyond int64; give milliseconds since the epoch")
    return timestamp

"""The scope of a call into the user's function: the current key, clocks and caches that states and timers share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from keyed.base.arguments import MAX_TIMESTAMP, MIN_TIMESTAMP
from keyed.codec.keys import encode_key
from keyed.content.addresses import TTL_PROCESSING

if TYPE_CHECKING:
    from keyed.content.local_store import ReadStore


class Scope:
    """State that all parts of a key group's function share; one object serves all batches of a task.

    Attributes:
        key: The current key.
        timestamp: Timestamp of the current element or timer, or ``None``.
        watermark: Current event time, milliseconds.
        batch_watermark: Watermark at the start of the batch.
        processing_time: Current processing time, milliseconds.
        batch_processing_time: Processing time of the previous batch.
        commit: Number of the commit of this batch.
        timer_clock: While event-time timers fire, their current time: it lies between the old and the new watermark, so
            that results do not depend on the size of the step.
        in_processing_time: True while a processing-time timer fires; ``timestamp`` is not an event time then.
        store: Committed entries.
        retains: True if nothing reads the changes of a batch, so that states and timers are retained in memory.
        key_bytes: Encoded keys seen in this batch, by key.
    """

    __slots__ = (
        "batch_processing_time",
        "batch_watermark",
        "commit",
        "in_processing_time",
        "key",
        "key_bytes",
        "processing_time",
        "retains",
        "store",
        "timer_clock",
        "timestamp",
        "watermark",
    )

    def __init__(self, store: ReadStore, *, retains: bool = False) -> None:
        self.store = store
        self.retains = retains
        self.begin(0, MIN_TIMESTAMP, 0)

    def begin(self, commit: int, watermark: int, processing_time: int, before: int = MIN_TIMESTAMP) -> None:
        """Start a batch; ``before`` is the processing time of the previous one."""
        self.batch_processing_time = before
        self.key: Any = None
        self.timestamp: int | None = None
        self.watermark = watermark
        self.batch_watermark = watermark
        self.timer_clock: int | None = None
        self.in_processing_time = False
        self.processing_time = processing_time
        self.commit = commit
        self.key_bytes: dict[Any, bytes] = {}

    def encoded(self, key: Any) -> bytes:
        """Return the encoded key, which is computed once per key and batch."""
        data = self.key_bytes.get(key)
        if data is None:
            data = self.key_bytes[key] = encode_key(key)
        return data

    def clock(self, kind: int) -> int:
        """Return the current time of a kind of expiring entries; entries due at `MAX_TIMESTAMP` never expire."""
        if kind == TTL_PROCESSING:
            return self.processing_time
        return min(self.watermark if self.timer_clock is None else self.timer_clock, MAX_TIMESTAMP - 1)

    def stamp(self, kind: int) -> int:
        """Return the time that an update of such an entry gets: an element may be ahead of the watermark."""
        clock = self.clock(kind)
        if kind == TTL_PROCESSING or self.timestamp is None or self.in_processing_time:
            return clock
        return max(clock, self.timestamp)


class Outside:
    """Placeholder for an object that is valid only during a call of the user's function. Its use raises an error.

    A kept state or context therefore needs no check during calls.
    """

    __slots__ = ("_refuse",)

    def __init__(self, refuse: Callable[[], NoReturn]) -> None:
        self._refuse = refuse

    def __getattr__(self, attribute: str) -> NoReturn:
        self._refuse()

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        self._refuse()

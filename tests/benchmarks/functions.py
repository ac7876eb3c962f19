"""The measured functions: J1 and J2 as keyed functions, and the counter as Spark's own stateful processors.

J1 counts and sums per key and emits a row per event, which it can count and sum again. J2 counts and sums per key and
emits when an event-time timer fires at the end of a 60-second window. The raw processors keep the same value state and
emit a row per key and batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from keyed import Context, KeyedCoProcessFunction, KeyedProcessFunction, OnTimerContext, ValueState

OUTPUT = "user_id string, cnt long, amount long"


class J1(KeyedProcessFunction):
    """Counter: value state, a row out per event."""

    total = ValueState(tuple[int, int], default=(0, 0))

    def process_element(self, value: Any, ctx: Context) -> Iterator[tuple[str, int, int]]:
        """Add the event and emit."""
        count, amount = self.total.value()
        count += 1
        amount += value.amount
        self.total.update((count, amount))
        yield value.user_id, count, amount


class ConnectedJ1(KeyedCoProcessFunction):
    """The same over two connected streams."""

    total = ValueState(tuple[int, int], default=(0, 0))

    process_element1 = J1.process_element
    process_element2 = J1.process_element


class J2(KeyedProcessFunction):
    """Value state and an event-time timer at the end of a 60-second window."""

    total = ValueState(tuple[int, int], default=(0, 0))

    def process_element(self, value: Any, ctx: Context) -> None:
        """Add the event and set the timer."""
        count, amount = self.total.value()
        self.total.update((count + 1, amount + value.amount))
        timestamp = ctx.timestamp()
        assert timestamp is not None
        ctx.timer_service().register_event_time_timer(timestamp - timestamp % 60_000 + 59_999)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[tuple[str, int, int]]:
        """Emit and forget."""
        count, amount = self.total.value()
        self.total.clear()
        yield ctx.get_current_key(), count, amount


class RawCounter(StatefulProcessor):
    """The state of the counter as Spark has it."""

    def init(self, handle: Any) -> None:
        """Get the state."""
        self._state = handle.getValueState("total", "cnt long, sum long")

    def close(self) -> None:
        """Nothing to close."""


class RawPandas(RawCounter):
    """The counter for ``transformWithStateInPandas``."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        """Add a batch of a key."""
        import pandas as pd

        count, amount = self._state.get() or (0, 0)
        for frame in rows:
            count += len(frame)
            amount += int(frame["amount"].sum())
        self._state.update((count, amount))
        yield pd.DataFrame({"user_id": [key[0]], "cnt": [count], "amount": [amount]})


class RawRows(RawCounter):
    """The counter for ``transformWithState``, row by row."""

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        """Add a batch of a key."""
        from pyspark.sql import Row

        count, amount = self._state.get() or (0, 0)
        for row in rows:
            count += 1
            amount += row.amount
        self._state.update((count, amount))
        yield Row(user_id=key[0], cnt=count, amount=amount)


def pass_through(batches: Iterator[Any]) -> Iterator[Any]:
    """Give back Arrow batches as they come, for ``mapInArrow``."""
    yield from batches

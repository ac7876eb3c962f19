"""One key with very many open sessions, or entries of a map: ``python -m tests.benchmarks.crowded``.

On the local runtime, in this process. The time for each one has to stay about the same as their number grows.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keyed
from keyed.windows import Count, EventTimeSessionWindows, EventTimeTrigger, PurgingTrigger, Sum

_GAP_MS = 50


class Event(NamedTuple):
    """A row that opens a session of its own."""

    key: int
    at: int
    amount: int


class Filled(keyed.KeyedProcessFunction):
    """Fills a map, reads one entry, and clears it, a batch each. A batch applies what the one before has written."""

    entries = keyed.MapState(int, int)

    def process_element(self, value: tuple[int, str, int], ctx: keyed.Context) -> None:
        _, step, count = value
        if step == "fill":
            for at in range(count):
                self.entries.put(at, at)
        elif step.startswith("get"):
            self.entries.get(count // 2)
        else:
            self.entries.clear()


def main() -> None:
    """Measure and print a table."""
    print("| of one key | how many | CPU µs each |")
    print("|---|--:|--:|")
    for count in (10_000, 100_000):
        for name, change in _SESSIONS.items():
            print(f"| {name} | {count:,} | {_sessions(count, change) / count * 1e6:.1f} |", flush=True)
        for store in ("memory", "rocksdb"):
            for step, seconds in _map_steps(count, store).items():
                print(f"| map in {store}: {step} | {count:,} | {seconds / count * 1e6:.1f} |", flush=True)


_SESSIONS: dict[str, Callable[[Any], Any]] = {
    "sessions": lambda stream: stream,
    "sessions, late rows allowed": lambda stream: stream.allowed_lateness(86_400_000),
    "sessions, own trigger": lambda stream: stream.trigger(PurgingTrigger.of(EventTimeTrigger())),
}


def _sessions(count: int, change: Callable[[Any], Any]) -> float:
    """CPU seconds until all sessions are open, out of order, and have fired."""
    rows = [Event(1, at * 2 * _GAP_MS, 1) for at in range(count)]
    random.Random(1).shuffle(rows)
    delay = keyed.bounded_out_of_orderness(days=365)
    stream = keyed.stream(rows, timestamp="at", watermark=delay).key_by("key")
    windowed = change(stream.window(EventTimeSessionWindows.with_gap(_GAP_MS)).path("row"))
    output = windowed.aggregate({"rows": Count(), "total": Sum("amount")})
    sink = keyed.collect_sink()
    before = time.process_time()
    keyed.run(output.to(sink), rows_per_batch=10_000)
    assert len(sink.values) == count
    return time.process_time() - before


def _map_steps(count: int, store: Any) -> dict[str, float]:
    """CPU seconds of each step: in memory without a checkpoint, and on disk with one."""
    marks = []

    def steps() -> Iterator[tuple[int, str, int]]:
        for step in ("fill", "get, the first", "get", "clear", "get, the first after it"):
            marks.append((step, time.process_time()))
            yield 1, step, count

    output = keyed.stream(steps()).key_by(lambda value: value[0]).process(Filled(), store=store)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = folder if store == "rocksdb" else None
        keyed.run(output.to(keyed.collect_sink()), checkpoint=checkpoint, rows_per_batch=1)
    ends = [at for _, at in marks[1:]] + [time.process_time()]
    return {step: end - start for (step, start), end in zip(marks, ends, strict=True)}


if __name__ == "__main__":
    main()

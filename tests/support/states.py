"""A function with a state of every kind, what its states hold, and aggregates of a user's."""

from __future__ import annotations

from typing import Any

import attrs

import keyed


class Average(keyed.AggregateFunction[int, tuple[int, int], float]):
    """The average of numbers; the accumulator has their sum and their number."""

    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return a[0] + b[0], a[1] + b[1]


class Product:
    """Has the methods of `keyed.AggregateFunction`, and extends nothing."""

    def create_accumulator(self) -> int:
        return 1

    def add(self, value: int, accumulator: int) -> int:
        return value * accumulator

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, a: int, b: int) -> int:
        return a * b


@attrs.frozen
class Sale:
    number: int
    title: str


class Everything(keyed.KeyedProcessFunction):
    """A state of every kind; an element is (key, operation, number)."""

    last = keyed.ValueState(Sale)
    seen = keyed.ListState(int)
    by_title = keyed.MapState(str, int)
    total = keyed.ReducingState(lambda a, b: a + b, int)
    average = keyed.AggregatingState(Average(), tuple[int, int])
    briefly = keyed.ValueState(int, ttl=keyed.StateTtl(50))
    versions = keyed.VersionedState(int, history=1_000_000)

    def process_element(self, value, ctx):
        _, operation, number = value
        if operation == "forget":
            for state in (self.last, self.seen, self.by_title, self.total, self.average, self.briefly, self.versions):
                state.clear()
            ctx.timer_service().cancel_timer("wake")
            return
        self.last.update(Sale(number, f"title {number}"))
        self.seen.add(number)
        if operation == "remove":
            self.by_title.remove(f"title {number % 3}")
            self.versions.delete(number)
        else:
            self.by_title.put(f"title {number % 3}", number)
            self.versions.put(number, number)
        self.total.add(number)
        self.average.add(number)
        self.briefly.update(number)
        self.total.namespace(("window", number % 2)).add(number)
        ctx.timer_service().set_timer("wake", 1_000 + number)
        ctx.timer_service().register_processing_time_timer(10_000 + number)

    def on_timer(self, timestamp, ctx):
        return ()


class Upserts(keyed.vectorized.VectorizedFunction):
    """Writes its rows to a table state."""

    def __init__(self, schema: Any, key: tuple[str, ...]) -> None:
        self.rows = keyed.vectorized.TableState(schema, key=key)

    def process_batch(self, table, ctx):
        self.rows.upsert(table)

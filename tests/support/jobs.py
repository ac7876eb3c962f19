"""Functions and runs that many tests share, in a module that Spark's workers can import."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keyed


class Tally(keyed.KeyedProcessFunction):
    """Emits the key and the number of its rows so far."""

    n = keyed.ValueState(int, default=0)

    def process_element(self, value: Any, ctx: keyed.Context) -> Iterator[Any]:
        self.n.update(self.n.value() + 1)
        yield ctx.get_current_key(), self.n.value()


class Number(keyed.KeyedProcessFunction):
    """Emits the columns ``k`` and ``v``, and the number of rows of the key so far."""

    n = keyed.ValueState(int, default=0)

    def process_element(self, value: Any, ctx: keyed.Context) -> Iterator[Any]:
        self.n.update(self.n.value() + 1)
        yield value.k, value.v, self.n.value()


class Pass(keyed.KeyedProcessFunction):
    """Emits the elements."""

    def process_element(self, value: Any, ctx: keyed.Context) -> Iterator[Any]:
        yield value


class PassTuple(keyed.KeyedProcessFunction):
    """Emits the rows as tuples."""

    def process_element(self, value: Any, ctx: keyed.Context) -> Iterator[Any]:
        yield tuple(value)


class Sides(keyed.KeyedCoProcessFunction):
    """Emits the number of the side and the element."""

    def process_element1(self, value: Any, ctx: keyed.Context) -> Iterator[Any]:
        yield 1, value

    def process_element2(self, value: Any, ctx: keyed.Context) -> Iterator[Any]:
        yield 2, value


def collect(*outputs: keyed.Output, **options: Any) -> tuple[list[list[Any]], keyed.RunResult]:
    """Run a query; return the values of each output, and the result."""
    sinks = [keyed.collect_sink() for _ in outputs]
    result = keyed.run(*(output.to(sink) for output, sink in zip(outputs, sinks, strict=True)), **options)
    return [sink.values for sink in sinks], result


def watermarks_of(output: keyed.Output, **options: Any) -> list[int]:
    """Run a query; return the watermark after each batch."""
    watermarks: list[int] = []
    output.run(on_progress=lambda progress: watermarks.append(progress.watermark), **options)
    return watermarks

"""Aggregates and window functions of a user's that change what they get: nobody else sees it."""

from collections.abc import Iterator
from typing import Any

import pytest

import keyed
from keyed import windows as w
from keyed.rows import row
from keyed.windows.aggregates import Reduce


def extend(a: Any, b: Any) -> Any:
    """Joins the lists inside two rows, in place."""
    a.tags.extend(b.tags)
    return a


def elements() -> list[Any]:
    return [row(k="a", t=t, tags=[t]) for t in (1, 6, 12, 14)]


def ran(stream: Any, size: int) -> list[Any]:
    found: list[Any] = stream.run(rows_per_batch=size).values
    return found


def windowed(source: list[Any], assigner: Any) -> Any:
    return keyed.stream(source, timestamp="t").key_by("k").window(assigner)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_windows_that_share_elements_do_not_share_their_accumulators(size: int) -> None:
    source = elements()
    stream = windowed(source, w.HoppingEventTimeWindows.of(10, 5)).aggregate(Reduce(extend), name="w")
    assert [value.tags for value in ran(stream, size)] == [[1], [1, 6], [6, 12, 14], [12, 14]]
    assert source == elements()


class Drain(w.ProcessWindowFunction):
    """Takes the result apart and emits one list again and again."""

    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        (result,) = elements
        out: list[int] = []
        while result:
            out.append(result.pop(0))
            yield out


def append(element: Any, accumulator: list[int]) -> list[int]:
    accumulator.append(element.t)
    return accumulator


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize(
    ("assigner", "expected"),
    [
        (w.TumblingEventTimeWindows.of(10), [[1], [1, 6], [12], [12, 14]]),
        (w.EventTimeSessionWindows.with_gap(5), [[1], [6], [12], [12, 14]]),
    ],
)
def test_a_window_function_owns_the_result_and_emits_it_as_it_is(assigner: Any, expected: Any, size: int) -> None:
    shared: list[int] = []
    # Creates the same list for each window.
    gathered = w.aggregate_of(lambda: shared, append, lambda a, b: a + b)
    stream = windowed(elements(), assigner).aggregate(gathered, Drain(), name="w")
    assert ran(stream, size) == expected
    assert shared == []

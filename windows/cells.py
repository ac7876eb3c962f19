"""Accumulators of one or several aggregates side by side, as cells of a flat list.

Window operators keep accumulators inside lists of their own (a window's start, then its accumulators, then the next
window): flat lists of numbers are what the codec writes fastest. `Cells` therefore works on a list and a position in
it.
"""

# ruff: noqa: D102 - what overrides a documented method is documented there

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from keyed.codec.tagged import encode_tagged
from keyed.extending import snapshot
from keyed.windows.aggregates import Aggregate, AnyAggregate, ColumnAggregate, Functions, itself

Add = Callable[[list[Any], int, Any, Any], None]
#: Modules of the aggregates that a description names.
_BUILT_IN = {f"keyed.windows.{name}" for name in ("aggregates", "collecting", "frequent", "sketches")}


class Published(AnyAggregate):
    """An aggregate of one's own. Its cell is its accumulator and its result, which readers without the class show.

    Adding leaves the result open; `Cells.completed` computes it once for each batch. It is null while `get_result`
    raises, as for too few elements, and if it is no plain data: only a window that fires needs it.

    Args:
        own: The aggregate.
    """

    def __init__(self, own: AnyAggregate) -> None:
        self._own = own
        self.timed = own.timed
        pair: Any = own.accumulator_type, object
        self.accumulator_type = None if own.accumulator_type is None else tuple[pair]

    def create_accumulator(self) -> Any:
        return self._own.create_accumulator(), None

    def add(self, value: Any, cell: Any) -> Any:
        return self._own.add(value, cell[0]), None

    def add_at(self, value: Any, timestamp: int, cell: Any) -> Any:
        return self._own.add_at(value, timestamp, cell[0]), None

    def merge(self, a: Any, b: Any) -> Any:
        return self._own.merge(a[0], b[0]), None

    def get_result(self, cell: Any) -> Any:
        return self._own.get_result(cell[0])

    def completed(self, cell: Any) -> Any:
        """Return a cell with its result."""
        accumulator, result = cell
        if result is not None:
            return cell
        try:
            result = self._own.get_result(accumulator)
            encode_tagged(result)
        except Exception:  # noqa: BLE001 - a function of the user, which raises when the window fires
            return cell
        return accumulator, result


def is_own(aggregate: AnyAggregate) -> bool:
    """Return true if only the class of an aggregate has the results of its accumulators."""
    if type(aggregate).__module__ in _BUILT_IN and not isinstance(aggregate, Functions):
        return False
    get_result: Any = getattr(aggregate.get_result, "__func__", aggregate.get_result)
    return get_result is not Aggregate.get_result and get_result is not itself


def stored_aggregate(aggregate: AnyAggregate) -> AnyAggregate:
    """Return an aggregate whose accumulators are those that are stored."""
    return Published(aggregate) if is_own(aggregate) else aggregate


class Cells:
    """The accumulators of some aggregates.

    Attributes:
        width: Number of cells, one per aggregate.
        version: Names the stored form.
        are_results: Whether all accumulators are their own results.
        add: ``add(cells, at, element, timestamp)`` adds an element to the accumulators from position ``at`` on.

    Args:
        aggregates: The aggregates, at least one.
    """

    def __init__(self, aggregates: tuple[AnyAggregate, ...]) -> None:
        self.width = len(aggregates)
        self.version = f"{self.width}{'_published' * any(map(is_own, aggregates))}"
        aggregates = tuple(map(stored_aggregate, aggregates))
        self._published = [(i, each) for i, each in enumerate(aggregates) if isinstance(each, Published)]
        self._create = [_creator(aggregate) for aggregate in aggregates]
        # Immutable initial accumulators are copied, not created again.
        initial = [create() for create in self._create]
        if all(cell is None or isinstance(cell, int | float | str) for cell in initial):
            self.create = initial.copy  # type: ignore[method-assign]
        self._merge = [aggregate.merge for aggregate in aggregates]
        # Aggregates whose accumulator is the result need no call.
        same = Aggregate.get_result
        self._results = [
            (i, aggregate.get_result)
            for i, aggregate in enumerate(aggregates)
            if getattr(aggregate.get_result, "__func__", None) is not same
        ]
        self.are_results = not self._results
        self.add: Add = _adder(aggregates)

    def create(self) -> list[Any]:
        """Return new accumulators."""
        return [create() for create in self._create]

    def merge(self, cells: list[Any], at: int, other: list[Any], other_at: int) -> None:
        """Merge the accumulators at ``other_at`` of ``other`` into those at ``at``, which came earlier."""
        for i, merge in enumerate(self._merge):
            cells[at + i] = merge(cells[at + i], other[other_at + i])

    def results(self, cells: list[Any], at: int) -> list[Any]:
        """Return the results of the accumulators at ``at``."""
        results = cells[at : at + self.width]
        for i, result in self._results:
            results[i] = result(results[i])
        return results

    def completing(self, first: int, stride: int) -> Callable[[Any], Any] | None:
        """Return the function that completes stored lists, in which accumulators begin at ``first + n * stride``."""
        if not self._published:
            return None

        def completed(values: list[Any]) -> list[Any]:
            for at in range(first, len(values), stride):
                for i, aggregate in self._published:
                    values[at + i] = aggregate.completed(values[at + i])
            return values

        return completed


def _creator(aggregate: AnyAggregate) -> Callable[[], Any]:
    """Return a factory of new accumulators."""
    create = aggregate.create_accumulator
    return create if isinstance(aggregate, ColumnAggregate) else lambda: snapshot(create())


def _add_of(aggregate: AnyAggregate) -> Callable[..., Any]:
    """Return the function that adds an element.

    A user's aggregate may keep and change the element, so it gets a copy.
    """
    add = aggregate.add_at if aggregate.timed else aggregate.add
    if isinstance(aggregate, ColumnAggregate):
        return add
    return lambda element, *rest: add(snapshot(element), *rest)


def _adder(aggregates: tuple[AnyAggregate, ...]) -> Add:
    """Return the function that adds, unrolled for one or two aggregates because it runs once per element."""
    adds = [_add_of(aggregate) for aggregate in aggregates]
    if any(aggregate.timed for aggregate in aggregates):
        timed_adds = [(aggregate.timed, add) for aggregate, add in zip(aggregates, adds, strict=True)]

        def add_timed(cells: list[Any], at: int, element: Any, timestamp: Any) -> None:
            for timed, add in timed_adds:
                cells[at] = add(element, timestamp, cells[at]) if timed else add(element, cells[at])
                at += 1

        return add_timed
    if len(adds) == 1:
        only = adds[0]

        def add_one(cells: list[Any], at: int, element: Any, _: Any) -> None:
            cells[at] = only(element, cells[at])

        return add_one
    if len(adds) == 2:
        first, second = adds

        def add_two(cells: list[Any], at: int, element: Any, _: Any) -> None:
            cells[at] = first(element, cells[at])
            cells[at + 1] = second(element, cells[at + 1])

        return add_two

    def add_all(cells: list[Any], at: int, element: Any, _: Any) -> None:
        for add in adds:
            cells[at] = add(element, cells[at])
            at += 1

    return add_all

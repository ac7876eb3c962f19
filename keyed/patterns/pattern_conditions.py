"""Conditions of steps: functions of a row, or of a row and its match so far, and their combinations."""

from __future__ import annotations

import datetime as dt
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Protocol
from uuid import UUID

import attrs

from keyed import Row
from keyed.errors import DefinitionError


@attrs.frozen
class OverColumns:
    """A condition whose function returns a boolean for each row of a ``pyarrow.Table``, the rows of a batch."""

    function: Callable[[Any], Any]


#: The types of rows that state keeps.
_PLAIN = (Row, dict, tuple, list, str, bool, int, float, bytes, Decimal, UUID, dt.datetime, dt.date)

Where = Callable[[Any], Any] | Callable[[Any, "Match"], Any] | str | OverColumns


class Match(Mapping[str, list[Any]]):
    """The rows of a match by step: ``match["small"]`` is a list, empty if none has matched.

    Iteration, ``len`` and ``in`` cover the steps that have rows, in their order.

    Attributes:
        timestamp: Event time in milliseconds: of the row that a condition is called with, or of the match.
    """

    __slots__ = ("_rows", "_steps", "timestamp")

    def __init__(self, rows: dict[str, list[Any]], steps: Sequence[str], timestamp: int) -> None:
        self._rows = rows
        self._steps = steps
        self.timestamp = timestamp

    def __getitem__(self, step: str) -> list[Any]:
        rows = self._rows.get(step)
        if rows is None:
            if step not in self._steps:
                raise KeyError(f"{step!r} is no step of the pattern; its steps are {', '.join(self._steps)}")
            return []
        return rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, step: object) -> bool:
        return step in self._rows

    def __repr__(self) -> str:
        return f"Match({self._rows!r})"

    def first(self, step: str) -> Any:
        """Return the first row of a step; ``None`` if it has none."""
        rows = self[step]
        return rows[0] if rows else None

    def last(self, step: str) -> Any:
        """Return the last row of a step; ``None`` if it has none."""
        rows = self[step]
        return rows[-1] if rows else None


class Condition(Protocol):
    """A condition on a row, given a partial match."""

    def holds(self, look: Look, /) -> bool:
        """Return whether the row of ``look`` satisfies it."""


@attrs.frozen(eq=False)
class StepCondition:
    """A function of the user.

    Attributes:
        step: The step that it belongs to.
        function: The function.
        takes_match: True if it is called with the match so far, too.
    """

    step: str
    function: Callable[..., Any]
    takes_match: bool

    def holds(self, look: Look) -> bool:
        """See `Condition`."""
        results = look.of_match if self.takes_match else look.of_row
        result = results.get(self)
        if result is None:
            try:
                result = bool(self.function(look.row, look.match()) if self.takes_match else self.function(look.row))
            except Exception as error:
                raise ConditionFailed(self.step, f"raised {type(error).__name__}: {error}") from error
            results[self] = result
        return result


@attrs.frozen(eq=False)
class ColumnCondition:
    """A condition over columns, computed by `keyed.patterns.column_conditions`.

    Attributes:
        step: The step that it belongs to.
        where: A DuckDB expression, or a function of the table.
    """

    step: str
    where: str | Callable[[Any], Any]

    def __str__(self) -> str:
        return f"{self.step}: {self.where}" if isinstance(self.where, str) else f"{self.step}: a function"

    def holds(self, look: Look) -> bool:
        """See `Condition`."""
        result = look.columns >> look.places[self]
        if result & 2:
            raise ConditionFailed(self.step, f"{self.where!r} cannot be computed")
        return bool(result & 1)


class ConditionFailed(Exception):
    """The condition of a step raised; the operator adds the place, or diverts the row."""

    def __init__(self, step: str, what: str) -> None:
        super().__init__(f"the condition of step {step!r} {what}")


@attrs.frozen(eq=False)
class _Always:
    def holds(self, look: Look) -> bool:
        return True


@attrs.frozen(eq=False)
class _Not:
    condition: Condition

    def holds(self, look: Look) -> bool:
        return not self.condition.holds(look)


@attrs.frozen(eq=False)
class _And:
    first: Condition
    second: Condition

    def holds(self, look: Look) -> bool:
        return self.first.holds(look) and self.second.holds(look)


@attrs.frozen(eq=False)
class _Or:
    first: Condition
    second: Condition

    def holds(self, look: Look) -> bool:
        return self.first.holds(look) or self.second.holds(look)


@attrs.frozen(eq=False)
class _InTime:
    condition: Condition
    limit_ms: int

    def holds(self, look: Look) -> bool:
        return look.waited_ms < self.limit_ms and self.condition.holds(look)


@attrs.frozen(eq=False)
class _IsInstance:
    cls: type

    def holds(self, look: Look) -> bool:
        return isinstance(look.row, self.cls)


ALWAYS: Condition = _Always()


def negated(condition: Condition) -> Condition:
    """Return the condition that holds where another one does not."""
    return condition.condition if isinstance(condition, _Not) else _Not(condition)


def both(first: Condition | None, second: Condition | None) -> Condition:
    """Return the condition that holds where two do; ``None`` is no condition."""
    if first is None or isinstance(first, _Always):
        return ALWAYS if second is None else second
    return first if second is None or isinstance(second, _Always) else _And(first, second)


def either(first: Condition | None, second: Condition) -> Condition:
    """Return the condition that holds where one of two does; ``None`` is no condition."""
    return second if first is None else _Or(first, second)


def in_time(condition: Condition, limit_ms: int | None) -> Condition:
    """Return the condition that holds no longer once a time since the last row of a match has passed."""
    return condition if limit_ms is None else _InTime(condition, limit_ms)


def parts_of(condition: Condition) -> Iterator[Condition]:
    """Yield the conditions that a condition combines."""
    if isinstance(condition, _Not | _InTime):
        yield from parts_of(condition.condition)
    elif isinstance(condition, _And | _Or):
        yield from parts_of(condition.first)
        yield from parts_of(condition.second)
    else:
        yield condition


def subtype_of(cls: Any) -> Condition:
    """Return the condition that a row is an object of a class.

    Raises:
        DefinitionError: It is no class.
    """
    if not isinstance(cls, type):
        raise DefinitionError(f"subtype({cls!r}): give the class of the rows")
    if not any(issubclass(each, cls) for each in _PLAIN):
        raise DefinitionError(
            f"subtype({cls.__name__}): rows wait for the watermark and stay in state as plain data, so none is an "
            "object of this class; let stream.map(...) add a column with the kind of the row, and give a condition "
            f"on it: where=lambda row: row.kind == {cls.__name__!r}"
        )
    return _IsInstance(cls)


class Look:
    """A row as it is tested: functions are called once per row, those of a match so far once per partial match.

    Args:
        steps: The names of the steps.
        read: Returns the rows of the match that ends with a node.
        places: The places of the bits of conditions over columns.

    Attributes:
        columns: The bits of the row, as `keyed.patterns.column_conditions` has them.
        timestamp: Time of the row.
        waited_ms: Time since the last row of the partial match.
    """

    __slots__ = (
        *("_match", "_node", "_read", "_steps"),
        *("columns", "of_match", "of_row", "places", "row", "timestamp", "waited_ms"),
    )

    def __init__(
        self,
        steps: Sequence[str],
        read: Callable[[int | None], dict[str, list[Any]]],
        places: Mapping[Any, int],
    ) -> None:
        self._steps = steps
        self._read = read
        self.places = places
        self.columns = 0
        self.of_row: dict[StepCondition, bool] = {}
        self.of_match: dict[StepCondition, bool] = {}

    def start(self, row: Any, timestamp: int) -> None:
        """Test a row from now on, first without a partial match."""
        self.row = row
        self.timestamp = timestamp
        if self.of_row:
            self.of_row = {}
        self.enter(None, 0)

    def enter(self, node: int | None, waited_ms: int) -> None:
        """Test for the partial match that ends with a node from now on, whose last row came some time ago."""
        self._node = node
        self.waited_ms = waited_ms
        self._match: Match | None = None
        if self.of_match:
            self.of_match = {}

    def match(self) -> Match:
        """Return the match so far."""
        if self._match is None:
            self._match = Match(self._read(self._node), self._steps, self.timestamp)
        return self._match


def condition_of(where: Any, step: str, parameter: str) -> Condition:
    """Return the condition that calls a function of the user, or is computed over columns.

    Raises:
        DefinitionError: It is no function of a row, or of a row and a match; or it could be both.
    """
    if isinstance(where, str | OverColumns):
        return ColumnCondition(step, where if isinstance(where, str) else where.function)
    how = f"{parameter} of step {step!r}: give a function of the row, or of the row and the match so far"
    if not callable(where) or isinstance(where, type):
        raise DefinitionError(f"{how}, and not {where!r:.200}")
    if inspect.iscoroutinefunction(where) or inspect.isgeneratorfunction(where):
        raise DefinitionError(f"{how}; {where!r:.200} is a coroutine or generator, which is always true")
    try:
        signature = inspect.signature(where)
    except ValueError as error:
        raise DefinitionError(f"{how}; {where!r:.200} has no signature, so wrap it: lambda row: ...") from error
    takes = [count for count in (1, 2) if _binds(signature, count)]
    if len(takes) != 1:
        remedy = (
            "it accepts both: make further parameters keyword-only, as in lambda row, *, limit=5: ..."
            if takes
            else f"it has the parameters {signature}"
        )
        raise DefinitionError(f"{how}; {remedy}")
    return StepCondition(step, where, takes_match=takes == [2])


def _binds(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*range(count))
    except TypeError:
        return False
    return True

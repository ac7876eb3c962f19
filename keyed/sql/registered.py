"""Python functions and aggregates under names of the user's, for the expressions of scripts."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

from keyed.codec.snapshots import snapshot
from keyed.errors import DefinitionError
from keyed.formats.sql_types import SqlType
from keyed.shown import type_of
from keyed.sql.expressions import function_names
from keyed.sql.grammar import parse_type
from keyed.sql.scalar_functions import FUNCTIONS, Form, Function
from keyed.sql.sql_aggregates import MAKERS, SqlAggregate

_NAME = re.compile(r"[A-Z_][A-Z0-9_]*")
_METHODS = ("create_accumulator", "add", "get_result", "merge")
_registered: set[str] = set()


def register(name: str, function: Any, *, takes: Sequence[str], returns: str) -> None:
    """Let scripts of this process call a Python function or aggregate.

    A null argument makes the result of a function null without a call, and an aggregate ignores the row. An exception
    makes the result of that row null.

    Args:
        name: Its name in SQL, in any case. A name that was registered before is replaced.
        function: A function of the arguments; or a `keyed.AggregateFunction`, an object or its class, whose ``add``
            gets the argument, or the tuple of several.
        takes: SQL types of the arguments.
        returns: SQL type of the result.

    Raises:
        DefinitionError: The name is not an identifier or that of a built-in function; or ``function`` is neither.
        SqlError: A type is unknown.
    """
    upper = name.upper()
    if not _NAME.fullmatch(upper):
        raise DefinitionError(f"register({name!r}): a name consists of letters, digits and _, and begins with a letter")
    if upper in function_names() - _registered:
        raise DefinitionError(f"register({name!r}): {upper} is a built-in function; choose another name")
    types, result = tuple(map(parse_type, takes)), parse_type(returns)
    made: Any = function() if inspect.isclass(function) else function
    is_aggregate = all(callable(getattr(made, each, None)) for each in _METHODS)
    if not is_aggregate and not callable(made):
        raise DefinitionError(
            f"register({name!r}): {type_of(function)} is neither a function nor a keyed.AggregateFunction, which has "
            f"{', '.join(_METHODS)}"
        )
    FUNCTIONS.pop(upper, None)
    MAKERS.pop(upper, None)
    if is_aggregate:
        MAKERS[upper] = _maker(made, types, result)
    else:
        FUNCTIONS[upper] = Function(upper, [Form(types, result, _isolated(made), True, False)])
    _registered.add(upper)


def _isolated(function: Any) -> Callable[..., Any]:
    """Return a function of copies: other queries read the same arrays and maps, and a function may change its own."""
    return lambda *given: function(*map(snapshot, given))


def _maker(function: Any, takes: tuple[SqlType, ...], result: SqlType) -> Callable[..., SqlAggregate | None]:
    def add(accumulator: Any, row: Sequence[Any]) -> Any:
        if None in row:
            return accumulator
        return function.add(snapshot(row[0] if len(row) == 1 else tuple(row)), accumulator)

    def make(types: Sequence[SqlType], _: Sequence[Any], __: Any) -> SqlAggregate | None:
        if tuple(types) != takes:
            return None
        # A result may be the accumulator, which a later call changes in place.
        return SqlAggregate(
            result, function.create_accumulator, add, function.merge, lambda cell: snapshot(function.get_result(cell))
        )

    return make

"""Python functions and aggregates under names of the user's, for the expressions of scripts."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

from keyed.base.arguments import type_of
from keyed.errors import DefinitionError
from keyed.expressions import engine
from keyed.sql.sql_aggregates import AGGREGATES
from keyed.sql.statements import parse_type

_NAME = re.compile(r"[A-Z_][A-Z0-9_]*")
_METHODS = ("create_accumulator", "add", "get_result", "merge")


def register(name: str, function: Any, *, takes: Sequence[str], returns: str, over_arrow: bool = False) -> None:
    """Let scripts of this process call a Python function or aggregate.

    For a null argument a function is null without a call, and an aggregate ignores the row. A row for which a
    function raises is skipped and counted.

    Args:
        name: Its name in SQL, in any case. A name that was registered before is replaced.
        function: A function of the arguments; or a `keyed.AggregateFunction`, an object or its class, whose ``add``
            gets the argument, or the tuple of several.
        takes: SQL types of the arguments.
        returns: SQL type of the result.
        over_arrow: The function takes an Arrow array for each argument, and returns one, with nulls.

    Raises:
        DefinitionError: The name is not an identifier or that of a built-in function; or ``function`` is neither.
        SqlError: A type is unknown.
    """
    upper = name.upper()
    if not _NAME.fullmatch(upper):
        raise DefinitionError(f"register({name!r}): a name consists of letters, digits and _, and begins with a letter")
    if upper in AGGREGATES or (upper in engine.functions() and upper not in engine.registered):
        raise DefinitionError(f"register({name!r}): {upper} is a built-in function; choose another name")
    types, result = tuple(map(parse_type, takes)), parse_type(returns)
    implementation: Any = function() if inspect.isclass(function) else function
    is_aggregate = all(callable(getattr(implementation, each, None)) for each in _METHODS)
    if not is_aggregate and not callable(implementation):
        raise DefinitionError(
            f"register({name!r}): {type_of(function)} is neither a function nor a keyed.AggregateFunction, which has "
            f"{', '.join(_METHODS)}"
        )
    registered = engine.PythonFunction(upper, implementation, types, result, over_arrow)
    engine.PYTHON.pop(upper, None)
    engine.forget(upper)
    if is_aggregate:
        engine.PYTHON[upper] = registered
    else:
        engine.provide([registered])

"""The table functions: each returns a list of values for a row, which become rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from keyed.sql.sql_types import NULL, SqlType

TABLE_FUNCTIONS = frozenset({"EXPLODE", "CUBE_EXPLODE"})
#: The number of combinations doubles with each value of a cube.
_MOST_VALUES = 20


def table_function(
    name: str, types: Sequence[SqlType], fail: Callable[[str], NoReturn]
) -> tuple[SqlType, Callable[..., Any]]:
    """Return the type of a table function's values, and the function.

    Raises:
        SqlError: It does not take such arguments.
    """
    if len(types) != 1 or types[0].base != "ARRAY":
        fail(f"{name} takes one ARRAY, and got ({', '.join(map(str, types))})")
    if name == "EXPLODE":
        return types[0].element, lambda values: values
    return types[0] if types[0] != NULL else NULL, _cube


def _cube(values: Any) -> Any:
    """Return all combinations of the values and nulls, nulls first; a null has no other form.

    More than 20 values have no combinations, as the error that they are in ksqlDB.
    """
    if values is None or len(values) > _MOST_VALUES:
        return None
    options = [(None,) if value is None else (None, value) for value in values]
    return [list(each) for each in itertools.product(*options)]

"""Parameters of a script: values for ``?`` and ``$name`` in its text, bound as literals and never pasted as text."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

from keyed.errors import DefinitionError
from keyed.shown import shown
from keyed.sql import syntax as tree
from keyed.sql.script_errors import Text, nearest
from keyed.sql.sql_types import BIGINT, BOOLEAN, BYTES, DATE, DOUBLE, INTEGER, NULL, STRING, TIMESTAMP, SqlType, decimal

#: Values of ``?`` in their order, or of ``$name`` by name.
Parameters: TypeAlias = Sequence[Any] | Mapping[str, Any]
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class BoundParameters:
    """The values of the parameters of a text.

    Args:
        given: The values.

    Raises:
        DefinitionError: They are neither a list nor a dictionary, or a value has no SQL type.
    """

    def __init__(self, given: Parameters | None) -> None:
        if isinstance(given, str | bytes) or not isinstance(given, Sequence | Mapping | None):
            raise DefinitionError(f"parameters={shown(given)} must be a list for ?, or a dictionary for $name")
        named = given.items() if isinstance(given, Mapping) else enumerate(given or ())
        self._values: dict[Any, tuple[SqlType, Any]] = {name: _typed(name, value) for name, value in named}
        self._is_named = isinstance(given, Mapping)
        self._used: set[Any] = set()

    def literal(self, text: Text, name: str | int, at: int) -> tree.Literal:
        """Return the value of a parameter in the text: by name, or by the number of the ``?`` from 0.

        Raises:
            SqlError: It has none.
        """
        if name not in self._values:
            known = nearest(str(name), map(str, self._values)) if self._is_named else ""
            text.fail(f"parameters= has no value for {f'${name}' if isinstance(name, str) else '?'}{known}", at)
        self._used.add(name)
        type_, value = self._values[name]
        return tree.Literal(value, type_, at=at)

    def check_used(self) -> None:
        """Check that the text has all parameters.

        Raises:
            DefinitionError: One is not in it.
        """
        unused = [name for name in self._values if name not in self._used]
        if unused:
            shown_name = f"${unused[0]}" if self._is_named else f"the ? number {unused[0] + 1}"
            raise DefinitionError(f"parameters= has a value for {shown_name}, which the text does not have")


def _typed(name: Any, value: Any) -> tuple[SqlType, Any]:
    match value:
        case None:
            return NULL, None
        case bool():
            return BOOLEAN, value
        case int() if -(2**63) <= value < 2**63:
            return (INTEGER if -(2**31) <= value < 2**31 else BIGINT), value
        case float():
            return DOUBLE, value
        case Decimal() if value.is_finite():
            digits, exponent = len(value.as_tuple().digits), -int(value.as_tuple().exponent)
            return decimal(max(digits, exponent, 1), max(exponent, 0)), value
        case str():
            return STRING, value
        case bytes():
            return BYTES, value
        case dt.datetime():
            moment = value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
            return TIMESTAMP, (moment - _EPOCH) // dt.timedelta(milliseconds=1)
        case dt.date():
            return DATE, (value - _EPOCH.date()).days
    raise DefinitionError(f"parameters: the value {shown(value)} of {name!r} has no SQL type")

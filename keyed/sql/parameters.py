"""Parameters of a script: values for ``?`` and ``$name`` in its text, which DuckDB binds; they are never pasted."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import attrs

from keyed.base.shown import nearest, shown
from keyed.errors import DefinitionError
from keyed.expressions.sql_text import Text
from keyed.expressions.tokens import SqlToken, closing

#: Values of ``?`` in their order, or of ``$name`` by name.
Given: TypeAlias = Sequence[Any] | Mapping[str, Any]


@attrs.frozen
class BoundParameter(SqlToken):
    """A parameter with its value; equal ones have equal values."""

    value: Any = None


class Parameters:
    """The values of the parameters of a text.

    Args:
        given: The values.

    Raises:
        DefinitionError: They are neither a list nor a dictionary, or a value has no SQL type.
    """

    def __init__(self, given: Given | None) -> None:
        if isinstance(given, str | bytes) or not isinstance(given, Sequence | Mapping | None):
            raise DefinitionError(f"parameters={shown(given)} must be a list for ?, or a dictionary for $name")
        named = given.items() if isinstance(given, Mapping) else enumerate(given or ())
        self._given = {name: _checked(name, value) for name, value in named}
        self._is_named = isinstance(given, Mapping)
        #: The values by the names that DuckDB has of them.
        self.values: dict[str, Any] = {}

    def bound(self, text: Text, found: Sequence[SqlToken]) -> list[SqlToken]:
        """Return the words of a text with the values of its parameters.

        Raises:
            SqlError: A parameter has no value.
            DefinitionError: A value is of no parameter.
        """
        used: set[Any] = set()
        made: list[SqlToken] = []
        marks = 0
        quantified = -1
        for place, token in enumerate(found):
            if token.upper == "PATTERN" and found[place + 1].upper == "(":
                quantified = found[closing(found, place + 1)].at
            if token.kind != "parameter" or (token.text == "?" and token.at < quantified):
                # In PATTERN (A? B) it is a quantifier.
                made.append(token if token.kind != "parameter" else attrs.evolve(token, kind="sign"))
                continue
            name: Any = token.text[1:] if token.text != "?" else marks
            marks += token.text == "?"
            if name not in self._given:
                known = nearest(str(name), map(str, self._given)) if self._is_named else ""
                text.fail(f"parameters= has no value for {token.text}{known}", token.at)
            used.add(name)
            own = f"p_{name}"
            self.values[own] = self._given[name]
            made.append(BoundParameter("parameter", f"${own}", token.at, token.end, self._given[name]))
        unused = [name for name in self._given if name not in used]
        if unused:
            what = f"${unused[0]}" if self._is_named else f"the ? number {int(unused[0]) + 1}"
            raise DefinitionError(f"parameters= has a value for {what}, which the text does not have")
        return made


def _checked(name: Any, value: Any) -> Any:
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC).replace(tzinfo=None)
    fits = isinstance(value, bool | float | str | bytes | dt.date | None)
    fits |= isinstance(value, int) and -(2**63) <= value < 2**63
    fits |= isinstance(value, Decimal) and value.is_finite() and len(value.as_tuple().digits) <= 38
    if fits:
        return value
    raise DefinitionError(f"parameters: the value {shown(value)} of {name!r} has no SQL type")

"""Parameters of a text: values for ``?`` and ``$name`` in its text, which DuckDB binds; they are never pasted."""

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


def bound(text: Text, words: Sequence[SqlToken], parameters: Given | None) -> tuple[list[SqlToken], dict[str, Any]]:
    """Return the words of a text with the values of its parameters, and these by the names that DuckDB has of them.

    Args:
        text: The text.
        words: Its words.
        parameters: The values.

    Raises:
        DefinitionError: They are neither a list nor a dictionary, a value has no SQL type, or is of no parameter.
        SqlError: A parameter has no value.
    """
    if isinstance(parameters, str | bytes) or not isinstance(parameters, Sequence | Mapping | None):
        raise DefinitionError(f"parameters={shown(parameters)} must be a list for ?, or a dictionary for $name")
    is_named = isinstance(parameters, Mapping)
    named: dict[Any, Any] = dict(parameters.items() if isinstance(parameters, Mapping) else enumerate(parameters or ()))
    values = {f"p_{name}": _checked(name, value) for name, value in named.items()}
    bound_words: list[SqlToken] = []
    used: set[Any] = set()
    marks = 0
    quantified = -1
    for place, token in enumerate(words):
        if token.upper == "PATTERN" and words[place + 1].upper == "(":
            quantified = words[closing(words, place + 1)].at
        if token.kind != "parameter" or (token.text == "?" and token.at < quantified):
            # In PATTERN (A? B) it is a quantifier.
            bound_words.append(token if token.kind != "parameter" else attrs.evolve(token, kind="sign"))
            continue
        name: Any = token.text[1:] if token.text != "?" else marks
        marks += token.text == "?"
        if name not in named:
            known = nearest(str(name), map(str, named)) if is_named else ""
            text.fail(f"parameters= has no value for {token.text}{known}", token.at)
        used.add(name)
        bound_words.append(BoundParameter("parameter", f"$p_{name}", token.at, token.end, values[f"p_{name}"]))
    unused = [name for name in named if name not in used]
    if unused:
        what = f"${unused[0]}" if is_named else f"the ? number {int(unused[0]) + 1}"
        raise DefinitionError(f"parameters= has a value for {what}, which the text does not have")
    return bound_words, values


def _checked(name: Any, value: Any) -> Any:
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC).replace(tzinfo=None)
    fits = isinstance(value, bool | float | str | bytes | dt.date | None)
    fits |= isinstance(value, int) and -(2**63) <= value < 2**63
    fits |= isinstance(value, Decimal) and value.is_finite() and len(value.as_tuple().digits) <= 38
    if fits:
        return value
    raise DefinitionError(f"parameters: the value {shown(value)} of {name!r} has no SQL type")

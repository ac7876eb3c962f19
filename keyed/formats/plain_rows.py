"""Rows as plain data: JSON of a batch, and the members of objects as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import msgspec

from keyed.formats.sql_types import BadValue
from keyed.formats.typed_columns import by_folded_name

_numbers = msgspec.json.Decoder()
_decimals = msgspec.json.Decoder(float_hook=Decimal)


def json_values(texts: Sequence[Any], *, exact: bool) -> list[Any]:
    """Return the values of JSON texts, as bytes or text; a `BadValue` for a text that is no JSON.

    Args:
        texts: The texts.
        exact: Numbers with a fraction are decimals.
    """
    decoder = _decimals if exact else _numbers
    if set(map(type, texts)) == {bytes}:
        lines = b"\n".join(texts)
        # No text of JSON has a line end inside of a string, so each line is one text.
        if lines.count(b"\n") == len(texts) - 1:
            try:
                values = decoder.decode_lines(lines)
            except (ValueError, RecursionError):
                values = []
            if len(values) == len(texts):
                return values
    return [_json(decoder, each) for each in texts]


def _json(decoder: Any, text: Any) -> Any:
    try:
        return decoder.decode(text)
    except RecursionError:
        return BadValue("it is nested too deeply")
    except ValueError as error:
        return BadValue(str(error))


def cells_of(rows: Sequence[Any], names: Sequence[str]) -> tuple[dict[str, list[Any]], dict[int, str], set[Any]]:
    """Return the members of objects by their names, in any case; missing ones are null.

    Args:
        rows: Objects; ``None`` for one without members, `BadValue` for one that could not be read.
        names: The names, which do not differ only in case.

    Returns:
        The columns, the reasons of bad rows, and the names of all members.
    """
    bad: dict[int, str] = {}
    kinds = set(map(type, rows))
    if kinds <= {dict}:
        seen: set[Any] = set().union(*rows)
        if all(each.__class__ is str for each in seen):
            lowered = {each.lower() for each in names}
            is_plain = len({each.lower() for each in seen}) == len(seen)
            if is_plain and all(each in names for each in seen if each.lower() in lowered):
                return {name: [row.get(name) for row in rows] for name in names}, bad, seen
    seen = set()
    cells: dict[str, list[Any]] = {name: [] for name in names}
    lower = [(name, name.lower()) for name in names]
    for place, row in enumerate(rows):
        folded: Mapping[str, Any] = {}
        if isinstance(row, Mapping):
            seen.update(row)
            try:
                folded = by_folded_name(row)
            except BadValue as error:
                bad[place] = str(error)
        elif row is not None:
            bad[place] = str(row) if isinstance(row, BadValue) else f"expected an object, got {type(row).__name__}"
        for name, each in lower:
            cells[name].append(folded.get(each))
    return cells, bad, seen

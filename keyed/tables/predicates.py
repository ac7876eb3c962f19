"""Bounds on columns for rows that pass a filter, from the Substrait form of an Arrow expression.

A filter is a tree in C++ that Python cannot inspect, but it can be written as Substrait's ``ExtendedExpression``, a
protocol buffer with a published layout. Conjunctions of comparisons between a column and a constant are parsed; other
parts are ignored. A bound may therefore accept more rows than the filter, but never fewer: the filter is applied to the
rows that are found.

Field numbers are those of ``substrait/algebra.proto`` and ``extended_expression.proto``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc

_COMPARISONS = {"equal", "lt", "lte", "gt", "gte"}
_FLIPPED = {"equal": "equal", "lt": "gt", "lte": "gte", "gt": "lt", "gte": "lte"}
_MASK = (1 << 64) - 1
_NULL = 29
#: Bytes of the values of fixed size, by their wire type.
_FIXED = {1: 8, 5: 4}


@attrs.define
class Bound:
    """Bound of one column.

    Attributes:
        values: The possible values; ``None`` if the filter does not list them.
        least: The least value, if there is one; the value itself may or may not pass.
        greatest: The greatest value likewise.
    """

    values: list[Any] | None = None
    least: Any = None
    greatest: Any = None


def bounds_of(filter: pc.Expression | None, schema: pa.Schema) -> dict[str, Bound]:
    """Return the bounds of columns from a filter, by name. Only text, integers and bytes have bounds."""
    bounds: dict[str, Bound] = {}
    if filter is None:
        return bounds
    import pyarrow as pa

    try:
        fields = _fields(bytes(filter.to_substrait(schema)))
        functions = {}
        for declaration in fields.get(2, ()):
            function = _fields(_fields(declaration)[3][0])
            functions[_number(function, 2)] = function[3][0].decode().partition(":")[0]
        expression = _fields(_fields(fields[3][0])[1][0])
        for column, comparison, value in _conjuncts(expression, functions):
            bound = bounds.setdefault(schema.names[column], Bound())
            if comparison == "equal":
                values = value if isinstance(value, list) else [value]
                bound.values = values if bound.values is None else [each for each in bound.values if each in values]
            elif comparison in ("gt", "gte") and (bound.least is None or value > bound.least):
                bound.least = value
            elif comparison in ("lt", "lte") and (bound.greatest is None or value < bound.greatest):
                bound.greatest = value
    except (pa.ArrowException, KeyError, IndexError, TypeError, ValueError, UnicodeDecodeError):
        # A form that is not parsed, or that Substrait lacks, adds no bound.
        return bounds
    return bounds


def _conjuncts(expression: dict[int, list[Any]], functions: dict[int, str]) -> Iterator[tuple[int, str, Any]]:
    """Yield the (column, comparison, constant) that all rows satisfy; a list of constants is ``equal`` to a list."""
    if 3 in expression:
        call = _fields(expression[3][0])
        name = functions[_number(call, 1)]
        arguments = [_fields(_fields(argument)[3][0]) for argument in call.get(4, ())]
        if name == "and":
            for argument in arguments:
                yield from _conjuncts(argument, functions)
        elif name in _COMPARISONS and len(arguments) == 2:
            left, right = arguments
            if 1 in left:
                left, right, name = right, left, _FLIPPED[name]
            if 2 in left and 1 in right:
                yield _column(left), name, _literal(_fields(right[1][0]))
    elif 6 in expression:
        # if column is not null then column in (...) else null, as DuckDB writes IN
        branch = _fields(expression[6][0])
        otherwise = _fields(_fields(branch[2][0])[1][0])
        if len(branch[1]) == 1 and _NULL in otherwise:
            clause = _fields(branch[1][0])
            yield from _conjuncts(_fields(clause[2][0]), functions)
    elif 8 in expression:
        options = _fields(expression[8][0])
        values = [_literal(_fields(_fields(option)[1][0])) for option in options[2]]
        yield _column(_fields(options[1][0])), "equal", values


def _column(expression: dict[int, list[Any]]) -> int:
    """Return the number of the column that a field reference names."""
    reference = _fields(expression[2][0])
    segment = _fields(reference[1][0])
    field = _fields(segment[2][0])
    if 2 in field:
        raise ValueError("a field within a field")
    return _number(field, 1)


def _literal(literal: dict[int, list[Any]]) -> Any:
    """Return text, an integer or bytes."""
    if 12 in literal:
        return literal[12][0].decode()
    if 13 in literal:
        return literal[13][0]
    for field in (2, 3, 5, 7):
        if field in literal:
            number = literal[field][0]
            return number - (1 << 64) if number >> 63 else number
    raise ValueError("another type")


def _number(fields: dict[int, list[Any]], number: int) -> int:
    field = fields.get(number)
    return int(field[0]) if field else 0


def _fields(data: bytes) -> dict[int, list[Any]]:
    """Return the fields of a protocol buffer: numbers of varints, bytes of everything else."""
    fields: dict[int, list[Any]] = {}
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        value: Any
        if kind == 0:
            value, at = _varint(data, at)
        else:
            size, at = _varint(data, at) if kind == 2 else (_FIXED[kind], at)
            value, at = data[at : at + size], at + size
            if len(value) != size:
                raise ValueError("a field is cut off")
        fields.setdefault(tag >> 3, []).append(value)
    return fields


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK, at
        shift += 7

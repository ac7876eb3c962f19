"""Types of SQL columns, as in ksqlDB: scalars, decimals, arrays, maps and structs.

Values at run time are plain Python: ``int`` for integers, times (milliseconds of the day), dates (days since 1970) and
timestamps (milliseconds since 1970), ``float``, ``Decimal``, ``str``, ``bytes``, ``bool``, lists, and dictionaries for
maps and structs. The static type tells them apart.
"""

from __future__ import annotations

import attrs


@attrs.frozen
class SqlType:
    """A type.

    Attributes:
        base: ``INTEGER``, ``DECIMAL``, ``ARRAY``, and so on; ``NULL`` for the literal.
        precision: Number of digits of a decimal.
        scale: Number of its digits after the point.
        parts: Element type of an array; key and value type of a map.
        fields: Names and types of the fields of a struct.
    """

    base: str
    precision: int = 0
    scale: int = 0
    parts: tuple[SqlType, ...] = ()
    fields: tuple[tuple[str, SqlType], ...] = ()

    def __str__(self) -> str:
        match self.base:
            case "DECIMAL":
                return f"DECIMAL({self.precision}, {self.scale})"
            case "ARRAY" | "MAP":
                return f"{self.base}<{', '.join(map(str, self.parts))}>"
            case "STRUCT":
                return f"STRUCT<{', '.join(f'{shown_name(name)} {type_}' for name, type_ in self.fields)}>"
        return self.base

    @property
    def is_number(self) -> bool:
        """True if it is a number."""
        return self.base in NUMBERS

    @property
    def element(self) -> SqlType:
        """Element type of an array, value type of a map."""
        return self.parts[-1]

    def field(self, name: str) -> SqlType | None:
        """Return the type of a field of a struct, ``None`` if it has no such field."""
        return dict(self.fields).get(name)


BOOLEAN = SqlType("BOOLEAN")
INTEGER = SqlType("INTEGER")
BIGINT = SqlType("BIGINT")
DOUBLE = SqlType("DOUBLE")
STRING = SqlType("STRING")
BYTES = SqlType("BYTES")
TIME = SqlType("TIME")
DATE = SqlType("DATE")
TIMESTAMP = SqlType("TIMESTAMP")
NULL = SqlType("NULL")
#: The numbers, each wider than the one before.
NUMBERS = ("INTEGER", "BIGINT", "DECIMAL", "DOUBLE")
TIMES = ("TIME", "DATE", "TIMESTAMP")
#: Names of the types without parameters.
NAMED = {
    "BOOLEAN": BOOLEAN,
    "INT": INTEGER,
    "INTEGER": INTEGER,
    "BIGINT": BIGINT,
    "DOUBLE": DOUBLE,
    "STRING": STRING,
    "VARCHAR": STRING,
    "BYTES": BYTES,
    "TIME": TIME,
    "DATE": DATE,
    "TIMESTAMP": TIMESTAMP,
}
#: Digits that an integer needs as a decimal.
_DIGITS = {"INTEGER": 10, "BIGINT": 19}


def array(element: SqlType) -> SqlType:
    """Return the type of arrays of elements."""
    return SqlType("ARRAY", parts=(element,))


def map_of(key: SqlType, value: SqlType) -> SqlType:
    """Return the type of maps."""
    return SqlType("MAP", parts=(key, value))


def struct(*fields: tuple[str, SqlType]) -> SqlType:
    """Return the type of structs with fields."""
    return SqlType("STRUCT", fields=fields)


def decimal(precision: int, scale: int) -> SqlType:
    """Return the type of decimals."""
    return SqlType("DECIMAL", precision, scale)


def as_decimal(type_: SqlType) -> SqlType:
    """Return the decimal type that holds all values of an integer type."""
    return type_ if type_.base == "DECIMAL" else decimal(_DIGITS[type_.base], 0)


def shown_name(name: str) -> str:
    """Return an identifier as it is written in SQL: quoted unless it is a plain one in upper case."""
    return name if name.replace("_", "A").isalnum() and name == name.upper() and not name[0].isdigit() else f"`{name}`"


def common_type(left: SqlType, right: SqlType) -> SqlType | None:
    """Return the type to which values of both types convert without a cast, ``None`` if there is none."""
    if right in (left, NULL):
        return left
    if left == NULL:
        return right
    if left.is_number and right.is_number:
        if "DOUBLE" in (left.base, right.base):
            return DOUBLE
        if "DECIMAL" in (left.base, right.base):
            a, b = as_decimal(left), as_decimal(right)
            scale = max(a.scale, b.scale)
            return decimal(min(38, max(a.precision - a.scale, b.precision - b.scale) + scale), scale)
        return BIGINT
    if left.base == right.base == "ARRAY":
        element = common_type(left.element, right.element)
        return element and array(element)
    if left.base == right.base == "MAP":
        key, value = (common_type(a, b) for a, b in zip(left.parts, right.parts, strict=True))
        return map_of(key, value) if key and value else None
    if left.base == right.base == "STRUCT":
        merged: dict[str, SqlType] = dict(left.fields)
        for name, type_ in right.fields:
            common = common_type(merged[name], type_) if name in merged else type_
            if common is None:
                return None
            merged[name] = common
        return struct(*merged.items())
    return None

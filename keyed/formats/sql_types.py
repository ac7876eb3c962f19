"""The types of SQL columns, as Arrow and DuckDB have them. The list is closed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import attrs

from keyed.base.schemas import ARROW_NAMES

if TYPE_CHECKING:
    import pyarrow as pa

#: The types in declarations, in DuckDB and in Spark, with places for the parts of those that have some.
_WRITTEN = {
    "BOOLEAN": ("BOOLEAN", "BOOLEAN", "boolean"),
    "INT": ("INT", "INTEGER", "int"),
    "BIGINT": ("BIGINT", "BIGINT", "bigint"),
    "DOUBLE": ("DOUBLE", "DOUBLE", "double"),
    "STRING": ("STRING", "VARCHAR", "string"),
    "BYTES": ("BYTES", "BLOB", "binary"),
    "DATE": ("DATE", "DATE", "date"),
    "TIME": ("TIME", "TIME", "bigint"),
    "TIMESTAMP": ("TIMESTAMP", "TIMESTAMP_MS", "timestamp_ntz"),
    "DECIMAL": ("DECIMAL({}, {})", "DECIMAL({}, {})", "decimal({},{})"),
    "ARRAY": ("ARRAY<{}>", "{}[]", "array<{}>"),
    "MAP": ("MAP<{}, {}>", "MAP({}, {})", "map<{},{}>"),
    "STRUCT": ("STRUCT<{}>", "STRUCT({})", "struct<{}>"),
}
#: Fields of structs, the quotes of their names, and the text between fields.
_FIELDS = (("{} {}", "", ", "), ('"{}" {}', '"', ", "), ("`{}`:{}", "`", ","))


class BadValue(ValueError):
    """A value that does not fit its type, or does not have its format."""


@attrs.frozen
class SqlType:
    """The type of a column.

    Attributes:
        base: ``BOOLEAN``, ``INT``, ``BIGINT``, ``DOUBLE``, ``DECIMAL``, ``STRING``, ``BYTES``, ``DATE``, ``TIME``,
            ``TIMESTAMP`` (UTC, milliseconds), ``ARRAY``, ``MAP`` or ``STRUCT``.
        precision: Digits of a decimal.
        scale: Digits after its point.
        parts: The type of an array's elements, or those of a map's keys and values.
        fields: Names and types of a struct's fields.
    """

    base: str
    precision: int = 0
    scale: int = 0
    parts: tuple[SqlType, ...] = ()
    fields: tuple[tuple[str, SqlType], ...] = ()

    def __str__(self) -> str:
        return self.text_in(0)

    @property
    def element(self) -> SqlType:
        """The type of an array's elements, or of a map's values."""
        return self.parts[-1]

    @property
    def has_parts(self) -> bool:
        """True for arrays, maps and structs, by which no state is keyed."""
        return self.base in ("ARRAY", "MAP", "STRUCT")

    def has(self, base: str) -> bool:
        """Return whether values of the type are, or hold, values of a base."""
        return self.base == base or any(each.has(base) for each in (*self.parts, *(each for _, each in self.fields)))

    @property
    def duckdb(self) -> str:
        """The type as DuckDB names it."""
        return self.text_in(1)

    @property
    def spark(self) -> str:
        """The type as Spark names it: times of a day are milliseconds."""
        return self.text_in(2)

    def text_in(self, dialect: int) -> str:
        """Return the type in declarations (0), in DuckDB (1) or in Spark (2)."""
        parts: list[Any] = [each.text_in(dialect) for each in self.parts]
        if self.base == "DECIMAL":
            parts = [self.precision, self.scale]
        elif self.base == "STRUCT":
            field, quote, between = _FIELDS[dialect]
            named = ((name.replace(quote, quote * 2), type_.text_in(dialect)) for name, type_ in self.fields)
            parts = [between.join(field.format(*each) for each in named)]
        return _WRITTEN[self.base][dialect].format(*parts)

    @cached_property
    def arrow(self) -> Any:
        """The type of Arrow columns: times of a day are milliseconds."""
        return self.arrow_with()

    def arrow_with(self, **others: pa.DataType) -> Any:
        """Return the type of Arrow columns, with other types than those of `arrow` for some bases."""
        import pyarrow as pa

        match self.base:
            case base if base in others:
                return others[base]
            case "DECIMAL":
                return pa.decimal128(self.precision, self.scale)
            case "ARRAY":
                return pa.list_(self.element.arrow_with(**others))
            case "MAP":
                return pa.map_(*(each.arrow_with(**others) for each in self.parts))
            case "STRUCT":
                return pa.struct([(name, type_.arrow_with(**others)) for name, type_ in self.fields])
            case "TIME":
                return pa.int64()
            case "TIMESTAMP":
                return pa.timestamp("us")
        return pa.type_for_alias(ARROW_NAMES[self.spark])


#: The types without parameters.
_SIMPLE = [SqlType(base) for base in list(_WRITTEN)[:9]]
BOOLEAN, INT, BIGINT, DOUBLE, STRING, BYTES, DATE, TIME, TIMESTAMP = _SIMPLE
#: The names of types without parameters in declarations.
NAMED = {each.base: each for each in _SIMPLE} | {"INTEGER": INT, "VARCHAR": STRING}


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


def of_arrow(type_: pa.DataType) -> SqlType | None:
    """Return the type of an Arrow column; ``None`` for one that is not of the list."""
    import pyarrow as pa

    kinds = pa.types
    if kinds.is_boolean(type_):
        return BOOLEAN
    if kinds.is_integer(type_):
        return INT if type_.bit_width < 32 or type_ == pa.int32() else BIGINT if type_ != pa.uint64() else None
    if kinds.is_floating(type_):
        return DOUBLE
    if kinds.is_decimal(type_):
        return decimal(type_.precision, type_.scale) if type_.precision <= 38 and type_.scale >= 0 else None
    if kinds.is_string(type_) or kinds.is_large_string(type_) or kinds.is_string_view(type_):
        return STRING
    if kinds.is_binary(type_) or kinds.is_large_binary(type_) or kinds.is_binary_view(type_):
        return BYTES
    if kinds.is_date(type_):
        return DATE
    if kinds.is_time(type_):
        return TIME
    if kinds.is_timestamp(type_):
        return TIMESTAMP
    if kinds.is_map(type_):
        return _of_parts("MAP", [("key", of_arrow(type_.key_type)), ("value", of_arrow(type_.item_type))])
    if kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_):
        return _of_parts("ARRAY", [("element", of_arrow(type_.value_type))])
    if kinds.is_struct(type_):
        return _of_parts("STRUCT", [(each.name, of_arrow(each.type)) for each in type_.fields])
    return None


def _of_parts(base: str, parts: Sequence[tuple[str, SqlType | None]]) -> SqlType | None:
    """Return the type with parts; ``None`` if one is not of the list."""
    known = [(name, each) for name, each in parts if each is not None]
    if len(known) < len(parts):
        return None
    return struct(*known) if base == "STRUCT" else SqlType(base, parts=tuple(each for _, each in known))


#: The types of DuckDB's types without parts, by its names.
_OF_DUCKDB = {each.duckdb.lower(): each for each in _SIMPLE}
_OF_DUCKDB |= dict.fromkeys(("tinyint", "smallint", "utinyint", "usmallint"), INT)
_OF_DUCKDB |= {"uinteger": BIGINT, "float": DOUBLE, "enum": STRING}
_NESTED = {"list": "ARRAY", "array": "ARRAY", "map": "MAP", "struct": "STRUCT"}
_OF_DUCKDB |= dict.fromkeys(("timestamp", "timestamp_s", "timestamp_ns", "timestamp with time zone"), TIMESTAMP)


def of_duckdb(type_: Any) -> SqlType | None:
    """Return the type of a column of DuckDB; ``None`` for one that is not of the list."""
    name = str(type_.id)
    if name in _OF_DUCKDB:
        return _OF_DUCKDB[name]
    if name == "decimal":
        return decimal(*(size for _, size in type_.children))
    if name not in _NESTED:
        return None
    # An array has its length too.
    parts = type_.children[:1] if _NESTED[name] == "ARRAY" else type_.children
    return _of_parts(_NESTED[name], [(part, of_duckdb(each)) for part, each in parts])

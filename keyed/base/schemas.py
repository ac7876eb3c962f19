"""The columns of outputs, whatever form their type is declared in, and types as text.

A type is given as a DDL string (``"item string, n bigint"``), a Spark ``StructType``, an attrs class, a dataclass or a
named tuple. All become one form, `Schema`: ordered columns with Spark's simple type names, which Spark accepts and
`keyed.arrow.write` converts to an Arrow schema.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import re
import types
import typing
import uuid
from typing import TYPE_CHECKING, Any

import attrs

from keyed.base.extras import is_instance
from keyed.errors import DefinitionError, OutputDefinitionError
from keyed.rows import fields_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType


#: Types of whole numbers by their bits.
INTEGERS = {8: "tinyint", 16: "smallint", 32: "int", 64: "bigint"}
#: Types of Python's classes.
OF_PYTHON: dict[Any, str] = {
    bool: "boolean",
    int: "bigint",
    float: "double",
    str: "string",
    bytes: "binary",
    dt.datetime: "timestamp",
    dt.date: "date",
    decimal.Decimal: "decimal(38,18)",
    uuid.UUID: "string",
}
#: Other names that Spark's DDL has for a type.
_SYNONYMS = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "timestamp_ltz": "timestamp",
    "dec": "decimal",
    "numeric": "decimal",
}
_HEAD = re.compile(r"[a-z_]+")
#: Others are quoted. Which other characters are letters depends on the Python.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_]+")
#: Arrow's names of types without parameters.
ARROW_NAMES: dict[str, Any] = {
    "boolean": "bool",
    "tinyint": "int8",
    "smallint": "int16",
    "int": "int32",
    "bigint": "int64",
    "float": "float",
    "double": "double",
    "string": "string",
    "binary": "binary",
    "date": "date32[day]",
}
_OF_ARROW = {name: type_ for type_, name in ARROW_NAMES.items()} | {"large_string": "string", "large_binary": "binary"}


def simple_name(type_: str) -> str:
    """Return the simple name of a type that is not nested, in lower case: ``bigint`` for ``LONG``."""
    text = type_.strip()
    if "<" in text or "`" in text:
        return text
    text = text.lower()
    return _HEAD.sub(lambda head: _SYNONYMS.get(head[0], head[0]), text, count=1)


def of_spark(type_: DataType) -> str:
    """Return the type of a Spark column, with the names of struct fields quoted where they must be."""
    of: Any = type_
    kind = of.typeName()
    if kind == "array":
        return f"array<{of_spark(of.elementType)}>"
    if kind == "map":
        return f"map<{of_spark(of.keyType)},{of_spark(of.valueType)}>"
    if kind == "struct":
        return f"struct<{','.join(f'{quoted_in_type(f.name)}:{of_spark(f.dataType)}' for f in of.fields)}>"
    name: str = of.simpleString()
    return name


def of_arrow(type_: pa.DataType) -> str | None:
    """Return the type of an Arrow column, ``None`` for one without a simple name, such as a nested one."""
    import pyarrow as pa

    if pa.types.is_timestamp(type_):
        return "timestamp" if type_.tz else "timestamp_ntz"
    if pa.types.is_decimal(type_) and type_.precision <= 38:
        return f"decimal({type_.precision},{type_.scale})"
    return _OF_ARROW.get(str(type_))


def quoted(name: str) -> str:
    """Return a column name as a quoted SQL identifier."""
    return "`" + name.replace("`", "``") + "`"


def quoted_in_type(name: str) -> str:
    """Return a struct field's name for a simple type: quoted only if necessary."""
    return name if _PLAIN_NAME.fullmatch(name) else quoted(name)


@attrs.frozen
class Schema:
    """Ordered output columns.

    Attributes:
        columns: Pairs of column name and Spark simple type, for example ``("n", "bigint")``.
    """

    columns: tuple[tuple[str, str], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(name for name, _ in self.columns)

    @property
    def ddl(self) -> str:
        """The schema as Spark DDL."""
        return ", ".join(f"{quoted(name)} {type_}" for name, type_ in self.columns)


def schema_of(type_: Any) -> Schema:
    """Return the columns that ``type_`` describes.

    Args:
        type_: A DDL string, a Spark ``StructType``, an attrs class, a dataclass, a named tuple or a `Schema`.

    Raises:
        OutputDefinitionError: Anything else, no columns, duplicate columns, or a field type without a column type.
    """
    if isinstance(type_, Schema):
        return type_
    if isinstance(type_, str):
        columns = parse_ddl(type_)
    elif isinstance(type_, type) and (names := _field_names(type_)) is not None:
        hints = typing.get_type_hints(type_)
        columns = tuple((name, column_type(hints.get(name), f"{type_.__name__}.{name}")) for name in names)
    elif is_instance(type_, "pyspark.sql.types", "StructType"):
        columns = tuple((f.name, of_spark(f.dataType)) for f in type_.fields)
    else:
        raise OutputDefinitionError(
            f"output type {type_!r} is not understood; give a DDL string, a StructType, an attrs class or a dataclass"
        )
    return checked_schema(columns, f"output type {type_!r}", OutputDefinitionError)


def checked_schema(columns: tuple[tuple[str, str], ...], what: str, error: type[DefinitionError]) -> Schema:
    """Return columns as a schema.

    Raises:
        DefinitionError: There are none, a name occurs twice, or one is reserved. ``error`` chooses a subclass.
    """
    names = [name for name, _ in columns]
    if not names:
        raise error(f"{what} has no columns")
    for name in names:
        if names.count(name) > 1:
            raise error(f"{what} has column {name!r} twice; rename one")
        if name.startswith("__keyed_"):
            raise error(f"column {name!r}: names that start with __keyed_ are reserved; rename it")
    return Schema(columns)


def _field_names(cls: Any) -> tuple[str, ...] | None:
    """Return the fields of an attrs class, a dataclass or a named tuple; ``None`` for any other class."""
    if attrs.has(cls):
        return tuple(field.name for field in attrs.fields(cls))
    if dataclasses.is_dataclass(cls):
        return tuple(field.name for field in dataclasses.fields(cls))
    return fields_of(cls)


def column_type(hint: Any, where: str) -> str:
    """Return Spark's simple type for a Python type hint.

    Raises:
        OutputDefinitionError: The hint has no column type.
    """
    if hint in OF_PYTHON:
        return OF_PYTHON[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        rest = [a for a in arguments if a is not type(None)]
        if len(rest) == 1:
            return column_type(rest[0], where)
    if origin in (list, set, frozenset) and len(arguments) == 1:
        return f"array<{column_type(arguments[0], where)}>"
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return f"array<{column_type(arguments[0], where)}>"
    if origin is dict:
        return f"map<{column_type(arguments[0], where)},{column_type(arguments[1], where)}>"
    if isinstance(hint, type):
        if issubclass(hint, enum.Enum):
            return "bigint" if issubclass(hint, int) else "string"
        if _field_names(hint) is not None:
            return "struct<" + ",".join(f"{quoted_in_type(n)}:{t}" for n, t in schema_of(hint).columns) + ">"
    raise OutputDefinitionError(f"{where}: type {hint!r} has no column type; give the output as a DDL string")


def parse_ddl(ddl: str) -> tuple[tuple[str, str], ...]:
    """Split ``name type, name type`` at its top-level commas. Types themselves are checked where they are used.

    Raises:
        OutputDefinitionError: A column without a type, an unclosed bracket or quote.
    """
    columns = []
    for part in split_top_level(ddl):
        text = part.strip()
        if text.startswith("`"):
            end = 1
            while end < len(text) and (text[end] != "`" or text[end : end + 2] == "``"):
                end += 2 if text[end : end + 2] == "``" else 1
            name, rest = text[1:end].replace("``", "`"), text[end + 1 :]
        else:
            name, _, rest = text.replace(":", " ", 1).partition(" ")
        type_ = rest.strip().lstrip(":").strip()
        for suffix in (" not null", " null"):
            if type_.lower().endswith(suffix):
                type_ = type_[: -len(suffix)].strip()
        if not name or not type_:
            raise OutputDefinitionError(
                f"output type {ddl!r}: {text!r} is not 'name type', as in 'item string, n bigint'"
            )
        columns.append((name, simple_name(type_)))
    return tuple(columns)


def split_top_level(text: str) -> list[str]:
    """Split at commas outside of <>, () and backquotes.

    Raises:
        OutputDefinitionError: Brackets or quotes do not close.
    """
    parts, depth, start, is_quoted = [], 0, 0, False
    for position, character in enumerate(text):
        if character == "`":
            is_quoted = not is_quoted
        elif is_quoted:
            continue
        elif character in "<(":
            depth += 1
        elif character in ">)":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    if depth or is_quoted:
        raise OutputDefinitionError(f"output type {text!r} has an unclosed bracket or quote")
    last = text[start:]
    return [*parts, last] if last.strip() else parts

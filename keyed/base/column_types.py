"""Column types as text: Spark's simple type names, one name for each type, whatever the source of a column."""

from __future__ import annotations

import datetime as dt
import decimal
import re
import uuid
from typing import TYPE_CHECKING, Any

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

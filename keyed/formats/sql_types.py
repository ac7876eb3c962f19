"""The types of SQL columns, as Arrow and DuckDB have them, and as schemas: Avro, JSON Schema, Protocol Buffers.

The list of types is closed.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import attrs

from keyed.base.extras import extra
from keyed.base.schemas import ARROW_NAMES
from keyed.errors import DefinitionError

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


Columns = Sequence[tuple[str, SqlType]]
#: Names that ksqlDB gives its schemas.
_AVRO_RECORD = "io.confluent.ksql.avro_schemas.KsqlDataSourceSchema"
_MESSAGE = "ConnectDefault"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Avro's types by Arrow's names.
_AVRO: dict[str, Any] = {
    "bool": "boolean",
    **dict.fromkeys(("int8", "int16", "int32"), "int"),
    "int64": "long",
    "float": "float",
    "double": "double",
    **dict.fromkeys(("string", "large_string"), "string"),
    **dict.fromkeys(("binary", "large_binary"), "bytes"),
    "date32[day]": {"type": "int", "logicalType": "date"},
    "time32[ms]": {"type": "int", "logicalType": "time-millis"},
    "time64[us]": {"type": "long", "logicalType": "time-micros"},
}
_JSON: dict[str, Any] = {
    "BOOLEAN": {"type": "boolean"},
    "INT": {"type": "integer", "connect.type": "int32"},
    "BIGINT": {"type": "integer", "connect.type": "int64"},
    "DOUBLE": {"type": "number", "connect.type": "float64"},
    "DECIMAL": {"type": "number", "connect.type": "bytes", "title": "org.apache.kafka.connect.data.Decimal"},
    "STRING": {"type": "string"},
    "BYTES": {"type": "string", "connect.type": "bytes"},
    "DATE": {"type": "integer", "title": "org.apache.kafka.connect.data.Date", "connect.type": "int32"},
    "TIME": {"type": "integer", "title": "org.apache.kafka.connect.data.Time", "connect.type": "int32"},
    "TIMESTAMP": {"type": "integer", "title": "org.apache.kafka.connect.data.Timestamp", "connect.type": "int64"},
}
#: Types of fields, as in `google.protobuf.descriptor_pb2.FieldDescriptorProto`.
_PROTOBUF = {"BOOLEAN": 8, "INT": 5, "BIGINT": 3, "DOUBLE": 1, "STRING": 9, "BYTES": 12}


@attrs.frozen
class ImportedMessage:
    """A message of Protocol Buffers that a schema imports.

    Attributes:
        file: The file with the message.
        name: Its name with its package.
        fields: Its fields with their types.
    """

    file: str
    name: str
    fields: Mapping[str, int]


_PROTOBUF_MESSAGES = {
    "DECIMAL": ImportedMessage(
        "confluent/type/decimal.proto", "confluent.type.Decimal", {"value": 12, "precision": 13, "scale": 5}
    ),
    "DATE": ImportedMessage("google/type/date.proto", "google.type.Date", {"year": 5, "month": 5, "day": 5}),
    "TIME": ImportedMessage(
        "google/type/timeofday.proto",
        "google.type.TimeOfDay",
        dict.fromkeys(("hours", "minutes", "seconds", "nanos"), 5),
    ),
    "TIMESTAMP": ImportedMessage(
        "google/protobuf/timestamp.proto", "google.protobuf.Timestamp", {"seconds": 3, "nanos": 5}
    ),
}
#: Messages with one value, for columns that are null where the message is missing.
WRAPPERS = {
    base: ImportedMessage("google/protobuf/wrappers.proto", f"google.protobuf.{name}Value", {"value": _PROTOBUF[base]})
    for base, name in zip(_PROTOBUF, ("Bool", "Int32", "Int64", "Double", "String", "Bytes"), strict=True)
}


def avro_schema(columns: Columns, where: str, *, wrapped: bool, name: str | None = None) -> str:
    """Return the Avro schema of a record with columns, or of a single one.

    Args:
        columns: The columns.
        where: The stream or table, for messages.
        wrapped: False for the schema of the one column.
        name: Full name of the record; ksqlDB's if ``None``.

    Raises:
        DefinitionError: A name is not one of Avro, or Avro lacks a type.
    """
    import pyarrow as pa

    type_ = struct(*columns) if wrapped else columns[0][1]
    arrow_type = type_.arrow_with(TIME=pa.time32("ms"), TIMESTAMP=pa.timestamp("ms", "UTC"))
    return json.dumps(_avro(arrow_type, name or _AVRO_RECORD, where))


def avro_record(
    fields: Iterable[pa.Field[Any]], name: str, where: str, required: Collection[str] = ()
) -> dict[str, Any]:
    """Return the Avro schema of a record with Arrow's columns. All but the required ones may be null, by default.

    Args:
        fields: The columns.
        name: Name of the record.
        where: The stream or table, for messages.
        required: Names of the columns that are not null.

    Raises:
        DefinitionError: A name is not one of Avro, or Avro lacks a type.
    """
    columns: list[dict[str, Any]] = []
    for field in fields:
        if _NAME.fullmatch(field.name) is None:
            raise DefinitionError(
                f"{where}: Avro has no names like {field.name}; rename the column, or choose another format"
            )
        type_ = _avro(field.type, f"{name}_{field.name}", f"{where}: column {field.name}")
        is_required = field.name in required
        columns.append({"name": field.name, "type": type_ if is_required else ["null", type_]})
        if not is_required:
            columns[-1]["default"] = None
    return {"type": "record", "name": name, "fields": columns}


def _avro(type_: pa.DataType, name: str, where: str) -> Any:
    """Return Avro's type for one of Arrow; records in it get a name."""
    import pyarrow as pa

    types = pa.types
    if (avro_name := _AVRO.get(str(type_))) is not None:
        return avro_name
    if types.is_timestamp(type_):
        unit = "millis" if type_.unit in ("s", "ms") else "micros"
        return {"type": "long", "logicalType": f"{'local-' if type_.tz is None else ''}timestamp-{unit}"}
    if types.is_decimal128(type_):
        return {"type": "bytes", "logicalType": "decimal", "precision": type_.precision, "scale": type_.scale}
    if types.is_list(type_) or types.is_large_list(type_):
        return {"type": "array", "items": ["null", _avro(type_.value_type, name, where)]}
    if types.is_map(type_) and types.is_string(type_.key_type):
        return {"type": "map", "values": ["null", _avro(type_.item_type, name, where)]}
    if types.is_struct(type_):
        return avro_record(type_, name, where)
    raise DefinitionError(f"{where}: Avro has no type for {type_}; choose another format")


def json_schema(columns: Columns, *, wrapped: bool, name: str | None = None) -> str:
    """Return the JSON schema, with a name as its title, of an object with columns, or of a single one."""
    schema = _json_object(columns) if wrapped else _json(columns[0][1])
    return json.dumps(schema if name is None else {"title": name, **schema})


def _json_object(columns: Columns) -> dict[str, Any]:
    properties = {
        name: {"connect.index": number, "oneOf": [{"type": "null"}, _json(type_)]}
        for number, (name, type_) in enumerate(columns)
    }
    return {"type": "object", "properties": properties}


def _json(type_: SqlType) -> dict[str, Any]:
    match type_.base:
        case "ARRAY":
            return {"type": "array", "items": {"oneOf": [{"type": "null"}, _json(type_.element)]}}
        case "MAP":
            values = {"oneOf": [{"type": "null"}, _json(type_.element)]}
            return {"type": "object", "connect.type": "map", "additionalProperties": values}
        case "STRUCT":
            return _json_object(type_.fields)
        case "DECIMAL":
            parameters = {"scale": str(type_.scale), "connect.decimal.precision": str(type_.precision)}
            return {**_JSON["DECIMAL"], "connect.version": 1, "connect.parameters": parameters}
    schema: dict[str, Any] = _JSON[type_.base]
    return schema


class ProtobufMessage:
    """The class of messages whose fields are columns, numbered from 1 in their order.

    Args:
        columns: The columns.
        where: The stream or table, for messages.
        nullable: How nulls are represented: ``OPTIONAL``, ``WRAPPER`` or ``None``: by the defaults of their types.
        name: Full name of the message; ksqlDB's if ``None``.

    Attributes:
        type: The class.
        schema: The schema as a registry keeps it: the description of the file, in base 64.

    Raises:
        DefinitionError: Protocol Buffers do not have a type or name.
    """

    def __init__(self, columns: Columns, where: str, nullable: str | None = None, name: str | None = None) -> None:
        with extra("registry", f"{where} in Protocol Buffers"):
            from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

        self._where = where
        self._nullable = nullable
        self._message_count = 1
        self._imports: dict[str, ImportedMessage] = {}
        own_package, _, own_name = (name or f"{_MESSAGE}1").rpartition(".")
        file = descriptor_pb2.FileDescriptorProto(name="columns.proto", syntax="proto3", package=own_package)
        self._fill(file.message_type.add(name=own_name), columns)
        files: dict[str, Any] = {}
        for each in self._imports.values():
            package, _, imported_name = each.name.rpartition(".")
            if each.file not in files:
                files[each.file] = descriptor_pb2.FileDescriptorProto(name=each.file, syntax="proto3", package=package)
            message = files[each.file].message_type.add(name=imported_name)
            for number, (field, kind) in enumerate(each.fields.items(), 1):
                message.field.add(name=field, number=number, type=kind, label=1)
        file.dependency.extend(sorted(files))
        pool = descriptor_pool.DescriptorPool()
        for imported in files.values():
            pool.Add(imported)
        try:
            pool.Add(file)
            self.type: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName(name or f"{_MESSAGE}1"))
        except (TypeError, KeyError) as error:
            raise DefinitionError(f"{where}: the columns are no message of Protocol Buffers: {error}") from error
        self.schema = base64.b64encode(file.SerializeToString()).decode()

    def _fill(self, message: Any, columns: Columns) -> None:
        for number, (name, type_) in enumerate(columns, 1):
            if _NAME.fullmatch(name) is None:
                raise DefinitionError(
                    f"{self._where}: Protocol Buffers have no names like {name}; rename the column, or "
                    "choose another format"
                )
            field = message.field.add(name=name, number=number, label=1)
            if type_.base == "ARRAY":
                field.label = 3
                self._describe(message, field, type_.element)
            elif type_.base == "MAP":
                field.label, field.type = 3, 11
                entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
                entry.options.map_entry = True
                for place, (part, kind) in enumerate(zip(("key", "value"), type_.parts, strict=True), 1):
                    self._describe(entry, entry.field.add(name=part, number=place, label=1), kind)
                field.type_name = entry.name
            elif self._nullable == "WRAPPER" and type_.base in WRAPPERS:
                self._import(field, WRAPPERS[type_.base])
            else:
                self._describe(message, field, type_)
                if self._nullable == "OPTIONAL" and type_.base in _PROTOBUF:
                    field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
                    message.oneof_decl.add(name=f"_{name}")

    def _describe(self, message: Any, field: Any, type_: SqlType) -> None:
        """Give a field the type of a column."""
        if type_.base in _PROTOBUF:
            field.type = _PROTOBUF[type_.base]
            return
        field.type = 11
        if type_.base == "STRUCT":
            self._message_count += 1
            nested = message.nested_type.add(name=f"{_MESSAGE}{self._message_count}")
            self._fill(nested, type_.fields)
            field.type_name = nested.name
        elif type_.base in _PROTOBUF_MESSAGES:
            self._import(field, _PROTOBUF_MESSAGES[type_.base])
        else:
            raise DefinitionError(
                f"{self._where}: column {field.name}: Protocol Buffers have no arrays or maps of {type_}; "
                "put it into a STRUCT, or choose another format"
            )

    def _import(self, field: Any, message: ImportedMessage) -> None:
        """Give a field the type of a message that the schema imports."""
        field.type, field.type_name = 11, f".{message.name}"
        self._imports[message.name] = message

"""Checks the statements of a script, in order, and returns what they define: sources, queries and answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs

from keyed.errors import DefinitionError, SqlError
from keyed.formats.registry_schemas import RegistrySchemas
from keyed.formats.sql_types import BIGINT, BYTES, STRING, SqlType, array, struct
from keyed.formats.typed_columns import column
from keyed.shown import nearest
from keyed.sql import statements as tree
from keyed.sql.catalog import Catalog, SqlSource
from keyed.sql.engine import Columns, SqlStep, functions
from keyed.sql.name_scope import NameScope
from keyed.sql.planner import Planner, QueryPlan
from keyed.sql.script_errors import Text
from keyed.sql.sql_aggregates import AGGREGATES
from keyed.sql.tokens import sql
from keyed.sql.topic_options import time_option, topic_options

FORMATS = ("AVRO", "DELIMITED", "JSON", "JSON_SR", "KAFKA", "NONE", "PROTOBUF", "PROTOBUF_NOSR")

_OPTIONS = {
    "KAFKA_TOPIC",
    "VALUE_FORMAT",
    "KEY_FORMAT",
    "FORMAT",
    "TIMESTAMP",
    "TIMESTAMP_FORMAT",
    "WRAP_SINGLE_VALUE",
    "VALUE_DELIMITER",
    "KEY_DELIMITER",
    "WINDOW_TYPE",
    "WINDOW_SIZE",
    "PARTITIONS",
    "REPLICAS",
    "RETENTION_MS",
    "VALUE_SCHEMA_ID",
    "KEY_SCHEMA_ID",
    "VALUE_SCHEMA_FULL_NAME",
    "KEY_SCHEMA_FULL_NAME",
    "VALUE_AVRO_SCHEMA_FULL_NAME",
    "VALUE_PROTOBUF_NULLABLE_REPRESENTATION",
    "KEY_PROTOBUF_NULLABLE_REPRESENTATION",
    "CLEANUP_POLICY",
    "IDLE_TIMEOUT",
}
_RESET = "auto.offset.reset"
_ONE_VALUE = {"KAFKA"}
_NO_UNWRAPPED = {"DELIMITED", "KAFKA", "NONE"}
_FIXED_WRAP = {"PROTOBUF", "PROTOBUF_NOSR", "DELIMITED", "KAFKA", "NONE"}
_WITH_SCHEMA = {"AVRO", "JSON_SR", "PROTOBUF", "PROTOBUF_NOSR"}
_PRIMITIVE = {"INT", "BIGINT", "DOUBLE", "STRING", "BYTES"}


@attrs.frozen(eq=False)
class WrittenQuery:
    """A query that writes a stream or table.

    Attributes:
        name: Name of the query.
        target: What it writes.
        plan: Its plan.
    """

    name: str
    target: SqlSource
    plan: QueryPlan


@attrs.frozen(eq=False)
class Insert:
    """A row of ``INSERT INTO … VALUES``: the columns by name."""

    target: str
    row: dict[str, Any]


@attrs.frozen(eq=False)
class Answer:
    """The answer to ``SHOW``, ``DESCRIBE`` or ``EXPLAIN``.

    Attributes:
        statement: The statement.
        rows: Its rows.
    """

    statement: str
    rows: list[dict[str, Any]]


@attrs.define(eq=False)
class Definitions:
    """The definitions of a script.

    Attributes:
        text: Its text.
        catalog: The sources that exist at its end.
        sources: All sources, also dropped ones.
        queries: The queries that write, in order.
        inserts: The inserted rows.
        properties: The settings of ``SET``.
        answers: The answers to statements that ask, in order.
    """

    text: Text
    catalog: Catalog
    sources: Catalog
    queries: list[WrittenQuery]
    inserts: list[Insert]
    properties: dict[str, str]
    answers: list[Answer] = attrs.field(factory=list)

    @property
    def is_strict(self) -> bool:
        """True if a record without a usable timestamp fails the query."""
        return self.properties.get("ksql.timestamp.throw.on.invalid", "false").lower() == "true"

    @property
    def begins_at_end(self) -> bool:
        """True if a new script begins at the ends of its topics."""
        return self.properties.get(_RESET, "earliest").lower() == "latest"

    @property
    def read(self) -> list[SqlSource]:
        """The sources that queries read: tables first, whose rows come first at equal times."""
        found = {each.name: each for query in self.queries for each in query.plan.relation.sources}
        return sorted(found.values(), key=lambda each: (not each.is_table, each.name))

    @property
    def names_places(self) -> bool:
        """True if the text names the partition or offset of rows."""
        return re.search(r"ROW(PARTITION|OFFSET)", self.text.text, re.IGNORECASE) is not None

    def named(self, name: str) -> SqlSource:
        """Return the source of a name that is given outside of the script.

        Raises:
            DefinitionError: There is none.
        """
        found = self.sources.get(name)
        if found is None:
            raise DefinitionError(
                f"streams={{{name!r}: ...}}: the script declares no stream or table of that name"
                f"{nearest(name, [each.name for each in self.sources.sources])}"
            )
        return found


def define(
    text: Text,
    statements: list[tree.Statement],
    values: Mapping[str, Any],
    properties: dict[str, str] | None = None,
    schemas: RegistrySchemas | None = None,
) -> Definitions:
    """Check statements and return what they define.

    Args:
        text: The script.
        statements: Its statements.
        values: The values of parameters.
        properties: Settings.
        schemas: The schemas of topics.

    Raises:
        SqlError: A statement is not valid.
        DefinitionError: A schema cannot be read, or is of no topic.
    """
    schemas = schemas or RegistrySchemas(None)
    for name, value in (properties or {}).items():
        if (wrong := _wrong_setting(name, value)) is not None:
            raise DefinitionError(f"properties: {wrong}")
    found = _Definer(text, values, dict(properties or {}), schemas).define(statements)
    schemas.check_topics({each.topic for each in found.sources.sources})
    return found


def _wrong_setting(name: str, value: str) -> str | None:
    """Return what is wrong with a setting."""
    if name == _RESET and value.lower() not in ("earliest", "latest"):
        return f"{name!r}={value!r} must be 'earliest' or 'latest'"
    return None


class _Definer:
    def __init__(
        self, text: Text, values: Mapping[str, Any], properties: dict[str, str], schemas: RegistrySchemas
    ) -> None:
        self._text = text
        self._values = values
        self._schemas = schemas
        self._catalog = Catalog()
        self._found = Definitions(text, self._catalog, Catalog(), [], [], properties)

    def define(self, statements: list[tree.Statement]) -> Definitions:
        for statement in statements:
            match statement:
                case tree.CreateSource():
                    self._source(statement)
                case tree.CreateAs():
                    self._create_as(statement)
                case tree.InsertSelect():
                    self._insert_select(statement)
                case tree.InsertValues():
                    self._insert_values(statement)
                case tree.Drop():
                    self._drop(statement)
                case tree.SetOption():
                    if statement.value is None:
                        self._found.properties.pop(statement.name, None)
                    else:
                        if (wrong := _wrong_setting(statement.name, statement.value)) is not None:
                            self._text.fail(wrong, statement.at)
                        self._found.properties[statement.name] = statement.value
                case tree.Show():
                    self._found.answers.append(Answer(*self._answer(statement)))
                case tree.SelectQuery():
                    self._text.fail(
                        "a script has no SELECT alone: write CREATE STREAM or CREATE TABLE name AS SELECT, and query "
                        "the tables when it runs, by keyed.sql.subscribe or by tables.sql",
                        statement.at,
                    )
        return self._found

    # Statements that ask.

    def _answer(self, statement: tree.Show) -> tuple[str, list[dict[str, Any]]]:
        """Return the statement as it is shown, and the rows of its answer."""
        match statement.what:
            case "STREAMS" | "TABLES":
                kind = statement.what.removesuffix("S")
                found = [each for each in self._catalog.sources if each.kind == kind]
                rows = [
                    {
                        "name": each.name,
                        "topic": each.topic,
                        "key_format": each.key_format,
                        "value_format": each.value_format,
                        "window": each.window,
                        "is_written_by_a_query": each.is_query,
                    }
                    for each in found
                ]
            case "QUERIES":
                rows = [
                    {
                        "name": each.name,
                        "writes": each.target.name,
                        "reads": ", ".join(s.name for s in each.plan.relation.sources),
                    }
                    for each in self._found.queries
                ]
            case "FUNCTIONS":
                names = sorted({*functions(), *AGGREGATES})
                rows = [{"name": name, "is_aggregate": name in AGGREGATES} for name in names]
            case "TYPES":
                rows = [{"name": name, "type": str(type_)} for name, type_ in sorted(statement.types.items())]
            case "DESCRIBE":
                assert statement.name is not None
                source = self._catalog.find(self._text, statement.name, statement.at)
                role = "PRIMARY KEY" if source.is_table else "KEY"
                rows = [{"column": name, "type": str(type_), "role": role} for name, type_ in source.keys]
                rows += [{"column": name, "type": str(type_), "role": ""} for name, type_ in source.values]
                return f"DESCRIBE {source.name}", rows
            case _:
                return self._explained(statement)
        return f"SHOW {statement.what}", rows

    def _explained(self, statement: tree.Show) -> tuple[str, list[dict[str, Any]]]:
        if statement.query is not None:
            try:
                plan = self._planner().plan(statement.query, "TABLE", "query")
            except SqlError:
                plan = self._planner().plan(statement.query, "STREAM", "query")
            return "EXPLAIN SELECT", plan.steps()
        assert statement.name is not None
        wanted = statement.name.lower()
        found = [each for each in self._found.queries if wanted in (each.name.lower(), each.target.name.lower())]
        if not found:
            names = {name for each in self._found.queries for name in (each.name, each.target.name)}
            self._text.fail(f"no query writes {statement.name}{nearest(statement.name, names)}", statement.at)
        return f"EXPLAIN {statement.name}", [step for each in found for step in each.plan.steps()]

    def _planner(self) -> Planner:
        return Planner(self._text, self._catalog, self._values, self._found.properties)

    # Sources.

    def _option(self, options: dict[str, Any], name: str, default: Any = None) -> Any:
        return options[name].value if name in options else default

    def _checked(self, options: dict[str, Any]) -> None:
        for name, value in options.items():
            if name not in _OPTIONS:
                self._text.fail(f"unknown option {name}{nearest(name, _OPTIONS)}", value.at)

    def _check_schema_options(
        self, statement: tree.CreateSource | tree.CreateAs, key_format: str, value_format: str, declared: Any = ()
    ) -> None:
        """Check the options that name schemas."""
        options = statement.options
        for part, format_ in (("KEY", key_format), ("VALUE", value_format)):
            number = f"{part}_SCHEMA_ID"
            if number in options and format_ not in _WITH_SCHEMA:
                self._text.fail(
                    f"{number} is for formats with a schema, and {part}_FORMAT is {format_}", options[number].at
                )
            if number in options and part in declared:
                self._text.fail(
                    f"{number} names the columns, and so does the list; remove one of them", options[number].at
                )
            for name in (f"{part}_SCHEMA_FULL_NAME", f"{part}_AVRO_SCHEMA_FULL_NAME"):
                if name not in options:
                    continue
                if format_ not in _WITH_SCHEMA:
                    self._text.fail(
                        f"{name} is for formats with a schema, and {part}_FORMAT is {format_}", options[name].at
                    )
                if not str(options[name].value).strip():
                    self._text.fail(f"{name} is empty", options[name].at)

    def _formats(self, options: dict[str, Any], at: int, key: str | None, value: str | None) -> tuple[str, str]:
        """Return the formats of keys and values."""
        if "FORMAT" in options and ("KEY_FORMAT" in options or "VALUE_FORMAT" in options):
            self._text.fail("give FORMAT, or KEY_FORMAT and VALUE_FORMAT", at)
        both = self._option(options, "FORMAT")
        properties = self._found.properties
        found_key = both or self._option(options, "KEY_FORMAT") or key
        found_value = both or self._option(options, "VALUE_FORMAT") or value
        found_key = found_key or properties.get("ksql.persistence.default.format.key", "KAFKA")
        found_value = found_value or properties.get("ksql.persistence.default.format.value")
        if found_value is None:
            self._text.fail("VALUE_FORMAT is missing: WITH (VALUE_FORMAT = 'JSON')", at)
        for name in (found_key, found_value):
            if not isinstance(name, str) or name.upper() not in FORMATS:
                self._text.fail(f"unknown format {name}{nearest(str(name), FORMATS)}", at)
        return found_key.upper(), found_value.upper()

    def _wrap(self, options: dict[str, Any], value_format: str, values: Columns, at: int) -> bool:
        """Return whether values are objects."""
        if "WRAP_SINGLE_VALUE" in options:
            wrap = self._option(options, "WRAP_SINGLE_VALUE")
            if isinstance(wrap, str):
                wrap = wrap.lower() == "true"
            if len(values) != 1:
                self._text.fail("WRAP_SINGLE_VALUE is for values of one column", at)
            if value_format in _FIXED_WRAP and bool(wrap) != value_format.startswith("PROTOBUF"):
                self._text.fail(f"format {value_format} does not support WRAP_SINGLE_VALUE", at)
            return True if value_format in _FIXED_WRAP else bool(wrap)
        if value_format in _FIXED_WRAP or len(values) != 1:
            return True
        return self._found.properties.get("ksql.persistence.wrap.single.values", "true") != "false"

    def _nullable(self, options: dict[str, Any], key_format: str, value_format: str) -> tuple[str | None, str | None]:
        """Return how Protobuf represents the nulls of keys and values."""
        found = []
        for part, format_ in (("KEY", key_format), ("VALUE", value_format)):
            name = f"{part}_PROTOBUF_NULLABLE_REPRESENTATION"
            given = self._option(options, name)
            if given is not None and not format_.startswith("PROTOBUF"):
                self._text.fail(f"{name} is for the formats PROTOBUF, and {part}_FORMAT is {format_}", options[name].at)
            if given is not None and str(given).upper() not in ("OPTIONAL", "WRAPPER"):
                self._text.fail(f"{name}={given!r} must be 'OPTIONAL' or 'WRAPPER'", options[name].at)
            found.append(None if given is None else str(given).upper())
        return found[0], found[1]

    def _delimiter(self, options: dict[str, Any], name: str, format_: str, at: int, default: str = ",") -> str:
        if name not in options:
            return default
        given = self._option(options, name)
        if format_ != "DELIMITED":
            self._text.fail(f"{name} is for the format DELIMITED", at)
        found = {"TAB": "\t", "SPACE": " "}.get(str(given).upper(), given)
        if not isinstance(found, str) or len(found) != 1:
            self._text.fail(f"{name}={given!r} must be one character, TAB or SPACE", at)
        return found

    def _check_formats(self, source: SqlSource, at: int) -> None:
        fail = self._text.fail
        if source.key_format == "KAFKA" and len(source.keys) > 1:
            fail("format KAFKA does not support a key of several columns; write KEY_FORMAT='JSON'", at)
        if source.key_format == "NONE" and source.keys:
            fail("format NONE is for no key, and there are key columns", at)
        if source.value_format == "NONE" and source.values:
            fail("format NONE is for no value, and there are value columns", at)
        if source.value_format == "KAFKA" and len(source.stored) > 1:
            fail("format KAFKA does not support values of several columns; write VALUE_FORMAT='JSON'", at)
        for format_, columns in ((source.key_format, source.keys), (source.value_format, source.stored)):
            for name, type_ in columns:
                if format_ == "KAFKA" and type_.base not in _PRIMITIVE:
                    fail(f"format KAFKA does not support type {type_}, of column {name}", at)
                if format_ == "DELIMITED" and type_.base in ("ARRAY", "MAP", "STRUCT"):
                    fail(f"format DELIMITED does not support type {type_}, of column {name}", at)
                if format_ == "AVRO" and not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
                    fail(
                        f"format AVRO does not support the name {name}: names have letters, digits and _, "
                        "and begin with no digit",
                        at,
                    )
                if format_ in ("PROTOBUF", "PROTOBUF_NOSR", "JSON", "AVRO", "JSON_SR"):
                    self._check_maps(format_, type_, at)

    def _check_maps(self, format_: str, type_: Any, at: int) -> None:
        if type_.base == "MAP" and type_.parts[0] != STRING:
            self._text.fail(f"format {format_} supports maps with keys of type STRING, not {type_.parts[0]}", at)
        for part in (*type_.parts, *(each for _, each in type_.fields)):
            self._check_maps(format_, part, at)

    def _existing(self, statement: tree.CreateSource | tree.CreateAs) -> bool:
        """Return whether the statement is to be skipped, because its name exists."""
        name = statement.name
        before = self._catalog.get(name)
        if statement.replace and (
            getattr(statement, "read_only", False) or (before is not None and before.is_read_only)
        ):
            self._text.fail("CREATE OR REPLACE is not for a SOURCE, which is read only; drop it first", statement.at)
        if before is None or statement.replace:
            return False
        if statement.only_if_missing:
            return True
        return self._text.fail(f"{name} exists already; write CREATE OR REPLACE", statement.at)

    def _source(self, statement: tree.CreateSource) -> None:
        text, options, at = self._text, statement.options, statement.at
        self._checked(options)
        if self._existing(statement):
            return
        topic = str(self._option(options, "KAFKA_TOPIC", statement.name))
        key_format, value_format = self._formats(options, at, None, None)
        declared = {
            "KEY" if e.role in ("key", "primary") else "VALUE" for e in statement.elements if "head" not in e.role
        }
        self._check_schema_options(statement, key_format, value_format, declared)
        statement = self._with_columns(statement, topic, key_format, value_format)
        if not statement.elements:
            text.fail(
                "the columns are missing: CREATE STREAM name (column TYPE, ...), or give the schema of the topic, "
                f"schemas={{{topic!r}: {{'value': ...}}}}",
                at,
            )
        wrong = "primary" if statement.kind == "STREAM" else "key"
        names: set[str] = set()
        for each in statement.elements:
            if each.name.lower() in names:
                text.fail(f"column {each.name} is declared twice: names that differ only in case are one", each.at)
            if each.name.startswith(("__keyed_", "#")):
                text.fail(f"{each.name}: names that begin with __keyed_ or # are reserved", each.at)
            names.add(each.name.lower())
            if each.name.upper() in ("ROWTIME", "ROWPARTITION", "ROWOFFSET", "WINDOWSTART", "WINDOWEND"):
                text.fail(f"{each.name} is a column that each source has; choose another name", each.at)
            if each.role == wrong:
                text.fail(
                    "a column of a stream is KEY, not PRIMARY KEY"
                    if wrong == "primary"
                    else "the key of a table is PRIMARY KEY, not KEY",
                    each.at,
                )
            self._check_headers(each, statement)
        keys = tuple((each.name, each.type) for each in statement.elements if each.role in ("key", "primary"))
        values = tuple((each.name, each.type) for each in statement.elements if each.role not in ("key", "primary"))
        headers = tuple((e.name, e.header) for e in statement.elements if e.role in ("headers", "header"))
        if statement.kind == "TABLE" and not keys:
            text.fail("a table needs a PRIMARY KEY: CREATE TABLE name (id INT PRIMARY KEY, ...)", at)
        for name, type_ in keys:
            if type_.has_map:
                text.fail(f"a key of type {type_}, of column {name}, is not supported", at)
        window = self._option(options, "WINDOW_TYPE")
        size = time_option(text, options, "WINDOW_SIZE")
        if window is not None and (str(window).upper() not in ("TUMBLING", "HOPPING", "SESSION") or not keys):
            text.fail(f"WINDOW_TYPE={window!r} must be 'TUMBLING', 'HOPPING' or 'SESSION', of a source with a key", at)
        if window is not None and (size is None) != (str(window).upper() == "SESSION"):
            text.fail("WINDOW_SIZE is for the window types TUMBLING and HOPPING", at)
        stored = tuple(each for each in values if each[0] not in {name for name, _ in headers})
        source = SqlSource(
            statement.name,
            statement.kind,
            keys,
            values,
            topic,
            key_format,
            value_format,
            None if window is None else str(window).upper(),
            size,
            self._timestamp(options, (*keys, *values), at),
            headers,
            self._delimiter(options, "VALUE_DELIMITER", value_format, at),
            self._delimiter(options, "KEY_DELIMITER", key_format, at),
            self._wrap(options, value_format, stored, at),
            self._nullable(options, key_format, value_format),
            statement.read_only,
            topic_options=topic_options(text, options),
        )
        self._check_formats(source, at)
        self._add(source)

    def _with_columns(self, statement: tree.CreateSource, topic: str, key_format: str, value_format: str) -> Any:
        """Return a statement with the columns of the topic's schemas, where it declares no key or no value."""
        options, at = statement.options, statement.at
        keys = [each for each in statement.elements if each.role in ("key", "primary")]
        headers = [each for each in statement.elements if each.role in ("headers", "header")]
        values = [each for each in statement.elements if each not in keys and each not in headers]
        if not keys and key_format in _WITH_SCHEMA and self._schemas.has(topic, "key"):
            role = "primary" if statement.kind == "TABLE" else "key"
            # In Protobuf every key is a message, and its fields are the columns.
            is_split = key_format.startswith("PROTOBUF")
            found = self._schema_columns(options, topic, "key", key_format, is_split=is_split)
            keys = [tree.Element(name, type_, role, at=at) for name, type_ in found]
        if not values and value_format in _WITH_SCHEMA and self._schemas.has(topic, "value"):
            wrap = str(self._option(options, "WRAP_SINGLE_VALUE", default=True)).lower()
            found = self._schema_columns(options, topic, "value", value_format, is_split=wrap != "false")
            values = [tree.Element(name, type_, at=at) for name, type_ in found]
        return statement if not keys and not values else attrs.evolve(statement, elements=(*keys, *values, *headers))

    def _schema_columns(
        self, options: dict[str, Any], topic: str, part: str, format_: str, *, is_split: bool
    ) -> list[tuple[str, Any]]:
        upper = part.upper()
        name = self._option(options, f"{upper}_SCHEMA_FULL_NAME")
        type_ = self._schemas.type(topic, part, format_, name)
        if is_split and type_.base == "STRUCT":
            return list(type_.fields)
        return [("ROWKEY" if part == "key" else "ROWVAL", type_)]

    def _check_headers(self, each: tree.Element, statement: tree.CreateSource) -> None:
        if each.role not in ("headers", "header"):
            return
        wanted = BYTES if each.role == "header" else array(struct(("KEY", STRING), ("VALUE", BYTES)))
        if str(each.type).upper() != str(wanted):
            self._text.fail(f"a column with {each.role.upper()} is of type {wanted}, not {each.type}", each.at)
        roles = [other.role for other in statement.elements if other.role in ("headers", "header")]
        if "headers" in roles and len(roles) > 1:
            self._text.fail("there is one column with HEADERS, or columns with HEADER('name')", each.at)
        same = [other for other in statement.elements if other.role == "header" and other.header == each.header]
        if each.role == "header" and len(same) > 1:
            self._text.fail(f"two columns have the header {each.header!r}", each.at)

    def _add(self, source: SqlSource) -> None:
        self._catalog.add(source)
        self._found.sources.add(source)

    def _timestamp(self, options: dict[str, Any], columns: Columns, at: int) -> tuple[str, str | None] | None:
        if "TIMESTAMP" not in options:
            if "TIMESTAMP_FORMAT" in options:
                self._text.fail("TIMESTAMP_FORMAT needs TIMESTAMP, the name of the column", at)
            return None
        given = str(self._option(options, "TIMESTAMP"))
        bare = (given[1:-1] if given[:1] in '`"' else given).lower()
        types = dict(columns)
        name = next((each for each in types if each.lower() == bare), given)
        if name not in types:
            self._text.fail(f"TIMESTAMP: unknown column {name}{nearest(name, types)}", at)
        pattern = self._option(options, "TIMESTAMP_FORMAT")
        type_ = types[name]
        if type_ == STRING and pattern is None:
            self._text.fail(f"TIMESTAMP: column {name} is a STRING, so TIMESTAMP_FORMAT is needed", at)
        if type_.base not in ("STRING", "BIGINT", "TIMESTAMP"):
            self._text.fail(f"TIMESTAMP: column {name} is of type {type_}; it must be BIGINT, TIMESTAMP or STRING", at)
        if pattern is not None and "%" not in str(pattern):
            self._text.fail(f"TIMESTAMP_FORMAT={pattern!r} has no % of a pattern such as '%Y-%m-%d %H:%M:%S'", at)
        if type_ != STRING and pattern is not None:
            self._text.fail("TIMESTAMP_FORMAT is for a column of type STRING", at)
        return name, pattern

    # Queries.

    def _create_as(self, statement: tree.CreateAs) -> None:
        text, options, at = self._text, statement.options, statement.at
        self._checked(options)
        if self._existing(statement):
            return
        if "WINDOW_TYPE" in options or "WINDOW_SIZE" in options:
            text.fail("the windows of an output are those of its query", at)
        plan = self._planner().plan(statement.query, statement.kind, statement.name)
        if plan.grouping is not None and "TIMESTAMP" in options:
            text.fail("the rows of aggregates have the time of the latest row that is in them", options["TIMESTAMP"].at)
        first = self._catalog.find(text, statement.query.source.name, at)
        if statement.replace:
            self._check_replaced(statement, plan)
        default_key: str | None = first.key_format
        if default_key == "NONE" and plan.keys:
            default_key = self._found.properties.get("ksql.persistence.default.format.key", "KAFKA")
        default_value: str | None = first.value_format
        if default_value == "NONE" and plan.values:
            default_value = self._found.properties.get("ksql.persistence.default.format.value")
        key_format, value_format = self._formats(options, at, default_key, default_value)
        if not plan.keys and "KEY_FORMAT" in options and key_format != "NONE":
            text.fail("KEY_FORMAT is for a key, and the output has none", options["KEY_FORMAT"].at)
        if not plan.keys and "FORMAT" not in options:
            key_format = "NONE"
        if not plan.values and value_format != "NONE":
            text.fail(
                "the projection has no columns beside the key; write AS_VALUE(...) for a copy of it", statement.query.at
            )
        self._check_schema_options(statement, key_format, value_format)
        if not plan.keys and plan.is_table:
            text.fail("a table needs a key", at)
        prefix = self._found.properties.get("ksql.output.topic.name.prefix", "")
        inherited = first.delimiter if value_format == first.value_format else ","
        key_inherited = first.key_delimiter if key_format == first.key_format else ","
        source = SqlSource(
            statement.name,
            statement.kind,
            plan.keys,
            plan.values,
            str(self._option(options, "KAFKA_TOPIC", prefix + statement.name)),
            key_format,
            value_format,
            None if plan.window is None else plan.window[0],
            None if plan.window is None else plan.window[1],
            self._timestamp(options, (*plan.keys, *plan.values), at),
            (),
            self._delimiter(options, "VALUE_DELIMITER", value_format, at, inherited),
            self._delimiter(options, "KEY_DELIMITER", key_format, at, key_inherited),
            self._wrap(options, value_format, plan.values, at),
            self._nullable(options, key_format, value_format),
            is_query=True,
            topic_options=topic_options(text, options),
        )
        self._check_formats(source, at)
        if statement.replace and self._catalog.get(statement.name) is not None:
            self._found.queries = [each for each in self._found.queries if each.name.lower() != statement.name.lower()]
        self._add(source)
        self._found.queries.append(WrittenQuery(statement.name, source, plan))

    def _check_replaced(self, statement: tree.CreateAs, plan: QueryPlan) -> None:
        before = self._catalog.get(statement.name)
        if before is None:
            return
        columns = (*plan.keys, *plan.values)
        for name, type_ in (*before.keys, *before.values):
            if (name, type_) not in columns:
                self._text.fail(f"CREATE OR REPLACE can add columns, but column {name} {type_} is gone", statement.at)
        if before.keys != plan.keys:
            self._text.fail("CREATE OR REPLACE cannot change the key", statement.at)

    def _insert_select(self, statement: tree.InsertSelect) -> None:
        text, at = self._text, statement.at
        target = self._catalog.find(text, statement.name, at)
        if target.is_table:
            text.fail("INSERT INTO ... SELECT is for streams", at)
        if target.is_read_only:
            text.fail(f"{target.name} is a SOURCE stream, which is read only", at)
        if target.headers:
            text.fail("a stream with columns for headers takes no rows", at)
        plan = self._planner().plan(statement.query, "STREAM", statement.name)
        mine, theirs = (*plan.keys, *plan.values), (*target.keys, *target.values)
        if plan.window is not None and target.window is None:
            text.fail("the query is windowed, and the stream is not", at)
        fits = [(each.lower(), type_) for each, type_ in mine] == [(each.lower(), type_) for each, type_ in theirs]
        if not fits or len(plan.keys) != len(target.keys):
            text.fail(
                f"the query has the columns ({_shown(mine)}), and {target.name} ({_shown(theirs)}); they must have the "
                "same names, types and order; write CAST(... AS type)",
                at,
            )
        name = f"INSERT_{len(self._found.queries)}_{statement.name}"
        self._found.queries.append(WrittenQuery(name, target, plan))

    def _insert_values(self, statement: tree.InsertValues) -> None:
        text, at = self._text, statement.at
        target = self._catalog.find(text, statement.name, at)
        if target.is_read_only:
            text.fail(f"{target.name} is a SOURCE, which is read only", at)
        types = {name.lower(): (name, type_) for name, type_ in (*target.columns, ("ROWTIME", BIGINT))}
        names = statement.columns or tuple(name for name, _ in target.columns)
        for name, _ in target.headers:
            if name in names:
                text.fail(f"column {name} is of headers, so no row has it; name the other columns", at)
        if len(names) != len(statement.values):
            text.fail(f"{len(names)} columns and {len(statement.values)} values", at)
        row: dict[str, Any] = {}
        nothing = NameScope(text, (), self._values)
        for name, words in zip(names, statement.values, strict=True):
            if name.lower() not in types:
                text.fail(f"unknown column {name}{nearest(name, [each for each, _ in types.values()])}", at)
            declared, type_ = types[name.lower()]
            row[declared] = self._constant(nothing, words, declared, type_)
        self._found.inserts.append(Insert(target.name, row))

    def _constant(self, scope: NameScope, words: tree.Words, name: str, type_: SqlType) -> Any:
        """Return the value of an expression without columns."""
        import pyarrow as pa

        if len(words) == 1 and words[0].upper == "NULL":
            return None
        resolved = scope.resolved(words)
        found = scope.type_of(resolved)
        step = SqlStep((("value", sql(resolved), found),), values=self._values)
        table, bad = step.run(pa.table({"row": [1]}))
        if bad:
            self._text.fail(f"column {name}: {bad[0][1]}", words[0].at)
        cells, wrong = column(table.column("value").combine_chunks(), type_)
        if wrong:
            self._text.fail(f"column {name}: {wrong[0]}", words[0].at)
        return cells[0].as_py()

    def _drop(self, statement: tree.Drop) -> None:
        if statement.kind == "TYPE":
            return
        source = self._catalog.get(statement.name)
        if source is None:
            if not statement.if_exists:
                self._catalog.find(self._text, statement.name, statement.at)
            return
        if source.kind != statement.kind:
            self._text.fail(f"{source.name} is a {source.kind}", statement.at)
        if statement.deletes_topic and source.is_read_only:
            self._text.fail(f"the topic of {source.name}, a SOURCE, is read only", statement.at)
        readers = [
            each.target.name
            for each in self._found.queries
            if each.target.name != source.name and source.name in [s.name for s in each.plan.relation.sources]
        ]
        if readers:
            self._text.fail(f"{source.name} is read by {', '.join(readers)}; drop that first", statement.at)
        self._catalog.drop(statement.name)
        self._found.queries = [each for each in self._found.queries if each.target.name != source.name]


def _shown(columns: Columns) -> str:
    return ", ".join(f"{name} {type_}" for name, type_ in columns)

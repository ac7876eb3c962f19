"""Checks the statements of a script, in order, and returns what they define: sources, queries and answers."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from keyed.base.shown import nearest
from keyed.errors import DefinitionError, SqlError
from keyed.expressions.engine import Columns, SqlStep, functions
from keyed.expressions.sql_text import Text
from keyed.expressions.tokens import sql
from keyed.formats.record_formats import RecordPart
from keyed.formats.registry_schemas import RegistrySchemas
from keyed.formats.sql_types import BIGINT, BYTES, DOUBLE, STRING, SqlType, array, struct
from keyed.formats.typed_columns import column
from keyed.sql import statements as tree
from keyed.sql.catalog import Catalog, SqlSource
from keyed.sql.name_scope import BOUNDS, PSEUDO, NameScope
from keyed.sql.planner import Planner, QueryPlan
from keyed.sql.script_inputs import LATEST, NO_TIME
from keyed.sql.sql_aggregates import AGGREGATES
from keyed.sql.topic_options import time_option, topic_options
from keyed.vectorized import TIMESTAMP_COLUMN

_PROTOBUF = ("PROTOBUF", "PROTOBUF_NOSR")
_WITH_SCHEMA = ("AVRO", "JSON_SR", *_PROTOBUF)
FORMATS = ("AVRO", "DELIMITED", "JSON", "JSON_SR", "KAFKA", "NONE", *_PROTOBUF)
#: Options of keys and of values, by their names after KEY_ and VALUE_, with the formats that they are for.
_OF_FORMATS = {
    "FORMAT": ("any format", FORMATS),
    "SCHEMA_ID": ("formats with a schema", _WITH_SCHEMA),
    "SCHEMA_FULL_NAME": ("formats with a schema", _WITH_SCHEMA),
    "AVRO_SCHEMA_FULL_NAME": ("formats with a schema", _WITH_SCHEMA),
    "PROTOBUF_NULLABLE_REPRESENTATION": ("the formats PROTOBUF", _PROTOBUF),
    "DELIMITER": ("the format DELIMITED", ("DELIMITED",)),
}
_OPTIONS = {f"{part}_{name}" for name in _OF_FORMATS for part in ("KEY", "VALUE")} | {
    *("KAFKA_TOPIC", "FORMAT", "TIMESTAMP", "TIMESTAMP_FORMAT", "WRAP_SINGLE_VALUE", "WINDOW_TYPE", "WINDOW_SIZE"),
    *("PARTITIONS", "REPLICAS", "RETENTION_MS", "CLEANUP_POLICY", "IDLE_TIMEOUT"),
}
_RESET = "auto.offset.reset"
_WINDOWS = ("TUMBLING", "HOPPING", "SESSION")
#: Formats in which a value of one column is always written in the same way.
_FIXED_WRAP = {*_PROTOBUF, "DELIMITED", "KAFKA", "NONE"}
#: Names that no column may have.
_OWN_NAMES = {*PSEUDO, *BOUNDS}


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
        inserts: The rows of ``INSERT INTO … VALUES``, by the stream or table.
        properties: The settings of ``SET``.
        answers: The answers to statements that ask, in order.
    """

    text: Text
    catalog: Catalog
    sources: Catalog
    queries: list[WrittenQuery]
    inserts: dict[str, list[dict[str, Any]]]
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
            known = nearest(name, [each.name for each in self.sources.sources])
            raise DefinitionError(
                f"streams={{{name!r}: ...}}: the script declares no stream or table of that name{known}"
            )
        return found


def define(
    text: Text,
    statements: list[tree.Statement],
    values: Mapping[str, Any],
    properties: dict[str, str] | None = None,
    schemas: RegistrySchemas | None = None,
    functions: Mapping[str, Any] | None = None,
) -> Definitions:
    """Check statements and return what they define.

    Args:
        text: The script.
        statements: Its statements.
        values: The values of parameters.
        properties: Settings.
        schemas: The schemas of topics.
        functions: The functions that ``FROM`` may call, by name.

    Raises:
        SqlError: A statement is not valid.
        DefinitionError: A schema cannot be read, or is of no topic; or no query calls a function.
    """
    schemas = schemas or RegistrySchemas(None)
    for name, value in (properties or {}).items():
        if (wrong := _wrong_setting(name, value)) is not None:
            raise DefinitionError(f"properties: {wrong}")
    catalog = Catalog()
    found = Definitions(text, catalog, Catalog(), [], {}, dict(properties or {}))
    definer = _Definer(text, values, schemas, functions or {}, catalog, found)
    definer.define(statements)
    for name in (functions or {}).keys() - definer.called:
        raise DefinitionError(
            f"functions={{{name!r}: ...}}: no query calls it{nearest(name, definer.called)}; write FROM {name}(stream "
            "PARTITION BY column)"
        )
    schemas.check_topics({each.topic for each in found.sources.sources})
    return found


def _wrong_setting(name: str, value: str) -> str | None:
    """Return what is wrong with a setting."""
    if name == _RESET and value.lower() not in ("earliest", "latest"):
        return f"{name!r}={value!r} must be 'earliest' or 'latest'"
    return None


@attrs.define(eq=False)
class _Definer:
    _text: Text
    _values: Mapping[str, Any]
    _schemas: RegistrySchemas
    _functions: Mapping[str, Any]
    _catalog: Catalog
    _found: Definitions
    #: The names of the functions that queries call.
    called: set[str] = attrs.field(factory=set)

    def define(self, statements: list[tree.Statement]) -> None:
        for statement in statements:
            match statement:
                case tree.Create():
                    self._create(statement)
                case tree.Insert(query=None):
                    self._insert_values(statement)
                case tree.Insert():
                    self._insert_select(statement)
                case tree.Drop():
                    self._drop(statement)
                case tree.SetOption(value=None):
                    self._found.properties.pop(statement.name, None)
                case tree.SetOption():
                    value = str(statement.value)
                    if (wrong := _wrong_setting(statement.name, value)) is not None:
                        self._text.fail(wrong, statement.at)
                    self._found.properties[statement.name] = value
                case tree.Show():
                    self._found.answers.append(self._answer(statement))
                case tree.SelectQuery():
                    self._text.fail(
                        "a script has no SELECT alone: write CREATE STREAM or CREATE TABLE name AS SELECT, and query "
                        "the tables when it runs, by keyed.sql.subscribe or by tables.sql",
                        statement.at,
                    )

    # Statements that ask.

    def _answer(self, statement: tree.Show) -> Answer:
        """Return the answer to a statement."""
        found, what = self._found, statement.what
        match what:
            case "STREAMS" | "TABLES":
                sources = [each for each in self._catalog.sources if what == f"{each.kind}S"]
                rows: list[dict[str, Any]] = [
                    {"name": each.name, "topic": each.topic}
                    | {f"{name}_format": part.format for name, part in zip(("key", "value"), each.parts, strict=True)}
                    | {"window": each.window, "is_written_by_a_query": each.is_query}
                    for each in sources
                ]
            case "QUERIES":
                reads = [", ".join(source.name for source in each.plan.relation.sources) for each in found.queries]
                rows = [
                    {"name": each.name, "writes": each.target.name, "reads": names}
                    for each, names in zip(found.queries, reads, strict=True)
                ]
            case "FUNCTIONS":
                names = sorted({*functions(), *AGGREGATES})
                rows = [{"name": name, "is_aggregate": name in AGGREGATES} for name in names]
            case "TYPES":
                rows = [{"name": name, "type": str(type_)} for name, type_ in sorted(statement.types.items())]
            case "DESCRIBE":
                source = self._catalog.find(self._text, statement.name, statement.at)
                role = "PRIMARY KEY" if source.is_table else "KEY"
                roles = [role] * len(source.keys) + [""] * len(source.values)
                rows = [
                    {"column": name, "type": str(type_), "role": role}
                    for (name, type_), role in zip(source.columns, roles, strict=True)
                ]
                return Answer(f"DESCRIBE {source.name}", rows)
            case _:
                rows = [step for plan in self._explained(statement) for step in plan.steps()]
                return Answer(f"EXPLAIN {statement.name or 'SELECT'}", rows)
        return Answer(f"SHOW {what}", rows)

    def _explained(self, statement: tree.Show) -> list[QueryPlan]:
        if statement.query is not None:
            try:
                return [self._planner().plan(statement.query, "TABLE", "query")]
            except SqlError:
                return [self._planner().plan(statement.query, "STREAM", "query")]
        wanted, names = statement.name.lower(), {n for q in self._found.queries for n in (q.name, q.target.name)}
        found = [each.plan for each in self._found.queries if wanted in (each.name.lower(), each.target.name.lower())]
        if not found:
            self._text.fail(f"no query writes {statement.name}{nearest(statement.name, names)}", statement.at)
        return found

    def _planner(self) -> Planner:
        properties = self._found.properties
        return Planner(self._text, self._catalog, self._values, properties, self._functions, self.called)

    # Sources.

    def _option(self, options: dict[str, tree.Option], name: str, default: Any = None) -> Any:
        return options[name].value if name in options else default

    def _check_options(self, statement: tree.Create, formats: tuple[str, str]) -> None:
        """Check the options that are for some formats only."""
        options = statement.options
        declared = {"KEY" if each.is_key else "VALUE" for each in statement.elements if not each.is_header}
        for part, format_ in zip(("KEY", "VALUE"), formats, strict=True):
            for end, (what, of) in _OF_FORMATS.items():
                name = f"{part}_{end}"
                if name not in options:
                    continue
                given, at = str(options[name].value), options[name].at
                if format_ not in of:
                    self._text.fail(f"{name} is for {what}, and {part}_FORMAT is {format_}", at)
                if end == "SCHEMA_ID" and part in declared:
                    self._text.fail(f"{name} names the columns, and so does the list; remove one of them", at)
                if not given.strip() and end != "DELIMITER":
                    self._text.fail(f"{name} is empty", at)
                if end.startswith("PROTOBUF") and given.upper() not in ("OPTIONAL", "WRAPPER"):
                    self._text.fail(f"{name}={given!r} must be 'OPTIONAL' or 'WRAPPER'", at)

    def _formats(self, statement: tree.Create, key: str | None, value: str | None) -> tuple[str, str]:
        """Return the formats of keys and values, and check the options that depend on them."""
        options, at = statement.options, statement.at
        if "FORMAT" in options and ("KEY_FORMAT" in options or "VALUE_FORMAT" in options):
            self._text.fail("give FORMAT, or KEY_FORMAT and VALUE_FORMAT", at)
        found = []
        for part, default in (("key", key), ("value", value)):
            given = self._option(options, f"{part.upper()}_FORMAT", self._option(options, "FORMAT", default))
            default = "KAFKA" if part == "key" else None
            given = given or self._found.properties.get(f"ksql.persistence.default.format.{part}", default)
            if given is None:
                self._text.fail("VALUE_FORMAT is missing: WITH (VALUE_FORMAT = 'JSON')", at)
            if not isinstance(given, str) or given.upper() not in FORMATS:
                self._text.fail(f"unknown format {given}{nearest(str(given), FORMATS)}", at)
            found.append(given.upper())
        self._check_options(statement, (found[0], found[1]))
        return found[0], found[1]

    def _wraps(self, options: dict[str, tree.Option], value_format: str, values: Columns, at: int) -> bool:
        """Return whether values are objects."""
        is_fixed = value_format in _FIXED_WRAP
        if "WRAP_SINGLE_VALUE" not in options:
            default = self._found.properties.get("ksql.persistence.wrap.single.values", "true")
            return is_fixed or len(values) != 1 or default != "false"
        wraps = str(options["WRAP_SINGLE_VALUE"].value).lower() == "true"
        if len(values) != 1:
            self._text.fail("WRAP_SINGLE_VALUE is for values of one column", at)
        if is_fixed and wraps != (value_format in _PROTOBUF):
            self._text.fail(f"format {value_format} does not support WRAP_SINGLE_VALUE", at)
        return is_fixed or wraps

    def _delimiter(self, options: dict[str, tree.Option], name: str, default: str) -> str:
        given = self._option(options, name, default)
        found = {"TAB": "\t", "SPACE": " "}.get(str(given).upper(), given)
        if not isinstance(found, str) or len(found) != 1:
            self._text.fail(f"{name}={given!r} must be one character, TAB or SPACE", options[name].at)
        return found

    def _create(self, statement: tree.Create) -> None:
        text, before = self._text, self._catalog.get(statement.name)
        for name, value in statement.options.items():
            if name not in _OPTIONS:
                text.fail(f"unknown option {name}{nearest(name, _OPTIONS)}", value.at)
        if statement.replace and (statement.read_only or (before is not None and before.is_read_only)):
            text.fail("CREATE OR REPLACE is not for a SOURCE, which is read only; drop it first", statement.at)
        if before is not None and not statement.replace:
            if not statement.only_if_missing:
                text.fail(f"{statement.name} exists already; write CREATE OR REPLACE", statement.at)
        elif statement.query is None:
            self._declare(statement)
        else:
            self._create_as(statement, statement.query)

    def _declare(self, statement: tree.Create) -> None:
        text, options, at = self._text, statement.options, statement.at
        formats = self._formats(statement, None, None)
        statement = self._with_columns(statement, *formats)
        self._check_elements(statement)
        keys = tuple((each.name, each.type) for each in statement.elements if each.is_key)
        values = tuple((each.name, each.type) for each in statement.elements if not each.is_key)
        if statement.kind == "TABLE" and not keys:
            text.fail("a table needs a PRIMARY KEY: CREATE TABLE name (id INT PRIMARY KEY, ...)", at)
        for name, type_ in keys:
            if type_.has("MAP") or (statement.kind == "TABLE" and type_.has_parts):
                text.fail(f"a key of type {type_}, of column {name}, is not supported; give each part a column", at)
        window = self._option(options, "WINDOW_TYPE")
        size_ms = time_option(text, options, "WINDOW_SIZE")
        kind = None if window is None else str(window).upper()
        if kind is not None and (kind not in _WINDOWS or not keys):
            text.fail(f"WINDOW_TYPE={window!r} must be 'TUMBLING', 'HOPPING' or 'SESSION', of a source with a key", at)
        if kind is not None and (size_ms is None) != (kind == "SESSION"):
            text.fail("WINDOW_SIZE is for the window types TUMBLING and HOPPING", at)
        headers = tuple((each.name, each.header) for each in statement.elements if each.is_header)
        self._add(statement, keys, values, formats, window=(kind, size_ms), headers=headers)

    def _check_elements(self, statement: tree.Create) -> None:
        """Check the columns of a statement: their names, roles and types of headers."""
        text, topic = self._text, self._topic(statement)
        if not statement.elements:
            text.fail(
                "the columns are missing: CREATE STREAM name (column TYPE, ...), or give the schema of the topic, "
                f"schemas={{{topic!r}: {{'value': ...}}}}",
                statement.at,
            )
        wrong = {
            "STREAM": ("primary", "a column of a stream is KEY, not PRIMARY KEY"),
            "TABLE": ("key", "the key of a table is PRIMARY KEY, not KEY"),
        }[statement.kind]
        names: set[str] = set()
        headers: list[str | None] = []
        for each in statement.elements:
            if each.name.lower() in names:
                text.fail(f"column {each.name} is declared twice: names that differ only in case are one", each.at)
            names.add(each.name.lower())
            if each.name.startswith(("__keyed_", "#")):
                text.fail(f"{each.name}: names that begin with __keyed_ or # are reserved", each.at)
            if each.name.upper() in _OWN_NAMES:
                text.fail(f"{each.name} is a column that each source has; choose another name", each.at)
            if each.role == wrong[0]:
                text.fail(wrong[1], each.at)
            if not each.is_header:
                continue
            wanted = BYTES if each.role == "header" else array(struct(("KEY", STRING), ("VALUE", BYTES)))
            if str(each.type).upper() != str(wanted):
                text.fail(f"a column with {each.role.upper()} is of type {wanted}, not {each.type}", each.at)
            if headers and None in (each.header, *headers):
                text.fail("there is one column with HEADERS, or columns with HEADER('name')", each.at)
            if each.header in headers:
                text.fail(f"two columns have the header {each.header!r}", each.at)
            headers.append(each.header)

    def _topic(self, statement: tree.Create) -> str:
        prefix = "" if statement.query is None else self._found.properties.get("ksql.output.topic.name.prefix", "")
        return str(self._option(statement.options, "KAFKA_TOPIC", prefix + statement.name))

    def _with_columns(self, statement: tree.Create, key_format: str, value_format: str) -> tree.Create:
        """Return a statement with the columns of the topic's schemas, where it declares no key or no value."""
        at, topic = statement.at, self._topic(statement)
        keys = [each for each in statement.elements if each.is_key]
        headers = [each for each in statement.elements if each.is_header]
        values = [each for each in statement.elements if each not in keys and each not in headers]
        if not keys and key_format in _WITH_SCHEMA and self._schemas.has(topic, "key"):
            role = "primary" if statement.kind == "TABLE" else "key"
            # In Protobuf every key is a message, and its fields are the columns.
            found = self._schema_columns(statement, "key", key_format, is_split=key_format in _PROTOBUF)
            keys = [tree.Element(name, type_, role, at=at) for name, type_ in found]
        if not values and value_format in _WITH_SCHEMA and self._schemas.has(topic, "value"):
            wrap = str(self._option(statement.options, "WRAP_SINGLE_VALUE", default=True)).lower()
            found = self._schema_columns(statement, "value", value_format, is_split=wrap != "false")
            values = [tree.Element(name, type_, at=at) for name, type_ in found]
        return attrs.evolve(statement, elements=(*keys, *values, *headers))

    def _schema_columns(self, statement: tree.Create, part: str, format_: str, *, is_split: bool) -> Columns:
        name = self._option(statement.options, f"{part.upper()}_SCHEMA_FULL_NAME")
        type_ = self._schemas.type(self._topic(statement), part, format_, name)
        if is_split and type_.base == "STRUCT":
            return tuple(type_.fields)
        return (("ROWKEY" if part == "key" else "ROWVAL", type_),)

    def _add(
        self,
        statement: tree.Create,
        keys: Columns,
        values: Columns,
        formats: tuple[str, str],
        *,
        window: tuple[str | None, int | None] | None = None,
        headers: tuple[tuple[str, str | None], ...] = (),
        read: Sequence[SqlSource] = (),
    ) -> SqlSource:
        """Add a source to the catalog."""
        options, at = statement.options, statement.at
        names = [name for name, _ in headers]
        stored = tuple(each for each in values if each[0] not in names)
        topic, wraps_key = self._topic(statement), len(keys) > 1 or formats[0] in _PROTOBUF
        of_parts = ((keys, wraps_key), (stored, self._wraps(options, formats[1], stored, at)))
        parts = []
        for place, (name, format_, (columns, wraps)) in enumerate(
            zip(("KEY", "VALUE"), formats, of_parts, strict=True)
        ):
            before = [each.parts[place] for each in read[:1]]
            default = next((each.delimiter for each in before if each.format == format_), ",")
            delimiter = self._delimiter(options, f"{name}_DELIMITER", default)
            null = self._option(options, f"{name}_PROTOBUF_NULLABLE_REPRESENTATION")
            null = None if null is None else str(null).upper()
            part = RecordPart(format_, columns, name == "KEY", topic, statement.name, wraps, delimiter, null)
            if part.misfit is not None:
                self._text.fail(part.misfit, at)
            parts.append(part)
        timestamp = self._timestamp(options, (*keys, *values), at)
        is_query = statement.query is not None
        source = SqlSource(
            statement.name,
            statement.kind,
            keys,
            values,
            topic,
            tuple(parts),
            *(window or (None, None)),
            timestamp,
            headers,
            statement.read_only,
            is_query=is_query,
            is_retimed=is_query and (timestamp is not None or any(each.is_retimed for each in read)),
            topic_options=topic_options(self._text, options),
        )
        self._catalog.add(source)
        self._found.sources.add(source)
        return source

    def _timestamp(self, options: dict[str, tree.Option], columns: Columns, at: int) -> tuple[str, str | None] | None:
        """Return the name of the column with the time, and the pattern of its text."""
        given, pattern = self._option(options, "TIMESTAMP"), self._option(options, "TIMESTAMP_FORMAT")
        if given is None:
            if pattern is not None:
                self._text.fail("TIMESTAMP_FORMAT needs TIMESTAMP, the name of the column", at)
            return None
        given, types = str(given), dict(columns)
        bare = (given[1:-1] if given[:1] in '`"' else given).lower()
        name = next((each for each in types if each.lower() == bare), None)
        if name is None:
            self._text.fail(f"TIMESTAMP: unknown column {given}{nearest(given, types)}", at)
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

    def _create_as(self, statement: tree.Create, query: tree.SelectQuery) -> None:
        text, options, at = self._text, statement.options, statement.at
        if "WINDOW_TYPE" in options or "WINDOW_SIZE" in options:
            text.fail("the windows of an output are those of its query", at)
        plan = self._planner().plan(query, statement.kind, statement.name)
        first = self._catalog.find(text, query.source.name, at)
        if statement.replace:
            self._replace(statement, plan)
        key, value = first.parts
        key_default = "" if key.format == "NONE" and plan.keys else key.format
        value_default = "" if value.format == "NONE" and plan.values else value.format
        key_format, value_format = self._formats(statement, key_default, value_default)
        if not plan.keys and "KEY_FORMAT" in options and key_format != "NONE":
            text.fail("KEY_FORMAT is for a key, and the output has none", options["KEY_FORMAT"].at)
        if not plan.keys and "FORMAT" not in options:
            key_format = "NONE"
        if not plan.values and value_format != "NONE":
            text.fail("the projection has no columns beside the key; write AS_VALUE(...) for a copy of it", query.at)
        if not plan.keys and plan.is_table:
            text.fail("a table needs a key", at)
        formats, read = (key_format, value_format), plan.relation.sources
        source = self._add(statement, plan.keys, plan.values, formats, window=plan.window, read=read)
        self._found.queries.append(WrittenQuery(statement.name, source, self._timed(plan, source, options)))

    def _timed(self, plan: QueryPlan, target: SqlSource, options: dict[str, tree.Option]) -> QueryPlan:
        """Return a plan whose rows have the times of a column of what they are written to."""
        if target.timestamp is None:
            return plan
        (name, pattern), at = target.timestamp, options["TIMESTAMP"].at
        if plan.grouping is not None or plan.ranking is not None:
            self._text.fail("the rows of aggregates and ranks have the times of the rows that are in them", at)
        if self._found.is_strict:
            self._text.fail("with 'ksql.timestamp.throw.on.invalid' TIMESTAMP is where the rows are declared", at)
        text, type_ = next((text, type_) for each, text, type_ in plan.before.columns if each == name)
        if pattern is not None:
            quoted = pattern.replace("'", "''")
            text = f"strptime({text}, '{quoted}')"
        text = text if type_ == BIGINT else f"epoch_ms({text})"
        no_time = f"error('{NO_TIME}: it is null, below 1970 or beyond the year 9999')"
        cell = f"CASE WHEN {text} BETWEEN 0 AND {LATEST - 1} THEN {text} ELSE {no_time} END"
        columns = (*plan.before.columns, (TIMESTAMP_COLUMN, cell, BIGINT))
        kept = tuple(each for each in plan.before.kept if each != TIMESTAMP_COLUMN)
        return attrs.evolve(plan, before=attrs.evolve(plan.before, columns=columns, kept=kept))

    def _replace(self, statement: tree.Create, plan: QueryPlan) -> None:
        """Remove the query of an output that a statement replaces."""
        before = self._catalog.get(statement.name)
        if before is None:
            return
        for name, type_ in before.columns:
            if (name, type_) not in (*plan.keys, *plan.values):
                self._text.fail(f"CREATE OR REPLACE can add columns, but column {name} {type_} is gone", statement.at)
        if before.keys != plan.keys:
            self._text.fail("CREATE OR REPLACE cannot change the key", statement.at)
        self._found.queries = [each for each in self._found.queries if each.name.lower() != statement.name.lower()]

    def _target(self, statement: tree.Insert) -> SqlSource:
        """Return what a statement inserts into."""
        target = self._catalog.find(self._text, statement.name, statement.at)
        if target.is_read_only:
            self._text.fail(f"{target.name} is a SOURCE {target.kind.lower()}, which is read only", statement.at)
        return target

    def _insert_select(self, statement: tree.Insert) -> None:
        text, at, target = self._text, statement.at, self._target(statement)
        assert statement.query is not None
        if target.is_table:
            text.fail("INSERT INTO ... SELECT is for streams", at)
        if target.headers:
            text.fail("a stream with columns for headers takes no rows", at)
        if target.timestamp is not None:
            text.fail(f"{target.name} has the times of its column {target.timestamp[0]}; create a stream without", at)
        plan = self._planner().plan(statement.query, "STREAM", statement.name)
        mine, theirs = (*plan.keys, *plan.values), target.columns
        if plan.window is not None and target.window is None:
            text.fail("the query is windowed, and the stream is not", at)
        names, wanted = ([name.lower() for name, _ in columns] for columns in (mine, theirs))
        fits = names == wanted and all(_widens(a, b) for (_, a), (_, b) in zip(mine, theirs, strict=True))
        if not fits or len(plan.keys) != len(target.keys):
            text.fail(
                f"the query has the columns ({_shown(mine)}), and {target.name} ({_shown(theirs)}); they must have the "
                "same names, types and order; write CAST(... AS type)",
                at,
            )
        # The names and types are those of the target.
        cells = zip(plan.before.columns, theirs, strict=True)
        before = tuple(
            (name, text if type_ == to else f"CAST({text} AS {to.duckdb})", to)
            for (_, text, type_), (name, to) in cells
        )
        plan = attrs.evolve(plan, before=attrs.evolve(plan.before, columns=before))
        self._found.queries.append(WrittenQuery(f"INSERT_{len(self._found.queries)}_{statement.name}", target, plan))

    def _insert_values(self, statement: tree.Insert) -> None:
        text, at, target = self._text, statement.at, self._target(statement)
        types = {name.lower(): (name, type_) for name, type_ in (*target.columns, ("ROWTIME", BIGINT))}
        names = statement.columns or tuple(name for name, _ in target.columns)
        for name, _ in target.headers:
            if name in names:
                text.fail(f"column {name} is of headers, so no row has it; name the other columns", at)
        if len(names) != len(statement.values):
            text.fail(f"{len(names)} columns and {len(statement.values)} values", at)
        row: dict[str, Any] = {}
        for name, words in zip(names, statement.values, strict=True):
            if name.lower() not in types:
                text.fail(f"unknown column {name}{nearest(name, [each for each, _ in types.values()])}", at)
            declared, type_ = types[name.lower()]
            row[declared] = self._constant(words, declared, type_)
        self._found.inserts.setdefault(target.name, []).append(row)

    def _constant(self, words: tree.Words, name: str, type_: SqlType) -> Any:
        """Return the value of an expression without columns."""
        import pyarrow as pa

        if len(words) == 1 and words[0].upper == "NULL":
            return None
        scope = NameScope(self._text, (), self._values)
        resolved = scope.resolved(words)
        step = SqlStep((("value", sql(resolved), scope.type_of(resolved)),), values=self._values)
        table, bad = step.run(pa.table({"row": [1]}))
        reason = bad[0][1] if bad else None
        if reason is None:
            cells, wrong = column(table.column("value").combine_chunks(), type_)
            if not wrong:
                return cells[0].as_py()
            reason = wrong[0]
        return self._text.fail(f"column {name}: {reason}", words[0].at)

    def _drop(self, statement: tree.Drop) -> None:
        source = self._catalog.get(statement.name)
        if statement.kind == "TYPE" or (source is None and statement.if_exists):
            return
        source = self._catalog.find(self._text, statement.name, statement.at)
        if source.kind != statement.kind:
            self._text.fail(f"{source.name} is a {source.kind}", statement.at)
        if statement.deletes_topic and source.is_read_only:
            self._text.fail(f"the topic of {source.name}, a SOURCE, is read only", statement.at)
        others = [each for each in self._found.queries if each.target.name != source.name]
        readers = [each.target.name for each in others if source in each.plan.relation.sources]
        if readers:
            self._text.fail(f"{source.name} is read by {', '.join(readers)}; drop that first", statement.at)
        self._catalog.drop(statement.name)
        self._found.queries = others


def _shown(columns: Columns) -> str:
    return ", ".join(f"{name} {type_}" for name, type_ in columns)


def _widens(type_: SqlType, to: SqlType) -> bool:
    """Return whether a type is another one, or becomes it without a CAST: INT to BIGINT to DECIMAL to DOUBLE."""
    digits = {"INT": 10, "BIGINT": 19, "DECIMAL": type_.precision - type_.scale}.get(type_.base)
    if type_ == to or digits is None:
        return type_ == to
    if to.base == "DECIMAL":
        return type_.scale <= to.scale and digits <= to.precision - to.scale
    return to == DOUBLE or (to == BIGINT and type_.base == "INT")

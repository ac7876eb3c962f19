"""Checks the statements of a script, in order, and returns what they define: sources, queries and answers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import pyarrow as pa

from keyed.base.arguments import nearest
from keyed.errors import DefinitionError
from keyed.expressions.engine import Columns, SqlStep, functions
from keyed.expressions.tokens import Text, sql
from keyed.formats.record_formats import RecordPart
from keyed.formats.registry_schemas import RegistrySchemas
from keyed.formats.sql_types import BIGINT, BYTES, DOUBLE, STRING, SqlType, array, struct
from keyed.sql import statements as tree
from keyed.sql.catalog import Catalog, SqlSource
from keyed.sql.name_scope import OWN_NAMES, RESERVED, NameScope
from keyed.sql.planner import Planner, QueryPlan
from keyed.sql.script_inputs import LATEST, NO_TIME
from keyed.sql.sql_aggregates import AGGREGATES
from keyed.sql.topic_options import RULES, TopicOptions, check_options
from keyed.vectorized import TIMESTAMP_COLUMN

_PROTOBUF = ("PROTOBUF", "PROTOBUF_NOSR")
_WITH_SCHEMA = ("AVRO", "JSON_SR", *_PROTOBUF)
FORMATS = ("AVRO", "DELIMITED", "JSON", "JSON_SR", "KAFKA", "NONE", *_PROTOBUF)
_PARTS = ("KEY", "VALUE")
#: Options of keys and of values, by their names after KEY_ and VALUE_, with the formats that they are for.
_OF_FORMATS = {
    "FORMAT": ("any format", FORMATS),
    "SCHEMA_ID": ("formats with a schema", _WITH_SCHEMA),
    "SCHEMA_FULL_NAME": ("formats with a schema", _WITH_SCHEMA),
    "AVRO_SCHEMA_FULL_NAME": ("formats with a schema", _WITH_SCHEMA),
    "PROTOBUF_NULLABLE_REPRESENTATION": ("the formats PROTOBUF", _PROTOBUF),
    "DELIMITER": ("the format DELIMITED", ("DELIMITED",)),
}
_SCHEMA_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*\.)*[A-Za-z_][A-Za-z0-9_]*")
_OPTIONS = {f"{part}_{name}" for name in _OF_FORMATS for part in _PARTS} | {*RULES}
_OPTIONS |= {"KAFKA_TOPIC", "FORMAT", "TIMESTAMP", "TIMESTAMP_FORMAT", "WRAP_SINGLE_VALUE", "WINDOW_TYPE"}
_RESET = "auto.offset.reset"
_WINDOWS = ("TUMBLING", "HOPPING", "SESSION")
#: Formats in which a value of one column is always written in the same way.
_FIXED_WRAP = {*_PROTOBUF, "DELIMITED", "KAFKA", "NONE"}


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
        values: The values of parameters.
        properties: The settings of ``SET``.
        schemas: The schemas of topics.
        functions: The functions that ``FROM`` may call, by name.
        called: The names of those that queries call.
        catalog: The sources that exist after the statements so far.
        sources: All sources, also dropped ones.
        queries: The queries that write, in order.
        inserts: The rows of ``INSERT INTO … VALUES``, by the stream or table.
        answers: The answers to statements that ask, in order.
    """

    text: Text
    values: Mapping[str, Any]
    properties: dict[str, str]
    schemas: RegistrySchemas
    functions: Mapping[str, Any]
    called: set[str] = attrs.field(factory=set)
    catalog: Catalog = attrs.field(factory=Catalog)
    sources: Catalog = attrs.field(factory=Catalog)
    queries: list[WrittenQuery] = attrs.field(factory=list)
    inserts: dict[str, list[dict[str, Any]]] = attrs.field(factory=dict)
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
        sources = {each.name: each for query in self.queries for each in query.plan.relation.sources}
        return sorted(sources.values(), key=lambda each: (not each.is_table, each.name))

    def named(self, name: str) -> SqlSource:
        """Return the source of a name that is given outside of the script.

        Raises:
            DefinitionError: There is none.
        """
        source = self.sources.get(name)
        if source is None:
            known = nearest(name, [each.name for each in self.sources.sources])
            reason = f"the script declares no stream or table of that name{known}"
            raise DefinitionError(f"streams={{{name!r}: ...}}: {reason}")
        return source

    def define(self, statements: list[tree.Statement]) -> Definitions:
        """Check statements, and add what they define.

        Raises:
            SqlError: A statement is not valid.
            DefinitionError: A setting is wrong, a schema is not readable or of no topic, or no query calls a function.
        """
        for name, value in self.properties.items():
            if (wrong := _wrong_setting(name, value)) is not None:
                raise DefinitionError(f"properties: {wrong}")
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
                    self.properties.pop(statement.name, None)
                case tree.SetOption():
                    value = str(statement.value)
                    if (wrong := _wrong_setting(statement.name, value)) is not None:
                        self.text.fail(wrong, statement.at)
                    self.properties[statement.name] = value
                case tree.Show():
                    self.answers.append(self._answer(statement))
                case tree.SelectQuery():
                    self.text.fail(
                        "a script has no SELECT alone: write CREATE STREAM or CREATE TABLE name AS SELECT, and query "
                        "the tables when it runs, by keyed.sql.subscribe or by tables.sql",
                        statement.at,
                    )
        for name in self.functions.keys() - self.called:
            raise DefinitionError(
                f"functions={{{name!r}: ...}}: no query calls it{nearest(name, self.called)}; write FROM {name}(stream "
                "PARTITION BY column)"
            )
        self.schemas.check_topics({each.topic for each in self.sources.sources})
        return self

    # Statements that ask.

    def _answer(self, statement: tree.Show) -> Answer:
        """Return the answer to a statement."""
        what, rows = statement.what, list[dict[str, Any]]()
        match what:
            case "STREAMS" | "TABLES":
                for source in self.catalog.sources:
                    key, value = (part.format for part in source.parts)
                    row: dict[str, Any] = {"name": source.name, "topic": source.topic}
                    row |= {"key_format": key, "value_format": value, "window": source.window}
                    row["is_written_by_a_query"] = source.is_query
                    rows += [row] * (what == f"{source.kind}S")
            case "QUERIES":
                for each in self.queries:
                    reads = ", ".join(source.name for source in each.plan.relation.sources)
                    rows.append({"name": each.name, "writes": each.target.name, "reads": reads})
            case "FUNCTIONS":
                names = sorted({*functions(), *AGGREGATES})
                rows = [{"name": name, "is_aggregate": name in AGGREGATES} for name in names]
            case "TYPES":
                rows = [{"name": name, "type": str(type_)} for name, type_ in sorted(statement.types.items())]
            case "DESCRIBE":
                source = self.catalog.find(self.text, statement.name, statement.at)
                roles = {name: "PRIMARY KEY" if source.is_table else "KEY" for name, _ in source.keys}
                for name, type_ in source.columns:
                    rows.append({"column": name, "type": str(type_), "role": roles.get(name, "")})
                return Answer(f"DESCRIBE {source.name}", rows)
            case _:
                rows = [step for plan in self._explained(statement) for step in plan.steps()]
                return Answer(f"EXPLAIN {statement.name or 'SELECT'}", rows)
        return Answer(f"SHOW {what}", rows)

    def _explained(self, statement: tree.Show) -> list[QueryPlan]:
        if statement.query is not None:
            return [self._planner().plan(statement.query, None, "query")]
        name, names = statement.name.lower(), {n for q in self.queries for n in (q.name, q.target.name)}
        plans = [each.plan for each in self.queries if name in (each.name.lower(), each.target.name.lower())]
        if not plans:
            self.text.fail(f"no query writes {statement.name}{nearest(statement.name, names)}", statement.at)
        return plans

    def _planner(self) -> Planner:
        return Planner(self.text, self.catalog, self.values, self.properties, self.functions, self.called)

    # Sources.

    def _check_format(self, statement: tree.Create, part: str, format_: str) -> None:
        """Check the options that are for some formats only."""
        options = statement.options
        is_declared = any(not each.is_header and each.is_key == (part == "KEY") for each in statement.elements)
        for end, (what, of) in _OF_FORMATS.items():
            if (name := f"{part}_{end}") in options:
                at, is_empty = options.places[name], not str(options[name]).strip() and end != "DELIMITER"
                twice = f"{name} names the columns, and so does the list; remove one of them"
                is_name = not end.endswith("FULL_NAME") or _SCHEMA_NAME.fullmatch(str(options[name])) is not None
                self.text.check(
                    (format_ not in of, f"{name} is for {what}, and {part}_FORMAT is {format_}", at),
                    (end == "SCHEMA_ID" and is_declared, twice, at),
                    (is_empty, f"{name} is empty", at),
                    (not is_name, f"{name}={options[name]!r} is not a name of letters, digits, _ and dots", at),
                )

    def _schema_name(self, options: tree.WithOptions, part: str) -> str | None:
        """Return the full name of the schema of keys or values. ksqlDB prefers the earlier name of the option."""
        name: str | None = options.get(f"{part}_AVRO_SCHEMA_FULL_NAME", options.get(f"{part}_SCHEMA_FULL_NAME"))
        return name

    def _formats(self, statement: tree.Create, key: str | None, value: str | None) -> list[str]:
        """Return the formats of keys and values, and check the options that depend on them."""
        options, at = statement.options, statement.at
        if "FORMAT" in options and ("KEY_FORMAT" in options or "VALUE_FORMAT" in options):
            self.text.fail("give FORMAT, or KEY_FORMAT and VALUE_FORMAT", at)
        formats = []
        for part, default, own in (("KEY", key, "KAFKA"), ("VALUE", value, None)):
            format_name = options.get(f"{part}_FORMAT", options.get("FORMAT", default))
            format_name = format_name or self.properties.get(f"ksql.persistence.default.format.{part.lower()}", own)
            if format_name is None:
                self.text.fail("VALUE_FORMAT is missing: WITH (VALUE_FORMAT = 'JSON')", at)
            formats.append(str(format_name).upper())
            if formats[-1] not in FORMATS:
                self.text.fail(f"unknown format {format_name}{nearest(str(format_name), FORMATS)}", at)
        for part, format_ in zip(_PARTS, formats, strict=True):
            self._check_format(statement, part, format_)
        return formats

    def _wraps(self, options: tree.WithOptions, value_format: str, values: Columns, at: int) -> bool:
        """Return whether values are objects."""
        is_fixed, option = value_format in _FIXED_WRAP, options.get("WRAP_SINGLE_VALUE")
        if option is None:
            default = self.properties.get("ksql.persistence.wrap.single.values", "true")
            return is_fixed or len(values) != 1 or default != "false"
        wraps = str(option).lower() == "true"
        is_other = is_fixed and wraps != (value_format in _PROTOBUF)
        self.text.check(
            (len(values) != 1, "WRAP_SINGLE_VALUE is for values of one column", at),
            (is_other, f"format {value_format} does not support WRAP_SINGLE_VALUE", at),
        )
        return is_fixed or wraps

    def _create(self, statement: tree.Create) -> None:
        text, before = self.text, self.catalog.get(statement.name)
        for name, at in statement.options.places.items():
            if name not in _OPTIONS:
                text.fail(f"unknown option {name}{nearest(name, _OPTIONS)}", at)
        check_options(text, statement.options)
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
        text, options, at = self.text, statement.options, statement.at
        formats = self._formats(statement, None, None)
        elements = self._elements(statement, formats)
        self._check_elements(statement, [*itertools.chain(*elements)])
        keys, *others = (tuple((each.name, each.type) for each in part) for part in elements)
        if statement.kind == "TABLE" and not keys:
            text.fail("a table needs a PRIMARY KEY: CREATE TABLE name (id INT PRIMARY KEY, ...)", at)
        for name, type_ in keys:
            if type_.has("MAP") or (statement.kind == "TABLE" and type_.has_parts):
                text.fail(f"a key of type {type_}, of column {name}, is not supported; give each part a column", at)
        window, size_ms = options.get("WINDOW_TYPE"), options.get("WINDOW_SIZE")
        kind = None if window is None else str(window).upper()
        of_key = f"WINDOW_TYPE={window!r} must be 'TUMBLING', 'HOPPING' or 'SESSION', of a source with a key"
        is_sized = (size_ms is None) == (kind == "SESSION")
        text.check(
            (kind is not None and (kind not in _WINDOWS or not keys), of_key, at),
            (kind is not None and not is_sized, "WINDOW_SIZE is for the window types TUMBLING and HOPPING", at),
        )
        self._add(statement, keys, sum(others, ()), formats, (kind, size_ms))

    def _check_elements(self, statement: tree.Create, elements: Sequence[tree.Element]) -> None:
        """Check the columns of a statement: their names, roles and types of headers."""
        text, topic = self.text, self._topic(statement)
        if not elements:
            text.fail(
                "the columns are missing: CREATE STREAM name (column TYPE, ...), or give the schema of the topic, "
                f"schemas={{{topic!r}: {{'value': ...}}}}",
                statement.at,
            )
        role, no_role = {
            "STREAM": ("primary", "a column of a stream is KEY, not PRIMARY KEY"),
            "TABLE": ("key", "the key of a table is PRIMARY KEY, not KEY"),
        }[statement.kind]
        names: set[str] = set()
        headers: list[str | None] = []
        for each in elements:
            name, of, at = each.name, each.header, each.at
            type_ = BYTES if each.role == "header" else array(struct(("KEY", STRING), ("VALUE", BYTES)))
            is_type, no_type = str(each.type).upper() == str(type_), f"a column with {each.role.upper()} is of type"
            twice = f"column {name} is declared twice: names that differ only in case are one"
            several = "there is one column with HEADERS, or columns with HEADER('name')"
            text.check(
                (name.lower() in names, twice, at),
                (name.startswith(RESERVED), f"{name}: names that begin with __keyed_ or # are reserved", at),
                (name.upper() in OWN_NAMES, f"{name} is a column that each source has; choose another name", at),
                (each.role == role, no_role, at),
                (each.is_header and not is_type, f"{no_type} {type_}, not {each.type}", at),
                (each.is_header and headers and None in (of, *headers), several, at),
                (each.is_header and of in headers, f"two columns have the header {of!r}", at),
            )
            names.add(name.lower())
            headers += [of] * each.is_header

    def _topic(self, statement: tree.Create) -> str:
        prefix = "" if statement.query is None else self.properties.get("ksql.output.topic.name.prefix", "")
        return str(statement.options.get("KAFKA_TOPIC", prefix + statement.name))

    def _elements(self, statement: tree.Create, formats: Sequence[str]) -> tuple[list[tree.Element], ...]:
        """Return the columns of keys, values and headers: of the topic's schemas, where none are declared."""
        options, topic, (key_format, value_format) = statement.options, self._topic(statement), formats
        elements: tuple[list[tree.Element], ...] = ([], [], [])
        for each in statement.elements:
            elements[2 if each.is_header else not each.is_key].append(each)
        role = "primary" if statement.kind == "TABLE" else "key"
        wraps = str(options.get("WRAP_SINGLE_VALUE", True)).lower() != "false"
        # In Protobuf every key is a message, and its fields are the columns.
        parts = [("key", "ROWKEY", role, key_format, key_format in _PROTOBUF)]
        parts.append(("value", "ROWVAL", "value", value_format, wraps))
        for own, (part, single, role, format_, is_split) in zip(elements, parts, strict=False):
            if not own and format_ in _WITH_SCHEMA and self.schemas.has(topic, part):
                type_ = self.schemas.type(topic, part, format_, self._schema_name(options, part.upper()))
                fields = type_.fields if is_split and type_.base == "STRUCT" else ((single, type_),)
                own += [tree.Element(name, of, role, at=statement.at) for name, of in fields]
        return elements

    def _add(
        self,
        statement: tree.Create,
        keys: Columns,
        values: Columns,
        formats: Sequence[str],
        window: Any,
        *read: SqlSource,
    ) -> SqlSource:
        """Add a source to the catalog, whose query reads others."""
        options, at = statement.options, statement.at
        headers = tuple((each.name, each.header) for each in statement.elements if each.is_header)
        stored = tuple(each for each in values if each[0] not in dict(headers))
        topic, wraps_key = self._topic(statement), len(keys) > 1 or formats[0] in _PROTOBUF
        of_parts = ((keys, wraps_key), (stored, self._wraps(options, formats[1], stored, at)))
        parts = []
        for place, (name, format_, (columns, wraps)) in enumerate(zip(_PARTS, formats, of_parts, strict=True)):
            before = [each.parts[place] for each in read[:1]]
            default = next((each.delimiter for each in before if each.format == format_), ",")
            delimiter = options.get(f"{name}_DELIMITER", default)
            null = options.get(f"{name}_PROTOBUF_NULLABLE_REPRESENTATION")
            of_schema = self._schema_name(options, name)
            part = RecordPart(format_, columns, name == "KEY", topic, statement.name, wraps, delimiter, null, of_schema)
            if part.misfit is not None:
                self.text.fail(part.misfit, at)
            parts.append(part)
        timestamp = self._timestamp(options, (*keys, *values), at)
        is_query = statement.query is not None
        kind, size_ms = window or (None, None)
        source = SqlSource(
            statement.name,
            statement.kind,
            keys,
            values,
            topic,
            tuple(parts),
            kind,
            size_ms,
            timestamp,
            headers,
            statement.read_only,
            re.search(r"ROW(PARTITION|OFFSET)", self.text.text, re.IGNORECASE) is not None,
            is_query=is_query,
            is_retimed=is_query and (timestamp is not None or any(each.is_retimed for each in read)),
            topic_options=TopicOptions.of(options),
        )
        self.catalog.add(source)
        self.sources.add(source)
        return source

    def _timestamp(self, options: tree.WithOptions, columns: Columns, at: int) -> tuple[str, str | None] | None:
        """Return the name of the column with the time, and the pattern of its text."""
        option, pattern = options.get("TIMESTAMP"), options.get("TIMESTAMP_FORMAT")
        if option is None:
            if pattern is not None:
                self.text.fail("TIMESTAMP_FORMAT needs TIMESTAMP, the name of the column", at)
            return None
        option, types = str(option), dict(columns)
        bare = (option[1:-1] if option[:1] in '`"' else option).lower()
        name = next((each for each in types if each.lower() == bare), None)
        if name is None:
            self.text.fail(f"TIMESTAMP: unknown column {option}{nearest(option, types)}", at)
        type_ = types[name]
        has_pattern, where = pattern is not None, f"TIMESTAMP: column {name} is"
        no_pattern = f"TIMESTAMP_FORMAT={pattern!r} has no % of a pattern such as '%Y-%m-%d %H:%M:%S'"
        no_time = f"{where} of type {type_}; it must be BIGINT, TIMESTAMP or STRING"
        self.text.check(
            (type_ == STRING and not has_pattern, f"{where} a STRING, so TIMESTAMP_FORMAT is needed", at),
            (type_.base not in ("STRING", "BIGINT", "TIMESTAMP"), no_time, at),
            (has_pattern and "%" not in str(pattern), no_pattern, at),
            (has_pattern and type_ != STRING, "TIMESTAMP_FORMAT is for a column of type STRING", at),
        )
        return name, pattern

    # Queries.

    def _create_as(self, statement: tree.Create, query: tree.SelectQuery) -> None:
        text, options, at = self.text, statement.options, statement.at
        if "WINDOW_TYPE" in options or "WINDOW_SIZE" in options:
            text.fail("the windows of an output are those of its query", at)
        plan = self._planner().plan(query, statement.kind, statement.name)
        if statement.replace:
            self._replace(statement, plan)
        key, value = plan.relation.sources[0].parts
        key_default = "" if key.format == "NONE" and plan.keys else key.format
        value_default = "" if value.format == "NONE" and plan.values else value.format
        key_format, value_format = self._formats(statement, key_default, value_default)
        if not plan.keys and "KEY_FORMAT" in options and key_format != "NONE":
            text.fail("KEY_FORMAT is for a key, and the output has none", options.places["KEY_FORMAT"])
        if not plan.keys and "FORMAT" not in options:
            key_format = "NONE"
        if not plan.values and value_format != "NONE":
            text.fail("the projection has no columns beside the key; write AS_VALUE(...) for a copy of it", query.at)
        if not plan.keys and plan.is_table:
            text.fail("a table needs a key", at)
        formats = (key_format, value_format)
        source = self._add(statement, plan.keys, plan.values, formats, plan.window, *plan.relation.sources)
        self.queries.append(WrittenQuery(statement.name, source, self._timed(plan, source, options)))

    def _timed(self, plan: QueryPlan, target: SqlSource, options: tree.WithOptions) -> QueryPlan:
        """Return a plan whose rows have the times of a column of what they are written to."""
        if target.timestamp is None:
            return plan
        (name, pattern), at = target.timestamp, options.places["TIMESTAMP"]
        if plan.grouping is not None or plan.ranking is not None:
            self.text.fail("the rows of aggregates and ranks have the times of the rows that are in them", at)
        if self.is_strict:
            self.text.fail("with 'ksql.timestamp.throw.on.invalid' TIMESTAMP is where the rows are declared", at)
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
        before = self.catalog.get(statement.name)
        if before is None:
            return
        for name, type_ in before.columns:
            if (name, type_) not in (*plan.keys, *plan.values):
                self.text.fail(f"CREATE OR REPLACE can add columns, but column {name} {type_} is gone", statement.at)
        if before.keys != plan.keys:
            self.text.fail("CREATE OR REPLACE cannot change the key", statement.at)
        self.queries = [each for each in self.queries if each.name.lower() != statement.name.lower()]

    def _target(self, statement: tree.Insert) -> SqlSource:
        """Return what a statement inserts into."""
        target = self.catalog.find(self.text, statement.name, statement.at)
        if target.is_read_only:
            self.text.fail(f"{target.name} is a SOURCE {target.kind.lower()}, which is read only", statement.at)
        return target

    def _insert_select(self, statement: tree.Insert) -> None:
        text, at, target = self.text, statement.at, self._target(statement)
        assert statement.query is not None
        times = f"{target.name} has the times of its column {(target.timestamp or ' ')[0]}; create a stream without"
        text.check(
            (target.is_table, "INSERT INTO ... SELECT is for streams", at),
            (target.headers, "a stream with columns for headers takes no rows", at),
            (target.timestamp is not None, times, at),
        )
        plan = self._planner().plan(statement.query, "STREAM", statement.name)
        mine, theirs = (*plan.keys, *plan.values), target.columns
        if plan.window is not None and target.window is None:
            text.fail("the query is windowed, and the stream is not", at)
        names, expected = ([name.lower() for name, _ in columns] for columns in (mine, theirs))
        fits = names == expected and all(_widens(a, b) for (_, a), (_, b) in zip(mine, theirs, strict=True))
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
        self.queries.append(WrittenQuery(f"INSERT_{len(self.queries)}_{statement.name}", target, plan))

    def _insert_values(self, statement: tree.Insert) -> None:
        text, at, target = self.text, statement.at, self._target(statement)
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
        self.inserts.setdefault(target.name, []).append(row)

    def _constant(self, words: tree.Words, name: str, type_: SqlType) -> Any:
        """Return the value of an expression without columns."""
        if len(words) == 1 and words[0].upper == "NULL":
            return None
        scope = NameScope(self.text, (), self.values)
        resolved = scope.resolved(words)
        scope.type_of(resolved)
        step = SqlStep((("value", sql(resolved), type_),), values=self.values)
        table, bad = step.run(pa.table({"row": [1]}))
        if bad:
            self.text.fail(f"column {name}: {bad[0][1].removeprefix('value: ')}", words[0].at)
        return table.column("value")[0].as_py()

    def _drop(self, statement: tree.Drop) -> None:
        source = self.catalog.get(statement.name)
        if statement.kind == "TYPE" or (source is None and statement.if_exists):
            return
        source = self.catalog.find(self.text, statement.name, statement.at)
        if source.kind != statement.kind:
            self.text.fail(f"{source.name} is a {source.kind}", statement.at)
        if statement.deletes_topic and source.is_read_only:
            self.text.fail(f"the topic of {source.name}, a SOURCE, is read only", statement.at)
        others = [each for each in self.queries if each.target.name != source.name]
        readers = [each.target.name for each in others if source in each.plan.relation.sources]
        if readers:
            self.text.fail(f"{source.name} is read by {', '.join(readers)}; drop that first", statement.at)
        self.catalog.drop(statement.name)
        self.queries = others


def _wrong_setting(name: str, value: str) -> str | None:
    """Return what is wrong with a setting."""
    if name == _RESET and value.lower() not in ("earliest", "latest"):
        return f"{name!r}={value!r} must be 'earliest' or 'latest'"
    return None


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

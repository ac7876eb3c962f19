"""Statements and clauses of a script, which are ksqlDB's. Expressions stay words: DuckDB reads them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeAlias

import attrs

from keyed.formats.sql_types import NAMED, SqlType, array, decimal, map_of, struct
from keyed.shown import nearest
from keyed.sql.parameters import Parameters
from keyed.sql.script_errors import Text
from keyed.sql.tokens import SqlToken, closing, split, tokens

#: Units of time in milliseconds.
UNITS = {
    "MILLISECOND": 1,
    "SECOND": 1000,
    "MINUTE": 60_000,
    "HOUR": 3_600_000,
    "DAY": 86_400_000,
    "WEEK": 7 * 86_400_000,
    "MONTH": 30 * 86_400_000,
    "YEAR": 365 * 86_400_000,
}
#: The longest time that a clause takes: sums of two stay timestamps.
_LONGEST = 2**60
Words: TypeAlias = tuple[SqlToken, ...]
_at = attrs.field(default=0, eq=False, repr=False, kw_only=True)


@attrs.frozen
class Item:
    """A column of a projection: its expression, and its alias if it has one. ``*`` is an item too."""

    words: Words
    alias: str | None
    at: int = _at


@attrs.frozen
class WindowClause:
    """A window clause; durations are milliseconds."""

    kind: str
    size_ms: int
    advance_ms: int
    retention_ms: int | None = None
    grace_ms: int | None = None
    at: int = _at


@attrs.frozen
class From:
    """A stream or table by name, with its alias; of a window function also its windows, and the column of the time."""

    name: str
    alias: str
    window: WindowClause | None = None
    time: str | None = None
    at: int = _at


@attrs.frozen
class Join:
    """A join with one more source; ``within`` is before, after and grace in milliseconds."""

    kind: str
    right: From
    on: Words
    within: tuple[int, int, int | None] | None = None
    at: int = _at


@attrs.frozen
class SelectQuery:
    """A ``SELECT``."""

    items: tuple[Item, ...]
    source: From
    joins: tuple[Join, ...] = ()
    window: WindowClause | None = None
    where: Words | None = None
    group_by: tuple[Words, ...] = ()
    partition_by: tuple[Words, ...] = ()
    having: Words | None = None
    emit: str | None = None
    limit: int | None = None
    at: int = _at


@attrs.frozen
class Element:
    """A declared column: its ``role`` is ``key``, ``primary``, ``value``, ``headers`` or ``header``."""

    name: str
    type: SqlType
    role: str = "value"
    header: str | None = None
    at: int = _at


@attrs.frozen
class Option:
    """The value of an option of ``WITH``."""

    value: Any
    at: int = _at


@attrs.frozen
class CreateSource:
    """``CREATE STREAM`` or ``TABLE`` with columns."""

    kind: str
    name: str
    elements: tuple[Element, ...]
    options: dict[str, Option]
    replace: bool = False
    only_if_missing: bool = False
    read_only: bool = False
    at: int = _at


@attrs.frozen
class CreateAs:
    """``CREATE STREAM`` or ``TABLE`` ``AS SELECT``."""

    kind: str
    name: str
    options: dict[str, Option]
    query: SelectQuery
    replace: bool = False
    only_if_missing: bool = False
    at: int = _at


@attrs.frozen
class InsertSelect:
    """``INSERT INTO stream SELECT``."""

    name: str
    query: SelectQuery
    at: int = _at


@attrs.frozen
class InsertValues:
    """``INSERT INTO source [(columns)] VALUES (…)``."""

    name: str
    columns: tuple[str, ...]
    values: tuple[Words, ...]
    at: int = _at


@attrs.frozen
class Drop:
    """``DROP STREAM``, ``TABLE`` or ``TYPE``."""

    kind: str
    name: str
    if_exists: bool = False
    deletes_topic: bool = False
    at: int = _at


@attrs.frozen
class SetOption:
    """``SET 'name' = 'value'``; ``UNSET`` has no value."""

    name: str
    value: str | None
    at: int = _at


@attrs.frozen
class Show:
    """``SHOW STREAMS | TABLES | TYPES | FUNCTIONS | QUERIES``, ``DESCRIBE name``, ``EXPLAIN name or query``."""

    what: str
    name: str | None = None
    query: SelectQuery | None = None
    types: dict[str, SqlType] = attrs.field(factory=dict)
    at: int = _at


Statement: TypeAlias = CreateSource | CreateAs | InsertSelect | InsertValues | Drop | SetOption | Show | SelectQuery
_STATEMENTS = ("CREATE", "INSERT", "DROP", "SET", "UNSET", "SHOW", "LIST", "DESCRIBE", "EXPLAIN", "SELECT")
#: Words that end an expression outside of brackets, unless they belong to it (``IS DISTINCT FROM``).
_CLAUSES = frozenset(
    [
        "FROM",
        "WHERE",
        "GROUP",
        "PARTITION",
        "HAVING",
        "EMIT",
        "WINDOW",
        "LIMIT",
        "JOIN",
        "INNER",
        "LEFT",
        "RIGHT",
        "FULL",
        "CROSS",
        "ON",
        "WITHIN",
        "UNION",
        "ORDER",
        "QUALIFY",
        "EXCEPT",
        "INTERSECT",
        "OFFSET",
    ]
)
#: Words that are no names without quotes.
RESERVED = _CLAUSES | frozenset(
    [
        "SELECT",
        "AS",
        "BY",
        "AND",
        "OR",
        "NOT",
        "IN",
        "BETWEEN",
        "LIKE",
        "IS",
        "NULL",
        "TRUE",
        "FALSE",
        "CASE",
        "WHEN",
        "THEN",
        "ELSE",
        "END",
        "OUTER",
        "WITH",
        "INSERT",
        "INTO",
        "CREATE",
        "DESCRIBE",
        "DROP",
        "VALUES",
        "CAST",
    ]
)
#: Words after which an expression goes on, so that the name after them is no alias.
_GOES_ON = frozenset(
    [
        "AND",
        "OR",
        "NOT",
        "IN",
        "BETWEEN",
        "LIKE",
        "ILIKE",
        "SIMILAR",
        "TO",
        "GLOB",
        "IS",
        "CASE",
        "WHEN",
        "THEN",
        "ELSE",
        "AS",
        "DISTINCT",
        "FROM",
        "ESCAPE",
        "INTERVAL",
        "AT",
        "TIME",
        "COLLATE",
        "LAMBDA",
        "DATE",
        "TIMESTAMP",
        "BY",
    ]
)
_ENDS = frozenset(["NULL", "TRUE", "FALSE", "END"])
#: Clauses of other engines, with the statement that does the same here.
_REFUSED = {
    "UNION": "UNION is not supported; write an INSERT INTO for each query: INSERT INTO target SELECT ...",
    "EXCEPT": "EXCEPT is not supported; join the streams, or filter with WHERE",
    "INTERSECT": "INTERSECT is not supported; join the streams WITHIN a time",
    "ORDER": "ORDER BY is not supported: a stream has no end; query the table: tables.sql('SELECT ... ORDER BY ...')",
    "OFFSET": "OFFSET is not supported; query the table with tables.sql",
    "CROSS": "CROSS JOIN is not supported; write JOIN ... WITHIN ... ON left_column = right_column",
}


def parse(script: str, parameters: Parameters) -> tuple[Text, list[Statement]]:
    """Return the statements of a script.

    Raises:
        SqlError: A syntax error, or a parameter without a value.
    """
    text = Text(script)
    return text, Parser(text, parameters.bound(text, tokens(text))).statements()


def parse_type(type_: str) -> SqlType:
    """Return the type that a text names.

    Raises:
        SqlError: It names none.
    """
    text = Text(type_)
    return Parser(text, tokens(text)).single_type()


#: The window functions: the kind of their windows, the number of their durations, and their arguments.
_WINDOW_FUNCTIONS = {
    "TUMBLE": ("TUMBLING", 1, "stream, time, INTERVAL '10' MINUTE"),
    "HOP": ("HOPPING", 2, "stream, time, INTERVAL '5' MINUTE, INTERVAL '10' MINUTE"),
    "SESSION": ("SESSION", 1, "stream, time, INTERVAL '10' MINUTE"),
}
#: The times that a window function gives its rows, in milliseconds of their window.
_BOUNDS = {"window_start": "WINDOWSTART", "window_end": "WINDOWEND", "window_time": "WINDOWEND - 1"}


def _bounded(words: Words, source: From) -> Words:
    """Return words with the times of a window function's rows as timestamps of the bounds that windows have here."""
    found: list[SqlToken] = []
    # A session ends here with its last row, and in Flink a gap later.
    gap = source.window.size_ms if source.window is not None and source.window.kind == "SESSION" else 0
    for place, token in enumerate(words):
        after = words[place + 1].text if place + 1 < len(words) else ""
        if not token.is_identifier or token.identifier.lower() not in _BOUNDS or after == "(":
            found.append(token)
            continue
        if len(found) > 1 and found[-1].text == "." and found[-2].identifier.lower() == source.alias.lower():
            del found[-2:]
        bound = _BOUNDS[token.identifier.lower()]
        text = f"epoch_ms({bound}{f' + {gap}' if gap and bound != 'WINDOWSTART' else ''})"
        found += [attrs.evolve(each, at=token.at, end=token.end) for each in tokens(Text(text)) if each.kind != "end"]
    return tuple(found)


class Parser:
    """A recursive descent over the words of a script.

    Args:
        text: The script.
        words: Its words.
    """

    def __init__(self, text: Text, words: Sequence[SqlToken]) -> None:
        self._text = text
        self._words = list(words)
        self._next = 0
        #: The types of ``CREATE TYPE``.
        self._types: dict[str, SqlType] = {}

    # Words.

    @property
    def _token(self) -> SqlToken:
        return self._words[self._next]

    def _ahead(self, count: int = 1) -> SqlToken:
        return self._words[min(self._next + count, len(self._words) - 1)]

    def _take(self) -> SqlToken:
        token = self._token
        self._next = min(self._next + 1, len(self._words) - 1)
        return token

    def _at_words(self, *words: str) -> bool:
        return all(self._ahead(i).upper == each for i, each in enumerate(words))

    def _word(self, *words: str) -> bool:
        """Take words if they come next."""
        if not self._at_words(*words):
            return False
        self._next += len(words)
        return True

    def _at_sign(self, sign: str) -> bool:
        return self._token.kind == "sign" and self._token.text == sign

    def _sign(self, sign: str) -> bool:
        if not self._at_sign(sign):
            return False
        self._next += 1
        return True

    def _expect_word(self, *words: str) -> None:
        for each in words:
            if not self._word(each):
                self._unexpected(each)

    def _expect_sign(self, sign: str) -> None:
        if not self._sign(sign):
            self._unexpected(repr(sign))

    def _unexpected(self, wanted: str) -> NoReturn:
        token = self._token
        shown = "the end of the script" if token.kind == "end" else repr(self._text.text[token.at : token.end])
        self._text.fail(f"expected {wanted}, found {shown}", token.at)

    def _listed(self, item: Callable[[], Any], *, close: str | None = None) -> tuple[Any, ...]:
        found = [item()]
        while self._sign(","):
            found.append(item())
        if close is not None:
            self._expect_sign(close)
        return tuple(found)

    def _identifier(self, what: str = "a name") -> str:
        token = self._token
        if not token.is_identifier or token.upper in RESERVED:
            self._unexpected(what)
        return self._take().identifier

    def _string(self) -> str:
        if self._token.kind != "text":
            self._unexpected("a text in single quotes")
        return self._take().text[1:-1].replace("''", "'")

    def _integer(self) -> int:
        token = self._token
        if token.kind != "number" or not token.text.isdecimal():
            self._unexpected("a whole number")
        if len(token.text) > 19:
            self._text.fail("the number is larger than any time or count", token.at)
        return int(self._take().text)

    def _duration(self, *, least: int = 0) -> int:
        at = self._token.at
        count = self._integer()
        token = self._take()
        unit = token.upper.removesuffix("S")
        if unit not in UNITS:
            self._text.fail(f"unknown unit of time {token.text}; units are SECONDS, MINUTES, HOURS and so on", token.at)
        found = count * UNITS[unit]
        if not least <= found <= _LONGEST:
            self._text.fail(
                "the time is 0; give at least 1 MILLISECOND" if found < least else "the time is too long", at
            )
        return found

    def _expression(self, *ends: str) -> Words:
        """Take the words of an expression: up to a clause, a comma or the end, outside of brackets."""
        start = self._next
        cases = 0
        while (token := self._token).kind != "end":
            if token.kind == "sign":
                if token.text in ("(", "[", "{"):
                    self._next = closing(self._words, self._next)
                elif token.text in (",", ";", ")"):
                    break
            upper = token.upper
            cases += (upper == "CASE") - (upper == "END")
            is_end = upper in _CLAUSES or upper in ends
            if is_end and self._next > start and not self._belongs(upper):
                break
            self._next += 1
        if self._next == start:
            self._unexpected("an expression")
        return tuple(self._words[start : self._next])

    def _belongs(self, upper: str) -> bool:
        """Return whether a word of a clause belongs to the expression before it."""
        before = self._words[self._next - 1]
        if before.kind == "sign" and before.text == ".":
            return True
        if upper == "FROM":
            return before.upper == "DISTINCT" and self._words[self._next - 2].upper in ("IS", "NOT")
        # A call: LEFT('text', 1), RIGHT(...).
        return upper in ("LEFT", "RIGHT") and self._ahead().text == "("

    # Statements.

    def single_type(self) -> SqlType:
        """Return the type that the whole text names."""
        found = self._type()
        if self._token.kind != "end":
            self._unexpected("the end")
        return found

    def type_and_length(self) -> tuple[SqlType, int]:
        """Return the type that the first words name, and their number."""
        found = self._type()
        return found, self._next

    def statements(self) -> list[Statement]:
        """Return the statements of the text."""
        found: list[Statement] = []
        while self._token.kind != "end":
            if self._sign(";"):
                continue
            statement = self._statement()
            if statement is not None:
                found.append(statement)
            if self._token.kind != "end":
                self._expect_sign(";")
        return found

    def single_query(self) -> SelectQuery:
        """Return the one ``SELECT`` of the text."""
        found = self._select()
        self._sign(";")
        if self._token.kind != "end":
            self._unexpected("the end of the query")
        return found

    def _statement(self) -> Statement | None:
        at = self._token.at
        if self._word("CREATE"):
            return self._create(at)
        if self._at_words("SELECT"):
            return self._select()
        if self._word("INSERT", "INTO"):
            return self._insert(at)
        if self._word("DROP"):
            return self._drop(at)
        if self._word("SET"):
            name = self._string()
            self._expect_sign("=")
            return SetOption(name, self._string(), at=at)
        if self._word("UNSET"):
            return SetOption(self._string(), None, at=at)
        if self._word("SHOW") or self._word("LIST"):
            token = self._take()
            if token.upper not in ("STREAMS", "TABLES", "TYPES", "FUNCTIONS", "QUERIES"):
                self._text.fail("SHOW lists STREAMS, TABLES, TYPES, FUNCTIONS or QUERIES", token.at)
            self._word("EXTENDED")
            return Show(token.upper, types=dict(self._types), at=at)
        if self._word("DESCRIBE"):
            self._word("EXTENDED")
            name = self._identifier()
            self._word("EXTENDED")
            return Show("DESCRIBE", name, at=at)
        if self._word("EXPLAIN"):
            if self._at_words("SELECT"):
                return Show("EXPLAIN", query=self._select(), at=at)
            return Show("EXPLAIN", self._identifier(), at=at)
        if self._at_words("WITH"):
            self._text.fail("WITH ... AS is not supported; write CREATE STREAM name AS SELECT ... for each part", at)
        return self._unexpected(f"a statement{nearest(self._token.text, _STATEMENTS)}")

    def _create(self, at: int) -> Statement | None:
        replace = self._word("OR", "REPLACE")
        if self._word("TYPE"):
            self._word("IF", "NOT", "EXISTS")
            name = self._identifier()
            self._expect_word("AS")
            self._types[name.upper()] = self._type()
            return None
        read_only = self._word("SOURCE")
        kind = "TABLE" if self._word("TABLE") else "STREAM"
        if kind == "STREAM":
            self._expect_word("STREAM")
        only_if_missing = self._word("IF", "NOT", "EXISTS")
        name = self._identifier("the name of the stream or table")
        elements: tuple[Any, ...] = ()
        if self._sign("("):
            elements = () if self._sign(")") else self._listed(self._element, close=")")
        options = self._options()
        if self._word("AS"):
            if elements:
                self._text.fail("CREATE ... AS SELECT takes its columns from the query; remove the list", at)
            return CreateAs(kind, name, options, self._select(), replace, only_if_missing, at=at)
        return CreateSource(kind, name, elements, options, replace, only_if_missing, read_only, at=at)

    def _element(self) -> Element:
        at = self._token.at
        name = self._identifier("the name of a column")
        type_ = self._type()
        if self._word("PRIMARY", "KEY"):
            return Element(name, type_, "primary", at=at)
        if self._word("KEY"):
            return Element(name, type_, "key", at=at)
        if self._word("HEADERS"):
            return Element(name, type_, "headers", at=at)
        if self._word("HEADER"):
            self._expect_sign("(")
            header = self._string()
            self._expect_sign(")")
            return Element(name, type_, "header", header, at=at)
        return Element(name, type_, at=at)

    def _type(self) -> SqlType:
        token = self._token
        base = token.upper
        if not token.is_identifier:
            self._unexpected("a type")
        self._take()
        if base in ("DECIMAL", "NUMERIC"):
            self._expect_sign("(")
            precision, scale = self._integer(), 0
            if self._sign(","):
                scale = self._integer()
            self._expect_sign(")")
            if not 1 <= precision <= 38 or scale > precision:
                self._text.fail(
                    "DECIMAL(precision, scale) has 1 to 38 digits, and scale is at most precision", token.at
                )
            return decimal(precision, scale)
        if base == "ARRAY" and self._sign("<"):
            return self._closed(array(self._type()))
        if base == "MAP" and self._sign("<"):
            key = self._type()
            self._expect_sign(",")
            return self._closed(map_of(key, self._type()))
        if base == "STRUCT" and self._at_sign("<>"):
            self._take()
            return struct()
        if base == "STRUCT" and self._sign("<"):
            fields = self._listed(self._struct_field)
            folded = [name.lower() for name, _ in fields]
            for place, name in enumerate(folded):
                if name in folded[:place]:
                    self._text.fail(f"fields that differ only in case are one: {fields[place][0]}", token.at)
            return self._closed(struct(*fields))
        found = NAMED.get(base) or self._types.get(token.identifier.upper())
        if found is None:
            known = (*NAMED, "DECIMAL", "ARRAY", "MAP", "STRUCT", *self._types)
            self._text.fail(f"unknown type {token.text}{nearest(token.text, known)}", token.at)
        if base in ("VARCHAR", "STRING") and self._sign("("):
            if not self._word("STRING"):
                self._integer()
            self._expect_sign(")")
        return found

    def _struct_field(self) -> tuple[str, SqlType]:
        token = self._token
        if not token.is_identifier:
            self._unexpected("the name of a field")
        return self._take().identifier, self._type()

    def _closed(self, type_: SqlType) -> SqlType:
        """Take the ``>`` of a type; ``>>`` and ``>=`` have one too."""
        token = self._token
        if token.kind == "sign" and token.text.startswith(">"):
            if len(token.text) > 1:
                self._words[self._next] = SqlToken("sign", token.text[1:], token.at + 1, token.end)
            else:
                self._take()
            return type_
        return self._unexpected("'>'")

    def _options(self) -> dict[str, Option]:
        options: dict[str, Option] = {}
        if not self._word("WITH"):
            return options
        self._expect_sign("(")
        while not self._sign(")"):
            name = self._identifier("an option").upper()
            self._expect_sign("=")
            options[name] = self._literal(name)
            if not self._sign(","):
                self._expect_sign(")")
                break
        return options

    def _literal(self, name: str) -> Option:
        token = self._token
        if token.kind == "text":
            return Option(self._string(), at=token.at)
        if token.upper in ("TRUE", "FALSE"):
            return Option(self._take().upper == "TRUE", at=token.at)
        if token.kind == "sign" and token.text == "-":
            self._take()
            return Option(-self._integer(), at=token.at)
        if token.kind == "number":
            return Option(self._integer(), at=token.at)
        if token.kind == "parameter" and hasattr(token, "value"):
            return Option(self._take().value, at=token.at)  # type: ignore[attr-defined]
        return self._text.fail(f"the value of {name} must be a literal", token.at)

    def _insert(self, at: int) -> Statement:
        name = self._identifier()
        columns: tuple[str, ...] = ()
        if self._sign("("):
            columns = self._listed(self._identifier, close=")")
        if self._word("VALUES"):
            self._expect_sign("(")
            values = () if self._at_sign(")") else self._listed(self._expression)
            self._expect_sign(")")
            return InsertValues(name, columns, values, at=at)
        self._options()
        return InsertSelect(name, self._select(), at=at)

    def _drop(self, at: int) -> Statement:
        token = self._take()
        if token.upper not in ("STREAM", "TABLE", "TYPE"):
            self._text.fail("DROP takes STREAM, TABLE or TYPE", token.at)
        if_exists = self._word("IF", "EXISTS")
        name = self._identifier()
        return Drop(token.upper, name, if_exists, self._word("DELETE", "TOPIC"), at=at)

    # Queries.

    def _select(self) -> SelectQuery:
        at = self._token.at
        self._expect_word("SELECT")
        if self._at_words("DISTINCT"):
            self._text.fail("SELECT DISTINCT is not supported; write GROUP BY with an aggregate", self._token.at)
        items = self._listed(self._item)
        self._expect_word("FROM")
        source = self._from()
        joins = []
        while (join := self._join()) is not None:
            joins.append(join)
        window = self._window() if self._word("WINDOW") else None
        where = self._expression() if self._word("WHERE") else None
        group_by: tuple[Words, ...] = ()
        if self._word("GROUP", "BY"):
            group_by = self._listed(self._expression)
            if len(group_by) == 1 and group_by[0][0].text == "(" and closing(group_by[0], 0) == len(group_by[0]) - 1:
                group_by = tuple(map(tuple, split(group_by[0][1:-1])))
        partition_by: tuple[Words, ...] = ()
        if self._word("PARTITION", "BY"):
            partition_by = self._listed(self._expression)
        having = self._expression() if self._word("HAVING") else None
        emit = None
        if self._word("EMIT"):
            emit = self._take().upper
            if emit not in ("CHANGES", "FINAL"):
                self._text.fail("EMIT takes CHANGES or FINAL", self._words[self._next - 1].at)
        limit = self._integer() if self._word("LIMIT") else None
        if self._token.upper in _REFUSED:
            self._text.fail(_REFUSED[self._token.upper], self._token.at)
        found = SelectQuery(
            items, source, tuple(joins), window, where, group_by, partition_by, having, emit, limit, at=at
        )
        return found if source.window is None else self._of_window_function(found)

    def _of_window_function(self, query: SelectQuery) -> SelectQuery:
        """Return a query over a window function as one with ``WINDOW``, whose results are final unless it says else."""
        source = query.source
        if query.joins or query.window is not None:
            self._text.fail("a window function has no WINDOW beside it and does not join", source.at)

        def plain(words: Words) -> str:
            names = [each.identifier.lower() for each in words]
            return ".".join(names[2:] if names[:2] == [source.alias.lower(), "."] else names)

        groups = tuple(each for each in query.group_by if plain(each) not in _BOUNDS)
        if len(groups) == len(query.group_by):
            self._text.fail("a query over a window function groups by its window: GROUP BY window_start, ...", query.at)
        if not groups:
            self._text.fail("a table has a key: group by a column beside the window, or by a constant", query.at)
        items = []
        for each in query.items:
            alias = each.alias or (plain(each.words) if plain(each.words) in _BOUNDS else None)
            items.append(attrs.evolve(each, words=_bounded(each.words, source), alias=alias))
        return attrs.evolve(
            query,
            items=tuple(items),
            window=source.window,
            group_by=groups,
            having=None if query.having is None else _bounded(query.having, source),
            emit=query.emit or "FINAL",
        )

    def _item(self) -> Item:
        at = self._token.at
        if self._at_sign("*"):
            return Item((self._take(),), None, at=at)
        words = self._expression()
        if len(words) > 2 and words[-2].upper == "AS" and words[-1].is_identifier:
            return Item(words[:-2], words[-1].identifier, at=at)
        if len(words) > 1 and self._is_alias(words):
            return Item(words[:-1], words[-1].identifier, at=at)
        return Item(words, None, at=at)

    def _is_alias(self, words: Words) -> bool:
        """Return whether the last word is the alias of the expression before it."""
        before, last = words[-2:]
        if not last.is_identifier or last.upper in RESERVED:
            return False
        if before.kind == "sign":
            return before.text in (")", "]", "}")
        return before.kind != "word" or before.upper not in _GOES_ON

    def _from(self) -> From:
        at = self._token.at
        if self._at_sign("("):
            self._text.fail("a subquery in FROM is not supported; create a stream or table of it first", at)
        if self._at_words("TABLE"):
            self._take()
            self._expect_sign("(")
            found = self._from()
            self._expect_sign(")")
            return attrs.evolve(found, alias=self._alias(found.name))
        name = self._identifier("the name of a stream or table")
        if self._at_sign("("):
            if name.upper() not in _WINDOW_FUNCTIONS:
                self._text.fail(f"{name} is no stream or table, but a call", at)
            return self._window_function(name.upper(), at)
        return From(name, self._alias(name), at=at)

    def _alias(self, name: str) -> str:
        """Return the alias that follows, by default the name."""
        alias = name
        is_named = self._word("AS")
        token = self._token
        clause = token.upper in RESERVED or token.upper in ("WINDOW", "EMIT")
        if is_named or (token.is_identifier and not clause):
            alias = self._identifier("an alias")
        return alias

    def _window_function(self, function: str, at: int) -> From:
        """Take the arguments of ``TUMBLE``, ``HOP`` or ``SESSION`` as in Flink: the stream, its time, and durations."""
        self._expect_sign("(")
        self._word("TABLE")
        source = self._identifier("the name of a stream")
        if self._word("PARTITION", "BY"):
            self._text.fail("the rows of a session are those of a group: write GROUP BY", self._token.at)
        self._expect_sign(",")
        is_described = self._word("DESCRIPTOR")
        if is_described:
            self._expect_sign("(")
        column = self._identifier("the column of the time")
        if is_described:
            self._expect_sign(")")
        times = []
        while self._sign(","):
            times.append(self._interval())
        self._expect_sign(")")
        kind, count, arguments = _WINDOW_FUNCTIONS[function]
        if len(times) != count:
            self._text.fail(f"write {function}({arguments})", at)
        # HOP has the slide before the size.
        self._check_windows(kind, times[-1], times[0], at)
        return From(source, self._alias(source), WindowClause(kind, times[-1], times[0], at=at), column, at=at)

    def _interval(self) -> int:
        """Take ``INTERVAL '10' MINUTE``, ``INTERVAL '10 minutes'`` or ``10 MINUTES``; return milliseconds."""
        if not self._word("INTERVAL"):
            return self._duration(least=1)
        at = self._token.at
        count, _, unit = (self._string() if self._token.kind == "text" else str(self._integer())).strip().partition(" ")
        length = UNITS.get((unit.strip() or self._take().text).upper().removesuffix("S"))
        if length is None or not count.isdecimal() or not 1 <= int(count) * length <= _LONGEST:
            self._text.fail("an interval is INTERVAL '10' MINUTE, of a millisecond or more", at)
        return int(count) * length

    def _check_windows(self, kind: str, size: int, advance: int, at: int) -> None:
        if advance > size:
            self._text.fail("ADVANCE BY is at most SIZE", at)
        if kind == "HOPPING" and size // advance > 100_000:
            self._text.fail(f"a row would be in {size // advance} windows; choose a longer ADVANCE BY", at)

    def _join(self) -> Join | None:
        at = self._token.at
        kind = None
        for word in ("INNER", "LEFT", "RIGHT", "FULL"):
            if self._word(word):
                kind = word
                if word != "INNER":
                    self._word("OUTER")
                self._expect_word("JOIN")
        if kind is None:
            if not self._word("JOIN"):
                return None
            kind = "INNER"
        right = self._from()
        within = self._within() if self._word("WITHIN") else None
        self._expect_word("ON")
        return Join(kind, right, self._expression(), within, at=at)

    def _within(self) -> tuple[int, int, int | None]:
        if self._sign("("):
            before = self._duration()
            self._expect_sign(",")
            after = self._duration()
            self._expect_sign(")")
        else:
            before = after = self._duration()
        grace = self._duration() if self._word("GRACE", "PERIOD") else None
        return before, after, grace

    def _window(self) -> WindowClause:
        at = self._token.at
        kind = self._take().upper
        if kind not in ("TUMBLING", "HOPPING", "SESSION"):
            self._text.fail("windows are TUMBLING, HOPPING or SESSION", at)
        self._expect_sign("(")
        size = advance = 0
        if kind == "SESSION":
            size = advance = self._duration(least=1)
        else:
            self._expect_word("SIZE")
            size = advance = self._duration(least=1)
        retention = grace = None
        while self._sign(","):
            place = self._token.at
            if kind == "HOPPING" and self._word("ADVANCE", "BY"):
                advance = self._duration(least=1)
                if advance > size:
                    self._text.fail("ADVANCE BY is at most SIZE", place)
            elif self._word("RETENTION"):
                retention = self._duration()
            elif self._word("GRACE", "PERIOD"):
                grace = self._duration()
            else:
                self._unexpected("ADVANCE BY, RETENTION or GRACE PERIOD")
        self._expect_sign(")")
        self._check_windows(kind, size, advance, at)
        return WindowClause(kind, size, advance, retention, grace, at=at)

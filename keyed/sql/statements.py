"""Statements and clauses of a script, which are ksqlDB's. Expressions stay words: DuckDB reads them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, NoReturn, TypeAlias

import attrs

from keyed.base.arguments import nearest
from keyed.expressions.tokens import BoundParameter, Given, SqlToken, Text, bound, closing, folded, split, tokens
from keyed.formats.sql_types import NAMED, SqlType, array, decimal, map_of, struct

#: Units of time in milliseconds.
_UNITS = {"MILLISECOND": 1, "SECOND": 1000, "MINUTE": 60_000, "HOUR": 3_600_000, "DAY": 86_400_000}
_UNITS |= {"WEEK": 7 * 86_400_000, "MONTH": 30 * 86_400_000, "YEAR": 365 * 86_400_000}
#: The longest time that a clause takes: sums of two stay timestamps.
_LONGEST = 2**60
#: The most windows that a row may be in.
_MOST_WINDOWS = 100_000
#: The most rows of a partition that ``QUALIFY`` keeps: each batch reads those of the partitions that it touches.
_MOST_RANKS = 1_000
Words: TypeAlias = tuple[SqlToken, ...]


@attrs.frozen
class Node:
    """A part of a script, at an offset of its text."""

    at: int = attrs.field(default=0, eq=False, repr=False, kw_only=True)


@attrs.frozen
class Item(Node):
    """A column of a projection: its expression, and its alias if it has one. ``*`` is an item too."""

    words: Words
    alias: str | None


@attrs.frozen
class WindowClause(Node):
    """A window clause, and its normalized text; durations are milliseconds."""

    text: str
    kind: str
    size_ms: int
    advance_ms: int
    retention_ms: int | None = None
    grace_ms: int | None = None


@attrs.frozen
class Variable(Node):
    """A variable of ``PATTERN`` with its quantifier; ``most`` is ``None`` for any number."""

    name: str
    least: int
    most: int | None
    is_greedy: bool


@attrs.frozen
class MatchClause(Node):
    """``MATCH_RECOGNIZE``: ``skip`` is the strategy after a match. Variables are in upper case."""

    measures: tuple[Item, ...]
    skip: str
    skip_to: str
    pattern: tuple[Variable, ...]
    within_ms: int | None
    define: tuple[Item, ...]


@attrs.frozen
class From(Node):
    """A stream or table by name, with its alias.

    Of a window function it has the windows, and the column of the time; of a function of the user's its name, and the
    expressions by which it is keyed; of ``MATCH_RECOGNIZE`` the clause, with both.
    """

    name: str
    alias: str
    window: WindowClause | None = None
    time: str | None = None
    function: str | None = None
    partition_by: tuple[Words, ...] = ()
    match: MatchClause | None = None


@attrs.frozen
class Join(Node):
    """A join with one more source; ``within`` is before, after and grace in milliseconds, and has a normalized text."""

    kind: str
    right: From
    on: Words
    within: tuple[int, int, int | None] | None = None
    within_text: str = ""


@attrs.frozen
class Ranking(Node):
    """``QUALIFY``: the first ``count`` rows of each partition, in an order of expressions with their directions."""

    name: str
    partition_by: tuple[Words, ...]
    order_by: tuple[tuple[Words, str], ...]
    count: int


@attrs.frozen
class SelectQuery(Node):
    """A ``SELECT``, with all its words."""

    words: Words
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
    ranking: Ranking | None = None


@attrs.frozen
class Element(Node):
    """A declared column: its ``role`` is ``key``, ``primary``, ``value``, ``headers`` or ``header``."""

    name: str
    type: SqlType
    role: str = "value"
    header: str | None = None

    @property
    def is_key(self) -> bool:
        """True if it is of the key."""
        return self.role in ("key", "primary")

    @property
    def is_header(self) -> bool:
        """True if it is of headers."""
        return self.role in ("headers", "header")


class WithOptions(dict[str, Any]):
    """The values of the options of ``WITH`` by name, with their places in the text."""

    def __init__(self) -> None:
        super().__init__()
        self.places: dict[str, int] = {}


@attrs.frozen
class Create(Node):
    """``CREATE STREAM`` or ``TABLE``, with columns or ``AS SELECT``."""

    kind: str
    name: str
    elements: tuple[Element, ...]
    options: WithOptions
    query: SelectQuery | None
    replace: bool = False
    only_if_missing: bool = False
    read_only: bool = False


@attrs.frozen
class Insert(Node):
    """``INSERT INTO stream SELECT`` or ``INSERT INTO source [(columns)] VALUES (…)``."""

    name: str
    query: SelectQuery | None
    columns: tuple[str, ...] = ()
    values: tuple[Words, ...] = ()


@attrs.frozen
class Drop(Node):
    """``DROP STREAM``, ``TABLE`` or ``TYPE``."""

    kind: str
    name: str
    if_exists: bool = False
    deletes_topic: bool = False


@attrs.frozen
class SetOption(Node):
    """``SET 'name' = 'value'``; ``UNSET`` has no value."""

    name: str
    value: str | None


@attrs.frozen
class Show(Node):
    """``SHOW STREAMS | TABLES | TYPES | FUNCTIONS | QUERIES``, ``DESCRIBE name``, ``EXPLAIN name or query``."""

    what: str
    name: str = ""
    query: SelectQuery | None = None
    types: dict[str, SqlType] = attrs.field(factory=dict)


Statement: TypeAlias = Create | Insert | Drop | SetOption | Show | SelectQuery
_SHOWN = ("STREAMS", "TABLES", "TYPES", "FUNCTIONS", "QUERIES")


def _words(*lines: str) -> frozenset[str]:
    return frozenset(word for line in lines for word in line.split())


#: Words that end an expression outside of brackets, unless they belong to it (``IS DISTINCT FROM``).
_CLAUSES = _words(
    "FROM WHERE GROUP PARTITION HAVING EMIT WINDOW LIMIT JOIN INNER LEFT RIGHT FULL CROSS ON WITHIN UNION ORDER",
    "QUALIFY EXCEPT INTERSECT OFFSET",
)
#: Words that are no names without quotes.
RESERVED = _CLAUSES | _words(
    "SELECT AS BY AND OR NOT IN BETWEEN LIKE IS NULL TRUE FALSE CASE WHEN THEN ELSE END OUTER WITH INSERT INTO",
    "CREATE DESCRIBE DROP VALUES CAST",
)
#: Words after which an expression goes on, so that the name after them is no alias.
_GOES_ON = _words(
    "AND OR NOT IN BETWEEN LIKE ILIKE SIMILAR TO GLOB IS CASE WHEN THEN ELSE AS DISTINCT FROM ESCAPE INTERVAL AT",
    "TIME COLLATE LAMBDA DATE TIMESTAMP BY",
)
_OF_TABLES = 'query the table when the script runs: tables.sql("SELECT ... {}")'
_RANKED = "QUALIFY row_number() OVER (PARTITION BY ... ORDER BY ...) <= n"
#: Clauses of other engines, with the statement that does the same here.
REFUSED = {
    "UNION": "UNION is not supported; write an INSERT INTO for each query: INSERT INTO target SELECT ...",
    "EXCEPT": "EXCEPT is not supported; join the streams, or filter with WHERE",
    "INTERSECT": "INTERSECT is not supported; join the streams WITHIN a time",
    "ORDER": f"ORDER BY is not supported: a stream has no end; write {_RANKED}, or "
    + _OF_TABLES.format("ORDER BY ..."),
    "OFFSET": "OFFSET is not supported; " + _OF_TABLES.format("LIMIT n OFFSET m"),
    "CROSS": "CROSS JOIN is not supported; write JOIN ... WITHIN ... ON left_column = right_column",
    "FOR": "FOR SYSTEM_TIME AS OF is not supported, and not needed: a row of a stream joins the row that a table has "
    "at its time; write FROM stream JOIN table ON stream.column = table.key",
    "DISTINCT": "SELECT DISTINCT is not supported; write CREATE TABLE name AS SELECT x, COUNT(*) ... GROUP BY x",
    "WITH": "WITH ... AS is not supported; write CREATE STREAM {} AS SELECT ... before it, and read that by its name",
    "SELECT": "a query inside of an expression is not supported; create a table of it, and write JOIN name ON ...",
    "OVER": f"OVER is not supported; write GROUP BY with WINDOW, or of row_number {_RANKED}",
    "ROLLUP": "{} is not supported; write a CREATE TABLE ... AS SELECT ... GROUP BY ... for each grouping",
    "LIMIT": f"LIMIT is for queries that are read, not for a stream or table; write {_RANKED}, or "
    + _OF_TABLES.format("LIMIT n"),
    "(": "a subquery in FROM is not supported; write CREATE STREAM name AS SELECT ... before it, and FROM name",
    "PATTERN": "PATTERN has variables one after the other, each once and with a quantifier or none; write a query for "
    "each alternative, and INSERT INTO",
    "ALL": "ALL ROWS PER MATCH is not supported; write ONE ROW PER MATCH, with the rows' values as MEASURES",
    "SUBSET": "SUBSET is not supported; write the variables out, or a column name alone for all rows of the match",
}
#: The strategies after a match.
_SKIPS: dict[str, tuple[str, ...]] = {"PAST": ("PAST", "LAST", "ROW"), "NEXT": ("TO", "NEXT", "ROW")}
_SKIPS |= {"FIRST": ("TO", "FIRST"), "LAST": ("TO", "LAST")}
_QUANTIFIERS: dict[str, tuple[int, int | None]] = {"?": (0, 1), "*": (0, None), "+": (1, None)}


def parse(script: str, parameters: Given | None) -> tuple[Text, list[Statement], dict[str, Any]]:
    """Return the statements of a script, and the values of its parameters.

    Raises:
        SqlError: A syntax error, or a parameter without a value.
        DefinitionError: A parameter is not valid.
    """
    text = Text(script)
    words, values = bound(text, tokens(text), parameters)
    return text, Parser(text, words).statements(), values


def parse_type(type_: str) -> SqlType:
    """Return the type that a text names.

    Raises:
        SqlError: It names none.
    """
    text = Text(type_)
    parser = Parser(text, tokens(text))
    sql_type = parser.sql_type()
    parser.end("the end")
    return sql_type


def duration_ms(count: str, unit: str) -> int | None:
    """Return a time in milliseconds; ``None`` if it is none, or too long."""
    length = _UNITS.get(unit.strip().upper().removesuffix("S"))
    if length is None or not count.isdecimal() or len(count) > 19:
        return None
    return min(int(count) * length, _LONGEST + 1)


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
    bounded: list[SqlToken] = []
    # A session ends here with its last row, and in Flink a gap later.
    gap = source.window.size_ms if source.window is not None and source.window.kind == "SESSION" else 0
    for place, token in enumerate(words):
        after = words[place + 1].text if place + 1 < len(words) else ""
        if not token.is_identifier or token.identifier.lower() not in _BOUNDS or after == "(":
            bounded.append(token)
            continue
        if len(bounded) > 1 and bounded[-1].upper == "." and bounded[-2].identifier.lower() == source.alias.lower():
            del bounded[-2:]
        bound = _BOUNDS[token.identifier.lower()]
        text = f"epoch_ms({bound}{f' + {gap}' if gap and bound != 'WINDOWSTART' else ''})"
        bounded += [attrs.evolve(each, at=token.at, end=token.end) for each in tokens(Text(text)) if each.kind != "end"]
    return tuple(bounded)


class Parser:
    """A recursive descent over the words of a script.

    Args:
        text: The script.
        words: Its words.

    Attributes:
        place: The place of the next word.
    """

    def __init__(self, text: Text, words: Sequence[SqlToken]) -> None:
        self._text = text
        self._words = list(words)
        self.place = 0
        #: The types of ``CREATE TYPE``.
        self._types: dict[str, SqlType] = {}

    # Words.

    @property
    def _token(self) -> SqlToken:
        return self._words[self.place]

    def _ahead(self, count: int = 1) -> SqlToken:
        return self._words[min(self.place + count, len(self._words) - 1)]

    def _take(self) -> SqlToken:
        token = self._token
        self.place = min(self.place + 1, len(self._words) - 1)
        return token

    def _comes(self, *words: str) -> bool:
        """Return whether words or signs come next."""
        return all(self._ahead(i).upper == each for i, each in enumerate(words))

    def _word(self, *words: str) -> bool:
        """Take words or signs if they come next."""
        comes = self._comes(*words)
        self.place += len(words) * comes
        return comes

    def _choice(self, message: str, *words: str) -> str:
        """Take one of some words."""
        token = self._take()
        self._text.check((token.upper not in words, message, token.at))
        return token.upper

    def _expect(self, *words: str) -> None:
        for each in words:
            if not self._word(each):
                self._unexpected(each if each.isalpha() else repr(each))

    def _folded(self, start: int) -> str:
        """Return the normalized text of the words since a place."""
        return folded(self._words[start : self.place])

    def _unexpected(self, expected: str) -> NoReturn:
        token = self._token
        shown = "the end of the script" if token.kind == "end" else repr(self._text.text[token.at : token.end])
        self._text.fail(f"expected {expected}, found {shown}", token.at)

    def _refuse(self, clause: str, name: str = "name", at: int | None = None) -> NoReturn:
        self._text.fail(REFUSED[clause].format(name), self._token.at if at is None else at)

    def end(self, what: str) -> None:
        """Check that no words are left; otherwise ``what`` was expected."""
        if self._token.kind != "end":
            self._unexpected(what)

    def _comma_separated(self, item: Callable[[], Any], *, close: str | None = None) -> tuple[Any, ...]:
        items = [item()]
        while self._word(","):
            items.append(item())
        if close is not None:
            self._expect(close)
        return tuple(items)

    def _bracketed(self, item: Callable[[], Any]) -> Any:
        self._expect("(")
        content = item()
        self._expect(")")
        return content

    def _identifier(self, what: str = "a name", reserved: Collection[str] = RESERVED) -> str:
        token = self._token
        if not token.is_identifier or token.upper in reserved:
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
        count = str(self._integer())
        token = self._take()
        milliseconds = duration_ms(count, token.upper)
        if milliseconds is None:
            self._text.fail(f"unknown unit of time {token.text}; units are SECONDS, MINUTES, HOURS and so on", token.at)
        is_short = (milliseconds < least, "the time is 0; give at least 1 MILLISECOND", at)
        self._text.check(is_short, (milliseconds > _LONGEST, "the time is too long", at))
        return milliseconds

    def _expression(self, *ends: str) -> Words:
        """Take the words of an expression: up to a clause, a comma or the end, outside of brackets."""
        start = self.place
        while (token := self._token).kind != "end" and token.upper not in (",", ";", ")"):
            upper = token.upper
            is_end = upper in _CLAUSES or upper in ends
            if is_end and self.place > start and not self._belongs(upper):
                break
            if upper in ("(", "[", "{"):
                self.place = closing(self._words, self.place)
            self.place += 1
        if self.place == start:
            self._unexpected("an expression")
        words = tuple(self._words[start : self.place])
        for place, token in enumerate(words):
            is_name = place and words[place - 1].upper in (".", "->", "AS")
            if not is_name and (token.upper == "SELECT" or (token.upper == "OVER" and not _is_ranking(words))):
                self._refuse(token.upper, at=token.at)
        return words

    def _belongs(self, upper: str) -> bool:
        """Return whether a word of a clause belongs to the expression before it."""
        before = self._words[self.place - 1]
        if before.upper == ".":
            return True
        if upper == "FROM":
            return before.upper == "DISTINCT" and self._words[self.place - 2].upper in ("IS", "NOT")
        # A call: LEFT('text', 1), RIGHT(...).
        return upper in ("LEFT", "RIGHT") and self._ahead().upper == "("

    # Statements.

    def statements(self) -> list[Statement]:
        """Return the statements of the text."""
        statements: list[Statement] = []
        while self._token.kind != "end":
            if self._word(";"):
                continue
            statements += filter(None, [self._statement()])
            if self._token.kind != "end":
                self._expect(";")
        return statements

    def single_query(self) -> SelectQuery:
        """Return the one ``SELECT`` of the text."""
        query = self._select()
        self._word(";")
        self.end("the end of the query")
        return query

    def _statement(self) -> Statement | None:
        at = self._token.at
        if self._comes("SELECT") or self._comes("WITH"):
            return self._select()
        if self._word("INSERT", "INTO"):
            return self._insert(at)
        parts: dict[str, Callable[[int], Statement | None]] = {
            "CREATE": self._create,
            "DROP": self._drop,
            "SHOW": self._show,
            "LIST": self._show,
            "SET": self._set,
            "UNSET": lambda at: SetOption(self._string(), None, at=at),
            "DESCRIBE": self._describe,
            "EXPLAIN": self._explain,
        }
        if self._token.upper not in parts:
            self._unexpected(f"a statement{nearest(self._token.text, (*parts, 'INSERT', 'SELECT'))}")
        return parts[self._take().upper](at)

    def _set(self, at: int) -> SetOption:
        name = self._string()
        self._expect("=")
        return SetOption(name, self._string(), at=at)

    def _show(self, at: int) -> Show:
        what = self._choice(f"SHOW lists {', '.join(_SHOWN)}", *_SHOWN)
        self._word("EXTENDED")
        return Show(what, types=dict(self._types), at=at)

    def _describe(self, at: int) -> Show:
        self._word("EXTENDED")
        statement = Show("DESCRIBE", self._identifier(), at=at)
        self._word("EXTENDED")
        return statement

    def _explain(self, at: int) -> Show:
        is_query = self._comes("SELECT")
        return Show("EXPLAIN", "" if is_query else self._identifier(), self._select() if is_query else None, at=at)

    def _create(self, at: int) -> Statement | None:
        replace = self._word("OR", "REPLACE")
        if self._word("TYPE"):
            self._word("IF", "NOT", "EXISTS")
            name = self._identifier()
            self._expect("AS")
            self._types[name.upper()] = self.sql_type()
            return None
        read_only = self._word("SOURCE")
        kind = "TABLE" if self._word("TABLE") else "STREAM"
        if kind == "STREAM":
            self._expect("STREAM")
        only_if_missing = self._word("IF", "NOT", "EXISTS")
        name = self._identifier("the name of the stream or table")
        has_elements = self._word("(") and not self._word(")")
        elements = self._comma_separated(self._element, close=")") if has_elements else ()
        options = self._options()
        query = self._select() if self._word("AS") else None
        if elements and query is not None:
            self._text.fail("CREATE ... AS SELECT takes its columns from the query; remove the list", at)
        return Create(kind, name, elements, options, query, replace, only_if_missing, read_only, at=at)

    def _element(self) -> Element:
        at = self._token.at
        name = self._identifier("the name of a column")
        type_ = self.sql_type()
        roles = {"primary": ("PRIMARY", "KEY"), "key": ("KEY",), "headers": ("HEADERS",), "header": ("HEADER",)}
        role = next((each for each, words in roles.items() if self._word(*words)), "value")
        return Element(name, type_, role, self._bracketed(self._string) if role == "header" else None, at=at)

    def sql_type(self) -> SqlType:
        """Take a type."""
        token = self._token
        base = token.upper
        if not token.is_identifier:
            self._unexpected("a type")
        self._take()
        if base in ("DECIMAL", "NUMERIC"):
            precision, scale = self._bracketed(lambda: (self._integer(), self._integer() if self._word(",") else 0))
            digits = "DECIMAL(precision, scale) has 1 to 38 digits, and scale is at most precision"
            self._text.check((not 1 <= precision <= 38 or scale > precision, digits, token.at))
            return decimal(precision, scale)
        if base == "STRUCT" and self._word("<>"):
            return struct()
        if base in ("ARRAY", "MAP", "STRUCT") and self._word("<"):
            return self._closed(self._generic(base, token.at))
        type_ = NAMED.get(base) or self._types.get(token.identifier.upper())
        if type_ is None:
            known = (*NAMED, "DECIMAL", "ARRAY", "MAP", "STRUCT", *self._types)
            self._text.fail(f"unknown type {token.text}{nearest(token.text, known)}", token.at)
        if base in ("VARCHAR", "STRING") and self._comes("("):
            self._bracketed(lambda: self._word("STRING") or self._integer())
        return type_

    def _generic(self, base: str, at: int) -> SqlType:
        if base == "ARRAY":
            return array(self.sql_type())
        if base == "MAP":
            key = self.sql_type()
            self._expect(",")
            return map_of(key, self.sql_type())
        fields = self._comma_separated(lambda: (self._identifier("the name of a field", ()), self.sql_type()))
        if len({name.lower() for name, _ in fields}) < len(fields):
            self._text.fail(f"fields that differ only in case are one: {', '.join(name for name, _ in fields)}", at)
        return struct(*fields)

    def _closed(self, type_: SqlType) -> SqlType:
        """Take the ``>`` of a type; ``>>`` and ``>=`` have one too."""
        token = self._token
        if not token.upper.startswith(">"):
            self._unexpected("'>'")
        if len(token.text) > 1:
            self._words[self.place] = SqlToken("sign", token.text[1:], token.at + 1, token.end)
        else:
            self._take()
        return type_

    def _options(self) -> WithOptions:
        options = WithOptions()
        if self._word("WITH"):
            self._expect("(")
            while not self._word(")"):
                name = self._identifier("an option").upper()
                self._expect("=")
                options.places[name] = self._token.at
                options[name] = self._literal(name)
                if not self._word(","):
                    self._expect(")")
                    break
        return options

    def _literal(self, name: str) -> Any:
        token = self._token
        if token.kind == "text":
            return self._string()
        if token.upper in ("TRUE", "FALSE"):
            return self._take().upper == "TRUE"
        if token.kind == "number" or token.upper == "-":
            return -self._integer() if self._word("-") else self._integer()
        if isinstance(token, BoundParameter):
            self._take()
            return token.value
        return self._text.fail(f"the value of {name} must be a literal", token.at)

    def _insert(self, at: int) -> Statement:
        name = self._identifier()
        columns = self._comma_separated(self._identifier, close=")") if self._word("(") else ()
        if self._word("VALUES"):
            values = self._bracketed(lambda: () if self._comes(")") else self._comma_separated(self._expression))
            return Insert(name, None, columns, values, at=at)
        self._options()
        return Insert(name, self._select(), at=at)

    def _drop(self, at: int) -> Statement:
        kind = self._choice("DROP takes STREAM, TABLE or TYPE", "STREAM", "TABLE", "TYPE")
        if_exists = self._word("IF", "EXISTS")
        name = self._identifier()
        return Drop(kind, name, if_exists, self._word("DELETE", "TOPIC"), at=at)

    # Queries.

    def _select(self) -> SelectQuery:
        start, at = self.place, self._token.at
        if self._comes("WITH"):
            self._refuse("WITH", self._ahead().text or "name")
        self._expect("SELECT")
        if self._comes("DISTINCT"):
            self._refuse("DISTINCT")
        items = self._comma_separated(self._item)
        self._expect("FROM")
        source = self._from()
        joins = tuple(iter(self._join, None))
        window = self._window() if self._word("WINDOW") else None
        where = self._expression() if self._word("WHERE") else None
        group_by: tuple[Words, ...] = ()
        if self._word("GROUP", "BY"):
            for each in ("ROLLUP", "CUBE", "GROUPING"):
                if self._comes(each, "(") or self._comes(each, "SETS"):
                    self._refuse("ROLLUP", each)
            group_by = self._comma_separated(self._expression)
            if len(group_by) == 1 and group_by[0][0].upper == "(" and closing(group_by[0], 0) == len(group_by[0]) - 1:
                group_by = tuple(map(tuple, split(group_by[0][1:-1])))
        partition_by = self._comma_separated(self._expression) if self._word("PARTITION", "BY") else ()
        having = self._expression() if self._word("HAVING") else None
        ranking = self._ranking(items) if self._word("QUALIFY") else None
        emit = self._choice("EMIT takes CHANGES or FINAL", "CHANGES", "FINAL") if self._word("EMIT") else None
        limit = self._integer() if self._word("LIMIT") else None
        if self._token.upper in REFUSED:
            self._refuse(self._token.upper)
        if ranking is not None:
            items = tuple(each for each in items if not _is_ranking(each.words))
        elif over := next((each for each in items if _is_ranking(each.words)), None):
            self._refuse("OVER", at=over.at)
        words = tuple(self._words[start : self.place])
        clauses = window, where, group_by, partition_by, having, emit, limit, ranking
        query = SelectQuery(words, items, source, joins, *clauses, at=at)
        return query if source.window is None else self._of_window_function(query)

    def _ranking(self, items: Sequence[Item]) -> Ranking:
        """Take the condition of ``QUALIFY``: the rank, or the alias of an item that is it, and a number."""
        at = self._token.at
        words = self._expression()
        call, sign, count = words[:-2], words[-2].upper if len(words) > 2 else "", words[-1]
        name, ranks = "rank", [each for each in items if _is_ranking(each.words)]
        if len(call) == 1:
            call = next((e.words for e in ranks if (e.alias or "").lower() == call[0].identifier.lower()), call)
        for each in ranks:
            if folded(each.words) != folded(call):
                self._refuse("OVER", at=each.at)
            name = each.alias or name
        limit = int(count.text) - (sign == "<") if count.text.isdecimal() and len(count.text) < 6 else 0
        is_call = _is_ranking(call) and closing(call, 4) == len(call) - 1
        is_first = sign in ("<=", "<") or (sign == "=" and limit == 1)
        if not is_call or not is_first or not 1 <= limit <= _MOST_RANKS:
            self._text.fail(f"QUALIFY is for the first rows, 1 to {_MOST_RANKS}: {_RANKED}", at)
        inner = Parser(self._text, [*call[5:-1], attrs.evolve(call[-1], kind="end", text="")])
        return Ranking(name, *inner.over(), limit, at=at)

    def over(self) -> tuple[tuple[Words, ...], tuple[tuple[Words, str], ...]]:
        """Return the partition and the order of ``OVER (...)``, of which the whole text is the inner part."""
        self._expect("PARTITION", "BY")
        partition_by = self._comma_separated(self._expression)
        self._expect("ORDER", "BY")
        order_by = self._comma_separated(self._ordered)
        self.end("the end of OVER (...)")
        return partition_by, order_by

    def _ordered(self) -> tuple[Words, str]:
        words = self._expression("ASC", "DESC", "NULLS")
        direction = "DESC" if self._word("DESC") else "ASC"
        self._word("ASC")
        nulls = "FIRST" if self._word("NULLS", "FIRST") else "LAST"
        self._word("NULLS", "LAST")
        return words, f"{direction} NULLS {nulls}"

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
        having = None if query.having is None else _bounded(query.having, source)
        emit = query.emit or "FINAL"
        return attrs.evolve(query, items=tuple(items), window=source.window, group_by=groups, having=having, emit=emit)

    def _item(self, *ends: str) -> Item:
        at = self._token.at
        if self._comes("*"):
            return Item((self._take(),), None, at=at)
        words = self._expression(*ends)
        has_as = len(words) > 2 and words[-2].upper == "AS" and words[-1].is_identifier
        if has_as or (len(words) > 1 and self._is_alias(words)):
            return Item(words[: -1 - has_as], words[-1].identifier, at=at)
        return Item(words, None, at=at)

    def _is_alias(self, words: Words) -> bool:
        """Return whether the last word is the alias of the expression before it."""
        before, last = words[-2:]
        if not last.is_identifier or last.upper in RESERVED:
            return False
        if before.kind == "sign":
            return before.text in (")", "]", "}")
        return before.upper not in _GOES_ON

    def _from(self) -> From:
        at = self._token.at
        if self._comes("("):
            self._refuse("(")
        if self._word("TABLE"):
            source: From = self._bracketed(self._from)
            return attrs.evolve(source, alias=self._alias(source.name))
        name = self._identifier("the name of a stream or table")
        if self._word("MATCH_RECOGNIZE"):
            source = self._bracketed(lambda: self._match(name, at))
        elif not self._comes("("):
            return From(name, self._alias(name), at=at)
        else:
            source = self._bracketed(lambda: self._arguments(name, at))
        return attrs.evolve(source, alias=self._alias(source.alias))

    def _alias(self, name: str) -> str:
        """Return the alias that follows, by default the name."""
        if self._comes("FOR", "SYSTEM_TIME"):
            self._refuse("FOR")
        is_named = self._word("AS")
        token = self._token
        clause = token.upper in RESERVED or token.upper in ("WINDOW", "EMIT")
        return self._identifier("an alias") if is_named or (token.is_identifier and not clause) else name

    def _arguments(self, name: str, at: int) -> From:
        """Take the arguments of a function in ``FROM``.

        A function of the user's has a stream and what it is keyed by; ``TUMBLE``, ``HOP`` and ``SESSION`` have, as in
        Flink, the stream, its time, and durations.
        """
        start = self.place
        self._word("TABLE")
        source = self._identifier("the name of a stream")
        if name.upper() not in _WINDOW_FUNCTIONS:
            if not self._word("PARTITION", "BY"):
                what = "is no window function, which are TUMBLE, HOP and SESSION; one of your own is"
                self._text.fail(f"{name} {what} {name}({source} PARTITION BY column)", at)
            return From(source, name, function=name, partition_by=self._comma_separated(self._expression), at=at)
        if self._comes("PARTITION", "BY"):
            self._text.fail("the rows of a session are those of a group: write GROUP BY", self._token.at)
        self._expect(",")
        is_described = self._word("DESCRIPTOR")
        time = self._bracketed(self._identifier) if is_described else self._identifier("the column of the time")
        times = []
        while self._word(","):
            times.append(self._interval())
        kind, count, arguments = _WINDOW_FUNCTIONS[name.upper()]
        if len(times) != count:
            self._text.fail(f"write {name.upper()}({arguments})", at)
        # HOP has the slide before the size.
        return From(source, source, self._windows(start, kind, times[-1], times[0], at=at), time, at=at)

    def _match(self, name: str, at: int) -> From:
        """Take the clauses of ``MATCH_RECOGNIZE``."""
        partition_by = self._comma_separated(self._expression) if self._word("PARTITION", "BY") else ()
        self._expect("ORDER", "BY")
        time = self._identifier("the column of the time")
        if not self._word("ASC", "MEASURES") and not self._word("MEASURES"):
            self._unexpected("MEASURES, after the one column of the time in ascending order")
        measures = self._comma_separated(lambda: self._item("ONE", "ALL", "AFTER", "PATTERN"))
        if self._comes("ALL"):
            self._refuse("ALL")
        self._word("ONE", "ROW", "PER", "MATCH")
        # Flink's default; that of the standard is PAST LAST ROW.
        skip = next((way for way, words in _SKIPS.items() if self._word("AFTER", "MATCH", "SKIP", *words)), "NEXT")
        skip_to = self._identifier("a variable").upper() if skip in ("FIRST", "LAST") else ""
        pattern_at = self._token.at
        if not self._word("PATTERN", "("):
            self._unexpected("PATTERN (...), or AFTER MATCH SKIP and PAST LAST ROW, TO NEXT ROW, TO FIRST x or LAST x")
        pattern = [self._variable()]
        while not self._word(")"):
            pattern.append(self._variable())
        within_ms = self._interval() if self._word("WITHIN") else None
        if self._comes("SUBSET"):
            self._refuse("SUBSET")
        define = self._comma_separated(self._definition) if self._word("DEFINE") else ()
        match = MatchClause(measures, skip, skip_to, tuple(pattern), within_ms, define, at=pattern_at)
        return From(name, name, time=time, partition_by=partition_by, match=match, at=at)

    def _variable(self) -> Variable:
        at = self._token.at
        if not self._token.is_identifier or self._comes("PERMUTE", "("):
            self._refuse("PATTERN")
        name = self._identifier("a variable").upper()
        least, most = next((numbers for sign, numbers in _QUANTIFIERS.items() if self._word(sign)), (1, 1))
        if self._word("{"):
            least = 0 if self._comes(",") else self._integer()
            most = least if not self._word(",") else None if self._comes("}") else self._integer()
            self._expect("}")
        is_reluctant, is_optional = self._word("?"), (least, most) == (0, 1)
        if is_reluctant and is_optional:
            self._text.fail(f"{name}?? is not supported; write {name}?", at)
        return Variable(name, least, most, not (is_reluctant or is_optional or least == most), at=at)

    def _definition(self) -> Item:
        at = self._token.at
        name = self._identifier("a variable").upper()
        self._expect("AS")
        return Item(self._expression(), name, at=at)

    def _interval(self) -> int:
        """Take ``INTERVAL '10' MINUTE``, ``INTERVAL '10 minutes'`` or ``10 MINUTES``; return milliseconds."""
        if not self._word("INTERVAL"):
            return self._duration(least=1)
        at = self._token.at
        count, _, unit = (self._string() if self._token.kind == "text" else str(self._integer())).strip().partition(" ")
        milliseconds = duration_ms(count, unit or self._take().text)
        if milliseconds is None or not 1 <= milliseconds <= _LONGEST:
            self._text.fail("an interval is INTERVAL '10' MINUTE, of a millisecond or more", at)
        return milliseconds

    def _windows(self, start: int, kind: str, size: int, advance: int, *more: int | None, at: int) -> WindowClause:
        if advance > size:
            self._text.fail("ADVANCE BY is at most SIZE", at)
        if size // advance > _MOST_WINDOWS:
            self._text.fail(f"a row would be in {size // advance} windows; choose a longer ADVANCE BY", at)
        return WindowClause(self._folded(start), kind, size, advance, *more, at=at)

    def _join(self) -> Join | None:
        at = self._token.at
        kind = next((each for each in ("INNER", "LEFT", "RIGHT", "FULL") if self._word(each)), None)
        if kind not in (None, "INNER"):
            self._word("OUTER")
        if kind is None and not self._comes("JOIN"):
            return None
        self._expect("JOIN")
        right, start = self._from(), self.place
        within = self._within() if self._word("WITHIN") else None
        within_text = self._folded(start)
        self._expect("ON")
        return Join(kind or "INNER", right, self._expression(), within, within_text, at=at)

    def _within(self) -> tuple[int, int, int | None]:
        is_pair = self._word("(")
        before = after = self._duration()
        if is_pair:
            self._expect(",")
            after = self._duration()
            self._expect(")")
        return before, after, self._duration() if self._word("GRACE", "PERIOD") else None

    def _window(self) -> WindowClause:
        start, at = self.place, self._token.at
        kind = self._choice("windows are TUMBLING, HOPPING or SESSION", "TUMBLING", "HOPPING", "SESSION")
        self._expect("(", *(["SIZE"] if kind != "SESSION" else []))
        size = advance = self._duration(least=1)
        retention = grace = None
        while self._word(","):
            if kind == "HOPPING" and self._word("ADVANCE", "BY"):
                advance = self._duration(least=1)
            elif self._word("RETENTION"):
                retention = self._duration()
            elif self._word("GRACE", "PERIOD"):
                grace = self._duration()
            else:
                self._unexpected("ADVANCE BY, RETENTION or GRACE PERIOD")
        self._expect(")")
        return self._windows(start, kind, size, advance, retention, grace, at=at)


def _is_ranking(words: Words) -> bool:
    """Return whether an expression is, or begins with, ``row_number() OVER (...)``."""
    return [each.upper for each in words[:5]] == ["ROW_NUMBER", "(", ")", "OVER", "("]

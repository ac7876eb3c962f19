"""The parser: a recursive descent over the tokens of sqlglot, whose dialect here has ksqlDB's tokens.

sqlglot has no grammar of streaming statements (``EMIT``, ``WINDOW``, ``PARTITION BY``, ``WITHIN``, ``->``, ``:=``), and
its parser gives functions meanings of its own. So its tokenizer is used, and the grammar is ksqlDB's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import attrs

from keyed.extras import extra
from keyed.sql import syntax as tree
from keyed.sql.bound_parameters import BoundParameters, Parameters
from keyed.sql.script_errors import Text, nearest
from keyed.sql.sql_types import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    INTEGER,
    NAMED,
    NULL,
    STRING,
    SqlType,
    array,
    decimal,
    map_of,
    struct,
)

#: Units of time in milliseconds.
UNITS = {
    "MILLISECOND": 1,
    "SECOND": 1000,
    "MINUTE": 60_000,
    "HOUR": 3_600_000,
    "DAY": 86_400_000,
    "YEAR": 365 * 86_400_000,
    "MONTH": 30 * 86_400_000,
    "WEEK": 7 * 86_400_000,
}
#: Words that are no names without quotes.
_RESERVED = frozenset(
    [
        "SELECT",
        "FROM",
        "AS",
        "WHERE",
        "GROUP",
        "BY",
        "HAVING",
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
        "JOIN",
        "INNER",
        "LEFT",
        "RIGHT",
        "FULL",
        "OUTER",
        "ON",
        "WITHIN",
        "WITH",
        "INSERT",
        "INTO",
        "CREATE",
        "DESCRIBE",
        "DROP",
        "VALUES",
        "CAST",
        "PARTITION",
        "LIMIT",
    ]
)
#: Words that end an item of a projection or a source, and so are no aliases.
_CLAUSES = _RESERVED | {"WINDOW", "EMIT"}
_COMPARISONS = {"=": "=", "<>": "<>", "!=": "<>", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_STATEMENTS = (
    "CREATE",
    "INSERT",
    "DROP",
    "SET",
    "UNSET",
    "SHOW",
    "LIST",
    "DESCRIBE",
    "EXPLAIN",
    "SELECT",
    "TERMINATE",
    "ASSERT",
)


@attrs.frozen
class _Token:
    kind: str
    text: str
    at: int
    end: int


@cache
def _dialect() -> Any:
    """Return the dialect, whose tokens are words, quoted names, texts, numbers and ksqlDB's operators."""
    with extra("sql", "keyed.sql"):
        from sqlglot.dialects.dialect import Dialect
        from sqlglot.tokens import Tokenizer as BaseTokenizer
        from sqlglot.tokens import TokenType  # type: ignore[attr-defined]

    class Ksql(Dialect):
        class Tokenizer(BaseTokenizer):
            QUOTES = ["'"]  # noqa: RUF012 - as the base class has it
            IDENTIFIERS = ['"', "`"]  # noqa: RUF012
            KEYWORDS = {  # noqa: RUF012
                "->": TokenType.ARROW,
                "=>": TokenType.FARROW,
                "<>": TokenType.NEQ,
                "!=": TokenType.NEQ,
                "<=": TokenType.LTE,
                ">=": TokenType.GTE,
                ":=": TokenType.COLON_EQ,
                "||": TokenType.DPIPE,
            }

    return Ksql()


def _tokens(text: Text) -> list[_Token]:
    from sqlglot.errors import TokenError

    try:
        found = _dialect().tokenize(text.text)
    except TokenError as error:
        text.fail(f"the text cannot be cut into words: {error}", 0)
    kinds = {"VAR": "word", "IDENTIFIER": "name", "STRING": "text", "NUMBER": "number"}
    tokens: list[_Token] = []
    for each in found:
        kind = kinds.get(each.token_type.name, "sign")
        shown = each.text
        if kind == "sign" and shown[:1].isalpha():
            kind = "word"
        if kind == "number" and tokens and tokens[-1].text == "." and tokens[-1].end == each.start:
            # ``.5`` comes as two tokens.
            before = tokens[-2] if len(tokens) > 1 else None
            if before is None or (before.kind == "sign" and before.text not in {")", "]"}):
                tokens[-1] = _Token("number", "." + shown, tokens[-1].at, each.end + 1)
                continue
        tokens.append(_Token(kind, shown, each.start, each.end + 1))
    tokens.append(_Token("end", "", len(text.text), len(text.text)))
    return tokens


def parse(script: str, parameters: Parameters | None = None) -> tuple[Text, list[tree.Statement]]:
    """Return the statements of a script.

    Args:
        script: The text.
        parameters: Values for ``?`` or ``$name`` in it.

    Raises:
        SqlError: A syntax error, or a parameter without a value.
        DefinitionError: A value for a parameter that the text does not have.
    """
    text, bound = Text(script), BoundParameters(parameters)
    found = _Parser(text, _tokens(text), bound).statements()
    bound.check_used()
    return text, found


def parse_type(type_: str) -> SqlType:
    """Return the type that a text names.

    Raises:
        SqlError: It names none.
    """
    text = Text(type_)
    return _Parser(text, _tokens(text), BoundParameters(None)).single_type()


def _is_mark(token: _Token) -> bool:
    return token.kind == "sign" and token.text == "?"


class _Parser:
    def __init__(self, text: Text, tokens: list[_Token], parameters: BoundParameters) -> None:
        self._text = text
        self._tokens = tokens
        self._parameters = parameters
        #: Number of each ``?`` by its place.
        self._marks = {each.at: number for number, each in enumerate(each for each in tokens if _is_mark(each))}
        #: The types of ``CREATE TYPE``.
        self._types: dict[str, SqlType] = {}
        self._next = 0

    # Tokens.

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _ahead(self, count: int = 1) -> _Token:
        return self._tokens[min(self._next + count, len(self._tokens) - 1)]

    def _take(self) -> _Token:
        token = self._token
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return token

    def _at_words(self, *words: str) -> bool:
        return all(
            (token := self._ahead(i)).kind == "word" and token.text.upper() == word for i, word in enumerate(words)
        )

    def _word(self, *words: str) -> bool:
        """Take words if they come next."""
        if not self._at_words(*words):
            return False
        self._next += len(words)
        return True

    def _sign(self, sign: str) -> bool:
        if self._token.kind != "sign" or self._token.text != sign:
            return False
        self._next += 1
        return True

    def _expect_word(self, *words: str) -> None:
        for word in words:
            if not self._word(word):
                self._unexpected(word)

    def _expect_sign(self, sign: str) -> None:
        if not self._sign(sign):
            self._unexpected(repr(sign))

    def _unexpected(self, wanted: str) -> Any:
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
        if token.kind == "name":
            return self._take().text
        if token.kind != "word" or token.text.upper() in _RESERVED:
            return str(self._unexpected(what))
        if token.text[0].isdigit():
            self._text.fail(f"a name that starts with a digit is written in quotes: `{token.text}`", token.at)
        return self._take().text.upper()

    def _at_name(self) -> bool:
        token = self._token
        return token.kind == "name" or (token.kind == "word" and token.text.upper() not in _CLAUSES)

    def _string(self) -> str:
        if self._token.kind != "text":
            self._unexpected("a text in single quotes")
        return self._take().text

    def _integer(self) -> int:
        if self._token.kind != "number" or not self._token.text.isdigit():
            self._unexpected("a whole number")
        return int(self._take().text)

    def _duration(self) -> int:
        count = self._integer()
        token = self._take()
        unit = token.text.upper().removesuffix("S")
        if unit not in UNITS:
            self._text.fail(f"unknown unit of time {token.text}; units are SECONDS, MINUTES, HOURS and so on", token.at)
        return count * UNITS[unit]

    # Statements.

    def single_type(self) -> SqlType:
        """Return the type that the whole text names."""
        found = self._type()
        if self._token.kind != "end":
            self._unexpected("the end")
        return found

    def statements(self) -> list[tree.Statement]:
        found: list[tree.Statement] = []
        while self._token.kind != "end":
            if self._sign(";"):
                continue
            statement = self._statement()
            if statement is not None:
                found.append(statement)
            if self._token.kind != "end":
                self._expect_sign(";")
        return found

    def _statement(self) -> tree.Statement | None:
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
            return tree.SetOption(name, self._string(), at=at)
        if self._word("UNSET"):
            return tree.SetOption(self._string(), None, at=at)
        if self._word("SHOW") or self._word("LIST"):
            token = self._take()
            what = token.text.upper()
            if what not in ("STREAMS", "TABLES", "TYPES", "FUNCTIONS", "QUERIES"):
                self._text.fail("SHOW lists STREAMS, TABLES, TYPES, FUNCTIONS or QUERIES", token.at)
            self._word("EXTENDED")
            return tree.Show(what, types=dict(self._types), at=at)
        if self._word("DESCRIBE"):
            self._word("EXTENDED")
            name = self._identifier()
            self._word("EXTENDED")
            return tree.Show("DESCRIBE", name, at=at)
        if self._word("EXPLAIN"):
            if self._at_words("SELECT"):
                return tree.Show("EXPLAIN", query=self._select(), at=at)
            return tree.Show("EXPLAIN", self._identifier(), at=at)
        word = self._token.text
        self._unexpected(f"a statement{nearest(word, _STATEMENTS)}")
        return None

    def _create(self, at: int) -> tree.Statement | None:
        replace = self._word("OR", "REPLACE")
        if self._word("TYPE"):
            return self._create_type(at)
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
            query = self._select()
            return tree.CreateAs(kind, name, options, query, replace, only_if_missing, at=at)
        return tree.CreateSource(kind, name, elements, options, replace, only_if_missing, read_only, at=at)

    def _create_type(self, at: int) -> tree.Statement:
        self._word("IF", "NOT", "EXISTS")
        name = self._identifier()
        self._expect_word("AS")
        type_ = self._type()
        self._types[name.upper()] = type_
        return tree.CreateType(name, type_, at=at)

    def _element(self) -> tree.Element:
        at = self._token.at
        name = self._identifier("the name of a column")
        type_ = self._type()
        if self._word("PRIMARY", "KEY"):
            return tree.Element(name, type_, "primary", at=at)
        if self._word("KEY"):
            return tree.Element(name, type_, "key", at=at)
        if self._word("HEADERS"):
            return tree.Element(name, type_, "headers", at=at)
        if self._word("HEADER"):
            self._expect_sign("(")
            header = self._string()
            self._expect_sign(")")
            return tree.Element(name, type_, "header", header, at=at)
        return tree.Element(name, type_, at=at)

    def _options(self) -> dict[str, Any]:
        if not self._word("WITH"):
            return {}
        self._expect_sign("(")
        options: dict[str, Any] = {}
        while not self._sign(")"):
            name = self._identifier("an option").upper()
            self._expect_sign("=")
            value = self._primary()
            if not isinstance(value, tree.Literal):
                self._text.fail(f"the value of {name} must be a literal", value.at)
            options[name] = value
            if not self._sign(","):
                self._expect_sign(")")
                break
        return options

    def _insert(self, at: int) -> tree.Statement:
        name = self._identifier()
        columns: tuple[str, ...] = ()
        if self._sign("("):
            columns = self._listed(self._identifier, close=")")
        if self._word("VALUES"):
            self._expect_sign("(")
            return tree.InsertValues(name, columns, self._listed(self._expression, close=")"), at=at)
        self._options()
        return tree.InsertSelect(name, self._select(), at=at)

    def _drop(self, at: int) -> tree.Statement:
        token = self._take()
        kind = token.text.upper()
        if kind not in ("STREAM", "TABLE", "TYPE"):
            self._text.fail("DROP takes STREAM, TABLE or TYPE", token.at)
        if_exists = self._word("IF", "EXISTS")
        name = self._identifier()
        deletes_topic = self._word("DELETE", "TOPIC")
        return tree.Drop(kind, name, if_exists, deletes_topic, at=at)

    # Queries.

    def _select(self) -> tree.SelectQuery:
        at = self._token.at
        self._expect_word("SELECT")
        items = self._listed(self._item)
        self._expect_word("FROM")
        if self._token.text == "(":
            self._text.fail("a subquery in FROM is not supported; create a stream or table of it first", self._token.at)
        source = self._from()
        joins = []
        while (join := self._join()) is not None:
            joins.append(join)
        window = self._window() if self._word("WINDOW") else None
        where = self._expression() if self._word("WHERE") else None
        group_by: tuple[Any, ...] = ()
        partition_by: tuple[Any, ...] = ()
        if self._word("GROUP", "BY"):
            group_by = self._grouping()
        if self._word("PARTITION", "BY"):
            partition_at = self._token.at
            partition_by = self._grouping()
            if not partition_by:
                self._text.fail(
                    "PARTITION BY takes at least one expression; write PARTITION BY NULL for no key", partition_at
                )
        having = self._expression() if self._word("HAVING") else None
        emit = None
        if self._word("EMIT"):
            emit = "CHANGES" if self._word("CHANGES") else "FINAL"
            if emit == "FINAL":
                self._expect_word("FINAL")
        limit = self._integer() if self._word("LIMIT") else None
        return tree.SelectQuery(
            items, source, tuple(joins), window, where, group_by, partition_by, having, emit, limit, at=at
        )

    def _grouping(self) -> tuple[Any, ...]:
        if self._token.text == "(" and self._token.kind == "sign":
            # ``GROUP BY (a, b)`` is ``GROUP BY a, b``, and ``GROUP BY (a)`` an expression.
            start = self._next
            self._take()
            if self._sign(")"):
                return ()
            inner = self._listed(self._value)
            if self._sign(")") and len(inner) > 1:
                if self._sign(","):
                    return (*inner, *self._listed(self._value))
                return inner
            self._next = start
        return self._listed(self._value)

    def _item(self) -> tree.Item:
        at = self._token.at
        if self._sign("*"):
            return tree.Item(tree.Star(at=at), None, at=at)
        if self._at_name() and self._ahead().text == "." and self._ahead(2).text == "*":
            source = self._identifier()
            self._next += 2
            return tree.Item(tree.Star(source, at=at), None, at=at)
        value = self._expression()
        if self._token.text == "->" and self._ahead().text == "*":
            self._next += 2
            return tree.Item(tree.Star(struct=value, at=at), None, at=at)
        alias = None
        if self._word("AS") or self._at_name():
            number, name = self._token, self._ahead()
            if number.kind == "number" and name.kind == "word" and name.at == number.end:
                # An alias may begin with a digit.
                self._next += 2
                alias = f"{number.text}{name.text}".upper()
            else:
                alias = self._identifier("an alias")
        return tree.Item(value, alias, at=at)

    def _from(self) -> tree.From:
        at = self._token.at
        name = self._identifier("the name of a stream or table")
        if self._token.text == "(" and name in {"TUMBLE", "HOP", "SESSION", "CUMULATE"}:
            self._text.fail(
                "windows of Flink SQL's form are not supported; write FROM stream WINDOW TUMBLING (SIZE 1 HOUR)", at
            )
        if self._at_words("MATCH_RECOGNIZE"):
            self._text.fail("MATCH_RECOGNIZE is not supported; write a KeyedProcessFunction", self._token.at)
        alias = name
        joins = ("INNER", "LEFT", "RIGHT", "FULL", "JOIN")
        if self._word("AS") or (self._at_name() and self._token.text.upper() not in joins):
            alias = self._identifier("an alias")
        return tree.From(name, alias, at=at)

    def _join(self) -> tree.Join | None:
        at = self._token.at
        kind = "INNER"
        for word in ("INNER", "LEFT", "RIGHT", "FULL"):
            if self._word(word):
                kind = word
                if word != "INNER":
                    self._word("OUTER")
                self._expect_word("JOIN")
                break
        else:
            if self._word("OUTER", "JOIN"):
                kind = "FULL"
            elif not self._word("JOIN"):
                return None
        right = self._from()
        within = None
        if self._word("WITHIN"):
            if self._sign("("):
                before = self._duration()
                self._expect_sign(",")
                after = self._duration()
                self._expect_sign(")")
            else:
                before = after = self._duration()
            grace = self._duration() if self._word("GRACE", "PERIOD") else None
            within = (before, after, grace)
        self._expect_word("ON")
        return tree.Join(kind, right, self._expression(), within, at=at)

    def _window(self) -> tree.WindowClause:
        at = self._token.at
        if self._at_name() and self._ahead().kind == "word":
            self._take()
        token = self._take()
        kind = token.text.upper()
        if kind not in ("TUMBLING", "HOPPING", "SESSION"):
            self._text.fail(
                f"windows are TUMBLING, HOPPING or SESSION{nearest(kind, ('TUMBLING', 'HOPPING', 'SESSION'))}", token.at
            )
        self._expect_sign("(")
        found: dict[str, int] = {}
        if kind == "SESSION":
            found["SIZE"] = self._duration()
            self._word("GAP")
        else:
            self._expect_word("SIZE")
            found["SIZE"] = self._duration()
        while self._sign(","):
            for words in (("ADVANCE", "BY"), ("RETENTION",), ("GRACE", "PERIOD")):
                if self._word(*words):
                    found[words[0]] = self._duration()
                    break
            else:
                self._unexpected("ADVANCE BY, RETENTION or GRACE PERIOD")
        self._expect_sign(")")
        if (kind == "HOPPING") != ("ADVANCE" in found):
            self._text.fail("HOPPING windows take SIZE and ADVANCE BY, the other windows no ADVANCE BY", at)
        size = found["SIZE"]
        return tree.WindowClause(
            kind, size, found.get("ADVANCE", size), found.get("RETENTION"), found.get("GRACE"), at=at
        )

    # Types.

    def _type(self) -> SqlType:
        token = self._token
        name = self._identifier("a type")
        if name == "ARRAY":
            self._expect_sign("<")
            element = self._type()
            self._expect_sign(">")
            return array(element)
        if name == "MAP":
            self._expect_sign("<")
            key = self._type()
            self._expect_sign(",")
            value = self._type()
            self._expect_sign(">")
            return map_of(key, value)
        if name == "STRUCT":
            if self._sign("<>"):
                return struct()
            self._expect_sign("<")
            if self._sign(">"):
                return struct()
            fields = self._listed(lambda: (self._identifier("the name of a field"), self._type()), close=">")
            return struct(*fields)
        if name in ("DECIMAL", "DEC", "NUMERIC"):
            self._expect_sign("(")
            precision = self._integer()
            scale = self._integer() if self._sign(",") else 0
            self._expect_sign(")")
            if not 1 <= precision <= 38 or scale > precision:
                self._text.fail(f"DECIMAL({precision}, {scale}): 1 to 38 digits, and no more after the point", token.at)
            return decimal(precision, scale)
        found = NAMED.get(name) or self._types.get(name)
        if found is None:
            self._text.fail(f"unknown type {name}{nearest(name, (*NAMED, 'DECIMAL', 'ARRAY', 'MAP'))}", token.at)
        if name == "VARCHAR" and self._sign("("):
            if not self._word("STRING"):
                self._integer()
            self._expect_sign(")")
        return found

    # Expressions.

    def _expression(self) -> Any:
        at = self._token.at
        left = self._conjunction()
        while self._word("OR"):
            left = tree.Binary("OR", left, self._conjunction(), at=at)
        return left

    def _conjunction(self) -> Any:
        at = self._token.at
        left = self._negation()
        while self._word("AND"):
            left = tree.Binary("AND", left, self._negation(), at=at)
        return left

    def _negation(self) -> Any:
        at = self._token.at
        if self._word("NOT"):
            return tree.Unary("NOT", self._negation(), at=at)
        return self._predicate()

    def _predicate(self) -> Any:
        at = self._token.at
        left = self._value()
        while True:
            if self._token.kind == "sign" and self._token.text in _COMPARISONS:
                sign = _COMPARISONS[self._take().text]
                left = tree.Binary(sign, left, self._value(), at=at)
            elif self._word("IS"):
                negated = self._word("NOT")
                if self._word("DISTINCT", "FROM"):
                    left = tree.Binary("IS DISTINCT FROM", left, self._value(), at=at)
                else:
                    self._expect_word("NULL")
                    left = tree.Unary("IS NULL", left, at=at)
                if negated:
                    left = tree.Unary("NOT", left, at=at)
            else:
                start = self._next
                negated = self._word("NOT")
                found = self._operator(left, at)
                if found is None:
                    self._next = start
                    return left
                left = tree.Unary("NOT", found, at=at) if negated else found

    def _operator(self, left: Any, at: int) -> Any:
        if self._word("BETWEEN"):
            lower = self._value()
            self._expect_word("AND")
            return tree.Between(left, lower, self._value(), at=at)
        if self._word("IN"):
            self._expect_sign("(")
            return tree.In(left, self._listed(self._expression, close=")"), at=at)
        if self._word("LIKE"):
            pattern = self._value()
            escape = self._string() if self._word("ESCAPE") else None
            if escape is not None and len(escape) != 1:
                self._text.fail("ESCAPE takes one character", at)
            return tree.Binary("LIKE", left, pattern, escape, at=at)
        return None

    def _value(self) -> Any:
        at = self._token.at
        left = self._term()
        while self._token.kind == "sign" and self._token.text in ("+", "-", "||"):
            sign = self._take().text
            left = tree.Binary("+" if sign == "||" else sign, left, self._term(), at=at)
        return left

    def _term(self) -> Any:
        at = self._token.at
        left = self._factor()
        while self._token.kind == "sign" and self._token.text in ("*", "/", "%"):
            if self._token.text == "*" and self._ahead().text.upper() in {"FROM", ","}:
                break
            left = tree.Binary(self._take().text, left, self._factor(), at=at)
        return left

    def _factor(self) -> Any:
        at = self._token.at
        if self._sign("-"):
            operand = self._suffixed(self._primary()) if self._token.kind == "number" else self._factor()
            if isinstance(operand, tree.Literal) and operand.type.is_number:
                value = _negative(operand)
                return tree.Literal(value, _integer_type(value, operand.type), at=at)
            return tree.Unary("-", operand, at=at)
        if self._sign("+"):
            return self._factor()
        found = self._suffixed(self._primary())
        if isinstance(found, tree.Literal) and found.type == BIGINT and found.value >= 2**63:
            self._text.fail("a whole number goes up to 9223372036854775807; write a point for a decimal", at)
        return found

    def _suffixed(self, base: Any) -> Any:
        while True:
            at = self._token.at
            if self._sign("["):
                index = self._value()
                self._expect_sign("]")
                base = tree.Subscript(base, index, at=at)
            elif self._token.text == "->" and self._token.kind == "sign" and self._ahead().text != "*":
                self._take()
                base = tree.Field(base, self._identifier("the name of a field"), at=at)
            else:
                return base

    def _primary(self) -> Any:
        token = self._token
        at = token.at
        if token.kind == "text":
            return tree.Literal(self._take().text, STRING, at=at)
        if token.kind == "number":
            found = _number(self._take().text, at)
            if found.value > (2**63 if found.type == BIGINT else sys.float_info.max) and found.type.base != "DECIMAL":
                self._text.fail(f"the number is larger than the largest {found.type}", at)
            return found
        if self._sign("-"):
            return self._negated_literal(at)
        if token.kind == "sign" and token.text == "(":
            return self._parenthesis()
        if _is_mark(token):
            self._take()
            return self._parameters.literal(self._text, self._marks[at], at)
        if token.kind == "word" and token.text.startswith("$"):
            return self._parameters.literal(self._text, self._take().text[1:], at)
        if token.kind == "word":
            found = self._keyword(token.text.upper(), at)
            if found is not None:
                return found
        name = self._identifier("an expression")
        if token.kind == "word" and self._token.text == "=>":
            return self._lambda((name,), at)
        if self._token.kind == "sign" and self._token.text == "(":
            self._take()
            if self._sign("*"):
                self._expect_sign(")")
                return tree.Call(name, (), condition=self._filter(), at=at)
            is_distinct = self._ahead().text not in (",", ")") and self._word("DISTINCT")
            arguments = () if self._sign(")") else self._listed(self._expression, close=")")
            return tree.Call(name, arguments, is_distinct, self._filter(), at=at)
        if self._token.text == "." and self._token.kind == "sign":
            self._take()
            return tree.Name(self._identifier("the name of a column"), name, at=at)
        return tree.Name(name, at=at)

    def _filter(self) -> Any:
        """Return the condition of ``FILTER (WHERE condition)``, if it comes next."""
        if not self._at_words("FILTER") or self._ahead().text != "(":
            return None
        self._next += 2
        self._expect_word("WHERE")
        condition = self._expression()
        self._expect_sign(")")
        return condition

    def _negated_literal(self, at: int) -> Any:
        value = self._primary()
        if not isinstance(value, tree.Literal) or not value.type.is_number:
            self._unexpected("a number")
        return tree.Literal(_negative(value), value.type, at=at)

    def _parenthesis(self) -> Any:
        at = self._take().at
        start = self._next
        names = []
        while self._at_name():
            names.append(self._identifier())
            if not self._sign(","):
                break
        if names and self._sign(")") and self._token.text == "=>":
            return self._lambda(tuple(names), at)
        self._next = start
        inner = self._expression()
        self._expect_sign(")")
        return inner

    def _lambda(self, names: tuple[str, ...], at: int) -> Any:
        self._expect_sign("=>")
        return tree.Lambda(names, self._expression(), at=at)

    def _keyword(self, word: str, at: int) -> Any:
        after = self._ahead().text
        if word in ("TRUE", "FALSE"):
            self._take()
            return tree.Literal(word == "TRUE", BOOLEAN, at=at)
        if word == "NULL":
            self._take()
            return tree.Literal(None, NULL, at=at)
        if word == "CASE":
            return self._case(at)
        if word == "CAST" and after == "(":
            self._next += 2
            value = self._expression()
            self._expect_word("AS")
            type_ = self._type()
            self._expect_sign(")")
            return tree.Cast(value, type_, at=at)
        if word == "ARRAY" and after == "[":
            self._next += 2
            return tree.MakeArray(() if self._sign("]") else self._listed(self._expression, close="]"), at=at)
        if word == "MAP" and after == "(":
            self._next += 2
            return tree.MakeMap(() if self._sign(")") else self._listed(self._entry, close=")"), at=at)
        if word == "STRUCT" and after == "(":
            self._next += 2
            return tree.MakeStruct(() if self._sign(")") else self._listed(self._field, close=")"), at=at)
        if word in ("REPLACE", "LEFT", "RIGHT", "IF") and after == "(":
            self._next += 2
            arguments = () if self._sign(")") else self._listed(self._expression, close=")")
            return tree.Call(word, arguments, at=at)
        return None

    def _entry(self) -> tuple[Any, Any]:
        key = self._expression()
        self._expect_sign(":=")
        return key, self._expression()

    def _field(self) -> tuple[str, Any]:
        name = self._identifier("the name of a field")
        self._expect_sign(":=")
        return name, self._expression()

    def _case(self, at: int) -> Any:
        self._take()
        operand = None if self._at_words("WHEN") else self._expression()
        whens = []
        while self._word("WHEN"):
            condition = self._expression()
            self._expect_word("THEN")
            whens.append((condition, self._expression()))
        if not whens:
            self._unexpected("WHEN")
        otherwise = self._expression() if self._word("ELSE") else None
        self._expect_word("END")
        return tree.Case(operand, tuple(whens), otherwise, at=at)


def _negative(number: tree.Literal) -> Any:
    # Python's minus rounds a decimal, and here it keeps its digits.
    is_decimal = number.type.base == "DECIMAL" and number.value
    return number.value.copy_negate() if is_decimal else -number.value


def _integer_type(value: Any, type_: SqlType) -> SqlType:
    if type_ not in (INTEGER, BIGINT):
        return type_
    return INTEGER if -(2**31) <= value < 2**31 else BIGINT


def _number(text: str, at: int) -> tree.Literal:
    from decimal import Decimal

    if text.isdigit():
        value = int(text)
        return tree.Literal(value, _integer_type(value, INTEGER), at=at)
    if "e" in text.lower():
        return tree.Literal(float(text), DOUBLE, at=at)
    exact = Decimal(text)
    digits, exponent = len(exact.as_tuple().digits), -int(exact.as_tuple().exponent)
    return tree.Literal(exact, decimal(max(digits, exponent), exponent), at=at)

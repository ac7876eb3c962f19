"""The words of a script: an expression is a range of them, whose text goes to DuckDB.

Errors name line and column, with the line of the text. Values for ``?`` and ``$name`` are bound by DuckDB, and never
pasted.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NoReturn, TypeAlias

import attrs

from keyed.base.arguments import nearest, shown
from keyed.errors import DefinitionError, SqlError


class Text:
    """The text of a script, which raises errors at places in it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def place(self, at: int) -> tuple[int, int]:
        """Return line and column of an offset, both from 1."""
        before = self.text[:at]
        return before.count("\n") + 1, at - (before.rfind("\n") + 1) + 1

    def check(self, *rules: tuple[Any, str, int]) -> None:
        """Raise the error of the first rule that is broken: whether it is, the message and the offset.

        Raises:
            SqlError: One is.
        """
        for is_broken, message, at in rules:
            if is_broken:
                self.fail(message, at)

    def fail(self, message: str, at: int) -> NoReturn:
        """Raise an error at an offset.

        Raises:
            SqlError: Always.
        """
        line, column = self.place(at)
        shown = self.text.split("\n")[line - 1] if self.text else ""
        first = max(0, column - 61)
        caret = " " * (column - 1 - first) + "^"
        raise SqlError(
            f"line {line}, column {column}: {message}\n  {shown[first : first + 120]}\n  {caret}",
            line=line,
            column=column,
        )


_PATTERN = re.compile(
    r"""
    (?P<blank>\s+|--[^\n]*|/\*.*?\*/)
  | (?P<number>\d[\d_]*(?:\.\d*)?(?:[eE][+-]?\d+)?(?![A-Za-z_\d])|\.\d+(?:[eE][+-]?\d+)?)
  | (?P<text>'[^']*(?:''[^']*)*')
  | (?P<name>`(?:``|[^`])[^`]*(?:``[^`]*)*`|"(?:""|[^"])[^"]*(?:""[^"]*)*")
  | (?P<parameter>\$[A-Za-z_]\w*|\?)
  | (?P<word>[^\W\d]\w*|\d\w+)
  | (?P<sign>->>|->|=>|<>|!=|<=|>=|:=|::|\|\||==|//|\*\*|<<|>>|!~~\*|!~~|~~\*|~~|!~|[-+*/%^&|~!<>=.,;:()\[\]{}@#])
    """,
    re.VERBOSE | re.DOTALL,
)
_OPEN, _CLOSE = {"(": ")", "[": "]", "{": "}"}, {")", "]", "}"}
#: Brackets that may be inside each other: more would exhaust the stack of DuckDB's parser.
_DEPTH = 500


@attrs.frozen
class SqlToken:
    """A word of a script.

    Attributes:
        kind: ``word``, ``name`` (in quotes), ``text``, ``number``, ``parameter``, ``sign`` or ``end``.
        text: As DuckDB reads it: quoted names are in double quotes.
        at: Its offset in the script.
        end: The offset after it.
    """

    kind: str
    text: str
    at: int = attrs.field(default=0, eq=False)
    end: int = attrs.field(default=0, eq=False)

    @property
    def upper(self) -> str:
        """The word in upper case, or the sign; empty for anything else, so that a quoted name is no keyword."""
        return self.text.upper() if self.kind in ("word", "sign") else ""

    @property
    def identifier(self) -> str:
        """The name that it is, without quotes."""
        return self.text[1:-1].replace('""', '"') if self.kind == "name" else self.text

    @property
    def is_identifier(self) -> bool:
        """True if it may be a name."""
        return self.kind in ("word", "name")

    @property
    def folded(self) -> str:
        """The form in which equal expressions have equal words: DuckDB ignores the case of words and names."""
        if self.kind == "word":
            return self.text.lower()
        if self.kind == "name":
            bare = self.identifier
            return bare.lower() if re.fullmatch(r"[A-Za-z_]\w*", bare, re.ASCII) else self.text.lower()
        return self.text


def quoted(identifier: str) -> str:
    """Return a name in double quotes, as DuckDB reads it."""
    return '"' + identifier.replace('"', '""') + '"'


def name(identifier: str) -> SqlToken:
    """Return a quoted name."""
    return SqlToken("name", quoted(identifier))


def sign(text: str) -> SqlToken:
    """Return a sign."""
    return SqlToken("sign", text)


def word(text: str) -> SqlToken:
    """Return a word."""
    return SqlToken("word", text)


def tokens(text: Text) -> list[SqlToken]:
    """Return the words of a script, the last of kind ``end``.

    Raises:
        SqlError: A character is none of SQL, a quote is not closed, or brackets do not match.
    """
    words: list[SqlToken] = []
    script, at = text.text, 0
    while at < len(script):
        match = _PATTERN.match(script, at)
        if match is None:
            quote = script[at]
            if quote in "'\"`" or script.startswith("/*", at):
                text.fail(f"{'/*' if quote == '/' else quote} is not closed", at)
            text.fail(f"the character {quote!r} is none of SQL", at)
        kind = str(match.lastgroup)
        if kind != "blank":
            shown = match.group()
            if kind == "name" and shown[0] == "`":
                shown = '"' + shown[1:-1].replace("``", "`").replace('"', '""') + '"'
            if kind == "word" and shown[0].isdigit():
                text.fail(f"a name that starts with a digit is written in quotes: `{shown}`", at)
            words.append(SqlToken(kind, shown, at, match.end()))
        at = match.end()
    words.append(SqlToken("end", "", len(script), len(script)))
    _check_brackets(text, words)
    return words


def _check_brackets(text: Text, words: Sequence[SqlToken]) -> None:
    opened: list[SqlToken] = []
    for token in words:
        if token.upper in _OPEN:
            opened.append(token)
            if len(opened) > _DEPTH:
                text.fail(f"more than {_DEPTH} brackets are inside each other", token.at)
        elif token.upper in _CLOSE:
            if not opened or _OPEN[opened[-1].text] != token.text:
                text.fail(f"{token.text!r} closes nothing", token.at)
            opened.pop()
    if opened:
        text.fail(f"{opened[-1].text!r} is not closed", opened[-1].at)


def sql(part: Sequence[SqlToken]) -> str:
    """Return the text of words, for DuckDB."""
    return " ".join(each.text for each in part)


def folded(part: Sequence[SqlToken]) -> str:
    """Return the form of words that is equal for equal expressions."""
    return " ".join(each.folded for each in part)


def closing(part: Sequence[SqlToken], start: int) -> int:
    """Return the place of the bracket that belongs to the one at a place: it closes it, or is closed by it."""
    step = 1 if part[start].text in _OPEN else -1
    depth, place = 0, start
    while True:
        depth += (part[place].upper in _OPEN) - (part[place].upper in _CLOSE)
        if depth == 0:
            return place
        place += step


def split(part: Sequence[SqlToken], separator: str = ",") -> list[list[SqlToken]]:
    """Return the parts between separators that are in no brackets; none of nothing."""
    parts: list[list[SqlToken]] = [[]]
    depth = 0
    for token in part:
        depth += (token.upper in _OPEN) - (token.upper in _CLOSE)
        if depth == 0 and token.upper == separator:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts if part else []


def bare(part: Sequence[SqlToken]) -> Sequence[SqlToken]:
    """Return an expression without brackets around the whole of it; those around several are a row."""
    while len(part) > 2 and part[0].text == "(" and closing(part, 0) == len(part) - 1 and len(split(part[1:-1])) == 1:
        part = part[1:-1]
    return part


def calls(part: Sequence[SqlToken]) -> Iterator[tuple[int, int]]:
    """Yield the places of the name and the closing bracket of each call."""
    for place in range(len(part) - 1):
        is_member = place and part[place - 1].upper in (".", "->")
        if part[place].is_identifier and part[place + 1].upper == "(" and not is_member:
            yield place, closing(part, place + 1)


#: Values of ``?`` in their order, or of ``$name`` by name.
Given: TypeAlias = Sequence[Any] | Mapping[str, Any]


@attrs.frozen
class BoundParameter(SqlToken):
    """A parameter with its value; equal ones have equal values."""

    value: Any = None


def bound(text: Text, words: Sequence[SqlToken], parameters: Given | None) -> tuple[list[SqlToken], dict[str, Any]]:
    """Return the words of a text with the values of its parameters, and these by the names that DuckDB has of them.

    Args:
        text: The text.
        words: Its words.
        parameters: The values.

    Raises:
        DefinitionError: They are neither a list nor a dictionary, a value has no SQL type, or is of no parameter.
        SqlError: A parameter has no value.
    """
    if isinstance(parameters, str | bytes) or not isinstance(parameters, Sequence | Mapping | None):
        raise DefinitionError(f"parameters={shown(parameters)} must be a list for ?, or a dictionary for $name")
    is_named = isinstance(parameters, Mapping)
    named: dict[Any, Any] = dict(parameters.items() if isinstance(parameters, Mapping) else enumerate(parameters or ()))
    values = {f"p_{name}": _checked(name, value) for name, value in named.items()}
    bound_words: list[SqlToken] = []
    used: set[Any] = set()
    marks = 0
    quantified = -1
    for place, token in enumerate(words):
        if token.upper == "PATTERN" and words[place + 1].upper == "(":
            quantified = words[closing(words, place + 1)].at
        if token.kind != "parameter" or (token.text == "?" and token.at < quantified):
            # In PATTERN (A? B) it is a quantifier.
            bound_words.append(token if token.kind != "parameter" else attrs.evolve(token, kind="sign"))
            continue
        name: Any = token.text[1:] if token.text != "?" else marks
        marks += token.text == "?"
        if name not in named:
            known = nearest(str(name), map(str, named)) if is_named else ""
            text.fail(f"parameters= has no value for {token.text}{known}", token.at)
        used.add(name)
        bound_words.append(BoundParameter("parameter", f"$p_{name}", token.at, token.end, values[f"p_{name}"]))
    unused = [name for name in named if name not in used]
    if unused:
        what = f"${unused[0]}" if is_named else f"the ? number {int(unused[0]) + 1}"
        raise DefinitionError(f"parameters= has a value for {what}, which the text does not have")
    return bound_words, values


def _checked(name: Any, value: Any) -> Any:
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC).replace(tzinfo=None)
    fits = isinstance(value, bool | float | str | bytes | dt.date | None)
    fits |= isinstance(value, int) and -(2**63) <= value < 2**63
    fits |= isinstance(value, Decimal) and value.is_finite() and len(value.as_tuple().digits) <= 38
    if fits:
        return value
    raise DefinitionError(f"parameters: the value {shown(value)} of {name!r} has no SQL type")

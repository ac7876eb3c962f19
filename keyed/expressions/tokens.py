"""The words of a script: an expression is a range of them, whose text goes to DuckDB."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import attrs

from keyed.expressions.sql_text import Text

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

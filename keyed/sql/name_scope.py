"""Names in expressions: what a query's expressions may name, and their words as DuckDB takes them over a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from keyed.formats.sql_types import BIGINT, INT, TIME, SqlType
from keyed.shown import nearest
from keyed.sql.engine import Columns, bind
from keyed.sql.script_errors import Text
from keyed.sql.statements import Parser
from keyed.sql.tokens import SqlToken, closing, name, opening, sign, split, sql, word
from keyed.vectorized import TIMESTAMP_COLUMN

#: Columns that each source has: their names in a script, in batches, and their types.
PSEUDO = {"ROWTIME": (TIMESTAMP_COLUMN, BIGINT), "ROWPARTITION": ("#partition", INT), "ROWOFFSET": ("#offset", BIGINT)}
BOUNDS = {"WINDOWSTART": ("WINDOWSTART", BIGINT), "WINDOWEND": ("WINDOWEND", BIGINT)}


@attrs.frozen
class Column:
    """A column of a relation.

    Attributes:
        name: Its name in the script.
        type: Its type.
        source: Alias of the stream or table that it is of; ``None`` for none.
        stored: Its name in batches.
        is_key: It is part of the key.
        is_pseudo: ``*`` leaves it out.
    """

    name: str
    type: SqlType
    source: str | None
    stored: str
    is_key: bool = False
    is_pseudo: bool = False


class NameScope:
    """The columns that expressions may name.

    Args:
        text: The script.
        columns: The columns.
        values: The values of parameters.
    """

    def __init__(self, text: Text, columns: Sequence[Column], values: Mapping[str, Any]) -> None:
        self.text = text
        self.columns = tuple(columns)
        self.values = values
        self.sources = {each.source.lower(): each.source for each in columns if each.source}
        self._stored: Columns = tuple((each.stored, each.type) for each in self.columns)
        self._types: dict[str, SqlType] = {}
        #: The columns of times of a day.
        self.times = tuple(stored for stored, type_ in self._stored if type_ == TIME)

    def find(self, source: str | None, column: str) -> Column | None:
        """Return the column of a name; ``None`` if there is none, or several."""
        found = [
            each
            for each in self.columns
            if each.name.lower() == column.lower() and source in (None, each.source and each.source.lower())
        ]
        return found[0] if len(found) == 1 else None

    def column(self, words: Sequence[SqlToken]) -> Column | None:
        """Return the column that resolved words consist of; ``None`` for any other expression."""
        if len(words) != 1 or words[0].kind != "name":
            return None
        return next((each for each in self.columns if each.stored == words[0].identifier), None)

    def resolved(self, words: Sequence[SqlToken]) -> tuple[SqlToken, ...]:
        """Return the words of an expression with the columns' names in batches, in DuckDB's syntax.

        Raises:
            SqlError: A name is ambiguous, or of an unknown source.
        """
        made: list[SqlToken] = []
        bound: set[str] = set()
        place = 0
        while place < len(words):
            token = words[place]
            after = words[place + 1] if place + 1 < len(words) else word("")
            before = words[place - 1] if place else word("")
            is_sign = after.kind == "sign"
            if token.kind == "sign" and token.text == "->":
                place = self._member(made, words, place, bound)
                continue
            if token.kind == "sign" and token.text == "=>":
                self.text.fail("write lambda x: ... in place of x => ...", token.at)
            if token.upper == "LAMBDA":
                bound |= _parameters(words, place + 1)
            if not token.is_identifier or (before.kind == "sign" and before.text == "."):
                made.append(token)
                place += 1
                continue
            if is_sign and after.text == "(":
                place = self._call(made, words, place)
                continue
            if token.upper in ("ARRAY", "MAP", "STRUCT") and is_sign and after.text in ("<", "<>"):
                place = self._type(made, words, place)
                continue
            if is_sign and after.text == "." and token.identifier.lower() in self.sources and place + 2 < len(words):
                made.append(self._qualified(token, words[place + 2]))
                place += 3
                continue
            made.append(token if token.identifier.lower() in bound else self._plain(token, before, after))
            place += 1
        return tuple(made)

    def _plain(self, token: SqlToken, before: SqlToken, after: SqlToken) -> SqlToken:
        """Return a name without a source."""
        if before.upper == "AS" or (before.kind == "number" and token.kind == "word"):
            # The type of a CAST; the unit of an interval.
            return token
        if after.kind == "sign" and after.text in (":", ":="):
            return token
        found = [each for each in self.columns if each.name.lower() == token.identifier.lower()]
        if len(found) > 1:
            owners = ", ".join(f"{each.source}.{each.name}" for each in found)
            self.text.fail(f"{token.identifier} is ambiguous: {owners}", token.at)
        return attrs.evolve(name(found[0].stored), at=token.at, end=token.end) if found else token

    def _qualified(self, source: SqlToken, column: SqlToken) -> SqlToken:
        found = self.find(source.identifier.lower(), column.identifier)
        if found is None:
            known = [each.name for each in self.columns if each.source == self.sources[source.identifier.lower()]]
            shown = self.sources[source.identifier.lower()]
            self.text.fail(f"{shown} has no column {column.identifier}{nearest(column.identifier, known)}", column.at)
        return attrs.evolve(name(found.stored), at=source.at, end=column.end)

    def _call(self, made: list[SqlToken], words: Sequence[SqlToken], place: int) -> int:
        """Add the name of a call, and of ksqlDB's constructors the whole call; return the place after it."""
        token = words[place]
        end = closing(words, place + 1)
        inner = words[place + 2 : end]
        pairs = split(inner)
        if token.upper == "MAP" and (not inner or all(any(each.text == ":=" for each in part) for part in pairs)):
            made += [word("MAP"), sign("{")]
            for number, part in enumerate(pairs):
                at = next(i for i, each in enumerate(part) if each.text == ":=")
                made += [sign(",")] * bool(number)
                made += [*self.resolved(part[:at]), sign(":"), *self.resolved(part[at + 1 :])]
            made.append(sign("}"))
            return end + 1
        if token.upper == "STRUCT" and not inner:
            self.text.fail("a STRUCT has a field or more: STRUCT(name := value)", token.at)
        if token.upper in ("REGEXP_EXTRACT", "REGEXP_EXTRACT_ALL") and len(pairs) > 1:
            kinds = [len(part) == 1 and part[0].kind == "text" for part in pairs[:2]]
            if kinds == [True, False]:
                self.text.fail(f"{token.upper} takes the text first and the pattern after it", token.at)
        if token.upper == "STRUCT" and all(any(each.text == ":=" for each in part) for part in pairs):
            made.append(attrs.evolve(token, text="struct_pack"))
            return place + 1
        if token.upper in ("EXPLODE", "CAST", "TRY_CAST"):
            made.append(attrs.evolve(token, text="unnest" if token.upper == "EXPLODE" else token.text))
            return place + 1
        made.append(token)
        return place + 1

    def _type(self, made: list[SqlToken], words: Sequence[SqlToken], place: int) -> int:
        """Add a type in ksqlDB's syntax as DuckDB writes it."""
        parser = Parser(self.text, [*words[place:], SqlToken("end", "", words[-1].end, words[-1].end)])
        found, taken = parser.type_and_length()
        made.append(SqlToken("word", found.duckdb, words[place].at, words[place + taken - 1].end))
        return place + taken

    def _member(self, made: list[SqlToken], words: Sequence[SqlToken], place: int, bound: set[str]) -> int:
        """Add ``a->b``: the field of a struct; of anything else the operator of JSON. Return the place after it."""
        arrow = words[place]
        start = len(made) - 1
        while start >= 0:
            token = made[start]
            if token.kind == "sign" and token.text in (")", "]", "}"):
                start = opening(made, start)
                if start and made[start - 1].is_identifier and made[start].text == "(":
                    start -= 1
                elif start and made[start].text == "[":
                    start -= 1
                    continue
                elif start and made[start].text == "{" and made[start - 1].upper == "MAP":
                    start -= 1
            if start >= 2 and made[start - 1].kind == "sign" and made[start - 1].text == ".":
                start -= 2
                continue
            break
        base = made[max(start, 0) :]
        field = words[place + 1] if place + 1 < len(words) else arrow
        if not field.is_identifier or not base:
            made.append(arrow)
            return place + 1
        if any(each.identifier.lower() in bound for each in base if each.is_identifier):
            type_ = None
        else:
            type_ = self.type_of([each for each in base if each.text != "unnest" or each.kind != "word"])
            if type_.base == "ARRAY":
                type_ = type_.element
        if type_ is not None and type_.base != "STRUCT":
            self.text.fail(f"-> takes a STRUCT, and this is of type {type_}", arrow.at)
        known = [each for each, _ in type_.fields] if type_ is not None else []
        if type_ is not None and field.identifier.lower() not in map(str.lower, known):
            self.text.fail(f"unknown field {field.identifier}{nearest(field.identifier, known)}", field.at)
        del made[max(start, 0) :]
        quoted = "'" + field.identifier.replace("'", "''") + "'"
        at = base[0].at
        made += [
            SqlToken("word", "struct_extract", at, at),
            sign("("),
            *base,
            sign(","),
            SqlToken("text", quoted),
            sign(")"),
        ]
        return place + 2

    def owners(self, words: Sequence[SqlToken]) -> set[str]:
        """Return the aliases of the sources whose columns an expression names, in lower case.

        Raises:
            SqlError: A name is ambiguous, or of an unknown column.
        """
        found = set()
        for place, token in enumerate(words):
            if not token.is_identifier or (place and words[place - 1].text in (".", "->")):
                continue
            after = words[place + 1].text if place + 1 < len(words) else ""
            if after == "." and token.identifier.lower() in self.sources:
                found.add(token.identifier.lower())
                continue
            same = [each for each in self.columns if each.name.lower() == token.identifier.lower() and each.source]
            if len(same) > 1 and after != "(":
                shown = ", ".join(f"{each.source}.{each.name}" for each in same)
                self.text.fail(f"{token.identifier} is ambiguous: {shown}", token.at)
            found |= {str(each.source).lower() for each in same}
        return found

    def type_of(self, words: Sequence[SqlToken]) -> SqlType:
        """Return the type of a resolved expression.

        Raises:
            SqlError: DuckDB does not accept it.
        """
        column = self.column(words)
        if column is not None:
            return column.type
        key = sql(words)
        if key not in self._types:
            self._types[key] = bind(self.text, self._stored, words, self.values)
        return self._types[key]


def _parameters(words: Sequence[SqlToken], place: int) -> set[str]:
    """Return the names of a lambda's parameters."""
    found = set()
    while place < len(words) and words[place].text != ":":
        if words[place].is_identifier:
            found.add(words[place].identifier.lower())
        place += 1
    return found


def replaced(words: Sequence[SqlToken], parts: Sequence[tuple[Sequence[SqlToken], SqlToken]]) -> tuple[SqlToken, ...]:
    """Return words with parts replaced by one word each; a part may not be within a longer name."""
    made: list[SqlToken] = []
    place = 0
    # The longest first: COUNT(*) FILTER (...) is no COUNT(*).
    texts = sorted(((list(map(_folded, part)), token) for part, token in parts), key=lambda each: -len(each[0]))
    mine = list(map(_folded, words))
    while place < len(words):
        for part, token in texts:
            if mine[place : place + len(part)] == part and not (place and words[place - 1].text == "."):
                made.append(attrs.evolve(token, at=words[place].at, end=words[place + len(part) - 1].end))
                place += len(part)
                break
        else:
            made.append(words[place])
            place += 1
    return tuple(made)


_folded: Callable[[SqlToken], str] = lambda token: token.folded  # noqa: E731

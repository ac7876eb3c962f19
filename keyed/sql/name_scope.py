"""Names in expressions: what a query's expressions may name, and their words as DuckDB takes them over a batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import chain, count
from typing import Any

import attrs

from keyed.base.arguments import nearest
from keyed.expressions.engine import Cell, Columns, SqlStep, bind, functions, keywords
from keyed.expressions.macros import OVER_LISTS
from keyed.expressions.tokens import SqlToken, Text, bare, calls, closing, name, sign, split, sql, word
from keyed.formats.sql_types import BIGINT, INT, SqlType
from keyed.sql.statements import Parser
from keyed.vectorized import TIMESTAMP_COLUMN

#: Columns that each source has: their names in a script, in batches, and their types.
PSEUDO = {"ROWTIME": (TIMESTAMP_COLUMN, BIGINT), "ROWPARTITION": ("#partition", INT), "ROWOFFSET": ("#offset", BIGINT)}
BOUNDS = {"WINDOWSTART": ("WINDOWSTART", BIGINT), "WINDOWEND": ("WINDOWEND", BIGINT)}
#: Names that no column may have, and with which none may begin.
OWN_NAMES, RESERVED = {*PSEUDO, *BOUNDS}, ("__keyed_", "#")


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
        resolved: list[SqlToken] = []
        bound: set[str] = set()
        words, place = bare(words), 0
        while place < len(words):
            token = words[place]
            after = words[place + 1] if place + 1 < len(words) else word("")
            before = words[place - 1] if place else word("")
            folded = token.identifier.lower()
            if token.upper == "->":
                place = self._member(resolved, words, place, bound)
                continue
            if token.upper == "=>":
                self.text.fail("write lambda x: ... in place of x => ...", token.at)
            if token.upper == "LAMBDA":
                bound |= _parameters(words, place + 1)
            if token.is_identifier and before.upper != ".":
                if after.upper == "(":
                    place = self._call(resolved, words, place)
                    continue
                if token.upper in ("ARRAY", "MAP", "STRUCT") and after.upper in ("<", "<>"):
                    place = self._type(resolved, words, place)
                    continue
                if after.upper == "." and folded in self.sources and place + 2 < len(words):
                    resolved.append(self._qualified(token, words[place + 2]))
                    place += 3
                    continue
                token = token if folded in bound else self._resolved_token(token, before, after)
            resolved.append(token)
            place += 1
        return tuple(resolved)

    def _resolved_token(self, token: SqlToken, before: SqlToken, after: SqlToken) -> SqlToken:
        """Return a name without a source: that of a column of a join before those of its sides.

        Raises:
            SqlError: There are several.
        """
        # The type of a CAST; the unit of an interval; the name of a field.
        if before.upper == "AS" or (before.kind == "number" and token.kind == "word") or after.upper in (":", ":="):
            return token
        columns = [each for each in self.columns if each.name.lower() == token.identifier.lower()]
        columns = [each for each in columns if each.source is None] or columns
        if len(columns) > 1:
            owners = ", ".join(f"{each.source}.{each.name}" for each in columns)
            self.text.fail(f"{token.identifier} is ambiguous: {owners}", token.at)
        return attrs.evolve(name(columns[0].stored), at=token.at, end=token.end) if columns else token

    def _qualified(self, source: SqlToken, column: SqlToken) -> SqlToken:
        shown = self.sources[source.identifier.lower()]
        columns = {each.name.lower(): each for each in self.columns if each.source == shown}
        if column.identifier.lower() not in columns:
            known = [each.name for each in columns.values()]
            self.text.fail(f"{shown} has no column {column.identifier}{nearest(column.identifier, known)}", column.at)
        return attrs.evolve(name(columns[column.identifier.lower()].stored), at=source.at, end=column.end)

    def _call(self, out: list[SqlToken], words: Sequence[SqlToken], place: int) -> int:
        """Add the name of a call, and of those that DuckDB writes otherwise the whole call; return the place after."""
        token = words[place]
        end = closing(words, place + 1)
        parts = split(words[place + 2 : end])
        is_named = all(any(each.upper == ":=" for each in part) for part in parts)
        is_text = [len(part) == 1 and part[0].kind == "text" for part in parts[:2]]
        if token.upper in ("REGEXP_EXTRACT", "REGEXP_EXTRACT_ALL") and is_text == [True, False]:
            self.text.fail(f"{token.upper} takes the text first, and the pattern after it", token.at)
        if token.upper == "STRUCT" and not parts:
            self.text.fail("a STRUCT has a field or more: STRUCT(name := value)", token.at)
        if token.upper == "MAP" and is_named:
            out += [word("MAP"), sign("{")]
            for number, part in enumerate(parts):
                at = next(i for i, each in enumerate(part) if each.upper == ":=")
                out += [sign(",")] * bool(number)
                out += [*self.resolved(part[:at]), sign(":"), *self.resolved(part[at + 1 :])]
            out.append(sign("}"))
            return end + 1
        if token.upper in OVER_LISTS and parts:
            # The choices are a list, of any length.
            out += [token, sign("("), *self.resolved(parts[0]), sign(","), sign("[")]
            out += [*self.resolved(words[place + 3 + len(parts[0]) : end]), sign("]"), sign(")")]
            return end + 1
        renamed = {"STRUCT": "struct_pack" if is_named else token.text, "EXPLODE": "unnest"}
        out.append(attrs.evolve(token, text=renamed.get(token.upper, token.text)))
        return place + 1

    def _type(self, out: list[SqlToken], words: Sequence[SqlToken], place: int) -> int:
        """Add a type in ksqlDB's syntax as DuckDB writes it."""
        parser = Parser(self.text, [*words[place:], SqlToken("end", "", words[-1].end, words[-1].end)])
        out.append(SqlToken("word", parser.sql_type().duckdb, words[place].at, words[place + parser.place - 1].end))
        return place + parser.place

    def _member(self, out: list[SqlToken], words: Sequence[SqlToken], place: int, bound: set[str]) -> int:
        """Add ``a->b``, the field of a struct; return the place after it."""
        arrow = words[place]
        start = _begin(out)
        base = out[start:]
        field = words[place + 1] if place + 1 < len(words) else arrow
        if not field.is_identifier or not base:
            out.append(arrow)
            return place + 1
        is_local = any(each.identifier.lower() in bound for each in base if each.is_identifier)
        # The results of aggregates have a type once they are columns.
        is_known = all(base[at].upper in functions() | keywords() for at, _ in calls(base))
        if is_known and not is_local:
            type_ = self.type_of([each for each in base if each.upper != "UNNEST"])
            type_ = type_.element if type_.base == "ARRAY" else type_
            if type_.base != "STRUCT":
                self.text.fail(f"-> takes a STRUCT, and this is of type {type_}", arrow.at)
            known = [each for each, _ in type_.fields]
            if field.identifier.lower() not in map(str.lower, known):
                self.text.fail(f"unknown field {field.identifier}{nearest(field.identifier, known)}", field.at)
        quoted = SqlToken("text", "'" + field.identifier.replace("'", "''") + "'")
        at = base[0].at
        out[start:] = [SqlToken("word", "struct_extract", at, at), sign("("), *base, sign(","), quoted, sign(")")]
        return place + 2

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

    def condition(self, words: Sequence[SqlToken], clause: str) -> str:
        """Return the text of a resolved expression that is a condition.

        Raises:
            SqlError: It is of another type.
        """
        if (type_ := self.type_of(words)).base != "BOOLEAN":
            self.text.fail(f"{clause} takes a condition, and this is of type {type_}", words[0].at)
        return sql(words)

    def step(
        self, cells: Sequence[Cell], where: str | None, kept: tuple[str, ...], *, explodes: bool = False
    ) -> SqlStep:
        """Return the step that computes expressions over the columns."""
        times = tuple(each for each in self._stored if each[1].has("TIME"))
        return SqlStep(tuple(cells), where, kept, self.values, explodes=explodes, times=times)


def _begin(out: Sequence[SqlToken]) -> int:
    """Return the place at which the operand begins with which words end: a name with its source, calls and indexes."""
    start = len(out) - 1
    while start > 0:
        if out[start].upper in (")", "]", "}"):
            start = closing(out, start)
            is_index = out[start].upper == "["
            is_call = out[start].upper == "(" and out[start - 1].is_identifier
            if start and (is_index or is_call or (out[start].upper == "{" and out[start - 1].upper == "MAP")):
                start -= 1
                if is_index:
                    continue
        if start < 2 or out[start - 1].upper != ".":
            break
        start -= 2
    return max(start, 0)


def _parameters(words: Sequence[SqlToken], place: int) -> set[str]:
    """Return the names of a lambda's parameters."""
    end = next((end for end in range(place, len(words)) if words[end].upper == ":"), len(words))
    return {each.identifier.lower() for each in words[place:end] if each.is_identifier}


def replaced(words: Sequence[SqlToken], parts: Sequence[tuple[Sequence[SqlToken], SqlToken]]) -> tuple[SqlToken, ...]:
    """Return words with parts replaced by one word each; a part may not be within a longer name."""
    result: list[SqlToken] = []
    place = 0
    # The longest first: COUNT(*) FILTER (...) is no COUNT(*).
    texts = sorted((([each.folded for each in part], token) for part, token in parts), key=lambda each: -len(each[0]))
    mine = [each.folded for each in words]
    while place < len(words):
        for part, token in texts:
            if mine[place : place + len(part)] == part and not (place and words[place - 1].upper == "."):
                result.append(attrs.evolve(token, at=words[place].at, end=words[place + len(part) - 1].end))
                place += len(part)
                break
        else:
            result.append(words[place])
            place += 1
    return tuple(result)


def free_name(preferred: str, used: Collection[str], first: int = 1) -> str:
    """Return a name, with a number if it is taken, which begins at ``first``."""
    names = chain([preferred], (f"{preferred}_{number}" for number in count(first)))
    return next(each for each in names if each.lower() not in used)

"""Rows of files of JSON lines, CSV and Parquet as columns, a part of a file at a time.

A line is held in memory up to `LONGEST` bytes; a longer one is a bad row.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, BinaryIO

import attrs
import msgspec

from keyed.errors import SourceError
from keyed.formats.sql_types import BadValue, SqlType
from keyed.formats.typed_columns import by_folded_name

_numbers = msgspec.json.Decoder()
_decimals = msgspec.json.Decoder(float_hook=Decimal)


def json_values(texts: Sequence[Any], *, exact: bool) -> list[Any]:
    """Return the values of JSON texts, as bytes or text; a `BadValue` for a text that is no JSON.

    Args:
        texts: The texts.
        exact: Numbers with a fraction are decimals.
    """
    decoder = _decimals if exact else _numbers
    if set(map(type, texts)) == {bytes}:
        lines = b"\n".join(texts)
        # No text of JSON has a line end inside of a string, so each line is one text.
        if lines.count(b"\n") == len(texts) - 1:
            try:
                values = decoder.decode_lines(lines)
            except (ValueError, RecursionError):
                values = []
            if len(values) == len(texts):
                return values
    return [_json(decoder, each) for each in texts]


def _json(decoder: Any, text: Any) -> Any:
    try:
        return decoder.decode(text)
    except RecursionError:
        return BadValue("it is nested too deeply")
    except ValueError as error:
        return BadValue(str(error))


def cells_of(rows: Sequence[Any], names: Sequence[str]) -> tuple[dict[str, list[Any]], dict[int, str], set[Any]]:
    """Return the members of objects by their names, in any case; missing ones are null.

    Args:
        rows: Objects; ``None`` for one without members, `BadValue` for one that could not be read.
        names: The names, which do not differ only in case.

    Returns:
        The columns, the reasons of bad rows, and the names of all members.
    """
    bad: dict[int, str] = {}
    kinds = set(map(type, rows))
    if kinds <= {dict}:
        seen: set[Any] = set().union(*rows)
        if all(each.__class__ is str for each in seen):
            lowered = {each.lower() for each in names}
            is_plain = len({each.lower() for each in seen}) == len(seen)
            if is_plain and all(each in names for each in seen if each.lower() in lowered):
                return {name: [row.get(name) for row in rows] for name in names}, bad, seen
    seen = set()
    cells: dict[str, list[Any]] = {name: [] for name in names}
    lower = [(name, name.lower()) for name in names]
    for place, row in enumerate(rows):
        folded: Mapping[str, Any] = {}
        if isinstance(row, Mapping):
            seen.update(row)
            try:
                folded = by_folded_name(row)
            except BadValue as error:
                bad[place] = str(error)
        elif row is not None:
            bad[place] = str(row) if isinstance(row, BadValue) else f"expected an object, got {type(row).__name__}"
        for name, each in lower:
            cells[name].append(folded.get(each))
    return cells, bad, seen


FILES = (".jsonl", ".json", ".csv", ".parquet")
#: Bytes of a line, or of a row of CSV that has several lines.
LONGEST = 16 << 20
#: Rows that are converted at a time, and bytes that are read at a time.
ROWS, _BLOCK = 10_000, 1 << 20
_LONG = f"it is longer than {LONGEST >> 20} MiB"
#: Stands in for a line that is too long.
_CUT = _LONG.encode()
#: Returns the names that columns have among those of a file.
NamesOf = Callable[[Sequence[str]], Mapping[str, str]]


@attrs.frozen(eq=False)
class RowsPart:
    """Some rows of an input.

    Attributes:
        cells: Their columns by declared name.
        count: Their number.
        where: Returns the place of a row in the input, for messages.
        bad: The reasons of rows that cannot be read.
        seen: The names of all their members.
    """

    cells: Mapping[str, Any]
    count: int
    where: Callable[[int], str]
    bad: Mapping[int, str] = attrs.field(factory=dict)
    seen: Collection[Any] = ()


def file_parts(path: Path, columns: Mapping[str, SqlType], names_of: NamesOf, *, waits: bool) -> Iterator[RowsPart]:
    """Yield the rows of a file.

    Args:
        path: The file; its suffix is one of `FILES`.
        columns: The columns that are read.
        names_of: Returns their names in the file, for CSV and Parquet. It may raise.
        waits: A last line without a newline is not read yet, nor is a last row of CSV with an open quote.
    """
    if path.suffix.lower() == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            opened = pq.ParquetFile(path)
        except pa.ArrowInvalid as error:
            raise SourceError(f"{path} cannot be read as Parquet: {error}") from error
        with opened as file:
            names = names_of(file.schema_arrow.names)
            done = 0
            for batch in file.iter_batches(ROWS, columns=list(names.values())):
                yield column_part(batch, names, f"{path}, row", done)
                done += batch.num_rows
        return
    what = f"{path}, line"
    with path.open("rb") as binary:
        lines = _lines(binary, waits=waits)
        if path.suffix.lower() == ".csv":
            yield from _csv_parts(what, lines, names_of, waits=waits)
        else:
            yield from _json_parts(what, lines, columns)


def column_part(batch: Any, names: Mapping[str, str], what: str, first: int) -> RowsPart:
    """Return an Arrow batch as rows, the first of which has a number."""
    cells = {name: batch.column(column) for name, column in names.items()}
    return RowsPart(cells, batch.num_rows, lambda place: f"{what} {first + place}")


def _lines(file: BinaryIO, *, waits: bool) -> Iterator[list[bytes]]:
    """Yield the lines of a file in lists, of which the first line may be `_CUT`."""
    held: list[bytes] = []
    size, at = 0, 0
    while block := file.read(_BLOCK):
        head, *lines = (block if at else block.removeprefix(b"\xef\xbb\xbf")).split(b"\n")
        at += 1
        size += len(head)
        held = [*held, head] if size <= LONGEST else []
        if lines:
            yield [b"".join(held) if size <= LONGEST else _CUT, *lines[:-1]]
            held, size = [lines[-1]], len(lines[-1])
    if size and not waits:
        yield [b"".join(held) if size <= LONGEST else _CUT]


def _json_parts(what: str, parts: Iterator[list[bytes]], columns: Mapping[str, SqlType]) -> Iterator[RowsPart]:
    exact = any(type_.has("DECIMAL") for type_ in columns.values())
    done = 0
    for lines in parts:
        numbers: Sequence[int] = range(done + 1, done + 1 + len(lines))
        done += len(lines)
        texts = [line.strip() for line in lines]
        if not all(texts):
            numbers = [number for number, text in zip(numbers, texts, strict=True) if text]
            texts = [text for text in texts if text]
        rows = json_values(texts, exact=exact)
        if lines[0] is _CUT:
            rows[0] = BadValue(_LONG)
        cells, bad, seen = cells_of(rows, tuple(columns))
        yield RowsPart(cells, len(rows), lambda place, numbers=numbers: f"{what} {numbers[place]}", bad, seen)  # type: ignore[misc]


def _csv_parts(what: str, parts: Iterator[list[bytes]], names_of: NamesOf, *, waits: bool) -> Iterator[RowsPart]:
    rows = _csv_rows(parts, waits=waits)
    with long_fields():
        head = next(rows, None)
    if head is None:
        return
    heads = [] if isinstance(head[1], BadValue) else [each.strip() for each in head[1]]
    at = {name: heads.index(each) for name, each in names_of(heads).items()}
    while True:
        with long_fields():
            part = list(itertools.islice(rows, ROWS))
        if not part:
            return
        bad, width = {}, len(heads)
        for place, (_, row) in enumerate(part):
            if isinstance(row, BadValue) or len(row) != width:
                bad[place] = str(row) if isinstance(row, BadValue) else f"expected {width} cells, got {len(row)}"
        cells = {
            name: [None if place in bad else row[number] or None for place, (_, row) in enumerate(part)]
            for name, number in at.items()
        }
        yield RowsPart(cells, len(part), lambda place, part=part: f"{what} {part[place][0]}", bad)  # type: ignore[misc]


def _csv_rows(parts: Iterator[list[bytes]], *, waits: bool) -> Iterator[tuple[int, Any]]:
    """Yield the rows of CSV that are not empty: the number of the last line, and the cells or a `BadValue`."""
    lines = _CsvLines(parts)
    reader = csv.reader(lines)
    while True:
        lines.size, lines.reason = 0, ""
        try:
            cells: Any = next(reader)
        except StopIteration:
            return
        except (BadValue, csv.Error) as error:
            # The reader begins a new row.
            cells = error if isinstance(error, BadValue) else BadValue(str(error))
        if lines.is_over:
            # The reader asked for more lines of this row.
            if waits:
                return
            cells = BadValue("a quote is not closed")
        if cells:
            yield lines.number, BadValue(lines.reason) if lines.reason else cells


class _CsvLines(Iterator[str]):
    """The lines that a reader of CSV asks for, up to `LONGEST` bytes a row."""

    def __init__(self, parts: Iterator[list[bytes]]) -> None:
        self._lines = itertools.chain.from_iterable(parts)
        self.number = self.size = 0
        self.reason = ""
        self.is_over = False

    def __next__(self) -> str:
        line = next(self._lines, None)
        if line is None:
            self.is_over = True
            raise StopIteration
        self.number += 1
        self.size += len(line)
        if line is _CUT or self.size > LONGEST:
            raise BadValue(_LONG)
        try:
            return line.decode() + "\n"
        except UnicodeDecodeError:
            self.reason = "the line is not UTF-8"
            return line.decode(errors="replace") + "\n"


@contextmanager
def long_fields() -> Iterator[None]:
    """Let readers of CSV take fields of any length inside of this context."""
    limit = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(limit)

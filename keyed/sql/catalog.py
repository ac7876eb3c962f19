"""The streams and tables of a script by name."""

from __future__ import annotations

import attrs

from keyed.base.arguments import nearest
from keyed.expressions.engine import Columns
from keyed.expressions.tokens import Text
from keyed.formats.record_formats import RecordPart
from keyed.sql.name_scope import BOUNDS, PSEUDO
from keyed.sql.topic_options import TopicOptions


@attrs.frozen(eq=False)
class SqlSource:
    """A stream or table.

    Attributes:
        name: Its name.
        kind: ``STREAM`` or ``TABLE``.
        keys: Columns of the key.
        values: The other columns.
        topic: Its topic.
        parts: The keys and the values of its records; none of what is in no topic.
        window: Type of its windows: ``TUMBLING``, ``HOPPING``, ``SESSION``; ``None`` without.
        window_ms: Size of its windows.
        timestamp: Name of the column with the timestamp, and the pattern of its text.
        headers: Names of columns with headers: the name of one header, or ``None`` for all.
        is_read_only: Nothing may be inserted.
        has_places: Its tables have the partition and offset of each row, 0 if it is not of a topic.
        is_query: A query of the script writes it.
        is_retimed: Its rows have other times than those by which the progress of its input is measured.
        topic_options: How its topic is named and created.
    """

    name: str
    kind: str
    keys: Columns
    values: Columns
    topic: str
    parts: tuple[RecordPart, ...] = ()
    window: str | None = None
    window_ms: int | None = None
    timestamp: tuple[str, str | None] | None = None
    headers: tuple[tuple[str, str | None], ...] = ()
    is_read_only: bool = False
    has_places: bool = False
    is_query: bool = False
    is_retimed: bool = False
    topic_options: TopicOptions = attrs.field(factory=TopicOptions)

    @property
    def is_table(self) -> bool:
        """True if it is a table."""
        return self.kind == "TABLE"

    @property
    def columns(self) -> Columns:
        """All its columns, the key first."""
        return (*self.keys, *self.values)

    @property
    def further(self) -> Columns:
        """The columns of its tables that are not declared: the places of rows, and the bounds of their windows."""
        places = [PSEUDO[name] for name in ("ROWPARTITION", "ROWOFFSET")] if self.has_places else []
        return (*places, *(BOUNDS.values() if self.window is not None else ()))

    @property
    def stored(self) -> Columns:
        """The columns of values that records hold, without those of headers."""
        return tuple(each for each in self.values if each in self.without_headers)

    @property
    def without_headers(self) -> Columns:
        """All columns but those of headers."""
        names = {name for name, _ in self.headers}
        return tuple(each for each in self.columns if each[0] not in names)


#: The column of a table's changes: 1 for a row that is there now, -1 for one that was there before.
CHANGE = "#change"
#: The column of the time of the streams when a row came: the highest time of the rows of all inputs up to it.
STREAM = "#stream"
#: The column of a row's number among those of all inputs, in scripts that need it: the order of rows that came at one
#: time of the stream. What an operator emits at a time of its own comes after all of them.
PLACE = "#place"


class Catalog:
    """The streams and tables that are defined so far; their names match in any case."""

    def __init__(self) -> None:
        self._sources: dict[str, SqlSource] = {}

    @property
    def sources(self) -> list[SqlSource]:
        """All of them."""
        return list(self._sources.values())

    def get(self, name: str) -> SqlSource | None:
        """Return a source; ``None`` if there is none."""
        return self._sources.get(name.lower())

    def find(self, text: Text, name: str, at: int) -> SqlSource:
        """Return a source.

        Raises:
            SqlError: There is none.
        """
        source = self.get(name)
        if source is None:
            text.fail(f"unknown stream or table {name}{nearest(name, [each.name for each in self.sources])}", at)
        return source

    def add(self, source: SqlSource) -> None:
        """Add a source, or replace the one of its name."""
        self._sources[source.name.lower()] = source

    def drop(self, name: str) -> None:
        """Remove a source."""
        self._sources.pop(name.lower(), None)

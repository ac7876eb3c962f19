"""The streams and tables of a script by name, with their columns and formats."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import attrs

from keyed.sql.engine_expressions import EngineColumns
from keyed.sql.script_errors import Text, nearest
from keyed.sql.sql_types import SqlType
from keyed.sql.topic_options import TopicOptions
from keyed.sql.value_formats import decoder, encoder

Columns = tuple[tuple[str, SqlType], ...]


@attrs.frozen(eq=False)
class SqlSource:
    """A stream or table.

    Attributes:
        name: Its name.
        kind: ``STREAM`` or ``TABLE``.
        keys: Columns of the key.
        values: The other columns.
        topic: Its topic.
        key_format: Format of keys.
        value_format: Format of values.
        window: Type of its windows: ``TUMBLING``, ``HOPPING``, ``SESSION``; ``None`` without.
        window_ms: Size of its windows.
        timestamp: Name of the column with the timestamp, and the pattern of its text.
        headers: Names of columns with headers: the name of one header, or ``None`` for all.
        delimiter: Delimiter of delimited values.
        key_delimiter: Delimiter of delimited keys.
        is_wrapped: A value of one column is an object with that column.
        nullable: How Protobuf represents the nulls of keys and values: ``OPTIONAL``, ``WRAPPER`` or ``None``: not.
        is_read_only: Nothing may be inserted.
        is_query: A query of the script writes it.
        topic_options: How its topic is named and created.
        computed: The expressions that the engine of its columns computes; ``None`` if it is not read from columns. In
            a change their values are a tuple, the last of its value.
    """

    name: str
    kind: str
    keys: Columns
    values: Columns
    topic: str
    key_format: str = "KAFKA"
    value_format: str = "JSON"
    window: str | None = None
    window_ms: int | None = None
    timestamp: tuple[str, str | None] | None = None
    headers: tuple[tuple[str, str | None], ...] = ()
    delimiter: str = ","
    key_delimiter: str = ","
    is_wrapped: bool = True
    nullable: tuple[str | None, str | None] = (None, None)
    is_read_only: bool = False
    is_query: bool = False
    topic_options: TopicOptions = attrs.field(factory=TopicOptions)
    computed: EngineColumns | None = None

    @property
    def is_table(self) -> bool:
        """True if it is a table."""
        return self.kind == "TABLE"

    @property
    def has_plain_columns(self) -> bool:
        """True if it is a stream whose records have the values of the columns that they are made of."""
        formats = ("JSON", "JSON_SR", "AVRO")
        is_plain = self.value_format in formats and self.is_wrapped and not self.headers and self.window is None
        return is_plain and not self.is_table and (not self.keys or self.key_format in (*formats, "KAFKA"))

    @property
    def stored(self) -> Columns:
        """The columns of values that records hold, without those of headers."""
        names = {name for name, _ in self.headers}
        return tuple(each for each in self.values if each[0] not in names)

    def key_decoder(self) -> Callable[[Any], Any]:
        """Return the function from a record's key to its columns."""
        if not self.keys:
            return lambda _: ()
        wrapped = len(self.keys) > 1 or self.key_format.startswith("PROTOBUF")
        decode = decoder(
            self.key_format,
            self.keys,
            delimiter=self.key_delimiter,
            wrapped_value=wrapped,
            nullable=self.nullable[0] is not None,
        )
        width = len(self.keys)

        def decoded(data: Any) -> Any:
            found = decode(data)
            return (None,) * width if found is None else found

        return decoded

    def key_encoder(self) -> Callable[[Any], Any]:
        """Return the function from the columns of a key to the record's key."""
        if not self.keys:
            return lambda _: None
        wrapped = len(self.keys) > 1 or self.key_format.startswith("PROTOBUF")
        encode = encoder(
            self.key_format,
            self.keys,
            delimiter=self.key_delimiter,
            wrapped_value=wrapped,
            nullable=self.nullable[0] is not None,
        )
        return lambda key: None if key == (None,) else encode(key)

    def value_decoder(self) -> Callable[[Any], Any]:
        """Return the function from a record's value to its columns."""
        return decoder(
            self.value_format,
            self.stored,
            delimiter=self.delimiter,
            wrapped_value=self.is_wrapped,
            nullable=self.nullable[1] is not None,
        )

    def value_encoder(self) -> Callable[[Any], Any]:
        """Return the function from columns to the record's value."""
        return encoder(
            self.value_format,
            self.stored,
            delimiter=self.delimiter,
            wrapped_value=self.is_wrapped,
            nullable=self.nullable[1] is not None,
        )


class Catalog:
    """The sources that are defined so far."""

    def __init__(self) -> None:
        self.sources: dict[str, SqlSource] = {}
        #: Names of streams and tables that were dropped but are still fed.
        self.dropped: set[str] = set()

    def find(self, text: Text, name: str, at: int) -> SqlSource:
        """Return a source.

        Raises:
            SqlError: There is none.
        """
        if name not in self.sources:
            text.fail(f"unknown stream or table {name}{nearest(name, self.sources)}", at)
        return self.sources[name]

    def add(self, source: SqlSource) -> None:
        """Add a source."""
        self.sources[source.name] = source

    def of_topic(self, topic: str) -> Iterable[SqlSource]:
        """Return the sources of a topic."""
        return [source for source in self.sources.values() if source.topic == topic]

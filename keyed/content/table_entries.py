"""Converts rows of tables to entries and back, for changelogs with one record per entry.

A row of a table state is the entry

    prefix   kind (u8) | state id (u16 BE) | encoded key of the stream | encoded None
    sub      the table's other key columns as an encoded tuple; empty if there are none
    value    msgpack of a map from the names of all other columns to their values; with a time to live after the
             8 bytes of the due time

as `keyed.content.addresses` lays out entries: its kind is that of a state with or without a time to live. Values are
msgpack's own; a decimal is its text, and dates, times, timestamps and durations are the integer that Arrow has for them
in the unit of the column. The types of the columns are in the description of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from keyed.codec.arrow_streams import read_schema, read_stream, write_stream
from keyed.codec.keys import decode_key, encode_key
from keyed.content.addresses import KIND_OF_CLOCK, decode_time, encode_time, key_of, state_id_of, state_prefix
from keyed.content.blocks import Block, Change, TableBlock
from keyed.content.delta import described_tables
from keyed.errors import CorruptionError

if TYPE_CHECKING:
    import pyarrow as pa

_DUE_BYTES = 8
_DUE_COLUMN = "__keyed_due"
_NO_NAMESPACE = encode_key(None)
#: Maximal number of entries in a block.
_BLOCK_ENTRIES = 10_000
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(dict[str, Any]).decode


class TableEntries:
    """Converts the rows of one table state.

    Args:
        state: Its description with its id, from a commit of a changelog (`keyed.codec.state_schema.StateSchema`).
        where: For messages.

    Raises:
        CorruptionError: It does not describe a table.
    """

    def __init__(self, state: dict[str, Any], where: str) -> None:
        import pyarrow as pa

        self._where = where
        try:
            self.state_id = int(state["id"])
            self._keys: list[str] = state["schema"]["key"]
            columns, ttl = state["schema"]["value"], state["schema"]["ttl"]
            self._stream_keys = self._keys[: columns["stream_keys"]]
            self._schema = read_schema(columns["arrow"])
            kind = KIND_OF_CLOCK[ttl["time_domain"] if ttl else None]
        except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
            raise CorruptionError(f"{state!r:.200} does not describe a table ({error!r})", where=where) from error
        self._has_due = ttl is not None
        self._kind = kind
        self._rest = self._keys[len(self._stream_keys) :]
        self._values = [name for name in self._schema.names if name not in (*self._keys, _DUE_COLUMN)]

    def changes(self, block: TableBlock) -> list[Change]:
        """Return the entries that a block of rows removes and writes, in this order.

        Raises:
            CorruptionError: The rows cannot be read.
        """
        changes: list[Change] = []
        if block.removed is not None:
            removed = read_stream(block.removed, self._where)
            changes += [(prefix, sub, None) for prefix, sub in self._addresses(removed)]
        if block.written is not None:
            written = read_stream(block.written, self._where)
            names = [name for name in self._values if name in written.column_names]
            # A table without columns has no rows for Arrow.
            rows = self._plain(written, names).to_pylist() if names else [{}] * written.num_rows
            values: Iterable[bytes] = map(_encode, rows)
            if self._has_due:
                times: list[Any] = written.column(_DUE_COLUMN).to_pylist()
                values = (encode_time(time) + value for time, value in zip(times, values, strict=True))
            changes += [(*address, value) for address, value in zip(self._addresses(written), values, strict=True)]
        return changes

    def block(self, changes: Sequence[Change]) -> TableBlock:
        """Return the block of rows for entries.

        Args:
            changes: Entries of this table, each address once.

        Raises:
            CorruptionError: One of them is not an entry of this table.
        """
        removed = [change for change in changes if change[2] is None]
        written = [change for change in changes if change[2] is not None]
        try:
            return TableBlock(
                self.state_id,
                len(changes),
                write_stream(self._key_table(removed)) if removed else None,
                write_stream(self._row_table(written)) if written else None,
            )
        except Exception as error:
            # msgspec, struct and Arrow raise many types.
            raise CorruptionError(f"malformed row of table {self.state_id}: {error}", where=self._where) from error

    def _addresses(self, rows: pa.Table) -> list[tuple[bytes, bytes]]:
        columns = [rows.column(name).to_pylist() for name in self._stream_keys]
        keys = columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))
        prefixes = [state_prefix(self._kind, self.state_id, encode_key(key), _NO_NAMESPACE) for key in keys]
        if not self._rest:
            return [(prefix, b"") for prefix in prefixes]
        rest = self._plain(rows, self._rest)
        subs = map(encode_key, zip(*(column.to_pylist() for column in rest.columns), strict=True))
        return list(zip(prefixes, subs, strict=True))

    def _plain(self, rows: pa.Table, names: Sequence[str]) -> pa.Table:
        """Return columns in types whose Python values msgpack and the codec of keys support."""
        import pyarrow as pa

        fields = [pa.field(name, _plain_type(self._schema.field(name).type)) for name in names]
        return rows.select(list(names)).cast(pa.schema(fields))

    def _key_table(self, changes: Sequence[Change]) -> pa.Table:
        import pyarrow as pa

        keys = []
        for prefix, sub, _ in changes:
            if prefix[0] != self._kind or state_id_of(prefix) != self.state_id:
                raise ValueError(f"prefix {prefix[:20]!r}")
            key = key_of(prefix)
            stream = (key,) if len(self._stream_keys) == 1 else key
            rest = decode_key(sub) if self._rest else ()
            keys.append((*stream, *rest))
        columns = []
        for name, values in zip(self._keys, zip(*keys, strict=True), strict=True):
            type_ = self._schema.field(name).type
            plain = type_ if name in self._stream_keys else _plain_type(type_)
            columns.append(pa.array(values, plain).cast(type_))
        return pa.table(columns, names=self._keys)

    def _row_table(self, changes: Sequence[Change]) -> pa.Table:
        import pyarrow as pa

        keys = self._key_table(changes)
        start = _DUE_BYTES if self._has_due else 0
        values = [_decode(value[start:]) for _, _, value in changes if value is not None]
        columns: dict[str, Any] = {name: keys.column(name) for name in self._keys}
        for name in self._values:
            type_ = self._schema.field(name).type
            columns[name] = pa.array([value.get(name) for value in values], _plain_type(type_)).cast(type_)
        if self._has_due:
            due = [decode_time(value) for _, _, value in changes if value is not None]
            columns[_DUE_COLUMN] = pa.array(due, pa.int64())
        return pa.table({name: columns[name] for name in self._schema.names})


def tables_of(states: dict[str, Any], where: str) -> dict[int, TableEntries]:
    """Return the converters for the tables among described states, by state id.

    Raises:
        CorruptionError: A description is malformed.
    """
    return {state_id: TableEntries(state, where) for state_id, state in described_tables(states, where).items()}


def entries_of(block: Block, tables: Mapping[int, TableEntries], where: str) -> list[Change]:
    """Return the changes in a block, with rows as entries.

    Args:
        block: The block.
        tables: The converters for tables.
        where: For messages.

    Raises:
        CorruptionError: It holds rows of a state that is not a table, or they cannot be read.
    """
    if not isinstance(block, TableBlock):
        return block
    if block.state_id not in tables:
        raise CorruptionError(f"there are rows of state {block.state_id}, which is not a table", where=where)
    return tables[block.state_id].changes(block)


def blocks_of(changes: Iterable[Change], tables: Mapping[int, TableEntries]) -> Iterator[Block]:
    """Yield blocks with the changes; entries of tables become rows.

    Args:
        changes: The changes.
        tables: The converters for tables.

    Raises:
        CorruptionError: An entry is malformed.
    """
    entries: list[Change] = []
    rows: dict[int, dict[tuple[bytes, bytes], Change]] = {state_id: {} for state_id in tables}
    for change in changes:
        prefix, sub, _ = change
        state_id = state_id_of(prefix) if tables else None
        if state_id is not None and state_id in rows:
            part = rows[state_id]
            part[prefix, sub] = change
            if len(part) == _BLOCK_ENTRIES:
                yield tables[state_id].block(list(part.values()))
                rows[state_id] = {}
        else:
            entries.append(change)
            if len(entries) == _BLOCK_ENTRIES:
                yield entries
                entries = []
    if entries:
        yield entries
    for state_id, part in rows.items():
        if part:
            yield tables[state_id].block(list(part.values()))


def value_converters(schema: pa.Schema, *, back: bool = False) -> dict[str, Callable[[Any], Any]]:
    """Return the converters from values in entries to values of the columns' types, for columns that need one.

    Args:
        schema: The columns.
        back: True for the opposite direction: from values of the columns' types to values in entries.
    """
    import pyarrow as pa

    def converter(before: Any, after: Any) -> Callable[[Any], Any]:
        return lambda value: None if value is None else pa.array([value], before).cast(after)[0].as_py()

    types = {field.name: (_plain_type(field.type), field.type) for field in schema}
    differing = {name: type_ for name, type_ in types.items() if type_[0] != type_[1]}
    return {name: converter(*(type_[::-1] if back else type_)) for name, type_ in differing.items()}


def _plain_type(type_: Any) -> Any:
    """Return a type with the same information whose Python values msgpack supports."""
    import pyarrow as pa

    types = pa.types
    if types.is_decimal(type_):
        return pa.string()
    if types.is_temporal(type_):
        return pa.int32() if type_.bit_width == 32 else pa.int64()
    if types.is_float16(type_):
        return pa.float32()
    if types.is_struct(type_):
        return pa.struct([field.with_type(_plain_type(field.type)) for field in type_])
    if types.is_map(type_):
        return pa.map_(_plain_type(type_.key_type), _plain_type(type_.item_type))
    if types.is_list(type_) or types.is_large_list(type_):
        make = pa.list_ if types.is_list(type_) else pa.large_list
        return make(type_.value_field.with_type(_plain_type(type_.value_type)))
    return type_

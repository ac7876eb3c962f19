"""The committed entries of a state as plain values by key, for assertions."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import attrs

from keyed.base.arguments import instant_ms
from keyed.codec.keys import encode_key
from keyed.content.addresses import key_of, split_value
from keyed.content.contents import content_entries
from keyed.content.delta import Delta
from keyed.content.local_store import ReadStore
from keyed.engine.group_log import GroupMeta
from keyed.engine.held_rows import HELD_ROWS
from keyed.job.functions import Function
from keyed.job.state import State
from keyed.job.table_declaration import TableState
from keyed.tables.entries import EntryReader
from keyed.tables.operator_table import OperatorTableReader
from keyed.tables.stored_entries import shown_entries


def state_by_key(
    store: ReadStore, name: str, described: dict[str, Any], declared: State | None, namespace: Any
) -> dict[Any, Any]:
    """Return a key group's entries of one state.

    Args:
        store: The group's entries.
        name: The stored name of the state.
        described: The state's description with its id, as the group's meta record has it.
        declared: Its declaration, if it is known: values then have their classes.
        namespace: The namespace beside the key.
    """
    if described["schema"]["kind"] == "table":
        return _rows_by_key(store, described)
    reader = EntryReader(described, None if isinstance(declared, TableState) else declared)
    first, end = reader.range
    values: dict[Any, Any] = {}
    entries = sorted((prefix, sub, value) for prefix, sub, value in store.items() if first <= prefix < end)
    if name == HELD_ROWS:
        # As they will run: the order of arrival depends on how batches are cut.
        entries.sort(key=lambda each: (each[0], split_value(each[0], each[2])[0]))
    for prefix, sub, value in entries:
        entry = reader.entry(prefix, sub, value)
        if entry.namespace != namespace:
            continue
        if reader.schema.kind == "list":
            values.setdefault(entry.key, []).append(entry.value)
        elif reader.has_entries:
            values.setdefault(entry.key, {})[entry.entry] = entry.value
        else:
            values[entry.key] = entry.value
    return values


def namespaces(store: ReadStore, described: dict[str, Any]) -> set[Any]:
    """Return the namespaces in which a key group has entries of a state."""
    if described["schema"]["kind"] == "table":
        return set()
    reader = EntryReader(described)
    first, end = reader.range
    names = {reader.entry(*item).namespace for item in store.items() if first <= item[0] < end}
    return names - {None}


def windows_by_key(store: ReadStore, meta: GroupMeta, state: str, function: Function) -> dict[Any, dict[Any, Any]]:
    """Return the rows of an operator's one table by key and window, a window as its times in milliseconds.

    Args:
        store: The key group's entries.
        meta: Its meta record.
        state: Stored name of the state from which the rows are computed.
        function: The operator.
    """
    reader = OperatorTableReader(meta.operator, meta.states[state], function)
    naming = None if reader.inner.schema.named_by is None else EntryReader(meta.states[reader.inner.schema.named_by])
    changes = content_entries(store, meta.states)
    stored = [(prefix, sub, value) for prefix, sub, value in changes if value is not None]
    windows: dict[Any, dict[Any, Any]] = {}
    entries: Any = shown_entries(reader.inner, naming, stored)
    for row in reader.rows_of_entries(entries, (meta.watermark, meta.processing_time)):
        window = tuple(instant_ms(bound) if isinstance(bound, datetime) else bound for bound in row.entry or ())
        windows.setdefault(row.key, {})[window] = row.value
    return windows


def _rows_by_key(store: ReadStore, described: dict[str, Any]) -> dict[Any, Any]:
    table, table_and_rows = store.table(int(described["id"])), dict[Any, Any]()
    schema = described["schema"]
    names = schema["key"][: schema["value"]["stream_keys"]]
    for _, part in () if table is None else table.select(None):
        for row in part.to_pylist():
            key = tuple(row[name] for name in names)
            table_and_rows.setdefault(key[0] if len(key) == 1 else key, []).append(row)
    return {key: sorted(rows, key=repr) for key, rows in table_and_rows.items()}


def of_keys(delta: Delta, keys: set[bytes], states: dict[str, Any]) -> Delta:
    """Return a delta's entries of some keys.

    Args:
        delta: The live entries of a key group.
        keys: The keys, encoded.
        states: Descriptions of the states with their ids, by name.
    """
    tables = []
    for table in delta.tables:
        schema = next(state["schema"] for state in states.values() if int(state["id"]) == table.state_id)
        names = schema["key"][: schema["value"]["stream_keys"]]
        if table.upserts is not None:
            rows = [tuple(row.values()) for row in table.upserts.select(names).to_pylist()]
            mask = [encode_key(row[0] if len(row) == 1 else row) in keys for row in rows]
            tables.append(attrs.evolve(table, upserts=table.upserts.filter(mask)))
    # Broadcast states belong to no key, so their entries are always included.
    encoded = {*keys, encode_key(None)}
    entries = [entry for entry in delta.entries if encode_key(key_of(entry[0])) in encoded]
    return attrs.evolve(delta, entries=entries, tables=tables)

"""The rows of an initial state: Arrow tables with the columns of state tables and of Spark's state reader."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import attrs

from keyed.arrow.read import plain_values
from keyed.base.arguments import instant_ms, shown
from keyed.errors import DefinitionError, RowError

if TYPE_CHECKING:
    import pyarrow as pa

#: Names of columns in `StateDataset` and Spark's reader, with the names here.
_ALIASES = {"valid_from": "entry", "user_map_key": "entry", "user_map_value": "value", "list_element": "value"}
#: Columns of these that are not part of an entry.
_NOT_READ = {"valid_to", "partition_id"}
_NAMED = ("state", "namespace", "entry", "value", "expires")


@attrs.frozen
class InitialEntry:
    """An initial entry of a key group.

    Attributes:
        key: Its key.
        state: Name of its state, or ``timer:`` and the domain of a timer.
        entry: Key of a map entry, place in a list, time from which a version is valid, name of a timer.
        value: Its value, or the time of a timer; a dictionary if its fields have their own columns.
        expires: Its expiry time in milliseconds, if it was given.
        namespace: The namespace of the state, ``None`` for the state itself.
        row: The source row, for messages.
    """

    key: Any
    state: str
    entry: Any
    value: Any
    expires: int | None
    namespace: Any
    row: dict[str, Any]


def key_columns(names: Sequence[str], keys: Sequence[str], operator: str) -> list[str]:
    """Return the columns of the key: those of ``key_by``, or ``key``, or ``key_1``, ``key_2`` and so on.

    Raises:
        DefinitionError: There are none.
    """
    if keys and all(key in names for key in keys):
        return list(keys)
    if "key" in names and len(keys) <= 1:
        return ["key"]
    numbered = [name for number in range(1, len(names) + 1) if (name := f"key_{number}") in names]
    if numbered and len(numbered) == len(keys or numbered):
        return numbered
    labels = ", ".join(keys) or "key"
    raise DefinitionError(
        f"operator {operator!r}: initial_state has columns {', '.join(names)}, and none for the key; name them {labels}"
    )


def flattened(table: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Return a table with the columns of the key in place of a struct ``key``, as in Spark's state reader."""
    import pyarrow as pa

    if "key" not in table.column_names or not pa.types.is_struct(table.schema.field("key").type):
        return table
    key: Any = table.column("key").combine_chunks()
    parts = key.flatten()
    names = list(keys) if len(keys) == len(parts) else [f"key_{number}" for number in range(1, len(parts) + 1)]
    rest = table.drop_columns(["key"])
    return pa.table([*parts, *rest.columns], names=[*(names if len(parts) > 1 else names[:1]), *rest.column_names])


def entries_of(table: pa.Table, state: str | None, keys: Sequence[str], operator: str) -> Iterator[InitialEntry]:
    """Yield the entries of a table.

    Args:
        table: The rows.
        state: Name of the state, if all rows belong to one; otherwise there is a column ``state``, or one for each
            state.
        keys: The key columns of the stream.
        operator: Name of the operator, for messages.

    Raises:
        DefinitionError: There are no columns for the key.
        RowError: A row cannot be read.
    """
    table = flattened(table, keys)
    columns = key_columns(table.column_names, keys, operator)
    names = [_ALIASES.get(name, name) for name in table.column_names]
    rest = [name for name in names if name not in columns and name not in _NOT_READ and name not in _NAMED]
    for batch in table.rename_columns(names).to_batches(max_chunksize=8192):
        for values in zip(*map(plain_values, batch.columns), strict=True):
            row = dict(zip(names, values, strict=True))
            key = row[columns[0]] if len(columns) == 1 else tuple(row[name] for name in columns)
            namespace = _namespace(row)
            expires, entry = _milliseconds(row.get("expires")), _plain(row.get("entry"))
            name = row.get("state") if state is None else state
            if name is None and "state" in row:
                raise RowError(f"initial_state, row {shown(row)}: the state is null; give its name")
            if name is not None:
                fields = [*rest, *(["value"] if "value" in row else [])]
                value = row["value"] if fields == ["value"] else {field: row[field] for field in fields}
                yield InitialEntry(key, name, entry, value, expires, namespace, row)
                continue
            for column in [*rest, *(["value"] if "value" in row else [])]:
                if row[column] is not None:
                    yield InitialEntry(key, column, entry, row[column], expires, namespace, row)


def _milliseconds(time: Any) -> int | None:
    return instant_ms(time) if isinstance(time, datetime) else time


def _namespace(row: dict[str, Any]) -> Any:
    """Return the namespace of a row: a text is JSON, as in state tables; any other value is the namespace.

    Raises:
        RowError: A text is not JSON.
    """
    namespace = row.get("namespace")
    if isinstance(namespace, str):
        try:
            namespace = json.loads(namespace)
        except ValueError:
            raise RowError(
                f"initial_state, row {shown(row)}: a text in the column namespace has to be JSON, as in state tables: "
                f"{json.dumps(namespace)!r} for {namespace!r}"
            ) from None
    return _with_tuples(_plain(namespace))


def _with_tuples(namespace: Any) -> Any:
    return tuple(map(_with_tuples, namespace)) if isinstance(namespace, list | tuple) else namespace


def _plain(entry: Any) -> Any:
    """Return the value of an entry: for a struct, its field or the tuple of its fields."""
    if not isinstance(entry, dict):
        return entry
    parts = tuple(entry.values())
    return parts[0] if len(parts) == 1 else parts

"""The check of what an operator hands to the one that is chained to it: each row belongs to the same key group.

A shuffle would bring the row to the group of its key. There is none, so a row of another group is refused: this way the
results of chained operators are those that they have with a shuffle between them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from keyed.codec.key_hash import group_of, key_hash
from keyed.codec.keys import normalised
from keyed.errors import ForwardedKeyError
from keyed.operators import OperatorSpec
from keyed.shown import shown
from keyed.vectorized import TIMESTAMP_COLUMN

if TYPE_CHECKING:
    import pyarrow as pa


def foreign_key(keys: Iterable[Any], parallelism: int, group: int) -> Any:
    """Return the first of some keys that is of another key group; ``None`` if there is none."""
    return next((key for key in keys if group_of(key_hash(normalised(key)), parallelism) != group), None)


def check_table(table: pa.Table, spec: OperatorSpec, upstream: str, group: int) -> None:
    """Check the rows that an operator reads of the one that it is chained to.

    Args:
        table: The rows.
        spec: The operator that reads them.
        upstream: Name of the operator that emitted them.
        group: The key group of both.

    Raises:
        NullKeyError: A key is null.
        ForwardedKeyError: A key is of another key group.
    """
    import pyarrow.compute as pc

    from keyed.arrow.read import column_values, table_rows
    from keyed.table_state.batches import check_keys

    check_keys(table, spec.keys, spec.name)
    if spec.parallelism == 1:
        return
    distinct: Any
    if len(spec.keys) == 1:
        distinct = keys = column_values(pc.unique(table.column(spec.keys[0])))
    else:
        distinct = table.select(spec.keys).group_by(list(spec.keys), use_threads=False).aggregate([])
        keys = list(zip(*map(column_values, distinct.columns), strict=True))
    key = foreign_key(keys, spec.parallelism, group)
    if key is not None:
        columns = [name for name in table.column_names if name != TIMESTAMP_COLUMN]
        rows = table_rows(table.select(columns))
        row = next(row for row in rows if foreign_key([_key_of(row, spec.keys)], spec.parallelism, group) is not None)
        raise refused(key, row, spec, upstream, group)


def _key_of(row: Any, keys: tuple[str, ...]) -> Any:
    return row[keys[0]] if len(keys) == 1 else tuple(row[key] for key in keys)


def refused(key: Any, row: Any, spec: OperatorSpec, upstream: str, group: int) -> ForwardedKeyError:
    """Return the error of a row whose key is of another key group."""
    named = ", ".join(map(repr, spec.keys))
    return ForwardedKeyError(
        f"operator {spec.name!r} runs chained to {upstream!r}, and key {shown(key)} in {shown(row)} is of another key "
        f"group than what {upstream!r} made the row of (key group {group}), so {upstream!r} does not hand its keys on "
        f"unchanged. Let the rows be shuffled, with .key_by({named}, chain=False); a checkpoint that began chained "
        "stays so: start from a new one, with restore_from= the changelogs"
    )

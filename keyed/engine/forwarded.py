"""The check that rows of an operator stay in the same key group of the operator chained to it.

A shuffle would send the row to the group of its key. Without one, a row of another group is refused, so the results of
chained operators equal those with a shuffle between them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from keyed.base.shown import shown
from keyed.codec.key_hash import group_of, key_hash
from keyed.codec.keys import normalised
from keyed.errors import RowError
from keyed.job.operators import OperatorSpec
from keyed.job.vectorized_functions import TIMESTAMP_COLUMN

if TYPE_CHECKING:
    import pyarrow as pa


def key_of_other_group(keys: Iterable[Any], parallelism: int, group: int) -> Any:
    """Return the first key that belongs to another key group; ``None`` if there is none."""
    return next((key for key in keys if group_of(key_hash(normalised(key)), parallelism) != group), None)


def check_table(table: pa.Table, spec: OperatorSpec, upstream: str, group: int) -> None:
    """Check the rows that an operator reads from the one that it is chained to.

    Args:
        table: The rows.
        spec: The operator that reads them.
        upstream: Name of the operator that emitted them.
        group: The key group of both.

    Raises:
        NullKeyError: A key is null.
        RowError: A key belongs to another key group.
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
    key = key_of_other_group(keys, spec.parallelism, group)
    if key is not None:
        columns = [name for name in table.column_names if name != TIMESTAMP_COLUMN]
        rows = table_rows(table.select(columns))
        row = next(
            row for row in rows if key_of_other_group([_key_of(row, spec.keys)], spec.parallelism, group) is not None
        )
        raise refused(key, row, spec, upstream, group)


def _key_of(row: Any, keys: tuple[str, ...]) -> Any:
    return row[keys[0]] if len(keys) == 1 else tuple(row[key] for key in keys)


def refused(key: Any, row: Any, spec: OperatorSpec, upstream: str, group: int) -> RowError:
    """Return the error for a row whose key belongs to another key group."""
    named = ", ".join(map(repr, spec.keys))
    return RowError(
        f"operator {spec.name!r} runs chained to {upstream!r}, and key {shown(key)} in {shown(row)} belongs to another "
        f"key group than the rows that {upstream!r} read (key group {group}), so {upstream!r} does not forward its "
        f"keys unchanged. Shuffle the rows, with .key_by({named}, chain=False); a checkpoint that began chained stays "
        "chained: start from a new one, with restore_from= the changelogs"
    )

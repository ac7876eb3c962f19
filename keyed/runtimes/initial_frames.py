"""Initial state as Arrow tables, cut by key group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from keyed.base import extras
from keyed.base.arguments import type_of
from keyed.base.extras import is_instance
from keyed.engine.batch import InitialEntry, entries_of, flattened, key_columns
from keyed.errors import DefinitionError
from keyed.job.functions import Function, VectorizedFunction, declared_states
from keyed.job.graph import is_dataframe

if TYPE_CHECKING:
    import pyarrow as pa

#: Classes of frames beside Spark's.
_FRAMES = (
    ("pandas", "DataFrame"),
    ("polars", "DataFrame", "LazyFrame"),
    ("pyarrow", "RecordBatch", "Table"),
    ("pyarrow.dataset", "Dataset"),
)


def frames_of(initial: Any, function: Function, operator: str) -> list[tuple[str | None, Any]]:
    """Return the frames of an initial state, each with the name of its state if all its rows belong to one.

    Raises:
        DefinitionError: An argument is not a frame.
    """
    frames: list[tuple[str | None, Any]] = list(initial.items()) if isinstance(initial, Mapping) else [(None, initial)]
    for state, frame in frames:
        if not (is_dataframe(frame) or any(is_instance(frame, *each) for each in _FRAMES)):
            of_state = f" for state {state!r}" if state is not None else ""
            raise DefinitionError(
                f"operator {operator!r}: initial_state has {type_of(frame)}{of_state}; give a Spark, pandas "
                "or Arrow table, or the dataset of a state table"
            )
    tables = declared_states(function) if isinstance(function, VectorizedFunction) else {}
    if len(frames) == 1 and len(tables) == 1 and frames[0][0] is None and "state" not in _columns(frames[0][1]):
        return [(next(iter(tables)), frames[0][1])]
    return frames


def arrow_table(frame: Any) -> pa.Table:
    """Return a frame as an Arrow table."""
    from pyarrow.dataset import Dataset

    if is_dataframe(frame):
        collected: pa.Table = frame.toArrow()
        return collected
    table = frame.to_table() if isinstance(frame, Dataset) else extras.arrow_table(frame)
    assert table is not None, "frames_of has checked it"
    return table


def by_group(
    initial: Any, function: Function, keys: tuple[str, ...], operator: str, parallelism: int
) -> list[Callable[[], Iterable[InitialEntry]]]:
    """Return the initial entries of each key group of an operator.

    Args:
        initial: Its initial state.
        function: Its function.
        keys: Its key columns.
        operator: Its name.
        parallelism: Number of its key groups.

    Raises:
        DefinitionError: An argument is not a frame, or has no columns for the key.
    """
    parts: list[list[tuple[str | None, pa.Table]]] = [[] for _ in range(parallelism)]
    for state, frame in frames_of(initial, function, operator):
        for index, part in cut(arrow_table(frame), keys, operator, parallelism):
            parts[index].append((state, part))

    def entries(index: int) -> Iterable[InitialEntry]:
        return chain.from_iterable(entries_of(table, state, keys, operator) for state, table in parts[index])

    return [partial(entries, index) for index in range(parallelism)]


def cut(table: pa.Table, keys: tuple[str, ...], operator: str, parallelism: int) -> Iterator[tuple[int, pa.Table]]:
    """Yield the rows of each key group that has any. Rows without a key go to the first group, which refuses them.

    Raises:
        DefinitionError: There are no columns for the key.
    """
    import numpy as np
    import pyarrow as pa

    from keyed.table_state.batches import group_indices

    table = flattened(table, keys)
    columns = key_columns(table.column_names, keys, operator)
    good: Any = np.ones(table.num_rows, dtype="bool")
    for column in columns:
        good &= np.asarray(table.column(column).is_valid())
    groups: Any = np.zeros(table.num_rows, dtype="int64")
    groups[good] = group_indices(table.filter(pa.array(good)), columns, parallelism)
    for index in np.unique(groups).tolist():
        yield index, table.filter(pa.array(groups == index))


def _columns(frame: Any) -> list[str]:
    return list(frame.columns if is_instance(frame, "pandas", "DataFrame") else frame.schema.names)

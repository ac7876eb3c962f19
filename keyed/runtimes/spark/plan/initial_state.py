"""The initial state of an operator for Spark: packed rows by key group, for the first batch only."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from keyed.job.graph import Stage, is_dataframe
from keyed.runtimes.initial_frames import arrow_table, frames_of
from keyed.runtimes.spark.plan.mapping import map_in_arrow
from keyed.runtimes.spark.session.ship import SourceArchive
from keyed.runtimes.spark.worker.initial_payloads import packing_of
from keyed.runtimes.spark.worker.wire import PACKED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.group import GroupedData


def initial_state_of(stage: Stage, parallelism: int, archive: SourceArchive | None) -> GroupedData | None:
    """Return a stage's initial state by key group; ``None`` if it has none.

    Raises:
        DefinitionError: An argument is not a frame.
    """
    if stage.initial_state is None:
        return None
    session = stage.source.data.sparkSession
    packed: list[DataFrame] = []
    for state, frame in frames_of(stage.initial_state, stage.function, stage.name):
        rows = frame if is_dataframe(frame) else session.createDataFrame(arrow_table(frame))
        packing = packing_of(state, stage.key_columns, stage.name, parallelism)
        packed.append(map_in_arrow(rows, packing, PACKED, archive))
    return reduce(lambda one, other: one.unionAll(other), packed).groupBy("keygroup")

"""Watermark strategies: the delay of the watermark behind the highest timestamp.

Watermark = highest timestamp − delay − 1, as Flink's ``BoundedOutOfOrdernessWatermarks`` has it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Unpack

import attrs

from keyed.base.arguments import Duration, Units, duration_of, milliseconds_of, shows_units, type_of
from keyed.errors import DefinitionError


@attrs.frozen
class WatermarkStrategy:
    """The rule by which a stream's watermark follows its timestamps; made by the two functions above.

    Attributes:
        delay_ms: The watermark is the highest timestamp seen, over all input partitions, less this and less 1 ms.
    """

    delay_ms: int
    idleness_ms: int | None = None
    partition_by: str | None = None
    alignment_group: str | None = None
    max_drift_ms: int | None = None

    @shows_units
    def with_idleness(self, timeout: Duration | None = None, **units: Unpack[Units]) -> WatermarkStrategy:
        """Return the strategy for a source that may be silent (Flink's ``withIdleness``).

        The watermark of several sources or partitions is the least. One without rows for ``timeout`` of processing
        time while the query ran is idle, and not waited for until it has caught up; if all are idle, the watermark
        goes to the greatest.

        Raises:
            DefinitionError: The time-out is not above 0, given twice, or not whole milliseconds.
        """
        return attrs.evolve(self, idleness_ms=duration_of(timeout, "with_idleness", least=1, **units))

    def with_partitions(self, column: str) -> WatermarkStrategy:
        """Return the strategy whose watermark is the least over partitions, as of Flink's Kafka source.

        By default it follows the greatest timestamp of all rows. ``column`` names a row's partition, a text or an
        integer, such as ``partition`` of Spark's Kafka source. A partition counts from its first row on.

        Raises:
            DefinitionError: It is not a name.
        """
        if not isinstance(column, str) or not column:
            raise DefinitionError(f"with_partitions({column!r}): give the name of the column with the partition")
        return attrs.evolve(self, partition_by=column)

    @shows_units
    def with_watermark_alignment(
        self, group: str, max_drift: Duration | None = None, **units: Unpack[Units]
    ) -> WatermarkStrategy:
        """Return the strategy for sources that are read in step (Flink's ``withWatermarkAlignment``).

        A source further ahead of the least watermark in its group than ``max_drift`` waits, which bounds the state.
        Ended and idle sources do not count. In the local runtime only: on Spark use the sources' rate limits.

        Raises:
            DefinitionError: The group is not a name, or the drift is not above 0 or not in whole milliseconds.
        """
        if not isinstance(group, str) or not group:
            raise DefinitionError(f"with_watermark_alignment({group!r}, ...): give the group a name")
        drift = duration_of(max_drift, "with_watermark_alignment", least=1, **units)
        return attrs.evolve(self, alignment_group=group, max_drift_ms=drift)


@shows_units
def bounded_out_of_orderness(delay: Duration | None = None, **units: Unpack[Units]) -> WatermarkStrategy:
    """Expect rows at most ``delay`` after a row with a higher timestamp; later ones are late.

    A delay of 0 is Flink's ``forMonotonousTimestamps``.

    Raises:
        DefinitionError: Negative, given twice, or not whole milliseconds.
    """
    return WatermarkStrategy(duration_of(delay, "bounded_out_of_orderness", **units))


def strategy_of(watermark: WatermarkStrategy | timedelta | None) -> WatermarkStrategy | None:
    """Return the strategy of a parameter ``watermark``, which may be the delay alone.

    Raises:
        DefinitionError: It is neither a strategy nor a `timedelta`.
    """
    if watermark is None or isinstance(watermark, WatermarkStrategy):
        return watermark
    if not isinstance(watermark, timedelta):
        raise DefinitionError(
            f"watermark={watermark!r} is {type_of(watermark)}; give keyed.bounded_out_of_orderness(seconds=5), "
            "or its delay as a timedelta"
        )
    return WatermarkStrategy(milliseconds_of(watermark, "watermark"))

"""Watermark strategies: how far behind the highest timestamp the watermark stays.

Watermark = highest timestamp − delay − 1, as Flink's ``BoundedOutOfOrdernessWatermarks`` has it.
"""

from __future__ import annotations

import attrs

from keyed.durations import Duration, duration_of


@attrs.frozen
class WatermarkStrategy:
    """How a stream's watermark follows its timestamps.

    Attributes:
        delay_ms: The watermark is the highest timestamp seen, over all input partitions, less this and less 1 ms.
    """

    delay_ms: int


def bounded_out_of_orderness(
    delay: Duration | None = None,
    *,
    days: float = 0,
    hours: float = 0,
    minutes: float = 0,
    seconds: float = 0,
    milliseconds: float = 0,
) -> WatermarkStrategy:
    """Expect rows at most ``delay`` after a row with a higher timestamp; later ones are late.

    Args:
        delay: Milliseconds or a `timedelta`; or give units as keywords.
        days: Days of the delay.
        hours: Hours of the delay.
        minutes: Minutes of the delay.
        seconds: Seconds of the delay.
        milliseconds: Milliseconds of the delay.

    Raises:
        DefinitionError: Negative, given twice, or not whole milliseconds.
    """
    total = duration_of(
        delay,
        "bounded_out_of_orderness",
        days=days,
        hours=hours,
        minutes=minutes,
        seconds=seconds,
        milliseconds=milliseconds,
    )
    return WatermarkStrategy(total)


def ascending_timestamps() -> WatermarkStrategy:
    """Expect rows in the order of their timestamps (Flink's ``forMonotonousTimestamps``)."""
    return WatermarkStrategy(0)

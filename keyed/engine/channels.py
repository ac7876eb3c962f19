"""The watermark of an operator that reads several sources or partitions: the least of theirs, as far as they count.

A *channel* is a source, or a partition of a source whose strategy tells them apart. The rules are those of Flink's
``StatusWatermarkValve``: a channel that was silent for the time that its strategy says is idle and does not count; one
that comes back behind the operator's watermark does not count before it has caught up; when all are idle the watermark
goes to the greatest of theirs. It never goes back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from keyed.durations import MIN_TIMESTAMP
from keyed.watermarks import WatermarkStrategy

#: A number of an input, and the name of a partition of it; empty where its strategy does not tell them apart.
ChannelId = tuple[int, str]


@attrs.frozen
class Channel:
    """What is known of a channel.

    Attributes:
        input: Number of the input.
        partition: Name of the partition, empty for all of the input.
        watermark: Its watermark.
        silent_ms: Processing time since its last row, as far as the query ran.
    """

    input: int
    partition: str
    watermark: int
    silent_ms: int = 0


@attrs.frozen
class Advance:
    """What a batch makes of the channels.

    Attributes:
        channels: The channels after it.
        watermark: The operator's watermark after it.
        idle_in_ms: In how much processing time the next of them becomes idle, ``None`` if none does.
    """

    channels: list[Channel]
    watermark: int
    idle_in_ms: int | None


def counts_channels(strategies: Sequence[WatermarkStrategy]) -> bool:
    """Tell whether there is more than one channel; a single one is silent when nothing could move the watermark."""
    return len(strategies) > 1 or any(strategy.partition_by is not None for strategy in strategies)


def advance(
    strategies: Sequence[WatermarkStrategy],
    channels: Sequence[Channel],
    highest: Mapping[ChannelId, int],
    watermark: int,
    elapsed_ms: int,
) -> Advance:
    """Return what a batch makes of the channels and of the operator's watermark.

    Args:
        strategies: The strategy of each input.
        channels: The channels before the batch; none before the first one.
        highest: Highest timestamp of the batch's rows by channel, for those that had rows.
        watermark: The operator's watermark before it.
        elapsed_ms: Processing time since the batch before, 0 if the query did not run meanwhile.
    """
    known = {(channel.input, channel.partition): channel for channel in channels}
    for index in range(len(strategies)):
        # An input is a channel as long as no partition of it is known.
        if not any(number == index for number, _ in (*known, *highest)):
            known[index, ""] = Channel(index, "", watermark)
    for index, partition in highest:
        if partition:
            known.pop((index, ""), None)
        known.setdefault((index, partition), Channel(index, partition, MIN_TIMESTAMP if channels else watermark))
    after = []
    for place, channel in known.items():
        if (time := highest.get(place)) is not None:
            reached = max(channel.watermark, time - strategies[channel.input].delay_ms - 1)
            after.append(attrs.evolve(channel, watermark=reached, silent_ms=0))
        else:
            after.append(attrs.evolve(channel, silent_ms=channel.silent_ms + elapsed_ms))
    active, idle_in = [], []
    for channel in after:
        timeout = strategies[channel.input].idleness_ms
        if timeout is None or channel.silent_ms < timeout:
            active.append(channel.watermark)
            if timeout is not None:
                idle_in.append(timeout - channel.silent_ms)
    if not active:
        reached = max(channel.watermark for channel in after)
    else:
        reached = min((each for each in active if each >= watermark), default=watermark)
    return Advance(
        sorted(after, key=lambda each: (each.input, each.partition)),
        max(watermark, reached),
        min(idle_in, default=None),
    )

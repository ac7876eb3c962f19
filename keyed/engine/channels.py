"""The watermark of an operator that reads several streams or partitions: the least of those that count.

A *channel* is a source, a partition of a source whose strategy distinguishes them, or the output of another operator.
An output has the watermark of its operator, and is idle if all inputs of the operator are. The rules are those of
Flink's ``StatusWatermarkValve``. A channel that was silent for the time-out of its strategy is idle and does not count.
A channel that returns behind the operator's watermark does not count before it has caught up. When all are idle, the
watermark goes to the greatest of theirs. It never goes back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import attrs

from keyed.base.arguments import MIN_TIMESTAMP
from keyed.changelog.model import Channel
from keyed.job.watermarks import WatermarkStrategy

#: The number of an input, and the name of a partition, which is empty if the strategy does not distinguish partitions.
ChannelId = tuple[int, str]


@attrs.frozen
class Upstream:
    """Watermark and status of an upstream operator.

    Attributes:
        watermark: The least watermark of its key groups.
        idle: True if all its inputs are idle.
    """

    watermark: int
    idle: bool = False


@attrs.frozen
class Advance:
    """The channels after a batch.

    Attributes:
        channels: The channels of the sources after it.
        watermark: The operator's watermark after it.
        idle_in_ms: Processing time until the next channel becomes idle, ``None`` if none does.
        idle: True if all are idle.
        held_by: Number of the input that holds the watermark below that of another one, ``None`` if none does; upstream
            operators are numbered after the inputs.
    """

    channels: list[Channel]
    watermark: int
    idle_in_ms: int | None
    idle: bool
    held_by: int | None = None


def counts_channels(strategies: Sequence[WatermarkStrategy | None]) -> bool:
    """Return true if the watermark depends on channels: there are several, or one that may be idle."""
    declared = [each for each in strategies if each is not None]
    return len(declared) > 1 or any(each.partition_by or each.idleness_ms for each in declared)


def advance(
    strategies: Sequence[WatermarkStrategy | None],
    channels: Sequence[Channel],
    highest: Mapping[ChannelId, int],
    watermark: int,
    elapsed_ms: int,
    upstream: Collection[Upstream] = (),
) -> Advance:
    """Return the channels and the operator's watermark after a batch.

    Args:
        strategies: The strategy of each input; ``None`` for an output of another operator.
        channels: The channels of the sources before the batch; none before the first one.
        highest: Highest timestamp of the batch's rows by channel, for channels with rows; `MIN_TIMESTAMP` for an input
            that was held back: it has unread rows, so none of its channels is silent.
        watermark: The operator's watermark before it.
        elapsed_ms: Processing time since the previous batch, 0 if the query was stopped in between.
        upstream: Watermarks and statuses of the other operators whose outputs are read.
    """
    sources = {index: strategy for index, strategy in enumerate(strategies) if strategy is not None}
    held = {place[0] for place, time in highest.items() if time == MIN_TIMESTAMP}
    highest = {place: time for place, time in highest.items() if place[0] in sources.keys() - held}
    # A strategy may have changed: partitions that it no longer distinguishes are not channels.
    followed = (each for each in channels if each.input in sources)
    known = {
        (channel.input, channel.partition): channel
        for channel in followed
        if not channel.partition or sources[channel.input].partition_by
    }
    for index in sources:
        # An input is one channel until a partition of it is known.
        if not any(number == index for number, _ in (*known, *highest)):
            known[index, ""] = Channel(index, "", watermark)
    for index, partition in highest:
        if partition:
            known.pop((index, ""), None)
        known.setdefault((index, partition), Channel(index, partition, MIN_TIMESTAMP if channels else watermark))
    after = []
    for place, channel in known.items():
        if (time := highest.get(place)) is not None:
            reached = max(channel.watermark, time - sources[channel.input].delay_ms - 1)
            after.append(attrs.evolve(channel, watermark=reached, silent_ms=0))
        else:
            silent = 0 if channel.input in held else elapsed_ms
            after.append(attrs.evolve(channel, silent_ms=channel.silent_ms + silent))
    active = [(each.watermark, number) for number, each in enumerate(upstream, len(strategies)) if not each.idle]
    idle_in = []
    for channel in after:
        timeout = sources[channel.input].idleness_ms
        if timeout is None or channel.silent_ms < timeout:
            active.append((channel.watermark, channel.input))
            if timeout is not None:
                idle_in.append(timeout - channel.silent_ms)
    held_by = None
    if not active:
        reached = max(each.watermark for group in (after, upstream) for each in group)
    else:
        reached, lowest = min((each for each in active if each[0] >= watermark), default=(watermark, None))
        held_by = lowest if max(active)[0] > reached else None
    return Advance(
        sorted(after, key=lambda each: (each.input, each.partition)),
        max(watermark, reached),
        min(idle_in, default=None),
        not active,
        held_by,
    )

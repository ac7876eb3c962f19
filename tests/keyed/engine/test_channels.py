"""The watermark over several sources and partitions: Flink's rules of silence, and what comes back late."""

from hypothesis import given
from hypothesis import strategies as st

from keyed.base.arguments import MIN_TIMESTAMP
from keyed.changelog.model import Channel
from keyed.engine.batch import Upstream, advance, counts_channels
from keyed.job.watermarks import WatermarkStrategy

PLAIN, SLOW = WatermarkStrategy(0), WatermarkStrategy(10)
IDLE = PLAIN.with_idleness(100)


def run(strategies, *steps, channels=(), watermark=MIN_TIMESTAMP):
    """Return the watermark after each step, a step being highest timestamps by channel and elapsed time."""
    found = []
    for highest, elapsed in steps:
        after = advance(strategies, channels, highest, watermark, elapsed)
        channels, watermark = after.channels, after.watermark
        found.append(watermark)
    return found


def test_one_input_without_partitions_is_no_matter_of_channels_unless_it_may_be_idle():
    assert not counts_channels([PLAIN])
    assert counts_channels([IDLE])
    assert counts_channels([PLAIN, PLAIN])
    assert counts_channels([PLAIN.with_partitions("p")])


def test_the_watermark_is_the_least_of_both_inputs_each_with_its_delay():
    steps = [({(0, ""): 50}, 0), ({(1, ""): 40}, 0), ({(1, ""): 100}, 0)]
    assert run([PLAIN, SLOW], *steps) == [MIN_TIMESTAMP, 29, 49]


def test_when_all_are_idle_the_watermark_goes_to_the_greatest():
    steps = [({(0, ""): 50, (1, ""): 20}, 0), ({}, 99), ({}, 1), ({}, 1000)]
    assert run([IDLE, IDLE], *steps) == [19, 19, 49, 49]


def test_partitions_are_known_from_their_first_row_on():
    strategies = [PLAIN.with_partitions("p").with_idleness(100)]
    steps = [({(0, "a"): 50}, 0), ({(0, "b"): 60}, 1), ({(0, "b"): 80}, 1), ({(0, "b"): 90}, 98)]
    assert run(strategies, *steps) == [49, 49, 49, 89]


def test_a_new_partition_behind_the_watermark_does_not_hold_it_back():
    steps = [({(0, "a"): 50}, 0), ({(0, "a"): 60, (0, "b"): 10}, 1), ({(0, "a"): 70, (0, "b"): 61}, 1)]
    assert run([PLAIN.with_partitions("p")], *steps) == [49, 59, 60]


def test_an_operator_that_was_restored_goes_on_at_its_watermark():
    assert run([PLAIN, PLAIN], ({(0, ""): 50}, 0), ({(1, ""): 60}, 0), watermark=30) == [30, 49]


def test_the_next_silence_is_told():
    after = advance([IDLE, WatermarkStrategy(0).with_idleness(30)], [], {(0, ""): 5, (1, ""): 5}, MIN_TIMESTAMP, 0)
    assert after.idle_in_ms == 30
    after = advance([IDLE, PLAIN.with_idleness(30)], after.channels, {}, after.watermark, 40)
    assert after.idle_in_ms == 60
    assert [channel.silent_ms for channel in after.channels] == [40, 40]
    assert advance([PLAIN, PLAIN], [], {}, MIN_TIMESTAMP, 0).idle_in_ms is None


TIMES = st.integers(-1000, 1000)
STEPS = st.lists(
    st.tuples(st.dictionaries(st.tuples(st.integers(0, 1), st.sampled_from(["", "b"])), TIMES), st.integers(0, 60))
)


@given(STEPS, st.booleans(), st.booleans())
def test_the_watermark_never_goes_back_nor_beyond_the_highest_time_seen(steps, first, second):
    strategies = [IDLE if first else PLAIN, IDLE if second else SLOW]
    watermarks = run(strategies, *steps)
    assert watermarks == sorted(watermarks)
    highest = MIN_TIMESTAMP
    for (times, _), watermark in zip(steps, watermarks, strict=True):
        highest = max([highest, *times.values()])
        assert watermark <= highest


@given(STEPS)
def test_where_nothing_is_idle_no_input_that_is_level_is_overtaken(steps):
    channels: list[Channel] = []
    watermark = MIN_TIMESTAMP
    for highest, elapsed in steps:
        after = advance([PLAIN, SLOW], channels, highest, watermark, elapsed)
        level = [channel for channel in after.channels if channel.watermark >= watermark]
        assert all(channel.watermark >= after.watermark for channel in level)
        channels, watermark = after.channels, after.watermark


def test_partitions_that_a_strategy_does_not_tell_apart_any_more_hold_nothing_back():
    channels = [Channel(0, "p1", 10), Channel(0, "p2", 40), Channel(1, "", 60)]
    after = advance([PLAIN, PLAIN], channels, {(0, ""): 51, (1, ""): 81}, 10, 0)
    assert after.watermark == 50
    assert [(each.input, each.partition) for each in after.channels] == [(0, ""), (1, "")]
    # An input that there is no more is none either.
    assert advance([PLAIN], channels, {(0, ""): 51}, 10, 0).watermark == 50


def test_the_input_that_holds_the_watermark_below_that_of_another_is_named():
    later = advance([PLAIN, PLAIN], [], {(0, ""): 51, (1, ""): 21}, MIN_TIMESTAMP, 0)
    assert later.held_by == 1
    assert advance([PLAIN, PLAIN], later.channels, {(1, ""): 51}, later.watermark, 0).held_by is None
    assert advance([PLAIN, None], [], {(0, ""): 51}, MIN_TIMESTAMP, 0, [Upstream(7)]).held_by == 2
    assert advance([PLAIN, None], [], {(0, ""): 51}, MIN_TIMESTAMP, 0, [Upstream(7, idle=True)]).held_by is None
    silent = advance([PLAIN, IDLE], later.channels, {(0, ""): 99}, later.watermark, 1_000_000)
    assert silent.held_by is None, "an idle input holds nothing"

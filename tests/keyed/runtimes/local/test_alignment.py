"""Watermark alignment: sources that run ahead are held back, and nothing is lost by it."""

import pytest

import keyed
from keyed import bounded_out_of_orderness
from keyed.errors import DefinitionError
from tests.keyed.runtimes.spark.functions import Both

ALIGNED = bounded_out_of_orderness(0).with_watermark_alignment("group", 20)


def run(fast, slow, *, aligned=True, idleness=None, clock=lambda: 0):
    """Run two sources. Returns how far the fast one was ahead at most."""
    ahead, times = [], {"fast": 0, "slow": 0}

    def seen(name, source):
        for t in source:
            if t is not keyed.PAUSE:
                times[name] = t
                ahead.append(times["fast"] - times["slow"])
            yield t if t is keyed.PAUSE else {"k": "a", "t": t, "v": 0}

    strategy = ALIGNED if aligned else bounded_out_of_orderness(0)
    other = strategy if idleness is None else strategy.with_idleness(idleness)
    first = keyed.stream(seen("fast", fast), timestamp="t", watermark=strategy)
    second = keyed.stream(seen("slow", slow), timestamp="t", watermark=other)
    connected = first.connect(second).key_by("k").process(Both())
    result = connected.run(rows_per_batch=10, processing_time=clock)
    return max(ahead), result.values[-1]


def test_a_source_is_held_back_by_the_one_that_lags():
    fast, slow = range(0, 1000, 10), range(1000)
    free, counted = run(fast, slow, aligned=False)
    held, the_same = run(fast, slow)
    assert free > 800
    # The drift and a batch.
    assert held <= 20 + 100
    assert counted == the_same == ("a", 100, 1000)


def test_one_that_has_ended_is_not_waited_for():
    assert run(range(0, 1000, 10), [1]) == (989, ("a", 100, 1))


def test_one_that_is_idle_is_not_waited_for():
    clock = [0]

    def silent():
        yield 1
        for _ in range(20):
            clock[0] += 10
            yield keyed.PAUSE
        yield 2

    assert run(range(0, 1000, 10), silent(), idleness=50, clock=lambda: clock[0])[1] == ("a", 100, 2)


class Late(Both):
    """Tells which rows are late."""

    def count(self, one, value, ctx):
        yield value.t, ctx.is_late()

    def on_timer(self, timestamp, ctx):
        return ()


def test_a_source_that_is_held_back_is_not_idle():
    clock = [0]

    def slow():
        for t in (1, 2, 3, 300):
            clock[0] += 100
            yield {"k": "a", "t": t, "v": 0}
            yield keyed.PAUSE

    strategy = ALIGNED.with_idleness(50)
    fast = keyed.stream([{"k": "a", "t": t, "v": 0} for t in range(0, 400, 10)], timestamp="t", watermark=strategy)
    connected = fast.connect(keyed.stream(slow(), timestamp="t", watermark=strategy)).key_by("k")
    result = connected.process(Late()).run(rows_per_batch=10, processing_time=lambda: clock[0])
    # It was held back at 90 for longer than the time-out, and then the other one came to 300 at once.
    assert sorted(t for t, _ in result.values) == sorted([1, 2, 3, 300, *range(0, 400, 10)])
    assert [t for t, late in result.values if late and t > 3] == []


@pytest.mark.parametrize(("group", "drift"), [("", 5), (None, 5), ("group", 0), ("group", -1)])
def test_a_group_has_a_name_and_a_drift(group, drift):
    with pytest.raises(DefinitionError, match="with_watermark_alignment"):
        bounded_out_of_orderness(0).with_watermark_alignment(group, drift)

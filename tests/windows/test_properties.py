"""Invariants of all programs: agreement with the oracle, independence of batches and of order, recovery."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyed
from keyed import windows as w
from keyed.testing import strategies
from tests.windows.programs import SortedValues, any_program, check, random_program

KEEPS = st.sampled_from(["packed", "general"])


@given(st.randoms(use_true_random=False), KEEPS, st.booleans())
def test_programs_agree_with_the_oracle(rng, keeps, crash_always):
    check(random_program(rng), keeps=keeps, crash_always=crash_always)


@given(st.randoms(use_true_random=False), KEEPS, st.booleans())
def test_programs_with_every_assigner_trigger_and_clock_agree_with_the_oracle(rng, keeps, crash_always):
    check(any_program(rng), keeps=keeps, crash_always=crash_always)


@pytest.mark.long
def test_ten_thousand_programs_agree_with_the_oracle():
    for seed in range(10_000):
        rng = random.Random(seed)
        program = any_program(rng) if seed % 2 else random_program(rng)
        check(program, keeps=rng.choice(("packed", "general")), crash_always=seed % 10 == 0)


DELAY = 8
ASSIGNERS = st.one_of(
    st.builds(w.TumblingEventTimeWindows.of, st.integers(1, 12)),
    st.builds(w.HoppingEventTimeWindows.of, st.integers(1, 12), st.integers(1, 14)),
    st.builds(w.EventTimeSessionWindows.with_gap, st.integers(1, 12)),
)


#: Sessions that touch are one, as in Flink (`TimeWindow.intersects`), and a session fires at its last millisecond. So a
#: row that is exactly as late as the watermark allows may touch a session that has just fired: one millisecond more.
WATERMARK = keyed.bounded_out_of_orderness(milliseconds=DELAY + 1)


def numbered(stream, start):
    """Rows (key, time, number) of a stream, the times counted from a start."""
    return [row.value | {"at": row.timestamp + start, "number": number} for number, row in enumerate(stream)]


#: Rows that arrive at most `DELAY` after a row with a higher time.
ROW = strategies.rows("key string", key=strategies.skewed("a", "b"))
DISORDERED = st.builds(numbered, strategies.streams(ROW, gap=3, delay=DELAY, max_size=30), st.integers(-30, 30))


def panes(rows, assigner, size, **options):
    """All panes, in any order."""
    stream = keyed.stream(rows, timestamp="at", watermark=WATERMARK)
    output = (
        stream.key_by("key")
        .window(assigner)
        .aggregate(
            {
                "n": w.Count(),
                "total": w.Sum("number"),
                "least": w.Min("number"),
                "most": w.Max("number"),
                "distinct": w.CountDistinct("number"),
                "top": w.TopK(2, "number"),
                "values": SortedValues("number"),
            },
            **options,
        )
    )
    return sorted(tuple(row) for row in output.run(rows_per_batch=size).values)


class Elements(w.ProcessWindowFunction):
    """All elements of a window: windows are kept one by one, several batches' timers in one."""

    def process(self, key, context, elements):
        yield (key, *context.window(), sorted(row.number for row in elements))


@given(DISORDERED, ASSIGNERS, st.integers(1, 30), st.sampled_from([0, 3]))
def test_windows_kept_one_by_one_give_the_same_panes(rows, assigner, size, lateness):
    stream = keyed.stream(rows, timestamp="at", watermark=WATERMARK)
    windows = stream.key_by("key").window(assigner).allowed_lateness(lateness)
    found = windows.process(Elements()).run(rows_per_batch=size).values
    assert sorted(found) == [(*pane[:3], pane[-1]) for pane in panes(rows, assigner, 1000)]


@given(DISORDERED, ASSIGNERS, st.integers(1, 7), st.randoms(use_true_random=False))
def test_panes_depend_neither_on_batches_nor_on_order_within_the_delay(rows, assigner, size, rng):
    whole = panes(rows, assigner, 1000)
    assert panes(rows, assigner, size) == whole
    assert panes(rows, assigner, size, parallelism=3, store="rocksdb") == whole
    ordered = sorted(rows, key=lambda row: row["at"])
    assert panes(ordered, assigner, size) == whole
    assert panes(sorted(rows, key=lambda row: rng.random()), assigner, 1000) == whole
    # Each element is in each of its windows, and once.
    found = sorted((pane[0], pane[1], pane[2], number) for pane in whole for number in pane[-1])
    if isinstance(assigner, w.EventTimeSessionWindows):
        assert sorted(number for *_, number in found) == [row["number"] for row in rows]
    else:
        windows = [(row, window) for row in rows for window in assigner.assign_windows(row, row["at"], 0)]
        assert found == sorted((row["key"], *window, row["number"]) for row, window in windows)

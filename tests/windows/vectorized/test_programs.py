"""Whole columns against the brute-force oracle of `tests.windows.oracle`: random definitions, batches and crashes."""

import random
from collections import Counter as Multiset

import attrs
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyed.testing import KeyedTestHarness
from keyed.windows import Count, CountDistinct, Latest, Min, Sum, TopK, Variance
from tests.support.window_operators import window_columns
from tests.windows.oracle import Oracle, Program
from tests.windows.programs import assigner_of, random_program

COLUMNS = {"key": "string", "value": "bigint", "at": "bigint"}
#: `TopK` shows every element; that it cannot be merged by the state table, and `Sum` can, makes two ways through it.
AGGREGATES = {"values": TopK(100, "value"), "number": Count(), "total": Sum("value")}
SIMPLE = {"number": Count(), "total": Sum("value"), "least": Min("value")}
ALL = AGGREGATES | {
    "distinct": CountDistinct("value"),
    "latest": Latest("value", by_time=True),
    "var": Variance("value"),
}


def check(program: Program, rng: random.Random, *, simple: bool, diverts: bool, crash_always: bool) -> None:
    """Run a program's rows in random batches and compare each step's outputs with the oracle's.

    Args:
        program: The program; its trigger is the default one.
        rng: Cuts the batches.
        simple: Only aggregates that the state table merges.
        diverts: Whether late rows go to a side output, which rules out merging rows before the shuffle.
        crash_always: Crash and recover after each batch.
    """
    operator = window_columns(
        assigner=assigner_of(program),
        aggregate=SIMPLE if simple else ALL,
        columns=COLUMNS,
        allowed_lateness_ms=program.lateness,
        late_tag="late" if diverts else None,
    )
    oracle = Oracle(program)
    waiting: list[tuple] = []
    with KeyedTestHarness(operator, key="key", parallelism=rng.choice((1, 3))) as harness:
        dropped = 0

        def compare(step: object) -> None:
            nonlocal dropped
            found = [(*shown(r.value, simple=simple), r.timestamp) for r in harness.take_output()]
            wanted = [
                (key, start, end, expected(values, simple=simple), t) for key, start, end, values, t in oracle.outputs
            ]
            assert Multiset(found) == Multiset(wanted), step
            if diverts:
                assert Multiset(row.value for row, _ in harness.take_side_output("late")) == Multiset(oracle.late), step
            assert harness.metrics()["rows_dropped"] - dropped == (0 if diverts else len(oracle.late)), step
            dropped = harness.metrics()["rows_dropped"]
            oracle.outputs, oracle.late = [], []

        def flush() -> None:
            # Rows of a batch run in the order of their times.
            for _, key, time, value in sorted(waiting, key=lambda step: step[2]):
                oracle.row(key, time, value)
            if waiting:
                _, keys, times, values = zip(*waiting, strict=True)
                harness.process_batch(pa.table({"key": keys, "value": values, "at": times}), "at")
                compare(tuple(waiting))
                waiting.clear()
                if crash_always:
                    harness.crash_and_recover()

        for step in (*program.steps, ("watermark", 2_000_000)):
            if step[0] == "row":
                waiting.append(step)
                if rng.random() < 0.3:
                    flush()
                continue
            flush()
            if step[0] == "watermark":
                oracle.advance(step[1])
                harness.advance_watermark(step[1])
                compare(step)
            else:
                harness.crash_and_recover()
        assert not oracle.panes
        assert harness.metrics()["live_entries"] == 0


def shown(row, *, simple):
    """Return the values of an output."""
    if simple:
        return row.key, row.window_start, row.window_end, (row.number, row.total, row.least)
    values = tuple(sorted(row.values))
    assert (row.number, row.total, row.distinct) == (len(values), sum(values), len(values))
    assert row.var is None or abs(row.var - variance(values)) < 1e-9
    return row.key, row.window_start, row.window_end, values


def expected(values, *, simple):
    return (len(values), sum(values), min(values)) if simple else values


def variance(values):
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)


def run(rng: random.Random, *, crash_always: bool) -> None:
    """Run one program."""
    program = attrs.evolve(random_program(rng), trigger="default")
    options = {"simple": rng.random() < 0.4, "diverts": rng.random() < 0.5}
    check(program, rng, crash_always=crash_always, **options)


@settings(max_examples=settings().max_examples // 2)
@given(st.randoms(use_true_random=False), st.booleans())
def test_programs_agree_with_the_oracle(rng, crash_always):
    run(rng, crash_always=crash_always)


@pytest.mark.long
def test_a_thousand_programs_agree_with_the_oracle():
    for seed in range(1000):
        run(random.Random(seed), crash_always=seed % 5 == 0)

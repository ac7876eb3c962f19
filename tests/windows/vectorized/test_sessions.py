"""Merging of sessions by columns: what joins what, what is late, what fires again."""

import numpy as np
import pytest

from keyed.windows.vectorized.session_merging import Clock, Spans, accepted, merged, spans_of

MIN = -(2**63)
NEVER = Clock(MIN, MIN, 1, 0)
GAP = 10


def spans(*bounds, key=0):
    """Spans of one key."""
    starts, ends = zip(*bounds, strict=True) if bounds else ((), ())
    return Spans(np.full(len(bounds), key), np.array(starts, dtype=np.int64), np.array(ends, dtype=np.int64))


def rows(*times, key=0):
    return spans(*((time, time + GAP) for time in times), key=key)


def bounds(found):
    return list(zip(found.starts.tolist(), found.ends.tolist(), strict=True))


def test_elements_within_the_gap_are_one_session():
    elements = rows(0, 3, 9, 30, 35)
    found, numbers = spans_of(elements, GAP, NEVER)
    assert bounds(found) == [(0, 19), (30, 45)]
    assert numbers.tolist() == [0, 0, 0, 1, 1]


def test_touching_sessions_are_one():
    found, _ = spans_of(rows(0, 10), GAP, NEVER)
    assert bounds(merged(spans(), found, NEVER).sessions) == [(0, 20)]


def test_a_session_that_is_cleaned_up_does_not_go_on_where_it_ends():
    """Without delay and lateness the watermark is at 9 before the element at 10: the session [0, 10) is gone."""
    clock = Clock(MIN, 9, 1, 0)
    found, _ = spans_of(rows(0, 10), GAP, clock)
    assert bounds(merged(spans(), found, clock).sessions) == [(0, 10), (10, 20)]


def test_a_session_that_has_fired_and_is_kept_goes_on_where_it_ends():
    clock = Clock(MIN, 9, 1, 5)
    found, _ = spans_of(rows(0, 10), GAP, clock)
    plan = merged(spans(), found, clock)
    assert bounds(plan.sessions) == [(0, 20)]
    assert plan.fires.tolist() == [0]
    assert bounds(plan.fired) == [(0, 10)]


def test_an_element_joins_open_sessions_on_both_sides():
    open_ = spans((0, 12), (20, 35))
    found, _ = spans_of(rows(12), GAP, NEVER)
    plan = merged(open_, found, NEVER)
    assert bounds(plan.sessions) == [(0, 35)]
    assert plan.numbers.tolist() == [0, 0, 0]


def test_sessions_of_other_keys_are_others():
    elements = Spans(np.array([0, 1, 0]), np.array([0, 1, 2]), np.array([10, 11, 12]))
    found, _ = spans_of(elements, GAP, NEVER)
    assert bounds(merged(spans(), found, NEVER).sessions) == [(0, 12), (1, 11)]


@pytest.mark.parametrize(
    ("times", "wanted"),
    [
        ([0], [False]),
        # It touches the open session [30, 45) from before, so it bridges to it.
        ([20], [True]),
        ([19], [False]),
        # From the first that joins on, those that follow within the gap join too, those before do not.
        ([15, 20, 22], [False, True, True]),
        ([45, 52, 62], [True, True, True]),
        ([46], [False]),
        # Late is what would end at or before the watermark.
        ([91], [False]),
        ([92], [True]),
    ],
)
def test_late_elements_join_what_is_open(times, wanted):
    # Were there no open session, elements up to 91 would be late; that it is open is taken as given here.
    clock = Clock(100, 100, 1, 0)
    assert accepted(spans((30, 45)), rows(*times), clock).tolist() == wanted


def test_a_late_element_is_not_saved_by_one_that_comes_after_it():
    clock = Clock(100, 100, 1, 0)
    assert accepted(spans(), rows(89, 92), clock).tolist() == [False, True]


def test_each_late_element_fires_with_what_it_joins():
    clock = Clock(50, 50, 1, 100)
    open_ = spans((0, 12), (25, 40))
    found, numbers = spans_of(rows(5, 15, 20), GAP, clock)
    assert numbers.tolist() == [0, 1, 2]
    plan = merged(open_, found, clock)
    assert bounds(plan.sessions) == [(0, 40)]
    # At 5 the session still ends at 15; the element at 15 reaches the open session at 25 and so does that at 20.
    assert bounds(plan.fired) == [(0, 15), (0, 40), (0, 40)]
    assert plan.ahead.tolist() == [-1, 1, 1]


def test_times_far_apart_do_not_overflow():
    far = 2**62
    for times in ((-far, far), (-far, 0, far)):
        found, _ = spans_of(rows(*times), GAP, NEVER)
        assert len(merged(spans(), found, NEVER).sessions) == len(times)
    many = Spans(
        np.arange(1000), np.linspace(-far, far, 1000).astype(np.int64), np.linspace(-far, far, 1000).astype(int) + 1
    )
    assert len(merged(spans(), many, NEVER).sessions) == 1000

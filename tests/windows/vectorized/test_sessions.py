"""Merging of sessions by columns: what joins what, what is late, what fires again."""

import numpy as np

from keyed.windows.vectorized.session_merging import Clock, Spans, merged, spans_of

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


def test_times_far_apart_do_not_overflow():
    far = 2**62
    for times in ((-far, far), (-far, 0, far)):
        found, _ = spans_of(rows(*times), GAP, NEVER)
        assert len(merged(spans(), found, NEVER).sessions) == len(times)
    many = Spans(
        np.arange(1000), np.linspace(-far, far, 1000).astype(np.int64), np.linspace(-far, far, 1000).astype(int) + 1
    )
    assert len(merged(spans(), many, NEVER).sessions) == 1000

"""Values kept by aggregates do not depend on where batches are cut: times of other zones and of repeated hours."""

import datetime as dt
from zoneinfo import ZoneInfo

import pytest

import keyed
from keyed import windows as w

BERLIN = ZoneInfo("Europe/Berlin")
#: In Berlin the hour from two to three comes twice on this day; a clock on the wall shows the third before the second.
TIMES = [
    dt.datetime(2024, 10, 27, 2, 10, tzinfo=BERLIN),
    dt.datetime(2024, 10, 27, 2, 45, tzinfo=BERLIN),
    dt.datetime(2024, 10, 27, 2, 10, tzinfo=BERLIN, fold=1),
]
UTC = [time.astimezone(dt.UTC) for time in TIMES]
AGGREGATES = {
    "least": w.Min("at"),
    "most": w.Max("at"),
    "first": w.First("at"),
    "latest": w.Latest("at"),
    "all": w.CollectList("at"),
    "set": w.CollectSet("at"),
    "distinct": w.CountDistinct("at"),
    "of_last": w.ArgMax("n", by="at"),
    "top": w.TopK(2, "at", by="at"),
    "nested": w.CollectList("nested"),
}
WINDOWS = {
    "tumbling": w.TumblingEventTimeWindows.of(1000),
    "hopping": w.HoppingEventTimeWindows.of(1000, 500),
    "session": w.EventTimeSessionWindows.with_gap(1000),
}


def rows():
    return [{"k": 1, "t": 600 + n, "n": n, "at": at, "nested": [at]} for n, at in enumerate(TIMES)]


@pytest.mark.parametrize("lateness", [0, 10_000])
@pytest.mark.parametrize("name", WINDOWS)
def test_aggregates_keep_times_by_the_instant(name, lateness):
    def run(size):
        stream = keyed.stream(rows(), timestamp="t").key_by("k").window(WINDOWS[name]).allowed_lateness(lateness)
        return repr(stream.aggregate(AGGREGATES).run(rows_per_batch=size).values), stream

    whole, stream = run(1000)
    assert run(1)[0] == run(2)[0] == whole
    result = stream.aggregate(AGGREGATES, name="again").run().values[0]
    assert (result.least, result.most, result.first, result.latest) == (UTC[0], UTC[2], UTC[0], UTC[2])
    assert (result.all, result.set, result.distinct) == (UTC, UTC, 3)
    assert (result.of_last, result.top, result.nested) == (2, [UTC[2], UTC[1]], [[at] for at in UTC])


def test_what_reduce_makes_is_the_same_within_a_batch_and_after_it():
    def run(size):
        stream = keyed.stream(rows(), timestamp="t").key_by("k").window(w.TumblingEventTimeWindows.of(1000))
        return repr(stream.reduce(lambda a, b: max(a, b, key=lambda row: row.at)).run(rows_per_batch=size).values)

    assert run(1) == run(2) == run(3)
    assert repr(UTC[2]) in run(1)

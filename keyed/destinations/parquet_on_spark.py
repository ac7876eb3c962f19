"""Parquet files on Spark, each under its batch's id, replacing earlier files of the same batch.

A mounted folder gets flat files ``part-<batch id>-<n>.parquet``, as in the local runtime, also on a cluster. Spark
writes them to a staging folder beside them, ``_staging-<batch id>``, which readers skip; they are moved into place when
all are written. If the path has a scheme that only Spark reaches, each batch has a folder ``batch=<batch id>`` that
Spark overwrites. A mounted folder that a query over Spark Connect began keeps this form, because Spark's reader skips
files beside such folders.
"""

from __future__ import annotations

import shutil
from base64 import b64decode, b64encode
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from keyed.base.schemas import Schema
from keyed.destinations.ownership import Owner
from keyed.destinations.parquet_folder import (
    MARK,
    BatchFiles,
    LocalFolder,
    SinkFolder,
    check_columns,
    claim_folder,
    last_file,
)
from keyed.destinations.sink import SinkBatch, SinkWriter, SparkSide, local_folder
from keyed.errors import DefinitionError, SinkError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

#: Start of the name of the file that Spark's first task writes.
_FIRST = "part-00000-"


class ParquetOnSpark(SinkWriter):
    """Writes the files of each batch.

    Args:
        path: The folder, or its URI.
        owner: The query.
        schema: The output's columns.
        spark: The Spark runtime.
        replaces: Replace the files of another query.
    """

    def __init__(self, path: str, owner: Owner, schema: Schema, spark: SparkSide, *, replaces: bool) -> None:
        self._path = path
        self._owner = owner
        self._schema = schema
        self._spark = spark
        self._replaces = replaces
        folder = local_folder(path) if spark.is_mounted else None
        if folder is not None and ((folder / MARK).is_dir() or any(folder.glob("batch=*"))):
            folder = None
        #: The files of the folder, if it gets flat files.
        self._flat = None if folder is None else BatchFiles(folder)

    def claim(self, repeated: int | None = None) -> None:
        """See `SinkWriter`."""
        claim_folder(self._folder(), self._owner, replaces=self._replaces)

    def prepare(self, schema: pa.Schema) -> None:
        """Compare the columns with those of existing files. See `SinkWriter`."""
        folder = self._folder()
        last = last_file(folder.parquet_files())
        if last is not None:
            session = self._spark.session
            path = Path(folder.path, last).as_uri() if self._flat else f"{folder.path.rstrip('/')}/{last}"
            new = session.createDataFrame([], self._schema.ddl).schema
            check_columns(self._path, last, _types(session.read.parquet(path).schema), _types(new))

    def write(self, rows: SinkBatch, batch_id: int) -> None:
        """See `SinkWriter`."""
        if self._flat is not None:
            _write_files(rows.frame, self._flat, batch_id)
        else:
            write_folder(rows.frame, self._path, batch_id)

    def _folder(self) -> SinkFolder:
        return (
            SparkFolder(self._spark.session, self._path) if self._flat is None else LocalFolder(str(self._flat.folder))
        )


@attrs.frozen
class SparkFolder:
    """A folder that Spark reaches, on any file system; see `SinkFolder`."""

    session: SparkSession
    path: str

    def read_mark(self) -> bytes | None:
        """See `SinkFolder`.

        Raises:
            SinkError: Several queries have left a mark.
        """
        marks = self._marks()
        if len(marks) > 1:
            raise SinkError(
                f"Parquet sink {self.path!r}: {len(marks)} queries began to write to the folder at the same time; "
                f"remove {MARK} from it, and continue one of them"
            )
        return next(iter(marks), None)

    def write_mark(self, mark: bytes, *, new: bool) -> None:
        """See `SinkFolder`. Of several concurrent new marks, at most one is kept."""
        place = f"{self.path.rstrip('/')}/{MARK}"
        if not new:
            self._write_lines(place, mark)
            return
        own = f"{place}/{sha256(mark).hexdigest()[:16]}"
        self._write_lines(own, mark)
        if self._marks() != {mark}:
            self._write_lines(own)
            raise FileExistsError(MARK)

    def _write_lines(self, place: str, *marks: bytes) -> None:
        lines = self.session.createDataFrame([(b64encode(mark).decode(),) for mark in marks], "value string")
        lines.coalesce(1).write.mode("overwrite").text(place)

    def _marks(self) -> set[bytes]:
        files = self._files(MARK, "part-*")
        return {b64decode(row.value) for row in self.session.read.text(files).collect()} if files else set()

    def parquet_files(self) -> list[str]:
        """See `SinkFolder`."""
        return [
            name[name.rindex("/batch=") + 1 :] if "/batch=" in name else name.rpartition("/")[2]
            for name in self._files("", "*.parquet")
        ]

    def remove(self, files: Sequence[str]) -> None:
        """See `SinkFolder`."""
        for folder in {name.partition("/")[0] for name in files}:
            path = f"{self.path.rstrip('/')}/{folder}"
            # Spark has no other way to remove the content of a folder.
            empty = self.session.createDataFrame([], self.session.read.parquet(path).schema)
            empty.write.mode("overwrite").parquet(path)

    def _files(self, folder: str, pattern: str) -> list[str]:
        from pyspark.errors import PySparkException

        reader = self.session.read.format("binaryFile").option("pathGlobFilter", pattern)
        try:
            files = reader.option("recursiveFileLookup", "true").load(f"{self.path.rstrip('/')}/{folder}")
            return [row.path for row in files.select("path").collect()]
        except PySparkException:
            # There is no such folder.
            return []


def _types(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema}


def batch_folder(path: str, batch_id: int) -> str:
    """Return the folder of one batch of a sink with a folder for each."""
    return f"{path.rstrip('/')}/batch={batch_id:010d}"


def write_folder(frame: DataFrame, path: str, batch_id: int) -> None:
    """Replace the folder of one batch."""
    frame.write.mode("overwrite").parquet(batch_folder(path, batch_id))


def _write_files(frame: DataFrame, files: BatchFiles, batch_id: int) -> None:
    """Replace the files of one batch."""
    import pyarrow.parquet as pq

    staging = files.folder / f"_staging-{batch_id:010d}"
    frame.write.mode("overwrite").parquet(staging.as_uri())
    parts = sorted(staging.glob("part-*.parquet"))
    if not parts:
        raise DefinitionError(
            f"Parquet sink {str(files.folder)!r}: Spark wrote the files on other machines; give a path that all "
            "machines reach, with its scheme: hdfs://... or s3a://..., or a folder that is mounted on all"
        )
    # Of the tasks without rows only the first one writes a file.
    written = [path for path in parts if not path.name.startswith(_FIRST) or pq.read_metadata(path).num_rows]
    for path, target in zip(written or parts, files.replace(batch_id, len(written)), strict=False):
        path.replace(target)
    shutil.rmtree(staging)

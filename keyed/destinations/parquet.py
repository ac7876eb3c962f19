"""Folders of Parquet files as sinks, in both runtimes.

A mark in the folder names the query, and another query is refused. A query that is restored from the changelogs of
another one continues in its folder and takes it over: the earlier query is refused there. If two queries begin in a
folder at the same time, the second is refused; in the local runtime a query holds a lock on its folders while it runs.

The mark is the file ``_keyed-query`` (`keyed.destinations.sink`). In a folder that only Spark reaches, it is the only
line, in base64, of a text dataset of this name, or of one in it. Readers of Parquet skip names that begin with ``_``.

A mounted folder gets flat files ``part-<batch id>-<n>.parquet`` in both runtimes, also on a cluster. Spark writes them
to a staging folder beside them, ``_staging-<batch id>``, which readers skip; they are moved into place when all are
written. If the path has a scheme that only Spark reaches, each batch has a folder ``batch=<batch id>`` that Spark
overwrites. A mounted folder that a query over Spark Connect began keeps this form, because Spark's reader skips files
beside such folders.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
from base64 import b64decode, b64encode
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal, Protocol

import attrs

from keyed.base.arguments import path_text
from keyed.base.private_files import folder_path
from keyed.base.schemas import Schema
from keyed.destinations.sink import (
    Owner,
    Sink,
    SinkBatch,
    SinkWriter,
    SparkSide,
    decode_mark,
    encode_mark,
    folder_identity,
    local_folder,
)
from keyed.errors import DefinitionError, SinkError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


MARK = "_keyed-query"

#: Types of columns without values.
_NO_TYPE = {"null", "void"}
_OURS = re.compile(r"(?:part-|batch=)(\d{10,})(?:-\d{4,}\.parquet|/.*)")
_STAGED = re.compile(r"\.part-\d{10,}-\d{4,}\.parquet\.\d+\.tmp")


class SinkFolder(Protocol):
    """Protocol of a sink's folder on any file system."""

    @property
    def path(self) -> str:
        """The folder, for messages."""

    def read_mark(self) -> bytes | None:
        """Return the mark, ``None`` if there is none."""

    def write_mark(self, mark: bytes, *, new: bool) -> None:
        """Write the mark, or replace an existing one.

        Raises:
            FileExistsError: ``new`` is true, and a mark exists, if the folder can detect it.
        """

    def parquet_files(self) -> list[str]:
        """Return the paths of the Parquet files in the folder that readers see."""

    def remove(self, files: Sequence[str]) -> None:
        """Remove Parquet files."""


def claim_folder(folder: SinkFolder, owner: Owner, *, replaces: bool = False) -> None:
    """Claim a sink's folder for a query, before the query writes to it in this run.

    Args:
        folder: The folder.
        owner: The query.
        replaces: Replace the files of another query.

    Raises:
        SinkError: The folder belongs to another query, was written by another program, or cannot be read or written.
        CorruptionError: The mark is damaged.
    """
    try:
        mark = folder.read_mark()
        # An empty mark was left by a query that was killed while it wrote it.
        before = decode_mark(mark, f"{folder.path}/{MARK}") if mark else []
        if before[-1:] == [owner.query]:
            return
        files = folder.parquet_files()
        if not owner.batches and owner.continues(before):
            # The earlier query may be ahead of its changelogs.
            folder.remove([name for name in files if (batch_of(name) or 0) >= owner.next_batch])
        elif files:
            whose = f"the query {before[-1]}" if before else "a query that left no mark"
            _replace(folder, files, whose, is_allowed=replaces)
        folder.write_mark(encode_mark(owner.queries), new=mark is None)
    except FileExistsError:
        raise _in_use(folder.path) from None
    except OSError as error:
        raise _unusable(folder.path, error) from error


def _unusable(path: str, error: OSError) -> SinkError:
    return SinkError(f"Parquet sink {path!r}: {error}; give the path of a folder that can be written")


def _in_use(path: str) -> SinkError:
    return SinkError(
        f"Parquet sink {path!r}: another query has just begun to write to the folder; give each query its own folder"
    )


def locked_folder(path: str) -> AbstractContextManager[object]:
    """Return a lock on a folder against other queries of this machine.

    Raises:
        SinkError: Another query is running there, or the folder cannot be created.
    """
    from keyed.base.lease import NO_LOCKS, Lease

    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        return Lease(path)
    except BlockingIOError:
        raise _in_use(path) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise _unusable(path, error) from error
        # The file system has no locks on folders.
        return nullcontext()


def _replace(folder: SinkFolder, files: list[str], whose: str, *, is_allowed: bool) -> None:
    """Remove the files of another query."""
    foreign = [name for name in files if batch_of(name) is None]
    if foreign:
        raise SinkError(
            f"Parquet sink {folder.path!r}: the folder holds {foreign[0]}, which no query of keyed wrote; give another "
            "folder"
        )
    if not is_allowed:
        raise SinkError(
            f"Parquet sink {folder.path!r}: the folder was written by {whose}, and rows of both would be mixed; give "
            'the checkpoint of that query to continue it, another folder, or keyed.parquet_sink(path, mode="overwrite")'
            " to replace its files"
        )
    folder.remove(files)


def batch_of(file: str) -> int | None:
    """Return the id of the batch of a file in a sink's folder; ``None`` for a file that no sink wrote."""
    match = _OURS.fullmatch(file)
    return None if match is None else int(match[1])


def last_file(files: Sequence[str]) -> str | None:
    """Return the file of the newest batch, ``None`` if there is none."""
    return max(
        (name for name in files if batch_of(name) is not None), key=lambda name: batch_of(name) or 0, default=None
    )


def check_columns(path: str, file: str, existing: Mapping[str, str], new: Mapping[str, str]) -> None:
    """Check that files with new columns form one table with the existing ones. Columns may be added.

    Args:
        path: The sink's folder.
        file: The newest file in it.
        existing: The columns of that file with the names of their types.
        new: The columns of the next files.

    Raises:
        SinkError: A column is missing, or has another type.
    """
    wrong = [
        name if name not in new else f"{name} ({type_} there, {new[name]} now)"
        for name, type_ in existing.items()
        if name not in new or (type_ != new[name] and not {type_, new[name]} & _NO_TYPE)
    ]
    if wrong:
        columns = [", ".join(f"{name} {type_}" for name, type_ in each.items()) for each in (existing, new)]
        raise SinkError(
            f"Parquet sink {path!r}: the output has other columns than the existing files, so readers would lose "
            f"{', '.join(wrong)}: the file {file} has {columns[0]}, the output has {columns[1]}; give the output a new "
            "folder, or keep these columns (columns may be added)"
        )


@attrs.frozen
class LocalFolder:
    """A folder in a file system of this machine."""

    path: str

    def read_mark(self) -> bytes | None:
        """See `SinkFolder`."""
        try:
            return Path(self.path, MARK).read_bytes()
        except FileNotFoundError:
            return None

    def write_mark(self, mark: bytes, *, new: bool) -> None:
        """See `SinkFolder`."""
        Path(self.path).mkdir(parents=True, exist_ok=True)
        if new:
            Path(self.path, MARK).touch(exist_ok=False)
        remove_staged(Path(self.path, MARK))
        replace_file(Path(self.path, MARK), lambda file: file.write(mark))

    def parquet_files(self) -> list[str]:
        """See `SinkFolder`."""
        folder = Path(self.path)
        files = [*folder.glob("*.parquet"), *folder.glob("batch=*/*.parquet")]
        return sorted(str(file.relative_to(folder)) for file in files if file.name[0] not in "._")

    def remove(self, files: Sequence[str]) -> None:
        """See `SinkFolder`."""
        for name in files:
            Path(self.path, name).unlink()


class BatchFiles:
    """The flat files of batches in a folder, which is listed once in a run: only its query writes there.

    Args:
        folder: The folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        #: Start of the names of the last batch's files.
        self._last: str | None = None
        #: The names of its files, of those of later batches, and of one of an earlier batch.
        self._names: set[str] = set()

    def replace(self, batch_id: int, count: int, if_empty: int = 1) -> list[Path]:
        """Return the paths of a batch's new files, and remove its earlier files that these do not replace.

        Args:
            batch_id: The batch; it may come again.
            count: Number of its files with rows.
            if_empty: Number of its files if no batch has any rows: such an output is still a table with columns.
        """
        prefix = f"part-{batch_id:010d}-"
        if self._last is None or prefix < self._last:
            names = [file.name for file in self.folder.iterdir()]
            for staged in filter(_STAGED.fullmatch, names):
                # Left by a run that was killed.
                (self.folder / staged).unlink()
            self._names = {name for name in names if batch_of(name) is not None}
        self._last = prefix
        earlier = {name for name in self._names if name.startswith(prefix)}
        others = sorted(self._names - earlier)
        names = [f"{prefix}{number:04d}.parquet" for number in range(count if count or others else if_empty)]
        for name in earlier.difference(names):
            (self.folder / name).unlink(missing_ok=True)
        self._names = {*names, *others[:1], *(name for name in others if name > prefix)}
        return [self.folder / name for name in names]


def remove_staged(path: Path) -> None:
    """Remove what runs that were killed while they wrote a file have left of it. Only this query may write the file."""
    for left in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        left.unlink(missing_ok=True)


def replace_file(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Write or replace a file atomically and durably."""
    staged = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with staged.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        staged.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    finally:
        staged.unlink(missing_ok=True)


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


SinkMode = Literal["error", "overwrite"]


@attrs.frozen
class ParquetSink(Sink):
    """Parquet files ``<path>/part-<batch id>-<n>.parquet``; a repeated batch replaces its own files.

    Attributes:
        path: The folder, or its URI.
        mode: For a folder that another query has written: ``"error"`` refuses it, ``"overwrite"`` replaces its files.
    """

    path: str
    mode: SinkMode = "error"

    makes_files = True

    def __attrs_post_init__(self) -> None:
        if self.mode not in ("error", "overwrite"):
            raise DefinitionError(f"mode={self.mode!r} of the Parquet sink must be 'error' or 'overwrite'")

    @property
    def title(self) -> str:
        """See `Sink`."""
        return f"the Parquet sink {self.path!r}"

    @property
    def identity(self) -> Hashable:
        """See `Sink`."""
        return folder_identity(self.path)

    @property
    def clash(self) -> str:
        """See `Sink`."""
        return super().clash.replace(self.title, f"the folder {self.path!r}")

    def check(self, schema: Schema | None, spark: SparkSide | None) -> None:
        """See `Sink`."""
        if spark is None:
            folder_path(self.path, "Parquet sink")

    def open(self, owner: Owner, schema: Schema | None) -> SinkWriter:
        """See `Sink`."""
        return ParquetWriter(self, owner, schema)

    def open_on_spark(self, owner: Owner, schema: Schema, spark: SparkSide) -> SinkWriter:
        """See `Sink`."""
        return ParquetOnSpark(self.path, owner, schema, spark, replaces=self.mode == "overwrite")


def parquet_sink(path: str | os.PathLike[str], *, mode: SinkMode = "error") -> ParquetSink:
    """Write Parquet files into a folder, which belongs to one query.

    If another query has written it, ``mode="error"`` refuses, and ``"overwrite"`` removes that query's Parquet files
    when this one starts, though not when it resumes from its checkpoint.
    """
    return ParquetSink(path_text(path, "parquet_sink: path", "the path of a folder"), mode)


class ParquetWriter(SinkWriter):
    """Writes a file for each batch, in the local runtime. It holds a lock on the folder.

    Args:
        sink: The sink.
        owner: The query.
        schema: The declared columns of the output.

    Raises:
        SinkError: Another query is running there, or the folder cannot be created.
    """

    def __init__(self, sink: ParquetSink, owner: Owner, schema: Schema | None) -> None:
        self._sink = sink
        self._owner = owner
        self._schema = schema
        #: Columns that are not declared were not compared yet with those of existing files.
        self._compares = schema is None
        self._files = BatchFiles(Path(sink.path))
        self._lock = ExitStack()
        self._lock.enter_context(locked_folder(sink.path))

    def claim(self, repeated: int | None = None) -> None:
        """See `SinkWriter`."""
        claim_folder(LocalFolder(self._sink.path), self._owner, replaces=self._sink.mode == "overwrite")

    def prepare(self, schema: pa.Schema) -> None:
        """Compare the columns with those of existing files. See `SinkWriter`."""
        import pyarrow.parquet as pq

        from keyed.arrow.kinds import kinds

        path = self._sink.path
        last = last_file(LocalFolder(path).parquet_files())
        if last is not None:
            check_columns(path, last, kinds(pq.read_schema(Path(path, last))), kinds(schema))

    def write(self, rows: SinkBatch, batch_id: int) -> None:
        """Write one file, published by a rename; none if there are no rows, and other files exist."""
        import pyarrow.parquet as pq

        from keyed.arrow.write import arrow_schema

        table = rows.table
        if self._compares and table is not None:
            if not rows.is_bad_rows:
                self.prepare(table.schema)
            self._compares = False
        Path(self._sink.path).mkdir(parents=True, exist_ok=True)
        targets = self._files.replace(batch_id, int(table is not None), int(self._schema is not None))
        if targets and table is None and self._schema is not None:
            table = arrow_schema(self._schema).empty_table()
        if table is not None:
            replace_file(targets[0], lambda file: pq.write_table(table, file))

    def close(self) -> None:
        """See `SinkWriter`."""
        self._lock.close()

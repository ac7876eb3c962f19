"""Ownership of a Parquet sink's folder: a mark in it names the query, and another query is refused.

A query that is restored from the changelogs of another one continues in its folder and takes it over: the earlier query
is refused there. If two queries begin in a folder at the same time, the second is refused; in the local runtime a query
holds a lock on its folders while it runs.

The mark is the file ``_keyed-query`` (`keyed.destinations.ownership`). In a folder that only Spark reaches, it is the
only line, in base64, of a text dataset of this name, or of one in it. Readers of Parquet skip names that begin with
``_``.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO, Protocol

import attrs

from keyed.destinations.ownership import Owner, decode_mark, encode_mark
from keyed.errors import SinkError

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

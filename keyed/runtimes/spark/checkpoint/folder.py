"""The files of a checkpoint that this program can reach.

Spark has readers for the state of a checkpoint. Its position in the sources is in files without a reader, and a
restored query's checkpoint begins with files that no query has written. Both need a file system that this program
reaches without Spark: a folder, or one that `pyarrow.fs` supports.

    metadata            identity of the query
    offsets/<batch>     written before a batch runs: a version, the batch's settings, and a line for each source: where
                        it stands after the batch, as the source has it, or ``-`` for its beginning
    commits/<batch>     written when the batch is done
    sources/<i>/...     what source i keeps for itself: a file source its log (`source_files.py`)
    keyed-lease         who runs it, and keyed-lease-jvm (`keyed.runtimes.spark.checkpoint.checkpoint_lease`)
    keyed-begin         how a query of keyed began (`keyed.runtimes.spark.checkpoint.begin`)
    keyed-ticks/...     what wakes it (`keyed.runtimes.spark.checkpoint.ticks`)
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

from keyed.errors import CheckpointError
from keyed.runtimes.spark.session.session_check import is_remote
from keyed.runtimes.spark.session.spark_session import is_here
from keyed.sinks import local_folder

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem
    from pyspark.sql import SparkSession

_VERSION = "v1"


def open_checkpoint(path: str) -> CheckpointFolder | None:
    """Return the files of a checkpoint; ``None`` if this program cannot reach its file system.

    Args:
        path: The checkpoint's folder.
    """
    from pyarrow.fs import FileSystem, LocalFileSystem

    folder = local_folder(path)
    if folder is not None:
        return CheckpointFolder(path, LocalFileSystem(), str(folder))
    try:
        # Hadoop has its own names for s3 and abfs.
        files, root = FileSystem.from_uri(re.sub(r"^s3[an]://", "s3://", path))
    except (ValueError, OSError, NotImplementedError):
        return None
    return CheckpointFolder(path, files, root)


def reached(session: SparkSession, path: str) -> CheckpointFolder | None:
    """Return the files of a checkpoint of a session's query; ``None`` if this program cannot reach them.

    Over Spark Connect the server may be on another machine, and a path without a scheme may belong to any file system.

    Args:
        session: The session.
        path: The checkpoint's folder.
    """
    if is_remote(session) or not (is_here(session) or ":" in path):
        return None
    return open_checkpoint(path)


@attrs.frozen
class CheckpointFolder:
    """A checkpoint's folder. Names are paths in it.

    Attributes:
        path: The user's path of the checkpoint.
    """

    path: str
    _files: FileSystem
    _root: str

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, ``None`` if there is none.

        Raises:
            CheckpointError: It cannot be read.
        """
        try:
            with self._files.open_input_stream(f"{self._root}/{name}", compression=None) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed("read", name, error) from error

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder of the checkpoint.

        Raises:
            CheckpointError: It cannot be read.
        """
        from pyarrow.fs import FileSelector, FileType

        try:
            found = self._files.get_file_info(FileSelector(f"{self._root}/{folder}", allow_not_found=True))
        except OSError as error:
            raise self._failed("read", folder, error) from error
        return [info.base_name for info in found if info.type is FileType.File]

    def write(self, name: str, data: bytes) -> None:
        """Write or replace a file atomically.

        Raises:
            CheckpointError: It cannot be written.
        """
        folder, _, last = f"{self._root}/{name}".rpartition("/")
        try:
            self._files.create_dir(folder, recursive=True)
            with self._files.open_output_stream(f"{folder}/.{last}.new", compression=None) as stream:
                stream.write(data)
            # Hadoop stores the checksum of a local file beside it, and also reads files without one.
            if f".{last}.crc" in self.names(name.rpartition("/")[0]):
                self._files.delete_file(f"{folder}/.{last}.crc")
            self._files.move(f"{folder}/.{last}.new", f"{folder}/{last}")
        except OSError as error:
            raise self._failed("write", name, error) from error

    def delete(self, name: str) -> None:
        """Delete a file, if it exists.

        Raises:
            CheckpointError: It cannot be deleted.
        """
        try:
            self._files.delete_file(f"{self._root}/{name}")
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._failed("delete", name, error) from error

    def offsets(self, batch: int) -> list[str] | None:
        """Return the lines of the sources after a batch, ``None`` if they were removed.

        Raises:
            CheckpointError: They cannot be read, or have another format.
        """
        record = self.read(f"offsets/{batch}")
        if record is None:
            return None
        version, _, *lines = record.decode().split("\n")
        if version != _VERSION:
            raise CheckpointError(
                f"offsets/{batch} of the checkpoint {self.path} has version {version!r}, and keyed supports "
                f"{_VERSION!r}: leave spark.sql.streaming.offsetLog.formatVersion at 1"
            )
        return lines

    def last_commit(self) -> int | None:
        """Return the id of the last completed batch."""
        return max((int(name) for name in self.names("commits") if name.isdigit()), default=None)

    def _failed(self, what: str, name: str, error: OSError) -> CheckpointError:
        return CheckpointError(f"cannot {what} {name} of the checkpoint {self.path}: {error}")

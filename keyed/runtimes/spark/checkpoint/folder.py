"""The files of a checkpoint that this program can reach.

Spark has readers for the state of a checkpoint. Its position in the sources is in files without a reader, and a
restored query's checkpoint begins with files that no query has written. Where Spark runs on this machine alone, they
are files of a local folder. Elsewhere the JVM of the session reads and writes them with the class that Spark itself
uses for its checkpoints, and so with Spark's own settings and credentials: other clients may have other ones, and
would find another store under the same name. Over Spark Connect there is no such JVM. There the files are reached if
they are in a folder that this program shares with Spark, and are otherwise read, and not written, by a query of Spark.

    metadata            identity of the query
    offsets/<batch>     written before a batch runs: a version, the batch's settings, and a line for each source: where
                        it stands after the batch, as the source has it, or ``-`` for its beginning
    commits/<batch>     written when the batch is done
    sources/<i>/...     what source i keeps for itself: a file source its log (`begin.py`)
    state/0/...         the state; in _metadata/v2/<batch> the whole paths of the files that describe it
    keyed-lease         who runs it, and keyed-lease-jvm (`keyed.runtimes.spark.checkpoint.checkpoint_lease`)
    keyed-begin         how a query of keyed began (`keyed.runtimes.spark.checkpoint.begin`)
    keyed-ticks/...     what wakes it (`keyed.runtimes.spark.checkpoint.ticks`)
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote

import attrs

from keyed.base.ids import random_id
from keyed.base.private_files import make_private
from keyed.destinations.sink import local_folder
from keyed.errors import CheckpointError
from keyed.runtimes.spark.query.failures import is_gone
from keyed.runtimes.spark.session.spark_session import default_files, is_here, is_remote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")
_VERSION = "v1"
#: Characters of a path that Spark's readers would interpret.
PATTERN_CHARACTERS = re.compile(r"[*?\[\]{}\\]")
#: Paths of a checkpoint's own files in what Spark stores, in two parts: before the checkpoint's path, and after it.
_OWN_FILE = re.compile(rb'("path":")[^"]*(/keyed-(?:ticks|global)/[^"]+")')
_SCHEMA_FILE = re.compile(rb'(")(?:[^"\\]|\\.)*(/state/\d+/_stateSchema/(?:[^"\\]|\\.)+")')
#: The first file that describes the state, in JSON: Spark 4.0 stores one path, and later versions a list.
_STATE_SCHEMA = re.compile(r'"stateSchemaFilePaths?":\[?("(?:[^"\\]|\\.)+")')


def open_checkpoint(path: str) -> CheckpointFolder | None:
    """Return the files of a checkpoint in a folder of this machine; ``None`` for a path with another scheme.

    Args:
        path: The checkpoint's folder.
    """
    folder = local_folder(path)
    return None if folder is None else CheckpointFolder(path, _LocalFiles(), str(folder))


def spark_path(session: SparkSession, path: str) -> str:
    """Return the path by which Spark reaches a checkpoint.

    On Databricks the file system ``dbfs:/`` is mounted as ``/dbfs`` on the machines, and to Spark a path without a
    scheme is one of ``dbfs:/`` itself.

    Args:
        session: The session.
        path: The user's path.
    """
    if path.startswith("/dbfs/") and default_files(session).startswith("dbfs:"):
        return f"dbfs:/{path.removeprefix('/dbfs/')}"
    return path


def checkpoint_folder(session: SparkSession, path: str) -> CheckpointFolder:
    """Return the files of a checkpoint of a session's query, for reading alone if only Spark's server reaches them.

    Args:
        session: The session.
        path: The checkpoint's folder.

    Raises:
        CheckpointError: Spark has no file system for the path.
    """
    folder = open_checkpoint(path)
    if folder is not None and (_is_shared(session, path) if is_remote(session) else is_here(session)):
        return folder
    if is_remote(session):
        return CheckpointFolder(path, _ReadFiles(session), path.rstrip("/"))
    try:
        return CheckpointFolder(path, _SparkFiles(session, path), path.rstrip("/"))
    except OSError as error:
        raise CheckpointError(f"Spark cannot open the file system of the checkpoint {path}: {error}") from error


def _is_shared(session: SparkSession, path: str) -> bool:
    """Return true if Spark sees the files that this program writes to a folder of its machine."""
    folder = local_folder(path)
    assert folder is not None
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    # Spark ignores names that begin with a dot or an underscore, and files without content.
    probe = folder / f"keyed-shared-{random_id()}"
    shared = False
    try:
        make_private(folder)
        probe.write_bytes(b"-")
        shared = _ReadFiles(session).exists(f"{path.rstrip('/')}/{probe.name}")
    except OSError:
        return False
    finally:
        with suppress(OSError):
            probe.unlink(missing_ok=True)
            for each in [] if shared else missing:
                each.rmdir()
    return shared


class _LocalFiles:
    """The file system of this machine."""

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        return Path(path.removeprefix("file:")).read_bytes()

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder."""
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_file()]

    def replace(self, path: str, data: bytes) -> None:
        """Write or replace a file atomically."""
        folder, _, name = path.rpartition("/")
        Path(folder).mkdir(parents=True, exist_ok=True)
        new = Path(folder, f".{name}.new")
        new.write_bytes(data)
        # Hadoop stores the checksum of a local file beside it, and also reads files without one.
        Path(folder, f".{name}.crc").unlink(missing_ok=True)
        new.replace(path)

    def delete(self, path: str) -> None:
        """Delete a file."""
        Path(path).unlink()

    def location(self, path: str) -> str:
        """Return the path of an existing file with its file system, as Spark stores it: links are kept."""
        return f"file:{os.path.normpath(path)}"


class _SparkFiles:
    """The file system of a path, as Spark reaches it.

    Args:
        session: The session; its JVM is in reach.
        path: A path.

    Raises:
        OSError: Spark has no file system for the path.
    """

    def __init__(self, session: SparkSession, path: str) -> None:
        jvm: Any = session._jvm  # noqa: SLF001 - PySpark has no public name for it
        self._jvm = jvm
        self._settings = session._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 - as above
        streaming = jvm.org.apache.spark.sql.execution.streaming
        # Spark 4.0 has it in another package than later versions; py4j takes an unknown name for a package.
        places = [getattr(package, "CheckpointFileManager$") for package in (streaming.checkpointing, streaming)]
        manager = getattr(next(place for place in places if type(place).__name__ == "JavaClass"), "MODULE$")
        with self._errors():
            self._manager = manager.create(self._path(path), self._settings)

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        with self._errors():
            stream = self._manager.open(self._path(path))
            try:
                return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
            finally:
                stream.close()

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder."""
        with self._errors():
            return [each.getPath().getName() for each in self._manager.list(self._path(folder)) if each.isFile()]

    def replace(self, path: str, data: bytes) -> None:
        """Write or replace a file atomically, as Spark writes a file of a checkpoint."""
        at = self._path(path)
        with self._errors():
            if not self._manager.exists(at.getParent()):
                self._manager.mkdirs(at.getParent())
            stream = self._manager.createAtomic(at, True)
            try:
                stream.write(bytearray(data))
            except BaseException:
                stream.cancel()
                raise
            stream.close()

    def delete(self, path: str) -> None:
        """Delete a file, if it exists."""
        with self._errors():
            self._manager.delete(self._path(path))

    def location(self, path: str) -> str:
        """Return the path of an existing file with its file system, as Spark stores it."""
        with self._errors():
            return str(self._path(path).getFileSystem(self._settings).makeQualified(self._path(path)))

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(path)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise what the JVM raises as an `OSError`."""
        try:
            yield
        except Exception as error:
            if is_gone(error) or not hasattr(error, "java_exception"):
                raise
            is_missing = error.java_exception.getClass().getSimpleName() == "FileNotFoundException"
            raise (FileNotFoundError if is_missing else OSError)(str(error.java_exception)) from error


class _ReadFiles:
    """The file system of Spark, read by queries: over Spark Connect, with the credentials of the server.

    Args:
        session: The session.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def read(self, path: str) -> bytes:
        """Return the content of a file."""
        rows = self._load(path, "content")
        if not rows:
            raise FileNotFoundError(path)
        return bytes(rows[0])

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder."""
        return [str(path).rpartition("/")[2] for path in self._load(folder, "path")]

    def exists(self, path: str) -> bool:
        """Return true if Spark has a file."""
        try:
            return bool(self._load(path, "path"))
        except FileNotFoundError:
            return False

    def replace(self, path: str, data: bytes) -> None:
        """Raise an error: a query of Spark cannot write a file of a given name."""
        raise OSError("over Spark Connect it can only be read")

    def delete(self, path: str) -> None:
        """Raise an error, as `replace` does."""
        raise OSError("over Spark Connect it can only be read")

    def location(self, path: str) -> str:
        """Return the path of an existing file with its file system, as Spark stores it."""
        return unquote(self._load(path, "path")[0])

    def _load(self, path: str, column: str) -> list[Any]:
        from pyspark.errors import AnalysisException, PySparkException

        try:
            frame = self._session.read.format("binaryFile").load(PATTERN_CHARACTERS.sub(r"\\\g<0>", path))
            return [row[0] for row in frame.select(column).collect()]
        except AnalysisException as error:
            if error.getCondition() == "PATH_NOT_FOUND":
                raise FileNotFoundError(path) from error
            raise OSError(str(error)) from error
        except PySparkException as error:
            raise OSError(str(error)) from error


@attrs.frozen
class CheckpointFolder:
    """A checkpoint's folder. Names are paths in it.

    Attributes:
        path: The user's path of the checkpoint.
    """

    path: str
    _files: _LocalFiles | _SparkFiles | _ReadFiles
    _root: str

    @property
    def is_writable(self) -> bool:
        """True if this program can write them."""
        return not isinstance(self._files, _ReadFiles)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file, ``None`` if there is none.

        Raises:
            CheckpointError: It cannot be read.
        """
        return self._call("read", name, self._files.read, None)

    def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder of the checkpoint.

        Raises:
            CheckpointError: It cannot be read.
        """
        return self._call("read", folder, self._files.names, [])

    def numbers(self, folder: str) -> list[int]:
        """Return the numbers that are names of files in a folder of the checkpoint, mostly of batches.

        Raises:
            CheckpointError: It cannot be read.
        """
        return [int(name) for name in self.names(folder) if name.isdigit()]

    def write(self, name: str, data: bytes) -> None:
        """Write or replace a file atomically.

        Raises:
            CheckpointError: It cannot be written.
        """
        try:
            self._files.replace(f"{self._root}/{name}", data)
        except OSError as error:
            raise self._failed("write", name, error) from error

    def delete(self, name: str) -> None:
        """Delete a file, if it exists.

        Raises:
            CheckpointError: It cannot be deleted.
        """
        self._call("delete", name, self._files.delete, None)

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

    def batch_time(self, batch: int) -> int | None:
        """Return the processing time of a batch that was started, milliseconds; ``None`` if it is not recorded.

        Raises:
            CheckpointError: It cannot be read.
        """
        record = self.read(f"offsets/{batch}")
        if record is None:
            return None
        try:
            time = json.loads(record.split(b"\n")[1])["batchTimestampMs"]
        except (ValueError, LookupError, TypeError):
            return None
        return int(time)

    def last_commit(self) -> int | None:
        """Return the id of the last completed batch."""
        return max(self.numbers("commits"), default=None)

    def check_location(self, *, ticks: bool) -> None:
        """Check that Spark finds the files of the checkpoint where it has stored that they are.

        Args:
            ticks: True if a query reads ticks from the checkpoint: Spark then compares the paths as texts. Otherwise it
                only reads the files that describe the state.

        Raises:
            CheckpointError: It does not.
        """
        former, present, schema = self._locations()
        if former != present and (ticks or not self._has(schema)):
            former = self._shown(former)
            raise CheckpointError(
                f"the checkpoint {self.path} was moved or copied from {former}, and Spark stores the paths of its "
                "files in it. Start its query here first, in a session of Spark's own program: keyed then corrects "
                f"the paths. Or put it back, or make {former} a link to it, and give the path {former}"
            )

    def relocate(self) -> None:
        """Correct the paths of its own files that Spark has stored in a checkpoint which was moved or copied since.

        Those are of the schemas of the state, and of the ticks and global tables in the logs of file sources. The last
        description of the first operator, by which `check_location` decides, is written last: what was interrupted is
        repeated.

        Raises:
            CheckpointError: It cannot be read or written.
        """
        former, present, _ = self._locations()
        if former == present:
            return
        _log.warning(
            "the checkpoint %s was moved or copied from %s; the paths in it are corrected",
            self.path,
            self._shown(former),
        )
        in_urls = quote(present, safe="/:@").encode()
        in_texts = json.dumps(present)[1:-1].encode()
        sources = (len(self.offsets(batch) or ()) for batch in self.numbers("offsets"))
        for source in range(max(sources, default=0)):
            self._correct(f"sources/{source}", _OWN_FILE, in_urls)
        operators = list(takewhile(self.names, map("state/{}/_metadata/v2".format, count())))
        for folder in reversed(operators):
            self._correct(folder, _SCHEMA_FILE, in_texts)

    def _correct(self, folder: str, path: re.Pattern[bytes], present: bytes) -> None:
        """Replace what precedes the files that a pattern finds, in each file of a folder."""
        for name in sorted(self.names(folder), key=lambda name: (len(name), name)):
            if not name.startswith("."):
                before = self.read(f"{folder}/{name}") or b""
                after = path.sub(lambda match: match[1] + present + match[2], before)
                if after != before:
                    self.write(f"{folder}/{name}", after)

    def _locations(self) -> tuple[str, str, str]:
        """Return where the checkpoint was written, where it is, and where its schema is; empty if unknown."""
        name = f"state/0/_metadata/v2/{max(self.numbers('state/0/_metadata/v2'), default=0)}"
        stored = _STATE_SCHEMA.search((self.read(name) or b"").decode(errors="replace"))
        if stored is None:
            return "", "", ""
        schema = json.loads(stored[1])
        try:
            present = self._files.location(f"{self._root}/{name}").rpartition("/state/")[0]
        except OSError as error:
            raise self._failed("read", name, error) from error
        return schema.rpartition("/state/")[0], present, schema

    def _shown(self, location: str) -> str:
        """Return a location as users write it."""
        return location.removeprefix("file:") if isinstance(self._files, _LocalFiles) else location

    def _has(self, path: str) -> bool:
        """Return true if a file exists, in the checkpoint or not."""
        try:
            self._files.read(path)
        except OSError:
            return False
        return True

    def _call(self, what: str, name: str, call: Callable[[str], _Result], missing: _Result) -> _Result:
        """Return the result of a call with the path of a file or folder, another one if it does not exist."""
        try:
            return call(f"{self._root}/{name}")
        except FileNotFoundError:
            return missing
        except OSError as error:
            raise self._failed(what, name, error) from error

    def _failed(self, what: str, name: str, error: OSError) -> CheckpointError:
        return CheckpointError(f"cannot {what} {name} of the checkpoint {self.path}: {error}")

"""The local stores and the changelog writers that a Python worker process keeps.

A worker keeps the store of every key group that it has served, because the next micro-batch of the group often comes to
it again; Spark decides which worker serves a partition. Stores are found by the id of the group's log, which is created
with its first commit, so a query finds its own stores after a restart and never those of another query.

A RocksDB store is open only while a batch runs, so that another worker of the machine can take it over. An LMDB store
stays open, in each worker that has served the group: all of them share it.

A worker also keeps the changelog writer of every key group that it has served: opening one reads the end of the log
and, in Kafka, takes a transactional id. If another worker has served the group since then, according to the group's own
log, the writer is opened again.
"""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from keyed.changelog.model import Blocks, Changelog, ChangelogWriter, Commit, append_all
from keyed.content.local_store import LocalStore, SharedStore
from keyed.engine.group_log import GroupMeta
from keyed.engine.replica import Replica
from keyed.errors import LocalStoreError
from keyed.job.functions import Store, store_name
from keyed.stores import MemoryStore
from keyed.stores.opening import open_store

#: Seconds after which an unused store in memory is dropped, and an unused writer closed: another worker serves its
#: group, or its query has ended.
_IDLE_SECONDS = 900.0
#: Seconds after which an unused store on disk is deleted.
_STALE_SECONDS = 7 * 86_400.0


def default_local_dir() -> str:
    """Return the default folder for local stores: one per user in the folder for temporary files.

    Raises:
        LocalStoreError: Another user has created it, or it cannot be created.
    """
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = "nobody"
    try:
        # Without a folder for temporary files that can be written to, its name is an error too.
        folder = Path(tempfile.gettempdir()) / f"keyed-{user}"
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        status = folder.lstat()
    except OSError as error:
        raise LocalStoreError(
            f"the folder for local stores cannot be created on {socket.gethostname()}: {error}; free space on its "
            "disk, or give local_dir= a folder that each worker machine can write to"
        ) from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise LocalStoreError(
            f"the folder for local stores {folder} is a link, or belongs to another user; remove it, or give local_dir="
        )
    return str(folder)


class ReplicaCache:
    """The replicas that this process holds, by operator, group and log id."""

    def __init__(self) -> None:
        #: They and the times of their last uses.
        self._held: dict[tuple[str, int, str, str, Path | None], tuple[Replica, float]] = {}
        self._swept: set[Path] = set()

    @contextmanager
    def replica(
        self, operator: str, group: int, log_id: str, folder: Path | None, *, new: bool = False, kind: Store = "rocksdb"
    ) -> Iterator[Replica]:
        """Open the replica of a key group for one batch.

        Args:
            operator: Name of the operator.
            group: Index of the group.
            log_id: Id of its log.
            folder: Folder of the stores on disk; ``None`` keeps the store in memory.
            new: True if this batch begins the log: if it fails, no log of this id exists.
            kind: Kind of the stores on disk.
        """
        kept_in = ("memory", None) if folder is None else (store_name(kind), folder)
        key, name = (operator, group, log_id, *kept_in), f"{operator}-{group}-{log_id}"
        held = self._held.pop(key, None)
        self._drop_idle()
        replica = held[0] if held is not None else Replica(MemoryStore())
        # Also after a failed batch, because a store holds only committed entries.
        keep = not new
        try:
            if folder is None:
                replica.copies = _copies(name)
                yield replica
            else:
                if not _refreshed(replica):
                    replica.store = self._open(folder, name, kind)
                    replica.stores_opened = 1
                try:
                    yield replica
                finally:
                    if isinstance(replica.store, SharedStore):
                        replica.store.release()
                    else:
                        replica.store.close()
            keep = True
        finally:
            if keep:
                self._held[key] = replica, time.monotonic()
            elif folder is not None:
                replica.close()
                shutil.rmtree(folder / name, ignore_errors=True)

    def _drop_idle(self) -> None:
        limit = time.monotonic() - _IDLE_SECONDS
        for key in [key for key, (_, used) in self._held.items() if used < limit]:
            self._held.pop(key)[0].close()
            operator, group, log_id, kind, _ = key
            if kind == "memory":
                with suppress(OSError, LocalStoreError):
                    (_marks(f"{operator}-{group}-{log_id}") / str(os.getpid())).unlink()

    def _open(self, folder: Path, name: str, kind: Store) -> LocalStore:
        if folder not in self._swept:
            self._swept.add(folder)
            _sweep(folder)
        return open_store(kind, folder / name)


def _marks(name: str) -> Path:
    """Return the folder in which each process of this machine that has a store in memory has a file."""
    return Path(default_local_dir()) / "in-memory" / name


def _copies(name: str) -> int:
    """Count the processes of this machine that have a store in memory for a key group, this one included."""
    try:
        folder, own = _marks(name), str(os.getpid())
        if not (folder / own).exists():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / own).touch()
            # Those of queries that are over; a query that runs makes its own again.
            for other in folder.parent.iterdir():
                if other.stat().st_mtime < time.time() - _STALE_SECONDS:
                    shutil.rmtree(other, ignore_errors=True)
        count = 0
        for each in folder.iterdir():
            if each.name == own or _is_running(int(each.name)):
                count += 1
            else:
                each.unlink(missing_ok=True)
    except (OSError, ValueError, LocalStoreError):
        # A store in memory needs no disk, so the others are not counted without one.
        return 1
    return count


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _refreshed(replica: Replica) -> bool:
    """Refresh an open store with the changes of other processes; return true if it is open and readable."""
    if isinstance(replica.store, SharedStore):
        try:
            replica.store.refresh()
        except LocalStoreError:
            replica.store.close()
        else:
            return True
    return False


def _sweep(folder: Path) -> None:
    """Delete stores that were not used for long. They are caches, so no data is lost."""
    limit = time.time() - _STALE_SECONDS
    try:
        folders = list(folder.iterdir())
    except OSError:
        return
    for path in folders:
        try:
            newest = max((file.stat().st_mtime for file in path.rglob("*")), default=path.stat().st_mtime)
            if any(path.glob("keyed-store*")) and newest < limit:
                shutil.rmtree(path, ignore_errors=True)
        except OSError:
            continue


class WriterCache:
    """The writers that this process holds, by identity of the changelog and key group."""

    def __init__(self) -> None:
        #: They and the times of their last uses.
        self._held: dict[tuple[str, int], tuple[ChangelogWriter, float]] = {}

    def writer(self, changelog: Changelog, log_id: str, group: int, meta: GroupMeta | None) -> ChangelogWriter:
        """Return the writer of a key group, with the end of the group's changelog read.

        Args:
            changelog: The changelog.
            log_id: Its identity.
            group: Index of the group.
            meta: The group's meta record, ``None`` before its first commit.

        Raises:
            ChangelogError: It cannot be opened.
        """
        self._drop_idle()
        writer, _ = self._held.get((log_id, group), (None, 0))
        if writer is None or not _is_level(writer.last(), meta):
            self.discard(log_id, group)
            writer = changelog.writer(group)
        self._held[log_id, group] = writer, time.monotonic()
        return writer

    def discard(self, log_id: str, group: int) -> None:
        """Close the writer of a key group, if there is one."""
        held = self._held.pop((log_id, group), None)
        if held is not None:
            held[0].close()

    def _drop_idle(self) -> None:
        limit = time.monotonic() - _IDLE_SECONDS
        for log_id, group in [key for key, (_, used) in self._held.items() if used < limit]:
            self.discard(log_id, group)


class LateWriter:
    """A `ChangelogWriter` that is opened when it is first used.

    Args:
        opened: Returns the writer.
    """

    def __init__(self, opened: Callable[[], ChangelogWriter]) -> None:
        self._opened = cache(opened)

    def last(self) -> Commit | None:
        """See `ChangelogWriter.last`."""
        return self._opened().last()

    def append(self, commit: Commit, blocks: Blocks) -> Commit:
        """See `ChangelogWriter.append`."""
        return self._opened().append(commit, blocks)

    def append_all(self, commits: Sequence[tuple[Commit, Blocks]]) -> Commit:
        """See `GroupingWriter.append_all`."""
        return append_all(self._opened(), commits)

    def close(self) -> None:
        """Do nothing: the writer belongs to the cache."""


def _is_level(last: Commit | None, meta: GroupMeta | None) -> bool:
    """Return true if a changelog that ends with ``last`` has all commits of a key group, or all except the waiting."""
    if last is None or meta is None:
        return last is None and meta is None
    return (last.sequence, last.attempt) == (meta.commit, meta.attempt) or meta.follows(last.sequence, last.attempt)

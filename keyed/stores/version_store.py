"""The versions of an operator's entries, in one RocksDB for all its key groups.

The database is in the subfolder ``keyed-versions-1.<number>`` of the store's folder: the name identifies the owner and
the format; a rebuilt store gets the next number, so that readers keep the files they have open. Entries are those of a
changelog (`keyed.content.addresses`), rows of tables as `keyed.content.table_entries` has them. A store follows a
changelog, and after it those of the jobs that were restored from it; so commits have the store's own consecutive
numbers, and an *era* maps them to the batches of a changelog. A *version* is a value with the number of the commit that
wrote it. The database's keys and values, numbers big-endian:

    M                              position: a frame of kind KVPO, version 1, whose payload is the msgpack array
                                   [eras, number of buckets, oldest commit that can be asked for, newest commit, number
                                   of versions that went out of the history since the last sweep began]; an era is the
                                   array [log id, its first commit, the batch that this is]
    C | commit (u64)               a frame of kind KVCO, version 1: the fields of `VersionedBatch` as a msgpack map
    D | commit (u64) | part (u32)  what a commit changed: the addresses, prefix and sub as one, as a msgpack array; not
                                   of the first one
    L | prefix | sub               the latest version: commit (u64) | length of the prefix (u32) | value;
                                   without what follows the commit if the entry was removed
    V | bucket (u16) | prefix | sub | ~commit
                                   each version, the newest first: length of the prefix (u32) | value, or nothing

``~commit`` is the commit's number with all bits inverted. Commits are of one batch in all key groups, so a number
identifies the state of the whole operator; records above the position are not committed and are ignored.

An entry that did not change since the requested commit is found under L by one look-up, any other one under V. A sweep
removes versions that no commit from the oldest one on can see, some with each write, once there are as many of them as
entries. So the database holds at most twice the live entries, plus the later changes.

Several commits may be written and published at once: RocksDB writes many sorted keys four times as fast as few.

*Buckets* are the key groups of the first changelog: a restore reads the groups one by one, from V. Buckets do not
change when a job is restored with another number of key groups.

Writes go to RocksDB's write-ahead log: other processes see them, through an instance of their own that follows it
(RocksDB's secondary instance). The log is not synced; writes that a crash of the machine lost are read from the
changelog again.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import weakref
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from keyed.base.closing import closing_on_error
from keyed.base.scratch import ScratchFolder
from keyed.codec.frames import RecordFormat
from keyed.codec.key_hash import group_of, key_hash
from keyed.content.addresses import key_of
from keyed.content.blocks import Change
from keyed.errors import CorruptionError, LocalStoreError
from keyed.stores.database import Database, is_locked, is_refused, successor

if TYPE_CHECKING:
    from rocksdict import WriteBatch

_SUBFOLDER = "keyed-versions-1."
_POSITION = b"M"
_VERSION = 1
_NUMBER = Struct(">Q")
_LENGTH = Struct(">I")
_HEAD = Struct(">QI")
_BUCKET = Struct(">cH")
_pack = _NUMBER.pack
_pack_length = _LENGTH.pack
_LAST = 2**64 - 1
#: Number of entries that a sweep checks with each commit, in addition to twice the entries that the commit wrote; and
#: the minimal number of versions for a sweep.
_SWEEP_STEP, _SWEEP_LEAST = 2_000, 50_000
#: Number of addresses that are looked up in one call.
_AT_A_TIME = 4_096
_encode = msgspec.msgpack.Encoder().encode
_first = itemgetter(0)


@attrs.frozen(kw_only=True)
class VersionedBatch:
    """A batch in the store, which all key groups have committed.

    Attributes:
        commit: Number of the commit.
        batch: Number of the commit in the changelog, from 1, whose batch has one less as its id.
        log_id: Identity of the changelog.
        follows: True if the commit has only the changes of this batch, without those of missed earlier batches.
        watermark: The least watermark of the key groups after it, milliseconds.
        processing_time: The greatest processing time of the key groups after it, milliseconds since the epoch.
        hashes: Hashes of the key groups' live entries after it, as text (`keyed.content.contents`), in their order.
        entries: Number of live entries of these key groups after it.
        ended: True if the input has ended.
        states: Descriptions of the states, by name (`GroupMeta.states`).
        key_columns: Columns of the key (`GroupMeta.key_columns`).
        groups: Key groups that the store has, in order; ``None`` if it has all. Of a part the buckets are the groups.
    """

    commit: int
    batch: int
    log_id: str
    follows: bool = True
    watermark: int
    processing_time: int
    hashes: tuple[str, ...]
    entries: int
    ended: bool = False
    states: dict[str, Any] = attrs.field(factory=dict)
    key_columns: list[str] = attrs.field(factory=list)
    groups: tuple[int, ...] | None = None


_BATCH_RECORD: RecordFormat[VersionedBatch] = RecordFormat(b"KVCO", _VERSION, VersionedBatch)
_decode_addresses = msgspec.msgpack.Decoder(list[bytes]).decode


@attrs.frozen
class Era:
    """A range of commits that follows one changelog.

    Attributes:
        log_id: Identity of the changelog.
        commit: The first commit.
        batch: Number of its batch; later batches are numbered on with the commits.
    """

    log_id: str
    commit: int
    batch: int


@attrs.frozen
class Extent:
    """Range of batches in a store.

    Attributes:
        eras: The changelogs of its commits, in order.
        buckets: Number of buckets.
        oldest: The oldest commit whose state can be read.
        newest: The newest one.
    """

    eras: tuple[Era, ...]
    buckets: int
    oldest: int
    newest: int

    @property
    def log_id(self) -> str:
        """Identity of the followed changelog."""
        return self.eras[-1].log_id

    @property
    def batch(self) -> int:
        """The newest batch."""
        return self.batch_of(self.newest)

    def batch_of(self, commit: int) -> int:
        """Return the number of a commit's batch in its changelog."""
        era = next(era for era in reversed(self.eras) if era.commit <= commit)
        return era.batch + commit - era.commit

    def commit_of(self, batch: int, log_id: str | None = None) -> int | None:
        """Return the commit of a batch, the newest one if there are several; ``None`` if there is none.

        Args:
            batch: Number of the batch.
            log_id: Identity of its changelog; by default any.
        """
        last = self.newest
        for era in reversed(self.eras):
            commit = era.commit + batch - era.batch
            if log_id in (None, era.log_id) and max(era.commit, self.oldest) <= commit <= last:
                return commit
            last = era.commit - 1
        return None


_Position = tuple[tuple[tuple[str, int, int], ...], int, int, int, int]
_POSITION_RECORD: RecordFormat[_Position] = RecordFormat(b"KVPO", _VERSION, _Position)
Part = tuple[int | None, list[Change]]
"""Changes of one bucket; of ``None`` they may be of any."""


class VersionStore:
    """The versions of the entries of one operator.

    One program writes it; any number of others on the machine may read it at the same time.

    Args:
        path: Folder of the store; created if missing, with its parents.
        number: Number of its database; by default the newest, or one after it if that is damaged, and all others go.

    Attributes:
        damage: Damage of the earlier store, which was replaced by an empty one; empty if there was none.
        extent: The batches that can be read; ``None`` before the first one.
        buckets: The number of buckets, to be set before the first commit is written.

    Raises:
        LocalStoreError: The folder is written by another program, or cannot be created or read.
    """

    def __init__(self, path: str | os.PathLike[str], number: int | None = None) -> None:
        self.path = Path(path)
        self.damage = ""
        if number is not None:
            self._open(number)
            return
        number = max(_numbers(self.path), default=0)
        try:
            self._open(number)
        except LocalStoreError as error:
            if is_locked(error) or is_refused(error):
                raise
            self.damage = str(error)
            self._open(number + 1)
        for folder in self.path.glob("keyed-*"):
            if folder != self._database.path:
                # Left by a crash.
                shutil.rmtree(folder, ignore_errors=True)

    def _open(self, number: int) -> None:
        self._number = number
        self._use(Database(self._folder(number), LocalStoreError, wal=True))
        with closing_on_error(self._database):
            self.undo()

    def _use(self, database: Database) -> None:
        self._database = database
        self._batches: dict[int, VersionedBatch] = {}
        #: Number of written parts of a commit that is not published yet.
        self._parts = 0
        self._sweep_at: bytes | None = None
        with closing_on_error(database):
            self._read_extent()

    def _folder(self, number: int) -> Path:
        return self.path / f"{_SUBFOLDER}{number}"

    def close(self, *, delete: bool = False) -> None:
        """Release the folder. Closing again does nothing.

        Args:
            delete: True to delete the store.
        """
        try:
            self._database.close()
        finally:
            if delete:
                shutil.rmtree(self._database.path, ignore_errors=True)

    @property
    def refuses(self) -> bool:
        """True if a write failed: all others fail until `reopen`."""
        return self._database.refuses

    def reopen(self) -> None:
        """Continue after a failed write, with the content before it. Snapshots stay.

        Raises:
            LocalStoreError: The file system still refuses writes.
        """
        self._database.reopen()
        self._parts, self._sweep_at = 0, None
        self._batches.clear()
        self._read_extent()
        self.undo()

    def is_there(self) -> bool:
        """Return true if the folder is still the one that was opened."""
        return self._database.is_there()

    # Reading ----------------------------------------------------------------------------------------------------

    def batch(self, commit: int) -> VersionedBatch:
        """Return the record of a batch between the oldest and the newest.

        Raises:
            LocalStoreError: The store is damaged.
        """
        batch = self._batches.get(commit)
        if batch is None:
            record = self._database.look_up(b"C" + _pack(commit))
            where = f"{self._database.path}, commit {commit}"
            if record is None:
                raise LocalStoreError(f"{where}: its record is missing")
            batch = _decoded(record, where)
            if len(self._batches) >= 64:
                self._batches.clear()
            self._batches[commit] = batch
        return batch

    def get(self, address: bytes, commit: int) -> bytes | None:
        """Return the value at an address (prefix and sub) as of a commit."""
        return self._value(address, self._database.look_up(b"L" + address), commit)

    def get_many(self, addresses: Sequence[bytes], commit: int) -> list[bytes | None]:
        """Return the values at addresses, in their order."""
        values: dict[bytes, bytes | None] = {}
        number_of, size = _NUMBER.unpack_from, _HEAD.size
        # Neighbours are in one block, which is then read only once.
        ordered = sorted(set(addresses))
        for start in range(0, len(ordered), _AT_A_TIME):
            part = ordered[start : start + _AT_A_TIME]
            records = self._database.look_up([b"L" + address for address in part])
            for address, record in zip(part, records, strict=True):
                if record is None or number_of(record)[0] > commit:
                    values[address] = self._value(address, record, commit)
                else:
                    values[address] = record[size:] if len(record) >= size else None
        return [values[address] for address in addresses]

    def scan(
        self, first: bytes, end: bytes, commit: int, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Yield (prefix, sub, value) from address ``first`` to before ``end``, in order, as of a commit."""
        unpack, size = _HEAD.unpack_from, _HEAD.size
        for key, record in self._database.range(b"L" + first, b"L" + end, reverse=reverse):
            if len(record) >= size:
                number, length = unpack(record)
                if number <= commit:
                    yield key[1 : 1 + length], key[1 + length :], record[size:]
                    continue
            elif _NUMBER.unpack(record)[0] <= commit:
                continue
            version = self._version(key[1:], commit)
            if version:
                length = _LENGTH.unpack_from(version)[0]
                yield key[1 : 1 + length], key[1 + length :], version[_LENGTH.size :]

    def change(self, address: bytes, commit: int) -> tuple[bytes, bytes, bytes | None, bytes | None] | None:
        """Return (prefix, sub, value before, value after) of an entry that a commit changed; ``None`` if it did not."""
        latest = self._database.look_up(b"L" + address)
        before, after = (self._record(address, latest, number) for number in (commit - 1, commit))
        if before == after:
            return None
        length = _LENGTH.unpack_from(before or after or b"")[0]
        old, new = (None if record is None else record[_LENGTH.size :] for record in (before, after))
        return address[:length], address[length:], old, new

    def has_group(self, index: int, parallelism: int, commit: int) -> bool:
        """Return whether `group` yields all entries of one of so many key groups: the store may have a share."""
        extent, groups = self.extent, self.batch(commit).groups
        assert extent is not None
        common = math.gcd(extent.buckets, parallelism)
        return groups is None or set(groups).issuperset(range(index % common, extent.buckets, common))

    def group_of(self, address: bytes) -> int:
        """Return the bucket of an entry, which is its key group in a store with a share of the groups."""
        return _bucket(address, self.buckets)

    def group(self, index: int, parallelism: int, commit: int) -> Iterator[Change]:
        """Yield the entries of one of ``parallelism`` key groups, as of a commit."""
        extent = self.extent
        assert extent is not None
        common, least = math.gcd(extent.buckets, parallelism), _LAST - commit
        for bucket in range(index % common, extent.buckets, common):
            head = b""
            for key, record in self._database.range(_BUCKET.pack(b"V", bucket), _BUCKET.pack(b"V", bucket + 1)):
                if key[3:-8] == head or _NUMBER.unpack_from(key, len(key) - 8)[0] < least:
                    continue
                head = key[3:-8]
                if record:
                    length = _LENGTH.unpack_from(record)[0]
                    prefix = head[:length]
                    if extent.buckets % parallelism == 0 or _bucket(prefix, parallelism) == index:
                        yield prefix, head[length:], record[_LENGTH.size :]

    def history(self, address: bytes) -> Iterator[tuple[int, bytes | None]]:
        """Yield the (commit, value) of an entry's versions, the newest first: ``None`` if it was removed.

        The last of them is at or before the oldest commit, if the entry existed then.
        """
        extent = self.extent
        if extent is None:
            return
        head = self._head(address)
        for key, record in self._database.range(head + _pack(_LAST - extent.newest), successor(head)):
            commit = _LAST - _NUMBER.unpack_from(key, len(head))[0]
            yield commit, record[_LENGTH.size :] if record else None
            if commit <= extent.oldest:
                return

    def changed(self, commit: int, first: bytes, end: bytes) -> list[bytes]:
        """Return the addresses from ``first`` to before ``end`` that a commit changed, in order; not for the oldest."""
        addresses: set[bytes] = set()
        for _, record in self._database.range(b"D" + _pack(commit), b"D" + _pack(commit + 1)):
            addresses.update(address for address in _decode_addresses(record) if first <= address < end)
        return sorted(addresses)

    def _value(self, address: bytes, latest: bytes | None, commit: int) -> bytes | None:
        """Return the value at an address as of a commit; ``latest`` is the record of its latest version."""
        record = self._record(address, latest, commit)
        return None if record is None else record[_LENGTH.size :]

    def _record(self, address: bytes, latest: bytes | None, commit: int) -> bytes | None:
        """Return the record of the version as of a commit, in the form under V; ``None`` if there was no entry."""
        if latest is None:
            return None
        if _NUMBER.unpack_from(latest)[0] <= commit:
            return latest[_NUMBER.size :] or None
        return self._version(address, commit) or None

    def _version(self, address: bytes, commit: int) -> bytes | None:
        """Return the record of the newest version that is not newer than a commit."""
        return next((record for _, record in self._versions_of(address, commit)), None)

    def _versions_of(self, address: bytes, commit: int) -> Iterator[tuple[bytes, bytes]]:
        """Return the keys and records of the versions that are not newer than a commit, the newest first."""
        head = self._head(address)
        return self._database.range(head + _pack(_LAST - commit), successor(head))

    def _head(self, address: bytes) -> bytes:
        """Return the prefix of the keys of an entry's versions."""
        return _BUCKET.pack(b"V", _bucket(address, self.buckets)) + address

    def _read_extent(self) -> None:
        where = str(self._database.path)
        record = self._database.look_up(_POSITION)
        if record is None:
            self.extent: Extent | None = None
            self._passed = self.buckets = 0
            return
        try:
            eras, self.buckets, oldest, newest, self._passed = _POSITION_RECORD.decode(record, where)
        except CorruptionError as error:
            raise LocalStoreError(f"{where}: damaged position record: {error}") from error
        # In one assignment, because other threads read it.
        self.extent = Extent(tuple(Era(*era) for era in eras), self.buckets, oldest, newest)

    # Writing ----------------------------------------------------------------------------------------------------

    def write(self, commit: int, parts: Iterable[Part]) -> None:
        """Write changes of the next commit without publishing them."""
        written = self._database.batch()
        self._versions([(commit, parts)], written)
        self._database.write(written)

    def apply(self, commits: Sequence[tuple[VersionedBatch, Sequence[Part]]], oldest: int) -> None:
        """Write the last changes of a commit, and commits after it, and publish them atomically.

        Args:
            commits: The batches, one after the other, each with its changes in order; a later one of an address wins.
                Earlier changes of the first may have been passed to `write`.
            oldest: The oldest commit that can be read from now on; it never moves back.
        """
        written, before = self._database.batch(), self.extent
        eras = before.eras if before is not None else ()
        last = None if before is None else (before.log_id, before.batch)
        for batch, _ in commits:
            if last != (batch.log_id, batch.batch - 1):
                eras = (*eras, Era(batch.log_id, batch.commit, batch.batch))
            last = batch.log_id, batch.batch
        while len(eras) > 1 and eras[1].commit <= oldest:
            eras = eras[1:]
        newest = commits[-1][0]
        extent = Extent(eras, self.buckets, oldest, newest.commit)
        # First, so that the sweep sees only earlier writes and does not remove the new ones.
        size = sum(len(changes) for _, parts in commits for _, changes in parts)
        self._sweep(written, extent, max(newest.entries, _SWEEP_LEAST), 2 * size + _SWEEP_STEP)
        self._versions([(batch.commit, parts) for batch, parts in commits], written)
        for batch, _ in commits:
            written[b"C" + _pack(batch.commit)] = _BATCH_RECORD.encode(batch)
        for commit in range(before.oldest if before is not None else newest.commit, oldest):
            written.delete(b"C" + _pack(commit))
        if before is not None:
            for key, addresses in self._database.range(b"D" + _pack(before.oldest), b"D" + _pack(oldest)):
                self._passed += len(_decode_addresses(addresses))
                written.delete(key)
        starts = tuple((era.log_id, era.commit, era.batch) for era in eras)
        position = starts, self.buckets, oldest, newest.commit, self._passed
        written[_POSITION] = _POSITION_RECORD.encode(position)
        self._database.write(written)
        self.extent, self._parts = extent, 0

    def undo(self) -> None:
        """Remove the changes of a commit that is not published: the next commit may be different.

        Raises:
            LocalStoreError: No commit is published, and changes were written.
        """
        extent = self.extent
        if extent is None:
            if next(self._database.range(b"", b"\xff"), None) is not None:
                raise LocalStoreError(f"{self._database.path}: its first commit was not finished")
            return
        inverted = _pack(_LAST - extent.newest - 1)
        for key, record in self._database.range(b"D" + _pack(extent.newest + 1), b"E"):
            batch = self._database.batch()
            for address in _decode_addresses(record):
                batch.delete(self._head(address) + inverted)
                newest = next(self._versions_of(address, extent.newest), None)
                if newest is None:
                    batch.delete(b"L" + address)
                else:
                    commit = _LAST - _NUMBER.unpack_from(newest[0], len(newest[0]) - 8)[0]
                    batch[b"L" + address] = _pack(commit) + newest[1]
            batch.delete(key)
            self._database.write(batch)
        self._parts = 0

    def successor(self) -> VersionStore:
        """Return a new, empty store in the same folder; close and delete this one afterwards."""
        return VersionStore(self.path, self._number + 1)

    def _versions(self, commits: Iterable[tuple[int, Iterable[Part]]], batch: WriteBatch) -> None:
        """Add the versions of commits to a batch of writes, in the order of keys, which is fastest."""
        rows: list[tuple[bytes, bytes, bytes, bytes]] = []
        numbers = set()
        for commit, parts in commits:
            numbers.add(commit)
            number, inverted = _pack(commit), _pack(_LAST - commit)
            addresses: list[bytes] = []
            for bucket, changes in parts:
                head = None if bucket is None else _BUCKET.pack(b"V", bucket)
                records = {
                    prefix + sub: b"" if value is None else _pack_length(len(prefix)) + value
                    for prefix, sub, value in changes
                }
                addresses += records
                rows += [
                    ((self._head(address) if head is None else head + address) + inverted, number, address, record)
                    for address, record in records.items()
                ]
            if self.extent is not None and addresses:
                batch[b"D" + number + _pack_length(self._parts)] = _encode(addresses)
                self._parts += 1
        rows.sort(key=_first)
        if len(numbers) == 1:
            for key, number, address, record in rows:
                batch[key] = record
                batch[b"L" + address] = number + record
            return
        newest: dict[bytes, bytes] = {}
        for key, number, address, record in rows:
            batch[key] = record
            # In a bucket the newest commit comes first, and within a commit its last change.
            if number >= newest.get(address, b""):
                batch[b"L" + address] = number + record
                newest[address] = number

    def _sweep(self, batch: WriteBatch, extent: Extent, least: int, rest: int) -> None:
        """Remove versions that no readable commit sees: a part of the addresses, in order, with each commit.

        Args:
            batch: Receives the removals.
            extent: The extent after the batch.
            least: Minimal number of versions that leave the history between the starts of two sweeps.
            rest: Number of versions to check; all versions of the last address are checked.
        """
        if self._sweep_at is None:
            if self._passed < least:
                return
            self._sweep_at, self._passed = b"V", 0
        head, hidden, is_removed = b"", False, False
        for key, record in self._database.range(self._sweep_at, b"W"):
            if key[:-8] != head:
                if is_removed:
                    batch.delete(b"L" + head[3:])
                if rest <= 0:
                    # Not the key itself: newer versions, which come before it, may be added until then.
                    self._sweep_at = key[:-8]
                    return
                head, hidden, is_removed = key[:-8], False, True
            rest -= 1
            if hidden:
                batch.delete(key)
                continue
            if _LAST - _NUMBER.unpack_from(key, len(key) - 8)[0] > extent.oldest:
                is_removed = False
                continue
            # The newest version that the oldest commit sees; the next ones are older.
            hidden = True
            if record:
                is_removed = False
            else:
                batch.delete(key)
        if is_removed:
            batch.delete(b"L" + head[3:])
        self._sweep_at = None


class VersionReader(VersionStore):
    """The versions that another program writes, as of the opening or the last refresh.

    Args:
        path: Folder of the store.

    Raises:
        LocalStoreError: There is no store, or it is damaged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        numbers = _numbers(self.path)
        if not numbers:
            raise LocalStoreError(f"{self.path} has no state tables; give the folder= of open_tables")
        self._number = numbers[-1]
        #: For what RocksDB writes for a reader.
        self._own = ScratchFolder("reader")
        # Also for a reader that is garbage-collected, or open when the program ends.
        weakref.finalize(self, self._own.close)
        with closing_on_error(self._own):
            self._use(Database(self._folder(self._number), LocalStoreError, wal=True, reader=self._own.path))

    def refresh(self) -> bool:
        """Show the writes since the last refresh. Returns false if the writer has begun a new store."""
        if _numbers(self.path)[-1:] != [self._number]:
            return False
        self._database.refresh()
        self._batches.clear()
        self._read_extent()
        return True

    def close(self, *, delete: bool = False) -> None:
        """Release the folder, which is the writer's. Closing again does nothing."""
        self._database.close()
        self._own.close()


def _bucket(address: bytes, buckets: int) -> int:
    """Return the bucket of an entry: the key group of its key."""
    return group_of(key_hash(key_of(address)), buckets) if buckets > 1 else 0


def is_store(path: str | os.PathLike[str]) -> bool:
    """Return true if a folder holds a store."""
    return bool(_numbers(Path(path)))


def _numbers(path: Path) -> list[int]:
    """Return the numbers of the databases in a store's folder, in order."""
    names = (folder.name.removeprefix(_SUBFOLDER) for folder in path.glob(f"{_SUBFOLDER}*"))
    return sorted(int(name) for name in names if re.fullmatch("[0-9]+", name))


def _decoded(record: bytes, where: str) -> VersionedBatch:
    try:
        return _BATCH_RECORD.decode(record, where)
    except CorruptionError as error:
        raise LocalStoreError(f"{where}: damaged: {error}") from error

"""The versions of an operator's entries, in one RocksDB for all its key groups.

The database is in the subfolder ``keyed-versions-1.<number>`` of the store's folder: the name says whose it is and in
which format; a store that is built anew gets the next number, so that readers keep what they have open. Entries are
those of a changelog (`keyed.content.addresses`), rows of tables as `keyed.content.table_entries` has them. A *version*
is a value with the number of the commit that wrote it. The database's keys and values, numbers big-endian:

    M                              position: a frame of kind KVPO, version 1, whose payload is the msgpack array
                                   [log id, oldest commit that can be asked for, newest commit, number of versions
                                   written since the last sweep began]
    C | commit (u64)               a frame of kind KVCO, version 1: the fields of `VersionedBatch` as a msgpack map
    D | commit (u64) | part (u32)  what a commit changed: the addresses, prefix and sub as one, as a msgpack array; not
                                   of the first one
    L | prefix | sub               the latest version: commit (u64) | length of the prefix (u32) | value;
                                   without what follows the commit if the entry was removed
    V | prefix | sub | ~commit     each version, the newest first: length of the prefix (u32) | value, or nothing

``~commit`` is the commit's number with all bits inverted. Commits are of one batch in all key groups, so a number says
what the whole operator's state is; what is above the position is no state yet and is not looked at.

An entry that did not change since the commit that is asked for is found under L by one look-up, another one under V.
Versions that no commit from the oldest one on can see are removed by a sweep, a part with each commit, once there are
as many of them as there are entries: so the database holds at most what is live, twice, and what changed since.

Writes go to RocksDB's write-ahead log: other processes see them, through an instance of their own that follows it
(RocksDB's secondary instance). The log is not synced; what a machine lost is read from the changelog again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any

import attrs
import msgspec

from keyed.codec.frames import frame, unframe
from keyed.content.blocks import Change
from keyed.errors import CorruptionError, LocalStoreError
from keyed.private_files import make_private
from keyed.stores.database import Database, successor

if TYPE_CHECKING:
    from rocksdict import WriteBatch

_SUBFOLDER = "keyed-versions-1."
_POSITION = b"M"
_POSITION_FRAME, _BATCH_FRAME, _VERSION = b"KVPO", b"KVCO", 1
_NUMBER = Struct(">Q")
_LENGTH = Struct(">I")
_HEAD = Struct(">QI")
_pack = _NUMBER.pack
_pack_length = _LENGTH.pack
_LAST = 2**64 - 1
#: How many entries a sweep looks at with each commit, beside twice those that the commit wrote; and how many versions
#: there have to be before one begins.
_SWEEP_STEP, _SWEEP_LEAST = 2_000, 50_000
#: How many addresses are looked up in one call.
_AT_A_TIME = 4_096
_encode = msgspec.msgpack.Encoder().encode


@attrs.frozen(kw_only=True)
class VersionedBatch:
    """What the store knows of one batch, which all key groups have committed.

    Attributes:
        commit: Number of the commit in each key group.
        watermark: The least watermark of the key groups after it, milliseconds.
        processing_time: The greatest processing time of the key groups after it, milliseconds since the epoch.
        hashes: Hashes of the key groups' live entries after it, as text (`keyed.content.entry_hash`), in their order.
        entries: Number of live entries after it.
        ended: Whether the input has ended.
        states: Descriptions of the states, by name (`GroupMeta.states`).
    """

    commit: int
    watermark: int
    processing_time: int
    hashes: tuple[str, ...]
    entries: int
    ended: bool = False
    states: dict[str, Any] = attrs.field(factory=dict)


_decode_batch = msgspec.msgpack.Decoder(VersionedBatch).decode
_decode_addresses = msgspec.msgpack.Decoder(list[bytes]).decode
_decode_position = msgspec.msgpack.Decoder(tuple[str, int, int, int]).decode


@attrs.frozen
class Extent:
    """What a store holds.

    Attributes:
        log_id: Identity of the changelog.
        oldest: The oldest commit whose state can be asked for.
        newest: The newest one.
    """

    log_id: str
    oldest: int
    newest: int


class VersionStore:
    """The versions of the entries of one operator.

    One program writes it; any number of others on the machine may read it meanwhile.

    Args:
        path: Folder of the store; created if missing, with its parents.

    Raises:
        LocalStoreError: The folder is damaged, is written by another program, or cannot be created or read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        numbers = _numbers(self.path)
        self._open(numbers[-1] if numbers else 0)
        for number in numbers[:-1]:
            shutil.rmtree(self._folder(number), ignore_errors=True)

    def _open(self, number: int) -> None:
        self._number = number
        folder = self._folder(number)
        try:
            make_private(folder)
        except OSError as error:
            raise LocalStoreError(f"{folder} cannot be created: {error}") from error
        self._use(Database(folder, LocalStoreError, wal=True))

    def _use(self, database: Database) -> None:
        self._database = database
        self._get = database.get
        self._batches: dict[int, VersionedBatch] = {}
        #: How many parts of a commit that is not shown yet were written.
        self._parts = 0
        self._sweep_at: bytes | None = None
        try:
            self._read_extent()
        except BaseException:
            database.close()
            raise

    def _folder(self, number: int) -> Path:
        return self.path / f"{_SUBFOLDER}{number}"

    def close(self, *, delete: bool = False) -> None:
        """Let go of the folder. Closing again does nothing.

        Args:
            delete: Whether the store is not needed any more.
        """
        self._database.close()
        if delete:
            shutil.rmtree(self._database.path, ignore_errors=True)

    # Reading ----------------------------------------------------------------------------------------------------

    @property
    def extent(self) -> Extent | None:
        """The batches that can be asked for; ``None`` before the first one."""
        return self._extent

    def is_empty(self) -> bool:
        """Whether nothing was ever written."""
        return next(self._database.range(b"", b"\xff"), None) is None

    def batch(self, commit: int) -> VersionedBatch:
        """What is known of a batch from the oldest to the newest.

        Raises:
            LocalStoreError: The store is damaged.
        """
        found = self._batches.get(commit)
        if found is None:
            record = self._look_up(b"C" + _pack(commit))
            where = f"{self._database.path}, commit {commit}"
            if record is None:
                raise LocalStoreError(f"{where}: there is no record of it")
            found = _decoded(record, where)
            if len(self._batches) >= 64:
                self._batches.clear()
            self._batches[commit] = found
        return found

    def batches(self, newest_first: bool = False) -> Iterator[VersionedBatch]:
        """What is known of the batches from the oldest to the newest."""
        extent = self._extent
        if extent is None:
            return
        if newest_first:
            for commit in range(extent.newest, extent.oldest - 1, -1):
                record = self._look_up(b"C" + _pack(commit))
                if record is not None:
                    yield _decoded(record, f"{self._database.path}, commit {commit}")
            return
        for key, record in self._database.range(b"C" + _pack(extent.oldest), b"C" + _pack(extent.newest + 1)):
            yield _decoded(record, f"{self._database.path}, {key!r}")

    def get(self, address: bytes, commit: int) -> bytes | None:
        """The value at an address (prefix and sub) as a commit left it."""
        return self._value(address, self._look_up(b"L" + address), commit)

    def get_many(self, addresses: Sequence[bytes], commit: int) -> list[bytes | None]:
        """The values at addresses, in their order."""
        values: list[bytes | None] = []
        append = values.append
        for start in range(0, len(addresses), _AT_A_TIME):
            part = addresses[start : start + _AT_A_TIME]
            try:
                records = self._get([b"L" + address for address in part])
            except Exception as error:
                raise self._database.failed("cannot be read", error) from error
            for address, record in zip(part, records, strict=True):
                append(None if record is None else self._value(address, record, commit))
        return values

    def scan(
        self, first: bytes, end: bytes, commit: int, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes, bytes]]:
        """The (prefix, sub, value) from address ``first`` to before ``end``, in their order, as a commit left them."""
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
        """The (prefix, sub, value before, value after) of an entry that a commit changed; ``None`` if it did not."""
        latest = self._look_up(b"L" + address)
        before, after = (self._record(address, latest, number) for number in (commit - 1, commit))
        if before == after:
            return None
        length = _LENGTH.unpack_from(before or after or b"")[0]
        old, new = (None if record is None else record[_LENGTH.size :] for record in (before, after))
        return address[:length], address[length:], old, new

    def history(self, address: bytes) -> Iterator[tuple[int, bytes | None]]:
        """The (commit, value) of an entry's versions, the newest first: ``None`` where it was removed.

        The last of them is at or before the oldest commit, if the entry was there then.
        """
        extent = self._extent
        if extent is None:
            return
        head = b"V" + address
        for key, record in self._database.range(head + _pack(_LAST - extent.newest), successor(head)):
            commit = _LAST - _NUMBER.unpack_from(key, len(head))[0]
            yield commit, record[_LENGTH.size :] if record else None
            if commit <= extent.oldest:
                return

    def changed(self, commit: int, first: bytes, end: bytes) -> list[bytes]:
        """The addresses from ``first`` to before ``end`` that a commit changed, in order; it is not the oldest one."""
        found: set[bytes] = set()
        for _, record in self._database.range(b"D" + _pack(commit), b"D" + _pack(commit + 1)):
            found.update(address for address in _decode_addresses(record) if first <= address < end)
        return sorted(found)

    def _value(self, address: bytes, latest: bytes | None, commit: int) -> bytes | None:
        """The value at an address as a commit left it, where ``latest`` is the record of its latest version."""
        record = self._record(address, latest, commit)
        return None if record is None else record[_LENGTH.size :]

    def _record(self, address: bytes, latest: bytes | None, commit: int) -> bytes | None:
        """The record of the version that a commit left, as it is under V; ``None`` if there was no entry."""
        if latest is None:
            return None
        if _NUMBER.unpack_from(latest)[0] <= commit:
            return latest[_NUMBER.size :] or None
        return self._version(address, commit) or None

    def _version(self, address: bytes, commit: int) -> bytes | None:
        """The record of the newest version that is not younger than a commit."""
        head = b"V" + address
        return next((record for _, record in self._database.range(head + _pack(_LAST - commit), successor(head))), None)

    def _look_up(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._get(key)
        except Exception as error:
            raise self._database.failed("cannot be read", error) from error
        return value

    def _read_extent(self) -> None:
        where = str(self._database.path)
        self._extent: Extent | None = None
        self._written = 0
        record = self._look_up(_POSITION)
        if record is None:
            return
        try:
            _, payload = unframe(_POSITION_FRAME, record, where=where, newest=_VERSION)
            log_id, oldest, newest, self._written = _decode_position(payload)
        except (CorruptionError, ValueError) as error:
            raise LocalStoreError(f"{where}: damaged position record: {error}") from error
        self._extent = Extent(log_id, oldest, newest)

    # Writing ----------------------------------------------------------------------------------------------------

    def write(self, commit: int, changes: Iterable[Change]) -> None:
        """Write changes of a commit that is not to be seen yet."""
        self._database.write(self._versions(commit, list(changes), _new_batch()))
        self._parts += 1

    def apply(self, log_id: str, batch: VersionedBatch, changes: Iterable[Change], oldest: int) -> None:
        """Write the last changes of a commit, and show it: with all that `write` was given of it, or not at all.

        Args:
            log_id: Identity of the changelog.
            batch: The batch.
            changes: Changes in order; a later one of an address wins.
            oldest: The oldest commit that can be asked for from now on; it never moves back.
        """
        changes, written = list(changes), _new_batch()
        before, extent = self._extent, Extent(log_id, oldest, batch.commit)
        # First, so that what is written now stays: a sweep looks at what was written before.
        self._sweep(written, extent, max(batch.entries, _SWEEP_LEAST), 2 * len(changes) + _SWEEP_STEP)
        self._versions(batch.commit, changes, written)
        written[b"C" + _pack(batch.commit)] = frame(_BATCH_FRAME, _VERSION, _encode(batch))
        for commit in range(before.oldest if before is not None else oldest, oldest):
            written.delete(b"C" + _pack(commit))
            for key, _ in self._database.range(b"D" + _pack(commit), b"D" + _pack(commit + 1)):
                written.delete(key)
        payload = _encode((extent.log_id, extent.oldest, extent.newest, self._written))
        written[_POSITION] = frame(_POSITION_FRAME, _VERSION, payload)
        self._database.write(written)
        self._extent, self._parts = extent, 0

    def successor(self) -> VersionStore:
        """A new, empty store in the same folder, in place of this one, which is to be closed and deleted."""
        new = VersionStore.__new__(VersionStore)
        new.path = self.path
        new._open(self._number + 1)  # noqa: SLF001 - another store of this class
        return new

    def _versions(self, commit: int, changes: Sequence[Change], batch: WriteBatch) -> WriteBatch:
        """Add versions to a batch of writes."""
        number, inverted = _pack(commit), _pack(_LAST - commit)
        for prefix, sub, value in changes:
            address = prefix + sub
            if value is None:
                batch[b"L" + address] = number
                batch[b"V" + address + inverted] = b""
            else:
                record = _pack_length(len(prefix)) + value
                batch[b"L" + address] = number + record
                batch[b"V" + address + inverted] = record
        if self._extent is not None and changes:
            addresses = [prefix + sub for prefix, sub, _ in changes]
            batch[b"D" + number + _pack_length(self._parts)] = _encode(addresses)
        self._written += len(changes)
        return batch

    def _sweep(self, batch: WriteBatch, extent: Extent, least: int, rest: int) -> None:
        """Remove versions that nobody can see: a part of the addresses, in their order, with each commit.

        Args:
            batch: Gets what is to be removed.
            extent: The extent that comes into force with it.
            least: How many versions have to be written from the beginning of one sweep to that of the next.
            rest: How many versions to look at, and those that the last address has beyond that.
        """
        if self._sweep_at is None:
            if self._written < least:
                return
            self._sweep_at, self._written = b"V", 0
        head, hidden, gone = b"", False, False
        for key, record in self._database.range(self._sweep_at, b"W"):
            if key[:-8] != head:
                if gone:
                    batch.delete(b"L" + head[1:])
                if rest <= 0:
                    self._sweep_at = key
                    return
                head, hidden, gone = key[:-8], False, True
            rest -= 1
            if hidden:
                batch.delete(key)
                continue
            if _LAST - _NUMBER.unpack_from(key, len(key) - 8)[0] > extent.oldest:
                gone = False
                continue
            # The newest version that the oldest commit sees; those that follow are older.
            hidden = True
            if record:
                gone = False
            else:
                batch.delete(key)
        if gone:
            batch.delete(b"L" + head[1:])
        self._sweep_at = None


class VersionReader(VersionStore):
    """The versions that another program writes, as they were when this was opened or last refreshed.

    Args:
        path: Folder of the store.
        own: An empty folder for what RocksDB writes for a reader.

    Raises:
        LocalStoreError: There is no store, or it is damaged.
    """

    def __init__(self, path: str | os.PathLike[str], own: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._own = Path(own)
        numbers = _numbers(self.path)
        if not numbers:
            raise LocalStoreError(f"{self.path} holds no state tables; give the folder that open_tables was given")
        self._number = numbers[-1]
        self._use(Database(self._folder(self._number), LocalStoreError, wal=True, reader=self._own))

    def refresh(self) -> bool:
        """Take in what was written since. Gives whether that is possible: not if the writer has begun a new store."""
        if _numbers(self.path)[-1:] != [self._number]:
            return False
        self._database.refresh()
        self._batches.clear()
        self._read_extent()
        return True

    def close(self, *, delete: bool = False) -> None:
        """Let go of the folder, which is the writer's. Closing again does nothing."""
        self._database.close()
        shutil.rmtree(self._own, ignore_errors=True)


def _new_batch() -> WriteBatch:
    from rocksdict import WriteBatch

    return WriteBatch(raw_mode=True)


def _numbers(path: Path) -> list[int]:
    """The numbers of the databases in a store's folder, in order."""
    names = (folder.name.removeprefix(_SUBFOLDER) for folder in path.glob(f"{_SUBFOLDER}*"))
    return sorted(int(name) for name in names if name.isdigit())


def _decoded(record: bytes, where: str) -> VersionedBatch:
    try:
        return _decode_batch(unframe(_BATCH_FRAME, record, where=where, newest=_VERSION)[1])
    except (CorruptionError, ValueError) as error:
        raise LocalStoreError(f"{where}: damaged: {error}") from error

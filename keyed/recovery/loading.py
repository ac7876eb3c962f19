"""Restore: loads the state of a changelog into key groups without state, at any parallelism.

Each old group is read once, for all new groups that take entries of it. With p old groups and q new ones, a key of old
group i can only be in a new group j with i ≡ j modulo gcd(p, q), because a group is the key's hash modulo the number of
groups; so from 2 groups to 4, for example, a new group reads one old one. Broadcast states are the same in every old
group, and a new group takes them from the first one that it reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from keyed.base.scratch import ScratchFolder
from keyed.changelog.commit_fold import FoldedCommit, difference, fold_group
from keyed.changelog.model import Commit, batch_id
from keyed.codec.key_hash import group_of, key_hash
from keyed.content.addresses import broadcast_prefixes, key_of
from keyed.content.contents import MODULUS, LiveHash, contents, hash_of_text, hash_text
from keyed.content.delta import Applying, Delta, deltas
from keyed.content.table_entries import blocks_of, tables_of
from keyed.engine.group_log import COUNTERS, GroupMeta
from keyed.engine.migrate import Migration, class_migration
from keyed.engine.replica import Loader
from keyed.errors import CorruptionError, HistoryCompacted, LocalStoreError
from keyed.job.functions import OperatorSpec
from keyed.job.restoring import StateMigration
from keyed.job.results import RestoreProgress
from keyed.recovery.cut import Restoration
from keyed.stores import open_rocks_store
from keyed.stores.database import successor
from keyed.stores.version_store import VersionReader

if TYPE_CHECKING:
    import pyarrow as pa

#: Maximal number of addresses whose new group is cached: a changelog repeats addresses.
_REMEMBERED = 500_000
#: Records between two reports of progress.
_TELL = 100_000


class Loadable(Protocol):
    """A key group that can be loaded, such as a `keyed.engine.key_group.KeyGroup` without state."""

    @property
    def index(self) -> int:
        """Its index."""

    def loader(self, commit: int, states: dict[str, Any]) -> Loader:
        """Return its loader. See `KeyGroup.loader`."""


def load(
    restoration: Restoration,
    spec: OperatorSpec,
    groups: Sequence[Loadable],
    on_progress: Callable[[RestoreProgress], object] = lambda _: None,
    written: Callable[[], object] = lambda: None,
) -> list[Loader]:
    """Load the logs and local stores of key groups with the state of a changelog at the cut.

    Args:
        restoration: The operator's restore.
        spec: The operator.
        groups: Key groups of it without state; those that are loaded together share the reads.
        on_progress: Called after each old group and about every 100,000 records.
        written: Called when rows were written that may be committed separately, as in `Loader.write_log`.

    Returns:
        The loaders, for writing the meta records.

    Raises:
        StateSchemaChanged: The function's states are not compatible with those of the changelog. Raised before entries
            are read.
        HistoryCompacted: The changelog was compacted beyond the cut.
        CorruptionError: The changelog is damaged, or the entries do not match the hash of its commits.
    """
    markers, parallelism = restoration.markers, spec.parallelism
    stored = {name: state for marker in markers for name, state in marker.states.items()}
    declared = restoration.point.migrate
    migration = Migration(class_migration(spec.function, stored) if declared == StateMigration() else declared, stored)
    loaders = {group.index: group.loader(restoration.sequence, migration.states) for group in groups}
    common = math.gcd(len(markers), parallelism)
    indexes = {index % common for index in loaders}
    needed = [marker for marker in markers if marker.group % common in indexes]
    route = _Route(loaders, len(markers), spec)
    records = 0
    with _standby(restoration) as standby:
        for done, marker in enumerate(needed):
            reported = records
            for count, delta in _deltas(restoration, marker, standby):
                records += count
                route.add(marker.group, migration.apply(delta))
                if records - reported >= _TELL:
                    reported = records
                    on_progress(RestoreProgress(spec.name, done, len(needed), records))
            on_progress(RestoreProgress(spec.name, done + 1, len(needed), records))
    for loader in loaders.values():
        meta = loader.meta
        meta.watermark = min(marker.watermark for marker in markers)
        meta.processing_time = max(marker.processing_time for marker in markers)
        meta.ended = any(marker.ended for marker in markers)
        # All groups get the same watermarks of the sources.
        meta.channels = markers[0].channels
        meta.key_columns = markers[0].key_columns
        meta.key_type = next((marker.key_type for marker in markers if marker.key_type), "")
        # The operator's counters are the sums over its groups, so one of them continues from the old sums.
        counted = markers if meta.group == 0 else ()
        meta.counters = {name: sum(marker.counters.get(name, 0) for marker in counted) for name in COUNTERS}
    loaders[groups[0].index].meta.counters["records_restored"] += records
    loaded = [loader.write_log(written) for loader in loaders.values()]
    if all(index in loaders for index in range(parallelism) if index % common in indexes):
        broadcast = [loader.broadcast for loader in loaders.values()]
        if migration.changes_entries:
            needed = [_migrated(restoration, marker, migration) for marker in needed]
        _check(restoration, needed, loaded, broadcast)
    return list(loaders.values())


@contextmanager
def _standby(restoration: Restoration) -> Iterator[VersionReader | None]:
    """Open the tables in the folder of the restore point, if they belong to the changelog and reach the cut."""
    point, header = restoration.point, restoration.header
    if point.standby is None:
        yield None
        return
    try:
        standby = VersionReader(Path(point.standby) / header.operator)
    except LocalStoreError:
        yield None
        return
    with closing(standby):
        yield standby if _place(standby, restoration) is not None else None


def _place(standby: VersionReader, restoration: Restoration) -> tuple[int, int] | None:
    """Return the newest batch up to the cut that tables have: the number of their commit, and that of the changelog."""
    extent, log_id = standby.extent, restoration.header.log_id
    if extent is None:
        return None
    batch = min(restoration.sequence, extent.batch if extent.log_id == log_id else restoration.sequence)
    commit = extent.commit_of(batch, log_id)
    return None if commit is None else (commit, batch)


def _deltas(restoration: Restoration, marker: Commit, standby: VersionReader | None) -> Iterator[tuple[int, Delta]]:
    """Yield the deltas of one old group at the cut, later ones winning, each with its number of records."""
    reader = restoration.point.changelog.reader(marker.group)
    where = f"key group {marker.group} of a changelog"
    log_id = restoration.header.log_id
    commits = fold_group(reader, log_id, marker.group, until=marker.sequence)
    if standby is not None and (place := _place(standby, restoration)) is not None:
        commit, batch = place
        after = fold_group(reader, log_id, marker.group, batch, marker.sequence)
        missing = iter(()) if batch == marker.sequence else _after(after)
        if missing is not None and standby.has_group(marker.group, len(restoration.markers), commit):
            states, commits = standby.batch(commit).states, missing
            # Tables have the entries of broadcast states once, under one of the groups.
            broadcast = (standby.scan(each, successor(each), commit) for each in broadcast_prefixes(states))
            entries = chain(standby.group(marker.group, len(restoration.markers), commit), *broadcast)
            for delta in deltas(blocks_of(entries, tables_of(states, where)), states, where):
                yield 0, delta
    for each in commits:
        for delta in each.deltas(where):
            yield delta.records, delta


def _after(commits: Iterator[FoldedCommit]) -> Iterator[FoldedCommit] | None:
    """Return the commits after one, of which the first is read; ``None`` if some no longer exist."""
    try:
        return chain((next(commits),), commits)
    except HistoryCompacted:
        return None


def _migrated(restoration: Restoration, marker: Commit, migration: Migration) -> Commit:
    """Return the marker that the migrated content of an old group has, if its content is that of its marker.

    The old group is read once more, because only its whole content can be compared with its hash.
    """
    where = f"key group {marker.group} of a changelog"
    with (
        ScratchFolder("migrate") as folder,
        _standby(restoration) as standby,
        closing(open_rocks_store(folder.path / "store")) as store,
    ):
        applying = Applying(store, where, 0)
        for _, delta in _deltas(restoration, marker, standby):
            applying.add(delta)
        applying.finish()
        before, after = LiveHash(), LiveHash()
        for delta in contents(store, marker.states):
            before.add(delta)
            after.add(migration.apply(delta))
    if difference(before, marker.entries, marker.hash):
        raise _differs(restoration, before.live, marker.entries)
    return attrs.evolve(marker, entries=after.live, hash=hash_text(after.value))


class _Route:
    """Routes entries of old groups to their new groups."""

    def __init__(self, loaders: Mapping[int, Loader], old_parallelism: int, spec: OperatorSpec) -> None:
        self._loaders = loaders
        self._parallelism = spec.parallelism
        self._stream_keys = spec.keys
        # All entries of an old group go to one new group.
        self._keeps_groups = old_parallelism % spec.parallelism == 0
        self._known: dict[bytes, tuple[int, ...]] = {}
        self._common = math.gcd(old_parallelism, spec.parallelism)
        #: The new groups for which the old one that is read is the first.
        self._first: tuple[int, ...] = ()

    def add(self, old: int, delta: Delta) -> None:
        """Add the entries of an old group."""
        if self._keeps_groups:
            self._loaders[old % self._parallelism].add(delta)
            return
        self._first = tuple(index for index in self._loaders if index % self._common == old)
        for index, part in delta.by_group(self._loaders, self._group, self._groups).items():
            self._loaders[index].add(part)

    def _group(self, prefix: bytes) -> tuple[int, ...]:
        """Return the new groups of an entry of an old one."""
        known = self._known
        group = known.get(prefix)
        if group is None:
            if len(known) >= _REMEMBERED:
                known.clear()
            key = key_of(prefix)
            if key is None:
                return self._first
            group = known[prefix] = (group_of(key_hash(key), self._parallelism),)
        return group

    def _groups(self, rows: pa.Table) -> Any:
        """Return the new group of each row of a table."""
        from keyed.table_state.batches import group_indices

        return group_indices(rows, self._stream_keys, self._parallelism)


def _check(
    restoration: Restoration, markers: Sequence[Commit], loaded: Sequence[GroupMeta], broadcast: Sequence[LiveHash]
) -> None:
    """Check that the new groups together have the entries of the old ones, and each of them all broadcast states.

    Raises:
        CorruptionError: They do not.
    """
    where = f"changelog {restoration.header.log_id} of operator {restoration.header.operator!r}"
    # Each old group had a copy of the entries of broadcast states.
    more, copy = len(markers) - len(loaded), broadcast[0]
    before = sum(hash_of_text(marker.hash, where) for marker in markers) - more * copy.value
    after = sum(hash_of_text(meta.hash, where) for meta in loaded)
    expected = sum(marker.entries for marker in markers) - more * copy.live
    live = sum(meta.live for meta in loaded)
    equal = all((each.live, each.value) == (copy.live, copy.value) for each in broadcast)
    if equal and expected == live and not (before - after) % MODULUS:
        return
    raise _differs(restoration, live, expected)


def _differs(restoration: Restoration, actual: int, expected: int) -> CorruptionError:
    """Return the error for restored entries that are not those of the markers, by their number or their hash."""
    where = f"changelog {restoration.header.log_id} of operator {restoration.header.operator!r}"
    if expected != actual:
        return CorruptionError(
            f"{actual} entries were restored, batch {batch_id(restoration.sequence)} had {expected}", where=where
        )
    return CorruptionError(
        f"the restored entries are not those that batch {batch_id(restoration.sequence)} had: their hash differs; see "
        "keyed.recovery.verification",
        where=where,
    )

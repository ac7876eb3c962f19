"""The key groups of a function under test: on the real engine, over a commit store in memory."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from keyed.base.lease import ScratchFolder
from keyed.content.contents import contents
from keyed.content.local_store import LocalStore
from keyed.engine.batch import Batch, BatchResult
from keyed.engine.group_log import GroupMeta
from keyed.engine.key_group import KeyGroup
from keyed.engine.replica import Replica
from keyed.errors import DefinitionError
from keyed.job.functions import Function, OperatorSpec, Store, check_parallelism
from keyed.job.restoring import RestorePoint
from keyed.recovery.cut import cut_of, header_of
from keyed.recovery.loading import load
from keyed.stores import MemoryStore
from keyed.stores.commit_store import MemoryCommitStore
from keyed.stores.opening import open_store
from keyed.testing.function_options import OPERATOR
from keyed.testing.memory_changelog import MemoryChangelog
from keyed.testing.states import of_keys

_PARALLELISM = "parallelism"


#: The watermark and the processing time of a restored state, in milliseconds.
Clocks = tuple[int, int]


class GroupSet:
    """The key groups of an operator with their local stores. Each `run` is one micro-batch and one commit.

    Args:
        spec: The operator.
        store: Local store: ``"memory"``, ``"rocksdb"`` or ``"lmdb"``.

    Attributes:
        spec: The operator, with its current function and parallelism.
        members: The key groups, in order.
    """

    def __init__(self, spec: OperatorSpec, store: Store = "memory") -> None:
        self.spec = spec
        self.members: list[KeyGroup] = []
        self._store = store
        self._folder: ScratchFolder | None = None
        self._commits = MemoryCommitStore()
        self._replicas: list[Replica] = []
        if spec.changelog is not None:
            spec.changelog.prepare(OPERATOR, spec.parallelism)
        self._open()

    def run(self, batches: list[Batch]) -> list[BatchResult]:
        """Run a micro-batch, one batch per key group, and commit it; commit nothing if a group fails."""
        results = []
        try:
            for group, batch in zip(self.members, batches, strict=True):
                results.append(group.run(batch))
        except BaseException:
            self._commits.rollback()
            raise
        self._finish()
        return results

    def committed(self) -> Iterator[tuple[KeyGroup, GroupMeta, LocalStore]]:
        """Yield the key groups that have committed, each with its meta record and its content."""
        for group in self.members:
            meta, store = group.committed()
            if meta is not None:
                yield group, meta, store

    def entries(self) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Yield the committed entries of all key groups."""
        for _, _, store in self.committed():
            yield from store.items()

    def snapshot(self) -> bytes:
        """Return the committed state as bytes."""
        return self._commits.snapshot()

    def load(self, point: RestorePoint) -> Clocks:
        """Load the state of a changelog.

        Raises:
            StateSchemaChanged: The function's states do not fit it.
        """
        operator = header_of(point.changelog).operator
        restoration = cut_of({operator: point}).operators[operator]
        for loader in load(restoration, self.spec, self.members):
            loader.write_meta()
        self._finish()
        markers = restoration.markers
        return min(each.watermark for each in markers), max(each.processing_time for each in markers)

    def keep_only(self, keys: set[bytes]) -> None:
        """Restart with the committed state of some keys only, given in their encoding."""
        metas, kept = [], []
        for _, meta, store in self.committed():
            metas.append(meta)
            kept.append([of_keys(delta, keys, meta.states) for delta in contents(store, meta.states)])
        self._commits = MemoryCommitStore()
        self.discard()
        self._open()
        for group, meta, deltas in zip(self.members, metas, kept, strict=True):
            loader = group.loader(meta.commit, meta.states)
            for delta in deltas:
                loader.add(delta)
            new = loader.write_log()
            new.watermark, new.processing_time, new.ended = meta.watermark, meta.processing_time, meta.ended
            new.key_columns, new.key_type, new.channels = meta.key_columns, meta.key_type, meta.channels
            loader.write_meta()
        self._finish()

    def recover(self, function: Function | None) -> None:
        """Drop the local stores and all uncommitted changes, and recover from the log.

        Args:
            function: The function afterwards; ``None`` for the same one.
        """
        if function is not None:
            self.spec = attrs.evolve(self.spec, function=function)
        self._commits.rollback()
        self.discard()
        self._open()

    def rescale(self, parallelism: int, function: Function | None) -> Clocks | None:
        """Continue with another number of key groups; returns the clocks, if anything is committed.

        Raises:
            DefinitionError: There is a changelog.
        """
        if self.spec.changelog is not None:
            raise DefinitionError(
                "rescale: the changelog has a fixed number of key groups; give restore_from= it instead"
            )
        check_parallelism(parallelism)
        changelog = changelog_of(self.snapshot(), self.spec.function)
        self._commits.close()
        self._commits = MemoryCommitStore()
        self.spec = attrs.evolve(self.spec, parallelism=parallelism)
        self.recover(function)
        return None if changelog.header() is None else self.load(RestorePoint(changelog))

    def close(self) -> None:
        """Close the function and the local stores."""
        try:
            for group in self.members:
                group.close()
        finally:
            self.discard()

    def discard(self) -> None:
        """Close the local stores alone, as when the process dies."""
        for replica in self._replicas:
            replica.close()
        self._replicas, self.members = [], []
        if self._folder is not None:
            self._folder.close()
            self._folder = None

    def __del__(self) -> None:
        if getattr(self, "_folder", None) is not None:
            self.discard()

    def _open(self) -> None:
        """Open the key groups over the commit store."""
        for index in range(self.spec.parallelism):
            store: LocalStore = MemoryStore()
            if self._store != "memory":
                self._folder = self._folder or ScratchFolder("harness")
                store = open_store(self._store, self._folder.path / str(index))
            self._replicas.append(Replica(store))
            log = self._commits.group_log(OPERATOR, index)
            writer = self.spec.changelog.writer(index) if self.spec.changelog is not None else None
            self.members.append(KeyGroup(self.spec, index, log, self._replicas[-1], writer))

    def _finish(self) -> None:
        """Commit the groups' changes, and export them to the changelog."""
        self._commits.write(_PARALLELISM, b"%d" % self.spec.parallelism)
        self._commits.commit()
        for group in self.members:
            group.flush()


def changelog_of(snapshot: bytes, function: Function) -> MemoryChangelog:
    """Return a changelog with the state in a snapshot; it has no header if nothing was committed."""
    changelog, commits = MemoryChangelog(), MemoryCommitStore()
    commits.restore(snapshot)
    parallelism = int(commits.read(_PARALLELISM) or b"0")
    if parallelism:
        changelog.prepare(OPERATOR, parallelism)
        spec = OperatorSpec(OPERATOR, function, True, None, "arrival", parallelism)
        for index in range(parallelism):
            log, writer = commits.group_log(OPERATOR, index), changelog.writer(index)
            KeyGroup(spec, index, log, Replica(MemoryStore()), writer).flush()
    return changelog

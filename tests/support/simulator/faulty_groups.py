"""The key groups of a simulation: workers die, stores fail, and writes are torn, late or repeated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from keyed.changelog.directory import DirectoryChangelog
from keyed.changelog.model import Changelog, ChangelogWriter, StagingChangelog
from keyed.content.local_store import LocalStore
from keyed.engine.batch import Batch, BatchResult
from keyed.engine.key_group import KeyGroup
from keyed.engine.replica import Replica
from keyed.errors import ChangelogError, ChangelogFenced, CheckpointError, LocalStoreError
from keyed.job.functions import Function, OperatorSpec
from keyed.job.restoring import RestorePoint
from keyed.recovery import verify
from keyed.runtimes.spark.worker.worker_caches import WriterCache
from keyed.stores import MemoryStore, open_rocks_store
from keyed.stores.commit_store import MemoryCommitStore
from keyed.testing.function_options import OPERATOR
from keyed.testing.group_set import Clocks, GroupSet
from keyed.testing.scripts import copied
from tests.support.simulator.faults import Died, Faults
from tests.support.simulator.faulty_parts import FaultyCommits, FaultyStagingWriter, FaultyStore, FaultyWriter

_BATCH = "batch"
_WORKERS = 3
#: Number of failures of a batch after which no more faults occur in it.
_PATIENCE = 6
_STRUCK = (Died, LocalStoreError, ChangelogError, CheckpointError)


@attrs.define
class _Worker:
    """One worker: its local stores, which may be on disk, and the key groups that it has run."""

    number: int
    stores: dict[int, LocalStore] = attrs.field(factory=dict)
    groups: dict[int, KeyGroup] = attrs.field(factory=dict)
    writers: WriterCache = attrs.field(factory=WriterCache)
    faulty_writers: dict[int, FaultyWriter] = attrs.field(factory=dict)

    def die(self) -> None:
        """Lose the memory."""
        self.groups.clear()
        self.faulty_writers.clear()
        self.writers = WriterCache()


class FaultyGroups(GroupSet):
    """Key groups on several workers with faulty parts; each batch is retried until it is committed.

    Args:
        spec: The operator, without a changelog.
        faults: Decides which faults occur.
        changelogs: The changelog, and one more for each change of the number of key groups.
        folder: Folder of the local stores; ``None`` for stores in memory.
    """

    def __init__(
        self, spec: OperatorSpec, faults: Faults, changelogs: Iterator[Changelog], folder: Path | None
    ) -> None:
        self.faults = faults
        self._changelogs = changelogs
        self._zombies: list[tuple[bytes, list[Batch], Any]] = []
        self._workers: list[_Worker] = []
        self._disk = folder
        self._opened = 0
        self._number = 0
        self._written: dict[int, list[BatchResult]] = {}
        super().__init__(attrs.evolve(spec, changelog=next(changelogs)))

    def _open(self) -> None:
        if not isinstance(self._commits, FaultyCommits):
            self._commits = FaultyCommits(self.faults)
        self._workers = [_Worker(number) for number in range(_WORKERS)]
        self.members = [self._group(self._workers[0], index) for index in range(self.spec.parallelism)]

    def discard(self) -> None:
        """Close the local stores of all workers."""
        for worker in self._workers:
            for store in worker.stores.values():
                store.close()
        self._workers, self.members = [], []

    def _group(self, worker: _Worker, index: int) -> KeyGroup:
        """Return a worker's instance of a key group."""
        name, changelog = f"worker {worker.number}, key group {index}", self.spec.changelog
        assert changelog is not None
        log = self._commits.group_log(OPERATOR, index)
        writer = worker.writers.writer(changelog, "", index, log.meta(name))
        if index in worker.groups:
            worker.faulty_writers[index].writer = writer
            return worker.groups[index]
        if index not in worker.stores:
            self._opened += 1
            on_disk = None if self._disk is None else self._disk / str(self._opened)
            worker.stores[index] = MemoryStore() if on_disk is None else open_rocks_store(on_disk)
        staging = isinstance(changelog, StagingChangelog)
        faulty = (FaultyStagingWriter if staging else FaultyWriter)(writer, self.faults, f"changelog of {name}")
        store: Any = FaultyStore(worker.stores[index], self.faults, f"store of {name}")
        spec = attrs.evolve(self.spec, function=copied(self.spec.function))
        worker.faulty_writers[index] = faulty
        worker.groups[index] = KeyGroup(spec, index, log, Replica(store), faulty, f"log{index}", stages=staging)
        return worker.groups[index]

    def run(self, batches: list[Batch]) -> list[BatchResult]:
        """Run a micro-batch under faults, repeatedly until it is committed."""
        number, tries = self._number + 1, 0
        while True:
            tries += 1
            self.faults.resting = tries > _PATIENCE
            try:
                self._disturb(batches)
                self._attempt(batches, number)
            except _STRUCK:
                self._commits.rollback()
                if tries > 2 * _PATIENCE:
                    raise
            except BaseException:
                self._commits.rollback()
                raise
            if int(self._commits.read(_BATCH) or b"0") == number:
                break
        self.faults.resting = True
        self._number = number
        self._publish(self._written[number])
        self.members = [self._group(self.faults.random.choice(self._workers), i) for i in range(len(self.members))]
        return self._written[number]

    def _attempt(self, batches: list[Batch], number: int) -> None:
        """Run all key groups of a batch on some workers, write the outputs and commit."""
        faults = self.faults
        again = True
        while again:
            results = []
            for index, batch in enumerate(batches):
                worker = faults.random.choice(self._workers)
                results.append(self._group(worker, index).run(batch))
                if faults.strikes(f"worker {worker.number} dies in the middle", 0.03):
                    self._kill(worker)
                    raise Died
            again = faults.strikes("the batch runs a second time", 0.05)
            if again:
                self._commits.rollback()
        self._written[number] = results
        self._commits.write(_BATCH, b"%d" % number)
        self._commits.commit()

    def _publish(self, results: list[BatchResult]) -> None:
        """Let the driver publish the staged attempts of a committed batch, unless a fault prevents it."""
        changelog = self.spec.changelog
        if isinstance(changelog, StagingChangelog) and self.faults.random.random() < 0.7:
            for index, result in enumerate(results):
                if result.staged:
                    changelog.publish(index, result.commit, result.staged)

    def _disturb(self, batches: list[Batch]) -> None:
        """Apply the faults before a batch."""
        faults, random, changelog = self.faults, self.faults.random, self.spec.changelog
        if faults.strikes("a worker dies", 0.08):
            self._kill(random.choice(self._workers))
        if faults.late and faults.strikes("a late write arrives", 0.5):
            self._arrive()
        if faults.strikes("a worker flushes", 0.1):
            index = random.randrange(len(batches))
            self._group(random.choice(self._workers), index).flush()
        if isinstance(changelog, DirectoryChangelog) and faults.strikes("the changelog is compacted", 0.1):
            changelog.compact()
        if faults.strikes("a worker falls asleep in this batch", 0.05):
            assert changelog is not None
            writers = [changelog.writer(index) for index in range(len(batches))]
            self._zombies.append((self._commits.snapshot(), batches, writers))
        if self._zombies and faults.strikes("a zombie wakes up and runs its batch", 0.3):
            self._wake(*self._zombies.pop(random.randrange(len(self._zombies))))

    def _kill(self, worker: _Worker) -> None:
        """Remove a worker's memory, and sometimes its disk."""
        worker.die()
        if self.faults.random.random() < 0.5:
            self.faults.script.append(f"      worker {worker.number} has lost its disk")
            for store in worker.stores.values():
                store.close()
            worker.stores.clear()

    def _arrive(self) -> None:
        """Deliver a late write, which may be outdated."""
        try:
            self.faults.late.pop(self.faults.random.randrange(len(self.faults.late)))()
        except Exception as error:  # noqa: BLE001 - whatever the disk or the broker says
            self.faults.script.append(f"      and is refused: {type(error).__name__}")

    def die(self) -> None:
        """Remove the memory of all workers, as in a power failure."""
        for worker in self._workers:
            worker.die()

    def _wake(self, snapshot: bytes, batches: list[Batch], writers: list[ChangelogWriter]) -> None:
        """Run an old batch over the state of its time, without committing it."""
        if len(batches) != self.spec.parallelism:
            return
        commits = MemoryCommitStore()
        commits.restore(snapshot)
        for index, (batch, writer) in enumerate(zip(batches, writers, strict=True)):
            spec = attrs.evolve(self.spec, function=copied(self.spec.function))
            log = commits.group_log(OPERATOR, index)
            group = KeyGroup(spec, index, log, Replica(MemoryStore()), writer, f"log{index}")
            try:
                group.run(batch)
            except ChangelogError:
                self.faults.script.append("      and is refused")

    def _finish(self) -> None:
        """Commit a restored state."""
        self._commits.commit()

    def deliver(self) -> None:
        """Deliver all late writes, and export the last batch."""
        while self.faults.late:
            self._arrive()
        for group in self.members:
            try:
                group.flush()
            except ChangelogFenced:
                # Another worker has written since, and this one takes over from it.
                group.flush()

    def rescale(self, parallelism: int, function: Function | None) -> Clocks | None:
        """Continue from the changelog, with a new one."""
        self.deliver()
        old = self.spec.changelog
        assert old is not None
        self._zombies.clear()
        if not self._number:
            return None
        new = next(self._changelogs)
        new.prepare(OPERATOR, parallelism)
        self.discard()
        self._commits = MemoryCommitStore()
        self._number = 0
        self.spec = attrs.evolve(self.spec, parallelism=parallelism, changelog=new)
        self._open()
        clocks = self.load(RestorePoint(old))
        # The worker that loaded it is gone.
        self.recover(None)
        return clocks

    def recover(self, function: Function | None) -> None:
        """Let all workers die."""
        for worker in self._workers:
            self._kill(worker)
        self.members = [self._group(self._workers[0], index) for index in range(self.spec.parallelism)]

    def problem(self) -> str | None:
        """Return the first problem of local stores and the changelog, ``None`` without one."""
        self.deliver()
        changelog = self.spec.changelog
        assert changelog is not None
        for index in range(self.spec.parallelism):
            fresh = KeyGroup(self.spec, index, self._commits.group_log(OPERATOR, index), Replica(MemoryStore()))
            whole = sorted(fresh.committed()[1].items())
            for worker in self._workers:
                if index in worker.groups and sorted(worker.groups[index].committed()[1].items()) != whole:
                    return f"the local store of worker {worker.number}, key group {index}, differs from the log"
        if self._number:
            for verified in verify(changelog):
                if verified.problem:
                    return f"the changelog is wrong: {verified.problem}"
        return None

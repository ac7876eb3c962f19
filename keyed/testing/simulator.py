"""The simulator: a function on the real engine, while workers die, stores fail and writes are torn, late or repeated.

A simulation is chosen by its seed. The rows are cut into batches, with clocks, deaths and rescaling between them.
Each key group of a batch runs on any of three workers with a local store each, as on Spark, where the worker of a
partition changes from batch to batch; failures are retried until the batch is committed. Rescaling goes through the
changelog. At the end outputs, states and timers have to equal those of an undisturbed run, and the local stores and the
changelog have to equal the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Unpack
from unittest.mock import patch

import attrs

from keyed.changelog.directory import DirectoryChangelog
from keyed.changelog.kafka import KafkaChangelog
from keyed.changelog.model import Blocks, Changelog, ChangelogWriter, Commit, StagingChangelog
from keyed.content.blocks import Change
from keyed.content.local_store import LocalStore
from keyed.engine import cleaning
from keyed.engine.batch import Batch, BatchResult
from keyed.engine.key_group import KeyGroup
from keyed.engine.replica import Replica
from keyed.errors import ChangelogError, ChangelogFenced, CheckpointError, DefinitionError, KeyedError, LocalStoreError
from keyed.functions import Function
from keyed.recovery import verify
from keyed.runtimes.spark.worker.writer_cache import WriterCache
from keyed.shown import shows_options
from keyed.state import MapState
from keyed.stores import MemoryStore, open_rocks_store
from keyed.stores.commit_store import MemoryCommitStore
from keyed.stores.scratch import ScratchFolder
from keyed.testing import environment
from keyed.testing.faults import Died, Faults, FaultyDisk
from keyed.testing.harness import FunctionOptions, Key, KeyedTestHarness, Record
from keyed.testing.memory_changelog import MemoryChangelog
from keyed.testing.process_memory import ProcessMemory
from keyed.testing.scripts import Crash, End, ProcessingTime, Rescale, Rows, Step, copied, difference, outcome
from keyed.watermarks import WatermarkStrategy

_OPERATOR = "function"
_BATCH = "batch"
_WORKERS = 3
#: How often a batch fails before it is left in peace.
_PATIENCE = 6


class SimulationFailed(AssertionError):
    """A simulation ended with another result than the undisturbed run.

    Attributes:
        seed: The seed that repeats it.
        script: The steps and faults, in order.
    """

    def __init__(self, why: str, seed: int, script: Sequence[str]) -> None:
        lines = "\n".join(f"  {line}" for line in script)
        super().__init__(f"{why}\nRepeat it with seed {seed} (--keyed-seed={seed}). Its steps:\n{lines}")
        self.seed = seed
        self.script = list(script)


_STRUCK = (Died, LocalStoreError, ChangelogError, CheckpointError)


class _FaultyStore:
    """A local store of which any call may fail, and any write may be torn."""

    def __init__(self, store: LocalStore, faults: Faults, name: str) -> None:
        self._store = store
        self._faults = faults
        self._name = name

    def _may_fail(self, call: str, chance: float = 0.004) -> None:
        if self._faults.strikes(f"{self._name}: {call} fails", chance):
            raise LocalStoreError(f"{self._name}: {call} fails")

    def __getattr__(self, call: str) -> Any:
        """Return a call of the store; all but `close` may fail, rare ones more often."""
        method = getattr(self._store, call)

        def faulty(*arguments: Any) -> Any:
            self._may_fail(call, 0.02 if call == "table" else 0.004)
            return method(*arguments)

        return method if call in ("reset", "close") else faulty

    def apply(self, log_id: str, row: int, changes: Any, tables: Any = ()) -> None:
        self._may_fail("apply")
        if self._faults.strikes(f"{self._name}: apply is torn off", 0.02):
            changes = self._torn(list(changes))
        self._store.apply(log_id, row, changes, tables)

    def _torn(self, changes: list[Change]) -> Iterator[Change]:
        yield from changes[: self._faults.random.randint(0, len(changes))]
        raise LocalStoreError(f"{self._name}: torn off")


class _FaultyWriter:
    """A writer whose appends fail, are torn, unacknowledged, or late."""

    def __init__(self, writer: ChangelogWriter, faults: Faults, name: str) -> None:
        self.writer = writer
        self._faults = faults
        self._name = name

    def last(self) -> Commit | None:
        if self._faults.strikes(f"{self._name}: last fails", 0.01):
            raise ChangelogError(f"{self._name}: last fails")
        return self.writer.last()

    def append(self, commit: Commit, blocks: Blocks) -> Commit:
        faults = self._faults
        told = f"{self._name}: commit {commit.sequence}"
        if faults.strikes(f"{told} is torn off", 0.03):
            self.writer.append(commit, self._torn(list(blocks)))
        if faults.strikes(f"{told} is written without an answer", 0.03):
            self.writer.append(commit, blocks)
            raise ChangelogError(f"{told}: no answer")
        if faults.strikes(f"{told} is late", 0.03):
            writer, kept = self.writer, list(blocks)
            faults.late.append(lambda: writer.append(commit, kept))
            raise ChangelogError(f"{told}: timed out")
        if faults.strikes(f"{told} is refused", 0.02):
            raise ChangelogError(f"{told}: refused")
        return self.writer.append(commit, blocks)

    def _torn(self, blocks: list[Any]) -> Iterator[Any]:
        yield from blocks[: self._faults.random.randint(0, len(blocks))]
        raise ChangelogError(f"{self._name}: torn off")

    def close(self) -> None:
        self.writer.close()


class _FaultyStagingWriter(_FaultyWriter):
    """The same for a changelog that stages batches before their commit."""

    def stage(self, commit: Commit, blocks: Blocks) -> bool:
        writer: Any = self.writer
        return bool(writer.stage(commit, blocks))


class _FaultyCommits(MemoryCommitStore):
    """The commit store, whose commits may fail, or succeed without an acknowledgement."""

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self._faults = faults

    def make_durable(self) -> None:
        if self._faults.strikes("the commit fails", 0.03):
            raise CheckpointError("the commit fails")
        super().make_durable()
        if self._faults.strikes("the commit gets no answer", 0.03):
            raise Died


@attrs.define
class _Worker:
    """One worker: its local stores, which may be on disk, and the key groups that it has run."""

    number: int
    stores: dict[int, LocalStore] = attrs.field(factory=dict)
    groups: dict[int, KeyGroup] = attrs.field(factory=dict)
    writers: WriterCache = attrs.field(factory=WriterCache)
    faulty_writers: dict[int, _FaultyWriter] = attrs.field(factory=dict)

    def die(self) -> None:
        """Lose the memory."""
        self.groups.clear()
        self.faulty_writers.clear()
        self.writers = WriterCache()


class _World(KeyedTestHarness):
    """A harness over faulty parts, in which each batch is retried until it is committed."""

    def __init__(
        self, faults: Faults, changelogs: Iterator[Changelog], folder: Path | None, function: Function, **more: Any
    ) -> None:
        self.faults = faults
        self._changelogs = changelogs
        self._zombies: list[tuple[bytes, list[Batch], Any]] = []
        self._workers: list[_Worker] = []
        self._disk = folder
        self._opened = 0
        self._number = 0
        self._written: dict[int, list[BatchResult]] = {}
        super().__init__(function, changelog=next(changelogs), **more)

    def _start(self) -> None:
        if not isinstance(self._commits, _FaultyCommits):
            self._commits = _FaultyCommits(self.faults)
        self._workers = [_Worker(number) for number in range(_WORKERS)]
        self._groups = [self._group(self._workers[0], index) for index in range(self._spec.parallelism)]

    def _stop(self) -> None:
        for worker in self._workers:
            for store in worker.stores.values():
                store.close()
        self._workers, self._groups = [], []

    def _group(self, worker: _Worker, index: int) -> KeyGroup:
        """Return a key group as a worker has it."""
        name, changelog = f"worker {worker.number}, key group {index}", self._spec.changelog
        assert changelog is not None
        log = self._commits.group_log(_OPERATOR, index)
        writer = worker.writers.writer(changelog, "", index, log.meta(name))
        if index in worker.groups:
            worker.faulty_writers[index].writer = writer
            return worker.groups[index]
        if index not in worker.stores:
            self._opened += 1
            on_disk = None if self._disk is None else self._disk / str(self._opened)
            worker.stores[index] = MemoryStore() if on_disk is None else open_rocks_store(on_disk)
        staging = isinstance(changelog, StagingChangelog)
        faulty = (_FaultyStagingWriter if staging else _FaultyWriter)(writer, self.faults, f"changelog of {name}")
        store: Any = _FaultyStore(worker.stores[index], self.faults, f"store of {name}")
        spec = attrs.evolve(self._spec, function=copied(self._spec.function))
        worker.faulty_writers[index] = faulty
        worker.groups[index] = KeyGroup(spec, index, log, Replica(store), faulty, f"log{index}", stages=staging)
        return worker.groups[index]

    def _ran(self, batches: list[Batch]) -> list[BatchResult]:
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
        self._groups = [self._group(self.faults.random.choice(self._workers), i) for i in range(len(self._groups))]
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
        changelog = self._spec.changelog
        if isinstance(changelog, StagingChangelog) and self.faults.random.random() < 0.7:
            for index, result in enumerate(results):
                if result.staged:
                    changelog.publish(index, result.commit, result.staged)

    def _disturb(self, batches: list[Batch]) -> None:
        """Apply the faults before a batch."""
        faults, random, changelog = self.faults, self.faults.random, self._spec.changelog
        if faults.strikes("a worker dies", 0.08):
            self._kill(random.choice(self._workers))
        if faults.late and faults.strikes("what was late arrives", 0.5):
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
        """Let a late write arrive, which may be outdated."""
        try:
            self.faults.late.pop(self.faults.random.randrange(len(self.faults.late)))()
        except Exception as error:  # noqa: BLE001 - whatever the disk or the broker says
            self.faults.script.append(f"      and is refused: {type(error).__name__}")

    def die(self) -> None:
        """Remove the memory of all workers, as in a power failure."""
        for worker in self._workers:
            worker.die()

    def _wake(self, snapshot: bytes, batches: list[Batch], writers: list[ChangelogWriter]) -> None:
        """Run an old batch over the state of that time, without committing it."""
        if len(batches) != self._spec.parallelism:
            return
        commits = MemoryCommitStore()
        commits.restore(snapshot)
        for index, (batch, writer) in enumerate(zip(batches, writers, strict=True)):
            spec = attrs.evolve(self._spec, function=copied(self._spec.function))
            log = commits.group_log(_OPERATOR, index)
            group = KeyGroup(spec, index, log, Replica(MemoryStore()), writer, f"log{index}")
            try:
                group.run(batch)
            except ChangelogError:
                self.faults.script.append("      and is refused")

    def _finish(self) -> None:
        """Commit a restored state."""
        self._commits.commit()

    def deliver(self) -> None:
        """Let all late writes arrive, and export the last batch."""
        while self.faults.late:
            self._arrive()
        for group in self._groups:
            try:
                group.flush()
            except ChangelogFenced:
                # Another worker has written since, and this one takes over.
                group.flush()

    def rescale(self, parallelism: int, function: Function | None = None) -> None:
        """Continue from the changelog, with a new one."""
        self.deliver()
        old = self._spec.changelog
        assert old is not None
        self._zombies.clear()
        if not self._number:
            return
        new = next(self._changelogs)
        new.prepare(_OPERATOR, parallelism)
        self._stop()
        self._commits = MemoryCommitStore()
        self._number = 0
        self._spec = attrs.evolve(self._spec, parallelism=parallelism, changelog=new)
        self._start()
        self._restore_from(old)
        # Whoever loaded it is gone.
        self.crash_and_recover()

    def crash_and_recover(self, function: Function | None = None) -> None:
        """Let all workers die."""
        for worker in self._workers:
            self._kill(worker)
        self._groups = [self._group(self._workers[0], index) for index in range(self._spec.parallelism)]

    def problem(self) -> str | None:
        """Return the first problem of local stores and the changelog, ``None`` without one."""
        self.deliver()
        changelog = self._spec.changelog
        assert changelog is not None
        for index in range(self._spec.parallelism):
            fresh = KeyGroup(self._spec, index, self._commits.group_log(_OPERATOR, index), Replica(MemoryStore()))
            whole = sorted(fresh.committed()[1].items())
            for worker in self._workers:
                if index in worker.groups and sorted(worker.groups[index].committed()[1].items()) != whole:
                    return f"the local store of worker {worker.number}, key group {index}, is not what the log holds"
        if self._number:
            for verified in verify(changelog):
                if verified.problem:
                    return f"the changelog is wrong: {verified.problem}"
        return None


@attrs.define
class Simulation:
    """One simulation.

    Attributes:
        function: The function.
        rows: The rows, or a function that draws them from a seeded `random.Random`.
        key: As in `KeyedTestHarness`.
        watermark: As in `keyed.stream`; by default that for rows in order.
        seed: The seed of all choices.
        key2: As in `KeyedTestHarness`.
        broadcast: As in `KeyedTestHarness`.
        script: The steps and faults so far.
    """

    function: Function
    rows: Sequence[Record] | Callable[[Random], Sequence[Record]]
    key: Key = None
    watermark: WatermarkStrategy | None = None
    seed: int = 0
    key2: Key = None
    broadcast: Sequence[MapState[Any, Any]] = ()
    script: list[str] = attrs.field(factory=list, init=False)
    _steps: list[Step] = attrs.field(factory=list, init=False)

    def expected(self) -> dict[str, Any]:
        """Return the result of an undisturbed run, and determine the steps."""
        random = Random(self.seed)  # noqa: S311 - chance is for tests
        rows = self.rows(random) if callable(self.rows) else self.rows
        if not isinstance(rows, Sequence) or not all(isinstance(row, Record) for row in rows):
            raise DefinitionError(f"simulate: rows are {rows!r:.200}; give a list of Record(row, timestamp)")
        rows = list(rows)
        self._steps = _steps(random, rows)
        with KeyedTestHarness(copied(self.function), **self._options) as harness:
            for step in self._steps:
                if not isinstance(step, Crash | Rescale):
                    step.do(harness, self.function)
            return outcome(harness)

    @property
    def _options(self) -> dict[str, Any]:
        strategy = self.watermark or WatermarkStrategy(0)
        return {"key": self.key, "key2": self.key2, "broadcast": self.broadcast, "watermark": strategy}

    def run(self, expected: dict[str, Any]) -> None:
        """Run it with its faults.

        Raises:
            SimulationFailed: It has another result than expected.
        """
        __tracebackhide__ = True
        random = Random(self.seed + 1)  # noqa: S311 - chance is for tests
        self.script[:] = []
        with ExitStack() as stack:
            # A log so small would never be cleaned.
            stack.enter_context(patch.object(cleaning, "_SLACK_BYTES", 64))
            kind, on_disk = random.random(), random.random() < 0.03
            memory = Path("/dev/shm")  # noqa: S108 - a disk that costs nothing, where there is one
            scratch = ScratchFolder("simulation", memory if memory.is_dir() else None)
            folder = stack.enter_context(scratch).path
            (folder / "logs").mkdir()
            faults = Faults(random, self.script)
            make: Callable[[int], Changelog] = lambda _: MemoryChangelog()  # noqa: E731 - the plainest of three
            if kind < 0.15:
                make = lambda number: _directory(folder / "logs" / str(number))  # noqa: E731
            elif kind < 0.3 and find_spec("confluent_kafka"):
                from keyed.testing.kafka_stand_in import StandInBroker

                stack.enter_context(StandInBroker(faults).in_place())
                make = lambda number: KafkaChangelog(f"log{number}", bootstrap="stand-in")  # noqa: E731
            changelogs = map(make, count())
            self.script.append(f"changelog {type(make(0)).__name__}, stores {'on disk' if on_disk else 'in memory'}")
            parallelism = random.choice([1, 1, 2, 3])
            self.script.append(f"{parallelism} key groups")
            disk = folder / "stores" if on_disk else None
            world = _World(faults, changelogs, disk, self.function, parallelism=parallelism, **self._options)
            stack.enter_context(FaultyDisk(folder / "logs", faults, world.die).in_place())
            stack.callback(world._stop)  # noqa: SLF001 - the function's close is no part of it
            try:
                for step in self._steps:
                    self.script += [f"  {line}" for line in step.lines("harness", self.function)]
                    step.do(world, self.function)
                where = difference(expected, found := outcome(world))
                problem = world.problem()
            except (KeyedError, Died) as error:
                raise SimulationFailed(
                    f"{type(self.function).__name__} fails where the undisturbed run does not: "
                    f"{type(error).__name__}: {error}",
                    self.seed,
                    self.script,
                ) from error
        if where is not None:
            told = where.replace("{}.", "")
            problem = f"{told} is {found.get(where)!r:.500}, and undisturbed {expected.get(where)!r:.500}"
        if problem is not None:
            raise SimulationFailed(f"{type(self.function).__name__}: {problem}", self.seed, self.script)


def _directory(path: Path) -> DirectoryChangelog:
    return DirectoryChangelog(path, auto_compact=False, compaction_lag=0)


def _steps(random: Random, rows: list[Record]) -> list[Step]:
    """Cut rows into batches, with other steps between them."""
    steps: list[Step] = []
    clock, start = 0, 0
    while start < len(rows):
        kind = random.random()
        if kind < 0.1:
            clock += random.choice([1, 10, 1000, 100_000])
            steps.append(ProcessingTime(clock))
        elif kind < 0.17:
            steps.append(Crash())
        elif kind < 0.22:
            steps.append(Rescale(random.choice([1, 2, 3, 4])))
        else:
            size = random.choice([1, 1, 2, 5])
            steps.append(Rows(rows[start : start + size]))
            start += size
    return [*steps, End()] if random.random() < 0.3 else steps


@shows_options(FunctionOptions, broadcast=())
def simulate(
    function: Function,
    rows: Sequence[Record] | Callable[[Random], Sequence[Record]],
    *,
    simulations: int | None = None,
    seed: int | None = None,
    **options: Unpack[FunctionOptions],
) -> str:
    """Simulate a function under the faults of a job, and return a sentence with the result.

    Args:
        function: The function. It has to be deterministic.
        rows: The rows, each a `Record`, or a function that draws them from a seeded `random.Random`.
        simulations: Number of seeds: by default ``--keyed-simulations``, or 100.
        seed: The first of them: by default ``--keyed-seed``, or 0.
        options: As in `KeyedTestHarness`; by default the watermark is that for rows in order.

    Raises:
        SimulationFailed: One ended with another result than the undisturbed run.
        DefinitionError: ``simulations`` or ``seed`` is not a number.
    """
    __tracebackhide__ = True
    first = environment.number("KEYED_SEED") or 0 if seed is None else seed
    many = environment.number("KEYED_SIMULATIONS") or 100 if simulations is None else simulations
    if type(many) is not int or many < 1:
        raise DefinitionError(f"simulations={many!r} must be an int above 0")
    if type(first) is not int:
        raise DefinitionError(f"seed={first!r} must be an int")
    memory = ProcessMemory(function)
    for each in range(first, first + many):
        simulation = Simulation(function, rows, seed=each, **options)
        # Each begins in a new process, so that its seed alone repeats it.
        with memory.as_at_first():
            expected = simulation.expected()
        with memory.as_at_first():
            simulation.run(expected)
    return (
        f"{type(function).__name__}: outputs, states and timers are those of an undisturbed run, in {many} simulations"
    )

"""The simulator: a function on the real engine, while workers die, stores fail and writes are torn, late or repeated.

A seed determines a simulation. The rows are cut into batches, with clocks, deaths and rescaling between them. Each key
group of a batch runs on any of three workers with a local store each, as on Spark, where the worker of a partition
changes from batch to batch; failures are retried until the batch is committed. Rescaling goes through the changelog. At
the end outputs, states and timers have to equal those of an undisturbed run, and the local stores and the changelog
have to equal the log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import timedelta
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Unpack
from unittest.mock import patch

import attrs

from keyed.base.scratch import ScratchFolder
from keyed.changelog.directory import DirectoryChangelog
from keyed.changelog.kafka import KafkaChangelog
from keyed.changelog.model import Changelog
from keyed.engine import group_log
from keyed.errors import KeyedError
from keyed.job.functions import Function, Order
from keyed.job.state import MapState
from keyed.job.watermarks import WatermarkStrategy, strategy_of
from keyed.testing.function_options import FunctionOptions, Key, Record, operator_of
from keyed.testing.harness import DrivenFunction, KeyedTestHarness
from keyed.testing.memory_changelog import MemoryChangelog
from keyed.testing.process_state import ProcessMemory
from keyed.testing.scripts import Crash, End, ProcessingTime, Rescale, Rows, Step, copied, difference, outcome
from tests.support.simulator.faults import Died, Faults, FaultyDisk
from tests.support.simulator.faulty_groups import FaultyGroups


class SimulationFailed(AssertionError):
    """A simulation ended with a result that differs from the undisturbed run.

    Attributes:
        seed: The seed that repeats it.
        script: The steps and faults, in order.
    """

    def __init__(self, why: str, seed: int, script: Sequence[str]) -> None:
        lines = "\n".join(f"  {line}" for line in script)
        super().__init__(f"{why}\nRepeat it with seed {seed}. Its steps:\n{lines}")
        self.seed = seed
        self.script = list(script)


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
        order: As in `KeyedTestHarness`.
        script: The steps and faults so far.
    """

    function: Function
    rows: Sequence[Record] | Callable[[Random], Sequence[Record]]
    key: Key = None
    watermark: WatermarkStrategy | timedelta | None = None
    seed: int = 0
    key2: Key = None
    broadcast: Sequence[MapState[Any, Any]] = ()
    order: Order = "event_time"
    script: list[str] = attrs.field(factory=list, init=False)
    _steps: list[Step] = attrs.field(factory=list, init=False)

    def expected(self) -> dict[str, Any]:
        """Return the result of an undisturbed run, and determine the steps."""
        random = Random(self.seed)
        rows = list(self.rows(random) if callable(self.rows) else self.rows)
        self._steps = _steps(random, rows)
        with KeyedTestHarness(copied(self.function), **self._options) as harness:
            for step in self._steps:
                if not isinstance(step, Crash | Rescale):
                    step.do(harness, self.function)
            return outcome(harness)

    @property
    def _options(self) -> dict[str, Any]:
        strategy = strategy_of(self.watermark) or WatermarkStrategy(0)
        given = {"key": self.key, "key2": self.key2, "broadcast": self.broadcast, "order": self.order}
        return {**given, "watermark": strategy}

    def run(self, expected: dict[str, Any]) -> None:
        """Run it with its faults.

        Raises:
            SimulationFailed: Its result differs from the expected one.
        """
        __tracebackhide__ = True
        random = Random(self.seed + 1)
        self.script[:] = []
        with ExitStack() as stack:
            # A log this small would never be cleaned.
            stack.enter_context(patch.object(group_log, "_SLACK_BYTES", 64))
            kind, on_disk = random.random(), random.random() < 0.03
            memory = Path("/dev/shm")
            scratch = ScratchFolder("harness", memory if memory.is_dir() else None)
            folder = stack.enter_context(scratch).path
            (folder / "logs").mkdir()
            faults = Faults(random, self.script)
            make: Callable[[int], Changelog] = lambda _: MemoryChangelog()  # noqa: E731 - the plainest of three
            if kind < 0.15:
                make = lambda number: _directory(folder / "logs" / str(number))  # noqa: E731
            elif kind < 0.3 and find_spec("confluent_kafka"):
                from tests.support.simulator.kafka_stand_in import StandInBroker

                stack.enter_context(StandInBroker(faults).in_place())
                make = lambda number: KafkaChangelog(f"log{number}", bootstrap="stand-in")  # noqa: E731
            changelogs = map(make, count())
            self.script.append(f"changelog {type(make(0)).__name__}, stores {'on disk' if on_disk else 'in memory'}")
            parallelism = random.choice([1, 1, 2, 3])
            self.script.append(f"{parallelism} key groups")
            disk = folder / "stores" if on_disk else None
            spec = operator_of(self.function, parallelism=parallelism, **self._options)
            groups = FaultyGroups(spec, faults, changelogs, disk)
            stack.enter_context(FaultyDisk(folder / "logs", faults, groups.die).in_place())
            # The function's ``close`` is not part of it.
            stack.callback(groups.discard)
            driven = DrivenFunction(groups, self.key, self.key2, by_time=self.order != "arrival")
            try:
                for step in self._steps:
                    self.script += [f"  {line}" for line in step.lines("harness", self.function)]
                    step.do(driven, self.function)
                where = difference(expected, found := outcome(driven))
                problem = groups.problem()
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


def simulate(
    function: Function,
    rows: Sequence[Record] | Callable[[Random], Sequence[Record]],
    *,
    simulations: int,
    seed: int,
    **options: Unpack[FunctionOptions],
) -> None:
    """Simulate a function, which is deterministic, with so many seeds from the first one on.

    Raises:
        SimulationFailed: One ended with a result that differs from the undisturbed run.
    """
    __tracebackhide__ = True
    memory = ProcessMemory(function)
    for each in range(seed, seed + simulations):
        simulation = Simulation(function, rows, seed=each, **options)
        # Each begins in a new process, so that its seed alone reproduces it.
        with memory.as_at_first():
            expected = simulation.expected()
        with memory.as_at_first():
            simulation.run(expected)

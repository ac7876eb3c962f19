"""A Hypothesis state machine over a harness: rows, clocks, crashes and rescaling in any order, with your invariants."""

from __future__ import annotations

from typing import Any, ClassVar

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from hypothesis.strategies import DataObject, SearchStrategy

from keyed.job.functions import Function
from keyed.testing.function_options import Record, SecondRecord
from keyed.testing.harness import KeyedTestHarness
from keyed.testing.printing import as_test
from keyed.testing.process_state import ProcessMemory
from keyed.testing.scripts import Crash, ProcessingTime, Rescale, Rows, Step, copied


class _StepsAsTest:
    """The steps as the text of a test, created when it is shown."""

    def __init__(self, machine: type, steps: list[Step], function: Function, memory: ProcessMemory) -> None:
        self._machine, self._steps, self._function, self._memory = machine, steps, function, memory

    def __repr__(self) -> str:
        lines: list[str] = []
        for step in self._steps:
            lines += self._memory.lines() if isinstance(step, Crash | Rescale) else ()
            lines += step.lines("harness", self._function)
        rows = [step.rows for step in self._steps if isinstance(step, Rows)]
        begun = f"harness = {self._machine.__name__}().make_harness()"
        return "As a test:\n\n" + as_test("steps", [begun, *lines], self._machine, self._function, rows)


class KeyedStateMachine(RuleBasedStateMachine):
    """Drives a harness by rules; a subclass defines function, rows and invariants after each step.

    Rules process rows as a batch, move the processing time, kill the process and rescale. Invariants
    (``hypothesis.stateful.invariant``) are over the attributes; a failure is printed as a test.

    Attributes:
        rows: Strategy of the elements.
        rows2: Strategy of the elements of the second side, or of the broadcast elements.
        gap_ms: Maximal event time from one row to the next.
        parallelisms: Numbers of key groups to which it is rescaled.
        harness: The harness.
        seen: The rows so far, in order of arrival.
        outputs: The main outputs so far.
    """

    rows: ClassVar[SearchStrategy[Any]]
    rows2: ClassVar[SearchStrategy[Any] | None] = None
    gap_ms: ClassVar[int] = 1000
    parallelisms: ClassVar[tuple[int, ...]] = (1, 2, 3)

    def __init__(self) -> None:
        super().__init__()
        self.harness = self.make_harness()
        self._function = copied(self.harness.function)
        self._memory = ProcessMemory(self._function)
        self._steps: list[Step] = []
        self._steps_as_test = _StepsAsTest(type(self), self._steps, self._function, self._memory)
        self.seen: list[Record] = []
        self.outputs: list[Record] = []

    def make_harness(self) -> KeyedTestHarness:
        """Create the harness with its function and key; defined by the subclass."""
        raise NotImplementedError(f"{type(self).__name__} does not define make_harness")

    @rule(data=st.data(), many=st.integers(1, 3))
    def rows_come(self, data: DataObject, many: int) -> None:
        """Process rows as one batch, in the order of their timestamps."""
        for _ in range(many):
            time = (self.seen[-1].timestamp or 0 if self.seen else 0) + data.draw(st.integers(0, self.gap_ms))
            if self.rows2 is not None and data.draw(st.booleans()):
                self.seen.append(SecondRecord(data.draw(self.rows2), time))
            else:
                self.seen.append(Record(data.draw(self.rows), time))
        self._do(Rows(self.seen[-many:]))

    @rule(move=st.integers(1, 10_000))
    def processing_time_moves(self, move: int) -> None:
        """Move the processing time."""
        self._do(ProcessingTime(self.harness.current_processing_time + move))

    @rule()
    def process_dies(self) -> None:
        """Kill the process, and continue in another one."""
        self._do(Crash())

    @rule(data=st.data())
    def key_groups_change(self, data: DataObject) -> None:
        """Continue with another number of key groups."""
        self._do(Rescale(data.draw(st.sampled_from(self.parallelisms))))

    def _do(self, step: Step) -> None:
        self._steps.append(step)
        if isinstance(step, Crash | Rescale):
            self._memory.reset()
        step.do(self.harness, self._function)
        self.outputs += self.harness.take_output()

    def teardown(self) -> None:
        """Close the harness, and make Hypothesis print the steps of a failure as a test."""
        note(self._steps_as_test)
        self.harness.close()
        self._memory.reset()

"""Scripts: steps for a function, to be run through the harness or printed as a test."""

from __future__ import annotations

import copy
import re
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import attrs

from keyed.errors import KeyedError
from keyed.job.functions import Function, KeyedBroadcastProcessFunction, KeyedCoProcessFunction
from keyed.job.watermarks import WatermarkStrategy
from keyed.testing.function_options import HarnessOptions, Record
from keyed.testing.harness import DrivenFunction, KeyedTestHarness
from keyed.testing.printing import code_of
from keyed.testing.process_state import ProcessMemory, attributes_of, is_own
from keyed.vectorized import TIMESTAMP_COLUMN, VectorizedFunction


def _records(rows: Iterable[Record]) -> tuple[Record, ...]:
    return tuple(rows)


@attrs.frozen
class Rows:
    """One micro-batch.

    Attributes:
        rows: Its rows in the order of their arrival.
    """

    rows: tuple[Record, ...] = attrs.field(converter=_records)

    def lines(self, harness: str, function: Function) -> list[str]:
        """Return the code that does this step to a harness."""
        if isinstance(function, VectorizedFunction):
            timed = self.rows[0].timestamp is not None
            time = f', "{TIMESTAMP_COLUMN}"' if timed else ""
            return [f"{harness}.process_batch(pa.Table.from_pylist({code_of(self._plain())}){time})"]
        calls = [
            f"{harness}.{_call(row, function)}"
            f"({code_of(row.value)}{'' if row.timestamp is None else f', {row.timestamp}'})"
            for row in self.rows
        ]
        return calls if len(calls) == 1 else [f"with {harness}.batch():", *(f"    {call}" for call in calls)]

    def do(self, harness: DrivenFunction, function: Function) -> None:
        """Do the step."""
        if isinstance(function, VectorizedFunction):
            import pyarrow as pa

            timed = self.rows[0].timestamp is not None
            harness.process_batch(pa.Table.from_pylist(self._plain()), TIMESTAMP_COLUMN if timed else None)
            return
        with harness.batch():
            for row in self.rows:
                getattr(harness, _call(row, function))(*row)

    def _plain(self) -> list[dict[str, Any]]:
        return [
            row.value if row.timestamp is None else row.value | {TIMESTAMP_COLUMN: row.timestamp} for row in self.rows
        ]


def _call(row: Record, function: Function) -> str:
    """Return the method of a harness that takes a row."""
    if isinstance(function, KeyedBroadcastProcessFunction):
        return "process" if row.input == 1 else "process_broadcast_element"
    return f"process_element{row.input}" if isinstance(function, KeyedCoProcessFunction) else "process"


@attrs.frozen
class Watermark:
    """The watermark moves.

    Attributes:
        to: Its new value, in milliseconds.
        input: The side, 1 or 2, if there are two; by default all.
    """

    to: int
    input: int | None = None

    def lines(self, harness: str, function: Function) -> list[str]:
        """Return the code that does this step to a harness."""
        return [f"{harness}.advance_watermark{self.input or ''}({self.to})"]

    def do(self, harness: DrivenFunction, function: Function) -> None:
        """Do the step."""
        getattr(harness, f"advance_watermark{self.input or ''}")(self.to)


@attrs.frozen
class ProcessingTime:
    """The processing time moves.

    Attributes:
        to: Its new value, in milliseconds.
    """

    to: int

    def lines(self, harness: str, function: Function) -> list[str]:
        """Return the code that does this step to a harness."""
        return [f"{harness}.advance_processing_time({self.to})"]

    def do(self, harness: DrivenFunction, function: Function) -> None:
        """Do the step."""
        harness.advance_processing_time(self.to)


@attrs.frozen
class Crash:
    """The process dies, and another one continues from the committed state, with a fresh copy of the function."""

    def lines(self, harness: str, function: Function) -> list[str]:
        """Return the code that does this step to a harness."""
        return [f"{harness}.crash_and_recover({code_of(function)})"]

    def do(self, harness: DrivenFunction, function: Function) -> None:
        """Do the step."""
        harness.crash_and_recover(copied(function))


@attrs.frozen
class Rescale:
    """Another number of key groups continues.

    Attributes:
        parallelism: The number.
    """

    parallelism: int

    def lines(self, harness: str, function: Function) -> list[str]:
        """Return the code that does this step to a harness."""
        return [f"{harness}.rescale({self.parallelism}, {code_of(function)})"]

    def do(self, harness: DrivenFunction, function: Function) -> None:
        """Do the step."""
        harness.rescale(self.parallelism, copied(function))


@attrs.frozen
class End:
    """The input ends."""

    def lines(self, harness: str, function: Function) -> list[str]:
        """Return the code that does this step to a harness."""
        return [f"{harness}.end_of_input()"]

    def do(self, harness: DrivenFunction, function: Function) -> None:
        """Do the step."""
        harness.end_of_input()


Step = Rows | Watermark | ProcessingTime | Crash | Rescale | End
#: Result of a run: values by the expressions that return them for a harness.
Outcome = dict[str, Any]


def _steps(steps: Iterable[Step]) -> tuple[Step, ...]:
    return tuple(steps)


@attrs.frozen
class Script:
    """A function with steps.

    Attributes:
        function: The function. Each run has its own copy.
        steps: The steps, in order.
        options: Keywords of the harness.
        in_new_process: It begins in a new process, as after a crash or a change of the number of key groups: with the
            process memory of the time when the script was created.
    """

    function: Function
    steps: tuple[Step, ...] = attrs.field(converter=_steps)
    options: HarnessOptions
    in_new_process: bool = False
    _memory: ProcessMemory = attrs.field(
        init=False, eq=False, repr=False, default=attrs.Factory(lambda self: ProcessMemory(self.function), True)
    )

    @property
    def rows(self) -> list[Record]:
        """The rows of all steps."""
        return [row for step in self.steps if isinstance(step, Rows) for row in step.rows]

    def run(
        self,
        look: Callable[[KeyedTestHarness], Outcome] | None = None,
        watch: Callable[[KeyedTestHarness], object] | None = None,
        prepare: Callable[[Any], object] | None = None,
    ) -> Outcome:
        """Run it, and return the observable result (by default all of `outcome`) or the error.

        Args:
            look: Returns the observable result.
            watch: Called with the harness after the last step.
            prepare: Called with the copy of the function that is run.
        """
        function = copied(self.function)
        if prepare is not None:
            prepare(function)
        if self.in_new_process:
            self._memory.reset()
        with KeyedTestHarness(function, **self.options) as harness:
            try:
                for step in self.steps:
                    if isinstance(step, Crash | Rescale):
                        self._memory.reset()
                    step.do(harness, self.function)
                if watch is not None:
                    watch(harness)
                return (look or outcome)(harness)
            except KeyedError as error:
                return {"error": f"{type(error).__name__}: {error}"}

    def lines(self, harness: str) -> list[str]:
        """Return the code of the run, for a variable of this name."""
        options = [code_of(self.function)]
        for name, value in self.options.items():
            if isinstance(value, WatermarkStrategy):
                options.append(f"{name}=bounded_out_of_orderness({value.delay_ms})")
            elif value and value != "memory":
                options.append(f"{name}={code_of(value)}")
        forgets = self._memory.lines()
        lines = [*(forgets if self.in_new_process else ()), f"{harness} = KeyedTestHarness({', '.join(options)})"]
        for step in self.steps:
            lines += [*(forgets if isinstance(step, Crash | Rescale) else ()), *step.lines(harness, self.function)]
        return lines


def outcome(harness: DrivenFunction) -> Outcome:
    """Return the observable result of a harness: its outputs, which are removed, and the committed state."""
    seen: Outcome = {"sorted({}.take_output(), key=repr)": sorted(harness.take_output(), key=repr)}
    for tag in harness.side_outputs:
        seen[f"sorted({{}}.take_side_output(OutputTag({tag!r})), key=repr)"] = sorted(
            harness.take_side_output(tag), key=repr
        )
    for name in harness.state_names:
        seen[f"{{}}.state({name!r})"] = harness.state(name)
        for namespace in harness.namespaces(name):
            seen[f"{{}}.state({name!r}, {code_of(namespace)})"] = harness.state(name, namespace)
    for name in harness.broadcast_state_names:
        seen[f"{{}}.broadcast_state({name!r})"] = harness.broadcast_state(name)
    seen["{}.pending_timers()"] = harness.pending_timers()
    return seen


def difference(one: Outcome, other: Outcome) -> str | None:
    """Return the expression in which two outcomes differ, ``None`` if they are the same."""
    for expression in one | other:
        left, right = one.get(expression), other.get(expression)
        # A missing value counts as empty. A NaN is not equal to itself, but has the same text.
        if (left or right) and left != right and _text(expression, left) != _text(expression, right):
            return expression
    return None


def text_of(outcome: Outcome) -> dict[str, str]:
    """Return the text of an outcome's non-empty values. Equal values have the same text in any process.

    Sets, dictionaries and outputs are sorted by the texts of their elements, because the `repr` of a set differs
    between processes.
    """
    return {expression: _text(expression, value) for expression, value in outcome.items() if value}


def _text(expression: str, value: Any) -> str:
    if expression.startswith("sorted(") and value:
        return f"[{', '.join(sorted(map(form_of, value)))}]"
    return form_of(value)


def form_of(value: Any) -> str:
    """Return the text of a value. Equal values of a type have the same text in any process."""
    kind = type(value)
    if kind is float:
        # Zeros of both signs are equal.
        return repr(value + 0.0)
    if kind in (int, str, bool, type(None)):
        return repr(value)
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{form_of(key)}: {form_of(each)}' for key, each in value.items()))}}}"
    if isinstance(value, set | frozenset):
        return f"{kind.__name__}({', '.join(sorted(map(form_of, value)))})"
    if isinstance(value, list | tuple | deque):
        return f"{'' if kind is list else kind.__name__}[{', '.join(map(form_of, value))}]"
    if is_own(value) or attrs.has(kind):
        return f"{kind.__qualname__}{form_of(attributes_of(value))}"
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def copied(function: Function) -> Function:
    """Return a copy of the function as in a new process; the same object if it cannot be copied."""
    try:
        return copy.deepcopy(function)
    except Exception:  # noqa: BLE001 - whatever the user's objects raise
        return function

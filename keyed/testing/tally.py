"""Counts of situations in the examples of a property, which show if it tested its claim."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from keyed.job.functions import Function, KeyedBroadcastProcessFunction
from keyed.job.ttl import TimeDomain
from keyed.testing.function_options import Record, key_of_record
from keyed.testing.harness import KeyedTestHarness
from keyed.testing.scripts import Crash, Outcome, Rescale, Rows, Step

#: A repeated key in fewer than one of this many examples is too rare.
_HARDLY = 20
#: Number of examples within which a timer should fire.
_MANY = 50


#: What is missing where a count that a property needs is zero.
_NEEDS = {
    "cut": "none was cut into batches: give more rows and examples",
    "restarts": "nothing restarted after a row: give more examples",
    "held": "no key had state or a timer",
    "left": "there were no outputs, states and timers to compare: give rows to which it reacts",
}


@attrs.define
class Tally:
    """Counts of situations in the examples of a property.

    Attributes:
        function: The function.
        options: `PropertyOptions`.
        needs: Names of the counts that have to be above zero.
    """

    function: Function
    options: Any
    needs: Sequence[str] = ()
    examples: int = 0
    rows: int = 0
    several: int = 0
    repeated: int = 0
    cut: int = 0
    reordered: int = 0
    timers: int = 0
    late: int = 0
    restarts: int = 0
    left: int = 0
    held: int = 0
    waits_for_clock: int = 0
    _new: bool = True
    _forms: set[str] = attrs.field(factory=set)

    def steps(self, steps: Iterable[Step]) -> None:
        """Begin an example, which counts if it is new, and count its steps."""
        done = list(steps)
        self._new = (form := repr(done)) not in self._forms
        self._forms.add(form)
        if not self._new:
            return
        batches = [step for step in done if isinstance(step, Rows)]
        rows = [row for batch in batches for row in batch.rows]
        self.examples += 1
        self.rows += len(rows)
        self.several += len(rows) > 1
        self.cut += len(batches) > 1
        self.repeated += self._has_a_key_twice(rows)
        came = False
        for step in done:
            came = came or isinstance(step, Rows)
            self.restarts += came and isinstance(step, Crash | Rescale)

    def orders(self) -> None:
        """Count another order of arrival."""
        self.reordered += self._new

    def look(self, harness: KeyedTestHarness) -> None:
        """Count the events of a run."""
        if not self._new:
            return
        counters = harness.metrics()
        self.timers += counters.get("timers_fired", 0)
        self.late += counters.get("rows_late", 0)

    def outcome(self, outcome: Outcome) -> None:
        """Count the results of a run."""
        self.left += any(outcome.values())
        timers = outcome.get("{}.pending_timers()", ())
        self.waits_for_clock += any(timer.domain is TimeDomain.PROCESSING_TIME for timer in timers)

    def _has_a_key_twice(self, rows: Sequence[Record]) -> bool:
        keys = []
        for row in rows:
            if row.input != 1 and isinstance(self.function, KeyedBroadcastProcessFunction):
                continue
            try:
                keys.append(key_of_record(self.function, self.options, row))
            except Exception:  # noqa: BLE001 - the run raises it, with a message
                return True
        return len(set(keys)) < len(keys)

    def sentence(self) -> str:
        """Return the counts in words."""
        counts = [
            _many(self.examples, "different example"),
            _many(self.rows, "row"),
            f"a key twice in {self.repeated}",
        ]
        if self.reordered:
            counts.append(f"{_many(self.reordered, 'other order')} of arrival")
        counts += [_many(self.timers, "timer") + " fired", _many(self.late, "late row")]
        if "restarts" in self.needs:
            counts.append(_many(self.restarts, "restart"))
        return ", ".join(counts)

    def warn(self, stack_level: int) -> None:
        """Warn of situations that did not occur, so that the property did not test its claim."""
        has_timers = defines_on_timer(type(self.function))
        missing = []
        if self.several and self.repeated < max(1, self.examples // _HARDLY):
            missing.append(
                f"a key came twice in {_many(self.repeated, 'example')}: give its columns few values, as by "
                "strategies.skewed('ann', 'bob')"
            )
        elif not self.several:
            missing.append("none had more than one row: give strategies.streams(...) more, and more examples")
        missing += [what for need, what in _NEEDS.items() if need in self.needs and not getattr(self, need)]
        # If the input does not end, timers fire at random, so a few examples may have none.
        enough = "end" in self.needs or self.examples >= _MANY
        if has_timers and enough and not self.timers and not (self.waits_for_clock and "clock" not in self.needs):
            missing.append("no timer fired: give streams(gap=...) of the timers' length, or silence=")
        if missing:
            name, tried = type(self.function).__name__, _many(self.examples, "different example")
            warnings.warn(f"{name} passed, but of {tried} {'; '.join(missing)}", stacklevel=stack_level)


def defines_on_timer(cls: type) -> bool:
    """Return whether a function defines `on_timer`."""
    return len([each for each in cls.__mro__ if "on_timer" in vars(each)]) > 1


def _many(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"

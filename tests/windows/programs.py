"""Random window programs, run against the oracle.

``python -m tests.windows.programs 10000`` runs that many; a second argument is the seed.
"""

# ruff: noqa: T201 - a program that prints

from __future__ import annotations

import random
import sys
from collections import Counter as Multiset

from keyed import windows as w
from keyed.testing import KeyedTestHarness
from keyed.windows.triggers import NeverTrigger
from keyed.windows.window_operator import WindowOperator
from tests.support.window_operators import window_rows, windows_of
from tests.windows.oracle import Oracle, Program

KINDS = ("tumbling", "hopping", "session")
TRIGGERS = ("default", "default", "default", "count", "purging", "continuous")
#: Each kind of windows, and the triggers that go with it beside the default one.
ALL_KINDS = ("tumbling", "hopping", "session", "dynamic", "calendar", "global", "count", "sliding-count")
ALL_TRIGGERS = ("count", "purging", "continuous", "continuous-clock", "timeout", "never")
#: Two hours before and after this, local days of 23 and 25 hours begin in Berlin.
SPRING, AUTUMN = 1_616_886_000_000, 1_635_634_800_000


class SortedValues(w.CollectList):
    """The values in order: an aggregate whose result shows every element and depends on no order."""

    commutative = True

    def get_result(self, accumulator):
        return sorted(accumulator)


def random_program(rng: random.Random) -> Program:
    """A definition and 5 to 40 steps, with times small enough that windows meet."""
    kind = rng.choice(KINDS)
    size = rng.randint(1, 12)
    slide = rng.randint(1, 14)
    offset = rng.randint(-5, 5) % (size if kind == "tumbling" else slide) if rng.random() < 0.5 else 0
    low = rng.choice((-20, 0, 1_000_000))
    steps: list[tuple] = []
    clock = low
    for number in range(rng.randint(5, 40)):
        choice = rng.random()
        if choice < 0.7:
            clock += rng.choice((0, 0, 1, 2, 5))
            steps.append(("row", rng.choice("ab"), clock - rng.choice((0, 0, 1, 3, 8, 20)), number))
        elif choice < 0.95:
            steps.append(("watermark", clock - rng.randint(0, 6)))
        else:
            steps.append(("crash",))
    lateness = rng.choice((0, 0, 1, 5, 20))
    return Program(kind, size, slide, offset, lateness, rng.choice(TRIGGERS), tuple(steps))


def any_program(rng: random.Random) -> Program:
    """As `random_program`, with every assigner, trigger and clock."""
    program = random_program(rng)
    kind = rng.choice(ALL_KINDS)
    trigger = rng.choice(("default", rng.choice(ALL_TRIGGERS)))
    event_time = kind not in ("global", "count", "sliding-count") and rng.random() < 0.6
    if kind in ("count", "sliding-count"):
        trigger = "default"
    elif (trigger == "timeout" and kind in ("session", "dynamic")) or (trigger == "continuous" and not event_time):
        trigger = "count"
    unit = 3_600_000 if kind == "calendar" else 1
    low = rng.choice((SPRING, AUTUMN)) if kind == "calendar" else 0
    base = min((step[2] for step in program.steps if step[0] == "row"), default=0)
    steps: list[tuple] = []
    clock = 0
    for step in program.steps:
        if rng.random() < 0.25:
            clock += rng.choice((0, 1, 2, 5)) * unit
            steps.append(("clock", low * (not event_time) + clock))
        if step[0] == "row":
            step = ("row", step[1], low + (step[2] - base) * unit, step[3])
        elif step[0] == "watermark":
            step = ("watermark", low + (step[1] - base) * unit)
        steps.append(step)
    lateness = program.lateness * unit if event_time else 0
    size = rng.randint(1, 12) if kind == "dynamic" else program.size
    slide = min(program.slide, size) if kind == "sliding-count" else program.slide
    offset = program.offset % (size if kind == "tumbling" else slide)
    return Program(kind, size, slide, offset, lateness, trigger, tuple(steps), event_time, unit)


def assigner_of(program: Program) -> w.WindowAssigner:
    """The assigner that a program names."""
    if program.kind == "global":
        return w.GlobalWindows.create()
    if program.kind in ("count", "sliding-count"):
        return w.CountWindows.of(program.size, program.slide if program.kind == "sliding-count" else None)
    if program.kind == "calendar":
        calendar = w.CalendarWindows if program.event_time else w.CalendarProcessingTimeWindows
        return calendar.days("Europe/Berlin")
    if program.kind == "dynamic":
        dynamic = w.EventTimeSessionWindows if program.event_time else w.ProcessingTimeSessionWindows
        return dynamic.with_dynamic_gap(lambda row: (1 + row[1] % program.size) * program.unit)
    name = {"session": "sessions"}.get(program.kind, program.kind) + "_by_clock" * (not program.event_time)
    slide = f" {program.slide}" if program.kind == "hopping" else ""
    offset = f" offset {program.offset}" if program.kind != "session" else ""
    return windows_of(f"{name} {program.size}{slide}{offset}")


def operator_of(program: Program, *, keeps: str = "packed") -> WindowOperator:
    """The operator of a program.

    Args:
        program: The program.
        keeps: ``packed`` where that is possible, or ``general``.
    """
    triggers: dict[str, w.Trigger | None] = {
        "default": None,
        "count": w.CountTrigger.of(2),
        "purging": w.PurgingTrigger.of(w.CountTrigger.of(2)),
        "continuous": w.ContinuousEventTimeTrigger.of(4 * program.unit),
        "continuous-clock": w.ContinuousProcessingTimeTrigger.of(4 * program.unit),
        "timeout": w.ProcessingTimeoutTrigger.of(w.CountTrigger.of(2), 5 * program.unit),
        "never": NeverTrigger(),
    }
    aggregate = SortedValues(lambda row: row[1])
    if keeps == "general":
        aggregate.accumulator_type = list[int]
    return window_rows(
        assigner=assigner_of(program),
        trigger=triggers[program.trigger],
        aggregate={"values": aggregate} if keeps == "packed" else {"values": aggregate, "more": w.Sum(lambda row: 0)},
        allowed_lateness_ms=program.lateness,
        late_tag="late",
    )


def check(program: Program, *, keeps: str = "packed", crash_always: bool = False) -> None:
    """Run a program and compare each step's outputs with the oracle's.

    Raises:
        AssertionError: They differ, or something is left in the end.
    """
    oracle = Oracle(program)
    with KeyedTestHarness(operator_of(program, keeps=keeps), key=lambda row: row[0]) as harness:
        times = [step[-2] if step[0] == "row" else step[-1] for step in program.steps if step[0] != "crash"]
        end = max(times, default=0) + 200 * program.unit
        for step in (*program.steps, ("watermark", end), ("clock", end)):
            if step[0] == "row":
                _, key, time, value = step
                oracle.row(key, time, value)
                harness.process((key, value), time)
            elif step[0] == "clock":
                oracle.move_clock(step[1])
                harness.advance_processing_time(step[1])
            elif step[0] == "watermark":
                oracle.advance(step[1])
                harness.advance_watermark(step[1])
            if crash_always or step[0] == "crash":
                harness.crash_and_recover()
            found = [
                (row.key, *bounds_of(row), tuple(row.values), timestamp) for row, timestamp in harness.take_output()
            ]
            late = [row[1] for row, _ in harness.take_side_output("late")]
            assert Multiset(found) == Multiset(oracle.outputs), (step, found, oracle.outputs)
            assert late == oracle.late, (step, late, oracle.late)
            oracle.outputs, oracle.late = [], []
        if program.kind not in ("global", "count", "sliding-count"):
            assert not oracle.panes
            assert harness.state_entries() == 0
            assert harness.pending_timers() == []


def bounds_of(row):
    """The window of an output; the global window has no bounds."""
    return getattr(row, "window_start", None), getattr(row, "window_end", None)


def main(number: int, seed: int) -> None:
    """Run random programs; say how to repeat the one that fails."""
    for index in range(number):
        rng = random.Random(seed + index)
        program = any_program(rng) if index % 2 else random_program(rng)
        keeps = rng.choice(("packed", "general"))
        try:
            check(program, keeps=keeps, crash_always=index % 10 == 0)
        except AssertionError:
            print(f"failed: python -m tests.windows.programs 1 {seed + index}\n{keeps}: {program}")
            raise
    print(f"{number} programs agree with the oracle (seed {seed})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000, int(sys.argv[2]) if len(sys.argv) > 2 else 0)

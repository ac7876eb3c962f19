"""The cost of the ready properties over a job of ten lines: ``python -m tests.benchmarks.properties``, half a minute.

Prints, for each property with 100 examples, the CPU-seconds (user and system) of a process of its own and of its
children, such as the other process of `assert_deterministic`, less those of the imports, and the seconds on the clock.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from keyed import bounded_out_of_orderness
from keyed.testing import (
    assert_batch_split_invariant,
    assert_deterministic,
    assert_matches,
    assert_recovery_invisible,
    assert_rescale_invisible,
    assert_runtimes_agree,
    assert_state_bounded,
    strategies,
)
from tests.benchmarks.meter import Meter, adopt_orphans
from tests.keyed.testing.test_right_functions import Minutes

MINUTE = 60_000
_EXAMPLES = 100


def model(records: list[Any]) -> Any:
    """Yield the counts that `Minutes` has to give."""
    ends = [(row.value["user"], row.timestamp // MINUTE * MINUTE + MINUTE) for row in records]
    for user, end in set(ends):
        yield user, end, ends.count((user, end))


_ROWS = strategies.rows("user string, amount bigint, time bigint", user=strategies.skewed("ann", "bob"))
_STREAM = strategies.streams(_ROWS, timestamp="time", gap=MINUTE, delay=5_000)

PROPERTIES: dict[str, Callable[..., str]] = {
    "assert_batch_split_invariant": lambda **options: assert_batch_split_invariant(Minutes(), _STREAM, **options),
    "assert_recovery_invisible": lambda **options: assert_recovery_invisible(Minutes(), _STREAM, **options),
    "assert_rescale_invisible": lambda **options: assert_rescale_invisible(Minutes(), _STREAM, **options),
    "assert_deterministic": lambda **options: assert_deterministic(Minutes(), _STREAM, **options),
    "assert_matches": lambda **options: assert_matches(Minutes(), model, _STREAM, **options),
    "assert_state_bounded": lambda **options: assert_state_bounded(
        Minutes(), _STREAM, silence=MINUTE + 5_000, **options
    ),
    "assert_runtimes_agree": lambda **options: assert_runtimes_agree(Minutes(), _STREAM, timestamp="time", **options),
}


def main() -> None:
    """Measure and print."""
    options = _parser().parse_args()
    if options.only:
        _measure(options.only)
        return
    print(f"{_EXAMPLES} examples of a job of ten lines")
    print(f"{'':30} {'CPU-s':>6} {'of children':>12} {'s':>6}")
    for name in PROPERTIES:
        command = [sys.executable, "-m", "tests.benchmarks.properties", "--only", name]
        measured = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
        cpu, children, wall = map(float, measured.split())
        print(f"{name:30} {cpu:6.2f} {children:12.2f} {wall:6.2f}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.properties", description=__doc__)
    parser.add_argument("--only", choices=list(PROPERTIES), help="one property, measured in this process")
    return parser


def _measure(name: str) -> None:
    """Run one property in this process, and print the CPU-seconds, those of the children, and the seconds."""
    adopt_orphans()
    started = time.monotonic()
    with Meter(os.getpid()) as meter:
        before = meter.read()
        PROPERTIES[name](key="user", watermark=bounded_out_of_orderness(5_000), examples=_EXAMPLES, seed=1)
        spent = meter.read() - before
    print(spent.total, spent.workers, time.monotonic() - started)


if __name__ == "__main__":
    main()

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
from typing import Any

from keyed import bounded_out_of_orderness, testing
from keyed.testing import strategies
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

#: The arguments of each property beside the function.
PROPERTIES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "assert_batch_split_invariant": ((_STREAM,), {}),
    "assert_recovery_invisible": ((_STREAM,), {}),
    "assert_rescale_invisible": ((_STREAM,), {}),
    "assert_deterministic": ((_STREAM,), {}),
    "assert_matches": ((model, _STREAM), {}),
    "assert_state_bounded": ((_STREAM,), {"silence": MINUTE + 5_000}),
    "assert_runtimes_agree": ((_STREAM,), {"timestamp": "time"}),
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
        arguments, more = PROPERTIES[name]
        options: Any = {"key": "user", "watermark": bounded_out_of_orderness(5_000), "examples": _EXAMPLES, "seed": 1}
        getattr(testing, name)(Minutes(), *arguments, **more, **options)
        spent = meter.read() - before
    print(spent.total, spent.workers, time.monotonic() - started)


if __name__ == "__main__":
    main()

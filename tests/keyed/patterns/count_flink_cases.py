# ruff: noqa: T201 - it prints
"""How many tests of Flink CEP hold: ``python -m tests.keyed.patterns.count_flink_cases``.

It runs the transcribed tests, and lists those that do not apply or differ, with the reasons.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.keyed.patterns import test_flink_cases, test_flink_streams

_FILES = ("test_flink_cases.py", "test_flink_streams.py", "test_flink_times.py")


def main() -> int:
    """Print a table of Flink's classes and the reasons; return the exit code of the tests."""
    code = pytest.main(["-q", "-p", "no:cacheprovider", *(str(Path(__file__).with_name(name)) for name in _FILES)])
    others = test_flink_streams.DATA["not applicable"]
    differ = {name.partition("[")[0] for name in test_flink_cases.DIFFERENT}
    out, differing = (Counter(name.partition(".")[0] for name in names) for names in (others, differ))
    print("\n| class | tests | apply | hold |\n|---|--:|--:|--:|")
    total = Counter(tests=0)
    for name, tests in test_flink_streams.SUITES.items():
        apply = tests - out[name]
        total.update(tests=tests, apply=apply, hold=apply - differing[name])
        print(f"| {name} | {tests} | {apply} | {apply - differing[name]} |")
    print(f"| all | {total['tests']} | {total['apply']} | {total['hold']} |\n")
    for name, reason in others.items():
        print(f"{name} does not apply: {reason}")
    for name in sorted(differ):
        print(f"{name} differs in one of its parameters: the time of times(n, within), see test_flink_cases.py")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())

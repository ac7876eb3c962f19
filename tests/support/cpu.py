"""The cost of tests: a pytest plugin that prints the CPU-seconds of every test file.

``make test ARGS="-p tests.support.cpu"``. It counts the process that runs a test and all its descendants: Spark's JVM
and its Python workers, brokers, programs. Unlike durations, these figures mean something on a busy machine, too.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator

import pytest

from tests.benchmarks.meter import Meter

_COST = "cpu_seconds"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Record the cost of a test, including the fixtures that it is the first to use."""
    item.stash[_BEFORE] = _spent()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the cost of each phase to its report, which xdist sends from the worker."""
    report = yield
    now = _spent()
    report.user_properties = [*report.user_properties, (_COST, now - item.stash[_BEFORE])]
    item.stash[_BEFORE] = now
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the files by cost, and the most expensive tests."""
    files: dict[str, float] = defaultdict(float)
    tests: dict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, seconds in getattr(report, "user_properties", ()):
                if name == _COST:
                    files[report.nodeid.partition("::")[0]] += seconds
                    tests[f"{report.nodeid} ({report.when})"] += seconds
    terminalreporter.section(f"CPU-seconds: {sum(files.values()):.0f}")
    for costs, shown in ((files, len(files)), (tests, 250)):
        for name, seconds in sorted(costs.items(), key=lambda each: -each[1])[:shown]:
            terminalreporter.write_line(f"{seconds:8.2f} {name}")
        terminalreporter.write_line("")


def _spent() -> float:
    """Return the CPU-seconds of this process and its descendants, running and ended."""
    return _METER.read().total


_BEFORE = pytest.StashKey[float]()
_METER = Meter(os.getpid())
_METER.start()

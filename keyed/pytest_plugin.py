"""The pytest plugin of keyed, and the registration of its types with Hypothesis.

Pytest loads it at every start: it imports the test kit only when a test uses a fixture.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from keyed.testing import KeyedTestHarness


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("keyed", "keyed functions")
    group.addoption("--keyed-seed", type=int, help="seed of the examples of properties")
    group.addoption("--keyed-update", action="store_true", help="rewrite golden outputs, to be reviewed")


def pytest_configure(config: pytest.Config) -> None:
    """Pass the seed to the properties, without importing them."""
    seed = config.getoption("--keyed-seed")
    if seed is not None:
        os.environ["KEYED_SEED"] = str(seed)


@pytest.fixture
def keyed_harness() -> Iterator[Callable[..., KeyedTestHarness]]:
    """Create harnesses, like `keyed.testing.KeyedTestHarness`, that are closed after the test."""
    from keyed.testing import KeyedTestHarness

    with ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(KeyedTestHarness(*arguments, **options))


@pytest.fixture(scope="session")
def keyed_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Start the one Spark session of the run, local, in two threads."""
    import keyed

    folder = tmp_path_factory.mktemp("keyed-spark")
    config = {
        "spark.ui.enabled": "false",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    session = keyed.spark_session("keyed-tests", parallelism=2, config=config)
    yield session
    session.stop()


@pytest.fixture
def assert_golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Compare outputs with those in a file beside the test, one per line; ``--keyed-update`` rewrites the file."""
    paths: set[Path] = set()

    def check(outputs: Any, name: str | None = None) -> None:
        __tracebackhide__ = True
        lines = sorted(repr(output).replace("\n", "\\n") for output in outputs)
        if any(" at 0x" in line for line in lines):
            pytest.fail(f"outputs have an address in their repr, which changes each time: {lines[0]}")
        # Tests of the same name in other files and classes of the folder have files of their own.
        default = ".".join([Path(request.path).stem, *request.node.nodeid.split("::")[1:]])
        path = Path(request.path).parent / "golden" / f"{re.sub(r'[^ -~]|[/<>:|?*]', '_', name or default)}.txt"
        if path in paths:
            pytest.fail(f"{path} is used by another assert_golden of this test: give each a name=")
        paths.add(path)
        if request.config.getoption("--keyed-update"):
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            return
        if not path.exists():
            pytest.fail(f"{path} does not exist yet: run with --keyed-update, and review it")
        assert lines == path.read_text(encoding="utf-8").split("\n")[:-1], (
            f"differs from {path}; --keyed-update rewrites it"
        )

    return check


def register_strategies() -> None:
    """Register the strategies of keyed's types: the entry point that Hypothesis calls.

    The strategies' module registers them when it is imported, which may be in progress: then it has imported
    Hypothesis.
    """
    if "keyed.testing" in sys.modules:
        import keyed.testing.strategies  # noqa: F401 - it registers them

"""Shared by all tests: hypothesis profiles, the Spark session, the Kafka broker, and the marks of tests with them."""

from __future__ import annotations

import gc
import logging
import os
import random
import shutil
import subprocess
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest
from hypothesis import HealthCheck, settings

from tests.support.classes import jvm_options
from tests.support.jars import CONNECTOR, LAKEHOUSE, NoJars, fetch
from tests.support.kafka import ADDRESS, Broker, NoBroker
from tests.support.lake import lake_settings
from tests.support.postgres import PASSWORD, binaries, postgres_server
from tests.support.reruns import pytest_runtest_protocol  # noqa: F401 - a hook

os.environ.setdefault("SPARK_SUBMIT_OPTS", jvm_options())

# Imports and collection make hardly any garbage: the collector runs again when they are done.
gc.disable()

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

# On a loaded machine of two cores an example's time says nothing: no deadline. Failures print what repeats them.
settings.register_profile("default", deadline=None, print_blob=True, max_examples=25, stateful_step_count=30)
settings.register_profile(
    "ci",
    deadline=None,
    print_blob=True,
    max_examples=25,
    stateful_step_count=30,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "thorough", deadline=None, print_blob=True, max_examples=2_000, stateful_step_count=100, database=None
)

PROFILE = os.environ.get("KEYED_HYPOTHESIS_PROFILE", "default")
settings.load_profile(PROFILE)


#: Minutes after which no slow test begins, of a run of a part of them; 0 for all of them.
SLOW_MINUTES = float(os.environ.get("KEYED_SLOW_MINUTES", "0"))
#: Text that chooses the order of their files, so that each run has another part.
SLOW_ORDER = os.environ.get("KEYED_SLOW_ORDER", "")
_BEGAN = time.monotonic()


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose a seed where no example database remembers the failures: hypothesis itself would not tell its own."""
    if PROFILE != "default" and config.getoption("--hypothesis-seed") is None:
        config.option.hypothesis_seed = str(random.getrandbits(32))


def pytest_report_header(config: pytest.Config) -> str:
    """Say how the examples are chosen."""
    return f"hypothesis examples: KEYED_HYPOTHESIS_PROFILE={PROFILE}{_seed(config)}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say after a failure how to repeat the run."""
    if _seed(config) and terminalreporter.stats.get("failed"):
        terminalreporter.write_line(f"repeat with KEYED_HYPOTHESIS_PROFILE={PROFILE} and pytest{_seed(config)}")


def _seed(config: pytest.Config) -> str:
    seed = config.getoption("--hypothesis-seed")
    return "" if seed is None else f" --hypothesis-seed={seed}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use the Spark session or the broker, so that `-m "not spark"` leaves them out.

    A query on Spark costs some ten seconds: those tests are slow unless they are in the smoke set.
    Of several workers (`pytest -n 2 --dist loadgroup`) one runs all of Kafka, and one the smoke set on Spark: a second
    session and its warming up would cost more than they save. Of the slow ones each may take the next file, and those
    with Kafka, which wait for most of their time, are on two workers with a broker each.
    """
    for item in items:
        if item.get_closest_marker("long") is not None:
            item.add_marker("slow")
        fixtures = getattr(item, "fixturenames", ())
        is_smoke = item.get_closest_marker("smoke") is not None
        if {"spark", "spark_lake"} & set(fixtures):
            item.add_marker("spark")
            if not is_smoke:
                item.add_marker("slow")
        if {"kafka", "broker", "spark_kafka"} & set(fixtures):
            item.add_marker("kafka")
            half = zlib.crc32(item.path.name.encode()) % 2 if item.get_closest_marker("slow") else ""
            item.add_marker(pytest.mark.xdist_group(f"kafka{half}"))
        elif {"spark", "spark_lake"} & set(fixtures):
            item.add_marker(pytest.mark.xdist_group("smoke" if is_smoke else item.path.stem))
    if SLOW_MINUTES:
        items.sort(key=lambda item: zlib.crc32(f"{SLOW_ORDER} {item.path.name}".encode()))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin no slow test after the minutes of a part."""
    if SLOW_MINUTES and item.get_closest_marker("slow") and time.monotonic() - _BEGAN > 60 * SLOW_MINUTES:
        pytest.skip(
            f"after KEYED_SLOW_MINUTES={SLOW_MINUTES:g}: a part of the slow tests runs, and others the next time"
        )


def pytest_collection_finish() -> None:
    """Exempt all that was imported from garbage collection, which would look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one Spark session of a worker, set up by keyed's own helper, in two threads."""
    from keyed.runtimes.spark.session.spark_session import spark_session

    folder = tmp_path_factory.mktemp("spark")
    config = {
        "spark.ui.enabled": "false",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    # Its jars are fixed when it starts.
    wanted = {name for item in request.session.items for name in getattr(item, "fixturenames", ())}
    if "spark_lake" in wanted and LAKEHOUSE:
        try:
            config |= lake_settings(folder)
        except NoJars:
            _log.warning("there are no Delta and Iceberg for Spark", exc_info=True)
    if "spark_kafka" in wanted:
        try:
            jars = [config["spark.jars"]] if "spark.jars" in config else []
            config["spark.jars"] = ",".join([*jars, *map(str, fetch(CONNECTOR))])
        except NoJars:
            _log.warning("there is no Kafka connector for Spark", exc_info=True)
    session = spark_session(app_name="keyed-tests", parallelism=2, config=config)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def spark_kafka(spark: SparkSession) -> SparkSession:
    """The Spark session, with Spark's own Kafka connector."""
    if "spark-sql-kafka" not in (spark.conf.get("spark.jars", "") or ""):
        _without("Spark's Kafka connector is not to be had")
    return spark


@pytest.fixture(scope="session")
def spark_lake(request: pytest.FixtureRequest) -> SparkSession:
    """The Spark session, with Delta and Iceberg, where they have libraries for this Spark."""
    if not LAKEHOUSE:
        pytest.skip("Delta and Iceberg have no libraries for this Spark: make lakehouse")
    session: SparkSession = request.getfixturevalue("spark")
    if "delta-spark" not in (session.conf.get("spark.jars", "") or ""):
        _without("the libraries of Delta and Iceberg are not to be had")
    return session


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The one Kafka broker of our own of the test run, which a test may kill and start again."""
    own = Broker(tmp_path_factory.mktemp("kafka"))
    try:
        own.start()
    except NoBroker as error:
        _without(f"there is no Kafka broker: {error}")
    yield own
    own.stop()


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a Kafka broker: the one that an environment variable names, or our own."""
    named = os.environ.get(ADDRESS)
    if named is None:
        yield request.getfixturevalue("broker").bootstrap
        return
    from tests.keyed.changelog.kafka.topics import delete_made

    yield named
    delete_made(named)


def _without(reason: str) -> NoReturn:
    """Skip what lacks something, except in CI: what is skipped there is shown nowhere."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The connection to a PostgreSQL server of this machine."""
    with postgres_server(binaries() or _without("there is no PostgreSQL: apt-get install postgresql")) as conninfo:
        yield f"{conninfo} password={PASSWORD}"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The machine's Chromium, without a window."""
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        _without("there is no Chromium: apt-get install chromium")
    with sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page in the browser, whose errors are those of the test."""
    problems: list[str] = []
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    context.set_default_timeout(300_000)
    opened = context.new_page()
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    yield opened
    context.close()
    # A browser tells of each answer that is an error, or that does not come, by itself.
    assert [problem for problem in problems if not problem.startswith("Failed to load resource")] == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "none", str(folder)]
    mount = shutil.which("mount")
    if mount is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system needs root")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)

"""Checks that a Spark session has what keyed needs: settings, packages in supported versions, and running workers."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from keyed.base.extras import extra
from keyed.errors import SessionError
from keyed.runtimes.spark.query.failures import name_log, translated

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
CHANGELOG = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"

#: Version 2 gives each file of a state store a name of its own, and the commit of a batch names those that count. With
#: version 1 an attempt that Spark has given up, on a lost executor, may overwrite the file of the one that counts.
FORMAT = "spark.sql.streaming.stateStore.checkpointFormatVersion"
_FORMAT = "2"

_Version = tuple[int, ...]
#: The first Spark that reads both versions: 4.0 does not read the state of version 2, nor 4.1 the commits of version 1.
_FORMAT_SINCE: _Version = (4, 3)
#: Package → supported versions: the first one, and the first unsupported one after it.
_SERVE: dict[str, tuple[_Version, _Version | None]] = {
    "pyspark": ((4, 0), None),
    "protobuf": ((5, 28, 3), None),
    "pandas": ((2, 2), (3,)),
    "pyarrow": ((18,), None),
}
#: By version of Spark, from which it applies: the oldest protobuf that supports the messages between JVM and worker.
#: With an older one, the workers of transformWithState end without a message.
_PROTOBUF: dict[_Version, _Version] = {(4, 1): (6, 33, 0), (4, 2): (6, 33, 5)}

#: Sessions whose workers were checked.
_trusted: WeakSet[SparkSession] = WeakSet()


def check_versions() -> None:
    """Check the packages that this program loads.

    Raises:
        ExtraNotInstalled: There is no Spark.
        SessionError: Some are missing, too old or too new; the message names all of them.
    """
    with extra("spark", "a query on Spark"):
        versions = _installed()
    wrong = _wrong_versions(versions)
    if wrong and (client := _databricks()):
        wrong.append(
            f"databricks-connect {client} brings this pyspark: instead of pyspark, install a release for Spark 4, from "
            "databricks-connect 17 on"
        )
    _refuse("this program lacks packages that keyed needs for Spark", wrong)


def check_session(session: SparkSession) -> None:
    """Check the settings of a session and, once, the packages of its Python workers.

    Raises:
        SessionError: A setting or package is wrong; the message names all of them, with the remedy.
    """
    wrong = list(_wrong_settings(session))
    if session not in _trusted:
        wrong += _wrong_workers(session)
    _refuse("the Spark session does not meet keyed's requirements", wrong)
    trust_workers(session)


def checkpoint_settings(session: SparkSession) -> dict[str, str]:
    """Return the settings of new checkpoints, with which those of either version are read."""
    return {FORMAT: _FORMAT} if _numbers(session.version) >= _FORMAT_SINCE else {}


def trust_workers(session: SparkSession) -> None:
    """Skip the check of a session's workers: they run the Python of this program, with its packages."""
    _trusted.add(session)


def is_remote(session: Any) -> bool:
    """Return true if a session is one of Spark Connect."""
    return any(cls.__module__.startswith("pyspark.sql.connect") for cls in type(session).__mro__)


def _refuse(what: str, wrong: Iterable[str]) -> None:
    problems = "".join(f"\n- {each}" for each in wrong)
    if problems:
        error = SessionError(f"{what}:{problems}")
        name_log(error)
        raise error


def _wrong_settings(session: SparkSession) -> Iterator[str]:
    for setting, part, value, reason in (
        (PROVIDER, "rocksdb", ROCKSDB, "transformWithState works only with the RocksDB state store"),
        (CHANGELOG, "true", "true", "every commit would upload a whole snapshot of the state"),
    ):
        now = session.conf.get(setting, "") or ""
        if part not in now.lower():
            yield (
                f"{setting} is {now!r}: {reason}; create the session with keyed.spark_session(), or call "
                f"spark.conf.set({setting!r}, {value!r}) before the query"
            )


def _wrong_workers(session: SparkSession) -> list[str]:
    """Run a worker, and return the problems of its packages."""
    remedy = (
        f"set PYSPARK_PYTHON={sys.executable} in the environment before the session is created (on a cluster, a Python "
        "with the packages there), or create the session with keyed.spark_session()"
    )
    # Over Spark Connect the sources of keyed are shipped.
    ask = _asking(for_keyed=not is_remote(session))
    try:
        rows = session.range(0, 1, 1, 1).mapInArrow(ask, "name string, version string").collect()
    except Exception as error:  # noqa: BLE001 - whatever keeps a worker from running is told
        return [f"{translated(error, 'a Python worker')}\n  {remedy}"]
    versions = {row["name"]: row["version"] for row in rows}
    wrong = _wrong_versions(versions)
    if "keyed" in versions:
        wrong.insert(0, f"keyed cannot be imported ({versions['keyed']})")
    return [f"in the Python of the workers, {versions['python']}, {each}; {remedy}" for each in wrong]


def _wrong_versions(versions: Mapping[str, str]) -> list[str]:
    serve = dict(_SERVE)
    spark = _numbers(versions["pyspark"])
    for since, least in _PROTOBUF.items():
        if spark >= since:
            serve["protobuf"] = (least, None)
    wrong = []
    for package, (least, before) in serve.items():
        version = versions[package]
        requirement = f"{package}>={_dotted(least)}" + (f",<{_dotted(before)}" if before else "")
        if not version:
            wrong.append(f"{package} is not installed: pip install '{requirement}'")
        elif _numbers(version) < least or (before is not None and _numbers(version) >= before):
            beside = f" (Spark is {versions['pyspark']})" if package == "protobuf" else ""
            wrong.append(f"{package} is {version} and has to be {requirement}{beside}: pip install '{requirement}'")
    return wrong


def _databricks() -> str:
    """Return the version of Databricks' client, which brings its own pyspark; empty if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("databricks-connect")
    except PackageNotFoundError:
        return ""


def _dotted(version: _Version) -> str:
    return ".".join(map(str, version))


def _numbers(text: str) -> _Version:
    """Return the leading numbers of a version: ``4.3.0.dev1`` gives (4, 3, 0)."""
    numbers = []
    for part in text.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


# Code that also runs in workers without keyed -------------------------------------------------------------------


def _installed() -> dict[str, str]:
    """Return the version of each package here; empty if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    import pyspark

    versions = {"pyspark": pyspark.__version__}
    for package in ("protobuf", "pandas", "pyarrow"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = ""
    return versions


def _asking(*, for_keyed: bool) -> Any:
    """Return a function that lists a worker's packages, which is pickled by value."""
    installed = _installed

    def ask(batches: Iterator[Any]) -> Iterator[Any]:
        import sys

        import pyarrow as pa

        versions = {"python": sys.executable, **installed()}
        if for_keyed:
            try:
                import keyed.runtimes.spark.worker.processor  # noqa: F401
            except ImportError as error:
                versions["keyed"] = str(error)
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"name": list(versions), "version": list(versions.values())})

    for function in (ask, installed):
        function.__module__ = "__main__"
    return ask

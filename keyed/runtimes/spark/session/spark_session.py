"""The Spark session: required settings are set, unless the user has set them, and checked.

setting                                                             why
spark.sql.streaming.stateStore.providerClass                        transformWithState works with RocksDB only
...rocksdb.changelogCheckpointing.enabled                           commits cost what changed, not what is there
...stateStore.checkpointFormatVersion                               a lost executor does not overwrite state
spark.sql.execution.arrow.maxRecordsPerBatch                        larger Arrow batches cost less per row
spark.sql.execution.arrow.maxBytesPerBatch                          no limit: Spark adds up the bytes at every row
spark.sql.parquet.outputTimestampType                               other readers know this form of timestamps
spark.sql.shuffle.partitions                                        the number of key groups
spark.driver.extraJavaOptions -Xss8m                                the plan of a Python foreachBatch recurses deeply
spark.driver.host, SPARK_LOCAL_IP                                   loopback, on a machine by itself
PYSPARK_PYTHON, PYSPARK_DRIVER_PYTHON, PYTHONPATH                   workers run this Python and find what it imports
JAVA_HOME                                                           a Java that Spark runs on

Checks are that it has what keyed needs: settings, packages in supported versions, and running workers.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from keyed.base.extras import extra
from keyed.errors import SessionError
from keyed.runtimes.spark.query.failures import is_gone, name_log, to_file, translated
from keyed.runtimes.spark.session.java import require_java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_log = logging.getLogger(__name__)
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


_PARTITIONS = "spark.sql.shuffle.partitions"
_Holder = tuple[int, Mapping[str, str]]
#: By session: the threads that have set settings, in order, and the user's values before the first of them.
_held: WeakKeyDictionary[Any, list[_Holder]] = WeakKeyDictionary()
_originals: WeakKeyDictionary[Any, dict[str, str]] = WeakKeyDictionary()
_changed = threading.Condition()
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"

#: Settings of any session, which can also be set in a running one.
_SQL = {
    PROVIDER: ROCKSDB,
    CHANGELOG: "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
#: Settings of a JVM that runs on this machine alone.
_LOCAL = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def spark_session(
    app_name: str = "keyed",
    *,
    master: str | None = None,
    parallelism: int | None = None,
    config: Mapping[str, str] | None = None,
    quiet: bool = True,
) -> SparkSession:
    """Start a Spark session with the settings that keyed needs, or complete the active session.

    Args:
        app_name: Name of the application.
        master: ``local[2]``, ``spark://host:7077``, or ``sc://host:15002`` for Spark Connect; by default all
            processors of this machine.
        parallelism: Default number of key groups (Spark's shuffle partitions); by default, on this machine alone, its
            threads.
        config: Spark settings, which override those of keyed.
        quiet: Spark and Python workers that this call starts, ``print`` included, write to a log file, which errors
            name, not to standard error.

    Raises:
        SessionError: A package or setting is unsuitable, or there is no Java 17 or newer.
    """
    check_versions()
    from pyspark.sql import SparkSession

    settings_by_name = dict(config or {})
    if parallelism is not None:
        settings_by_name[_PARTITIONS] = str(parallelism)
    active = SparkSession.getActiveSession()
    if active is not None:
        _complete(active, settings_by_name)
        check_session(active)
        return active
    remote = master if master is not None and master.startswith("sc://") else os.environ.get("SPARK_REMOTE")
    builder: Any = SparkSession.builder
    builder = builder.appName(app_name)
    if remote is not None:
        builder = builder.remote(remote)
        session: SparkSession = builder.getOrCreate()
        _complete(session, settings_by_name)
    else:
        master = master or settings_by_name.get("spark.master") or os.environ.get("MASTER") or "local[*]"
        settings = _jvm_settings(master, settings_by_name)
        _prepare_environment(master)
        builder = builder.master(master)
        for name, value in settings.items():
            builder = builder.config(name, value)
        with to_file() if quiet else nullcontext():
            session = builder.getOrCreate()
        session.sparkContext.setLogLevel(settings_by_name.get("spark.log.level", "ERROR"))
        _complete_format(session, settings_by_name)
        if master.startswith("local") and _PARTITIONS not in settings:
            session.conf.set(_PARTITIONS, str(session.sparkContext.defaultParallelism))
        if master.startswith("local") and os.environ["PYSPARK_PYTHON"] == sys.executable:
            trust_workers(session)
    check_session(session)
    return session


def is_here(session: SparkSession) -> bool:
    """Return true if Spark runs on this machine alone, on its file system."""
    master = session.conf.get("spark.master", "") or ""
    return master.startswith("local") and shares_files(session)


def shares_files(session: SparkSession) -> bool:
    """Return true if paths without a scheme are on a file system that Spark's driver and tasks share."""
    return default_files(session).startswith("file:")


def default_files(session: SparkSession) -> str:
    """Return the URI of the file system to which paths without a scheme belong."""
    if is_remote(session):
        return session.conf.get("spark.hadoop.fs.defaultFS", "file:///") or ""
    # Platforms set it in Hadoop's own files, which Spark's settings do not show.
    state: Any = session._jsparkSession.sessionState()  # noqa: SLF001 - PySpark has no public name for Hadoop's settings
    return str(state.newHadoopConf().get("fs.defaultFS", "file:///"))


@contextmanager
def settings(session: SparkSession, config: Mapping[str, str]) -> Iterator[None]:
    """Set a session's settings, and restore them afterwards.

    They belong to the session, not to a thread: a thread waits while another one has set other values. If the values
    are equal, the last of the threads restores them.
    """
    mine = (threading.get_ident(), config)
    with _changed:
        held = _held.setdefault(session, [])
        _changed.wait_for(lambda: not any(_differ(mine, other) for other in held))
        originals = _originals.setdefault(session, {})
        for name, value in config.items():
            now = session.conf.get(name)
            if not any(name in values for _, values in held):
                originals[name] = now or ""
            if now != value:
                session.conf.set(name, value)
        held.append(mine)
    try:
        yield
    finally:
        with _changed:
            held.remove(mine)
            _changed.notify_all()
            for name, value in config.items():
                others = [values[name] for _, values in held if name in values]
                after = others[-1] if others else originals.pop(name)
                if after != value:
                    try:
                        session.conf.set(name, after)
                    except Exception as error:
                        # Without its JVM a session has no settings, and the error of the block is the one to be seen.
                        if not is_gone(error):
                            raise


def _differ(mine: _Holder, other: _Holder) -> bool:
    """Return true if another thread has set a setting to another value."""
    return mine[0] != other[0] and any(other[1].get(name, value) != value for name, value in mine[1].items())


def _complete(session: SparkSession, config: Mapping[str, str]) -> None:
    """Set missing and requested settings in a running session."""
    from pyspark.errors import PySparkException

    known: Mapping[str, Any] = session.conf.getAll
    for name, value in {**{n: v for n, v in _SQL.items() if n not in known}, **config}.items():
        try:
            session.conf.set(name, value)
        except PySparkException as error:
            # Settings of the JVM are fixed when it starts.
            _log.warning("the running Spark session does not take %s=%s: %s", name, value, error)
    _complete_format(session, config)


def _complete_format(session: SparkSession, config: Mapping[str, str]) -> None:
    """Set the version of checkpoints, which depends on that of Spark; an internal setting is not among all of them."""
    for name, value in checkpoint_settings(session).items():
        if name not in config:
            session.conf.set(name, value)


def _jvm_settings(master: str, config: Mapping[str, str]) -> dict[str, str]:
    settings = {**_SQL, **(_LOCAL if master.startswith("local") else {}), **config}
    options = settings.get(_JAVA_OPTIONS, "")
    if "-Xss" not in options:
        settings[_JAVA_OPTIONS] = f"{options} -Xss8m".strip()
    return settings


def _prepare_environment(master: str) -> None:
    """Set the environment of the JVM and its Python workers, except variables that the user has set."""
    os.environ["JAVA_HOME"] = require_java_home()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", os.environ["PYSPARK_PYTHON"])
    if not master.startswith("local"):
        return
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Workers then find every function that this process can import.
    paths = [*os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    paths += [str(Path(path).absolute()) for path in sys.path if not path.endswith(".zip") and _holds_modules(path)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in paths if path))


def _holds_modules(path: str) -> bool:
    """Return true if a folder of ``sys.path`` is the user's, and not one that every such Python has."""
    folder = Path(path).absolute()
    own = (Path(sys.prefix).absolute(), Path(sys.base_prefix).absolute())
    return folder.is_dir() and not any(folder.is_relative_to(prefix / "lib") for prefix in own)

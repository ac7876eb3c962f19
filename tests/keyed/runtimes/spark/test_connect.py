"""Spark Connect: the same chains against a server that does not have keyed."""

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import keyed
from keyed import collect_sink
from keyed.changelog import DirectoryChangelog
from keyed.changelog.model import all_positions
from keyed.errors import SinkError, UserFunctionError
from keyed.job.results import Restored
from keyed.runtimes.spark.session.java import require_java_home
from keyed.runtimes.spark.session.spark_session import is_remote
from tests.keyed.runtimes.spark.functions import (
    EVERY,
    POISON,
    best,
    branches,
    count,
    files_source,
    parquet_rows,
    write_file,
)
from tests.support.features import FEATURES, SINKS, local, table_of
from tests.support.features import ROWS as ROWS_OF_FEATURES
from tests.support.features import SCHEMA as SCHEMA_OF_FEATURES
from tests.support.limits import free_port
from tests.support.waiting import until

pytestmark = [pytest.mark.long, pytest.mark.spark]
ROWS = [("a", 1, 1), ("b", 2, 95), ("a", 3, 2)]


@pytest.fixture(scope="module")
def remote(tmp_path_factory):
    """A session with a Connect server in a process of its own, which finds neither keyed nor these tests."""
    grpc = pytest.importorskip("grpc", reason="needs pyspark[connect]")
    import pyspark

    folder = tmp_path_factory.mktemp("connect")
    (folder / "data").mkdir()
    home = Path(pyspark.__file__).parent
    port = free_port()
    before = set(os.environ)
    # Where grpc stands beside pyspark the server finds it; elsewhere it is told.
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(Path(grpc.__file__).parents[1]),
        "JAVA_HOME": require_java_home(),
    }
    server_class = "org.apache.spark.sql.connect.service.SparkConnectServer"
    conf = {
        "spark.connect.grpc.binding.port": port,
        "spark.ui.enabled": "false",
        "spark.local.dir": folder,
        # A file system that the tests do not reach.
        "spark.hadoop.fs.viewfs.mounttable.connect.link./data": (folder / "data").as_uri(),
        "spark.tests.mounted": "viewfs://connect/data",
        "spark.driver.extraJavaOptions": "-Xss8m",
    }
    options = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    command = [
        str(home / "bin" / "spark-submit"),
        "--class",
        server_class,
        "--master",
        "local[2]",
        *options,
        "spark-internal",
    ]
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        until(lambda: listens(port) or server.poll() is not None)
        session = keyed.spark_session(master=f"sc://127.0.0.1:{port}", parallelism=2)
        try:
            yield session
        finally:
            session.stop()
            # pyspark notes in the environment that this process uses Connect, and other sessions would go by it.
            for name in set(os.environ) - before:
                del os.environ[name]
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(300)


def listens(port):
    """Return whether a server listens at a port."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def test_a_streaming_query_with_two_stages_runs_and_drains(remote, tmp_path):
    write_file(tmp_path / "in", 0, ROWS)
    write_file(tmp_path / "in", 1, [("c", 4, 99)])
    windows, ranked = best(files_source(remote, tmp_path / "in"))
    seen: list[keyed.Progress] = []
    result = keyed.run(
        ranked.to(collect_sink()),
        windows.to(tmp_path / "windows"),
        windows.side_output(EVERY).to(tmp_path / "every"),
        checkpoint=tmp_path / "checkpoint",
        drain=True,
        on_progress=seen.append,
    )
    assert result.values == [(0, "a", 2)]
    assert [progress.rows for progress in seen] == [3, 1, 0]
    assert result.metrics["windows"]["rows_in"] == 4
    assert parquet_rows(tmp_path / "windows") == [("a", 0, 2), ("b", 0, 1), ("c", 0, 1)]
    assert parquet_rows(tmp_path / "every") == [("a", 2), ("b", 1), ("c", 1)]


def test_an_error_of_the_function_comes_back_typed(remote, tmp_path):
    write_file(tmp_path / "in", 0, [("a", 1, POISON)])
    with pytest.raises(UserFunctionError, match="poison"):
        count(files_source(remote, tmp_path / "in")).run(tmp_path / "out", checkpoint=tmp_path / "checkpoint")


@pytest.mark.parametrize("place", ["shared", "server"])
@pytest.mark.parametrize(("interval", "segments"), [(0, 3), pytest.param(3_600_000, 2, marks=pytest.mark.slow)])
def test_changelogs_are_exported_with_positions_and_restored(remote, tmp_path, place, interval, segments):
    """The checkpoint is in a folder that the program shares with the server, or in one that only the server reaches."""
    changelog = DirectoryChangelog(tmp_path / "log", auto_compact=False, export_interval=interval)
    checkpoint = f"{remote.conf.get('spark.tests.mounted')}/{tmp_path.name}"
    if place == "shared":
        checkpoint = str(tmp_path / "checkpoint")
    write_file(tmp_path / "in", 0, ROWS)
    for number in (1, 2):
        write_file(tmp_path / "in", number, [("c", 3 + number, 99)])
    source = files_source(remote, tmp_path / "in")
    result = count(source, changelog=changelog).run(tmp_path / "out", checkpoint=checkpoint)
    assert result.metrics["count"]["rows_in"] == 5
    assert len([*Path(changelog.path).glob("groups/*/*.segment")]) == 2 * segments
    # That of the last batch has those that went before it.
    batches = [number for number, _ in all_positions(changelog)]
    assert batches == sorted(batches)
    assert batches[-1] == 3
    found = keyed.recovery.verify(checkpoint, changelog, session=remote)
    assert [(each.last, each.problem, each.note) for each in found] == [(2, "", "")] * 2
    assert sum(each.entries for each in found) == 3

    write_file(tmp_path / "in", 3, [("a", 9, 4)])
    new = DirectoryChangelog(tmp_path / "new")
    restored = count(source, parallelism=3, changelog=new, restore_from=changelog)
    with pytest.raises(keyed.errors.DefinitionError, match="this program cannot write to the checkpoint viewfs:"):
        restored.run(tmp_path / "out", checkpoint=f"{remote.conf.get('spark.tests.mounted')}/{tmp_path.name}-2")
    # The output goes on in the folder of the query that it was restored from: each row is there once.
    result = restored.run(tmp_path / "out", checkpoint=tmp_path / "other")
    assert result.restored == Restored(2, with_position=True)
    wanted = [("a", 1, 1), ("a", 2, 3), ("a", 3, 7), ("b", 1, 95), ("c", 1, 99), ("c", 2, 198)]
    assert parquet_rows(tmp_path / "out") == wanted
    assert [each.problem for each in keyed.recovery.verify(new)] == [""] * 3


def has_positions(changelog, count):
    return len([*changelog.positions()]) >= count


def has_commits(changelog, sequence):
    """Whether one of two key groups has a commit."""
    commits = [changelog.reader(group).last() for group in range(2)]
    return any(commit is not None and commit.sequence >= sequence for commit in commits)


def test_a_started_query_logs_positions_while_it_runs(remote, tmp_path):
    changelog = DirectoryChangelog(tmp_path / "log", auto_compact=False)
    counted = count(files_source(remote, tmp_path / "in"), changelog=changelog)
    query = counted.start(tmp_path / "out", checkpoint=tmp_path / "checkpoint", trigger="100 milliseconds")
    try:
        for number in range(3):
            write_file(tmp_path / "in", number, [("c", 3 + number, 99)])
            until(partial(has_positions, changelog, number + 1))
            # The entries of the batch are published, too, without a further batch.
            until(partial(has_commits, changelog, number + 1))
    finally:
        query.stop()


def test_a_folder_belongs_to_one_query(remote, tmp_path):
    write_file(tmp_path / "in", 0, ROWS)
    counted, out = count(files_source(remote, tmp_path / "in")), tmp_path / "out"
    counted.run(out, checkpoint=tmp_path / "first")
    with pytest.raises(SinkError, match="was written by the query"):
        counted.run(out, checkpoint=tmp_path / "second")
    write_file(tmp_path / "in", 1, [("a", 4, 4)])
    counted.run(out, checkpoint=tmp_path / "first")
    assert parquet_rows(out) == [("a", 1, 1), ("a", 2, 3), ("a", 3, 7), ("b", 1, 95)]
    counted.run(keyed.parquet_sink(out, mode="overwrite"), checkpoint=tmp_path / "third")
    assert len(parquet_rows(out)) == 4


def test_a_graph_over_two_sources_gives_what_the_local_runtime_gives(remote, tmp_path):
    sources = {"in": ROWS, "in2": [("a", 5, 7), ("c", 90, 8)]}
    for folder, rows in sources.items():
        write_file(tmp_path / folder, 0, rows)
    local = [
        keyed.stream([dict(zip("ktv", row, strict=True)) for row in rows], timestamp="t") for rows in sources.values()
    ]
    first, second = (files_source(remote, tmp_path / folder) for folder in sources)
    for where, (one, other), options in (
        ("local", local, {}),
        ("connect", (first, second), {"checkpoint": tmp_path / "ck", "drain": True}),
    ):
        made = branches(one.union(other))
        keyed.run(*(output.to(tmp_path / where / name) for name, output in made.items()), **options)
    for name in made:
        assert parquet_rows(tmp_path / "connect" / name) == parquet_rows(tmp_path / "local" / name), name


@pytest.mark.parametrize(
    "feature", [feature for features in FEATURES.values() for feature in features], ids=lambda feature: feature.name
)
def test_connect(remote, feature):
    """The column of the support matrix."""
    assert is_remote(remote)

    def on_connect(rows):
        return keyed.stream(remote.createDataFrame(rows, SCHEMA_OF_FEATURES), timestamp="at")

    def rows_of(source):
        return sorted(tuple(value) for value in feature.chain(source, {}).run().values)

    if "Connect" in feature.missing:
        with pytest.raises(keyed.KeyedError):
            rows_of(on_connect)
    else:
        assert rows_of(on_connect) == rows_of(local)


@pytest.mark.parametrize("sink", SINKS, ids=lambda sink: sink.name)
def test_sinks(remote, kafka, sink, tmp_path):
    """The column of the support matrix, of a streaming query, which calls sinks on the server."""
    for folder in ("in", "out"):
        (tmp_path / folder).mkdir()
    pq.write_table(table_of(ROWS_OF_FEATURES), tmp_path / "in" / "0.parquet")
    frame = remote.readStream.schema(SCHEMA_OF_FEATURES).parquet(str(tmp_path / "in"))
    made = sink.make(tmp_path / "out", kafka)
    sums = FEATURES["State"][0].chain(lambda rows: keyed.stream(frame, timestamp="at"), {"parallelism": 2})
    sums.run(made, checkpoint=tmp_path / "checkpoint")
    wanted = [("a", 1), ("a", 4), ("a", 8), ("b", 2), ("b", 7), ("c", 6)]
    until(lambda: sorted(sink.read(tmp_path / "out", made)) == wanted)


def test_a_recording_is_refused(remote, tmp_path):
    write_file(tmp_path / "in", 0, ROWS)
    counted = count(files_source(remote, tmp_path / "in"), changelog=DirectoryChangelog(tmp_path / "log"))
    with pytest.raises(keyed.errors.DefinitionError, match=r"record=.* is not supported over Spark Connect"):
        counted.run(checkpoint=tmp_path / "checkpoint", record=tmp_path / "record")

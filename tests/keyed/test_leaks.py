"""Calls of every public entrance, again and again, leave no memory, thread, descriptor, file or class behind.

Spark's tasks are in `tests/keyed/runtimes/spark/test_copies.py`.

``KEYED_ROUNDS=100`` makes fewer than a thousand calls of each.
"""

from __future__ import annotations

import dataclasses
import gc
import io
import json
import logging
import os
import shutil
import tempfile
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from itertools import chain
from pathlib import Path
from typing import Any, cast

import httpx
import psutil
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import keyed
import keyed.pyflink as flink
from keyed import joins, sql
from keyed import windows as w
from keyed.changelog.kafka import KafkaChangelog
from keyed.cli.main import main
from keyed.errors import SqlError
from keyed.metrics import OpenTelemetry, Prometheus, export
from keyed.patterns import Pattern
from keyed.recovery import flush, read_changelog, restore, verify
from keyed.stores.growth import return_free_memory
from keyed.tables import StateTables, open_tables, read_tables
from keyed.testing import (
    KeyedTestHarness,
    MemoryChangelog,
    Record,
    Recording,
    assert_batch_split_invariant,
    assert_deterministic,
    assert_matches,
    assert_recovery_invisible,
    assert_rescale_invisible,
    assert_state_bounded,
    replay,
    strategies,
)
from keyed.topics import KafkaSink
from keyed.vectorized import TableState, VectorizedFunction
from tests.keyed.changelog.kafka import topics
from tests.support.features import FEATURES, local
from tests.support.s3 import KEY_ID, SECRET, S3Server, s3_server
from tests.support.tables import served
from tests.support.waiting import until

ROUNDS = int(os.environ.get("KEYED_ROUNDS", "1000"))
#: Calls between two counts of the fast test, and how often it counts: caches and imports grow at first.
FEW, ATTEMPTS = 5, 5
#: Bytes by which the process may grow with each call: RocksDB fills a cache, and the C library keeps free memory.
BYTES = 4096
#: What grows more. pyiceberg without keyed leaves as much, and no Python object: each call opens another catalog.
MORE_BYTES = {"to_iceberg": 8192}

ROWS: list[dict[str, Any]] = [{"k": "ab"[n % 2], "n": n, "t": 10 * n} for n in range(4)]
SCRIPT = """
CREATE STREAM given (k STRING KEY, n INT) WITH (FORMAT='JSON');
CREATE TABLE named (k STRING PRIMARY KEY, name STRING) WITH (FORMAT='JSON');
CREATE TABLE counts AS SELECT k, COUNT(*) AS c, SUM(n) AS s FROM given GROUP BY k;
CREATE TABLE hours AS SELECT k, MAX(n) AS m FROM given WINDOW TUMBLING (SIZE 1 HOUR) GROUP BY k;
CREATE STREAM joined AS SELECT given.k AS k, doubled(n) AS d, name FROM given JOIN named ON given.k = named.k;
"""
GIVEN = {
    "given": [{"k": row["k"], "n": row["n"], "ROWTIME": row["t"] + 10} for row in ROWS],
    "named": [{"k": "a", "name": "Ann", "ROWTIME": 0}],
}


def count() -> keyed.KeyedProcessFunction:
    """Return a function whose class is new, as that of a notebook's cell that runs again."""

    class Count(keyed.KeyedProcessFunction):
        number = keyed.ValueState(int, default=0)
        values = keyed.ListState(int)
        items = keyed.MapState(str, int)

        def process_element(self, value: Any, ctx: Any) -> Iterator[tuple[str, int]]:
            if value["n"] < 0:
                raise LookupError("unlucky")
            self.number.update(self.number.value() + 1)
            self.values.add(value["n"])
            self.items.put(str(value["n"]), value["n"])
            ctx.timer_service().set_timer("due", 10**9)
            yield ctx.get_current_key(), self.number.value()

        def on_timer(self, timestamp: int, ctx: Any) -> None:
            self.number.clear()

    return Count()


def rows() -> keyed.KeyedStream:
    return keyed.stream(ROWS, timestamp="t").key_by("k")


def table() -> keyed.KeyedStream:
    return keyed.stream(pa.Table.from_pylist(ROWS), timestamp="t").key_by("k")


def counts(given: Any = ROWS, **options: Any) -> keyed.Output:
    stream = keyed.stream(given, timestamp="t").key_by("k")
    return stream.process(count(), "k string, n bigint", name="count", **options)


class KeepsNothing(keyed.KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value


def counts_of(records: list[Record]) -> Iterator[tuple[str, int]]:
    """Yield the outputs of `count`."""
    seen: Counter[str] = Counter()
    for record in records:
        seen[record.value["k"]] += 1
        yield record.value["k"], seen[record.value["k"]]


class Entrances:
    """The public entrances: each method is a call of one, over a folder of its own.

    Args:
        server: A server for changelogs in an object store.
    """

    def __init__(self, server: S3Server) -> None:
        self._options = {
            "endpoint": server.url,
            "allow_http": True,
            "region": "us-east-1",
            "access_key_id": KEY_ID,
            "secret_access_key": SECRET,
        }
        self._server = server
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider(metric_readers=[self._reader])

    # Jobs of the local runtime -------------------------------------------------------------------------------------

    def run(self, folder: Path) -> None:
        assert len(counts().run().values) == 4

    def run_over_columns(self, folder: Path) -> None:
        class Sums(VectorizedFunction):
            sums = TableState("k string, n bigint", key="k")

            def process_batch(self, table: Any, ctx: Any) -> None:
                self.sums.merge(table.select(["k", "n"]), {"n": "sum"})
                ctx.emit(table.select(["k", "n"]))

        assert len(table().process(Sums(), "k string, n bigint").run().values) == 4

    def started_and_stopped(self, folder: Path) -> None:
        def rows() -> Iterator[Any]:
            yield from ROWS
            while True:
                yield keyed.PAUSE

        query = counts(rows()).start(keyed.collect_sink())
        until(lambda: query.progress is not None)
        query.stop()

    def failing(self, folder: Path) -> None:
        with pytest.raises(keyed.errors.UserFunctionError):
            counts([*ROWS, {"k": "a", "n": -1, "t": 90}]).run(checkpoint=folder / "checkpoint", rows_per_batch=2)

    def refused(self, folder: Path) -> None:
        with pytest.raises(TypeError, match="is not an option"):
            counts(rows_per_bath=2)
        with pytest.raises(keyed.errors.DefinitionError):
            rows().process(cast("Any", object()))
        with pytest.raises(keyed.errors.DefinitionError):
            rows().window(w.TumblingEventTimeWindows.of(0))

    def explained(self, folder: Path) -> None:
        counts().explain()
        rows().window(w.TumblingEventTimeWindows.of(100)).aggregate(total=w.Sum("n")).explain()

    def transformed(self, folder: Path) -> None:
        @dataclasses.dataclass(frozen=True)
        class Other:
            k: str
            n: int

        stream = (
            keyed.stream(ROWS, timestamp="t")
            .map(lambda row: Other(row.k, row.n + 1), Other)
            .filter(lambda row: row.n > 1)
        )
        stream = stream.flat_map(lambda row: [row, row]).map_batches(lambda table: table)
        assert len(stream.key_by("k").process(count(), "k string, n bigint").run().values) == 6

    def bad_rows(self, folder: Path) -> None:
        bad = keyed.OutputTag("bad")
        given = [*ROWS, {"k": None, "n": 1, "t": 5}]
        out = keyed.stream(given, timestamp="t", on_bad_row=bad).key_by("k").process(count(), "k string, n bigint")
        keyed.run(out.to(keyed.collect_sink()), out.side_output(bad).to(keyed.collect_sink()))

    # Libraries -----------------------------------------------------------------------------------------------------

    def features(self, folder: Path) -> None:
        for feature in chain.from_iterable(FEATURES.values()):
            assert feature.chain(local, {}).run().values, feature.name

    def windows_with_own_parts(self, folder: Path) -> None:
        class Listed(w.ProcessWindowFunction):
            def process(self, key: Any, ctx: Any, elements: Any) -> Iterator[Any]:
                yield key, len(list(elements))

        class Total(w.Aggregate):
            def create_accumulator(self) -> int:
                return 0

            def add(self, value: Any, accumulator: int) -> int:
                return accumulator + value["n"]

            def merge(self, a: int, b: int) -> int:
                return a + b

        assert rows().window(w.TumblingEventTimeWindows.of(100)).process(Listed()).run().values
        assert rows().window(w.TumblingEventTimeWindows.of(100)).aggregate(total=Total()).run().values

    def joined_over_columns(self, folder: Path) -> None:
        select = joins.Select(["k"], ["n"])
        for join in (
            joins.IntervalJoin(select, lower=-10, upper=10, path="vectorized"),
            joins.AsOfJoin(select, path="vectorized"),
            joins.WindowJoin(select, size=100, path="vectorized"),
        ):
            assert table().connect(table()).process(join, "k string, n bigint").run().values

    def patterns(self, folder: Path) -> None:
        pattern = Pattern.begin("a", lambda row: row.n == 0).followed_by("b", lambda row: row.n == 2).within(1000)
        found = rows().match(pattern).select(lambda match: (match["a"][0].n, match["b"][0].n))
        assert found.run().values == [(0, 2)]

    def pyflink(self, folder: Path) -> None:
        class Count(flink.KeyedProcessFunction):
            def open(self, context: Any) -> None:
                self.n = context.get_state(flink.ValueStateDescriptor("n", flink.Types.INT()))

            def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
                self.n.update((self.n.value() or 0) + 1)
                yield value[0], self.n.value()

        env = flink.StreamExecutionEnvironment.get_execution_environment()
        stream = env.from_collection([("a", 1), ("b", 2)]).key_by(lambda value: value[0])
        type_ = flink.Types.TUPLE([flink.Types.STRING(), flink.Types.INT()])
        assert list(stream.process(Count(), type_).execute_and_collect()) == [("a", 1), ("b", 1)]
        assert list(stream.reduce(lambda a, b: a).execute_and_collect())

    # Checkpoints, changelogs and sinks -----------------------------------------------------------------------------

    def exported(self, folder: Path) -> None:
        log = keyed.DirectoryChangelog(folder / "log")
        counts(changelog=log).run(checkpoint=folder / "checkpoint", rows_per_batch=2)

    def exported_now_and_then(self, folder: Path) -> None:
        log = keyed.DirectoryChangelog(folder / "log", export_interval=10_000)
        counts(changelog=log).run(checkpoint=folder / "checkpoint", rows_per_batch=2)

    def exported_to_a_store(self, folder: Path) -> None:
        log = keyed.ObjectStoreChangelog("s3://bucket/log", self._options)
        counts(changelog=log).run(checkpoint=folder / "checkpoint", rows_per_batch=2)
        assert len(list(read_changelog(log))) > 4
        self._server.objects.clear()

    def restored(self, folder: Path) -> None:
        log = keyed.DirectoryChangelog(folder / "log")
        counts(changelog=log).run(checkpoint=folder / "checkpoint", drain=False)
        result = counts(restore_from=log, parallelism=3).run(checkpoint=folder / "restored")
        assert result.restored is not None

    def recovered(self, folder: Path) -> None:
        log = keyed.DirectoryChangelog(folder / "log")
        counts(changelog=log).run(checkpoint=folder / "checkpoint", drain=False, record=folder / "record")
        flush(folder / "checkpoint", {"count": log})
        assert not any(group.problem for group in verify(log))
        assert verify(folder / "checkpoint")
        assert len(list(read_changelog(log))) > 4
        restore(folder / "restored", [keyed.RestorePoint(log)], parallelism=3)
        assert Recording(folder / "record").operator == "count"
        function = count()
        assert replay(log, function, function, ROWS, key="k", timestamp="t").lines == ()

    def on_disk(self, folder: Path) -> None:
        counts(store="rocksdb").run(checkpoint=folder / "checkpoint", rows_per_batch=2)

    def shared_on_disk(self, folder: Path) -> None:
        counts(store="lmdb").run(checkpoint=folder / "checkpoint", rows_per_batch=2)

    def to_files(self, folder: Path) -> None:
        counts().run(folder / "out", checkpoint=folder / "checkpoint", rows_per_batch=2)

    def to_iceberg(self, folder: Path) -> None:
        sql = pytest.importorskip("pyiceberg.catalog.sql", reason="pyiceberg is not installed: make setup")
        manifest = pytest.importorskip("pyiceberg.manifest")
        place = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": folder.as_uri()}
        sink = keyed.iceberg_sink("lake.t", catalog="test", options=place)
        counts().run(sink, checkpoint=folder / "checkpoint", rows_per_batch=2)
        # What pyiceberg and SQLAlchemy remember is theirs, and bounded.
        manifest.clear_manifest_cache()
        for mapped in (sql.IcebergTables, sql.IcebergNamespaceProperties):
            mapped.__mapper__._compiled_cache.clear()

    def to_delta(self, folder: Path) -> None:
        pytest.importorskip("deltalake", reason="deltalake is not installed: make setup")
        counts().run(keyed.delta_sink(folder / "t"), checkpoint=folder / "checkpoint", rows_per_batch=2)

    # State tables --------------------------------------------------------------------------------------------------

    def followed(self, folder: Path) -> None:
        log = keyed.DirectoryChangelog(folder / "log")
        counts(changelog=log).run(checkpoint=folder / "checkpoint", rows_per_batch=2)
        with open_tables(log, folder / "tables").start(every=0.01) as tables:
            assert tables["number"].get("a") == 2
            assert len(tables["number"].subscribe().take(0)) == 2
            with read_tables(folder / "tables") as reading:
                reading.start(every=0.01)
                assert reading["number"].get("a") == 2
            # The tables close a snapshot that is left open.
            assert tables.snapshot()["number"].get("a") == 2

    def read(self, folder: Path) -> None:
        log = keyed.DirectoryChangelog(folder / "log")
        counts(changelog=log).run(checkpoint=folder / "checkpoint", rows_per_batch=2, drain=False)
        with open_tables(log, folder / "tables") as tables:
            tables.poll()
            assert tables["number"].get("a") == 2
            assert len(list(tables["number"].scan())) == 2
            assert tables.timers.scan() is not None
            assert list(tables["number"].history("a"))
            assert tables.sql("select key, value from number").num_rows == 2
            with tables.snapshot() as snapshot:
                assert snapshot["items"].get("a")
        with read_tables(folder / "tables") as tables:
            assert tables["number"].get("a") == 2

    def served(self, folder: Path) -> None:
        with self._kept(folder) as tables, served(tables) as address, httpx.Client(base_url=address) as client:
            assert client.get("/tables/number/keys/a").json()["value"] == 2
            assert client.get("/tables/nothing/keys/a").status_code == 404

    def kept(self, folder: Path) -> None:
        counts().run(tables=folder / "tables", checkpoint=folder / "checkpoint", drain=False)
        with read_tables(folder / "tables") as tables:
            assert tables["number"].get("a") == 2

    @contextmanager
    def _kept(self, folder: Path) -> Iterator[StateTables]:
        log = keyed.DirectoryChangelog(folder / "log")
        counts(changelog=log).run(drain=False)
        with open_tables(log, folder / "tables") as tables:
            tables.poll()
            yield tables

    def replicated(self, folder: Path) -> None:
        pytest.importorskip("deltalake", reason="deltalake is not installed: make setup")
        with self._kept(folder) as tables:
            tables.start(every=0.01)
            sink = keyed.delta_sink(folder / "copy", mode="upsert", key="k")
            place = Prometheus(file=folder / "metrics.prom")
            with tables["number"].replicate(sink) as copy, export(copy, place):
                copy.wait_for(tables.batch)

    # SQL -----------------------------------------------------------------------------------------------------------

    def scripts(self, folder: Path) -> None:
        sql.register("doubled", lambda n: n * 2, takes=["INT"], returns="INT")
        result = sql.script(SCRIPT, GIVEN)
        assert result.table("counts") == {"a": {"c": 2, "s": 2}, "b": {"c": 2, "s": 4}}
        assert [record.value["d"] for record in result["joined"]] == [0, 4]

    def scripts_with_tables(self, folder: Path) -> None:
        sql.register("doubled", lambda n: n * 2, takes=["INT"], returns="INT")
        run = sql.script(SCRIPT, GIVEN, checkpoint=folder / "checkpoint", tables=folder / "tables").run
        assert run is not None
        with run.tables as tables:
            assert tables.sql("SELECT k, c FROM counts WHERE s > 2").to_pylist() == [{"k": "b", "c": 2}]
            query = sql.subscribe(tables, "SELECT k, c FROM counts WHERE s > ? EMIT CHANGES", [2])
            assert [pushed.row for pushed in query.take(60)] == [{"k": "b", "c": 2}]

    def scripts_refused(self, folder: Path) -> None:
        for text in ("SELEC 1;", SCRIPT.replace("SUM(n)", "SUM(m)"), SCRIPT.replace("doubled", "tripled")):
            with pytest.raises(SqlError):
                sql.script(text, GIVEN)

    # Metrics -------------------------------------------------------------------------------------------------------

    def measured(self, folder: Path) -> None:
        counts().run(metrics=OpenTelemetry(self._provider), rows_per_batch=2)
        self._reader.get_metrics_data()

    def measured_in_a_file(self, folder: Path) -> None:
        counts().run(metrics=Prometheus(file=folder / "metrics.prom"), rows_per_batch=2)

    # The command line ----------------------------------------------------------------------------------------------

    def commands(self, folder: Path) -> None:
        log, checkpoint, tables = (str(folder / name) for name in ("log", "checkpoint", "tables"))
        counts(changelog=keyed.DirectoryChangelog(folder / "log")).run(checkpoint=checkpoint, drain=False)
        for command in (
            ("inspect", checkpoint),
            ("verify", log),
            ("verify", checkpoint),
            ("compact", log),
            ("flush", checkpoint, f"count={log}"),
            ("restore", str(folder / "restored"), log),
            ("explain", "NullKeyError"),
            ("tables", log),
            ("get", log, "number", "a", "--tables", tables),
            ("scan", log, "number", "--tables", tables),
            ("history", log, "number", "a", "--tables", tables),
            ("sql", log, "select * from number", "--tables", tables),
        ):
            assert main(command) == 0, command
        (folder / "script.sql").write_text(SCRIPT)
        (folder / "given.jsonl").write_text("".join(json.dumps(row) + "\n" for row in GIVEN["given"]))
        (folder / "named.jsonl").write_text("".join(json.dumps(row) + "\n" for row in GIVEN["named"]))
        inputs = [f"--input={name}={folder / name}.jsonl" for name in GIVEN]
        sql.register("doubled", lambda n: n * 2, takes=["INT"], returns="INT")
        assert main(["run", str(folder / "script.sql"), *inputs]) == 0
        with pytest.raises(SystemExit):
            main(["gett"])

    # The kit -------------------------------------------------------------------------------------------------------

    def harness(self, folder: Path) -> None:
        with KeyedTestHarness(count(), key="k", parallelism=2, changelog=MemoryChangelog()) as harness:
            for row in ROWS:
                harness.process(row, timestamp=row["t"])
            harness.advance_watermark(10**10)
            snapshot = harness.snapshot()
        with KeyedTestHarness.restore(count(), snapshot, key="k") as harness:
            harness.process(ROWS[0])

    def asserted(self, folder: Path) -> None:
        row = strategies.rows("k string, n bigint", k=st.sampled_from("ab"), n=st.integers(0, 5))
        stream = strategies.streams(row, gap=10, min_size=2, max_size=4)
        options: dict[str, Any] = {"key": "k", "examples": 8}
        function = count()
        assert_batch_split_invariant(function, stream, **options)
        assert_recovery_invisible(function, stream, **options)
        assert_rescale_invisible(function, stream, **options)
        assert_deterministic(function, stream, same_order=True, **options)
        assert_matches(function, counts_of, stream, **options)
        assert_state_bounded(KeepsNothing(), stream, silence=1000, **options)


class KafkaEntrances:
    """The entrances with clients of Kafka.

    Args:
        kafka: The address of a broker.
    """

    def __init__(self, kafka: str) -> None:
        self._kafka = kafka
        self._topic = topics.created(kafka, 2)
        records: list[tuple[bytes, bytes | None]] = [
            (row["k"].encode(), json.dumps({"n": row["n"]}).encode()) for row in ROWS
        ]
        topics.produce(kafka, self._topic, records)

    @contextmanager
    def _new(self) -> Iterator[str]:
        """Make a topic's name, and delete the topic."""
        name = topics.new_topic()
        yield name
        topics.delete(self._kafka, name)

    def _rows(self) -> keyed.KafkaSource:
        return keyed.KafkaSource(
            self._topic,
            bootstrap=self._kafka,
            bounded=True,
            decode=lambda record: {"k": record.key.decode(), "n": json.loads(record.value)["n"], "t": 0},
        )

    def from_a_topic(self, folder: Path) -> None:
        assert len(counts(self._rows()).run(checkpoint=folder / "checkpoint", rows_per_batch=2).values) == 4

    def to_a_topic(self, folder: Path) -> None:
        with self._new() as name:
            topics.create(self._kafka, name, 1)
            sink = KafkaSink(name, bootstrap=self._kafka, key="k")
            counts().run(sink, checkpoint=folder / "checkpoint", rows_per_batch=2)

    def exported_to_a_topic(self, folder: Path) -> None:
        with self._new() as name:
            log = KafkaChangelog(name, bootstrap=self._kafka)
            counts(changelog=log).run(checkpoint=folder / "checkpoint", rows_per_batch=2, drain=False)
            assert len(list(read_changelog(log))) > 4
            assert counts(restore_from=log).run(checkpoint=folder / "restored").restored is not None

    def scripts_over_topics(self, folder: Path) -> None:
        with self._new() as name:
            text = (
                f"CREATE STREAM given (k STRING KEY, n INT) WITH (KAFKA_TOPIC='{self._topic}', VALUE_FORMAT='JSON');"
                f"CREATE TABLE counts WITH (KAFKA_TOPIC='{name}') AS SELECT k, COUNT(*) AS c FROM given GROUP BY k;"
            )
            cluster = sql.Kafka(self._kafka, batch_interval=50)
            query = sql.start(text, kafka=cluster, checkpoint=folder / "checkpoint")
            until(lambda: query.progress is not None)
            query.stop()


ENTRANCES = [name for name in vars(Entrances) if not name.startswith("_")]
KAFKA_ENTRANCES = [name for name in vars(KafkaEntrances) if not name.startswith("_")]


@pytest.fixture(scope="module", autouse=True)
def _others_frozen() -> None:
    """Exempt what earlier tests have left from collection and counting, which then cost a tenth."""
    gc.collect()
    gc.freeze()


#: Calls an entrance, by its name, so many times.
Call = Callable[[str, int], None]

#: Those that cost more than others.
EXPENSIVE = ("features", "to_iceberg", "to_delta", "served", "replicated", "asserted", "commands")


@pytest.fixture
def call(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Call]:
    """Return a function that calls an entrance repeatedly, each time over a new folder."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    # pytest keeps log records. Loggers remember that they are enabled, until this call.
    logging.disable(logging.CRITICAL)
    with s3_server() as server:
        entrances: Any = Entrances(server)
        if "kafka" in request.fixturenames:
            entrances = KafkaEntrances(request.getfixturevalue("kafka"))

        def repeated(name: str, number: int) -> None:
            for _ in range(number):
                folder = tmp_path / "call"
                folder.mkdir()
                with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                    getattr(entrances, name)(folder)
                shutil.rmtree(folder)

        yield repeated
    logging.disable(logging.NOTSET)


def living() -> Counter[str]:
    """Return the number of living objects by type, and of classes, threads, descriptors and temporary files."""
    cast("Any", urllib.parse).clear_cache()
    gc.collect()
    objects = gc.get_objects()
    links = Path("/proc/self/fd")
    found = Counter(f"{type(each).__module__}.{type(each).__qualname__}" for each in objects)
    found["classes"] = sum(isinstance(each, type) for each in objects)
    # Those of clients and libraries, too.
    found["threads"] = psutil.Process().num_threads()
    found["descriptors"] = len(list(links.iterdir())) if links.is_dir() else 0
    found["files"] = len(list(Path(tempfile.gettempdir()).rglob("*")))
    return found


def grown(before: Counter[str], calls: int) -> dict[str, int]:
    """Return what has grown by one with each call at least."""
    return {name: number - before[name] for name, number in living().items() if number - before[name] >= calls}


def resident() -> int:
    """Return the resident memory of the process in bytes, without what can be returned to the system."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    return_free_memory()
    return psutil.Process().memory_info().rss


def check_a_few(name: str, call: Call) -> None:
    """Check that a few calls leave no object, class, thread, descriptor or file behind."""
    call(name, FEW)
    found: dict[str, int] = {}
    for _ in range(ATTEMPTS):
        before = living()
        call(name, FEW)
        found = grown(before, FEW)
        if not found:
            return
    assert not found, f"{FEW} calls leave behind {found}"


def check_a_thousand(name: str, call: Call) -> None:
    """Check that a thousand calls leave none of these behind, and no memory."""
    call(name, 20)
    before, sizes = living(), [resident()]
    for _ in range(2):
        call(name, ROUNDS // 2)
        sizes.append(resident())
    # What others close in the background may take a moment.
    until(lambda: not grown(before, ROUNDS // 2), seconds=60, report=lambda: f"{grown(before, ROUNDS // 2)}")
    # Each half must grow: the first may still fill caches.
    each = min(sizes[1] - sizes[0], sizes[2] - sizes[1]) / (ROUNDS // 2)
    assert each <= MORE_BYTES.get(name, BYTES), f"resident memory grows by {each:.0f} bytes with each call: {sizes}"


CHECKS = [check_a_few, pytest.param(check_a_thousand, marks=[pytest.mark.slow, pytest.mark.long])]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in EXPENSIVE else []) for name in ENTRANCES]
)
@pytest.mark.filterwarnings("ignore:.*passed, but of:UserWarning")
def test_calls_leave_nothing_behind(name, check, call):
    check(name, call)


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", KAFKA_ENTRANCES)
def test_calls_with_clients_of_kafka_leave_nothing_behind(name, check, call, kafka):
    check(name, call)

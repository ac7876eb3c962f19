"""Delta and Iceberg tables as sinks on Spark, with their own libraries: ``make lakehouse``.

They have no libraries for the newest Spark, so the tests run in an environment with an older one. With a Spark that
lacks them they are skipped. More kills: ``KEYED_SPARK_KILLS=30 make lakehouse ARGS="-k random"``.
"""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pytest

import keyed
from keyed.arrow.write import arrow_schema
from keyed.base.schemas import quoted
from keyed.changelog import DirectoryChangelog
from keyed.destinations.delta_table import DeltaLakeTable, DeltaSink
from keyed.destinations.iceberg_table import IcebergLakeTable
from keyed.destinations.sink import Owner
from keyed.errors import CheckpointError, DefinitionError, SessionError, SinkError
from keyed.runtimes.spark.query.spark_sinks import FrameBatch, SparkRuntime
from tests.keyed.runtimes.local.table_sinks import TYPES
from tests.keyed.runtimes.spark.functions import files_source, write_file
from tests.keyed.runtimes.spark.lake_program import OUTPUT, UPSERT, Ledger, ledger, sinks
from tests.support.jobs import PassTuple
from tests.support.lake import pyiceberg_options
from tests.support.spark_programs import Program
from tests.support.waiting import until

ROOT = Path(__file__).parents[4]
KILLS = int(os.environ.get("KEYED_SPARK_KILLS", "3"))
KINDS = ("delta", "iceberg")


def rows_of(number):
    """The rows of a file."""
    return [("abd"[n % 3], 100 * number + n, 100 * number + n) for n in range(10)]


def write_files(folder, *numbers):
    for number in numbers:
        write_file(folder / "in", number, rows_of(number))


def expected(*numbers):
    """The rows of an append table and of an upsert table after these files."""
    counts: dict[str, int] = {}
    latest: dict[str, Any] = {}
    rows = []
    for number in numbers:
        for k, _, v in rows_of(number):
            counts[k] = n = counts.get(k, 0) + 1
            gone = k == "d" and n % 2 == 0
            rows.append((k, n, v, gone))
            latest.pop(k, None)
            if not gone:
                latest[k] = (k, n, v)
    return sorted(rows), sorted(latest.values())


def namespace(folder):
    """A namespace of a test's own in the session's catalog."""
    return f"n{sha256(str(folder).encode()).hexdigest()[:12]}"


def table(kind, folder, name="t", **options):
    if kind == "delta":
        return keyed.delta_sink(folder / name, **options)
    return keyed.iceberg_sink(f"{namespace(folder)}.{name}", catalog="local", **options)


def frame_of(spark, sink):
    if isinstance(sink, DeltaSink):
        return spark.read.format("delta").load(sink.path)
    spark.sql(f"REFRESH TABLE {sink.place}")
    return spark.table(sink.place)


def content(spark, sink, *names):
    found = frame_of(spark, sink)
    rows = map(tuple, found.select(*map(quoted, names or found.columns)).collect())
    # The first two columns identify a row.
    return sorted(rows, key=lambda row: [(each is not None, each) for each in row[:2]])


def commits(spark, sink):
    """The number of commits of rows and columns of a table."""
    if isinstance(sink, DeltaSink):
        return len([*Path(sink.path, "_delta_log").glob("*.json")])
    return spark.table(f"{sink.place}.snapshots").count()


def forget_commit(checkpoint, batch):
    """Leave a checkpoint as a kill before Spark's commit of a batch does."""
    for name in (f"{batch}", f".{batch}.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)


def changes(spark, rows, output=OUTPUT, schema="k string, n bigint, v bigint, gone boolean"):
    """A batch DataFrame whose rows are emitted as they are."""
    return keyed.stream(spark.createDataFrame(rows, schema)).key_by("k").process(PassTuple(), output)


@pytest.mark.parametrize(
    ("first", "second"), [pytest.param(0, 3, marks=pytest.mark.smoke), pytest.param(1, 2, marks=pytest.mark.long)]
)
def test_a_batch_that_comes_again_is_not_written_again(spark_lake, tmp_path, first, second):
    delta, iceberg = (sinks(tmp_path, namespace(tmp_path))[number] for number in (first, second))
    # The first query ends between its last writes and Spark's commit; the second repeats the batch, and goes on.
    for file in (0, 1):
        write_files(tmp_path, file)
        outputs = ledger(files_source(spark_lake, tmp_path / "in"))
        keyed.run(outputs.to(delta), outputs.to(iceberg), checkpoint=tmp_path / "ck")
        if file == 0:
            forget_commit(tmp_path / "ck", 0)
    rows, latest = expected(0, 1)
    for sink in (delta, iceberg):
        assert content(spark_lake, sink) == (latest if sink.mode == "upsert" else rows), sink
    # Delta has a commit for the creation of a table.
    assert (commits(spark_lake, delta), commits(spark_lake, iceberg)) == (3, 2)
    (newest,) = spark_lake.table(f"{iceberg.place}.snapshots").orderBy("committed_at").tail(1)
    assert newest["summary"]["keyed-batch"] == "1"


@pytest.mark.smoke
def test_a_session_without_the_libraries_is_refused_before_anything_is_made(spark, tmp_path, monkeypatch):
    version = spark.version[:3]
    monkeypatch.chdir(tmp_path)
    refused: list[tuple[Any, str, str]] = [
        (
            keyed.iceberg_sink("a.b", catalog="absent"),
            f"org.apache.iceberg:iceberg-spark-runtime-{version}_2.13",
            "absent",
        )
    ]
    if "delta-spark" not in (spark.conf.get("spark.jars", "") or ""):
        # A catalog whose class is not there.
        spark.conf.set("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
        refused.append((keyed.iceberg_sink("a.b", catalog="lake"), refused[0][1], "spark.sql.catalog.lake.type"))
        refused.append((keyed.delta_sink("table"), f"io.delta:delta-spark_{version}_2.13", "spark.sql.extensions"))
    streaming = files_source(spark, tmp_path / "in")
    for sink, library, setting in refused:
        checkpoint = {"checkpoint": tmp_path / "ck"}
        for output, options in ((changes(spark, [("a", 1, 1, True)]), {}), (ledger(streaming), checkpoint)):
            with pytest.raises(SessionError, match=library) as caught:
                output.run(sink, **options)
            assert setting in str(caught.value)
            assert repr(sink) in str(caught.value)
    assert [each.name for each in tmp_path.iterdir()] == ["in"]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_an_upsert_keeps_the_last_row_of_a_key_and_honours_deletions(spark_lake, tmp_path, kind):
    rows = [("a", 1, 0, None), ("b", 2, 0, None), ("a", 3, 0, False), ("b", 4, 0, True), ("c", 5, 0, None)]
    sink = table(kind, tmp_path, **UPSERT)
    changes(spark_lake, rows).run(sink)
    assert content(spark_lake, sink) == [("a", 3, 0), ("c", 5, 0)]
    changes(spark_lake, [("a", 6, 0, True), ("b", 6, 0, None), ("x", 7, 0, True), ("c", 8, 1, None)]).run(sink)
    assert content(spark_lake, sink) == [("b", 6, 0), ("c", 8, 1)]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_keys_and_columns_have_any_names(spark_lake, tmp_path, kind):
    # Delta itself refuses spaces.
    first = {"delta": "A.b", "iceberg": "A b"}[kind]
    schema = f"`{first}` string, `k``x` bigint, Value bigint"
    sink = table(kind, tmp_path, mode="upsert", key=[first, "k`x"])
    for rows in ([("x", 1, 1), ("x", 1, 2)], [("y", 1, 3), ("x", 1, 4)]):
        stream = keyed.stream(spark_lake.createDataFrame(rows, schema))
        stream.key_by(first).process(PassTuple(), schema).run(sink)
    assert content(spark_lake, sink) == [("x", 1, 4), ("y", 1, 3)]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_types_survive_and_the_other_library_reads_and_extends_the_table(spark_lake, tmp_path, kind, mode):
    key = {"key": "k"} if mode == "upsert" else {}
    sink = table(kind, tmp_path, mode=mode, **key)
    one = spark_lake.sql(
        "SELECT 'x' k, 1Y y, 2 i, 1.5D d, 2.5F f, 1.25BD m, X'00' b, DATE'2026-01-02' day, "
        "TIMESTAMP'2026-01-02 00:00:00Z' t, TIMESTAMP_NTZ'2026-01-02 00:00:00' l, array(1) a, map('x', 1.0D) o, "
        "named_struct('x', 1L, 'y', 'z') s"
    )
    one = one.withColumn("m", one["m"].cast("decimal(10,2)"))
    for _ in range(2):
        # The second run finds the columns that the first has created.
        keyed.stream(one).key_by("k").process(PassTuple(), TYPES).run(sink)
    local = local_table(spark_lake, kind, sink, mode=mode, **key)
    rows = [{**row, "o": dict(row["o"])} for row in one.toArrow().to_pylist()]
    keyed.stream(rows).key_by("k").process(PassTuple(), TYPES).run(local)
    found = content(spark_lake, sink)
    assert len(found) == (3 if mode == "append" else 1)
    assert {str(row) for row in found} == {str(tuple(each.collect()[0])) for each in [one]}


def catalog_folder(spark):
    uri = spark.conf.get("spark.sql.catalog.local.uri").removeprefix("jdbc:sqlite:")
    return Path(uri.partition("?")[0]).parent


def local_table(spark, kind, sink, **options):
    """The sink of the local runtime for a table of Spark's."""
    if kind == "delta":
        return keyed.delta_sink(sink.path, **options)
    folder = catalog_folder(spark)
    return keyed.iceberg_sink(sink.table, catalog="local", options=pyiceberg_options(folder), **options)


def last_batch(spark, kind, sink, query):
    """The last batch of a query in a table, as the local runtime reads it."""
    if kind == "delta":
        import deltalake

        return deltalake.DeltaTable(sink.path).transaction_version(f"keyed-{query}")
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("local", **pyiceberg_options(catalog_folder(spark)))
    try:
        return int(catalog.load_table(sink.table).properties[f"keyed-{query}"])
    finally:
        catalog.close()


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_query_of_the_local_runtime_goes_on_on_spark(spark_lake, tmp_path, kind, caplog):
    changelog = DirectoryChangelog(tmp_path / "log")
    sink = table(kind, tmp_path)
    rows = [{"k": k, "t": t, "v": v} for number in (0, 1) for k, t, v in rows_of(number)]
    local = keyed.stream(rows, timestamp="t")
    changed = ledger(local, changelog=changelog, parallelism=2)
    changed.run(local_table(spark_lake, kind, sink), checkpoint=tmp_path / "ck", rows_per_batch=10, drain=False)
    write_files(tmp_path, 2)
    source = files_source(spark_lake, tmp_path / "in")
    with pytest.raises(CheckpointError):
        ledger(source).run(sink, checkpoint=tmp_path / "ck")
    ledger(source, restore_from=changelog).run(sink, checkpoint=tmp_path / "new")
    assert content(spark_lake, sink) == expected(0, 1, 2)[0]
    assert "are there twice" not in caplog.text
    # The table knows the batches of both, in either library.
    queries = query_ids(spark_lake, kind, sink)
    assert len(queries) == 2
    assert sorted(last_batch(spark_lake, kind, sink, each) for each in queries) == [1, 2]


def query_ids(spark, kind, sink):
    if kind == "iceberg":
        found = spark.sql(f"SHOW TBLPROPERTIES {sink.place}").collect()
        return [row["key"].removeprefix("keyed-") for row in found if row["key"].startswith("keyed-")]
    log = spark.read.schema("txn struct<appId: string>").json(f"{sink.path}/_delta_log/*.json")
    found = log.where("txn.appId IS NOT NULL").select("txn.appId").distinct().collect()
    return [row[0].removeprefix("keyed-") for row in found]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_query_that_repeats_batches_of_the_earlier_one_is_reported(spark_lake, tmp_path, kind, caplog):
    table_of = {"delta": DeltaLakeTable, "iceberg": IcebergLakeTable}[kind]
    sink = table(kind, tmp_path)
    columns = keyed.base.schemas.schema_of("k string, n bigint")
    frame = spark_lake.createDataFrame([("a", 1)], columns.ddl)
    spark = SparkRuntime.of(spark_lake)
    first = table_of(sink, Owner(["one"]), columns, spark)
    first.claim()
    first.prepare(arrow_schema(columns))
    for batch in (0, 1, 2, 1, 2):
        first.write(FrameBatch(frame), batch)
    assert content(spark_lake, sink) == [("a", 1)] * 3
    table_of(sink, Owner(["one", "two"], 2), columns, spark).claim()
    assert "has written batches up to 2 to the table, and this one goes on with batch 2" in caplog.text


@pytest.mark.long
def test_a_batch_of_an_iceberg_table_is_known_when_its_snapshot_has_expired(spark_lake, tmp_path):
    from pyiceberg.catalog import load_catalog

    sink = table("iceberg", tmp_path)
    columns = keyed.base.schemas.schema_of("k string, n bigint")
    frame = spark_lake.createDataFrame([("a", 1)], columns.ddl)
    for query in ("one", "two"):
        writer = IcebergLakeTable(sink, Owner([query]), columns, SparkRuntime.of(spark_lake))
        writer.claim()
        writer.prepare(arrow_schema(columns))
        writer.write(FrameBatch(frame), 0)
    catalog = load_catalog("local", **pyiceberg_options(catalog_folder(spark_lake)))
    found = catalog.load_table(sink.table)
    first = found.snapshots()[0]
    found.maintenance.expire_snapshots().by_id(first.snapshot_id).commit()
    catalog.close()
    IcebergLakeTable(sink, Owner(["one"]), columns, SparkRuntime.of(spark_lake)).write(FrameBatch(frame), 0)
    assert content(spark_lake, sink) == [("a", 1)] * 2


@pytest.mark.long
@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("kind", KINDS)
def test_two_queries_write_to_one_table_at_once(spark_lake, tmp_path, kind, mode):
    """Both run at the same time, so that commits overtake each other."""
    sink = table(kind, tmp_path, mode=mode, **({"key": ["k", "n"]} if mode == "upsert" else {}))
    queries = []
    for name in "xy":
        for number in range(3):
            write_file(tmp_path / name / "in", number, [(f"{name}{n % 2}", 10 * number + n, 1) for n in range(4)])
        source = files_source(spark_lake, tmp_path / name / "in")
        output = source.key_by("k").process(Ledger(), OUTPUT, name="ledger")
        queries.append(output.start(sink, checkpoint=tmp_path / name / "ck", trigger="10 milliseconds"))
    wanted = sorted((f"{name}{n % 2}", n // 2 + 1) for name in "xy" for n in range(12))
    until(lambda: len(content(spark_lake, sink, "k")) >= len(wanted) or not all(q.is_active for q in queries))
    try:
        for query in queries:
            # Raises the error of one that failed.
            query.await_termination(0)
    finally:
        for query in queries:
            query.stop()
    assert content(spark_lake, sink, "k", "n") == wanted


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_columns_may_be_added_and_others_are_refused_with_both_schemas(spark_lake, tmp_path, kind):
    sink = table(kind, tmp_path)
    changes(spark_lake, [("a", 1)], "k string, n bigint", "k string, n bigint").run(sink)
    more = "k string, n bigint, x double"
    changes(spark_lake, [("b", 2, 0.5)], more, more).run(sink)
    assert content(spark_lake, sink) == [("a", 1, None), ("b", 2, 0.5)]
    before = commits(spark_lake, sink)
    for output, message in [
        ("k string, n bigint", "the output has no x. The table has k string, n int64, x double; the output has k"),
        ("k string, n string, x double", "n is string in the output"),
        ("k string, N bigint, x double", "N is n there"),
    ]:
        with pytest.raises(SinkError, match=message) as caught:
            changes(spark_lake, [], output, "k string").run(sink)
        with pytest.raises(SinkError) as local:
            keyed.stream([{"k": "a"}]).key_by("k").process(PassTuple(), output).run(local_table(spark_lake, kind, sink))
        assert str(caught.value).partition("): ")[2] == str(local.value).partition("): ")[2]
    assert commits(spark_lake, sink) == before


@pytest.mark.long
def test_a_stream_whose_columns_do_not_fit_is_refused_before_it_starts(spark_lake, tmp_path):
    write_files(tmp_path, 0)
    for kind in KINDS:
        changes(spark_lake, [("a", 1)], "k string, n string", "k string, n string").run(table(kind, tmp_path))
        with pytest.raises(SinkError, match="the table has other columns than the output"):
            ledger(files_source(spark_lake, tmp_path / "in")).run(table(kind, tmp_path), checkpoint=tmp_path / "ck")
        assert not [*(tmp_path / "ck").glob("offsets/*")]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_wrong_with_a_sink_is_refused_before_anything_is_made(spark_lake, tmp_path, kind):
    stream = files_source(spark_lake, tmp_path / "in")
    for options, message in [
        ({"mode": "upsert", "key": "x"}, "the output has no column 'x', only k, n, v, gone"),
        ({"mode": "upsert", "key": "k", "deleted": "v"}, "the column 'v' is of type bigint, and not boolean"),
    ]:
        with pytest.raises(SinkError, match=message):
            ledger(stream).run(table(kind, tmp_path, **options), checkpoint=tmp_path / "ck")
    floats = stream.key_by("k").process(Ledger(), "k double, n bigint, v bigint, gone boolean")
    with pytest.raises(SinkError, match="the column 'k' of the key is of type double"):
        floats.run(table(kind, tmp_path, mode="upsert", key="k"), checkpoint=tmp_path / "ck")
    local_only = {"storage_options": {"x": "s3cr3t"}} if kind == "delta" else {"options": {"x": "s3cr3t"}}
    with pytest.raises(DefinitionError, match=r"options= is for the local runtime") as caught:
        ledger(stream).run(table(kind, tmp_path, **local_only), checkpoint=tmp_path / "ck")
    assert "s3cr3t" not in str(caught.value)
    assert not (tmp_path / "ck").exists()
    assert not (tmp_path / "t").exists()


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_null_in_a_key_is_refused(spark_lake, tmp_path, kind):
    sink = table(kind, tmp_path, mode="upsert", key="n")
    with pytest.raises(SinkError, match="a row has a null in 'n'"):
        changes(spark_lake, [("a", None, 1, None)]).run(sink)
    assert content(spark_lake, sink) == []


@pytest.mark.long
def test_a_place_that_is_no_table_is_refused(spark_lake, tmp_path):
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "x.parquet").touch()
    with pytest.raises(SinkError, match=r"the folder holds x\.parquet, and is no Delta table"):
        changes(spark_lake, []).run(table("delta", tmp_path))
    with pytest.raises(SessionError, match=r"no Iceberg catalog 'other': start it with spark\.jars\.packages=org"):
        changes(spark_lake, []).run(keyed.iceberg_sink("a.b", catalog="other"))


def check_tables(spark, folder, *files):
    """Each row of the program is in its tables once."""
    rows, latest = expected(*files)
    for name, wanted in (("rows", rows), ("latest", latest)):
        delta = spark.read.format("delta").load(str(folder / name))
        assert sorted(map(tuple, delta.collect())) == wanted
        assert iceberg_rows(folder, name) == wanted


def iceberg_rows(folder, name):
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("local", **pyiceberg_options(folder))
    try:
        found = catalog.load_table(f"a.{name}").scan().to_arrow().to_pylist()
        return sorted(tuple(each.values()) for each in found)
    finally:
        catalog.close()


@pytest.mark.long
@pytest.mark.parametrize(
    "kills",
    [
        [("after-1", 0), ("between-2", 1)],
        [("before-0", 0), ("after-0", 0), ("before-2", 1), ("between-3", 1), ("after-3", 2)],
    ],
    ids=["two", "five"],
)
def test_a_program_that_is_killed_at_chosen_moments_writes_each_row_once(spark_lake, tmp_path, kills):
    write_files(tmp_path, 0, 1, 2)
    for place, batch in [*kills, ("none", -1)]:
        status, said = Program("lake_program.main", tmp_path, place, batch).end()
        assert status == (0 if place == "none" else -9), said[-5000:]
    check_tables(spark_lake, tmp_path, 0, 1, 2)


@pytest.mark.long
def test_a_program_that_is_killed_at_random_moments_writes_each_row_once(spark_lake, tmp_path):
    seed = os.environ.get("KEYED_SEED") or str(time.time_ns())
    random = Random(seed)
    write_files(tmp_path, *range(4))
    for _ in range(KILLS):
        program = Program("lake_program.main", tmp_path, "none", -1)
        program.wait_for_lines(random.randrange(1, 12), "TABLE|WRITTEN")
        with suppress(subprocess.TimeoutExpired):
            program.process.wait(random.random() * 2)
        program.kill()
    status, said = Program("lake_program.main", tmp_path, "none", -1).end()
    assert status == 0, said[-5000:]
    try:
        check_tables(spark_lake, tmp_path, *range(4))
    except AssertionError as error:
        error.add_note(f"KEYED_SEED={seed}")
        raise

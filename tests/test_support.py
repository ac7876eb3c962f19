"""The support matrix: each of its jobs in each of its columns; where it claims no support the job has to fail."""

import re
from contextlib import contextmanager
from functools import partial

import pyarrow.parquet as pq
import pytest

import keyed
from docs.generate import MARKED, ROOT
from tests.support import features
from tests.support.features import CHANGELOGS, COLUMNS, FEATURES, ROWS, SCHEMA, SINKS, local, page, table_of
from tests.support.s3 import s3_server
from tests.support.waiting import until

ALL = [
    pytest.param(feature, id=re.sub(r"\W+", "-", f"{heading} {feature.name}").strip("-"))
    for heading, group in FEATURES.items()
    for feature in group
]

#: On Spark one of each kind; the others are long, and most have tests of their own in `tests/keyed/runtimes/spark`.
USUAL = {"State-ValueState", "Joins-IntervalJoin", "Windows-and-aggregates-HoppingEventTimeWindows"}
ON_SPARK = [pytest.param(*each.values, id=each.id, marks=[] if each.id in USUAL else pytest.mark.long) for each in ALL]


def rows_of(output, **options):
    """The rows of a run, in an order of their own."""
    return sorted(tuple(value) for value in output.run(**options).values)


def check(feature, column, work):
    """Do the work of a column; where the feature is missing there, the work has to fail."""
    if column not in feature.missing:
        work()
        return
    with pytest.raises((keyed.KeyedError, AssertionError)):
        work()


@pytest.mark.parametrize("feature", ALL)
def test_local(feature):
    def work():
        assert rows_of(feature.chain(local, {}))

    check(feature, "local", work)


@contextmanager
def tables_of(feature, folder):
    """Run the job of a feature with a changelog, and open its tables."""
    log = keyed.DirectoryChangelog(folder / "log")
    output = feature.chain(local, {"changelog": log, "parallelism": 2})
    output.run(checkpoint=folder / "checkpoint", rows_per_batch=2, drain=False)
    with keyed.tables.open_tables(log, folder / "tables") as tables:
        tables.poll()
        yield tables


@pytest.mark.parametrize("feature", ALL)
def test_tables(feature, tmp_path):
    def work():
        with tables_of(feature, tmp_path) as tables:
            assert any(tables[name].first() is not None for name in tables)

    check(feature, "tables", work)


@pytest.mark.parametrize("feature", ALL)
def test_time_travel(feature, tmp_path):
    def work():
        with tables_of(feature, tmp_path) as tables:

            def at(batch):
                scans = [tables[name].scan(as_of=batch) for name in tables]
                return [(entry.key, entry.entry, str(entry.value)) for scan in scans for entry in scan]

            newest = at(tables.batch)
            assert any(at(batch) != newest for batch in range(tables.batch))

    check(feature, "time travel", work)


@pytest.mark.parametrize("feature", ALL)
def test_rescale(feature, tmp_path):
    """The first rows, and then the others restored at another parallelism: what an undisturbed run gives."""
    options = {"rows_per_batch": 2, "processing_time": lambda: 0}

    def work():
        log = keyed.DirectoryChangelog(tmp_path / "log")
        first = feature.chain(lambda rows: local(rows[:4]), {"changelog": log, "parallelism": 2})
        before = rows_of(first, checkpoint=tmp_path / "first", drain=False, **options)
        second = feature.chain(local, {"restore_from": log, "parallelism": 3})
        after = rows_of(second, checkpoint=tmp_path / "second", drain=True, **options)
        assert sorted(before + after) == rows_of(feature.chain(local, {}), **options)

    check(feature, "rescale", work)


def on_spark(spark, rows):
    """A stream of rows in a DataFrame."""
    return keyed.stream(spark.createDataFrame(rows, SCHEMA), timestamp="at")


@pytest.mark.parametrize("feature", ON_SPARK)
def test_spark(feature, spark):
    def work():
        assert rows_of(feature.chain(partial(on_spark, spark), {})) == rows_of(feature.chain(local, {}))

    check(feature, "Spark", work)


IN_FOLDERS = [sink for sink in SINKS if "Kafka" not in sink.name]
(IN_KAFKA,) = [sink for sink in SINKS if "Kafka" in sink.name]


def check_sink(sink, folder, broker, streams=local, **options):
    """What a run writes is in the sink."""
    made = sink.make(folder, broker)
    sums(streams).run(made, **options)
    # Kafka shows the records of a transaction to readers some time after its commit has returned.
    until(lambda: sorted(sink.read(folder, made)) == SUMS)


@pytest.mark.parametrize("sink", IN_FOLDERS, ids=lambda sink: sink.name)
def test_sinks(sink, tmp_path):
    check_sink(sink, tmp_path, "")


def test_a_sink_in_kafka(kafka, tmp_path):
    check_sink(IN_KAFKA, tmp_path, kafka)


@pytest.mark.long
@pytest.mark.parametrize("sink", IN_FOLDERS, ids=lambda sink: sink.name)
def test_sinks_on_spark(sink, spark, tmp_path):
    check_sink(sink, tmp_path, "", partial(on_spark, spark))


@pytest.mark.long
def test_a_sink_in_kafka_on_spark(spark, kafka, tmp_path):
    check_sink(IN_KAFKA, tmp_path, kafka, partial(on_spark, spark))


#: The others need a server; on Spark they are tested in `tests/keyed/runtimes/spark`.
LOGS_IN_FOLDERS = [name for name in CHANGELOGS if "Kafka" not in name and "ObjectStore" not in name]


@pytest.mark.parametrize("name", LOGS_IN_FOLDERS)
def test_changelogs(name, tmp_path):
    check_changelog(CHANGELOGS[name][1], tmp_path, "", local)


def test_a_changelog_in_kafka(kafka, tmp_path):
    check_changelog(CHANGELOGS["`KafkaChangelog`"][1], tmp_path, kafka, local)


def test_a_changelog_in_an_object_store(tmp_path):
    with s3_server() as server:
        check_changelog(CHANGELOGS["`ObjectStoreChangelog`"][1], tmp_path, server.url, local)


@pytest.mark.long
@pytest.mark.parametrize("name", LOGS_IN_FOLDERS)
def test_changelogs_on_spark(name, spark, tmp_path):
    log = CHANGELOGS[name][1](tmp_path / "log", "")
    (tmp_path / "in").mkdir()
    pq.write_table(table_of(ROWS), tmp_path / "in" / "0.parquet")
    frame = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "in"))
    sums(lambda rows: keyed.stream(frame, timestamp="at"), changelog=log).run(checkpoint=tmp_path / "checkpoint")
    totals = [(change.key, change.value) for change in keyed.recovery.read_changelog(log, "total")]
    assert sorted(totals) == [("a", 8), ("b", 7), ("c", 6)]


def sums(streams=local, **options):
    """The job of a `ValueState`."""
    return FEATURES["State"][0].chain(streams, {"parallelism": 2, **options})


SUMS = [("a", 1), ("a", 4), ("a", 8), ("b", 2), ("b", 7), ("c", 6)]


def check_changelog(make, folder, broker, streams):
    """The last columns of the changelogs: tables, an older batch of them, and a restore at another parallelism."""
    log = make(folder / "log", broker)
    first = sums(lambda rows: streams(rows[:4]), changelog=log)
    before = rows_of(first, checkpoint=folder / "first", rows_per_batch=2, drain=False)
    with keyed.tables.open_tables(log, folder / "tables") as tables:
        tables.poll()
        assert tables["total"].get("a") == 4
        assert tables["total"].get("a", as_of=0) == 1
    second = sums(streams, restore_from=log, parallelism=3)
    assert sorted(before + rows_of(second, checkpoint=folder / "second")) == SUMS


@pytest.mark.parametrize("name", features.TABLES)
def test_queries_of_tables(name, tmp_path):
    log = keyed.DirectoryChangelog(tmp_path / "log")
    sums(changelog=log).run(checkpoint=tmp_path / "checkpoint", rows_per_batch=2, drain=False)
    with keyed.tables.open_tables(log, tmp_path / "tables") as tables:
        tables.poll()
        assert features.TABLES[name](tables)


def test_comparisons_name_only_features_that_are_tested():
    """Names of windows, states, joins, formats, sinks and queries of tables come from the matrix, in every table."""
    names = set(re.findall(r"`(\w+)`", str(features.names_by_group())))
    pages = [*(ROOT / "docs" / "coming-from").glob("*.md"), ROOT / "docs" / "explanation" / "comparison.md"]
    by_hand = {
        (path.name, name)
        for path in pages
        for row in re.findall(r"^\|.*\|$", re.sub(MARKED, "", path.read_text()), re.MULTILINE)
        for name in re.findall(r"`(\w+(?=[`(])|[A-Z]\w+)", row.split("|")[-2])
    }
    assert {each for each in by_hand if each[1] in names} == set()


def test_the_page_is_what_is_tested():
    assert (ROOT / "docs" / "reference" / "support.md").read_text() == page()
    for paths in re.findall(r"`(tests/[\w/.]+)`", page()):
        assert (ROOT / paths).exists()


def test_every_column_has_a_test():
    connect = (ROOT / "tests" / "keyed" / "runtimes" / "spark" / "test_connect.py").read_text()
    tests = {name.removeprefix("test_") for name in globals()} | set(
        re.findall(r"def test_(connect)\(.*feature", connect)
    )
    assert {column.lower().replace(" ", "_") for column in COLUMNS} - tests == set()


def test_every_kind_of_state_and_join_is_in_the_matrix():
    from keyed import joins

    text = page()
    states = {name for name in keyed.__all__ if name.endswith("State") and "Broadcast" not in name}
    wanted = states | {name for name in joins.__all__ if name.endswith(("Join", "CoGroup", "lookup_join"))}
    assert {name for name in wanted - {"LookupJoin"} if f"`{name}`" not in text} == set()

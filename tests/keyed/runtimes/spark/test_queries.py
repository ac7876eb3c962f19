"""Whole queries on a real Spark session."""

import datetime as dt
import time
from decimal import Decimal
from typing import Any

import pyarrow.parquet as pq
import pytest

import keyed
from keyed import bounded_out_of_orderness, collect_sink, errors
from keyed.runtimes.spark.session.spark_session import FORMAT
from tests.keyed.runtimes.conftest import CASES
from tests.keyed.runtimes.spark.functions import (
    BIG,
    COUNTED,
    EVERY,
    POISON,
    SCHEMA,
    Count,
    Remind,
    Show,
    best,
    count,
    expected_counts,
    files_source,
    parquet_rows,
    random_rows,
    write_file,
)
from tests.support.jobs import collect
from tests.support.sqlite_store import SqliteStore
from tests.support.waiting import until

KEYS = [*"abcdefg"]


def test_counts_per_key_go_on_from_run_to_run_under_different_triggers(spark, tmp_path):
    source, checkpoint, out = tmp_path / "in", tmp_path / "ck", tmp_path / "out"
    rows = [random_rows(seed, 50, start=seed * 50) for seed in range(5)]
    for number in range(2):
        write_file(source, number, rows[number])
    counted = count(files_source(spark, source), parallelism=2)
    seen: list[keyed.Progress] = []

    result = keyed.run(counted.to(out), checkpoint=checkpoint, on_progress=seen.append)
    assert [(p.batch_id, p.rows, p.watermark) for p in seen] == [(0, 50, 48), (1, 50, 98)]
    assert result.batches == 2
    assert result.metrics["count"]["rows_in"] == result.metrics["count"]["rows_out"] == 100
    assert abs(seen[-1].processing_time - time.time() * 1000) < 600_000

    query = counted.start(out, checkpoint=checkpoint, trigger="100 milliseconds")
    for number in range(2, 4):
        write_file(source, number, rows[number])
    until(lambda: query.metrics().get("count", {}).get("rows_in", 0) >= 200 or not query.is_active)
    assert query.is_active
    assert query.progress is not None
    query.stop()
    assert not query.is_active

    write_file(source, 4, rows[4])
    result = counted.run(out, checkpoint=checkpoint, drain=True)
    assert result.metrics["count"]["rows_in"] == 250
    assert parquet_rows(out) == expected_counts([row for batch in rows for row in batch])
    # Flat files, no partition columns, nothing left of the staging.
    assert pq.read_schema(next(iter(out.glob("*.parquet")))).names == ["k", "n", "total"]
    assert all(path.name.startswith(("part-", "_keyed-")) for path in out.iterdir())

    # The checkpoint is finished now: without new rows nothing happens, with new rows it refuses.
    result = counted.run(out, checkpoint=checkpoint, drain=True)
    assert result.metrics["count"]["rows_in"] == 250
    write_file(source, 5, rows[0])
    with pytest.raises(keyed.errors.CheckpointFinished, match="drained"):
        counted.run(out, checkpoint=checkpoint)


@pytest.mark.smoke
def test_two_stages_side_outputs_and_the_inner_output_are_one_query_and_equal_the_local_runtime(spark, tmp_path):
    strategy = bounded_out_of_orderness(milliseconds=30)
    batches = [random_rows(seed, 200, start=seed * 200, disorder=60) for seed in range(3)]
    for number, rows in enumerate(batches):
        write_file(tmp_path / "in", number, rows)
    windows, ranked = best(files_source(spark, tmp_path / "in", watermark=strategy), parallelism=2)

    def outputs_of(windows, ranked):
        late, every = windows.side_output(BIG), windows.side_output(EVERY)
        return {"best": ranked, "windows": windows, "late": late, "every": every}

    bound = [output.to(tmp_path / name) for name, output in outputs_of(windows, ranked).items()]
    keyed.run(*bound, checkpoint=tmp_path / "ck", drain=True)

    elements = [{"k": k, "t": t, "v": v} for rows in batches for k, t, v in rows]
    local = outputs_of(*best(keyed.stream(elements, timestamp="t", watermark=strategy), parallelism=2))
    for name, values in zip(local, collect(*local.values(), rows_per_batch=200)[0], strict=True):
        assert parquet_rows(tmp_path / name) == sorted(map(tuple, values)), name
        assert values, name


@pytest.mark.smoke
def test_processing_time_timers_of_idle_groups_fire_by_ticks(spark, tmp_path):
    write_file(tmp_path / "in", 0, [(key, 1, 1) for key in KEYS])
    reminded = files_source(spark, tmp_path / "in").key_by("k").process(Remind(), "k string, due bigint, now bigint")
    out = tmp_path / "out"
    query = reminded.start(out, checkpoint=tmp_path / "ck", trigger="100 milliseconds")
    until(lambda: query.metrics().get("Remind", {}).get("timers_fired", 0) >= len(KEYS) or not query.is_active)
    query.stop()
    rows = parquet_rows(out)
    assert [key for key, _, _ in rows] == KEYS
    assert all(due <= now for _, due, now in rows)


@pytest.mark.smoke
def test_a_batch_dataframe_runs_to_the_end_of_its_input(spark, tmp_path):
    rows = random_rows(1, 300, disorder=20)
    frame = spark.createDataFrame(rows, SCHEMA)
    strategy = bounded_out_of_orderness(milliseconds=50)
    windows, ranked = best(keyed.stream(frame, timestamp="t", watermark=strategy), parallelism=3)
    sink = collect_sink()
    result = keyed.run(
        ranked.to(sink), windows.to(tmp_path / "windows"), windows.side_output(EVERY).to(tmp_path / "every")
    )
    elements = keyed.stream([dict(zip("ktv", row, strict=True)) for row in rows], timestamp="t", watermark=strategy)
    (local_windows, expected), _ = collect(*best(elements))
    assert sorted(result.values) == sorted(sink.values) == sorted(expected) != []
    assert result.values[0]._fields == ("start", "k", "n")
    assert result.metrics["windows"]["timers_pending"] == 0
    assert len(parquet_rows(tmp_path / "windows")) == len(local_windows)
    # As DataFrames, for plain Spark.
    assert ranked.df.count() == len(expected)
    assert windows.side_output(EVERY).df.schema.simpleString() == "struct<k:string,n:bigint>"
    assert windows.side_output(BIG).df.count() == 0


@pytest.mark.smoke
def test_values_reach_the_function_as_rows_of_python_values(spark):
    ddl = (
        "s string, n int, f double, b boolean, x binary, d date, t timestamp, m decimal(10,2), l array<int>, "
        "p map<string,date>, q struct<a:int,r:struct<t:timestamp>>, nothing string"
    )
    day, time_ = dt.date(2020, 2, 29), dt.datetime(2020, 2, 29, 12, tzinfo=dt.UTC)
    row = ("é", 1, 0.5, True, b"x", day, time_, Decimal("1.50"), [1, None], {"k": day}, (1, (time_,)), None)
    stream = keyed.stream(spark.createDataFrame([row], ddl), timestamp="t")
    shown = stream.key_by("s", "t", "m").process(Show(), "value string, key string").run().values
    value = (
        f"Row(s='é', n=1, f=0.5, b=True, x=b'x', d={day!r}, t={time_!r}, m=Decimal('1.50'), l=[1, None], "
        f"p={{'k': {day!r}}}, q=Row(a=1, r=Row(t={time_!r})), nothing=None)"
    )
    # A key is what is stored: of a decimal without the zeros at its end.
    assert shown == [(value, f"('é', {time_!r}, Decimal('1.5'))")]


def test_a_sink_that_fails_once_gets_each_row_once_in_the_end(spark, tmp_path):
    rows = [random_rows(seed, 40, start=seed * 40) for seed in range(3)]
    for number, batch in enumerate(rows):
        write_file(tmp_path / "in", number, batch)
    counted = count(files_source(spark, tmp_path / "in"), parallelism=2)
    got: dict[int, list] = {}
    failed: list[int] = []

    def sink(frame, batch_id):
        if batch_id == 1 and not failed:
            failed.append(batch_id)
            raise OSError("disk full")
        got[batch_id] = sorted(tuple(row) for row in frame.collect())

    outputs = counted.to(tmp_path / "out"), counted.side_output(BIG).to(tmp_path / "big"), counted.to(sink)
    with pytest.raises(errors.QueryFailed, match="disk full") as caught:
        keyed.run(*outputs, checkpoint=tmp_path / "ck")
    assert isinstance(caught.value.__cause__, OSError)
    result = keyed.run(*outputs, checkpoint=tmp_path / "ck")
    assert result.metrics["count"]["rows_in"] == 120
    everything = expected_counts([row for batch in rows for row in batch])
    assert parquet_rows(tmp_path / "out") == everything
    assert sorted(row for batch in got.values() for row in batch) == everything
    assert parquet_rows(tmp_path / "big") == sorted(row for batch in rows for row in batch if row[2] > 90)


def test_an_error_of_the_function_names_operator_key_and_element_and_loses_nothing(spark, tmp_path):
    write_file(tmp_path / "in", 0, [("a", 1, 1)])
    write_file(tmp_path / "in", 1, [("b", 2, 1), ("a", 3, POISON)])
    counted = count(files_source(spark, tmp_path / "in"), parallelism=2)
    with pytest.raises(errors.UserFunctionError) as caught:
        counted.run(tmp_path / "out", checkpoint=tmp_path / "ck")
    for said in ("'count'", "process_element", "key 'a'", "v=-13", "ValueError: poison"):
        assert said in str(caught.value)
    assert parquet_rows(tmp_path / "out") == [("a", 1, 1)]
    # Another number of key groups is refused, whoever starts the query; the old number goes on.
    with pytest.raises(errors.ParallelismChanged, match="has 2 key groups, and the query has 3"):
        count(files_source(spark, tmp_path / "in"), parallelism=3).run(tmp_path / "out", checkpoint=tmp_path / "ck")
    write_file(tmp_path / "in", 1, [("b", 2, 1), ("a", 3, 4)])
    count(files_source(spark, tmp_path / "in")).run(tmp_path / "out", checkpoint=tmp_path / "ck")
    assert parquet_rows(tmp_path / "out") == [("a", 1, 1), ("a", 2, 5), ("b", 1, 1)]


def test_a_plain_write_stream_works_and_reports_the_counters(spark, tmp_path):
    write_file(tmp_path / "in", 0, random_rows(1, 60))
    counted = count(files_source(spark, tmp_path / "in"), parallelism=2)
    writer = counted.df.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "ck"))
    query = writer.option("path", str(tmp_path / "out")).trigger(availableNow=True).start()
    query.awaitTermination()
    assert parquet_rows(tmp_path / "out") == expected_counts(random_rows(1, 60))
    metrics = keyed.recovery.spark_metrics(query.lastProgress)["count"]
    assert (metrics["rows_in"], metrics["rows_out"], metrics["watermark"]) == (60, 60, 58)


def test_workers_share_a_store_by_default_and_open_one_of_a_third_party(spark, tmp_path):
    rows = [random_rows(seed, 60, start=seed * 60) for seed in range(3)]
    options: tuple[dict[str, Any], ...] = ({}, {"store": SqliteStore}, {"store": "memory"})
    found = []
    for number, (batch, option) in enumerate(zip(rows, options, strict=True)):
        write_file(tmp_path / "in", number, batch)
        counted = count(files_source(spark, tmp_path / "in"), parallelism=2, **option)
        result = counted.run(tmp_path / "out", checkpoint=tmp_path / "ck", local_dir=tmp_path / "stores")
        found.append(result.metrics["count"])
    assert parquet_rows(tmp_path / "out") == expected_counts([row for batch in rows for row in batch])
    assert [each["store_copies"] for each in found] == [2, 2, 2]
    assert len(list((tmp_path / "stores").rglob("data.mdb"))) == 2
    assert len(list((tmp_path / "stores").rglob("entries.db"))) == 2


@pytest.mark.slow
def test_files_of_state_have_names_of_their_own_and_earlier_checkpoints_go_on(spark, tmp_path, monkeypatch):
    if tuple(map(int, spark.version.split(".")[:2])) < (4, 3):
        pytest.skip("an earlier Spark does not read both versions")
    rows = [random_rows(seed, 60, start=seed * 60) for seed in range(3)]
    log = keyed.DirectoryChangelog(tmp_path / "log")

    def run(number, checkpoint, changelog=None):
        write_file(tmp_path / "in", number, rows[number])
        counted = count(files_source(spark, tmp_path / "in"), parallelism=2, changelog=changelog)
        counted.run(tmp_path / f"out-{checkpoint}", checkpoint=tmp_path / checkpoint)
        newest = max((tmp_path / checkpoint / "commits").glob("[0-9]*"), key=lambda each: int(each.name))
        return newest.read_text().split("\n")[0]

    monkeypatch.setattr("keyed.runtimes.spark.session.spark_session._FORMAT_SINCE", (99,))
    spark.conf.set(FORMAT, "1")
    assert run(0, "earlier", log) == "v1"
    monkeypatch.undo()
    # A session with its own settings: a query sets this one while it starts.
    assert run(1, "earlier", log) == "v1"
    assert run(2, "new") == "v2"
    assert spark.conf.get(FORMAT) == "1"
    assert parquet_rows(tmp_path / "out-earlier") == expected_counts([row for batch in rows[:2] for row in batch])
    assert parquet_rows(tmp_path / "out-new") == expected_counts([row for batch in rows for row in batch])
    for checkpoint in ("earlier", "new"):
        assert [each.problem for each in keyed.recovery.verify(tmp_path / checkpoint)] == ["", ""]


def frame(spark, ddl=SCHEMA):
    return spark.createDataFrame([], ddl)


@pytest.mark.smoke
@pytest.mark.parametrize(("options", "message"), CASES["chains that Spark refuses"])
def test_a_wrong_definition_is_refused_before_the_first_row(spark, options, message):
    stream = keyed.stream(frame(spark, options.get("columns", SCHEMA)), timestamp=options.get("timestamp"))
    output = stream.key_by(options.get("key", "k")).process(Count(), options.get("output", COUNTED))
    with pytest.raises(errors.DefinitionError) as caught:
        output.run()
    assert message in str(caught.value)


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("chain", "message"),
    [
        (lambda rows: keyed.stream(rows, timestamp=lambda e: 1).key_by("k"), "must be a column name on Spark"),
        (lambda rows: keyed.stream(rows).key_by(lambda e: 1), "takes column names on Spark"),
        (lambda rows: keyed.stream(rows.select("k", "k")).key_by("k"), "'k' twice"),
        (
            lambda rows: keyed.stream(rows).key_by("k").process(Count(), COUNTED, name="a", parallelism=3).key_by("k"),
            "have parallelism 3 and 2",
        ),
    ],
)
def test_a_wrong_chain_is_refused_before_the_first_row(spark, chain, message):
    with pytest.raises(errors.DefinitionError) as caught:
        chain(frame(spark)).process(Count(), COUNTED, parallelism=2).run()
    assert message in str(caught.value)


@pytest.mark.smoke
def test_wrong_options_are_refused(spark, tmp_path):
    batch = count(keyed.stream(frame(spark), timestamp="t"))
    streaming = count(files_source(spark, tmp_path / "in"))
    with pytest.raises(errors.DefinitionError, match="needs checkpoint"):
        streaming.run()
    with pytest.raises(TypeError, match="'chekpoint'"):
        streaming.run(chekpoint=tmp_path)
    with pytest.raises(
        errors.DefinitionError, match=r"rows_per_batch=7 is for the local runtime; .* maxFilesPerTrigger"
    ):
        streaming.run(checkpoint=tmp_path / "ck", rows_per_batch=7)
    assert not (tmp_path / "ck").exists()
    with pytest.raises(errors.DefinitionError, match="takes run"):
        batch.start(collect_sink(), checkpoint=tmp_path / "ck")
    with pytest.raises(errors.DefinitionError, match="drain=True is for run"):
        streaming.start(collect_sink(), checkpoint=tmp_path / "ck", drain=True)
    frame_ = spark.readStream.schema("k string").json(str(tmp_path))
    twice = count(keyed.stream(frame_).union(keyed.stream(frame_.where("k > ''"))))
    with pytest.raises(errors.DefinitionError, match="reads one streaming DataFrame twice"):
        twice.run(checkpoint=tmp_path / "ck", tables=tmp_path / "tables")
    without = count(files_source(spark, tmp_path / "in", ticks=False))
    write_file(tmp_path / "in", 0, [("a", 1, 1)])
    with pytest.raises(errors.DefinitionError, match="leave out ticks=False"):
        without.run(checkpoint=tmp_path / "ck", drain=True)

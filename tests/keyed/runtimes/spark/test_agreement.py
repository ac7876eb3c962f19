"""Local = Spark: the same random functions over the same batches give the same outputs, timers, state and counters."""

import collections
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import keyed
from keyed import KeyedProcessFunction, VersionedState, windows
from keyed.joins import AsyncLookup, lookup_join
from keyed.windows import CollectSet, Count, Latest, Mean, Sum
from tests.keyed.runtimes.conftest import Runtime, SparkRuntime
from tests.keyed.runtimes.spark import random_program, random_table_program
from tests.keyed.runtimes.spark.functions import SCHEMA, files, random_rows, upper, write_table
from tests.support.jobs import collect
from tests.support.tables import poll_tables

#: Seeds of the programs; ``KEYED_AGREEMENT=20`` tries as many.
SEEDS = range(int(os.environ.get("KEYED_AGREEMENT", "2")))
COUNTERS = ["rows_in", "rows_out", "rows_late", "rows_side_output", "rows_dropped", "entries_expired"]
COUNTERS += ["timers_registered", "timers_fired", "timers_pending", "live_entries", "live_bytes"]


def outcome(program, source, parallelism, store, **options):
    stream = keyed.stream(source, timestamp="t", watermark=keyed.bounded_out_of_orderness(milliseconds=10))
    declared = {"parallelism": parallelism, "store": store, "name": "scripted"}
    output = stream.key_by("k").process(program.Scripted(), output=program.OUTPUT, **declared)
    (main, side), result = collect(output, output.side_output(program.SIDE), drain=True, **options)
    # Per key the order of a function over rows is that of events; over keys it depends on the groups.
    by_key: dict[str, list[str]] = collections.defaultdict(list)
    for row in main:
        by_key[row.k].append(repr(row))
    if program is random_table_program:
        by_key = {key: sorted(rows) for key, rows in by_key.items()}
    return by_key, sorted(map(repr, side)), {name: result.metrics["scripted"].get(name, 0) for name in COUNTERS}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("program", [random_program, random_table_program], ids=["rows", "columns"])
def test_random_functions_do_on_spark_what_they_do_locally(spark, tmp_path, program, seed):
    inputs = program.batches(seed, count=4, size=150)
    for number, table in enumerate(inputs):
        write_table(tmp_path / "in", number, table)
    # With a checkpoint the local runtime has bytes to count.
    options = {"rows_per_batch": 150, "checkpoint": tmp_path / "local"}
    expected = outcome(program, pa.concat_tables(inputs), 1, "memory", **options)
    assert all(expected)
    assert program is random_table_program or expected[2]["timers_fired"] > 100
    source = files(spark, tmp_path / "in", program.INPUT)
    found = outcome(program, source, 2, "rocksdb" if seed % 2 else "memory", checkpoint=tmp_path / "ck")
    assert found == expected, f"seed {seed}"


# Jobs with a changelog ------------------------------------------------------------------------------------------------


class Versions(KeyedProcessFunction):
    state = VersionedState(int, history=30)

    def process_element(self, value, ctx):
        at = value.t - value.v % 50
        ended = self.state.put(value.v or None, at)
        was = self.state.get(value.t - 25)
        yield value.k, at, ended, was and was.value, len(self.state.get_range(at, value.t))


CHOSEN = {"n": Count(), "sum": Sum("v"), "mean": Mean("v"), "last": Latest("v", by_time=True), "seen": CollectSet("v")}


def process_versions(stream, **options):
    return stream.process(Versions(), "k string, at bigint, ended bigint, was bigint, n bigint", **options)


def aggregate_columns(stream, **options):
    return windows.aggregate(stream, CHOSEN, path="vectorized", **options)


def aggregate_rows(stream, **options):
    return windows.aggregate(stream, CHOSEN, path="row", **options)


def look_up(stream, **options):
    lookup = AsyncLookup(upper, concurrency=4)
    return lookup_join(stream, lookup, "name string, n bigint", how="inner", input=SCHEMA, **options)


@pytest.mark.parametrize(
    "job",
    [
        aggregate_columns,
        look_up,
        pytest.param(aggregate_rows, marks=pytest.mark.long),
        pytest.param(process_versions, marks=pytest.mark.long),
    ],
)
def test_outputs_counters_and_tables_are_those_of_the_local_runtime(spark, tmp_path, job):
    found = []
    for name, runtime in (("spark", SparkRuntime(spark)), ("local", Runtime())):
        folder = tmp_path / name
        for number in range(3):
            runtime.add(folder / "in", random_rows(number, 60, number * 60, 10, "abc"))
        source = runtime.source(folder / "in", watermark=keyed.bounded_out_of_orderness(milliseconds=20))
        log = keyed.DirectoryChangelog(folder / "log")
        output = job(source.key_by("k"), name="job", parallelism=2, changelog=log)
        result = output.run(folder / "out", checkpoint=folder / "checkpoint", drain=False, **runtime.batches)
        names = ("rows_in", "entries_expired", "versions_dropped", "live_entries")
        counters = {name: result.metrics["job"].get(name, 0) for name in names}
        with poll_tables(log, folder / "tables") as tables:
            entries = [repr((entry.key, entry.entry, entry.value)) for table in tables.values() for entry in table]
        rows = pq.read_table(folder / "out").to_pylist()
        found.append((sorted(map(repr, rows)), counters, sorted(entries)))
    assert found[0] == found[1]
    assert found[0][0]
    assert job is not process_versions or min(found[0][1].values()) > 0

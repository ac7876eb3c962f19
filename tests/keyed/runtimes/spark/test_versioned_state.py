"""Versioned state on Spark: the same answers, entries and tables as in the local runtime."""

import random

import pyarrow.parquet as pq
import pytest

import keyed
from keyed import KeyedProcessFunction, VersionedState, bounded_out_of_orderness
from tests.keyed.runtimes.spark.functions import files_source, write_file

LATENESS = bounded_out_of_orderness(milliseconds=20)


class Versions(KeyedProcessFunction):
    state = VersionedState(int, history=30)

    def process_element(self, value, ctx):
        at = value.t - value.v % 50
        ended = self.state.put(value.v or None, at)
        was = self.state.get(value.t - 25)
        yield value.k, at, ended, was and was.value, len(self.state.get_range(at, value.t))


def rows_of(number):
    chance = random.Random(number)
    return [(chance.choice("abc"), number * 60 + i + chance.randint(0, 10), chance.randrange(90)) for i in range(60)]


def rows_of_sink(folder):
    return sorted((tuple(row.values()) for row in pq.read_table(folder).to_pylist()), key=repr)


@pytest.mark.long
def test_versions_are_the_same_as_in_the_local_runtime(spark, tmp_path):
    schema = "k string, at bigint, ended bigint, was bigint, n bigint"
    for number in range(3):
        write_file(tmp_path / "in", number, rows_of(number))

    def versions(source, log):
        return source.key_by("k").process(
            Versions(), schema, name="versions", parallelism=2, changelog=keyed.DirectoryChangelog(log)
        )

    source = files_source(spark, tmp_path / "in", watermark=LATENESS)
    on_spark = keyed.run(
        versions(source, tmp_path / "spark-log").to(tmp_path / "out"), checkpoint=tmp_path / "spark", drain=False
    )
    batches = [[{"k": k, "t": t, "v": v} for k, t, v in rows_of(number)] for number in range(3)]
    rows = keyed.stream([row for rows in batches for row in rows], timestamp="t", watermark=LATENESS)
    local = keyed.run(
        versions(rows, tmp_path / "local-log").to(tmp_path / "local-out"),
        checkpoint=tmp_path / "local",
        rows_per_batch=60,
        drain=False,
    )

    assert rows_of_sink(tmp_path / "out") == rows_of_sink(tmp_path / "local-out")
    names = ("rows_in", "entries_expired", "versions_dropped", "live_entries")
    counted = [{name: result.metrics["versions"][name] for name in names} for result in (on_spark, local)]
    assert counted[0] == counted[1]
    assert min(counted[0].values()) > 0
    found = []
    for log in ("spark-log", "local-log"):
        with keyed.tables.open_tables(keyed.DirectoryChangelog(tmp_path / log), tmp_path / f"{log}-tables") as tables:
            tables.poll()
            found.append([(entry.key, entry.entry, entry.value) for entry in tables["state"]])
            assert tables["state"].get("a") == tables["state"].get("a", 10_000)
    assert found[0] == found[1]

"""Graphs on Spark whose branches meet again and whose sources are shared: each operator gives what it gives alone."""

import os
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import keyed
from keyed import DirectoryChangelog
from tests.keyed.runtimes.spark.random_graph import ROW, Graph, Operator, build, expected, streams

X = [{"k": "ab"[i % 2], "g": i % 3 // 2, "v": i * 7 % 10, "t": i * 2 - i % 3} for i in range(24)]
Y = [{"k": "ba"[i % 3 // 2], "g": i % 2, "v": i * 3 % 8, "t": i * 3 - i % 2} for i in range(16)]

#: x and y are read by two operators, one of which reads an output too; the branches of m0 meet in m2.
GRAPH = Graph(
    {"x": X, "y": Y},
    {
        "m0": Operator("split", "k", (("x",),)),
        "m1": Operator("windows", "g", (("m0-odd", "y", "x"),)),
        "m2": Operator("connected", "k", (("m0", "m1"), ("y", "m0-odd"))),
    },
)


def write(folder, number, rows):
    """Write rows as one file of a source that takes one file a batch, in the order of the numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / f"_{number}")
    os.utime(folder / f"_{number}", (1_600_000_000 + number,) * 2)
    (folder / f"_{number}").rename(folder / f"part-{number}.parquet")


def run(sources, log=lambda name: {}, parallelism=2, **options):
    outputs = build(GRAPH, streams(sources), log, parallelism=parallelism)
    sinks = {name: keyed.collect_sink() for name in outputs}
    result = keyed.run(*(output.to(sinks[name]) for name, output in outputs.items()), **options)
    return {name: Counter(map(tuple, sink.values)) for name, sink in sinks.items()}, result


def test_batch_dataframes_are_read_once_and_give_what_operators_give_by_themselves(spark):
    frames = {
        name: spark.createDataFrame(list(map(tuple, (row.values() for row in rows))), ROW)
        for name, rows in GRAPH.sources.items()
    }
    found, _ = run(frames)
    assert found == expected(GRAPH)
    outputs = build(GRAPH, streams(frames), parallelism=2)
    plan = outputs["m2"].df._jdf.queryExecution().executedPlan().toString()
    assert plan.count("Exchange hashpartitioning") == 4


@pytest.mark.long
def test_a_graph_over_streams_goes_on_and_is_restored_with_another_parallelism(spark, tmp_path):
    reader = spark.readStream.schema(ROW).option("maxFilesPerTrigger", 1)
    for name in "xy":
        write(tmp_path / name, 0, GRAPH.sources[name][:8])
    sources = {name: reader.parquet(str(tmp_path / name)) for name in "xy"}

    def logs(run, before=None):
        def log(name):
            made = {"changelog": DirectoryChangelog(tmp_path / run / name)}
            return made | ({"restore_from": DirectoryChangelog(tmp_path / before / name)} if before else {})

        return log

    parts = [run(sources, logs("one"), checkpoint=tmp_path / "ck")[0]]
    for name in "xy":
        write(tmp_path / name, 1, GRAPH.sources[name][8:11])
    parts.append(run(sources, logs("one"), checkpoint=tmp_path / "ck")[0])
    write(tmp_path / "x", 2, X[11:])
    write(tmp_path / "y", 2, Y[11:])
    found, result = run(sources, logs("two", "one"), 3, checkpoint=tmp_path / "ck2", drain=True)
    assert result.restored is not None
    assert result.restored.with_position
    parts.append(found)
    assert {name: sum((part[name] for part in parts), Counter()) for name in found} == expected(GRAPH)

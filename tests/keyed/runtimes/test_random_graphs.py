"""Random graphs: each operator gives what it gives by itself, over what those before it have given."""

import tempfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyed import DirectoryChangelog
from tests.keyed.runtimes.spark.functions import files, write_table
from tests.keyed.runtimes.spark.random_graph import ROW, Graph, Operator, build, expected, graphs, streams
from tests.support.jobs import collect


def run(graph, sources, log=lambda name: {}, parallelism=1, *, reverse=False, **options):
    """Run a graph, and return what each output has, and the result."""
    outputs = [*build(graph, streams(sources), log, parallelism=parallelism).items()]
    names, bound = zip(*(outputs[::-1] if reverse else outputs), strict=True)
    values, result = collect(*bound, **options)
    return {name: Counter(map(tuple, rows)) for name, rows in zip(names, values, strict=True)}, result


def logs(folder, run, before=None):
    """The options of an operator with a changelog of a run, restored from one of a run before."""

    def log(name):
        options = {"changelog": DirectoryChangelog(folder / run / name)}
        return options | ({"restore_from": DirectoryChangelog(folder / before / name)} if before else {})

    return log


@given(graph=graphs(), size=st.integers(1, 7), parallelism=st.integers(1, 3))
def test_operators_give_together_what_they_give_one_after_the_other(graph, size, parallelism):
    found, _ = run(graph, graph.sources, parallelism=parallelism, rows_per_batch=size)
    assert found == expected(graph)


@settings(max_examples=10)
@given(graph=graphs(most=3), size=st.integers(1, 5), read=st.integers(0, 8), restored=st.booleans(), data=st.data())
def test_a_graph_goes_on_from_its_checkpoint_or_changelogs(graph, size, read, restored, data):
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)

        first = {name: rows[:read] for name, rows in graph.sources.items()}
        one = logs(place, "one")
        parts = [run(graph, first, one, 2, checkpoint=place / "ck", drain=False, rows_per_batch=size)[0]]
        # The outputs may be named in another order than before.
        options = {"rows_per_batch": size, "drain": True, "reverse": True}
        if restored and any(first.values()):
            other = data.draw(st.integers(1, 3))
            two = logs(place, "two", "one")
            parts.append(run(graph, graph.sources, two, other, checkpoint=place / "ck2", **options)[0])
        else:
            parts.append(run(graph, graph.sources, one, 2, checkpoint=place / "ck", **options)[0])
        assert {name: sum((part[name] for part in parts), Counter()) for name in parts[0]} == expected(graph)


# On Spark ------------------------------------------------------------------------------------------------------------


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


def test_batch_dataframes_are_read_once_and_give_what_operators_give_by_themselves(spark):
    frames = {
        name: spark.createDataFrame(list(map(tuple, (row.values() for row in rows))), ROW)
        for name, rows in GRAPH.sources.items()
    }
    found, _ = run(GRAPH, frames, parallelism=2)
    assert found == expected(GRAPH)
    outputs = build(GRAPH, streams(frames), parallelism=2)
    plan = outputs["m2"].df._jdf.queryExecution().executedPlan().toString()
    assert plan.count("Exchange hashpartitioning") == 4


@pytest.mark.long
def test_a_graph_over_streams_goes_on_and_is_restored_with_another_parallelism(spark, tmp_path):
    for name in "xy":
        write_table(tmp_path / name, 0, pa.Table.from_pylist(GRAPH.sources[name][:8]))
    sources = {name: files(spark, tmp_path / name, ROW) for name in "xy"}

    parts = [run(GRAPH, sources, logs(tmp_path, "one"), 2, checkpoint=tmp_path / "ck")[0]]
    for name in "xy":
        write_table(tmp_path / name, 1, pa.Table.from_pylist(GRAPH.sources[name][8:11]))
    parts.append(run(GRAPH, sources, logs(tmp_path, "one"), 2, checkpoint=tmp_path / "ck")[0])
    write_table(tmp_path / "x", 2, pa.Table.from_pylist(X[11:]))
    write_table(tmp_path / "y", 2, pa.Table.from_pylist(Y[11:]))
    found, result = run(GRAPH, sources, logs(tmp_path, "two", "one"), 3, checkpoint=tmp_path / "ck2", drain=True)
    assert result.restored is not None
    assert result.restored.with_position
    parts.append(found)
    assert {name: sum((part[name] for part in parts), Counter()) for name in found} == expected(GRAPH)

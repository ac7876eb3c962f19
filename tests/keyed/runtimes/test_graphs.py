"""Graphs: side outputs that are keyed and processed, and outputs that feed several operators, in one query."""

import pytest

import keyed
from keyed.errors import DefinitionError
from tests.keyed.runtimes.conftest import long_on_spark
from tests.keyed.runtimes.spark.functions import ODD, SCHEMA, Both, Running, Split
from tests.support.explained import explained
from tests.support.jobs import Sides, Tally, collect


def rows_of(values):
    return [{"k": f"k{v % 3}", "t": t, "v": v} for t, v in enumerate(values)]


def split(source, **options):
    stream = keyed.stream(source, timestamp="t", watermark=keyed.bounded_out_of_orderness(3))
    return stream.key_by("k").process(Split(), SCHEMA, name="split", **options)


def test_bad_rows_can_be_keyed_and_processed_too(runtime):
    bad = keyed.OutputTag("bad", SCHEMA)
    rows = [(None, 3, 1), ("a", 5, 1), ("b", 4, 1)]
    stream = runtime.stream(rows, timestamp="t", on_bad_row=bad)
    first = stream.key_by("k").process(Split(), SCHEMA, name="split")
    again = first.side_output(bad).key_by("v").process(Split(), SCHEMA, name="bad", parallelism=2)
    assert list(map(tuple, again.side_output(ODD).run().values)) == [(None, 3, 1)]


def test_a_source_feeds_two_operators_and_is_read_once():
    read = []

    def rows():
        for row in rows_of(range(8)):
            read.append(row)
            yield {**row, "l": [row["v"]]}

    class Spoils(keyed.KeyedProcessFunction):
        def process_element(self, value, ctx):
            value.l.append(value.k)
            yield ctx.get_current_key(), *value.l

    stream = keyed.stream(rows(), timestamp="t")
    outputs = [stream.key_by(key).process(Spoils(), name=key) for key in ("k", "v")]
    values, _ = collect(*outputs, rows_per_batch=3)
    assert len(read) == 8
    assert values == [[(f"k{v % 3}", v, f"k{v % 3}") for v in range(8)], [(v, v, f"k{v % 3}") for v in range(8)]]


def test_bad_rows_of_a_shared_source_are_those_of_each_operator():
    bad = keyed.OutputTag("bad")
    rows = [{"k": None, "v": 1, "t": 1}, {"k": "a", "v": None, "t": 2}, {"k": "a", "v": 2, "t": None}]
    stream = keyed.stream(rows, timestamp="t", on_bad_row=bad)

    values, _ = collect(*(stream.key_by(key).process(Tally(), name=key).side_output(bad) for key in "kv"))
    rows_by_key = [[(row.k, row.v, row.t) for row in each] for each in values]
    assert rows_by_key == [[(None, 1, 1), ("a", 2, None)], [("a", None, 2), ("a", 2, None)]]


def test_an_output_and_its_own_result_meet_again():
    first = split(rows_of(range(20)))
    sums = first.key_by("k").process(Running(), SCHEMA, name="sums")

    met = first.connect(sums).key_by("k").process(Sides()).run(rows_per_batch=4).values
    rows = [tuple(value) for side, value in met if side == 1]
    assert rows == [(f"k{v % 3}", v, v) for v in range(0, 20, 2)]
    # Rows of one time run in the order of the sides.
    assert [side for side, value in met if value[1] == 0] == [1, 2]


def test_an_operator_behind_an_idle_one_does_not_wait_for_it():
    clock = [0]

    def left():
        for t in range(0, 60, 10):
            clock[0] += 100
            yield {"k": "a", "v": 0, "t": t}
            yield keyed.PAUSE

    idle = keyed.bounded_out_of_orderness(0).with_idleness(250)
    one = keyed.stream(left(), timestamp="t").key_by("k").process(Split(), SCHEMA, name="one")
    other = keyed.stream([], timestamp="t", watermark=idle).key_by("k").process(Split(), SCHEMA, name="other")
    seen = []
    one.union(other).key_by("k").process(Running(), SCHEMA).run(
        processing_time=lambda: clock[0], drain=False, on_progress=lambda each: seen.append(each.metrics)
    )
    assert seen[-1]["Running"]["timers_pending"] < 6


def test_names_and_changelogs_are_one_operators_over_the_whole_graph(tmp_path):
    first = split(rows_of([1]))
    log = keyed.DirectoryChangelog(tmp_path)

    def twice(**options):
        return [
            each.key_by("k").process(Running(), SCHEMA, **{"name": name, **options}).to(keyed.collect_sink())
            for name, each in (("a", first), ("b", first.side_output(ODD)))
        ]

    with pytest.raises(DefinitionError, match="operator name 'same' is used twice"):
        keyed.run(*twice(name="same"))
    with pytest.raises(DefinitionError, match="is used by two operators of this query"):
        keyed.run(*twice(changelog=log))
    with pytest.raises(DefinitionError, match="key column 'z' is not in side output 'odd' of 'split': k, t, v"):
        first.side_output(ODD).key_by("z").process(Running())


@long_on_spark
def test_a_graph_of_chained_operators_over_two_sources_keeps_tables(runtime, tmp_path):
    runtime.add(tmp_path / "in", [("a", 1, 1), ("b", 2, 2), ("a", 3, 4), ("c", 4, 3), ("b", 5, 6)])
    runtime.add(tmp_path / "more", [("a", 5, 7), ("d", 6, 8)])
    first = runtime.source(tmp_path / "in").key_by("k").process(Split(), SCHEMA, name="split", parallelism=2)
    sums = first.key_by("k").process(Running(), SCHEMA, name="sums", parallelism=2)
    met = first.side_output(ODD).connect(runtime.source(tmp_path / "more"))
    both = met.key_by("k").process(Both(), "k string, first int, second int", name="both", parallelism=2)
    assert "sums: chained to split" in explained(sums, both)
    bound = (output.to(keyed.collect_sink()) for output in (sums, both))
    options = {"tables": tmp_path / "tables", "checkpoint": tmp_path / "ck", "drain": True, **runtime.batches}
    with keyed.run(*bound, **options).tables as tables:
        assert {entry.key: entry.value for entry in tables["total"].scan()} == {"a": 4, "b": 8}
        assert {entry.key: entry.value for entry in tables["seen"].scan()} == {"a": (1, 1), "c": (1, 0), "d": (0, 1)}

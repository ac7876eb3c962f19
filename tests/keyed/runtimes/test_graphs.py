"""Graphs: side outputs that are keyed and processed, and outputs that feed several operators, in one query."""

import pytest

import keyed
from keyed.errors import DefinitionError

ODD = keyed.OutputTag("odd", "k string, v bigint, t bigint")
ROW = "k string, v bigint, t bigint"


class Split(keyed.KeyedProcessFunction):
    """Hands rows on; odd ones go to a side output."""

    seen = keyed.ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.seen.update(self.seen.value() + 1)
        if value.v % 2:
            ctx.output(ODD, tuple(value))
        else:
            yield tuple(value)


class Running(keyed.KeyedProcessFunction):
    """The sum so far, and a timer 10 ms later that says it too."""

    total = keyed.ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.total.update(self.total.value() + value.v)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10)
        yield ctx.get_current_key(), self.total.value(), ctx.timestamp()

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), self.total.value(), timestamp


class Sums(keyed.KeyedProcessFunction):
    """The sum so far."""

    total = keyed.ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.total.update(self.total.value() + value.v)
        yield ctx.get_current_key(), self.total.value(), ctx.timestamp()


def rows_of(values):
    return [{"k": f"k{v % 3}", "v": v, "t": t} for t, v in enumerate(values)]


def split(source, **options):
    stream = keyed.stream(source, timestamp="t", watermark=keyed.bounded_out_of_orderness(3))
    return stream.key_by("k").process(Split(), ROW, name="split", **options)


def test_bad_rows_can_be_keyed_and_processed_too(runtime):
    bad = keyed.OutputTag("bad", "k string, v bigint, t bigint")
    rows = [(None, 1, 3), ("a", 1, 5), ("b", 1, 4)]
    stream = runtime.stream(rows, "k string, v bigint, t bigint", timestamp="t", on_bad_row=bad)
    first = stream.key_by("k").process(Split(), ROW, name="split")
    again = first.side_output(bad).key_by("v").process(Split(), ROW, name="bad", parallelism=2)
    assert list(map(tuple, again.side_output(ODD).run().values)) == [(None, 1, 3)]


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
    sinks = [keyed.collect_sink(), keyed.collect_sink()]
    outputs = [stream.key_by(key).process(Spoils(), name=key) for key in ("k", "v")]
    keyed.run(*(output.to(sink) for output, sink in zip(outputs, sinks, strict=True)), rows_per_batch=3)
    assert len(read) == 8
    assert sinks[0].values == [(f"k{v % 3}", v, f"k{v % 3}") for v in range(8)]
    assert sinks[1].values == [(v, v, f"k{v % 3}") for v in range(8)]


def test_bad_rows_of_a_shared_source_are_those_of_each_operator():
    bad = keyed.OutputTag("bad")
    rows = [{"k": None, "v": 1, "t": 1}, {"k": "a", "v": None, "t": 2}, {"k": "a", "v": 2, "t": None}]
    stream = keyed.stream(rows, timestamp="t", on_bad_row=bad)

    class Keys(keyed.KeyedProcessFunction):
        def process_element(self, value, ctx):
            yield ctx.get_current_key()

    sinks = {key: keyed.collect_sink() for key in "kv"}
    outputs = [stream.key_by(key).process(Keys(), name=key).side_output(bad).to(sinks[key]) for key in sinks]
    keyed.run(*outputs)
    assert {key: [(row.k, row.v, row.t) for row in sink.values] for key, sink in sinks.items()} == {
        "k": [(None, 1, 1), ("a", 2, None)],
        "v": [("a", None, 2), ("a", 2, None)],
    }


def test_an_output_and_its_own_result_meet_again():
    first = split(rows_of(range(20)))
    sums = first.key_by("k").process(Running(), ROW, name="sums")

    class Both(keyed.KeyedCoProcessFunction):
        def process_element1(self, value, ctx):
            yield "row", tuple(value)

        def process_element2(self, value, ctx):
            yield "sum", tuple(value)

    met = first.connect(sums).key_by("k").process(Both()).run(rows_per_batch=4).values
    rows = [value for kind, value in met if kind == "row"]
    assert rows == [(f"k{v % 3}", v, v) for v in range(0, 20, 2)]
    # Rows of one time run in the order of the sides.
    firsts = [kind for kind, value in met if value[2] == 0]
    assert firsts == ["row", "sum"]


def test_an_operator_behind_an_idle_one_does_not_wait_for_it():
    clock = [0]

    def left():
        for t in range(0, 60, 10):
            clock[0] += 100
            yield {"k": "a", "v": 0, "t": t}
            yield keyed.PAUSE

    idle = keyed.bounded_out_of_orderness(0).with_idleness(250)
    one = keyed.stream(left(), timestamp="t").key_by("k").process(Split(), ROW, name="one")
    other = keyed.stream([], timestamp="t", watermark=idle).key_by("k").process(Split(), ROW, name="other")
    seen = []
    one.union(other).key_by("k").process(Running(), ROW).run(
        processing_time=lambda: clock[0], drain=False, on_progress=lambda each: seen.append(each.metrics)
    )
    assert seen[-1]["Running"]["timers_pending"] < 6


def test_names_and_changelogs_are_one_operators_over_the_whole_graph(tmp_path):
    first = split(rows_of([1]))
    log = keyed.DirectoryChangelog(tmp_path)

    def twice(**options):
        return [
            each.key_by("k").process(Running(), ROW, **{"name": name, **options}).to(keyed.collect_sink())
            for name, each in (("a", first), ("b", first.side_output(ODD)))
        ]

    with pytest.raises(DefinitionError, match="operator name 'same' is used twice"):
        keyed.run(*twice(name="same"))
    with pytest.raises(DefinitionError, match="is used by two operators of this query"):
        keyed.run(*twice(changelog=log))
    with pytest.raises(DefinitionError, match="key column 'z' is not in side output 'odd' of 'split': k, v, t"):
        first.side_output(ODD).key_by("z").process(Running())


def test_a_graph_over_two_sources_keeps_tables(tmp_path):
    class Pairs(keyed.KeyedCoProcessFunction):
        pairs = keyed.ValueState(tuple[int, int], default=(0, 0))

        def process_element1(self, value, ctx):
            rows, sums = self.pairs.value()
            self.pairs.update((rows + 1, sums))

        def process_element2(self, value, ctx):
            rows, sums = self.pairs.value()
            self.pairs.update((rows, sums + 1))

    first = split(rows_of(range(20)))
    other = keyed.stream(rows_of(range(5)), timestamp="t", watermark=keyed.bounded_out_of_orderness(3))
    sums = first.union(other).key_by("k").process(Sums(), ROW, name="sums")
    met = first.connect(sums).key_by("k").process(Pairs(), name="met")
    result = met.run(tables=tmp_path, rows_per_batch=6)
    keys = ["k0", "k1", "k2"]
    even = range(0, 20, 2)
    with result.tables as tables:
        assert tables["total"].get_many(keys) == [sum(v for v in (*even, *range(5)) if v % 3 == n) for n in range(3)]
        rows = [sum(v % 3 == n for v in even) for n in range(3)]
        more = [sum(v % 3 == n for v in range(5)) for n in range(3)]
        assert tables["pairs"].get_many(keys) == [(n, n + m) for n, m in zip(rows, more, strict=True)]

"""Random graphs of operators, and what they give: each operator by itself over what those before it have given."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
from hypothesis import strategies as st

import keyed
from keyed import KeyedCoProcessFunction, KeyedProcessFunction, OutputTag, ValueState, bounded_out_of_orderness
from keyed.testing import strategies
from keyed.vectorized import VectorizedFunction
from keyed.windows import Sum, TumblingEventTimeWindows
from tests.support.jobs import collect

ROW = "k string, g bigint, v bigint, t bigint"
ODD = OutputTag("odd", ROW)
DISORDER = 3


class Split(KeyedProcessFunction):
    """Hands rows on; odd ones go to a side output."""

    def process_element(self, value, ctx):
        if value.v % 2:
            ctx.output(ODD, tuple(value))
        else:
            yield tuple(value)


class Columns(VectorizedFunction):
    """Hands rows on, whole columns at a time."""

    def process_batch(self, table, ctx):
        ctx.emit(table)


class Adds:
    """Sums of ten milliseconds. No row may be late."""

    total = ValueState(int, default=0)

    def add(self, number, ctx):
        end = ctx.timestamp() // 10 * 10 + 9
        assert end > ctx.timer_service().current_watermark()
        total = self.total.namespace(end)
        total.update(total.value() + number)
        ctx.timer_service().register_event_time_timer(end)

    def on_timer(self, timestamp, ctx):
        total = self.total.namespace(timestamp)
        key = ctx.get_current_key()
        yield (key, 0, total.value(), timestamp) if isinstance(key, str) else ("", key, total.value(), timestamp)
        total.clear()


class Sums(Adds, KeyedProcessFunction):
    """The sums of one stream."""

    def process_element(self, value, ctx):
        self.add(value.v, ctx)


class Differences(Adds, KeyedCoProcessFunction):
    """The sums of the left rows less those of the right ones."""

    def process_element1(self, value, ctx):
        self.add(value.v, ctx)

    def process_element2(self, value, ctx):
        self.add(-value.v, ctx)


class Shaped(KeyedProcessFunction):
    """Gives results of windows the columns of all rows."""

    def process_element(self, value, ctx):
        yield getattr(value, "k", ""), getattr(value, "g", 0), value.v, value.window_end - 1


@attrs.frozen
class Operator:
    """An operator of a graph.

    Attributes:
        kind: What it does.
        key: The column that it is keyed by.
        sides: Names of what it reads on either side: sources, operators, and their side outputs with ``"-odd"``.
    """

    kind: str
    key: str
    sides: tuple[tuple[str, ...], ...]


@attrs.frozen
class Graph:
    """Sources by name, each a list of rows, and operators by name, each behind what it reads."""

    sources: dict[str, list[dict[str, Any]]]
    operators: dict[str, Operator]


@st.composite
def graphs(draw: st.DrawFn, most: int = 5) -> Graph:
    """Draw a graph, all of whose sources are read."""
    row = strategies.rows(
        "k string, g int, v int, t bigint", k=strategies.skewed("a", "b"), g=st.integers(0, 1), v=st.integers(0, 9)
    )
    sources = {}
    for name in draw(st.sampled_from(["x", "xy", "xyz"])):
        gap = draw(st.sampled_from([1, 4]))
        stream = draw(strategies.streams(row, timestamp="t", gap=gap, delay=DISORDER))
        sources[name] = [record.value for record in stream]
    unread, there = set(sources), list(sources)
    operators: dict[str, Operator] = {}
    while unread or (len(operators) < most and draw(st.booleans())):
        kind = draw(st.sampled_from(["split", "sums", "connected", "windows", "columns"]))
        some = st.lists(st.sampled_from(there), min_size=1, max_size=3, unique=True).map(tuple)
        sides = [draw(some)]
        if len(operators) >= most - 1:
            sides[0] = (*sides[0], *sorted(unread.difference(sides[0])))
        if kind == "connected":
            sides.append(draw(some))
        # Names are drawn, because the order of operators hangs on them.
        name = f"{draw(st.sampled_from('mno'))}{len(operators)}"
        operators[name] = Operator(kind, draw(st.sampled_from("kg")), tuple(sides))
        unread.difference_update(*sides)
        there += [name, *([f"{name}-odd"] if kind == "split" else [])]
    return Graph(sources, operators)


def process(stream: Any, operator: Operator, name: str, parallelism: int = 1, **options: Any) -> Any:
    """Process what an operator reads, whose sides are streams that are not keyed."""
    options = {"name": name, "parallelism": parallelism, **options}
    sides = [side[0].union(*side[1:]) if len(side) > 1 else side[0] for side in stream]
    if operator.kind == "connected":
        return sides[0].connect(sides[1]).key_by(operator.key).process(Differences(), ROW, **options)
    keyed_ = sides[0].key_by(operator.key)
    if operator.kind == "split":
        return keyed_.process(Split(), ROW, **options)
    if operator.kind in ("sums", "columns"):
        return keyed_.process(Sums() if operator.kind == "sums" else Columns(), ROW, **options)
    windows = keyed_.window(TumblingEventTimeWindows.of(10)).aggregate({"v": Sum("v")}, **options)
    return windows.key_by(operator.key).process(Shaped(), ROW, name=f"{name}-rows", parallelism=parallelism)


def build(graph: Graph, sources: dict[str, Any], log: Any = lambda name: {}, **options: Any) -> dict[str, Any]:
    """Return all outputs of a graph by name, over these streams."""
    there = dict(sources)
    for name, operator in graph.operators.items():
        output = process(
            [[there[each] for each in side] for side in operator.sides], operator, name, **options, **log(name)
        )
        there[name] = output
        if operator.kind == "split":
            there[f"{name}-odd"] = output.side_output(ODD)
    return {name: output for name, output in there.items() if name not in sources}


def streams(sources: dict[str, Any]) -> dict[str, Any]:
    """Return the sources as streams."""
    delay = bounded_out_of_orderness(DISORDER + 1)
    return {name: keyed.stream(data, timestamp="t", watermark=delay) for name, data in sources.items()}


def expected(graph: Graph) -> dict[str, Counter[Any]]:
    """The expected outputs: operators run in sequence, each over the collected outputs of earlier ones."""
    rows = {name: [tuple(row.values()) for row in data] for name, data in graph.sources.items()}
    for name, operator in graph.operators.items():
        sides = []
        for side in operator.sides:
            data = sorted((row for each in side for row in rows[each]), key=lambda row: row[3])
            sides.append([keyed.stream([dict(zip("kgvt", row, strict=True)) for row in data], timestamp="t")])
        output = process(sides, operator, name)
        outputs = {name: output}
        if operator.kind == "split":
            outputs[f"{name}-odd"] = output.side_output(ODD)
        for each, values in zip(outputs, collect(*outputs.values())[0], strict=True):
            rows[each] = list(map(tuple, values))
    return {name: Counter(found) for name, found in rows.items() if name not in graph.sources}

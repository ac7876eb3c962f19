"""Broadcast state in the harness: who reads and writes it, and what is left after a crash or with other groups."""

from __future__ import annotations

from typing import Any

import attrs
import pyarrow as pa
import pytest

import keyed
from keyed import KeyedBroadcastProcessFunction, MapState, StateTtl, ValueState
from keyed.errors import DefinitionError, RowError, StateAccessError, StateDefinitionError, UserFunctionError
from keyed.testing import KeyedTestHarness, MemoryChangelog, Record

RULES = MapState(str, int, name="rules")
LISTS = MapState(str, list[int], name="lists")


class Rules(KeyedBroadcastProcessFunction):
    """Broadcast elements are (name, limit); those of keys are (key, name), and pass if they are told to."""

    count = ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.count.update(self.count.value() + 1)
        yield value[0], self.count.value(), ctx.get_broadcast_state(RULES).get(value[1], -1)

    def process_broadcast_element(self, value, ctx):
        name, limit = value
        rules = ctx.get_broadcast_state(RULES)
        if limit is None:
            rules.remove(name)
        else:
            rules[name] = limit


def first(value):
    return value[0]


def harness_of(function, *descriptors, **options):
    return KeyedTestHarness(function, **{"key": first, "broadcast": descriptors or [RULES], **options})


@pytest.mark.parametrize("store", ["memory", "rocksdb"])
def test_broadcast_elements_of_a_batch_run_before_its_other_elements(store):
    harness = harness_of(Rules(), parallelism=3, store=store)
    with harness.batch():
        harness.process(("a", "x"), 5)
        harness.process_broadcast_element(("x", 1), 9)
        harness.process_broadcast_element(("x", 2), 8)
        harness.process(("b", "x"), 1)
    # In the order of their timestamps, so that the later one stays.
    assert {record.value for record in harness.take_output()} == {("a", 1, 1), ("b", 1, 1)}
    metrics = harness.metrics()
    assert (metrics["rows_in"], metrics["live_entries"]) == (4, 3 + 2)
    harness.crash_and_recover()
    harness.process_broadcast_element(("x", None))
    harness.process_broadcast_element(("y", 7))
    harness.crash_and_recover()
    harness.process(("a", "y"))
    harness.process(("a", "x"))
    assert [record.value for record in harness.take_output()] == [("a", 2, 7), ("a", 3, -1)]
    assert harness.broadcast_state("rules") == {"y": 7}


class Writes(Rules):
    """Does something that it may not do."""

    def __init__(self, act, *, broadcast=False):
        self.act, self.in_broadcast, self.kept = act, broadcast, {}

    def process_element(self, value, ctx):
        if not self.in_broadcast:
            yield self.act(self, ctx)

    def process_broadcast_element(self, value, ctx):
        if self.in_broadcast:
            self.act(self, ctx)
        ctx.get_broadcast_state(RULES).put(*value)
        self.kept["rules"] = ctx.get_broadcast_state(RULES)


@pytest.mark.parametrize(
    "act",
    [
        lambda self, ctx: ctx.get_broadcast_state(RULES).put("x", 1),
        lambda self, ctx: ctx.get_broadcast_state(RULES).put_all({"x": 1}),
        lambda self, ctx: ctx.get_broadcast_state(RULES).remove("x"),
        lambda self, ctx: ctx.get_broadcast_state(RULES).clear(),
        lambda self, ctx: ctx.get_broadcast_state(RULES).__setitem__("x", 1),
        lambda self, ctx: ctx.get_broadcast_state(RULES).__delitem__("x"),
        lambda self, ctx: self.kept["rules"].put("x", 1),
    ],
)
def test_elements_with_a_key_only_read(act):
    harness = harness_of(Writes(act))
    harness.process_broadcast_element(("x", 3))
    with pytest.raises(StateAccessError):
        harness.process(("a", 1))
    with pytest.raises(StateAccessError, match="'rules' is read-only here"), harness.batch():  # noqa: PT012
        harness.process_broadcast_element(("x", 4))
        harness.process(("a", 1))
    assert harness.broadcast_state("rules") == {"x": 3}


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda self, ctx: self.count.update(1), "where there is no key"),
        (lambda self, ctx: self.count.namespace("n").clear(), "where there is no key"),
        (lambda self, ctx: ctx.get_broadcast_state(LISTS), "with this descriptor; the broadcast states are: 'rules'"),
        (lambda self, ctx: ctx.get_broadcast_state(RULES).namespace("n"), "has no namespaces"),
        (lambda self, ctx: ctx.apply_to_keyed_state(RULES, print), "no such keyed state; it has 'count'"),
        (
            lambda self, ctx: ctx.apply_to_keyed_state(
                self.count, lambda key, state: ctx.apply_to_keyed_state(self.count, print)
            ),
            "not inside itself",
        ),
    ],
)
def test_what_a_broadcast_element_may_not_do(act, said):
    harness = harness_of(Writes(act, broadcast=True), key=str)
    harness.function.in_broadcast = False
    harness.function.act = lambda self, ctx: self.count.update(5)
    harness.process("a")
    harness.crash_and_recover(Writes(act, broadcast=True))
    with pytest.raises(StateAccessError, match=said):
        harness.process_broadcast_element(("x", 3))
    assert harness.broadcast_state("rules") == {}


def test_a_failure_names_the_broadcast_element():
    harness = harness_of(Writes(lambda self, ctx: 1 / 0, broadcast=True))
    with pytest.raises(
        UserFunctionError, match=r"process_broadcast_element of element \('x', 3\), timestamp 4, key none"
    ):
        harness.process_broadcast_element(("x", 3), 4)


class Lists(KeyedBroadcastProcessFunction):
    def process_element(self, value, ctx):
        lists = ctx.get_broadcast_state(LISTS)
        for found in (lists.get("x"), lists["x"], *lists.values(), *(each for _, each in lists.items())):
            found.append(value)
        yield lists.get("x"), list(lists), len(lists), "x" in lists, lists.contains("y"), lists.is_empty()

    def process_broadcast_element(self, value, ctx):
        lists = ctx.get_broadcast_state(LISTS)
        mine = lists.get("x", [])
        mine.append(value)
        lists.put("x", mine)
        mine.append(-1)


def test_what_a_read_gives_is_the_functions_own():
    harness = harness_of(Lists(), LISTS, key=str)
    harness.process_broadcast_element(1)
    harness.process_broadcast_element(2)
    with harness.batch():
        harness.process(8)
        harness.process(9)
    assert [record.value for record in harness.take_output()] == [([1, 2], ["x"], 1, True, False, False)] * 2
    assert harness.broadcast_state("lists") == {"x": [1, 2]}


class Applying(KeyedBroadcastProcessFunction):
    """Counts elements by key; a broadcast number is added to all counts, and none clears them."""

    count = ValueState(int)

    def process_element(self, value, ctx):
        self.count.update((self.count.value() or 0) + 1)

    def process_broadcast_element(self, value, ctx):
        def apply(key, state):
            if value is None:
                state.clear()
            else:
                state.update(state.value() + value)
                ctx.collect((key, state.value()))

        ctx.apply_to_keyed_state(self.count, apply)


@pytest.mark.parametrize("store", ["memory", "rocksdb"])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_function_is_applied_to_the_state_of_every_key_that_has_some(store, parallelism):
    harness = harness_of(Applying(), key=str, store=store, parallelism=parallelism)
    harness.process_broadcast_element(5)
    for value in "abca":
        harness.process(value)
    with harness.batch():
        harness.process_broadcast_element(10, 1)
        harness.process_broadcast_element(100, 2)
        harness.process("d", 0)
    found = [record.value for record in harness.take_output()]
    assert sorted(found) == [("a", 12), ("a", 112), ("b", 11), ("b", 111), ("c", 11), ("c", 111)]
    harness.process_broadcast_element(None)
    harness.process_broadcast_element(1)
    assert harness.take_output() == []
    assert harness.state("count") == {}


class Unequal(Rules):
    def open(self, context):
        self.group = context.get_index_of_this_subtask()

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(RULES).put("x", self.group)


def test_copies_that_are_not_equal_are_found():
    harness = harness_of(Unequal(), parallelism=2)
    harness.process_broadcast_element(1)
    with pytest.raises(DefinitionError, match="broadcast state 'rules' differs between key groups"):
        harness.broadcast_state("rules")
    with pytest.raises(keyed.errors.CorruptionError, match="hash differs"):
        harness.rescale(3)


class Declared(Rules):
    """Has the descriptor as an attribute, as programs for PyFlink do."""

    def __init__(self, descriptor):
        self.descriptor = descriptor

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(self.descriptor).put(*value)


def test_a_descriptor_may_be_an_attribute():
    harness = harness_of(Declared(RULES))
    harness.process_broadcast_element(("x", 4))
    harness.process(("a", "x"))
    assert harness.take_output() == [Record(("a", 1, 4), None)]


def test_what_descriptors_may_not_be():
    keyed_stream, rules = keyed.stream([]).key_by("k"), keyed.stream([])
    no_map: Any = ValueState(int, name="x")
    no_stream: Any = rules.broadcast(RULES)
    with pytest.raises(DefinitionError, match="give one or more"):
        rules.broadcast()
    with pytest.raises(DefinitionError, match="give one or more"):
        rules.broadcast(no_map)
    with pytest.raises(StateDefinitionError, match="has no name"):
        rules.broadcast(MapState(str, int))
    with pytest.raises(StateDefinitionError, match="two descriptors have the name 'rules'"):
        rules.broadcast(RULES, MapState(int, int, name="rules"))
    with pytest.raises(StateDefinitionError, match="time to live"):
        rules.broadcast(MapState(str, int, name="r", ttl=StateTtl(1000)))
    connected = keyed_stream.connect(rules.broadcast(RULES))
    with pytest.raises(StateDefinitionError, match="declares state 'rules', as 'descriptor'"):
        connected.process(Declared(MapState(str, int, name="rules")))
    with pytest.raises(DefinitionError, match="one of these is connected"):
        connected.connect(rules.broadcast(LISTS))
    with pytest.raises(DefinitionError, match="a broadcast stream is connected with a keyed one"):
        rules.connect(no_stream)
    with pytest.raises(DefinitionError, match="takes a broadcast stream"):
        keyed_stream.process(Rules())
    with pytest.raises(DefinitionError, match="takes no broadcast elements"):
        harness_of(Both())
    with pytest.raises(DefinitionError, match="use process and process_broadcast_element"):
        harness_of(Rules()).process_element1(1)


class Both(keyed.KeyedProcessFunction):
    def process_element(self, value, ctx):
        pass


def test_initial_state_of_a_broadcast_state_is_refused():
    table = [{"key": "a", "state": "rules", "entry": "x", "value": 1}]

    with pytest.raises(RowError, match="'rules' is a broadcast state"):
        harness_of(Rules(), initial_state=pa.Table.from_pylist(table), key="key")


@attrs.frozen
class Rule:
    limit: int


@attrs.frozen
class WiderRule:
    limit: int
    name: str = "none"


def test_a_broadcast_state_may_get_more_fields_and_not_become_a_map():
    old, new = MapState(str, Rule, name="rules"), MapState(str, WiderRule, name="rules")

    class Of(Rules):
        def process_element(self, value, ctx):
            yield ctx.get_broadcast_state(RULES).get("x")

        def process_broadcast_element(self, value, ctx):
            ctx.get_broadcast_state(RULES).put("x", Rule(value))

    changelog = MemoryChangelog()
    harness = harness_of(Of(), old, changelog=changelog, parallelism=2)
    harness.process_broadcast_element(3)
    again = harness_of(Of(), new, restore_from=changelog, parallelism=3)
    again.process("a")
    assert again.take_output() == [Record(WiderRule(3), None)]

    class Keyed(Both):
        rules = MapState(str, Rule)

    with pytest.raises(keyed.errors.StateSchemaChanged, match="broadcast state became map state"):
        KeyedTestHarness(Keyed(), restore_from=changelog)


def test_global_tables_are_read_at_once_and_when_they_are_told_to():
    tables = [pa.table({"name": ["x", "y"], "limit": [1, 2]})]
    limits = MapState(name="limits")

    class Reads(keyed.KeyedProcessFunction):
        def process_element(self, value, ctx):
            yield {name: row["limit"] for name, row in ctx.get_broadcast_state(limits).items()}

    table = keyed.global_table(lambda: tables[0], limits, key="name")
    with KeyedTestHarness(Reads(), key=str, global_tables=[table], parallelism=2, store="rocksdb") as harness:
        harness.process("a")
        tables[0] = pa.table({"name": ["y"], "limit": [3]})
        harness.process("a")
        harness.reload_tables()
        harness.crash_and_recover()
        harness.rescale(3)
        harness.process("a")
        found = [record.value for record in harness.take_output()]
    assert found == [{"x": 1, "y": 2}, {"x": 1, "y": 2}, {"y": 3}]

"""States are not values: what was meant for the value raises, and a change of a copy is not lost in silence."""

import operator
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

import keyed
from keyed import KeyedProcessFunction, ListState, MapState, ReducingState, TimeDomain, ValueState
from keyed.errors import StateAccessError, StateDefinitionError
from keyed.extending import inner_state
from keyed.pyflink import MapStateDescriptor, Types, ValueStateDescriptor
from keyed.testing import KeyedTestHarness

USES = {
    "truth": bool,
    "not": operator.not_,
    "==": lambda state: state == 0,
    "== None": lambda state: state == None,  # noqa: E711
    "!=": lambda state: state != 0,
    "0 ==": lambda state: 0 == state,  # noqa: SIM300
    "<": lambda state: state < 1,
    ">=": lambda state: state >= 1,
    "+": lambda state: state + 1,
    "1 +": lambda state: 1 + state,
    "-": lambda state: state - 1,
    "/": lambda state: 1 / state,
    "neg": operator.neg,
    "abs": abs,
    "f-string": lambda state: f"{state}",
}
#: They have a length, so their truth is whether there is something in them; and they have indexes of their own.
CONTAINERS = (ListState, MapState)


class All(KeyedProcessFunction):
    value = ValueState(int, default=0)
    elements = ListState(int)
    entries = MapState(str, int)
    total = ReducingState(operator.add, int)
    average = keyed.AggregatingState(__import__("windows").Mean())
    versions = keyed.VersionedState(int, history=10)

    def process_element(self, use, ctx):
        for name in ("value", "elements", "entries", "total", "average", "versions"):
            state = getattr(self, name)
            if use in ("truth", "not") and isinstance(state, CONTAINERS):
                assert USES[use](state) is (use == "not")
                continue
            with pytest.raises(StateAccessError, match=rf"state '{name}' is not a value.*\.") as raised:
                USES[use](state)
            assert state.reading in str(raised.value)
            assert state.writing in str(raised.value)
            assert state != self.__class__.__dict__[name]
            assert state == state  # noqa: PLR0124
            assert {state: 1}[state] == 1
            assert name in repr(state)
        yield use


@pytest.mark.parametrize("use", USES)
def test_a_state_refuses_what_was_meant_for_its_value(use):
    with KeyedTestHarness(All(), key=lambda _: "k") as harness:
        harness.process(use, 1)
        assert [record.value for record in harness.take_output()] == [use]
    for state in (All.value, All.total, All.average, All.versions):
        with pytest.raises(StateAccessError, match="is not a value"):
            USES[use](state)


def test_a_table_state_is_no_value():
    refused = []

    class Tables(keyed.vectorized.VectorizedFunction):
        totals = keyed.vectorized.TableState("key string, n bigint", key="key")

        def process_batch(self, batch, ctx):
            for use in ("truth", "==", "+"):
                with pytest.raises(StateAccessError, match=r"table state 'totals' is not a value.*\.scan\(\)"):
                    USES[use](self.totals)
                refused.append(use)
            self.totals = batch

    stream = keyed.stream(pa.table({"key": ["a"], "n": [1]})).key_by("key")
    with pytest.raises(StateAccessError, match=r"would replace table state 'totals'.*\.upsert\(table\)"):
        stream.process(Tables(), "key string, n bigint").run()
    assert refused == ["truth", "==", "+"]


class Assigns(KeyedProcessFunction):
    last = ValueState(str)

    def process_element(self, value, ctx):
        yield self.last.value()
        self.last = value


class Deletes(Assigns):
    def process_element(self, value, ctx):
        del self.last


class AddsInPlace(KeyedProcessFunction):
    last: Any = ListState(str)

    def process_element(self, value, ctx):
        self.last += [value]


class Opened(KeyedProcessFunction):
    def open(self, ctx):
        self.last = ctx.get_state(ValueStateDescriptor("last", Types.STRING()))

    def process_element(self, value, ctx):
        self.last = value


class DeclaredOnTheObject(KeyedProcessFunction):
    def __init__(self):
        self.last = ValueState(str, name="last")

    def process_element(self, value, ctx):
        self.last = value


class DescriptorOnTheClass(Assigns):
    last = ValueStateDescriptor("last", Types.STRING())


@pytest.mark.parametrize("rows_stay", [True, False], ids=["in memory", "checkpoint"])
@pytest.mark.parametrize(
    ("function", "said"),
    [
        (
            Assigns,
            r"self\.last = 'a' .*value state 'last' for all keys.*self\.last\.update\(value\).*element 'a'.*key 'a'",
        ),
        (DescriptorOnTheClass, r"self\.last = 'a' .*value state 'last'.*self\.last\.update\(value\).*key 'a'"),
        (Deletes, r"del self\.last .*value state 'last'.*self\.last\.clear\(\)"),
        (AddsInPlace, r"list state 'last' is not a value, and \+.*\.add\(value\)"),
        (Opened, r"self\.last = 'a' .*value state 'last' for all keys.*self\.last\.update\(value\)"),
        (DeclaredOnTheObject, r"self\.last = 'a' .*value state 'last' for all keys.*self\.last\.update\(value\)"),
    ],
)
def test_an_assignment_to_a_state_fails_the_batch_and_commits_nothing(function, said, rows_stay, tmp_path):
    output = keyed.stream(["a", "b"]).key_by(str).process(function(), name="job")
    batches: list[Any] = []
    options: dict[str, Any] = {} if rows_stay else {"checkpoint": str(tmp_path / "checkpoint")}
    with pytest.raises(StateAccessError, match=said):
        output.run(on_progress=batches.append, rows_per_batch=1, **options)
    assert batches == []


def test_a_state_may_take_the_place_of_a_state():
    class Chooses(KeyedProcessFunction):
        declared = ValueState(int, default=1)
        other = ValueState(int, default=2)

        def __init__(self):
            self.declared = ValueState(int, default=3)

        def process_element(self, value, ctx):
            self.chosen = self.declared if value else self.other
            yield self.chosen.value()

    assert keyed.stream([0, 1]).key_by(str).process(Chooses()).run().values == [2, 3]


# Lists and maps by Python's names -------------------------------------------------------------------------------------


def outcome(container, method, arguments):
    """Return the result of a method, or its error."""
    try:
        result = container[slice(*arguments)] if method == "slice" else getattr(container, method)(*arguments)
    except (IndexError, KeyError) as error:
        return "IndexError" if isinstance(error, IndexError) else repr(error)
    return result.copy() if isinstance(result, list) else result


def shown(elements, entries, aside):
    """Return what a list and two maps have and answer."""
    listed = [len(elements), bool(elements), list(elements), list(reversed(elements)), [1] in elements]
    return [*listed, len(entries), bool(entries), dict(sorted(entries.items())), dict(sorted(aside.items()))]


class AsInPython(KeyedProcessFunction):
    elements = ListState(list[int])
    entries = MapState(str, list[int])
    aside = MapState(str, int)

    def process_element(self, call, ctx):
        namespace, name, method, *arguments = call
        states = {each: getattr(self, each).namespace(namespace) for each in ("elements", "entries", "aside")}
        yield outcome(states[name], method, arguments), shown(**states)


CALLS: list[tuple[Any, ...]] = [
    ("elements", "append", [1]),
    ("elements", "__getitem__", -1),
    ("elements", "append", [2]),
    *(("elements", "__getitem__", index) for index in (0, 1, 2)),
    ("elements", "slice", 1, None),
    ("entries", "setdefault", "a", []),
    ("entries", "update", {"a": [1, 2]}),
    ("entries", "setdefault", "a", []),
    ("entries", "pop", "b", "default"),
    *(("entries", "pop", key) for key in "baa"),
    ("entries", "setdefault", "c", [9]),
    ("aside", "update", [("pairs", 1)]),
]


def model(calls):
    """Yield the results of the calls on a list and dictionaries."""
    containers: dict[str, Any] = {"elements": [], "entries": {}, "aside": {}}
    for name, method, *arguments in calls:
        yield outcome(containers[name], method, arguments), shown(**containers)


@pytest.mark.parametrize("rows_per_batch", [1, 100])
@pytest.mark.parametrize("store", ["memory", "rocksdb"])
@pytest.mark.parametrize("namespace", [None, (1, 2)])
@pytest.mark.parametrize("ttl", [None, keyed.StateTtl(days=1)], ids=["", "ttl"])
@pytest.mark.parametrize("kept", [True, False], ids=["checkpoint", "in memory"])
def test_lists_and_maps_do_what_pythons_do(rows_per_batch, store, namespace, ttl, kept, tmp_path):
    class Job(AsInPython):
        elements = ListState(list[int], ttl=ttl)
        entries = MapState(str, list[int], ttl=ttl)
        aside = MapState(str, int, ttl=ttl)

    output = keyed.stream([(namespace, *call) for call in CALLS]).key_by(lambda _: "k").process(Job(), store=store)
    options: dict[str, Any] = {"checkpoint": str(tmp_path / "checkpoint")} if kept else {}
    assert output.run(rows_per_batch=rows_per_batch, **options).values == list(model(CALLS))


def test_a_broadcast_state_is_read_only_for_elements_by_pythons_names_too():
    rules = MapState(str, int, name="rules")

    class Rules(keyed.KeyedBroadcastProcessFunction):
        def process_broadcast_element(self, value, ctx):
            state = ctx.get_broadcast_state(rules)
            state.update({value: 1}, other=2)
            assert state.pop("other") == 2
            assert state.setdefault("more", 3) == 3
            assert len(state) == 2

        def process_element(self, value, ctx):
            state = ctx.get_broadcast_state(rules)
            for write in (lambda: state.pop("r"), lambda: state.setdefault("r", 2), lambda: state.update(r=2)):
                with pytest.raises(StateAccessError, match="read-only"):
                    write()
            yield dict(state)

    keys = keyed.stream(["a"]).key_by(str)
    assert keys.connect(keyed.stream(["r"]).broadcast(rules)).process(Rules()).run().values == [{"more": 3, "r": 1}]


# Changes of copies ----------------------------------------------------------------------------------------------------


class Keeps(KeyedProcessFunction):
    pages = MapState(str, list)
    recent = ListState(list)
    last: Any = ValueState(dict)
    own: Any = inner_state(ValueState(list), in_place=True)
    plain: dict

    def process_element(self, value, ctx):
        pages = self.pages.get("a", [])
        pages.append(value)
        self.pages["a"] = pages
        self.pages["b"] = [*pages, 1]
        self.pages["b"] += [2]
        last = self.last.value() or {}
        last["x"] = value
        self.last.update(last)
        if self.own.value() is None:
            self.own.update([])
        self.own.value().append(value)
        self.recent.append([value])
        found = self.recent.get()
        found.sort()
        self.pages.setdefault("c", [])
        self.pages.pop("c").append(1)
        same = other = self.pages.get("d", [])
        other.append(1)
        self.pages["d"] = same
        mine: list[Any] = found
        mine = []
        mine.append(1)
        plain = self.__dict__.setdefault("cache", {})
        plain["a"] = 1
        self.__dict__["cache"]["b"] = 2
        yield found


def test_what_puts_changes_back_is_accepted():
    assert keyed.stream([1]).key_by(str).process(Keeps()).run().values == [[[1]]]


class Lost1(Keeps):
    def process_element(self, value, ctx):
        self.pages[value].append(1)


class Lost2(Keeps):
    def process_element(self, value, ctx):
        self.pages.setdefault(value, []).append(1)


class Lost3(Keeps):
    def process_element(self, value, ctx):
        pages = self.pages.get(value, [])
        pages.append(1)


class Lost4(Keeps):
    def process_element(self, value, ctx):
        self.last.value()["x"] = 1


class Lost5(Keeps):
    def process_element(self, value, ctx):
        del self.pages.namespace(value)["a"][0]


class Lost6(Keeps):
    def process_element(self, value, ctx):
        self.recent.get().append(value)


class Lost7(Keeps):
    def process_element(self, value, ctx):
        self.note(value)

    def note(self, value):
        self.pages[value][0] += 1


class Lost8(KeyedProcessFunction):
    def open(self, ctx):
        self.pages = ctx.get_map_state(MapStateDescriptor("pages", Types.STRING(), Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value, ctx):
        self.pages.get(value).append(1)


class Lost9(Keeps):
    def process_element(self, value, ctx):
        self.recent[0].append(1)


class Lost10(Keeps):
    def process_element(self, value, ctx):
        pages = self.pages.get(value, [])
        same = pages
        also = same
        also.append(1)


class Lost11(Keeps):
    def process_element(self, value, ctx):
        pages = same = self.pages.get(value, [])
        same.append(1)
        pages.sort()


@pytest.mark.parametrize("function", [Lost1, Lost2, Lost3, Lost4, Lost5, Lost6, Lost7, Lost8, Lost9, Lost10, Lost11])
def test_a_change_of_a_copy_that_nothing_keeps_is_refused_before_the_first_row(function):
    line = rf"{function.__name__}\.(process_element|note), line \d+: "
    said = line + r".*changes a copy of the content of \w+ state .*store it: "
    with pytest.raises(StateDefinitionError, match=said):
        keyed.stream([1]).key_by(str).process(function())


class Set1(Keeps):
    count: Any = ValueState(int)

    def process_element(self, value, ctx):
        self.count.value = 1


class Set2(Set1):
    def process_element(self, value, ctx):
        self.count.value += 1


class Same1(Set1):
    def process_element(self, value, ctx):
        yield 1 if self.count is None else 2


class Same2(Set1):
    def process_element(self, value, ctx):
        if value and self.pages is not None:
            yield 1


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (Set1, r"self.count.value = 1 would set an attribute of value state 'count', .* with \.update\(value\)"),
        (Set2, r"self.count.value \+= 1 would set an attribute of value state 'count'"),
        (Same1, r"self.count is None compares value state 'count' itself, which is never .* with \.value\(\)"),
        (Same2, r"self.pages is not None compares map state 'pages' itself"),
    ],
)
def test_a_use_of_a_state_that_does_nothing_is_refused_before_the_first_row(function, said):
    with pytest.raises(StateDefinitionError, match=rf"{function.__name__}\.process_element, line \d+: {said}"):
        keyed.stream([1]).key_by(str).process(function())


def test_the_message_has_the_line_of_the_program():
    with pytest.raises(StateDefinitionError) as raised:
        keyed.stream([1]).key_by(str).process(Lost1())
    line = Lost1.process_element.__code__.co_firstlineno + 1
    assert f"line {line}: self.pages[value].append(1) changes" in str(raised.value)


class Misused(KeyedProcessFunction):
    count = ValueState(int, default=0)
    recent = ListState(int)
    pages = MapState(str, int)

    def process_element(self, value, ctx):
        yield value(self, ctx)


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda self, ctx: self.count, r"value state 'count' is not its value; read that with \.value\(\)"),
        (lambda self, ctx: (1, self.count), r"value state 'count' is not its value; read that with \.value\(\)"),
        (lambda self, ctx: ctx.timestamp, r"timestamp is a method that was not called; call it: timestamp\(\)"),
        (
            lambda self, ctx: self.count.update(ctx.timestamp),
            r"value state 'count': timestamp is a method that was not",
        ),
        (lambda self, ctx: self.count.update(self.count), r"value state 'count': value state 'count' is not its value"),
        (lambda self, ctx: len(self.count), r"self\.count is a state and not its value: .* self\.count\.value\(\)"),
        (lambda self, ctx: int(self.count), r"self\.count is a state and not its value: .* self\.count\.value\(\)"),
        (lambda self, ctx: round(self.count), r"self\.count is a state and not its value: .* self\.count\.value\(\)"),
        (lambda self, ctx: list(self.count), r"self\.count is a state and not its value: .* self\.count\.value\(\)"),
        (lambda self, ctx: self.count[0], r"self\.count is a state and not its value: .* self\.count\.value\(\)"),
        (lambda self, ctx: self.count.page, r"value state 'count' is not its value, and has no page"),
        (lambda self, ctx: self.recent.extend([1]), r"operations of the state are add, add_all, append, clear, get, "),
        (lambda self, ctx: self.count.value + 1, r"a method was not called: call it"),
        (lambda self, ctx: self.pages["a"], r"map state 'pages' has no such key: read it with \.get\(key, default\)"),
    ],
)
def test_other_uses_of_a_state_for_its_value_name_the_remedy(use, said):
    with pytest.raises(keyed.KeyedError, match=said):
        keyed.stream([use]).key_by(lambda _: "k").process(Misused()).run()


class Unset(KeyedProcessFunction):
    last = ValueState(int)
    name = ValueState(str, default="")

    def process_element(self, value, ctx):
        yield value(self, ctx)


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda self, ctx: self.last.value() + 1, r"; self\.last has no value for this key yet.*default=0\)$"),
        (lambda self, ctx: max(self.last.value(), 1), r"; self\.last has no value for this key yet"),
        (lambda self, ctx: self.last.value().bit_length(), r"; self\.last has no value for this key yet"),
        (lambda self, ctx: ctx.timestamp() + 60_000, r"; ctx\.timestamp\(\) is None .*stream\(\.\.\., timestamp="),
        (lambda self, ctx: self.name.value() + None, r"\(not \"NoneType\"\) to str$"),
    ],
)
def test_computing_with_none_names_the_unset_state_or_the_missing_timestamp(use, said):
    with pytest.raises(keyed.errors.UserFunctionError) as raised:
        keyed.stream([use]).key_by(lambda _: "k").process(Unset()).run()
    assert re.search(said, str(raised.value).partition("\n")[0])


class Timed(Unset):
    def on_timer(self, timestamp, ctx):
        return ()


@pytest.mark.parametrize(
    ("time", "domain", "said"),
    [
        (timedelta(minutes=1), TimeDomain.EVENT_TIME, r"a timer is set at a time: ctx\.timestamp\(\) \+ 60_000"),
        (datetime(2026, 1, 1, tzinfo=UTC), TimeDomain.EVENT_TIME, r"convert it: int\(time\.timestamp\(\) \* 1000\)"),
        (5, "processing_time", r"give TimeDomain\.EVENT_TIME or TimeDomain\.PROCESSING_TIME"),
    ],
)
def test_a_timer_at_what_is_no_time_names_the_conversion(time, domain, said):
    stream = keyed.stream([lambda self, ctx: ctx.timer_service().set_timer("a", time, domain)])
    timed = stream.key_by(lambda _: "k").process(Timed())
    with pytest.raises(keyed.errors.DefinitionError, match=said):
        timed.run()


def test_a_call_that_returns_no_outputs_names_what_it_may_return():
    class Returns(KeyedProcessFunction):
        def process_element(self, value, ctx):
            return 5

    with pytest.raises(keyed.errors.UserFunctionError, match="returns outputs: yield each of them, or return a list"):
        keyed.stream([1]).key_by(str).process(Returns()).run()


def test_an_output_column_names_the_state_it_was_given():
    class Rows(KeyedProcessFunction):
        count = ValueState(int, default=0)

        def process_element(self, value, ctx):
            yield value, self.count

    with pytest.raises(keyed.errors.OutputDefinitionError, match=r"column 'n'.*'count' is not its value.*\.value\(\)"):
        keyed.stream([1]).key_by(str).process(Rows(), "value bigint, n bigint").run()

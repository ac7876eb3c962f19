"""A function and its states never share objects: random programs over mutable values.

A program reads, changes, stores and emits the same objects again and again. It is run by a model that copies everything
at each call, by the harness, and by the local runtime with several sinks and a second stage: in batches of one row, of
all rows and between, each has the same outputs.
"""

import copy
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyed
from keyed import AggregatingState, KeyedProcessFunction, ListState, MapState, ReducingState, StateTtl, ValueState
from keyed.errors import EncodingError, StateDefinitionError
from keyed.extending import inner_state
from keyed.rows import row
from keyed.testing import KeyedTestHarness
from tests.keyed.engine.groups import Gather

Nested = list[list[int]]


@dataclass
class Box:
    items: Nested


def join(a: Nested, b: Nested) -> Nested:
    a += b
    return a


class Program(KeyedProcessFunction):
    """Runs the instructions of each row on one register, ``r``."""

    typed = ValueState(Nested, default=[[0]])
    untyped = ValueState()
    boxed = ValueState(Box)
    timed = ValueState(Nested, ttl=StateTtl(hours=1))
    items = ListState(Nested)
    anything = ListState()
    entries = MapState(int, Nested)
    total = ReducingState(join, Nested)
    gathered = AggregatingState(Gather())

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        r: Any = [[value.n]]
        for name, number in value.program:
            if name == "input":
                r = value.tags
            elif name == "change":
                r.append([number])
            elif name == "change inside" and r:
                r[0].append(number)
            elif name == "yield":
                yield number, r
            elif name == "collect":
                ctx.collect((number, r))
            elif name == "side":
                ctx.output("side", r)
            elif name.startswith("read"):
                r = self.read(name, number, r)
            elif name == "iterate":
                for key, item in self.entries.items():
                    item.append([key])
                    yield key, item
                    if number == key:
                        self.entries.put(key, item)
                    if number == 0:
                        self.entries.remove(2)
            else:
                self.write(name, number, r)

    def read(self, name: str, number: int, r: Any) -> Any:
        values = {
            "read typed": self.typed.value,
            "read namespace": lambda: self.typed.namespace(number).value(),
            "read untyped": self.untyped.value,
            "read boxed": lambda: getattr(self.boxed.value(), "items", None),
            "read timed": self.timed.value,
            "read items": lambda: next(reversed(self.items.get()), None),
            "read anything": lambda: next(reversed(list(self.anything)), None),
            "read entry": lambda: self.entries.get(number, r),
            "read total": self.total.get,
            "read gathered": lambda: next(reversed(self.gathered.get() or []), None),
        }
        found = values[name]()
        return r if found is None else found

    def write(self, name: str, number: int, r: Any) -> None:
        if name == "update typed":
            self.typed.update(r)
        elif name == "update namespace":
            self.typed.namespace(number).update(r)
        elif name == "update untyped":
            self.untyped.update(r)
        elif name == "update boxed":
            box = Box(r)
            self.boxed.update(box)
            box.items = []
        elif name == "update timed":
            self.timed.update(r)
        elif name == "add item":
            self.items.add(r)
        elif name == "add anything":
            self.anything.add_all([r, r])
        elif name == "replace items":
            self.items.update([r, *self.items.get()])
        elif name == "put":
            self.entries[number] = r
        elif name == "remove":
            self.entries.remove(number)
        elif name == "add total":
            self.total.add(r)
        elif name == "add gathered":
            self.gathered.add(r)
        elif name == "clear":
            self.items.clear()
            self.entries.clear()


NAMES = [
    *("input", "change", "change", "change inside", "yield", "yield", "collect", "side", "iterate", "clear", "remove"),
    *("read typed", "read namespace", "read untyped", "read boxed", "read timed", "read items", "read anything"),
    *("read entry", "read total", "read gathered", "update typed", "update namespace", "update untyped"),
    *("update boxed", "update timed", "add item", "add anything", "replace items", "put", "add total", "add gathered"),
]
#: Shows all state of a key.
SHOW = [(name, number) for name in NAMES if name.startswith("read") for number in (1, 2)]
SHOW = [part for read in SHOW for part in (read, ("yield", 9))]
programs = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 2)), max_size=8)
inputs = st.lists(st.tuples(st.sampled_from("ab"), programs), min_size=1, max_size=8)


def rows_of(chosen: list[Any]) -> list[Any]:
    shown = [*chosen, ("a", SHOW), ("b", SHOW)]
    return [row(k=k, n=n, tags=[[n, n]], program=program) for n, (k, program) in enumerate(shown)]


class Model:
    """A state that copies all that goes in and all that comes out."""

    def __init__(self, declaration: Any) -> None:
        self.declaration = declaration
        self.held: dict[Any, Any] = {}
        self.at: Any = None

    def namespace(self, number: Any) -> Any:
        other = copy.copy(self)
        other.at = (self.at, number)
        return other

    def value(self) -> Any:
        return copy.deepcopy(self.held.get(self.at, getattr(self.declaration, "default", None)))

    def update(self, value: Any) -> None:
        self.held[self.at] = copy.deepcopy(list(value) if self.declaration.kind == "list" else value)

    def clear(self) -> None:
        self.held.pop(self.at, None)

    def add(self, value: Any) -> None:
        kind, held = self.declaration.kind, self.held.get(self.at)
        value = copy.deepcopy(value)
        if kind == "reducing":
            self.held[self.at] = value if held is None else held + value
        else:
            self.held[self.at] = [*(held or []), value]

    def add_all(self, values: Any) -> None:
        for value in values:
            self.add(value)

    def get(self, *arguments: Any) -> Any:
        if self.declaration.kind == "map":
            key, default = arguments
            entries = self.held.get(self.at, {})
            return copy.deepcopy(entries[key]) if key in entries else default
        return copy.deepcopy(self.held.get(self.at, [] if self.declaration.kind == "list" else None))

    def __iter__(self) -> Any:
        return iter(self.get())

    def __setitem__(self, key: Any, value: Any) -> None:
        self.held.setdefault(self.at, {})[key] = copy.deepcopy(value)

    put = __setitem__

    def remove(self, key: Any) -> None:
        self.held.get(self.at, {}).pop(key, None)

    def items(self) -> Iterator[Any]:
        for key in sorted(self.held.get(self.at, {})):
            if key in self.held.get(self.at, {}):
                yield key, copy.deepcopy(self.held[self.at][key])


class ModelContext:
    def __init__(self) -> None:
        self.main: list[Any] = []
        self.side: list[Any] = []

    def collect(self, value: Any) -> None:
        self.main.append(copy.deepcopy(value))

    def output(self, _: str, value: Any) -> None:
        self.side.append(copy.deepcopy(value))


def modelled(rows: list[Any]) -> tuple[list[Any], list[Any]]:
    function, ctx = Program(), ModelContext()
    states = {name: Model(state) for name, state in vars(Program).items() if isinstance(state, keyed.job.state.State)}
    function.__dict__.update(states)
    for element in copy.deepcopy(rows):
        for state in states.values():
            state.at = element.k
        for value in function.process_element(element, ctx):
            ctx.collect(value)
    return ctx.main, ctx.side


def in_harness(rows: list[Any], size: int) -> tuple[list[Any], list[Any]]:
    with KeyedTestHarness(Program(), key=lambda value: value.k) as harness:
        for start in range(0, len(rows), size):
            with harness.batch():
                for element in copy.deepcopy(rows[start : start + size]):
                    harness.process(element)
        return [r.value for r in harness.take_output()], [r.value for r in harness.take_side_output("side")]


class Second(KeyedProcessFunction):
    """A second stage, which changes what it gets."""

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield value
        value[1].append("changed")


def in_local_runtime(rows: list[Any], size: int) -> tuple[list[Any], list[Any]]:
    first = keyed.stream(copy.deepcopy(rows)).key_by("k").process(Program(), name="first")
    second = first.key_by(lambda value: value[0]).process(Second(), name="second")
    main, side, after = [], [], keyed.collect_sink()
    keyed.run(
        first.to(lambda values, _: main.extend(values)),
        first.side_output("side").to(lambda values, _: side.extend(values)),
        second.to(after),
        rows_per_batch=size,
    )
    assert after.values == main
    return main, side


@settings(deadline=None, max_examples=60)
@given(inputs, st.integers(1, 10))
def test_outputs_and_state_do_not_depend_on_where_batches_are_cut(chosen: list[Any], size: int) -> None:
    rows = rows_of(chosen)
    expected = modelled(rows)
    for batch in {1, size, len(rows)}:
        assert in_harness(rows, batch) == expected
    assert in_local_runtime(rows, size) == expected


class Unstored(KeyedProcessFunction):
    """Changes what it read, and does not store it."""

    last = ValueState(list, default=[])

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        # By another name of the method, which the check of the source does not follow.
        add = self.last.value().append
        add(value)
        yield self.last.value()


class Owned(KeyedProcessFunction):
    """Changes its value in place; the first time it stores it."""

    last = inner_state(ValueState(list), in_place=True)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        x = self.last.value()
        if x is None:
            x = []
            self.last.update(x)
        x.append(value)
        yield x


@pytest.mark.parametrize("store", ["memory", "rocksdb"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_what_is_changed_in_place_is_stored_and_nothing_else(size: int, store: Any) -> None:
    for function, expected in ((Unstored(), [[]] * 4), (Owned(), [[1], [1, 1], [1, 1, 1], [1, 1, 1, 1]])):
        with KeyedTestHarness(function, store=store) as harness:
            for _ in range(4 // size):
                with harness.batch():
                    for _ in range(size):
                        harness.process(1)
            assert [record.value for record in harness.take_output()] == expected


class Half(Gather):
    def add(self, value: Any, accumulator: Any) -> Any:
        accumulator.append(value)
        if value == "half":
            raise ValueError(value)
        return accumulator


class Catches(KeyedProcessFunction):
    gathered = AggregatingState(Half())

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        try:
            self.gathered.add(value.v)
        except ValueError:
            yield "caught"
        yield self.gathered.get()


@pytest.mark.parametrize("size", [1, 3])
def test_an_accumulator_that_was_half_changed_is_the_same_in_the_next_batch(size: int) -> None:
    elements = [row(k=1, v="a"), row(k=1, v="half"), row(k=1, v="b")]
    result = keyed.stream(elements).key_by("k").process(Catches(), name="f").run(rows_per_batch=size)
    assert result.values == [["a"], "caught", ["a", "half"], ["a", "half", "b"]]


def test_an_output_that_cannot_be_copied_is_refused() -> None:
    class Opens(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            yield [threading.Lock()]

    with (
        KeyedTestHarness(Opens()) as harness,
        pytest.raises(EncodingError, match="lock cannot be taken as it is now, because it cannot be copied"),
    ):
        harness.process(1)


def test_a_value_in_place_has_no_default() -> None:
    with pytest.raises(StateDefinitionError, match=r"in_place=True of a ValueState with default=\[\]"):
        inner_state(ValueState(list, []), in_place=True)

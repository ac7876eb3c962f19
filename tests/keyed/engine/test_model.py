"""Random programs: the engine over both local stores shows and leaves what a model in plain dictionaries does.

Commits of one or many elements, clocks, crashes and moves to another parallelism come in any order; after each step
outputs with their timestamps, side outputs, pending timers, live entries and counters are compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keyed.engine.group_log import UnreadLog
from keyed.engine.key_group import KeyGroup
from keyed.testing import KeyedTestHarness
from keyed.testing.function_options import operator_of
from keyed.testing.group_set import GroupSet
from keyed.testing.harness import DrivenFunction
from tests.keyed.engine.model import EVENT, PROCESSING, STATES, Model, Program

TIME = st.integers(0, 40)
SMALL = st.integers(-3, 3)
NAMESPACE = st.sampled_from([None, None, "w", 1, True, 1.0, (0, 10), (0.0, 10), (0, (1, 2)), (0, (1.0, 2))])
NAME = st.sampled_from(["a", "b", 1, 1.0, True, (1, 2), (1.0, 2)])
MAP_KEY = st.sampled_from(["", "x", "y", "z"])
KEYS: list[tuple[Any, ...]] = [
    *(("a", "b", "ab"), ("", "\0", "a\0b"), (1, -2, 300), (-(2**63), 0, 2**63 - 1), (b"", b"\0", b"\xff")),
    (("a", 1), ("a", 2), ("b", 1)),
]
DOMAIN = st.sampled_from([EVENT, PROCESSING])
CALLS: dict[str, st.SearchStrategy[tuple[Any, ...]]] = {
    "value": st.one_of(st.just(("value",)), st.tuples(st.just("update"), SMALL | st.none()), st.just(("clear",))),
    "list": st.one_of(
        st.just(("get",)),
        st.tuples(st.just("add"), SMALL),
        st.tuples(st.sampled_from(["add_all", "update"]), st.lists(SMALL, max_size=3)),
        st.just(("clear",)),
    ),
    "map": st.one_of(
        st.tuples(st.sampled_from(["get", "contains", "remove", "items_from"]), MAP_KEY),
        st.tuples(st.sampled_from(["put", "set_item"]), MAP_KEY, SMALL | st.none()),
        st.tuples(st.just("get"), MAP_KEY, SMALL),
        st.tuples(st.just("put_all"), st.dictionaries(MAP_KEY, SMALL, max_size=3)),
        st.tuples(st.just("remove_some"), st.lists(MAP_KEY, max_size=2)),
        st.tuples(st.sampled_from(["keys", "values", "items", "is_empty", "__len__", "clear"])),
    ),
    "reducing": st.one_of(st.just(("get",)), st.tuples(st.just("add"), SMALL), st.just(("clear",))),
}
CALLS["aggregating"] = CALLS["reducing"]


def state_calls(name: str) -> st.SearchStrategy[Any]:
    calls = CALLS[STATES[name][0]]
    return st.tuples(NAMESPACE, calls).map(lambda drawn: ("state", name, drawn[0], *drawn[1]))


_DOMAINS = ("event", "processing")
TIMER_CALLS = st.one_of(
    st.tuples(
        st.just("timer"),
        st.sampled_from([f"{call}_{domain}_time_timer" for call in ("register", "delete") for domain in _DOMAINS]),
        TIME,
    ),
    st.tuples(st.just("timer"), st.just("set_timer"), NAME, TIME, DOMAIN),
    st.tuples(st.just("timer"), st.just("cancel_timer"), NAME, DOMAIN),
    st.just(("timer", "timers")),
)


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[list[Any]], list[Any]]:
    """The scripts of the timers, and the steps."""
    # Few states, so that calls meet.
    names = draw(st.lists(st.sampled_from(sorted(STATES)), min_size=1, max_size=3))
    operation = st.one_of(
        st.sampled_from(names).flatmap(state_calls),
        st.sampled_from(names).flatmap(state_calls),
        TIMER_CALLS,
        st.tuples(st.just("collect"), SMALL, st.none() | TIME) | st.tuples(st.just("output"), SMALL),
    )
    operations = st.lists(operation, max_size=6)
    keys = draw(st.sampled_from(KEYS))
    row = st.tuples(st.sampled_from(keys), TIME | st.none(), operations)
    step = st.one_of(
        st.tuples(st.just("process"), st.lists(row, min_size=1, max_size=1)),
        st.tuples(st.just("process"), st.lists(row, min_size=1, max_size=4)),
        st.tuples(st.sampled_from(["watermark", "processing"]), TIME),
        st.just(("crash",)),
        st.tuples(st.just("restore"), st.integers(1, 3)),
    )
    steps = draw(st.lists(step, min_size=1, max_size=14))
    if draw(st.booleans()):
        steps = [*steps, ("end",)]
    return draw(st.lists(operations, max_size=3)), steps


class Long:
    """Long programs in which calls meet often: few states, keys and times. All chance is the given one's."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.names = random.sample(sorted(STATES), 3)
        self.namespaces: list[Any] = random.choice(
            [[None, "w"], [None, 1, True], [(0, 10), (0.0, 10)], [(0, (1, 2)), (0, (1.0, 2))]]
        )
        self.keys: tuple[Any, ...] = random.choice([("a", "b"), (1, -2, 300), (("a", 1), ("b", 1))])
        self.now = 0
        self.scripts = [self.operations(6) for _ in range(3)]
        self.steps: list[Any] = []
        for _ in range(30):
            self.steps.append(self.step())
        self.steps.append(("end",))

    def time(self) -> int:
        return max(0, self.now + self.random.randint(-3, 9))

    def operations(self, most: int) -> list[Any]:
        return [self.operation() for _ in range(self.random.randint(0, most))]

    def operation(self) -> Any:
        random = self.random
        kind = random.random()
        if kind < 0.5:
            name = random.choice(self.names)
            return ("state", name, random.choice(self.namespaces), *self.call(STATES[name][0]))
        if kind < 0.9:
            domain = random.choice(_DOMAINS)
            call = random.choice(["register", "register", "delete", "set", "set", "cancel", "list"])
            if call == "list":
                return "timer", "timers"
            if call in ("set", "cancel"):
                where = EVENT if domain == "event" else PROCESSING
                name = random.choice(["a", "b"])
                return (
                    ("timer", "set_timer", name, self.time(), where)
                    if call == "set"
                    else ("timer", "cancel_timer", name, where)
                )
            return "timer", f"{call}_{domain}_time_timer", self.time()
        return ("collect", 1, random.choice([None, 3])) if kind < 0.95 else ("output", 2)

    def call(self, kind: str) -> tuple[Any, ...]:
        random = self.random
        value = random.randint(-3, 3)
        if kind == "value":
            return random.choice([("value",), ("value",), ("update", value), ("update", None), ("clear",)])
        if kind == "list":
            update = random.choice([("add_all", [1, 2]), ("update", [value]), ("update", []), ("clear",)])
            return random.choice([("get",), ("get",), ("add", value), ("add", value), update])
        if kind == "map":
            key = random.choice("xyz")
            return random.choice(
                [
                    ("get", key),
                    ("contains", key),
                    ("remove", key),
                    ("put", key, value),
                    ("put", key, None),
                    ("set_item", key, value),
                    ("put_all", {"x": 1, "z": value}),
                    ("remove_some", ["x", "y"]),
                    ("items",),
                    ("keys",),
                    ("is_empty",),
                    ("__len__",),
                    ("clear",),
                ]
            )
        return random.choice([("get",), ("get",), ("add", value), ("add", value), ("clear",)])

    def row(self) -> Any:
        timestamp = None if self.random.random() < 0.1 else self.time()
        return self.random.choice(self.keys), timestamp, self.operations(6)

    def step(self) -> Any:
        random = self.random
        kind = random.random()
        if kind < 0.5:
            return "process", [self.row() for _ in range(random.choice([1, 1, 2, 5]))]
        if kind < 0.85:
            self.now += random.choice([0, 1, 2, 6])
            return random.choice(["watermark", "processing"]), self.now + random.randint(-2, 2)
        return ("crash",) if kind < 0.93 else ("restore", random.randint(1, 3))


def of_key(element: Any) -> Any:
    return element[0]


class Subject:
    """A harness that is driven by steps."""

    def __init__(self, scripts: list[list[Any]], store: Any, parallelism: int) -> None:
        self.function = Program(scripts)
        self.store = store
        self.harness: DrivenFunction = KeyedTestHarness(self.function, key=of_key, store=store, parallelism=parallelism)

    def step(self, what: str, *arguments: Any) -> None:
        harness = self.harness
        if what == "process":
            (rows,) = arguments
            if len(rows) == 1:
                harness.process((rows[0][0], rows[0][2]), rows[0][1])
                return
            with harness.batch():
                for key, timestamp, operations in rows:
                    harness.process((key, operations), timestamp)
        elif what == "watermark":
            harness.advance_watermark(arguments[0])
        elif what == "processing":
            harness.advance_processing_time(arguments[0])
        elif what == "crash":
            harness.crash_and_recover()
        elif what == "restore":
            snapshot = harness._groups.snapshot()
            outputs = harness._outputs
            harness.close()
            self.harness = KeyedTestHarness.restore(
                self.function, snapshot, key=of_key, store=self.store, parallelism=arguments[0]
            )
            self.harness._outputs = outputs
        else:
            harness.end_of_input()

    def pending(self) -> list[Any]:
        timers = self.harness.pending_timers()
        return sorted(((t.timestamp, t.domain.value, t.key, repr(t.name)) for t in timers), key=repr)


def step_model(model: Model, what: str, *arguments: Any) -> None:
    if what == "process":
        model.process(arguments[0])
    elif what == "watermark":
        model.advance_watermark(arguments[0])
    elif what == "processing":
        model.advance_processing_time(arguments[0])
    elif what == "end":
        model.end_of_input()


def by_key(outputs: Iterable[tuple[Any, int | None, Any]]) -> dict[Any, list[Any]]:
    """Outputs per key, in order: keys are independent, and key groups run one after the other."""
    found: dict[Any, list[Any]] = {}
    for value, timestamp, key in outputs:
        found.setdefault(key, []).append((value, timestamp))
    return found


class UnreadGroups(GroupSet):
    """Key groups whose changes nothing reads, as in a local run without checkpoint and changelog."""

    def _open(self) -> None:
        super()._open()
        for index, replica in enumerate(self._replicas):
            self.members[index] = KeyGroup(self.spec, index, UnreadLog(), replica)


class UnreadSubject(Subject):
    """A subject that lives once: there is nothing from which it could be recovered."""

    def __init__(self, scripts: list[list[Any]], parallelism: int) -> None:
        super().__init__(scripts, "memory", parallelism)
        groups = UnreadGroups(operator_of(self.function, key=of_key, parallelism=parallelism))
        self.harness = DrivenFunction(groups, of_key)

    def step(self, what: str, *arguments: Any) -> None:
        if what not in ("crash", "restore"):
            super().step(what, *arguments)


def check(model: Model, subject: Subject) -> None:
    """Compare everything that can be seen after a step."""
    harness = subject.harness
    output = harness.take_output()
    if harness._groups.spec.parallelism == 1:
        assert [tuple(record) for record in output] == [(value, timestamp) for value, timestamp, _ in model.output]
    else:
        assert sorted(output, key=repr) == sorted(((v, t) for v, t, _ in model.output), key=repr)
    assert sorted(harness.take_side_output("side"), key=repr) == sorted(((v, t) for v, t, _ in model.side), key=repr)
    stores = not isinstance(subject, UnreadSubject)
    if stores:
        assert subject.pending() == model.pending()
        assert harness.state_entries() == model.state_entries()
    assert harness.current_watermark == model.watermark
    assert harness.current_processing_time == model.processing_time
    metrics = harness.metrics()
    entries = list(harness._groups.entries())
    if metrics:
        assert (metrics["rows_in"], metrics["rows_late"]) == (model.rows, model.late)
        assert metrics["timers_fired"] == model.fired
        assert metrics["timers_pending"] == len(model.timers)
        assert metrics["live_entries"] == model.state_entries()
        if stores:
            assert metrics["live_bytes"] == sum(len(p) + len(s) + len(v) + 8 for p, s, v in entries)
        assert metrics["timers_registered"] >= metrics["timers_fired"] + metrics["timers_pending"]


def run(program: tuple[list[list[Any]], list[Any]], subjects: list[Subject]) -> None:
    scripts, steps = program
    model = Model(scripts)
    try:
        for step in steps:
            step_model(model, *step)
            for subject in subjects:
                subject.step(*step)
                check(model, subject)
            model.output, model.side = [], []
    finally:
        for subject in subjects:
            subject.harness.close()


@settings(max_examples=settings().max_examples * 2)
@given(programs(), st.integers(1, 3))
def test_memory_agrees_with_the_model(program, parallelism):
    run(program, [Subject(program[0], "memory", parallelism)])


@settings(max_examples=settings().max_examples * 2)
@given(programs(), st.integers(1, 3))
def test_what_nothing_reads_agrees_with_the_model(program, parallelism):
    run(program, [UnreadSubject(program[0], parallelism)])


@settings(max_examples=max(settings().max_examples // 10, 5))
@given(programs(), st.integers(1, 2), st.sampled_from(["rocksdb", "lmdb"]))
def test_stores_on_disk_agree_with_the_model(program, parallelism, store):
    run(program, [Subject(program[0], store, parallelism)])


@pytest.mark.slow
@settings(max_examples=max(settings().max_examples // 2, 5))
@given(st.randoms(use_true_random=False))
def test_memory_agrees_with_the_model_over_long_programs(random):
    program = Long(random)
    run((program.scripts, program.steps), [Subject(program.scripts, "memory", program.random.choice([1, 1, 3]))])


@settings(max_examples=max(settings().max_examples // 2, 5))
@given(st.randoms(use_true_random=False))
def test_what_nothing_reads_agrees_with_the_model_over_long_programs(random):
    program = Long(random)
    run((program.scripts, program.steps), [UnreadSubject(program.scripts, program.random.choice([1, 1, 3]))])


@settings(max_examples=max(settings().max_examples // 20, 3))
@given(st.randoms(use_true_random=False))
def test_rocksdb_agrees_with_the_model_over_long_programs(random):
    program = Long(random)
    run((program.scripts, program.steps), [Subject(program.scripts, "rocksdb", program.random.choice([1, 2]))])

"""The kit over functions with two inputs: each property, the state machine and the simulator pass and find."""

from __future__ import annotations

import unittest
from collections import Counter
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant

import keyed
from keyed import testing
from keyed.testing import Falsified, KeyedStateMachine, KeyedTestHarness, Record, SecondRecord, strategies
from tests.support.simulator.simulation import SimulationFailed, simulate

DELAY = keyed.bounded_out_of_orderness(2_000)
CLICK = strategies.rows("user string, page string, time bigint", user=strategies.skewed("ann", "bob"))
BUY = strategies.rows("who string, amount bigint, time bigint", who=strategies.skewed("ann", "bob"))
BOTH = strategies.two_streams(
    strategies.streams(CLICK, timestamp="time", gap=1_000, delay=2_000, max_size=6),
    strategies.streams(BUY, timestamp="time", gap=1_000, delay=2_000, max_size=6),
)
KEYS: Any = {"key": "user", "key2": "who"}


class Purchases(keyed.KeyedCoProcessFunction):
    """Counts the clicks of a user in the second up to a purchase, when no row of that time can come any more."""

    clicks = keyed.ListState(int)
    buys = keyed.ListState(int)

    def process_element1(self, value, ctx):
        self.clicks.update(sorted([*self.clicks.get(), ctx.timestamp()]))
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 1_000)

    def process_element2(self, value, ctx):
        self.buys.update(sorted([*self.buys.get(), ctx.timestamp()]))
        ctx.timer_service().register_event_time_timer(ctx.timestamp())

    def on_timer(self, timestamp, ctx):
        clicks, buys = list(self.clicks.get()), list(self.buys.get())
        for _ in range(buys.count(timestamp)):
            yield ctx.get_current_key(), timestamp, sum(timestamp - 1_000 < time <= timestamp for time in clicks)
        self.buys.update([time for time in buys if time != timestamp])
        self.clicks.update([time for time in clicks if time > timestamp - 1_000])


class OnSelf(Purchases):
    """Its state is on the object, beside the engine."""

    def open(self, context):
        self.seen: Counter[str] = Counter()

    def process_element1(self, value, ctx):
        self.seen[value["user"]] += 1

    def process_element2(self, value, ctx):
        yield self.seen[value["who"]]


class Waits(keyed.KeyedCoProcessFunction):
    """Keeps what never meets its match."""

    waiting = keyed.ValueState(str)

    def process_element1(self, value, ctx):
        self.waiting.update(value["page"])

    def process_element2(self, value, ctx):
        if self.waiting.value() is not None:
            yield value["who"]
            self.waiting.clear()


def purchases(rows: list[Record]):
    for buy in rows:
        if buy.input == 2:
            time, user = buy.timestamp or 0, buy.value["who"]
            clicks = [row.timestamp or 0 for row in rows if row.input == 1 and row.value["user"] == user]
            yield user, time, sum(time - 1_000 < each <= time for each in clicks)


@pytest.mark.slow
def test_each_property_passes_what_is_right():
    function, options = Purchases(), KEYS | {"watermark": DELAY, "examples": 40}
    told = [
        testing.assert_batch_split_invariant(function, BOTH, **options),
        testing.assert_recovery_invisible(function, BOTH, **options),
        testing.assert_rescale_invisible(function, BOTH, **options),
        testing.assert_deterministic(function, BOTH, **options),
        testing.assert_matches(function, purchases, BOTH, **options),
        testing.assert_state_bounded(function, BOTH, silence=3_001, **options),
        testing.assert_runtimes_agree(function, BOTH, timestamp="time", **options),
    ]
    assert all(sentence.startswith("Purchases: ") for sentence in told)


@pytest.mark.parametrize(
    ("function", "prove", "more"),
    [
        pytest.param(OnSelf, testing.assert_recovery_invisible, (), marks=pytest.mark.slow),
        pytest.param(OnSelf, testing.assert_rescale_invisible, (), marks=pytest.mark.long),
        pytest.param(OnSelf, testing.assert_matches, (purchases,), marks=pytest.mark.long),
        (Waits, testing.assert_state_bounded, ()),
        pytest.param(Waits, testing.assert_batch_split_invariant, (), marks=pytest.mark.slow),
    ],
)
def test_a_fault_is_found_and_the_printed_test_shows_it(function, prove, more):
    options = {"silence": 60_000} if prove is testing.assert_state_bounded else {}
    with pytest.raises(Falsified) as caught:
        prove(function(), *more, BOTH, seed=1, examples=300, watermark=DELAY, **KEYS, **options)
    assert len(caught.value.rows) <= 5
    names: Any = {}
    exec(caught.value.test, names)
    with pytest.raises(AssertionError):
        next(test for name, test in names.items() if name.startswith("test_"))()


class Machine(KeyedStateMachine):
    rows = st.fixed_dictionaries({"user": st.sampled_from("ab"), "page": st.just("p")})
    rows2 = st.fixed_dictionaries({"who": st.sampled_from("ab")})
    function: type[keyed.KeyedCoProcessFunction] = Purchases

    def make_harness(self):
        return KeyedTestHarness(self.function(), key="user", key2="who", watermark=keyed.bounded_out_of_orderness(0))

    @invariant()
    def no_purchase_is_told_twice(self):
        bought = Counter((row.value["who"], row.timestamp) for row in self.seen if row.input == 2)
        told = Counter(record.value[:2] for record in self.outputs)
        assert told <= bought


class Twice(Purchases):
    def on_timer(self, timestamp, ctx):
        for value in super().on_timer(timestamp, ctx):
            yield from (value, value)


class WrongMachine(Machine):
    function = Twice


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=5, stateful_step_count=20)


def test_the_state_machine_gives_rows_of_both_sides_and_finds():
    result, case = unittest.TestResult(), WrongMachine.TestCase
    case.settings = settings(max_examples=50, phases=[Phase.generate], database=None)
    case("runTest").run(result)
    assert len([*result.failures, *result.errors]) == 1


def rows_of_both(random):
    found, now = [], 0
    for _ in range(15):
        now += random.choice([0, 300, 1_000])
        user = random.choice("ab")
        found.append(
            Record({"user": user, "page": "p"}, now) if random.random() < 0.5 else SecondRecord({"who": user}, now)
        )
    return found


def test_the_simulator_drives_both_sides():
    simulate(Purchases(), rows_of_both, simulations=20, seed=0, **KEYS)
    with pytest.raises(SimulationFailed, match=r"process_element2\("):
        simulate(OnSelf(), rows_of_both, simulations=50, seed=0, **KEYS)


def test_the_watermark_of_the_harness_is_the_least_of_both_sides():
    with KeyedTestHarness(Purchases(), watermark=DELAY, **KEYS) as harness:
        harness.process_element1({"user": "ann"}, 9_000)
        assert harness.current_watermark < 0
        harness.process_element2({"who": "ann"}, 5_000)
        assert harness.current_watermark == 2_999
        harness.rescale(3)
        harness.process_element2({"who": "bob"}, 12_000)
        assert harness.current_watermark == 6_999
        assert harness.take_output() == [(("ann", 5_000, 0), 5_000)]


RULES = keyed.MapState(str, int, name="rules")


class Rules(keyed.KeyedBroadcastProcessFunction):
    """Counts the rows of a key, and tells when a rule that came before says so."""

    count = keyed.ValueState(int, default=0)

    def process_element(self, value, ctx):
        self.count.update(self.count.value() + 1)
        if self.count.value() == ctx.get_broadcast_state(RULES).get(value["page"]):
            yield value["user"], value["page"]

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(RULES)[value["page"]] = value["limit"]


class RulesOnSelf(Rules):
    """Keeps the rules beside the engine."""

    def __init__(self):
        self.rules: dict[str, int] = {}

    def process_element(self, value, ctx):
        yield value["user"], self.rules.get(value["page"])

    def process_broadcast_element(self, value, ctx):
        self.rules[value["page"]] = value["limit"]


PAGE = st.sampled_from(["p", "q"])
RULED = strategies.two_streams(
    strategies.streams(
        strategies.rows("user string, page string, time bigint", user=strategies.skewed("ann", "bob"), page=PAGE),
        timestamp="time",
    ),
    strategies.streams(
        strategies.rows("page string, limit int, time bigint", page=PAGE, limit=st.integers(1, 3)),
        timestamp="time",
        max_size=4,
    ),
)


@pytest.mark.slow
def test_rows_of_the_second_stream_are_broadcast():
    options: Any = {"key": "user", "broadcast": [RULES], "examples": 40}
    told = [
        testing.assert_recovery_invisible(Rules(), RULED, **options),
        testing.assert_rescale_invisible(Rules(), RULED, **options),
        # Which page a count is compared with depends on the order of the rows.
        testing.assert_deterministic(Rules(), RULED, same_order=True, **options),
    ]
    assert all(sentence.startswith("Rules: ") for sentence in told)


class ToldRules(Rules):
    """Tells of each rule that comes, too."""

    def process_broadcast_element(self, value, ctx):
        super().process_broadcast_element(value, ctx)
        yield "", value["page"]


def test_runtimes_agree_on_broadcast_elements():
    options: Any = {"key": "user", "broadcast": [RULES], "timestamp": "time", "output": "user string, page string"}
    assert "the harness and the local runtime" in testing.assert_runtimes_agree(ToldRules(), RULED, **options)


class RuledMachine(KeyedStateMachine):
    rows = st.fixed_dictionaries({"user": st.sampled_from("ab"), "page": PAGE})
    rows2 = st.fixed_dictionaries({"page": PAGE, "limit": st.integers(1, 3)})
    function: type[keyed.KeyedBroadcastProcessFunction] = Rules

    def make_harness(self):
        return KeyedTestHarness(self.function(), key="user", broadcast=[RULES])

    @invariant()
    def the_last_rule_of_a_page_is_kept_and_rows_are_counted(self):
        rules = {row.value["page"]: row.value["limit"] for row in self.seen if row.input == 2}
        assert self.harness.broadcast_state("rules") == rules
        assert self.harness.state("count") == Counter(row.value["user"] for row in self.seen if row.input == 1)


TestRuledMachine = RuledMachine.TestCase
TestRuledMachine.settings = settings(max_examples=5, stateful_step_count=15)


@pytest.mark.slow
def test_rules_beside_the_engine_are_found_and_broadcast_is_simulated():
    options: Any = {"key": "user", "broadcast": [RULES]}
    with pytest.raises(Falsified, match="process_broadcast_element") as caught:
        testing.assert_recovery_invisible(RulesOnSelf(), RULED, seed=1, examples=300, **options)
    assert len(caught.value.rows) <= 5
    rows = [
        kind(value, n * 10)
        for n, (kind, value) in enumerate(
            [(SecondRecord, {"page": "p", "limit": 2}), *[(Record, {"user": "ann", "page": "p"})] * 4] * 3
        )
    ]
    simulate(Rules(), rows, simulations=20, seed=0, **options)

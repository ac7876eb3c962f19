"""The ready properties: they find what is wrong in many functions, in few rows, and let pass what is right."""

from __future__ import annotations

import os
import re
import secrets
import threading
import uuid
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, cast

import attrs
import pytest
from hypothesis import strategies as st

from keyed import KeyedProcessFunction, ValueState, bounded_out_of_orderness, testing
from keyed.errors import DefinitionError
from keyed.testing import Falsified, Record, strategies
from keyed.testing.scripts import ProcessingTime
from tests.keyed.testing import wrong_functions as wrong
from tests.keyed.testing.test_right_functions import Minutes, RunningTotal

ROW = strategies.rows("user string, amount bigint", user=strategies.skewed("ann", "bob"), amount=st.integers(-3, 9))
IN_ORDER = strategies.streams(ROW, gap=60_000)
DISORDER = strategies.streams(ROW, gap=1_000, delay=3_000, max_size=8)
ONE_ROW = st.just([Record({"user": "ann", "amount": 1}, 0)])
LATE = strategies.streams(ROW, gap=3_000, delay=3_000, late=9_000)
DELAY = bounded_out_of_orderness(3_000)
USER = "user"


def by_user(records):
    users: dict[str, list[Record]] = {}
    for record in records:
        users.setdefault(record.value["user"], []).append(record)
    return users.items()


def minutes(records):
    for user, found in by_user(records):
        ends = [record.timestamp // 60_000 * 60_000 + 60_000 for record in found]
        yield from ((user, end, ends.count(end)) for end in set(ends))


def totals_of_minutes(records):
    for user, found in by_user(records):
        for minute in {record.timestamp // 60_000 for record in found}:
            yield user, sum(r.value["amount"] for r in found if r.timestamp // 60_000 == minute)


def counts(records):
    for user, found in by_user(records):
        yield from ((user, n + 1) for n in range(len(found)))


def sessions(records):
    for user, found in by_user(records):
        times = sorted(record.timestamp for record in found)
        session = [times[0]]
        for time in times[1:]:
            if time > session[-1] + 1000:
                yield user, session[0], session[-1], len(session)
                session = []
            session.append(time)
        yield user, session[0], session[-1], len(session)


def silences(records):
    for user, found in by_user(records):
        times = [record.timestamp for record in found]
        yield from ((user, time + 60_000) for time, after in pairwise([*times, 10**15]) if after > time + 60_000)


def silences_by_clock(happened):
    now = 0
    waiting: dict[str, tuple[int, int]] = {}
    for each in happened:
        if isinstance(each, ProcessingTime):
            now = each.to
            for user in [user for user, (time, _) in waiting.items() if time <= now]:
                yield user, *waiting.pop(user)
        else:
            user = each.value["user"]
            waiting[user] = now + 1_000, waiting.get(user, (0, 0))[1] + 1
    yield from ((user, *waited) for user, waited in waiting.items())


def first_in_a_minute_by_clock(happened):
    now = 0
    seen: dict[str, int] = {}
    for each in happened:
        if isinstance(each, ProcessingTime):
            now = each.to
        else:
            user = each.value["user"]
            if now >= seen.get(user, 0):
                yield user
            seen[user] = now + 60_000


def sessions_of_a_minute(records):
    for user, found in by_user(records):
        times = sorted(record.timestamp for record in found)
        yield from ((user, time) for time, after in pairwise([*times, 10**15]) if after >= time + 60_000)


def sums_seen(records):
    for user, found in by_user(records):
        seen, total = [], 0
        for record in found:
            total += record.value["amount"]
            seen.append(total)
            yield user, seen.count(total)


def found(function, prove, *arguments, **options):
    """Return the failure that a property finds, always on the same examples: `KEYED_FAULT_SEED` tries others."""
    with pytest.raises(Falsified) as caught:
        prove(
            function, *arguments, key=USER, examples=500, seed=int(os.environ.get("KEYED_FAULT_SEED", "1")), **options
        )
    return caught.value


#: When each is tried: slow are those whose smallest example takes seconds to find, long are further ones of a kind.
FAULTS: dict[type, tuple[Any, ...]] = {
    wrong.LastAmount: ("long", testing.assert_batch_split_invariant, DISORDER, {"watermark": DELAY}),
    wrong.SeenUsers: ("", testing.assert_state_bounded, IN_ORDER, {"silence": 60_000}),
    wrong.Sampled: ("slow", testing.assert_deterministic, IN_ORDER, {}),
    wrong.Reminder: ("long", testing.assert_matches, totals_of_minutes, IN_ORDER, {}),
    wrong.Distinct: ("", testing.assert_deterministic, IN_ORDER, {}),
    wrong.CountOnSelf: ("", testing.assert_recovery_invisible, IN_ORDER, {}),
    wrong.DropsLate: ("slow", testing.assert_matches, counts, LATE, {"watermark": DELAY}),
    wrong.Minutes: ("", testing.assert_matches, minutes, IN_ORDER, {}),
    wrong.Sessions: ("slow", testing.assert_matches, sessions, DISORDER, {"watermark": DELAY}),
    wrong.Prices: ("long", testing.assert_matches, sums_seen, IN_ORDER, {}),
    wrong.FirstAmount: ("slow", testing.assert_recovery_invisible, IN_ORDER, {}),
    wrong.FirstAmountOfModule: ("long", testing.assert_rescale_invisible, IN_ORDER, {}),
    wrong.FirstAmountOfDefault: ("long", testing.assert_recovery_invisible, IN_ORDER, {}),
    wrong.Numbered: ("long", testing.assert_recovery_invisible, IN_ORDER, {}),
    wrong.FirstAmountOfCache: ("long", testing.assert_recovery_invisible, IN_ORDER, {}),
    wrong.FirstOfRegistry: ("long", testing.assert_recovery_invisible, IN_ORDER, {}),
    wrong.LastOfObject: ("long", testing.assert_rescale_invisible, IN_ORDER, {}),
    wrong.SeenAt: ("", testing.assert_deterministic, IN_ORDER, {}),
    wrong.EverSince: ("", testing.assert_state_bounded, IN_ORDER, {"silence": 120_000}),
    wrong.Collected: ("", testing.assert_state_bounded, IN_ORDER, {"silence": 120_000}),
    wrong.WindowsLeft: ("", testing.assert_state_bounded, IN_ORDER, {"silence": 120_000}),
    wrong.SilencesByClock: ("long", testing.assert_matches, silences_by_clock, IN_ORDER, {"clocks": True}),
    wrong.SeenTooLong: ("slow", testing.assert_matches, first_in_a_minute_by_clock, IN_ORDER, {"clocks": 60_000}),
    wrong.Silences: ("long", testing.assert_matches, silences, IN_ORDER, {}),
    wrong.TwiceIfLate: ("long", testing.assert_matches, counts, LATE, {"watermark": DELAY}),
    wrong.MinutesInclusive: ("long", testing.assert_matches, minutes, IN_ORDER, {}),
    wrong.SessionsTouch: ("long", testing.assert_matches, sessions_of_a_minute, IN_ORDER, {}),
    wrong.SumOfFloats: ("long", testing.assert_batch_split_invariant, DISORDER, {"watermark": DELAY}),
    wrong.WatermarkSeen: ("long", testing.assert_batch_split_invariant, DISORDER, {"watermark": DELAY}),
    wrong.Tags: ("slow", testing.assert_deterministic, IN_ORDER, {}),
    wrong.Rarely: ("slow", testing.assert_deterministic, IN_ORDER, {}),
    wrong.Named: ("long", testing.assert_deterministic, IN_ORDER, {}),
    wrong.Dated: ("long", testing.assert_deterministic, IN_ORDER, {}),
    wrong.AtHour: ("long", testing.assert_deterministic, IN_ORDER, {}),
    wrong.SampledByHash: ("slow", testing.assert_deterministic, IN_ORDER, {}),
    wrong.Aged: ("slow", testing.assert_deterministic, IN_ORDER, {}),
    wrong.Throttled: ("long", testing.assert_deterministic, IN_ORDER, {}),
    wrong.LastOfTime: ("long", testing.assert_deterministic, IN_ORDER, {}),
    wrong.FirstWins: ("long", testing.assert_deterministic, IN_ORDER, {}),
    wrong.SumOfTenths: ("long", testing.assert_deterministic, IN_ORDER, {}),
    wrong.ReadsLater: ("long", testing.assert_deterministic, DISORDER, {"watermark": DELAY}),
}

CASES = [
    pytest.param(function, marks=[getattr(pytest.mark, when)] if when else [], id=function.__name__)
    for function, (when, *_) in FAULTS.items()
]


@pytest.mark.parametrize("function", CASES)
def test_the_fault_of_each_wrong_function_is_found_in_at_most_five_rows(function):
    _, *how, options = FAULTS[function]
    caught = found(function(), *how, **options)
    assert 1 <= len(caught.rows) <= 5
    assert function.__name__ in str(caught)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [5, *(pytest.param(seed, marks=pytest.mark.long) for seed in (7, 8))])
def test_a_sum_of_tenths_is_found_with_the_default_examples(seed):
    """Without orders that are searched for, 5 of 16 seeds find it."""
    stream = strategies.streams(strategies.rows("user string, amount bigint"), gap=60_000)
    with pytest.raises(Falsified, match="depends on the order") as caught:
        testing.assert_deterministic(wrong.SumOfTenths(), stream, key=USER, examples=100, seed=seed)
    assert len(caught.value.rows) <= 4


def test_an_example_is_shrunk_by_a_bounded_number_of_further_examples(monkeypatch):
    calls = []

    def model(records):
        calls.append(records)
        return []

    monkeypatch.setattr("keyed.testing.properties._SHRINKING", 5)
    with pytest.raises(Falsified):
        testing.assert_matches(RunningTotal(), model, IN_ORDER, key=USER, seed=1)
    failing = next(place for place, records in enumerate(calls) if records)
    assert len(calls) <= failing + 1 + 5


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
def test_rare_chance_of_the_system_is_found_in_one_row(seed):
    class Rare(KeyedProcessFunction):
        def process_element(self, value, ctx):
            if secrets.randbelow(1_000) == 0:
                yield value["user"]

    with pytest.raises(Falsified) as caught:
        testing.assert_deterministic(Rare(), IN_ORDER, key=USER, seed=seed)
    assert len(caught.value.rows) == 1


def test_identifiers_of_the_system_stay_unique(tmp_path):
    folder = str(tmp_path)

    class Unique(RunningTotal):
        def process_element(self, value, ctx):
            Path(folder, str(uuid.uuid4())).mkdir()
            return super().process_element(value, ctx)

    urandom = os.urandom
    testing.assert_deterministic(Unique(), IN_ORDER, key=USER, examples=20)
    assert len([*tmp_path.iterdir()]) > 20
    assert os.urandom is urandom


class Stateless(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value["user"]


class Silent(KeyedProcessFunction):
    def process_element(self, value, ctx): ...


class Never(Stateless):
    def on_timer(self, timestamp, ctx): ...


@attrs.frozen
class Click:
    user: str
    amount: int


def test_a_function_that_is_right_passes_and_each_property_says_what_it_proved():
    function = Minutes()
    stream = strategies.streams(ROW, gap=60_000, delay=3_000, silence=3_600_000, duplicates=True)
    told = [
        testing.assert_batch_split_invariant(function, stream, key=USER, watermark=DELAY),
        testing.assert_recovery_invisible(function, stream, key=USER, watermark=DELAY),
        testing.assert_rescale_invisible(function, stream, key=USER, watermark=DELAY),
        testing.assert_deterministic(function, stream, key=USER, watermark=DELAY),
        testing.assert_matches(function, minutes, stream, key=USER, watermark=DELAY),
        testing.assert_state_bounded(function, stream, silence=63_000, key=USER, watermark=DELAY),
    ]
    assert all(sentence.startswith("Minutes: ") for sentence in told)
    assert all(re.search(r", in \d\d different examples, \d+ rows, a key twice in \d+, ", each) for each in told)
    assert all(re.search(r" [1-9]\d* timers fired, 0 late rows", each) for each in told)
    assert ["restart" in each for each in told] == [False, True, True, False, False, False]
    assert ["other orders of arrival" in each for each in told] == [False, False, False, True, False, False]
    assert len(set(told)) == len(told)


def test_a_delay_is_a_watermark_as_in_a_stream():
    stream = strategies.streams(ROW, gap=60_000, delay=3_000)
    sentences = {
        testing.assert_recovery_invisible(Minutes(), stream, key=USER, watermark=watermark, examples=5, seed=1)
        for watermark in (DELAY, timedelta(milliseconds=DELAY.delay_ms))
    }
    assert len(sentences) == 1


def test_the_harness_and_the_local_runtime_agree():
    rows = strategies.rows("user string, amount bigint, time bigint", user=strategies.skewed("ann", "bob"))
    stream = strategies.streams(rows, timestamp="time", gap=60_000, delay=3_000)
    told = testing.assert_runtimes_agree(Minutes(), stream, timestamp="time", key=USER, watermark=DELAY)
    assert "the harness and the local runtime give the same outputs" in told


def test_runtimes_that_differ_are_told():
    class Clock(KeyedProcessFunction):
        runs = 0

        def process_element(self, value, ctx):
            yield type(self).runs
            type(self).runs += 1

    with pytest.raises(Falsified, match="on the local runtime") as caught:
        testing.assert_runtimes_agree(Clock(), st.lists(ROW, max_size=5), key=USER)
    assert len(caught.value.rows) == 1


def test_a_key_that_is_no_column_has_no_runtimes_to_compare():
    with pytest.raises(DefinitionError, match="names of columns"):
        testing.assert_runtimes_agree(RunningTotal(), IN_ORDER, key=lambda row: row["user"])


def test_the_same_seed_finds_the_same_example():
    one, other = (found(wrong.SeenUsers(), testing.assert_state_bounded, IN_ORDER, silence=1) for _ in range(2))
    assert str(one) == str(other)
    assert f"--keyed-seed={one.seed}" in str(one)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "prove", "name"),
    [
        (wrong.CountOnSelf, testing.assert_recovery_invisible, "test_crash"),
        (wrong.FirstAmount, testing.assert_recovery_invisible, "test_crash"),
        # Those that need another process or chance.
        (wrong.Tags, testing.assert_deterministic, "test_same_again"),
        (wrong.Rarely, testing.assert_deterministic, "test_same_again"),
        *(
            pytest.param(each, testing.assert_recovery_invisible, "test_crash", marks=pytest.mark.long)
            for each in (
                wrong.FirstAmountOfCache,
                wrong.FirstOfRegistry,
                wrong.LastOfObject,
                wrong.FirstAmountOfModule,
                wrong.FirstAmountOfDefault,
            )
        ),
    ],
)
def test_the_printed_test_fails_as_the_property_did(function, prove, name):
    caught = found(function(), prove, IN_ORDER)
    names: dict[str, Any] = {}
    exec(caught.test, names)
    with pytest.raises(AssertionError):
        names[name]()


def test_a_function_that_raises_is_told_with_the_row():
    class Divides(KeyedProcessFunction):
        def process_element(self, value, ctx):
            yield 1 // value["amount"]

    with pytest.raises(Falsified, match="the function fails: UserFunctionError") as caught:
        testing.assert_deterministic(Divides(), IN_ORDER, key=USER)
    assert [row.value["amount"] for row in caught.value.rows] == [0]


def test_what_a_key_may_keep_is_counted():
    testing.assert_state_bounded(wrong.SeenUsers(), IN_ORDER, silence=1, keeps=1, key=USER)


def test_class_attributes_are_put_back():
    with pytest.raises(Falsified):
        testing.assert_deterministic(wrong.Distinct(), IN_ORDER, key=USER)
    assert wrong.Distinct.known == set()


@pytest.mark.parametrize(
    ("prove", "arguments", "options", "told"),
    [
        (testing.assert_deterministic, (IN_ORDER,), {"examples": 0}, "examples=0 must be an int of at least 1"),
        (testing.assert_deterministic, (IN_ORDER,), {"seed": "1"}, "seed='1' must be an int"),
        (testing.assert_deterministic, (ROW,), {}, "which is not a list of rows; give strategies.streams"),
        (testing.assert_deterministic, ([1],), {}, r"rows=\[1\] is not a strategy"),
        (testing.assert_deterministic, (IN_ORDER,), {"watermark": 3}, "watermark=3 is an int; give"),
        (testing.assert_matches, (IN_ORDER, minutes), {}, "is not a function; give it before the rows"),
        (testing.assert_matches, (lambda _: 1 // 0, IN_ORDER), {}, "the model fails: ZeroDivisionError"),
        (testing.assert_recovery_invisible, (IN_ORDER,), {"stores": "memory"}, "stores='memory' must be a non-empty"),
        (testing.assert_recovery_invisible, (IN_ORDER,), {"stores": ["disk"]}, "'disk' must be 'memory', 'rocksdb', "),
        (testing.assert_rescale_invisible, (IN_ORDER,), {"parallelisms": [0]}, "parallelism=0"),
    ],
)
def test_what_makes_no_sense_is_refused(prove, arguments, options, told):
    with pytest.raises(DefinitionError, match=told):
        prove(RunningTotal(), *arguments, key=USER, **options)


def test_a_function_that_cannot_be_sent_is_tried_in_this_process_and_that_is_told():
    function = RunningTotal()
    vars(function)["lock"] = threading.Lock()
    told = testing.assert_deterministic(function, IN_ORDER, key=USER, examples=5)
    assert "in this process (not in another one, because it cannot be sent there: TypeError: cannot pickle" in told


def test_rows_of_one_time_keep_their_order_where_that_is_given():
    told = testing.assert_deterministic(wrong.LastOfTime(), IN_ORDER, key=USER, same_order=True)
    assert "other order" not in told


class Gaps(KeyedProcessFunction):
    """The time since the row before, which depends on the order of rows."""

    last = ValueState(int, default=0)

    def process_element(self, value, ctx):
        yield ctx.timestamp() - self.last.value()
        self.last.update(ctx.timestamp())


@pytest.mark.slow
def test_a_function_that_needs_rows_in_their_order_has_it_from_the_watermark():
    options: dict[str, Any] = {"key": USER, "watermark": bounded_out_of_orderness(minutes=1), "seed": 1}
    rows = strategies.streams(strategies.rows("user string", user=st.sampled_from("ab")), gap=60_000)
    with pytest.raises(Falsified, match="order='watermark' runs them by time"):
        testing.assert_deterministic(Gaps(), rows, examples=50, **options)
    for prove in (
        testing.assert_deterministic,
        testing.assert_batch_split_invariant,
        testing.assert_recovery_invisible,
    ):
        assert "Gaps: " in prove(Gaps(), rows, order="watermark", examples=20, **options)


def test_rows_that_wait_for_the_watermark_do_not_depend_on_batches():
    rows = strategies.streams(strategies.rows("user string, amount bigint"), gap=40_000, delay=15_000)
    watermark = bounded_out_of_orderness(seconds=15)
    told = testing.assert_batch_split_invariant(
        RunningTotal(), rows, key="user", watermark=watermark, order="watermark", examples=100, seed=1
    )
    assert "do not depend on where the input is cut into batches" in told


@pytest.mark.parametrize(
    ("prove", "function", "stream", "options", "told"),
    [
        (testing.assert_deterministic, RunningTotal, st.just([]), {}, "none had more than one row"),
        (
            testing.assert_recovery_invisible,
            RunningTotal,
            strategies.streams(strategies.rows("user string, amount bigint", user=st.uuids().map(str))),
            {},
            "a key came twice in 0 examples: give its columns few values",
        ),
        (testing.assert_recovery_invisible, RunningTotal, ONE_ROW, {}, "more than one row"),
        (testing.assert_rescale_invisible, RunningTotal, IN_ORDER, {"examples": 1}, "nothing restarted after a row"),
        (testing.assert_state_bounded, Stateless, IN_ORDER, {"silence": 1}, "no key had state or a timer"),
        (testing.assert_batch_split_invariant, Silent, IN_ORDER, {}, "no outputs, states and timers to compare"),
        (testing.assert_deterministic, Never, IN_ORDER, {}, "no timer fired"),
    ],
)
def test_a_property_that_passes_without_what_it_promises_warns(prove, function, stream, options, told):
    with pytest.warns(UserWarning, match=told):
        prove(function(), stream, key=USER, **{"examples": 20, "seed": 1} | options)


def test_examples_that_are_alike_count_once():
    with pytest.warns(UserWarning, match="of 1 different example "):
        told = testing.assert_batch_split_invariant(RunningTotal(), ONE_ROW, key=USER)
    assert ", in 1 different example, 1 row, a key twice in 0, 0 timers fired, 0 late rows (" in told


@pytest.mark.slow
def test_keys_of_a_class_come_twice_by_default_so_that_a_counter_of_the_class_is_found():
    class Counter(KeyedProcessFunction):
        counts: ClassVar[dict[str, int]] = {}

        def process_element(self, value, ctx):
            self.counts[value.user] = self.counts.get(value.user, 0) + 1
            yield value.user, self.counts[value.user]

    stream = strategies.streams(strategies.rows(Click))
    with pytest.raises(Falsified) as caught:
        testing.assert_recovery_invisible(Counter(), stream, key=USER, examples=100, seed=1)
    assert [tuple(row) for row in caught.value.rows] == [(Click("a", 0), 0)] * 2


@pytest.mark.slow
def test_the_smallest_example_is_smallest_in_its_values():
    for seed in range(3):
        with pytest.raises(Falsified) as caught:
            testing.assert_matches(wrong.Silences(), silences, IN_ORDER, key=USER, examples=500, seed=seed)
        assert [row.value for row in caught.value.rows] == [{"user": "ann", "amount": 0}] * 2
        assert [row.timestamp for row in caught.value.rows] == [0, 1]


@pytest.mark.parametrize("seed", range(int(os.environ.get("KEYED_FAULT_SEEDS", "1"))))
def test_the_smallest_example_of_rows_a_minute_apart_is_at_zero_and_a_minute(seed):
    with pytest.raises(Falsified) as caught:
        testing.assert_matches(wrong.SessionsTouch(), sessions_of_a_minute, IN_ORDER, key=USER, examples=500, seed=seed)
    assert [tuple(row) for row in caught.value.rows] == [
        ({"user": "ann", "amount": 0}, 0),
        ({"user": "ann", "amount": 0}, 60_000),
    ]


def test_a_misspelt_option_is_refused():
    with pytest.raises(TypeError, match="'exmples' is not an option"):
        cast("Any", testing.assert_deterministic)(RunningTotal(), IN_ORDER, key=USER, exmples=3)

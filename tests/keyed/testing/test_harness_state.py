"""The harness: reading states, a watermark that follows the elements, and restarts of a function."""

from __future__ import annotations

import pyarrow as pa
import pytest

import keyed
from keyed.errors import ChangelogError, DefinitionError
from keyed.testing import KeyedTestHarness, Record
from tests.support.states import Everything, Sale


@pytest.fixture
def harness():
    with KeyedTestHarness(Everything(), key=lambda value: value[0], parallelism=3) as harness:
        for n, key in enumerate("bab"):
            harness.process((key, "sell", n), n * 10)
        yield harness


def test_states_are_there_by_name_and_key_in_their_own_types(harness):
    assert harness.state("last") == {"a": Sale(1, "title 1"), "b": Sale(2, "title 2")}
    assert list(harness.state("last")) == ["a", "b"]
    assert harness.state("seen")["b"] == [0, 2]
    assert harness.state("by_title")["b"] == {"title 0": 0, "title 2": 2}
    assert harness.state("total") == {"a": 1, "b": 2}
    assert harness.state("average")["b"] == 1.0
    assert harness.state("versions")["b"] == {0: 0, 2: 2}
    assert harness.state("total", ("window", 1)) == {"a": 1}
    assert KeyedTestHarness(Everything(), key=str).state("last") == {}


def test_states_are_there_after_a_crash_as_before(harness):
    before = {name: harness.state(name) for name in harness.state_names}
    harness.crash_and_recover()
    assert {name: harness.state(name) for name in harness.state_names} == before


def test_a_state_that_is_not_there_is_refused_with_the_names_of_those_that_are(harness):
    with pytest.raises(DefinitionError, match="'cuont' does not exist; the states are: average, briefly"):
        harness.state("cuont")


class OnTime(keyed.KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield ctx.timer_service().current_watermark()


def test_the_watermark_follows_the_elements_where_a_strategy_says_how():
    with KeyedTestHarness(OnTime(), watermark=keyed.bounded_out_of_orderness(5)) as harness:
        harness.process("a", 100)
        assert harness.current_watermark == 94
        with harness.batch():
            harness.process("a", 99)
            harness.process("a", 200)
        assert harness.take_output() == [Record(94, 100), Record(94, 99), Record(194, 200)]
        assert harness.current_watermark == 194
        harness.crash_and_recover()
        harness.process("a", 201)
        assert harness.take_output() == [Record(195, 201)]


class Forgetful(keyed.KeyedProcessFunction):
    def __init__(self):
        self.seen: list[str] = []

    def process_element(self, value, ctx):
        self.seen.append(value)
        yield len(self.seen)


def test_the_next_life_may_have_the_function_as_it_was():
    with KeyedTestHarness(Forgetful()) as harness:
        harness.process("a")
        harness.crash_and_recover(Forgetful())
        harness.process("a")
        assert [record.value for record in harness.take_output()] == [1, 1]


class Reminded(keyed.KeyedProcessFunction):
    total = keyed.ValueState(int, default=0)

    def process_element(self, value, ctx):
        key, n = value
        self.total.update(self.total.value() + n)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 100)
        yield key, self.total.value()

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), "reminded"


@pytest.fixture
def job(tmp_path):
    """A job's changelog: three batches."""
    changelog = keyed.DirectoryChangelog(tmp_path / "log", auto_compact=False)
    rows = [("a", 1, 10), ("b", 2, 20), ("a", 3, 30)]
    stream = keyed.stream(rows, timestamp=lambda row: row[2]).key_by(lambda row: row[0])

    class Job(Reminded):
        def process_element(self, value, ctx):
            yield from super().process_element(value[:2], ctx)

    clock = iter(range(1000, 10_000, 1000))
    stream.process(Job(), changelog=changelog).run(rows_per_batch=1, drain=False, processing_time=lambda: next(clock))
    return changelog


def test_a_production_state_becomes_a_test(job):
    with KeyedTestHarness.from_changelog(job, Reminded(), key=lambda value: value[0], parallelism=2) as harness:
        assert harness.state("total") == {"a": 4, "b": 2}
        assert [(timer.key, timer.timestamp) for timer in harness.pending_timers()] == [
            ("a", 110),
            ("b", 120),
            ("a", 130),
        ]
        assert harness.current_watermark == 29
        harness.process(("a", 5), 40)
        assert harness.take_output() == [Record(("a", 9), 40)]


def test_a_past_batch_and_some_keys_are_taken(job):
    with KeyedTestHarness.from_changelog(job, Reminded(), key=lambda value: value[0], as_of=1) as harness:
        assert harness.state("total") == {"a": 1, "b": 2}
        assert harness.current_watermark == 19
    with KeyedTestHarness.from_changelog(job, Reminded(), key=lambda value: value[0], keys=["a"]) as harness:
        assert harness.state("total") == {"a": 4}
        assert {timer.key for timer in harness.pending_timers()} == {"a"}
        assert harness.metrics() == {} or harness.state_entries() == 1
        harness.crash_and_recover()
        harness.process(("b", 1), 50)
        assert harness.state("total") == {"a": 4, "b": 1}
    with pytest.raises(ChangelogError, match="as_of=9"):
        KeyedTestHarness.from_changelog(job, Reminded(), as_of=9)
    with pytest.raises(DefinitionError, match="as_of=-1 must be the id of a batch"):
        KeyedTestHarness.from_changelog(job, Reminded(), as_of=-1)
    with pytest.raises(DefinitionError, match=r"keys=\['x'\]: the changelog has no state or timers"):
        KeyedTestHarness.from_changelog(job, Reminded(), keys=["x"])
    with pytest.raises(DefinitionError, match="keys='a': give a list"):
        KeyedTestHarness.from_changelog(job, Reminded(), keys="a")


def test_the_representation_tells_what_a_failing_test_wants_to_know():
    class Count(keyed.KeyedProcessFunction):
        count = keyed.ValueState(int, default=0)

        def process_element(self, value, ctx):
            self.count.update(self.count.value() + 1)
            ctx.timer_service().register_event_time_timer(90)
            yield self.count.value()

        def on_timer(self, timestamp, ctx):
            pass

    with KeyedTestHarness(Count()) as harness:
        assert repr(harness) == "KeyedTestHarness(Count(), watermark none, processing time 0)"
        harness.process("a", 5)
        assert "count {'a': 1}, timers [('a', 90)], output [Record(value=1, timestamp=5)])" in repr(harness)
    assert repr(harness) == "KeyedTestHarness(Count(), closed)"
    # Not empty, as if a test had passed.
    for read in (harness.pending_timers, harness.state_entries, lambda: harness.state("count"), harness.end_of_input):
        with pytest.raises(keyed.errors.StateAccessError, match="the harness is closed; use it within its with block"):
            read()


def test_the_representation_has_namespaces_and_side_outputs_of_vectorized_functions_too():
    large = keyed.OutputTag("large", "n bigint")

    class Large(keyed.vectorized.VectorizedFunction):
        def process_batch(self, table, ctx):
            ctx.output(large, table.select(["n"]))
            ctx.emit(table)

    class Minutes(keyed.KeyedProcessFunction):
        count = keyed.ValueState(int, default=0)

        def process_element(self, value, ctx):
            self.count.namespace(ctx.timestamp() // 60_000).update(1)

    with KeyedTestHarness(Large(), key="key") as harness:
        harness.process_batch(pa.table({"key": ["a"], "n": [3]}))
        assert "output [Record(value=Row(key='a', n=3), timestamp=None)], side output 'large' [" in repr(harness)
        with pytest.raises(DefinitionError, match="side output 'larg' has no rows, only 'large'"):
            harness.take_table("larg")
        assert harness.take_table(large).to_pylist() == [{"n": 3}]
    with KeyedTestHarness(Minutes()) as harness:
        harness.process("a", 60_000)
        assert "count in 1 {'a': 1}" in repr(harness)
        assert (harness.namespaces("count"), harness.state_entries("a"), harness.state_entries("b")) == ([1], 1, 0)

"""Versioned state against a dictionary that forgets nothing, whatever is put where and wherever batches are cut."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyed
from keyed import MAX_TIMESTAMP, MIN_TIMESTAMP, NOT_PUT, KeyedProcessFunction, VersionedState
from keyed.job.state import VersionedRecord
from keyed.testing import KeyedTestHarness, MemoryChangelog

HISTORY = 6


class Program(KeyedProcessFunction):
    state = VersionedState(list[int], history=HISTORY)

    def process_element(self, value, ctx):
        _, namespace, call, arguments = value
        state = self.state if namespace is None else self.state.namespace(namespace)
        yield getattr(state, call)(*arguments)


class Model:
    """The versions of one key, all of them."""

    def __init__(self) -> None:
        self.versions: dict[int, Any] = {}
        self.clock = MIN_TIMESTAMP
        self.dropped = 0

    def record(self, timestamp: int) -> VersionedRecord[Any] | None:
        later = [other for other in self.versions if other > timestamp]
        value = self.versions[timestamp]
        return None if value is None else VersionedRecord(value, timestamp, min(later, default=None))

    def put(self, value: Any, timestamp: int) -> int | None:
        if timestamp + HISTORY <= self.clock:
            self.dropped += 1
            return NOT_PUT
        self.versions[timestamp] = value
        return min((other for other in self.versions if other > timestamp), default=None)

    def get(self, as_of: int = MAX_TIMESTAMP) -> VersionedRecord[Any] | None:
        found = max((time for time in self.versions if time <= as_of), default=None)
        if found is None or (found != max(self.versions) and as_of + HISTORY <= self.clock):
            return None
        return self.record(found)

    def get_range(self, from_: int | None = None, to: int | None = None) -> list[VersionedRecord[Any]]:
        from_, to = MIN_TIMESTAMP if from_ is None else from_, MAX_TIMESTAMP if to is None else to
        records = [self.record(time) for time in sorted(self.versions) if time <= to]
        found = [record for record in records if record and (record.valid_to is None or record.valid_to > from_)]
        if to + HISTORY <= self.clock:
            return [record for record in found if record.valid_to is None]
        return [r for r in found if r.valid_to is None or r.valid_to - 1 + HISTORY > self.clock]

    def delete(self, timestamp: int) -> VersionedRecord[Any] | None:
        before = self.get(timestamp) if timestamp + HISTORY > self.clock else None
        self.put(None, timestamp)
        return before

    def clear(self) -> None:
        self.versions = {}

    def live(self) -> int:
        """The number of versions that may stay: the newest, and those with a time of validity within the history."""
        newest, count = max(self.versions, default=None), 0
        for time, value in self.versions.items():
            later = min((other for other in self.versions if other > time), default=None)
            ends = time if value is None else later
            count += (time == newest and value is not None) or (ends is not None and ends - 1 + HISTORY > self.clock)
        return count


times = st.integers(-3, 25)
calls = st.one_of(
    st.tuples(st.just("put"), st.tuples(st.lists(st.integers(0, 9), max_size=2) | st.none(), times)),
    st.tuples(st.just("put"), st.tuples(st.lists(st.integers(0, 9), max_size=2), times)),
    st.tuples(st.just("delete"), st.tuples(times)),
    st.tuples(st.just("get"), st.just(()) | st.tuples(times)),
    st.tuples(st.just("get_range"), st.just(()) | st.tuples(times | st.none(), times | st.none())),
    st.tuples(st.just("clear"), st.just(())),
)
rows = st.tuples(st.sampled_from("ab"), st.sampled_from([None, 1]), calls)
programs = st.lists(st.tuples(st.integers(0, 4), st.booleans(), st.lists(rows, max_size=8)), max_size=6)


@settings(deadline=None)
@given(programs, st.sampled_from(["memory", "rocksdb"]))
def test_agrees_with_a_dictionary_that_forgets_nothing(program, store):
    models = {(key, namespace): Model() for key in "ab" for namespace in (None, 1)}
    clock = MIN_TIMESTAMP
    expected: list[Any] = []
    log = MemoryChangelog()
    with KeyedTestHarness(Program(), key=lambda value: value[0], store=store, parallelism=2, changelog=log) as harness:
        for step, crash, batch in program:
            with harness.batch():
                for key, namespace, (call, arguments) in batch:
                    harness.process((key, namespace, call, arguments))
                    expected.append(getattr(models[key, namespace], call)(*arguments))
            if step:
                clock = max(clock, 0) + step
                harness.advance_watermark(clock)
                for model in models.values():
                    model.clock = clock
            if crash:
                harness.crash_and_recover()
        assert [record.value for record in harness.take_output()] == expected
        assert harness.metrics().get("versions_dropped", 0) == sum(model.dropped for model in models.values())
        # A deletion that is the newest stays until its batch ends.
        harness.advance_watermark(clock + 1)
        for model in models.values():
            model.clock = clock + 1
        assert harness.state_entries() == sum(model.live() for model in models.values())
    with KeyedTestHarness(Program(), key=lambda value: value[0], parallelism=3, restore_from=log) as restored:
        for key, namespace in models:
            restored.process((key, namespace, "get_range", ()))
        found = [record.value for record in restored.take_output()]
        assert found == [model.get_range() for model in models.values()]


def run(harness: Any, call: str, *arguments: Any) -> Any:
    harness.process(("a", None, call, arguments))
    return harness.take_output()[0].value


@pytest.mark.parametrize("batched", [False, True])
def test_values_are_never_shared(batched):
    class Sharing(KeyedProcessFunction):
        state = VersionedState(list[int], history=10)

        def process_element(self, value, ctx):
            given = [value]
            self.state.put(given, value)
            given.append(99)
            got = self.state.get()
            assert got is not None
            got.value.append(98)
            yield [record.value for record in self.state.get_range()]

    with KeyedTestHarness(Sharing(), key=lambda value: "k") as harness:
        if batched:
            with harness.batch():
                harness.process(1)
                harness.process(2)
        else:
            harness.process(1)
            harness.process(2)
        assert [record.value for record in harness.take_output()] == [[[1]], [[1], [2]]]


class AtTheBound(KeyedProcessFunction):
    """Puts, asks and deletes at each time around the beginning of the history."""

    state = VersionedState(int, history=10)

    def process_element(self, value, ctx):
        put = [time for time in range(80, 101) if self.state.put(time, time) != NOT_PUT]
        answered = [time for time in range(80, 101) if self.state.get(time) is not None]
        deleted = [time for time in range(80, 101) if self.state.delete(time) is not None]
        yield ctx.timer_service().current_watermark(), put[0], answered[0], deleted[0], len(put)


@pytest.mark.parametrize("delay", [0, 1, 5])
def test_the_history_begins_at_the_highest_timestamp_less_delay_and_history(delay):
    """To the millisecond, as the documentation has it: ``t + history`` above ``highest - delay - 1``."""
    begin = 100 - delay - 10
    expected = [(99 - delay, begin, begin, begin, 101 - begin)]
    strategy = keyed.bounded_out_of_orderness(delay)
    rows = keyed.stream([("k", 100)], timestamp=lambda row: row[1], watermark=strategy).key_by(lambda row: row[0])
    assert rows.process(AtTheBound()).run().values == expected
    with KeyedTestHarness(AtTheBound(), key=lambda row: row[0], watermark=strategy) as harness:
        harness.process(("k", 100), 100)
        assert [record.value for record in harness.take_output()] == expected
        assert harness.metrics()["versions_dropped"] == 2 * (begin - 80)


def test_the_newest_version_stays_after_the_end_of_input():
    with KeyedTestHarness(Program(), key=lambda value: value[0]) as harness:
        run(harness, "put", [1], 5)
        run(harness, "put", [2], 7)
        harness.end_of_input()
        assert harness.state_entries() == 1


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("put", ([1], 1.5)),
        ("put", ([1], None)),
        ("put", ([1], True)),
        ("put", ([1], 2**63)),
        ("delete", ("1",)),
        ("get", (2.5,)),
        ("get_range", ("a", 2)),
        ("get_range", (1, MIN_TIMESTAMP)),
    ],
)
def test_what_is_no_time_is_refused(call, arguments):
    with (
        KeyedTestHarness(Program(), key=lambda value: value[0]) as harness,
        pytest.raises(keyed.errors.TimestampError, match=r"versioned state 'state': (timestamp|as_of|from_|to)="),
    ):
        run(harness, call, *arguments)


def test_a_value_of_another_type_is_refused():
    with (
        KeyedTestHarness(Program(), key=lambda value: value[0]) as harness,
        pytest.raises(keyed.errors.EncodingError, match="versioned state 'state'"),
    ):
        run(harness, "put", "text", 1)


def test_declarations():
    state = VersionedState(float, history=keyed.StateTtl(hours=1).milliseconds, name="price")
    assert repr(state) == "VersionedState(float, name='price', history=3600000 ms)"
    with pytest.raises(keyed.errors.DefinitionError, match="history=-1 must be between 0 ms"):
        VersionedState(float, history=-1)
    with pytest.raises(keyed.errors.StateAccessError, match="versioned state 'price' was used outside of a call"):
        state.get()


def test_a_longer_history_is_no_change_of_the_state_and_another_type_is():
    class Longer(Program):
        state = VersionedState(list[int], history=1_000)

    class Other(Program):
        state = VersionedState(str, history=HISTORY)

    with KeyedTestHarness(Program(), key=lambda value: value[0]) as harness:
        run(harness, "put", [1], 1)
        snapshot = harness.snapshot()
    with KeyedTestHarness.restore(Longer(), snapshot, key=lambda value: value[0]) as longer:
        assert run(longer, "get") == VersionedRecord([1], 1)
    with pytest.raises(keyed.errors.StateSchemaChanged, match=r"versioned state 'state' of list.int., 6 ms of history"):
        KeyedTestHarness.restore(Other(), snapshot, key=lambda value: value[0])


def test_a_run_that_leaves_nothing_behind_gives_the_same(tmp_path):
    rows = [{"key": "a", "at": at, "call": call} for at in range(1, 20) for call in ("put", "get_range")]

    class Calls(KeyedProcessFunction):
        state = VersionedState(int, history=4)

        def process_element(self, value, ctx):
            if value.call == "put":
                self.state.put(value.at, value.at)
            else:
                yield [record.value for record in self.state.get_range()]

    def run_in(checkpoint):
        calls = keyed.stream(rows, timestamp="at").key_by("key").process(Calls())
        return calls.run(checkpoint=checkpoint, rows_per_batch=3).values

    found = run_in(None)
    assert found == run_in(tmp_path / "checkpoint")
    assert found[-1] == [15, 16, 17, 18, 19]


def test_obtained_in_open():
    class Opened(KeyedProcessFunction):
        def open(self, context):
            self.state = context.get_versioned_state(VersionedState(int, history=10, name="state"))

        def process_element(self, value, ctx):
            yield self.state.put(value, value)

    with KeyedTestHarness(Opened(), key=lambda value: "k") as harness:
        for number in (5, 3):
            harness.process(number)
        assert [record.value for record in harness.take_output()] == [None, 5]

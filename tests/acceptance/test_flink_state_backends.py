"""Flink's StateBackendTestBase (StateBackendTestUtils' cases on heap and RocksDB): what each kind of state keeps.

`flink_state_backends.json` has the cases that are sequences of calls; those that need functions are here. Cases
about serialisers, asynchronous snapshots and queryable state have no counterpart here.
"""

from __future__ import annotations

import attrs
import pytest

from keyed import AggregatingState, ListState, MapState, ReducingState, StateTtl, ValueState
from keyed.errors import EncodingError, StateDefinitionError, StateSchemaChanged, UserFunctionError
from tests.acceptance.steps import Case
from tests.acceptance.support import Harness, Told, both_stores
from tests.support.data_files import read_data


def add(a, b):
    return a + b


class Total:
    """AggregatingState's sum: MutableAggregatingAddingFunction, with a list as the accumulator that changes."""

    def create_accumulator(self):
        return [0]

    def add(self, value, accumulator):
        accumulator[0] += value
        return accumulator

    def get_result(self, accumulator):
        return accumulator[0]

    def merge(self, a, b):
        return [a[0] + b[0]]


class States(Told):
    value = ValueState(str)
    count = ValueState(int, default=42)
    words = ListState(str)
    numbers = ListState(int)
    table = MapState(int, str)
    nested = MapState(str, dict[str, int])
    total = ReducingState(add, int)
    text = ReducingState(add, str)
    summed = AggregatingState(Total(), list[int])
    anything = ValueState()


@pytest.fixture(params=["memory", "rocksdb"])
def harness(request):
    with Harness(States(), store=request.param) as harness:
        yield harness


def snapshots(harness):
    """The harness, and one restored from its snapshot at another parallelism, and one that has recovered."""
    yield harness
    with harness.again(States(), store="rocksdb", parallelism=3) as restored:
        yield restored
    harness.crash_and_recover()
    yield harness


@both_stores
@pytest.mark.parametrize("case", read_data("acceptance/flink_state_backends.json"), ids=lambda case: case["name"])
def test_a_case_holds(store, case):
    Case(case, States, store=store).run()


def test_copy_default_value(harness):
    """StateBackendTestBase.testCopyDefaultValue: a default that can change is each key's own."""

    class Defaults(Told):
        bag = ValueState(list[int], default=[1])

    made = Harness(Defaults(), store="memory")
    made.call(lambda f, _: f.bag.value().append(2), key="a")
    assert made.call(lambda f, _: f.bag.value(), key="b") == [1]
    assert made.call(lambda f, _: f.bag.value(), key="a") == [1]
    assert made.call(lambda f, _: f.bag.value() is not f.bag.value(), key="a")
    assert made.state_entries() == 0


def test_list_state_in_one_call(harness):
    """The calls of testListStateAPIs within one commit: only the last state of things is stored."""

    def do(f, _):
        f.numbers.add(1)
        f.numbers.clear()
        f.numbers.add(2)
        f.numbers.add_all([3, 4])
        first = f.numbers.get()
        f.numbers.update(iter([*first, 5]))
        f.numbers.add_all(f.numbers.get())
        f.numbers.add_all(f.numbers)
        return f.numbers.get()

    expected = [2, 3, 4, 5] * 4
    assert harness.call(do) == expected
    for again in snapshots(harness):
        assert again.call(lambda f, _: f.numbers.get()) == expected


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda s: s.add(None), EncodingError),
        (lambda s: s.add_all([3, None, 4]), EncodingError),
        (lambda s: s.update([3, None, 4]), EncodingError),
        (lambda s: s.add_all(None), UserFunctionError),
        (lambda s: s.add_all(5), UserFunctionError),
    ],
)
def test_list_state_nulls(harness, call, error):
    """StateBackendTestBase.testListStateAddNull, ...AddAllNullEntries, ...AddAllNull, ...UpdateNullEntries."""
    harness.call(lambda f, _: f.numbers.add(1))
    with pytest.raises(error):
        harness.call(lambda f, _: call(f.numbers))
    assert harness.call(lambda f, _: f.numbers.get()) == [1]

    def handled(f, _):
        with pytest.raises((EncodingError, TypeError)):
            call(f.numbers)
        return f.numbers.get()

    assert harness.call(handled) == [1]
    assert harness.state_entries() == 1


def test_a_list_that_was_read_is_the_reader_s_own(harness):
    """HeapListState.get hands out its list; here what is done to it does not reach the state."""

    def do(f, _):
        f.numbers.add(1)
        f.numbers.get().append(2)
        taken = f.numbers.get()
        f.numbers.add(3)
        return taken

    assert harness.call(do) == [1]
    assert harness.call(lambda f, _: (f.numbers.get().clear(), f.numbers.get())[1]) == [1, 3]


def test_values_that_are_made_while_they_are_added(harness):
    """ListState.addAll of an iterable that uses the list: what it did comes first, and a failure adds nothing."""

    def moved(f):
        taken = f.numbers.get()
        f.numbers.clear()
        yield from (number + 1 for number in taken)

    def failing():
        yield 1
        raise LookupError("no more")

    def do(f, _):
        f.numbers.update([1, 2])
        f.numbers.add_all(moved(f))
        for call in (f.numbers.add_all, f.numbers.update):
            with pytest.raises(LookupError):
                call(failing())
        return f.numbers.get()

    assert harness.call(do) == [2, 3]
    assert harness.call(lambda f, _: f.numbers.get()) == [2, 3]


def test_namespaces_are_apart(harness):
    """StateBackendTestBase.testGetKeysAndNamespaces: namespaces that are equal only to Python are apart too."""
    names = [None, "", "w", 0, False, 0.0, (0, 10), (0.0, 10), ((0,), 10), b"w"]

    def write(f, _):
        for number, name in enumerate(names):
            f.count.namespace(name).update(number)
            f.table.namespace(name).put(number, "x")

    harness.call(write)
    for again in snapshots(harness):
        assert again.call(lambda f, _: [f.count.namespace(n).value() for n in names]) == list(range(len(names)))
        assert again.call(lambda f, _: [list(f.table.namespace(n)) for n in names]) == [[n] for n in range(len(names))]
        assert again.call(lambda f, _: f.count.namespace("other").value()) == 42
    harness.call(lambda f, _: f.count.clear())
    assert harness.call(lambda f, _: [f.count.namespace(n).value() for n in names[:3]]) == [42, 1, 2]
    with pytest.raises(EncodingError):
        harness.call(lambda f, _: f.count.namespace([1]))


def test_map_state_iterator_arbitrary_access(harness):
    """StateBackendTestBase.testMapStateIteratorArbitraryAccess: entries are read, changed and removed on the way."""
    size = 4096

    def write(f, _):
        for number in range(size):
            f.table.put(number, str(number * 2))

    def walk(f, _):
        seen = 0
        for number, text in f.table.items():
            assert text == str(number * 2)
            seen += 1
            if number % 2:
                f.table.put(number, str(number * 4))
            else:
                f.table.remove(number)
        return seen

    harness.call(write)
    assert harness.call(walk) == size
    for again in snapshots(harness):
        expected = [(number, str(number * 4)) for number in range(1, size, 2)]
        assert again.call(lambda f, _: list(f.table.items())) == expected
    assert harness.state_entries() == size // 2


def test_map_state_bad_keys_and_values(harness):
    """Keys are checked at the call, values before the commit."""
    harness.call(lambda f, _: f.table.put(1, "1"))
    for bad in ("1", 1.0, True, None, [1]):
        for call, *value in (("put", "x"), ("get",), ("contains",), ("remove",)):
            with pytest.raises(EncodingError, match="map state 'table'"):
                harness.call(lambda f, _, bad=bad, call=call, value=value: getattr(f.table, call)(bad, *value))
    with pytest.raises(EncodingError, match=r"map state 'table'.*declared type str"):
        harness.call(lambda f, _: f.table.put(2, 2))
    assert harness.call(lambda f, _: list(f.table.items())) == [(1, "1")]


@pytest.mark.parametrize(
    "do",
    [
        lambda f: f.value.update(5),
        lambda f: f.count.update("5"),
        lambda f: f.count.update(True),
        lambda f: f.count.update(1.0),
        lambda f: f.words.add(5),
        lambda f: f.words.update(["a", 5]),
        lambda f: f.nested.put("a", {"b": "c"}),
        lambda f: f.total.add("5"),
        lambda f: f.summed.add(0.5),
        lambda f: f.anything.update(object()),
        lambda f: f.anything.update([1, {2: object()}]),
        lambda f: f.words.namespace("n").add(b"x"),
    ],
)
def test_wrong_types_are_refused_before_the_commit(harness, do):
    """Values that a serializer would reject: nothing of the commit is stored, the rest of the batch neither."""
    harness.call(lambda f, _: (f.value.update("kept"), f.words.add("kept")))
    before = harness.snapshot()

    def spoil(f, ctx):
        f.value.update("lost")
        ctx.timer_service().register_event_time_timer(9)
        ctx.collect("lost")
        do(f)

    with pytest.raises(EncodingError, match=r"(?=.*state ').*operator 'function'"):
        harness.call(spoil)
    assert harness.snapshot() == before
    assert harness.take_output() == []
    assert harness.pending_timers() == []
    assert harness.call(lambda f, _: (f.value.value(), f.words.get())) == ("kept", ["kept"])


@pytest.mark.parametrize(
    "changed",
    [
        {"state": ValueState(str)},
        {"state": ListState(int)},
        {"state": MapState(int, int)},
        {"state": ValueState(int, ttl=StateTtl(seconds=1))},
        {},
        {"other": ValueState(int)},
    ],
)
def test_restore_with_wrong_declarations(changed):
    """testRestoreWithWrongSerializers: StateMigrationException there, before anything is read."""
    before = Harness(type("Before", (Told,), {"state": ValueState(int)})())
    before.call(lambda f, _: f.state.update(1))
    with pytest.raises(StateSchemaChanged, match="'state'"):
        before.again(type("After", (Told,), changed)())


def test_restore_with_a_new_state_and_a_new_field():
    """Compatible changes: a state more, and a field with a default more."""

    @attrs.frozen
    class Point:
        x: int

    @attrs.frozen
    class Wider:
        x: int
        y: int = 7

    before = Harness(type("Before", (Told,), {"at": ValueState(Point)})())
    before.call(lambda f, _: f.at.update(Point(1)))
    after = before.again(type("After", (Told,), {"at": ValueState(Wider), "more": ValueState(int, default=3)})())
    assert after.call(lambda f, _: (f.at.value(), f.more.value())) == (Wider(1, 7), 3)


def test_descriptors_in_open():
    """RuntimeContext.getState and so on in open: the same names declared on a class are the same checkpoint."""

    class Described(Told):
        def open(self, context):
            self.value = context.get_state(ValueState(int, 5, name="value"))
            self.words = context.get_list_state(ListState(str, name="words"))
            self.table = context.get_map_state(MapState(str, int, name="table"))
            self.total = context.get_reducing_state(ReducingState(add, int, name="total"))
            self.summed = context.get_aggregating_state(AggregatingState(Total(), list[int], name="summed"))

    class Declared(Told):
        value = ValueState(int, default=5)
        words = ListState(str)
        table = MapState(str, int)
        total = ReducingState(add, int)
        summed = AggregatingState(Total(), list[int])

    def write(f, _):
        f.value.update(f.value.value() + 1)
        f.words.add("w")
        f.table.put("k", 2)
        f.total.add(3)
        f.summed.add(4)

    def read(f, _):
        return f.value.value(), f.words.get(), list(f.table.items()), f.total.get(), f.summed.get()

    harness = Harness(Described())
    harness.call(write)
    again = harness.again(Declared())
    again.call(write)
    back = again.again(Described())
    assert back.call(read) == (7, ["w", "w"], [("k", 2)], 6, 8)


def test_descriptors_that_are_wrong():
    """A descriptor of another kind, without a name, or of a name that is taken."""

    def opened(get):
        class Opened(Told):
            taken = ValueState(int)

            def open(self, context):
                get(context)

        return Harness(Opened())

    for get in (
        lambda context: context.get_list_state(ValueState(int, name="x")),
        lambda context: context.get_state(ValueState(int)),
        lambda context: context.get_state(ValueState(int, name="taken")),
        lambda context: context.get_state("taken"),
    ):
        with pytest.raises(StateDefinitionError):
            opened(get).call(lambda f, _: None)

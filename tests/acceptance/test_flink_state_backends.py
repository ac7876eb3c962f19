"""Flink's StateBackendTestBase (StateBackendTestUtils' cases on heap and RocksDB): what each kind of state keeps.

Cases about serialisers, asynchronous snapshots and queryable state have no counterpart here.
"""

from __future__ import annotations

import attrs
import pytest

from keyed import AggregatingState, ListState, MapState, ReducingState, StateTtl, ValueState
from keyed.errors import EncodingError, StateDefinitionError, StateSchemaChanged, UserFunctionError
from tests.acceptance.support import Harness, Told, both_stores


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
    summed = AggregatingState(Total(), list[int])
    anything = ValueState()


@pytest.fixture(params=["memory", "rocksdb"])
def harness(request):
    with Harness(States(), store=request.param) as made:
        yield made


def snapshots(harness):
    """The harness, and one restored from its snapshot at another parallelism, and one that has recovered."""
    yield harness
    with harness.again(States(), store="rocksdb", parallelism=3) as restored:
        yield restored
    harness.crash_and_recover()
    yield harness


def test_value_state(harness):
    """StateBackendTestBase.testValueState: keys are apart, and a snapshot is not changed by what follows."""
    assert harness.call(lambda f, _: f.value.value(), key=1) is None
    harness.call(lambda f, _: f.value.update("1"), key=1)
    assert harness.call(lambda f, _: f.value.value(), key=2) is None
    harness.call(lambda f, _: f.value.update("2"), key=2)
    assert harness.call(lambda f, _: f.value.value(), key=1) == "1"
    snapshot = harness.snapshot()
    for key, value in ((1, "u1"), (2, "u2"), (3, "u3")):
        harness.call(lambda f, _, value=value: f.value.update(value), key=key)
    for again in snapshots(harness):
        assert [again.call(lambda f, _: f.value.value(), key=key) for key in (1, 2, 3)] == ["u1", "u2", "u3"]
    old = Harness.restore(States(), snapshot, key=lambda element: element[0])
    assert [old.call(lambda f, _: f.value.value(), key=key) for key in (1, 2, 3)] == ["1", "2", None]


def test_value_state_null_update(harness):
    """StateBackendTestBase.testValueStateNullUpdate: update(null) is clear(), and the default shows again."""
    assert harness.call(lambda f, _: f.count.value()) == 42
    assert harness.call(lambda f, _: (f.count.update(1), f.count.value())[1]) == 1
    assert harness.call(lambda f, _: (f.count.update(None), f.count.value())[1]) == 42
    assert harness.state_entries() == 0
    for again in snapshots(harness):
        assert again.call(lambda f, _: f.count.value()) == 42
    assert harness.call(lambda f, _: (f.count.update(1), f.count.clear(), f.count.value())[2]) == 42
    assert harness.state_entries() == 0


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


def test_default_value_of_each_kind(harness):
    """StateBackendTestBase.testValueStateDefaultValue, testReducingState..., testListState..., testMapState..."""
    read = harness.call(
        lambda f, _: (f.value.value(), f.total.get(), f.summed.get(), f.words.get(), dict(f.table.items()))
    )
    assert read == (None, None, None, [], {})
    assert harness.state_entries() == 0


def test_list_state_api(harness):
    """StateBackendTestBase.testListStateAPIs: update replaces, add_all appends, an empty list adds nothing."""
    calls = [
        (lambda f: f.numbers.update([17, 11]), [17, 11]),
        (lambda f: f.numbers.add(0), [17, 11, 0]),
        (lambda f: f.numbers.add_all([42, 42]), [17, 11, 0, 42, 42]),
        (lambda f: f.numbers.add_all([]), [17, 11, 0, 42, 42]),
        (lambda f: f.numbers.update([1, 2, 3]), [1, 2, 3]),
        (lambda f: f.numbers.update(iter([4])), [4]),
        (lambda f: f.numbers.update([]), []),
        (lambda f: f.numbers.add(5), [5]),
        (lambda f: f.numbers.clear(), []),
    ]
    for call, expected in calls:
        assert harness.call(lambda f, _, call=call: (call(f), f.numbers.get())[1]) == expected
        assert harness.call(lambda f, _: f.numbers.get()) == expected
        assert harness.state_entries() == len(expected)


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


def test_list_state_update_null(harness):
    """StateBackendTestBase.testListStateUpdateNull: it is refused, and the list stays as it is."""
    harness.call(lambda f, _: f.numbers.add(1))
    with pytest.raises(EncodingError, match=r"list state 'numbers': update\(None\) is refused.*clear\(\)"):
        harness.call(lambda f, _: f.numbers.update(None))
    assert harness.call(lambda f, _: f.numbers.get()) == [1]


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


@both_stores
@pytest.mark.parametrize("commits", ["one", "many"])
def test_aggregating_state_add_and_get(store, commits):
    """StateBackendTestBase.testAggregatingStateAddAndGetWithMutableAccumulator."""
    harness = Harness(States(), store=store)
    values = {"abc": (17, 11), "g": (1, 2, 3, 2, 1)}
    for key, numbers in values.items():
        assert harness.call(lambda f, _: f.summed.get(), key=key) is None
        if commits == "one":
            harness.call(lambda f, _, numbers=numbers: [f.summed.add(n) for n in numbers], key=key)
        else:
            for number in numbers:
                harness.call(lambda f, _, number=number: f.summed.add(number), key=key)
    for again in snapshots(harness):
        assert [again.call(lambda f, _: f.summed.get(), key=key) for key in values] == [28, 9]
    for key in values:
        assert harness.call(lambda f, _: (f.summed.clear(), f.summed.get())[1], key=key) is None
    assert harness.state_entries() == 0


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


def test_map_state_entries_and_null_values(harness):
    """StateBackendTestBase.testMapStateEntryCompleteness and testMapStateDefaultValue: null values are values."""
    harness.call(lambda f, _: f.table.put_all({3: None, 1: "a"}))
    for again in snapshots(harness):
        read = again.call(
            lambda f, _: (
                list(f.table.items()),
                f.table.get(3, "default"),
                f.table.get(4, "default"),
                f.table[3],
                3 in f.table,
                4 in f.table,
            )
        )
        assert read == ([(1, "a"), (3, None)], None, "default", None, True, False)

    def missing(f, _):
        with pytest.raises(KeyError):
            f.table[4]
        with pytest.raises(KeyError):
            del f.table[4]
        del f.table[3]
        f.table[5] = "five"
        return list(f.table)

    assert harness.call(missing) == [1, 5]


def test_map_state_is_in_the_order_of_its_keys(harness):
    """A heap map has no order, RocksDB has that of bytes; here both have that of the keys."""
    numbers = [300, -1, 0, 2**40, -(2**40), 255, 256, -256, 1, -255]
    harness.call(lambda f, _: [f.table.put(n, "") for n in numbers[:5]])
    assert harness.call(lambda f, _: ([f.table.put(n, "") for n in numbers[5:]], list(f.table))[1]) == sorted(numbers)
    for again in snapshots(harness):
        assert again.call(lambda f, _: list(f.table)) == sorted(numbers)


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
        lambda f: f.total.add(None),
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

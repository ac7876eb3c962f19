"""Look-up joins against a dictionary; which keys are asked for, how often, and after what."""

import asyncio
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyed
from keyed import DirectoryChangelog
from keyed.errors import DefinitionError, StateAccessError, UserFunctionError
from keyed.joins import AsyncLookup, async_lookup, lookup_join
from tests.support.waiting import until

INPUT = "k string, n bigint, v bigint"


class Directory:
    """An external system that remembers which calls came."""

    def __init__(self, entries):
        self.entries = entries
        self.calls: list[list[Any]] = []

    def __call__(self, keys):
        self.calls.append(list(keys))
        return {key: self.entries[key] for key in keys if key in self.entries}

    @property
    def asked(self):
        return [key for call in self.calls for key in call]


def rows(keys):
    return [{"k": key, "n": 1, "v": i} for i, key in enumerate(keys)]


def joined(source, lookup, columns="name string, tier bigint", *, keys=("k",), **options):
    options.setdefault("input", None if isinstance(source, pa.Table) else INPUT)
    return lookup_join(keyed.stream(source).key_by(*keys), lookup, columns, **options)


@given(
    entries=st.dictionaries(
        st.sampled_from("abcde"), st.tuples(st.none() | st.text(max_size=3), st.none() | st.integers(-9, 9))
    ),
    keys=st.lists(st.sampled_from("abcdef"), max_size=20),
    size=st.integers(1, 7),
    at_a_time=st.integers(1, 4),
    parallelism=st.integers(1, 3),
    how=st.sampled_from(["left", "inner"]),
    is_table=st.booleans(),
)
def test_it_joins_what_a_dictionary_would_and_asks_once_for_each_key(
    entries, keys, size, at_a_time, parallelism, how, is_table
):
    lookup = Directory(entries)
    source: Any = pa.Table.from_pylist(rows(keys)) if is_table and keys else rows(keys)
    made = joined(source, lookup, how=how, keys_per_call=at_a_time, parallelism=parallelism)
    result = made.run(rows_per_batch=size)
    expected = [(key, 1, i, *entries.get(key, (None, None))) for i, key in enumerate(keys)]
    if how == "inner":
        expected = [row for row in expected if row[0] in entries]
    got = [tuple(row) for row in result.values]
    assert sorted(got, key=repr) == sorted(expected, key=repr)
    if parallelism == 1:
        assert got == expected
    assert sorted(lookup.asked) == sorted(set(keys))
    assert all(len(call) <= at_a_time for call in lookup.calls)


def test_one_call_serves_the_keys_of_a_batch():
    lookup = Directory({})
    joined(rows("abacbd"), lookup).run(rows_per_batch=4)
    assert lookup.calls == [["a", "b", "c"], ["d"]]


def test_keys_of_several_columns_and_values_of_every_form():
    @attrs.frozen
    class Entry:
        name: str
        tier: int

    entries: dict[Any, Any] = {("a", 1): Entry("A", 1), ("b", 1): {"tier": 2, "name": "B"}, ("c", 1): ("C", None)}
    result = joined(rows("abcd"), Directory(entries), keys=("k", "n")).run()
    assert [tuple(row)[3:] for row in result.values] == [("A", 1), ("B", 2), ("C", None), (None, None)]


def test_what_was_found_is_asked_for_again_when_its_time_is_over():
    lookup = Directory({"a": ("old", 1)})

    def clock():
        if times[0] == 1100:
            lookup.entries["a"] = ("new", 2)
        return times.pop(0)

    times = [1000, 1050, 1100, 1150, 1150]
    result = joined(rows("aaaa"), lookup, ttl=timedelta(milliseconds=100)).run(rows_per_batch=1, processing_time=clock)
    assert [row.name for row in result.values] == ["old", "old", "new", "new"]
    assert lookup.asked == ["a", "a"]


def test_what_was_committed_is_not_asked_for_again_and_what_was_not_is(tmp_path):
    log, lookup = DirectoryChangelog(tmp_path / "log"), Directory({"a": ("A", 1), "b": ("B", 2)})

    def fail(values, batch):
        if batch == 1:
            raise RuntimeError("full")

    made = joined(rows("aabb"), lookup, changelog=log)
    with pytest.raises(keyed.errors.QueryFailed):
        made.run(fail, checkpoint=tmp_path / "ck", rows_per_batch=2)
    assert lookup.asked == ["a", "b"]
    assert [row.name for row in made.run(checkpoint=tmp_path / "ck", drain=False).values] == ["B", "B"]
    assert lookup.asked == ["a", "b", "b"]
    lookup.entries.clear()
    restored = joined(rows("aabbab"), lookup, restore_from=log, parallelism=2).run(drain=False)
    assert sorted(row.name for row in restored.values) == ["A", "B"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"columns": "k string"}, "the stream has a column 'k'; rename it"),
        ({"how": "outer"}, "how='outer' must be 'left' or 'inner'"),
        ({"keys_per_call": 0}, "keys_per_call=0 must be an int above 0"),
        ({"lookup": {}}, "is not callable"),
        ({"input": None}, "is not known before the stream runs; give input="),
        ({"keys": ("z",)}, "the key column 'z' is not in the stream: k, n, v"),
    ],
)
def test_what_cannot_be_is_refused_before_the_first_row(given, message):
    given = {"lookup": Directory({}), "columns": "name string", "input": INPUT, "keys": ("k",), **given}
    stream = keyed.stream([]).key_by(*given.pop("keys"))
    with pytest.raises(DefinitionError, match=message):
        lookup_join(stream, given.pop("lookup"), given.pop("columns"), **given)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (["A"], "lookup returned a value of type list for 1 keys"),
        ({"a": ("A",)}, "lacks the columns name, tier"),
        ({"a": (1, 2)}, "the results of lookup, column 'name': 1 of type int does not fit: string takes str"),
        ({"a": ("A", 1.5)}, "the results of lookup, column 'tier': 1.5 of type float does not fit"),
        ({1: ("A", 1)}, "returned keys such as 1 of type int for keys such as 'a'"),
    ],
)
def test_answers_of_another_form_are_refused(answer, message):
    with pytest.raises(keyed.errors.OutputDefinitionError, match=message):
        joined(rows("a"), lambda keys: answer).run()


def test_what_raises_is_told_with_the_keys_and_input_with_its_columns():
    with pytest.raises(UserFunctionError, match=r"lookup of the keys \['a', 'b'\]: ZeroDivisionError"):
        joined(rows("ab"), lambda keys: {keys[0]: 1 // 0}).run()
    with pytest.raises(
        DefinitionError, match=r"other types than input= declares.*column 'k' of string does not fit int64"
    ):
        joined(rows("ab"), Directory({}), input="k bigint, n bigint, v bigint").run()


# Asynchronous ---------------------------------------------------------------------------------------------------------


class Calls:
    """Counts the calls that run at a time. None ends before as many run as are wanted."""

    def __init__(self, wanted):
        self.wanted = wanted
        self.running = self.most = 0
        self.made: list[Any] = []
        self.enough = asyncio.Event()

    async def __call__(self, key):
        self.made.append(key)
        self.running += 1
        self.most = max(self.most, self.running)
        if self.most == self.wanted:
            self.enough.set()
        await self.enough.wait()
        if key % 2:
            # The others end before it.
            await asyncio.to_thread(int)
        self.running -= 1
        return key * 10


@given(keys=st.lists(st.integers(0, 19), max_size=20), concurrency=st.integers(1, 8))
def test_calls_run_beside_one_another_and_results_keep_the_order(keys, concurrency):
    distinct = list(dict.fromkeys(keys))
    calls = Calls(min(concurrency, len(distinct)))
    found = AsyncLookup(calls, concurrency=concurrency)(keys)
    assert list(found.items()) == [(key, key * 10) for key in distinct]
    assert sorted(calls.made) == sorted(distinct)
    assert calls.most == min(concurrency, len(distinct))


def test_a_call_that_fails_is_made_again_and_then_named():
    left = {1: 2, 2: 3}

    async def flaky(key):
        if left.get(key, 0):
            left[key] -= 1
            raise ConnectionError("reset")
        return key

    assert AsyncLookup(flaky, retries=2, pause=0)([0, 1]) == {0: 0, 1: 1}
    with pytest.raises(ConnectionError, match="reset") as caught:
        AsyncLookup(flaky, retries=2, pause=0)([0, 2])
    assert caught.value.__notes__ == ["looking up 2, attempt 3 of 3"]


def test_a_function_that_is_not_async_is_named():
    with pytest.raises(DefinitionError, match=r"AsyncLookup\(double.* make it async def"):
        AsyncLookup(double)([1])


def double(key):
    return 2 * key


def test_a_call_that_takes_too_long_is_given_up_and_the_others_are_cancelled():
    cancelled = threading.Event()

    async def slow(key):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(TimeoutError):
        AsyncLookup(slow, timeout=5)([1, 2])
    assert cancelled.is_set()


def test_it_is_the_function_of_a_look_up_join_and_its_failure_names_operator_and_key():
    async def name_of(key):
        if key == "z":
            raise LookupError("no such customer")
        return (key.upper(),)

    lookup = AsyncLookup(name_of)
    assert [row.name for row in joined(rows("ab"), lookup, "name string").run().values] == ["A", "B"]
    with pytest.raises(UserFunctionError, match=r"LookupError: no such customer.*operator 'lookup_join'"):
        joined(rows("az"), lookup, "name string").run()


def test_inside_of_a_running_event_loop_it_works_too():
    async def double(key):
        return key * 2

    async def program():
        return AsyncLookup(double)([1, 2])

    assert asyncio.run(program()) == {1: 2, 2: 4}


@pytest.mark.parametrize("given", [{"concurrency": 0}, {"retries": -1}, {"function": 3}])
def test_parameters_that_break_a_rule_are_refused(given):
    async def nothing(key):
        return None

    with pytest.raises(DefinitionError):
        AsyncLookup(**{"function": nothing, **given})


def test_keys_are_what_functions_see_of_rows():
    asked = []

    def lookup(keys):
        asked.extend(keys)
        return {key: {"n": 1} for key in keys}

    stamps = pa.array([3_600_000_000], pa.timestamp("us", tz="Europe/Paris"))
    stream = keyed.stream(pa.table({"at": stamps, "b": ["x"]}))
    assert len(lookup_join(stream.key_by("at", "b"), lookup, "n bigint").run().values) == 1
    assert asked == [(datetime(1970, 1, 1, 1, tzinfo=UTC), "x")]
    assert type(asked[0]) is tuple
    assert asked[0][0].tzinfo is UTC


def test_a_call_that_takes_too_long_is_named():
    async def never(key):
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError, match=r"no answer within 0.01 s \(looking up 'x', attempt 2 of 2\)"):
        AsyncLookup(never, timeout=10, retries=1, pause=1)(["x"])


_BLOCKING = """
import threading
from keyed.joins import AsyncLookup, async_lookup

async_lookup._EXIT_WAIT = 0.01
began = threading.Event()

async def look(key):
    began.set()
    threading.Event().wait()

threading.Thread(target=AsyncLookup(look), args=([1],), daemon=True).start()
began.wait()
print("ends")
"""


def test_a_function_that_blocks_the_loop_does_not_keep_the_program_from_ending():
    done = subprocess.run([sys.executable, "-c", _BLOCKING], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ends\n", "")


@pytest.mark.parametrize("how", ["exit", "stop"])
def test_a_function_that_ends_the_event_loop_ends_the_call_and_the_next_one_has_another(how, caplog):
    """Nobody waits for ever for a thread that is gone."""

    async def ending(key):
        if how == "exit":
            sys.exit("no more")
        asyncio.get_running_loop().stop()
        await asyncio.Event().wait()

    async def fine(key):
        return key + 1

    for _ in range(20):
        with pytest.raises(StateAccessError, match="event loop of AsyncLookup ended") as raised:
            AsyncLookup(ending)([1, 2])
        assert isinstance(raised.value.__cause__, SystemExit) is (how == "exit")
        assert AsyncLookup(fine)([1, 2]) == {1: 2, 2: 3}
    until(lambda: [thread.name for thread in threading.enumerate()].count("keyed-async-lookup") == 1)
    assert [record.name for record in caplog.records].count("keyed.joins.async_lookup") == 20


def test_a_thread_that_cannot_start_is_raised_and_the_next_call_starts_one(monkeypatch):
    async def fine(key):
        return key + 1

    def start(self):
        raise RuntimeError("can't start new thread")

    async_lookup._LOOP.close()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            AsyncLookup(fine)([1])
    assert AsyncLookup(fine)([1]) == {1: 2}

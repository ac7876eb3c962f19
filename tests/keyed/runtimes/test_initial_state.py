"""Initial state: a new query starts with entries from elsewhere, checked before its first row."""

import datetime as dt
from typing import Any

import attrs
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyed
from keyed import DirectoryChangelog
from keyed.errors import DefinitionError, RowError
from keyed.recovery import verify
from keyed.testing import KeyedTestHarness
from keyed.vectorized import TableState, VectorizedFunction
from tests.keyed.runtimes.conftest import CASES
from tests.keyed.runtimes.spark.functions import SCHEMA, CountOn, PlainCount, files_source, parquet_rows, write_file
from tests.support.tables import poll_tables


@attrs.frozen
class Profile:
    name: str
    visits: int = 0


class Mean:
    def create_accumulator(self):
        return (0, 0)

    def add(self, value, accumulator):
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1] if accumulator[1] else None

    def merge(self, a, b):
        return a[0] + b[0], a[1] + b[1]


class Everything(keyed.KeyedProcessFunction):
    """Has every kind of state, and emits all of it with each element."""

    count = keyed.ValueState(int, default=0)
    profile = keyed.ValueState(Profile)
    items = keyed.ListState(str)
    prices = keyed.MapState(str, float)
    total = keyed.ReducingState(lambda a, b: a + b, int)
    mean = keyed.AggregatingState(Mean(), tuple[int, int])
    address = keyed.VersionedState(str, history=1000)
    seen = keyed.ValueState(int, ttl=keyed.StateTtl(milliseconds=100))
    hot = keyed.MapState(str, int, ttl=keyed.StateTtl(milliseconds=100, time_domain=keyed.TimeDomain.EVENT_TIME))

    def process_element(self, value, ctx):
        version = self.address.get()
        yield {
            "count": self.count.value(),
            "profile": self.profile.value(),
            "items": self.items.get(),
            "prices": dict(self.prices.items()),
            "total": self.total.get(),
            "mean": self.mean.get(),
            "address": version and (version.value, version.timestamp),
            "seen": self.seen.value(),
            "hot": dict(self.hot.items()),
            "timers": [(t.timestamp, t.domain.value, t.name) for t in ctx.timer_service().timers()],
        }

    def on_timer(self, timestamp, ctx):
        yield f"{ctx.get_current_key()} {ctx.timer_name()} at {timestamp}"


class Sums(VectorizedFunction):
    sums = TableState("k string, item string, total bigint", key=("k", "item"))

    def process_batch(self, table, ctx):
        self.sums.merge(table.select(["k", "item", "total"]), {"total": "sum"})
        ctx.emit(self.sums.lookup(table.select(["k", "item"])))


NOTHING: dict[str, Any] = {
    "count": 0,
    "profile": None,
    "items": [],
    "prices": {},
    "total": None,
    "mean": None,
    "address": None,
    "seen": None,
    "hot": {},
    "timers": [],
}
STATE: dict[str, Any] = {
    "count": pd.DataFrame({"key": ["a", "b"], "value": [3, 4]}),
    "profile": pa.table({"key": ["a"], "name": ["Ada"], "visits": [7]}),
    "items": pa.table({"key": ["a", "a", "b"], "entry": [2, 1, 1], "value": ["second", "first", "only"]}),
    "prices": pa.table({"key": ["a", "a"], "entry": ["x", "y"], "value": [1.5, None]}),
    "total": pa.table({"key": ["a"], "value": [10]}),
    "mean": pa.table({"key": ["a"], "value": [{"item_1": 9, "item_2": 2}]}),
    "address": pa.table({"key": ["a", "a"], "valid_from": [900, 950], "value": ["here", "there"]}),
    "seen": pa.table({"key": ["a", "b"], "value": [1, 2], "expires": [1050, 990]}),
    "hot": pa.table({"key": ["a", "a"], "entry": ["x", "y"], "value": [1, 2], "expires": [1001, 900]}),
    "timer:event_time": pa.table({"key": ["a", "b"], "entry": [None, "named"], "value": [999, 1500]}),
    "timer:processing_time": pa.table(
        {"key": ["a"], "entry": ["wake"], "value": [dt.datetime.fromtimestamp(1.5, dt.UTC)]}
    ),
}
WITH_A = {
    "count": 3,
    "profile": Profile("Ada", 7),
    "items": ["first", "second"],
    "prices": {"x": 1.5, "y": None},
    "total": 10,
    "mean": 4.5,
    "address": ("there", 950),
    "seen": 1,
    "hot": {"x": 1},
    "timers": [(1500, "processing_time", "wake")],
}
WITH_B = {**NOTHING, "count": 4, "items": ["only"], "timers": [(1500, "event_time", "named")]}


def chain(keys, initial_state=None, *, function=None, times=1000, **options):
    source = [{"k": key, "t": times} for key in keys]
    stream = keyed.stream(source, timestamp="t").key_by("k")
    return stream.process(function or Everything(), initial_state=initial_state, **options)


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("store", ["memory", "rocksdb"])
def test_every_kind_of_state_and_timers_are_there_before_the_first_row(tmp_path, parallelism, store):
    made = chain("abc", STATE, parallelism=parallelism, store=store)
    result = made.run(checkpoint=tmp_path, processing_time=lambda: 1000, drain=False)
    assert [v for v in result.values if isinstance(v, str)] == ["a None at 999"]
    assert [v for v in result.values if v == WITH_A] == [WITH_A]
    assert [v for v in result.values if v == WITH_B] == [WITH_B]
    assert [v for v in result.values if v == NOTHING] == [NOTHING]
    drained = made.run(checkpoint=tmp_path, processing_time=lambda: 1000, drain=True)
    assert sorted(drained.values) == ["a wake at 1500", "b named at 1500"]


def test_without_anything_that_reads_its_log_it_is_the_same():
    result = chain("a", STATE).run(processing_time=lambda: 1000)
    assert WITH_A in result.values


def test_the_harness_starts_with_it():
    with KeyedTestHarness(Everything(), key=lambda value: value, initial_state=STATE, parallelism=2) as harness:
        harness.advance_processing_time(1000)
        assert harness.state_entries() == 15
        harness.advance_watermark(950)
        harness.process("a", 1000)
        [made] = [record.value for record in harness.take_output()]
        assert {**made, "timers": []} == {**WITH_A, "timers": []}
        harness.crash_and_recover()
        harness.advance_watermark(999)
        assert [record.value for record in harness.take_output()] == ["a None at 999"]


def test_a_failed_first_batch_starts_with_it_again(tmp_path):
    def fail(values, batch):
        raise RuntimeError("full")

    with pytest.raises(keyed.errors.QueryFailed):
        chain("a", STATE).run(fail, checkpoint=tmp_path, processing_time=lambda: 1000)
    assert WITH_A in chain("a", STATE).run(checkpoint=tmp_path, processing_time=lambda: 1000).values


def test_a_changelog_has_it_and_state_tables_and_restored_queries_at_another_parallelism_too(tmp_path):
    log = keyed.DirectoryChangelog(tmp_path / "log")
    run = {"processing_time": lambda: 1000, "drain": False}
    chain("c", STATE, changelog=log, parallelism=2).run(checkpoint=tmp_path / "ck", **run)
    with poll_tables(log, tmp_path / "tables") as tables:
        assert tables["count"].get("b") == 4
        # The dataset of a state table is a source of it.
        names = ("count", "profile", "items", "prices", "total", "mean", "address", "seen", "hot")
        loaded = chain("ab", {name: tables[name].dataset() for name in names}).run(**run)
    assert all({**rows, "timers": []} in loaded.values for rows in (WITH_A, WITH_B))
    restored = chain("cab", restore_from=log, parallelism=3, function=Everything()).run(**run)
    assert all(rows in restored.values for rows in (WITH_A, WITH_B))
    assert [found.problem for found in verify(log)] == ["", ""]


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"k": ["a", "b"], "count": [3, 4], "total": [10, 20]}),
        pa.table({"k": list("abab"), "state": ["count", "count", "total", "total"], "value": [3, 4, 10, 20]}),
    ],
    ids=["a column for each state", "a row for each state"],
)
def test_one_frame_has_several_states(frame):
    result = chain("ab", frame).run(drain=False)
    assert result.values == [{**NOTHING, "count": 3, "total": 10}, {**NOTHING, "count": 4, "total": 20}]


def test_keys_of_several_columns():
    source = [{"k": "a", "n": 1}]
    for frame in (
        pa.table({"k": ["a"], "n": [1], "count": [5]}),
        pa.table({"key_1": ["a"], "key_2": [1], "count": [5]}),
        pa.table({"key": [{"k": "a", "n": 1}], "count": [5]}),
    ):
        stream = keyed.stream(source).key_by("k", "n")
        assert stream.process(Everything(), initial_state=frame, parallelism=2).run().values[0]["count"] == 5
    by_function = keyed.stream(source).key_by(lambda value: value.k)
    frame = pa.table({"key": ["a"], "count": [5]})
    assert by_function.process(Everything(), initial_state=frame).run().values[0]["count"] == 5


@pytest.mark.parametrize("parallelism", [1, 2])
def test_rows_of_a_table_state(parallelism):
    source = pa.table({"k": ["a", "b"], "item": ["x", "x"], "total": [1, 1]})
    frame = pa.table({"k": ["a", "a"], "item": ["x", "y"], "total": [10, 20]})
    stream = keyed.stream(source).key_by("k")
    made = stream.process(Sums(), "k string, item string, total bigint", initial_state=frame, parallelism=parallelism)
    assert sorted(map(tuple, made.run().values)) == [("a", "x", 11), ("b", "x", 1)]


@pytest.mark.parametrize(("state", "rows", "message"), CASES["rows of an initial state"])
def test_a_row_that_does_not_fit_is_named_before_the_first_row(state, rows, message):
    ran = []

    class Note(Everything):
        def process_element(self, value, ctx):
            ran.append(value)
            return ()

    frame = pa.Table.from_pylist([dict(zip(("key", "entry", "value"), row, strict=True)) for row in rows])
    with pytest.raises(RowError, match="initial_state, row") as caught:
        chain("a", {state: frame}, function=Note()).run()
    assert message in str(caught.value)
    assert ran == []


def test_columns_are_not_taken_for_the_elements_of_a_list():
    with pytest.raises(RowError, match="Expected `str`, got `object`"):
        chain("a", {"items": pa.table({"key": ["a"], "first": ["x"], "second": ["y"]})}).run()


def test_rows_of_tables_that_do_not_fit_are_named():
    source = pa.table({"k": ["a"], "item": ["x"], "total": [1]})

    def run(frame):
        return keyed.stream(source).key_by("k").process(Sums(), initial_state=frame).run()

    with pytest.raises(RowError, match="there is a row for this key already"):
        run(pa.table({"k": ["a", "a"], "item": ["x", "x"], "total": [1, 2]}))
    with pytest.raises(RowError, match=r"row .*'total': 'x'"):
        run(pa.table({"k": ["a"], "item": ["x"], "total": ["x"]}))


def test_what_is_no_frame_or_has_no_key_is_refused():
    with pytest.raises(DefinitionError, match="initial_state has a list"):
        chain("a", [1]).run()
    with pytest.raises(DefinitionError, match="and none for the key; name them k"):
        chain("a", pa.table({"user": ["a"], "count": [1]})).run()
    with pytest.raises(DefinitionError, match="a query starts with one of them"):
        chain("a", pa.table({"k": ["a"], "count": [1]}), restore_from=keyed.DirectoryChangelog("log"))


@given(
    counts=st.dictionaries(st.text(max_size=3), st.integers(-(2**63), 2**63 - 1), max_size=8),
    lists=st.dictionaries(st.text(max_size=3), st.lists(st.text(max_size=3), min_size=1, max_size=4), max_size=5),
    parallelism=st.integers(1, 4),
    data=st.data(),
)
def test_what_is_given_is_what_is_there_whatever_the_order_of_its_rows(counts, lists, parallelism, data):
    rows = [{"key": key, "entry": i, "value": v} for key, values in lists.items() for i, v in enumerate(values)]
    rows = data.draw(st.permutations(rows))
    string: Any = pa.string()
    number: Any = pa.int64()
    frames = {
        "count": pa.table({"key": pa.array(counts, string), "value": pa.array(counts.values(), number)}),
        "items": pa.Table.from_pylist(rows, pa.schema([("key", string), ("entry", number), ("value", string)])),
    }
    keys = sorted({*counts, *lists})
    result = chain(keys, frames, parallelism=parallelism).run(drain=False)
    expected = [{**NOTHING, "count": counts.get(key, 0), "items": lists.get(key, [])} for key in keys]
    assert sorted(result.values, key=repr) == sorted(expected, key=repr)


class InNamespaces(keyed.KeyedProcessFunction):
    total = keyed.ValueState(int)
    items = keyed.ListState(str)

    def process_element(self, value, ctx):
        for namespace in (None, 1, "x", (1, 2)):
            yield namespace, self.total.namespace(namespace).value(), list(self.items.namespace(namespace).get())


def test_state_under_namespaces_is_loaded_from_state_tables_too(tmp_path):
    rows = [
        {"state": "total", "namespace": None, "entry": None, "value": 5},
        {"state": "total", "namespace": "1", "entry": None, "value": 6},
        {"state": "total", "namespace": '"x"', "entry": None, "value": 7},
        {"state": "total", "namespace": "[1, 2]", "entry": None, "value": 8},
    ]
    numbers = pa.Table.from_pylist([{"k": "a", **row} for row in rows])
    items = pa.table({"k": ["a"] * 3, "namespace": [1, 1, None], "value": ["b", "c", "d"]})
    log = keyed.DirectoryChangelog(tmp_path / "log")
    stream = keyed.stream([{"k": "a"}]).key_by("k")
    first = stream.process(
        InNamespaces(), initial_state={"total": numbers.drop(["state"]), "items": items}, changelog=log
    )
    expected = [(None, 5, ["d"]), (1, 6, ["b", "c"]), ("x", 7, []), ((1, 2), 8, [])]
    assert first.run().values == expected
    with poll_tables(log, tmp_path / "tables") as tables:
        known = {name: tables[name].dataset().to_table() for name in ("total", "items")}
    assert stream.process(InNamespaces(), initial_state=known).run().values == expected


def test_a_namespace_that_is_none_is_refused():
    stream = keyed.stream([{"k": "a"}]).key_by("k")

    def load(**columns):
        stream.process(InNamespaces(), initial_state=pa.table({"k": ["a"], **columns})).run()

    with pytest.raises(RowError, match="""namespace has to be JSON, as in state tables: '"x"' for 'x'"""):
        load(state=["total"], namespace=["x"], value=[1])
    with pytest.raises(RowError, match="timers and table states have no namespaces"):
        load(state=["timer:event_time"], namespace=[1], value=[1])
    twice = pa.table({"k": ["a"] * 2, "state": ["total"] * 2, "namespace": [1, 1], "value": [1, 2]})
    with pytest.raises(RowError, match="there is a row for this key, state and entry already"):
        stream.process(InNamespaces(), initial_state=twice).run()


def test_windows_say_why_they_take_none():
    from keyed import windows

    windowed = keyed.stream([], timestamp="t").key_by("k").window(windows.TumblingEventTimeWindows.of(5))
    with pytest.raises(DefinitionError, match="windows take no initial_state"):
        windowed.aggregate({"n": windows.Count()}, initial_state=pa.table({"k": ["a"]}))  # type: ignore[call-overload]


# On Spark ------------------------------------------------------------------------------------------------------------


OUTPUT = "k string, n bigint, rest string"


def counted(source, initial_state, **options):
    return source.key_by("k").process(CountOn(), OUTPUT, initial_state=initial_state, parallelism=2, **options)


def test_a_new_checkpoint_starts_with_it_and_an_older_one_does_not_look_at_it(spark, tmp_path):
    write_file(tmp_path / "in", 0, [(key, 10, 1) for key in "abc"])
    log = DirectoryChangelog(tmp_path / "log")
    frames = {
        "count": spark.createDataFrame([(key, 100) for key in "abd"], "key string, value bigint"),
        "items": pa.table({"k": ["a", "a"], "entry": [1, 0], "value": ["y", "x"]}),
        "prices": pd.DataFrame({"key": ["b"], "entry": ["z"], "value": [0.5]}),
        "timer:event_time": pd.DataFrame({"key": ["d"], "value": [5]}),
    }
    made = counted(files_source(spark, tmp_path / "in"), frames, changelog=log)
    made.run(tmp_path / "out", checkpoint=tmp_path / "ck")
    first = [("a", 101, "['x', 'y'] {}"), ("b", 101, "[] {'z': 0.5}"), ("c", 1, "[] {}"), ("d", 5, "timer")]
    assert parquet_rows(tmp_path / "out") == first
    changes = {
        (change.key, change.state): change.value
        for change in keyed.recovery.read_changelog(log)
        if change.state == "count"
    }
    assert changes == {("a", "count"): 101, ("b", "count"): 101, ("c", "count"): 1, ("d", "count"): 100}

    write_file(tmp_path / "in", 1, [("d", 20, 1), ("e", 20, 1)])
    again = counted(
        files_source(spark, tmp_path / "in"),
        {"count": frames["count"].selectExpr("'e' key", "7L value")},
        changelog=log,
    )
    again.run(tmp_path / "out", checkpoint=tmp_path / "ck")
    assert parquet_rows(tmp_path / "out") == sorted([*first, ("d", 101, "[] {}"), ("e", 1, "[] {}")])


def test_a_batch_dataframe_starts_with_it_and_a_bad_row_is_named(spark, tmp_path):
    frame = spark.createDataFrame([("a", 0, 1)], SCHEMA)
    with KeyedTestHarness(CountOn(), key="k", changelog=DirectoryChangelog(tmp_path / "log")) as harness:
        harness.process({"k": "a", "v": 40})
    with poll_tables(DirectoryChangelog(tmp_path / "log"), tmp_path / "tables") as tables:
        known = {"count": tables["count"].dataset()}
        assert [row.n for row in counted(keyed.stream(frame), known).run().values] == [41]
    good = pa.table({"k": ["a"], "count": [41]})
    assert [row.n for row in counted(keyed.stream(frame), good).run().values] == [42]
    with pytest.raises(RowError, match=r"initial_state, row .*'many'.*Expected `int`, got `str`"):
        counted(keyed.stream(frame), pa.table({"k": ["b"], "count": ["many"]})).run()


@pytest.mark.long
def test_the_state_of_a_plain_query_of_spark_is_a_source_of_it(spark, tmp_path):
    write_file(tmp_path / "in", 0, [("a", 0, 3), ("a", 0, 4), ("b", 0, 5)])
    reader = spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "in"))
    plain = reader.groupBy("k").transformWithStateInPandas(PlainCount(), "n bigint", "append", "none")
    plain.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "plain")).trigger(
        availableNow=True
    ).start().awaitTermination()

    def state(name):
        return spark.read.format("statestore").option("stateVarName", name).load(str(tmp_path / "plain"))

    rows = spark.createDataFrame([("a", 0, 1), ("b", 0, 1)], SCHEMA)
    result = counted(keyed.stream(rows), {name: state(name) for name in ("count", "items", "prices")}).run()
    local = keyed.stream([{"k": "a", "v": 1}, {"k": "b", "v": 1}])
    assert sorted(counted(local, {name: state(name) for name in ("count", "items", "prices")}).run().values) == [
        *map(tuple, sorted(result.values))
    ]
    assert sorted(map(tuple, result.values)) == [
        ("a", 8, "['item 3', 'item 4'] {'item 3': 1.5, 'item 4': 2.0}"),
        ("b", 6, "['item 5'] {'item 5': 2.5}"),
    ]

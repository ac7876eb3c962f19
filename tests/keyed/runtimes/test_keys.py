"""Keys are compared by what is stored: those whose bytes are equal are one key, in every row, batch and new query."""

import datetime as dt
from collections import Counter
from decimal import Decimal
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyed
from keyed import KeyedProcessFunction, MapState, TimeDomain, ValueState
from keyed import windows as w
from keyed.changelog import DirectoryChangelog
from keyed.codec.keys import encode_key
from keyed.errors import CheckpointError, KeysChanged
from keyed.recovery import verify
from keyed.testing import KeyedTestHarness
from keyed.vectorized import VectorizedFunction
from tests.keyed.runtimes.conftest import long_on_spark
from tests.keyed.runtimes.spark.functions import CountKeys, write_rows
from tests.support.jobs import Pass, Tally

BERLIN, LONDON = ZoneInfo("Europe/Berlin"), ZoneInfo("Europe/London")
ONE_HOUR = dt.datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN)
KINDS = {
    "float": st.sampled_from([0.0, -0.0, 1.0]) | st.builds(lambda: float("nan")),
    "hour": st.sampled_from([ONE_HOUR, ONE_HOUR.replace(fold=1)]).flatmap(
        lambda hour: st.sampled_from([hour, hour.astimezone(dt.UTC), hour.astimezone(LONDON)])
    ),
    "decimal": st.sampled_from([Decimal("1.0"), Decimal("1.00"), Decimal(1), Decimal("-0"), Decimal(0)]),
}
PARTS = {
    "scalar": lambda leaves: leaves,
    "tuple": lambda leaves: st.tuples(st.just("a"), leaves),
    "nested": lambda leaves: st.tuples(st.tuples(leaves)),
}


class Everywhere(KeyedProcessFunction):
    """Counts by key, by namespace, by map key and by timers that are pending."""

    by_key = ValueState(int, default=0)
    by_namespace = ValueState(int, default=0)
    by_map_key = MapState(object, int)

    def process_element(self, value, ctx):
        key, timers = value["k"], ctx.timer_service()
        self.by_key.update(self.by_key.value() + 1)
        here = self.by_namespace.namespace(key)
        here.update(here.value() + 1)
        self.by_map_key[key] = self.by_map_key.get(key, 0) + 1
        timers.register_event_time_timer(2**60)
        timers.set_timer(key, 2**60, TimeDomain.EVENT_TIME)
        pending = len(timers.timers())
        yield ctx.get_current_key(), self.by_key.value(), here.value(), self.by_map_key[key], pending

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), "timer", self.by_key.value(), ctx.timer_name(), 0


def expected(keys):
    counts: Counter[bytes] = Counter()
    rows = []
    for key in keys:
        counts[encode_key(key)] += 1
        rows.append((repr(keyed.codec.keys.decode_key(encode_key(key))), *[counts[encode_key(key)]] * 3, 2))
    return rows, counts


def check(found, keys):
    rows, counts = expected(keys)
    assert [(repr(row[0]), *row[1:]) for row in found if row[1] != "timer"] == rows
    fired = Counter(encode_key(row[0]) for row in found if row[1] == "timer")
    assert fired == dict.fromkeys(counts, 2)
    assert {encode_key(row[0]): row[2] for row in found if row[1] == "timer"} == counts


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30)
@given(data=st.data())
def test_keys_that_encode_equal_are_one_key_everywhere(kind, part, data):
    keys = data.draw(st.lists(PARTS[part](KINDS[kind]), min_size=1, max_size=8))
    batch = data.draw(st.integers(1, 8))
    rows = [{"k": key, "t": 0} for key in keys]
    stage = keyed.stream(rows, timestamp="t").key_by("k").process(Everywhere())
    check(stage.run(rows_per_batch=batch).values, keys)

    harness = KeyedTestHarness(Everywhere(), key=lambda row: row["k"])
    for start in range(0, len(rows), batch):
        with harness.batch():
            for row in rows[start : start + batch]:
                harness.process(row, row["t"])
    assert {len(harness.pending_timers(key)) for key in keys} == {2}
    harness.advance_watermark(2**60)
    check([record.value for record in harness.take_output()], keys)


@pytest.mark.parametrize("rows_per_batch", [1, 2, 3, 5])
def test_a_session_of_a_nan_key_has_all_its_rows(rows_per_batch):
    # The timer that a batch reads and the rows of the batch are of one key.
    table = pa.table({"k": [float("nan")] * 3 + [1.0, 1.0], "t": [1, 2, 3, 30, 60]})
    sessions = keyed.stream(table, timestamp="t").key_by("k").window(w.EventTimeSessionWindows.with_gap(10))
    found = sessions.aggregate(n=w.Count()).run(rows_per_batch=rows_per_batch).values
    assert [(str(row.k), row.n) for row in found] == [("nan", 3), ("1.0", 1), ("1.0", 1)]


class Groups(VectorizedFunction):
    """Emits the number of rows of each key in the batch."""

    def process_batch(self, table, ctx):
        ctx.emit(table.group_by("k").aggregate([([], "count_all")]))


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_vectorized_function_gets_keys_as_they_are_stored(parallelism):
    table = pa.table({"k": pa.array([float("nan"), -0.0, 0.0, float("nan")], pa.float32())})
    found = keyed.stream(table).key_by("k").process(Groups(), parallelism=parallelism).run().values
    assert sorted((str(row.k), row.count_all) for row in found) == [("0.0", 2), ("nan", 2)]


def test_elements_keep_the_values_that_came():
    table = pa.table({"k": [-0.0, 0.0]})
    rows = keyed.stream(table).key_by("k").process(Pass()).run().values
    assert [str(row.k) for row in rows] == ["-0.0", "0.0"]


def rows_of(count, **columns):
    return [columns | {"t": i} for i in range(count)]


def total(source, *keys, **options):
    return keyed.stream(source).key_by(*keys).process(Tally(), **options)


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("of_table", [False, True], ids=["elements", "table"])
def test_other_key_columns_on_a_checkpoint_are_refused(tmp_path, of_table, parallelism):
    data = rows_of(3, a="x", b="y")
    source = pa.Table.from_pylist(data) if of_table else data
    total(source, "a", "b", parallelism=parallelism).run(checkpoint=tmp_path)
    for other in (("b", "a"), ("a",), ("a", "t")):
        with pytest.raises(KeysChanged, match=r"keyed by a, b, the query by .*use key_by\('a', 'b'\)"):
            total(source, *other, parallelism=parallelism).run(checkpoint=tmp_path, drain=True)
    assert total(source, "a", "b", parallelism=parallelism).run(checkpoint=tmp_path, drain=True).batches == 1


@pytest.mark.parametrize("parallelism", [1, 4])
@pytest.mark.parametrize(("old", "new", "message"), [(1, 1.0, "int.*float"), ("1", b"1", "str.*bytes")])
def test_keys_of_another_type_are_refused_after_a_restart_and_a_restore(tmp_path, old, new, message, parallelism):
    def run(*keys, **options):
        query = total([{"k": key} for key in keys], "k", parallelism=parallelism, **options)
        return query.run(checkpoint=tmp_path / ("new" if "restore_from" in options else "old"))

    log = DirectoryChangelog(tmp_path / "log")
    run(old, changelog=log)
    for options in ({"changelog": log}, {"restore_from": log}):
        with pytest.raises(KeysChanged, match=f"{message}.*convert them"):
            run(old, new, **options)
    assert run(old, old, changelog=log).values == [(old, 2)]
    assert run(old, old, old, restore_from=log).values == [(old, 2), (old, 3)]


def test_a_vectorized_function_has_keys_of_one_type():
    harness = KeyedTestHarness(Groups(), key="k", parallelism=2)
    harness.process_batch(pa.table({"k": pa.array([1], pa.int32())}))
    harness.process_batch(pa.table({"k": pa.array([1, 2], pa.int64())}))
    with pytest.raises(KeysChanged, match=r"int.*str"):
        harness.process_batch(pa.table({"k": ["1", "2", "3"]}))


def test_the_harness_refuses_keys_of_another_type_after_a_restore():
    harness = KeyedTestHarness(Tally())
    harness.process(1)
    restored = KeyedTestHarness.restore(Tally(), harness.snapshot())
    with pytest.raises(KeysChanged, match=r"int.*float"):
        restored.process(1.0)
    same = KeyedTestHarness.restore(Tally(), harness.snapshot())
    same.process(1)
    assert [record.value for record in same.take_output()] == [(1, 2)]


def test_a_checkpoint_of_spark_is_refused(tmp_path):
    for folder in ("offsets", "commits", "state"):
        (tmp_path / folder).mkdir()
    with pytest.raises(CheckpointError, match=r"written by Spark.*restore_from= the changelog"):
        total(rows_of(1, k=1), "k").run(checkpoint=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["commits", "offsets", "state"]


# On Spark ------------------------------------------------------------------------------------------------------------


SCHEMA = "k double, t bigint"
OUTPUT = "k string, n bigint"
NAN = float("nan")


@long_on_spark
def test_nan_and_zero_are_one_key_each_over_batches_restarts_and_restore(runtime, tmp_path):
    runtime.size = 3
    batches = [[(NAN, 1), (-0.0, 2), (NAN, 3)], [(NAN, 4), (0.0, 5), (1.0, 100)], [(NAN, 101), (-0.0, 102)]]
    log = DirectoryChangelog(tmp_path / "log")

    def run(*rows, checkpoint="checkpoint", **options):
        for each in rows:
            runtime.add(tmp_path / "in", each, SCHEMA)
        counted = runtime.source(tmp_path / "in", schema=SCHEMA).key_by("k").process(CountKeys(), OUTPUT, **options)
        restores = "restore_from" in options
        return sorted(counted.run(checkpoint=tmp_path / checkpoint, drain=restores, **runtime.batches).values)

    # The second batch reads the timers that the first one has set, and the rows move them.
    first = ["0.0", "0.0", "1.0", "nan", "nan", "nan", "timer 0.0", "timer nan"]
    assert run(*batches[:2], changelog=log, parallelism=2) == list(zip(first, [1, 2, 1, 1, 2, 3, 2, 3], strict=True))
    assert {group.problem for group in verify(log)} == {""}
    found = run(batches[2], restore_from=log, checkpoint="restored", parallelism=3)
    assert found == [("0.0", 3), ("nan", 4), ("timer 0.0", 3), ("timer 1.0", 1), ("timer nan", 4)]


@pytest.mark.long
def test_other_keys_on_a_checkpoint_and_one_of_the_local_runtime_are_refused(spark, tmp_path):
    folder, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    write_rows(folder, 0, [(1.0, 1)], SCHEMA)

    def counted(*keys, schema="k, t"):
        frame = spark.readStream.schema(SCHEMA).parquet(str(folder)).selectExpr(*schema.split(", "))
        return keyed.stream(frame).key_by(*keys).process(CountKeys(timers=False), OUTPUT, name="count", parallelism=2)

    local = keyed.stream([{"k": 1.0}]).key_by("k").process(CountKeys(timers=False), OUTPUT, name="count")
    local.run(checkpoint=tmp_path / "local")
    with pytest.raises(CheckpointError, match=r"written by the local runtime.*restore_from="):
        counted("k").run(checkpoint=tmp_path / "local")

    counted("k").run(checkpoint=checkpoint)
    write_rows(folder, 1, [(1.0, 2)], SCHEMA)
    with pytest.raises(KeysChanged, match=r"keyed by k, the query by t"):
        counted("t").run(checkpoint=checkpoint)
    with pytest.raises(KeysChanged, match=r"of type float, those of the rows of type int"):
        counted("k", schema="CAST(k AS INT) AS k, t").run(checkpoint=checkpoint)
    with pytest.raises(CheckpointError, match=r"written by Spark"):
        local.run(checkpoint=checkpoint)
    assert list(map(tuple, counted("k").run(checkpoint=checkpoint).values)) == [("1.0", 2)]

"""Packing and unpacking: no row is lost, doubled or moved, whatever Spark makes of batches, tasks and shuffle."""

import collections
import random

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyed.codec.key_hash import group_of, key_hash
from keyed.engine.batch import Upstream
from keyed.errors import NullKeyError, OutputDefinitionError, TimestampError, UserFunctionError
from keyed.runtimes.spark.worker.pack import Packer, Reading
from keyed.runtimes.spark.worker.processor import PackedInput, batch_of, reached_before, read_payloads
from keyed.runtimes.spark.worker.wire import (
    HASH,
    NOTE,
    TIMESTAMP,
    GroupMark,
    RowsEncoder,
    TaskMark,
    chunk_note,
    encode_payload,
    group_ids,
    output_id,
    read_chunk,
)
from keyed.vectorized import TIMESTAMP_COLUMN, VectorizedFunction

CLOCK_NOW = 1_700_000_000_000


def packer(**changes):
    settings = {"operator": "op", "keys": ("k",), "columns": ("k", "v", "t"), "time": "t", "of_source": True}
    of_frame = {name: changes.pop(name) for name in ("parallelism", "forward") if name in changes}
    reading = Reading(**{**settings, **changes})
    return Packer(of_frame.get("parallelism", 3), (reading,), not reading.of_source, of_frame.get("forward"))


def later(**changes):
    """A packer behind another stage: timestamps in a hidden column, and notes."""
    return packer(**{"columns": ("k", "v"), "time": TIMESTAMP, "of_source": False, **changes})


def arrow_batch(settings, rows, time_type):
    """An Arrow batch as Spark hands it to the packer; a row is (key, value, timestamp) or a note."""
    time_name = TIMESTAMP if settings.after_stage else "t"
    columns: dict[str, list] = {"k": [], "v": [], time_name: [], HASH: [], NOTE: []}
    for row in rows:
        if isinstance(row, bytes):
            values: tuple = (None, None, None, None, row)
        else:
            key, value, timestamp = row
            values = (key, value, timestamp, None if key is None else key_hash(key), None)
        for column, item in zip(columns.values(), values, strict=True):
            column.append(item)
    types = [pa.string(), pa.int64(), pa.int64(), pa.int64(), pa.binary()]
    arrays = [pa.array(column, type_) for column, type_ in zip(columns.values(), types, strict=True)]
    arrays[2] = arrays[2].cast(pa.timestamp("ms")).cast(time_type) if time_type else arrays[2]
    batch = pa.RecordBatch.from_arrays(arrays, names=list(columns))
    return batch.drop_columns([NOTE]) if not settings.after_stage else batch


def pack(settings, tasks, time_type=None):
    """Run the packing tasks: the payloads of each key group, by group id."""
    groups: dict[int, list[bytes]] = {group: [] for group in group_ids(settings.parallelism)}
    for partition, batches in enumerate(tasks):
        arrow = (arrow_batch(settings, rows, time_type) for rows in batches)
        for packed in settings.pack(arrow, partition):
            for group, payload in zip(packed["keygroup"].to_pylist(), packed["payload"].to_pylist(), strict=True):
                groups[group].append(payload)
    return groups


def unpack(settings, payloads, *, by_time=False, stage=0):
    """The engine's batch, and its rows as (key, timestamp, the first two columns)."""
    incoming = read_payloads(payloads, CLOCK_NOW)
    reached = reached_before(incoming, stage, settings.parallelism)
    packed = PackedInput(settings.readings[0].keys, settings.readings[0].time, stage=stage - 1 if stage else None)
    batch = batch_of(incoming, [packed], by_time=by_time, reached=reached)
    return batch, [
        (key, timestamp, (value.k, value.v))
        for keys, timestamps, values, _ in batch.chunks()
        for key, timestamp, value in zip(keys, timestamps or [None] * len(keys), values, strict=True)
    ]


KEYS = st.sampled_from(["a", "b", "c", "", "long key", "é"])
ROWS = st.lists(st.tuples(KEYS, st.integers(0, 100), st.integers(-50, 50)), max_size=12)
TASKS = st.lists(st.lists(ROWS, max_size=3), min_size=1, max_size=4)


TIMES = st.sampled_from([None, pa.timestamp("us", "Asia/Tokyo"), pa.timestamp("us", "UTC")])


@given(TASKS, st.integers(1, 5), st.booleans(), TIMES, st.randoms(use_true_random=False))
def test_every_row_reaches_the_group_of_its_key_in_a_fixed_order_as_rows_and_as_a_table(
    tasks, parallelism, by_time, time_type, chance
):
    settings = packer(parallelism=parallelism)
    groups = pack(settings, tasks, time_type)
    arrived = [row for batches in tasks for rows in batches for row in rows]
    for index, group in enumerate(group_ids(parallelism)):
        expected = [row for row in arrived if group_of(key_hash(row[0]), parallelism) == index]
        if by_time:
            expected.sort(key=lambda row: row[2])
        payloads = groups[group]
        chance.shuffle(payloads)
        _, rows = unpack(settings, payloads, by_time=by_time)
        assert rows == [(k, t, (k, v)) for k, v, t in expected]
        table = unpack_table(settings, payloads, by_time=by_time)
        assert (table is None) is (not expected)
        if table is not None:
            assert table.column_names == ["k", "v", "t", TIMESTAMP_COLUMN]
            columns = [table[name].to_pylist() for name in ("k", "v", TIMESTAMP_COLUMN)]
            assert list(zip(*columns, strict=True)) == expected


@given(TASKS, st.integers(1, 5), TIMES)
def test_every_group_hears_of_every_task(tasks, parallelism, time_type):
    settings = packer(parallelism=parallelism)
    times = [row[2] for batches in tasks for rows in batches for row in rows]
    for payloads in pack(settings, tasks, time_type).values():
        incoming = read_payloads(payloads, CLOCK_NOW)
        assert incoming.batch.highest.get((0, "")) == max(times, default=None)
        assert not incoming.batch.end_of_input


def test_microseconds_are_rounded_down_before_the_epoch_too():
    settings = packer(parallelism=1)
    times = pa.array([-1, 999, -1001, 1000], pa.int64()).cast(pa.timestamp("us", "UTC"))
    columns: list = [pa.array(["a"] * 4), pa.array(range(4)), times, pa.array([key_hash("a")] * 4)]
    batch = pa.RecordBatch.from_arrays(columns, names=["k", "v", "t", HASH])
    payloads = [p for packed in settings.pack(iter([batch]), 0) for p in packed["payload"].to_pylist()]
    _, found = unpack(settings, payloads)
    assert [timestamp for _, timestamp, _ in found] == [-1, 0, -2, 1]
    assert read_payloads(payloads, 0).batch.highest == {(0, ""): 1}


def test_chunks_of_many_rows_keep_their_order(monkeypatch):
    monkeypatch.setattr("keyed.runtimes.spark.worker.pack._ROWS_PER_GROUP", 10)
    chance = random.Random(3)
    rows = [(f"k{chance.randrange(20)}", i, chance.randrange(1000)) for i in range(500)]
    tasks = [[rows[start : start + 37] for start in range(0, 500, 37)]]
    seen = []
    for payloads in pack(packer(), tasks).values():
        chance.shuffle(payloads)
        _, found = unpack(packer(), payloads)
        values = [value[1] for _, _, value in found]
        assert values == sorted(values)
        seen += values
    assert sorted(seen) == list(range(500))


def test_keys_of_several_columns_are_tuples():
    settings = packer(parallelism=1, keys=("k", "v"))
    rows = [("a", 1, 0), ("a", 2, 1), ("a", 1, 2)]
    [payloads] = pack(settings, [[rows]]).values()
    _, found = unpack(settings, payloads)
    assert [key for key, _, _ in found] == [("a", 1), ("a", 2), ("a", 1)]
    assert found[0][0] is found[2][0]


def test_marks_of_the_stage_before_reach_every_group_as_the_least_watermark():
    settings = later()
    marks = [
        GroupMark("before", i, 100 * i + 2**60, CLOCK_NOW + i, end=i == 1, metrics={"rows_in": 1}) for i in range(3)
    ]
    tasks = [[[("a", 1, 5), marks[0].note()]], [[marks[1].note()]], [[marks[2].note()]]]
    for payloads in pack(settings, tasks).values():
        batch, _ = unpack(settings, payloads, stage=1)
        assert (batch.upstream, batch.processing_time) == ([Upstream(2**60)], CLOCK_NOW)
        assert batch.end_of_input


def test_a_missing_mark_of_the_stage_before_is_noticed():
    settings = later()
    tasks = [[[GroupMark("before", 0, 5, 1, end=False, metrics={}).note()]]]
    with pytest.raises(AssertionError, match="of 3 key groups"):
        unpack(settings, next(iter(pack(settings, tasks).values())), stage=1)


def test_rows_without_a_timestamp_come_first_in_a_later_stage():
    settings = later(parallelism=1)
    rows = [("a", 1, 5), ("a", 2, None), ("a", 3, -4), ("a", 4, None)]
    [payloads] = pack(settings, [[rows]]).values()
    _, found = unpack(settings, payloads, by_time=True)
    assert [(t, value[1]) for _, t, value in found] == [(None, 2), (None, 4), (-4, 3), (5, 1)]


def test_outputs_of_the_stage_before_pass_through_one_group_each():
    settings = later(forward=output_id(0, None))
    side = chunk_note(output_id(0, "late"), pa.RecordBatch.from_pydict({"x": [1, 2]}))
    tasks = [[[("a", 1, 5), side], [("b", 2, 6)]]]
    notes = [note for payloads in pack(settings, tasks).values() for note in read_payloads(payloads, CLOCK_NOW).notes]
    assert side in notes
    rows = [row for note in notes if note != side for row in read_chunk(note).to_pylist()]
    assert sorted(row["k"] for row in rows) == ["a", "b"]


@pytest.mark.parametrize(
    ("row", "error", "said"),
    [
        ((None, 7, 5), NullKeyError, "key None of Row(k=None, v=7, t=5) is null; filter such rows, or give keyed"),
        (("a", 7, None), TimestampError, "the timestamp is null in row Row(k='a', v=7, t=None)"),
    ],
)
def test_a_bad_row_is_refused_and_named(row, error, said):
    with pytest.raises(error) as caught:
        pack(packer(), [[[("b", 1, 1), row]]])
    assert said in str(caught.value)
    assert "operator 'op'" in str(caught.value)


def test_a_null_key_is_refused_in_a_later_stage_too():
    with pytest.raises(NullKeyError, match="filter such rows in the operator"):
        pack(later(), [[[(None, 7, 5)]]])


def test_bad_rows_are_diverted_where_the_stream_says_so():
    settings = packer(bad_rows=output_id(0, "bad"))
    groups = pack(settings, [[[("b", 1, 1), (None, 2, 2), ("c", 3, None)]]])
    notes = [note for payloads in groups.values() for note in read_payloads(payloads, CLOCK_NOW).notes]
    assert [row for note in notes for row in read_chunk(note).to_pylist()] == [
        {"k": None, "v": 2, "t": 2},
        {"k": "c", "v": 3, "t": None},
    ]
    good = [value for payloads in groups.values() for _, _, value in unpack(settings, payloads)[1]]
    assert good == [("b", 1)]


def test_without_event_time_rows_have_no_timestamps():
    settings = packer(time=None, parallelism=1)
    [payloads] = pack(settings, [[[("b", 1, None), ("a", 2, None)]]]).values()
    batch, found = unpack(settings, payloads, by_time=True)
    assert found == [("b", None, ("b", 1)), ("a", None, ("a", 2))]
    assert not batch.highest


# Vectorized functions -------------------------------------------------------------------------------------------------


class Sums(VectorizedFunction):
    """Sums per key before the shuffle, with the latest timestamp of each key if it is asked to."""

    def __init__(self, *, with_times=False):
        self.with_times = with_times
        self.calls = []

    def combine(self, table):
        self.calls.append(table.num_rows)
        wanted = [("v", "sum"), (TIMESTAMP_COLUMN, "max")] if self.with_times else [("v", "sum")]
        sums = table.group_by("k", use_threads=False).aggregate(wanted)
        names = [{f"{TIMESTAMP_COLUMN}_max": TIMESTAMP_COLUMN}.get(name, name) for name in sums.column_names]
        return sums.rename_columns(names)


def unpack_table(settings, payloads, *, by_time=True):
    """The table that a vectorized function gets; ``None`` without rows."""
    [reading] = settings.readings
    time = reading.time if reading.combiner is None else None
    incoming = read_payloads(payloads, CLOCK_NOW)
    batch = batch_of(incoming, [PackedInput(reading.keys, time)], by_time=by_time, reached={}, vectorized=True)
    assert not list(batch.chunks())
    return batch.table()


def test_a_later_stage_keeps_the_timestamps_that_came_and_rows_without_come_first():
    settings = later(parallelism=1)
    rows = [("a", 1, 5), ("a", 2, None), ("a", 3, -4)]
    [payloads] = pack(settings, [[rows]]).values()
    table = unpack_table(settings, payloads)
    assert table.to_pydict() == {"k": ["a"] * 3, "v": [2, 3, 1], TIMESTAMP_COLUMN: [None, -4, 5]}


@given(TASKS, st.integers(1, 5), st.randoms(use_true_random=False))
def test_combined_rows_reach_the_group_of_their_key_and_the_watermark_sees_the_rows_before(tasks, parallelism, chance):
    settings = packer(parallelism=parallelism, combiner=Sums())
    arrived = [row for batches in tasks for rows in batches for row in rows]
    highest = max((time for _, _, time in arrived), default=None)
    for index, (_, payloads) in enumerate(pack(settings, tasks).items()):
        chance.shuffle(payloads)
        assert read_payloads(payloads, CLOCK_NOW).batch.highest == ({} if highest is None else {(0, ""): highest})
        expected: collections.Counter[str] = collections.Counter()
        for key, value, _ in arrived:
            if group_of(key_hash(key), parallelism) == index:
                expected[key] += value
        table = unpack_table(settings, payloads)
        found: collections.Counter[str] = collections.Counter()
        for row in table.to_pylist() if table is not None else ():
            assert row.keys() == {"k", "v_sum"}
            found[row["k"]] += row["v_sum"]
        assert dict(found) == dict(expected)


def test_combined_rows_with_timestamps_come_in_their_order():
    settings = packer(parallelism=1, combiner=Sums(with_times=True))
    tasks = [[[("a", 1, 50), ("b", 2, 20)]], [[("c", 1, 30), ("b", 5, 10)]]]
    [payloads] = pack(settings, tasks).values()
    table = unpack_table(settings, payloads)
    assert table["k"].to_pylist() == ["b", "b", "c", "a"]
    assert table[TIMESTAMP_COLUMN].to_pylist() == [10, 20, 30, 50]


def test_rows_are_combined_once_a_task_and_group_up_to_a_number_of_bytes(monkeypatch):
    tasks = [[[(f"k{i % 7}", i, i) for i in range(5000)] for _ in range(4)]]
    once = packer(parallelism=2, combiner=Sums())
    pack(once, tasks)
    assert len(once.readings[0].combiner.calls) == 2
    assert sum(once.readings[0].combiner.calls) == 20_000
    monkeypatch.setattr("keyed.runtimes.spark.worker.pack._MAX_BYTES", 100_000)
    bounded = packer(parallelism=2, combiner=Sums())
    pack(bounded, tasks)
    assert len(bounded.readings[0].combiner.calls) > 4
    assert sum(bounded.readings[0].combiner.calls) == 20_000


def test_what_combine_drops_is_not_sent_but_the_mark_is():
    class Nothing(VectorizedFunction):
        def combine(self, table):
            return table.slice(0, 0)

    for payloads in pack(packer(combiner=Nothing()), [[[("a", 1, 7)]]]).values():
        assert unpack_table(packer(combiner=Nothing()), payloads) is None
        assert read_payloads(payloads, CLOCK_NOW).batch.highest == {(0, ""): 7}


def test_a_combine_that_raises_is_named():
    class Broken(VectorizedFunction):
        def combine(self, table):
            return table["nothing"]

    with pytest.raises(UserFunctionError, match=r"operator 'op', combine of 2 rows: KeyError"):
        pack(packer(parallelism=1, combiner=Broken()), [[[("a", 1, 7), ("b", 1, 7)]]])


def test_a_combine_whose_columns_depend_on_the_rows_is_refused():
    class Whimsical(VectorizedFunction):
        def combine(self, table):
            return table.select(["k", "v"] if table["v"][0].as_py() else ["k"])

    settings = packer(parallelism=1, combiner=Whimsical())
    [payloads] = pack(settings, [[[("a", 1, 7)]], [[("a", 0, 7)]]]).values()
    with pytest.raises(OutputDefinitionError, match="combine returned tables with different columns"):
        unpack_table(settings, payloads)


def test_marks_tell_of_inputs_and_partitions_and_that_a_run_starts():
    marks = [
        TaskMark(5, False, {}),
        TaskMark(9, False, {}, input=1, partitions={"3": 9, "4": 2}),
        TaskMark(7, False, {}),
        TaskMark(4, False, {}, input=1, partitions={"4": 4}),
        TaskMark(None, False, {}),
    ]
    incoming = read_payloads(map(encode_payload, marks), 0)
    assert incoming.batch.highest == {(0, ""): 7, (1, "3"): 9, (1, "4"): 4}
    assert not incoming.batch.starts_run
    assert read_payloads([encode_payload(TaskMark(None, False, {}, starts_run=True))], 0).batch.starts_run


def test_two_inputs_are_merged_by_time_whatever_order_their_chunks_come_in():
    def rows(key, time, keys, times):
        return pa.table({key: list(keys), time: pa.array(times)}).to_batches()[0]

    left, right = [rows("k", "t", "ab", [1, 4]), rows("k", "t", "a", [2])], [rows("other", "u", "ab", [2, 3])]
    payloads = [RowsEncoder(batch.schema, None).payload(batch, 1, position) for position, batch in enumerate(left)]
    payloads += [RowsEncoder(batch.schema, None, 1).payload(batch, 0, position) for position, batch in enumerate(right)]
    inputs = [PackedInput(("k",), "t", 0), PackedInput(("other",), "u", 1)]
    for order in (payloads, payloads[::-1]):
        batch = batch_of(read_payloads(order, 0), inputs, by_time=True, reached={})
        assert [
            row
            for keys, times, values, sides in batch.chunks()
            for row in zip(keys, times or (), values, sides or (), strict=True)
        ] == [
            ("a", 1, ("a", 1), 0),
            ("a", 2, ("a", 2), 0),
            ("a", 2, ("a", 2), 1),
            ("b", 3, ("b", 3), 1),
            ("b", 4, ("b", 4), 0),
        ]

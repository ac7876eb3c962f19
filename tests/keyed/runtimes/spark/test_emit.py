"""The results of a key group in the form that Spark gets."""

import datetime as dt

import pyarrow as pa
import pytest

from keyed.base.schemas import schema_of
from keyed.engine.batch import BatchResult, Emitted, EmittedTables
from keyed.errors import OutputDefinitionError
from keyed.runtimes.spark.worker.wire import NOTE, TIMESTAMP, Emitter, GroupMark, output_id, read_chunk

MARK = GroupMark("op", 1, 5, 6, end=False, metrics={"rows_in": 3})


def emitted(*pairs):
    made = Emitted()
    for value, timestamp in pairs:
        made.values.append(value)
        made.close_run(timestamp)
    return made


def frames(emitter, main=(), passed_on=(), *, emitting=emitted, **side):
    result = BatchResult(emitting(*main), {tag: emitting(*values) for tag, values in side.items()}, 5, {})
    return [
        pa.Table.from_pandas(frame).to_pydict()
        for frame in emitter.frames(result, emitter.rows(), list(passed_on), [MARK])
    ]


def emitter(main="k string, n bigint", *, timestamps=True, **side):
    schemas = {tag: schema_of(type_) for tag, type_ in side.items()}
    return Emitter("op", 2, schema_of(main) if main else None, schemas, timestamps=timestamps)


def test_main_outputs_are_columns_with_their_timestamps():
    rows, notes = frames(emitter(), [(("a", 1), 10), (("b", 2), 10), (("c", 3), None), (("d", 4), 7)])
    assert rows == {"k": list("abcd"), "n": [1, 2, 3, 4], TIMESTAMP: [10, 10, None, 7], NOTE: [None] * 4}
    assert notes == {"k": [None], "n": [None], TIMESTAMP: [None], NOTE: [MARK.note()]}


def test_a_run_of_one_value_each_keeps_its_timestamps():
    rows, _ = frames(emitter(), [((str(i), i), i * i) for i in range(5)])
    assert rows[TIMESTAMP] == [0, 1, 4, 9, 16]


def test_the_mark_comes_alone_where_nothing_was_emitted():
    [notes] = frames(emitter())
    assert [GroupMark.of_note(note) for note in notes[NOTE]] == [MARK]


def test_side_outputs_leave_as_chunks_under_their_tag_and_others_are_dropped():
    made = emitter(late="x int, t timestamp")
    [notes] = frames(made, late=[((1, 1000), None), ((2, 2000), None)], other=[((9,), None)], passed_on=[b"Sxyz"])
    passed, chunk, mark = notes[NOTE]
    assert (passed, mark) == (b"Sxyz", MARK.note())
    assert output_id(2, "late").encode() in chunk
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    times = [epoch + dt.timedelta(seconds=seconds) for seconds in (1, 2)]
    assert read_chunk(chunk).to_pydict() == {"x": [1, 2], "t": times}


def test_large_side_outputs_leave_in_several_chunks(monkeypatch):
    monkeypatch.setattr("keyed.runtimes.spark.worker.wire._CHUNK_ROWS", 3)
    [notes] = frames(emitter(late="x int"), late=[((i,), None) for i in range(8)])
    chunks = [read_chunk(note).to_pydict()["x"] for note in notes[NOTE][:-1]]
    assert chunks == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_timestamps_travel_as_microseconds():
    made = emitter("t timestamp, n timestamp_ntz", timestamps=False)
    assert made.ddl == f"`t` bigint, `n` timestamp_ntz, {NOTE} binary"
    rows, _ = frames(made, [((1234, dt.datetime(2020, 1, 1)), 0)])
    assert (rows["t"], rows["n"]) == ([1_234_000], [dt.datetime(2020, 1, 1)])
    assert made.expressions == ["timestamp_micros(`t`) AS `t`", "`n`", NOTE]


def test_nan_in_values_is_not_null():
    rows, _ = frames(emitter("m map<string,array<double>>", timestamps=False), [(({"k": [float("nan"), None]},), 0)])
    assert str(rows["m"]) == "[{'k': [nan, None]}]"


def test_a_value_that_does_not_fit_names_operator_output_and_column():
    with pytest.raises(OutputDefinitionError, match="operator 'op', main output, column 'n': 'x'"):
        frames(emitter(), [(("a", "x"), 1)])
    with pytest.raises(OutputDefinitionError, match="operator 'op', side output 'late', column 'x'"):
        frames(emitter(late="x int"), late=[(("a",), 1)])


def test_main_outputs_that_come_in_parts_are_one_frame():
    made = emitter()
    rows = made.rows()
    for start in range(0, 6, 2):
        rows.take(emitted(((str(start), start), start), ((str(start + 1), start + 1), None)))
    result = BatchResult(emitted((("last", 9), 9)), {}, 5, {})
    main, _ = made.frames(result, rows, [], [MARK])
    assert list(main["n"]) == [0, 1, 2, 3, 4, 5, 9]
    assert main[TIMESTAMP].isna().tolist() == [False, True] * 3 + [False]


# Tables of vectorized functions ---------------------------------------------------------------------------------------


def emitted_tables(*tables):
    made = EmittedTables()
    made.tables += tables
    return made


def table_frames(emitter, *main, **side):
    return frames(emitter, main, [b"Sxyz"], emitting=emitted_tables, **side)


def test_tables_are_columns_with_their_timestamps():
    one = pa.table({"k": ["a", "b"], "n": [1, 2], TIMESTAMP: [10, None]})
    other = pa.table({"n": [3], "k": ["c"]})
    rows, notes = table_frames(emitter(), one, other)
    assert rows == {"k": ["a", "b", "c"], "n": [1, 2, 3], TIMESTAMP: [10, None, None], NOTE: [None] * 3}
    assert notes[NOTE] == [b"Sxyz", MARK.note()]


ONE_TABLE = pa.table({"k": ["a"], "n": [1], TIMESTAMP: [10]})
ONE_ROW = {"rows": lambda made: frames(made, [(("a", 1), 10)]), "tables": lambda made: table_frames(made, ONE_TABLE)}


@pytest.mark.parametrize("emit", ONE_ROW.values(), ids=ONE_ROW)
def test_timestamps_are_left_out_where_no_stage_follows_and_outputs_that_nobody_reads_are_dropped(emit):
    rows, notes = emit(emitter(timestamps=False))
    assert list(rows) == list(notes) == ["k", "n", NOTE]
    [notes] = emit(emitter(None, timestamps=False))
    assert notes[NOTE][-1] == MARK.note()
    assert [*notes] == [NOTE]


def test_instants_in_tables_travel_as_microseconds():
    moment = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
    times = pa.array([moment], pa.timestamp("us", "UTC"))
    rows, _ = table_frames(emitter("t timestamp", timestamps=False), pa.table({"t": times}))
    assert rows["t"] == [int(moment.timestamp()) * 1_000_000]


def test_large_tables_leave_in_several_frames(monkeypatch):
    monkeypatch.setattr("keyed.runtimes.spark.worker.wire._FRAME_ROWS", 3)
    *rows, _ = table_frames(
        emitter("x bigint", timestamps=False), *[pa.table({"x": [2 * i, 2 * i + 1]}) for i in range(4)]
    )
    assert [frame["x"] for frame in rows] == [[0, 1, 2], [3, 4, 5], [6, 7]]


def test_tables_of_side_outputs_get_the_columns_of_their_tag():
    made = emitter(late="x int, k string")
    table = pa.table({"k": ["a", "b"], "other": [1, 2], "x": [7, 8], TIMESTAMP: [1, 2]})
    [notes] = table_frames(made, late=[table, table.slice(1)], dropped=[table])
    _, chunk, _ = notes[NOTE]
    assert read_chunk(chunk).to_pydict() == {"x": [7, 8, 8], "k": ["a", "b", "b"]}


def test_a_column_that_does_not_fit_a_side_output_is_named():
    with pytest.raises(OutputDefinitionError, match=r"operator 'op', side output 'late'.*'x'"):
        table_frames(emitter(late="x int"), late=[pa.table({"x": ["one"]})])

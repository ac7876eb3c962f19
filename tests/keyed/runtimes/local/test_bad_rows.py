"""Bad rows of the local runtime: one list of what is bad, whatever the source, by row and by columns."""

import datetime as dt
import operator
import tempfile
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import keyed
from keyed import OutputTag
from keyed.errors import EncodingError, NullKeyError, RowError, TimestampError
from keyed.vectorized import VectorizedFunction
from tests.support.jobs import Sides, Tally, collect

BAD = OutputTag("bad")
NOW = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
#: Beyond a year from any day on which this is run.
FAR = 2**62
YEAR_10000 = 253402300800000000


class Late(VectorizedFunction):
    """Emits the keys of all rows that are not late."""

    def process_batch(self, table, ctx):
        ctx.emit(table.filter(pc.invert(ctx.late)).select(["k"]))


def run(source, key="k", timestamp="t", function=None, **options):
    """The keys that came through, the bad rows, and the count of these."""
    limit = {"max_ahead": options.pop("max_ahead")} if "max_ahead" in options else {}
    stream = keyed.stream(source, timestamp=timestamp, on_bad_row=BAD, **limit)
    output = "k string" if isinstance(function, VectorizedFunction) else None
    processed = stream.key_by(key).process(function or Tally(), output=output, name="op")
    (good, bad), result = collect(processed, processed.side_output(BAD), **options)
    assert result.metrics["op"]["rows_bad"] == len(bad)
    return [row[0] for row in good], bad


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        ("\ud800", RowError, "cannot be stored.*lone surrogates.*on_bad_row"),
        (NOW.replace(tzinfo=None), RowError, "cannot be stored.*time zone.*on_bad_row"),
        (("a", "\ud800"), RowError, "cannot be stored"),
        (Decimal("NaN"), RowError, "cannot be stored.*equals nothing.*on_bad_row"),
        (("a", "b\udfff"), RowError, "cannot be stored"),
        (None, NullKeyError, "is null"),
        (("a", None), NullKeyError, "is null"),
        *((Decimal(text), RowError, "equals nothing") for text in ("-NaN", "sNaN", "NaN123")),
        (("a", Decimal("NaN")), RowError, "equals nothing"),
    ],
)
def test_a_key_that_cannot_be_stored_is_bad_and_refused_without_a_side_output(key, error, message):
    # The first key is of the same type.
    first: Any = Decimal("Infinity") if isinstance(key, Decimal) else NOW if isinstance(key, dt.datetime) else "a"
    first = ("a", first) if isinstance(key, tuple) else first
    good, bad = run([{"n": 0}, {"n": 1}], key=lambda row: [first, key][row.n], timestamp=None)
    assert (good, [row.n for row in bad]) == ([first], [1])
    with pytest.raises(error, match=message):
        keyed.stream([1]).key_by(lambda value: key).process(Tally()).run()


def poisoned():
    """A table with a row for each kind of value that Python has not."""
    return pa.table(
        {
            "k": pa.array([b"a", b"b", b"c", b"caf\xe9", b"e"], pa.binary()).view(pa.string()),
            "t": pa.array(range(5), pa.int64()),
            "at": pa.array([0, YEAR_10000, 1, 2, 3], pa.int64()).view(pa.timestamp("us", "UTC")),
            "day": pa.array([0, 0, 10**7, 0, 0], pa.int32()).view(pa.date32()),
        }
    )


@pytest.mark.parametrize("function", [Tally(), Late()], ids=["rows", "columns"])
def test_rows_of_a_table_with_what_python_has_no_value_for_are_bad(function):
    good, bad = run(poisoned(), function=function)
    assert good == ["a", "e"]
    assert [row.k for row in bad] == ["b", "c", "caf\\xe9"]
    assert (bad[0].at, bad[1].day) == (YEAR_10000, 10**7)
    with pytest.raises(RowError, match=r"column 'at' holds text that is no UTF-8, or a time.*on_bad_row"):
        keyed.stream(poisoned(), timestamp="t").key_by("k").process(Tally()).run()


@pytest.mark.parametrize("make", [list, pa.Table.from_pylist], ids=["elements", "table"])
@pytest.mark.parametrize("function", [Tally(), Late()], ids=["rows", "columns"])
def test_a_timestamp_in_the_far_future_is_bad_and_moves_no_watermark(make, function):
    rows = make([{"k": "a", "t": 1}, {"k": "far", "t": FAR}, {"k": "b", "t": 2}])
    good, bad = run(rows, function=function, rows_per_batch=2)
    assert (sorted(good), [row.k for row in bad]) == (["a", "b"], ["far"])
    # With a clock of the user's there is nothing to go by, and everything may be allowed.
    for options in ({"processing_time": lambda: 0}, {"max_ahead": None}):
        good, bad = run(rows, function=function, rows_per_batch=3, **options)
        assert (sorted(good), bad) == (["a", "b", "far"], [])
    with pytest.raises(TimestampError, match=r"ahead of the processing time.*max_ahead="):
        keyed.stream(rows, timestamp="t").key_by("k").process(Tally()).run()


def test_the_limit_goes_by_the_clock_alone():
    soon = dt.datetime.now(dt.UTC) + dt.timedelta(days=2)
    rows = [{"k": "past", "t": dt.datetime(1, 1, 1, tzinfo=dt.UTC)}, {"k": "soon", "t": soon}]
    assert run(rows)[1] == []
    assert [row.k for row in run(rows, max_ahead=dt.timedelta(days=1))[1]] == ["soon"]
    with pytest.raises(keyed.errors.DefinitionError, match="max_ahead=-1"):
        keyed.stream([], max_ahead=-1)


def read_bad_rows(rows, folder, schema):
    """Return the rows in the Parquet sink of bad rows."""
    tag = OutputTag("bad", schema)
    output = keyed.stream(rows, timestamp="t", on_bad_row=tag).key_by("k").process(Tally())
    keyed.run(output.to(keyed.collect_sink()), output.side_output(tag).to(folder))
    return list(map(tuple, (row.values() for row in pa.parquet.read_table(folder).to_pylist())))


def test_a_parquet_sink_takes_bad_rows_of_any_form(tmp_path):
    new_year = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    rows = [{"k": None, "s": 5, "t": new_year}, {"k": None, "s": "\ud800x", "t": "never"}, {"k": "\ud800", "s": ["a"]}]
    fitted = [(None, "5", new_year, None), (None, "\\ud800x", None, None), (None, "['a']", None, None)]
    assert read_bad_rows(rows, tmp_path / "declared", "k bigint, s string, t timestamp, z int") == fitted
    shown = [(None, "5", "2024-01-01 00:00:00+00:00"), (None, "\\ud800x", "never"), ("\\ud800", "['a']", None)]
    assert read_bad_rows(rows, tmp_path / "open", None) == shown
    rows = [{"k": "a", "t": 1}, None, 7, circular(), {"t": 3}]
    found = read_bad_rows(rows, tmp_path / "others", "k string, t bigint")
    assert found == [(None, None), (None, None), ("a", 1), (None, 3)]


def test_a_lone_surrogate_anywhere_in_an_element_makes_a_bad_row():
    rows = [{"k": 1, "s": text} for text in ("a", "é", "\ud800", ("a", {"x": ["\udfff"]}))] + [{"k": 2, "s": None}]
    good, bad = run(rows, timestamp=None)
    assert good == [1, 1, 2]
    assert [value.s for value in bad] == ["\ud800", ("a", {"x": ["\udfff"]})]


# Whatever comes -------------------------------------------------------------------------------------------------------


def circular():
    """A row that holds itself."""
    row = {"k": "a", "t": 1}
    row["self"] = row
    return row


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.just("\ud800"),
    st.binary(max_size=3),
    st.decimals(),
    st.datetimes(),
    st.datetimes(timezones=st.just(dt.UTC)),
    st.uuids(),
    st.builds(object),
    st.just(str.upper),
)
KEYS = st.none() | st.integers() | st.text(max_size=3) | st.just("\ud800")
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(KEYS, inner, max_size=3),
)
NAMES = st.sampled_from(["k", "t", "v", "count"])
ROWS = st.one_of(
    st.fixed_dictionaries({"k": st.sampled_from("ab"), "t": st.integers(0, 9), "v": st.integers(0, 3)}),
    st.fixed_dictionaries({"k": VALUES, "t": VALUES, "v": VALUES}),
    st.dictionaries(NAMES, VALUES, max_size=4),
    VALUES,
    st.builds(circular),
)


class Silent(VectorizedFunction):
    """Takes rows and emits none."""

    def process_batch(self, table, ctx):
        pass


@pytest.mark.parametrize("function", [Tally(), Silent()], ids=["rows", "columns"])
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    rows=st.lists(ROWS, max_size=8),
    key=st.sampled_from(["k", "count", "callable"]),
    timestamp=st.sampled_from([None, "t", "callable"]),
    size=st.integers(1, 8),
    parallelism=st.integers(1, 2),
    restarts=st.booleans(),
)
def test_no_row_whatever_it_is_ends_a_job_that_diverts_bad_rows_and_none_is_lost(
    function, rows, key, timestamp, size, parallelism, restarts
):
    by: Any = "k" if key == "callable" and function.__class__ is Silent else key
    if by == "callable":
        by = operator.itemgetter("k")
    output = "k string" if function.__class__ is Silent else None
    time: Any = operator.attrgetter("t") if timestamp == "callable" else timestamp
    came, bad, metrics = 0, keyed.collect_sink(), {}
    with tempfile.TemporaryDirectory() as checkpoint:
        for end in [len(rows) // 2, len(rows)] if restarts else [len(rows)]:
            stream = keyed.stream(rows[:end], timestamp=time, on_bad_row=BAD).key_by(by)
            processed = stream.process(function, output=output, name="op", parallelism=parallelism)
            outputs = processed.to(lambda batch, number: None), processed.side_output(BAD).to(bad)
            metrics = keyed.run(*outputs, rows_per_batch=size, checkpoint=checkpoint, drain=False).metrics["op"]
            came = metrics.get("rows_in", 0) + metrics.get("rows_bad", 0)
            assert came == end
    assert metrics.get("rows_bad", 0) == len(bad.values)


ODD = [
    ({"t": 2}, "key: it cannot be read (DefinitionError), in "),
    ({"k": "b"}, "timestamp: it cannot be read (DefinitionError), in "),
    (None, "key: it cannot be read (DefinitionError), in "),
    (7, "key: it cannot be read (DefinitionError), in "),
    ({"k": 5, "t": 2}, "key: it is of type int, the keys before it are of type str"),
    ({"k": ["b"], "t": 2}, "key: "),
    (circular(), "value: "),
]


@pytest.mark.parametrize(("row", "reason"), ODD)
def test_rows_of_another_form_are_bad_and_the_log_has_the_reason_once(row, reason, caplog):
    good, bad = run([{"k": "a", "t": 1}, row, row, {"k": "a", "t": 3}])
    assert good == ["a", "a"]
    assert len(bad) == 2
    (said,) = [record.getMessage() for record in caplog.records if "a bad row" in record.getMessage()]
    assert reason in said
    assert "counted in rows_bad" in said


@pytest.mark.parametrize("rows", [[{"k": (0, 0)}], [{"k": [0]}], [{"k": (0, 0)}, {"k": [0, 0]}], [{"k": ()}]])
def test_nested_keys_of_a_vectorized_function_are_bad_and_refused_without_a_tag_for_them(rows):
    assert len(run(rows, timestamp=None, function=Silent())[1]) == len(rows)
    with pytest.raises(EncodingError, match=r"key column 'k' has type list.*a column of its own"):
        keyed.stream(rows).key_by("k").process(Silent(), output="k string").run()


def test_the_type_of_keys_is_that_of_the_state_after_a_restart(tmp_path):
    rows = [{"k": "a", "t": 1}, {"k": 5, "t": 2}, {"k": "b", "t": 3}]
    assert run(rows[:1], checkpoint=tmp_path, drain=False)[0] == ["a"]
    good, bad = run(rows, checkpoint=tmp_path, drain=False)
    assert (good, [row.k for row in bad[-1:]]) == (["b"], [5])


def test_of_two_inputs_each_diverts_its_own(tmp_path):
    """The keys of both are of one type: that of the first row."""
    first = keyed.stream([{"k": "a"}, {"k": 1}, None], on_bad_row=BAD).key_by("k")
    second = keyed.stream([{"k": 2}, {"k": "b"}, 3], on_bad_row=OutputTag("other")).key_by("k")
    joined = first.connect(second).process(Sides())
    (good, *bad), _ = collect(joined, joined.side_output(BAD), joined.side_output(OutputTag("other")))
    assert sorted((side, row.k) for side, row in good) == [(1, "a"), (2, "b")]
    assert [{getattr(row, "k", row) for row in rows} for rows in bad] == [{1, None}, {2, 3}]


def test_a_partition_is_heard_of_beside_rows_with_keys_of_another_type():
    watermark = keyed.bounded_out_of_orderness(0).with_partitions("p")
    rows = [{"k": "a", "t": 5, "p": 0}, {"k": 7, "t": 9, "p": 1}, {"k": "b", "t": 7, "p": 1}, {"k": "c", "t": 8}]
    stream = keyed.stream(rows, timestamp="t", watermark=watermark, on_bad_row=BAD).key_by("k")
    seen = []
    processed = stream.process(Tally())
    (_, bad), _ = collect(
        processed, processed.side_output(BAD), drain=False, on_progress=lambda progress: seen.append(progress.watermark)
    )
    assert [row.t for row in bad] == [8, 9]
    assert seen == [4]

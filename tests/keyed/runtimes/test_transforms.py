"""``map``, ``filter``, ``flat_map`` and ``map_batches`` before keys and on outputs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import attrs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import keyed
from keyed.errors import (
    DefinitionError,
    EncodingError,
    NullKeyError,
    OutputDefinitionError,
    RowError,
    UserFunctionError,
)
from keyed.vectorized import TIMESTAMP_COLUMN, VectorizedFunction
from tests.support.jobs import collect
from tests.support.steps import steps

LINES = [
    {"text": "to be or", "time": 1_000},
    {"text": "not to be", "time": 2_000},
    {"text": "", "time": 9_000},
    {"text": "be", "time": 3_000},
]
WORDS = "word string, length bigint"


class Seen(keyed.KeyedProcessFunction):
    """Emits each row with its key, its timestamp, and the number of rows of the key so far."""

    count = keyed.ValueState(int, default=0)

    def process_element(self, value: Any, ctx: keyed.Context) -> Iterator[tuple[Any, ...]]:
        self.count.update(self.count.value() + 1)
        yield ctx.get_current_key(), ctx.timestamp(), self.count.value(), ctx.timer_service().current_watermark()


class Word(NamedTuple):
    word: str
    length: int


def words(value: Any) -> Iterator[Word]:
    for word in value.text.split():
        yield Word(word, len(word))


def is_long(value: Any) -> bool:
    return value.length > 2


def shout(table: pa.Table) -> pa.Table:
    return table.set_column(0, "word", pc.utf8_upper(table.column("word")))


SEEN = "word string, at bigint, n bigint, watermark bigint"


def seen(source: Any) -> keyed.Output:
    stream = keyed.stream(source, timestamp="time").flat_map(words).map_batches(shout)
    stream = stream.map(lambda row: (row.word + "!", row.length + 1), output=WORDS).filter(is_long)
    return stream.key_by("word").process(Seen(), output=SEEN)


def test_rows_keep_the_timestamps_of_their_elements_and_dropped_ones_advance_the_watermark() -> None:
    rows = seen(LINES).run(rows_per_batch=3).values
    assert [tuple(row)[:3] for row in rows] == [
        ("TO!", 1000, 1),
        ("BE!", 1000, 1),
        ("OR!", 1000, 1),
        ("NOT!", 2000, 1),
        ("TO!", 2000, 2),
        ("BE!", 2000, 2),
        ("BE!", 3000, 3),
    ]
    # The empty line has no words, and its time makes the last line late.
    assert rows[-1].watermark == 8_999


@given(size=st.integers(1, 5), lines=st.lists(st.text("ab ", max_size=6), max_size=8))
def test_results_do_not_depend_on_batches(size: int, lines: list[str]) -> None:
    def run(rows_per_batch: int) -> list[Any]:
        source = [{"text": text, "time": number} for number, text in enumerate(lines)]
        output = seen(source)
        return [
            tuple(row)[:3] for row in output.map(lambda row: row, output=SEEN).run(rows_per_batch=rows_per_batch).values
        ]

    assert run(size) == run(1000)


@pytest.mark.parametrize("source", [LINES, pa.Table.from_pylist(LINES)], ids=["rows", "table"])
def test_a_table_gives_the_same_as_rows(source: Any) -> None:
    assert [tuple(row)[:3] for row in seen(source).run().values] == [tuple(row)[:3] for row in seen(LINES).run().values]


def test_the_next_stage_has_the_types() -> None:
    stream = keyed.stream(LINES, timestamp="time").flat_map(words)
    assert stream.key_by("word").columns == {"word": "string", "length": "bigint"}
    assert stream.filter(is_long).key_by("word").columns == {"word": "string", "length": "bigint"}
    assert stream.map(lambda row: (1,), output="n int").key_by("n").columns == {"n": "int"}
    assert stream.map(lambda row: (1,)).key_by("n").columns is None

    def length(row: Any) -> Word:
        return Word(row.word, 1)

    assert stream.map(length).key_by("word").columns == {"word": "string", "length": "bigint"}
    with pytest.raises(
        DefinitionError, match=r"key column 'text' is not in the result of flat_map\(words\): word, length"
    ):
        stream.key_by("text").process(Seen())


def test_outputs_of_operators() -> None:
    output = seen(LINES)
    found = output.filter(lambda row: row.n > 1).map(lambda row: {"w": row.word, "n": row.n}, output="w string, n int")
    assert found.schema is not None
    assert found.schema.columns == (("w", "string"), ("n", "int"))
    assert [tuple(row) for row in found.run().values] == [("TO!", 2), ("BE!", 2), ("BE!", 3)]
    by_count = found.key_by("n").process(Seen(), name="again", output="n int, at bigint, seen bigint, watermark bigint")
    rows = by_count.run().values
    assert [tuple(row)[:3] for row in rows] == [(2, 2000, 1), (2, 2000, 2), (3, 3000, 1)]


def test_one_source_feeds_readers_with_other_transformations() -> None:
    class Keep(keyed.KeyedProcessFunction):
        def process_element(self, value: Any, ctx: keyed.Context) -> Iterator[Any]:
            value["list"].append("changed")
            yield tuple(value["list"])

    def change(value: Any) -> Any:
        value["list"].append("mapped")
        return value

    stream = keyed.stream(iter([{"k": 1, "list": ["a"]}]))
    first = stream.map(change).key_by("k").process(Keep(), name="first")
    second = stream.filter(lambda value: value.k == 1).key_by("k").process(Keep(), name="second")
    assert collect(first, second)[0] == [[("a", "mapped", "changed")], [("a", "changed")]]


def test_united_and_connected_streams() -> None:
    long = keyed.stream([{"word": "aa", "length": 2}]).map(lambda row: (row.word, row.length), output=WORDS)
    both = long.union(keyed.stream(LINES).flat_map(words)).filter(lambda row: row.word != "to")
    rows = both.key_by("word").process(Keys(), output="word string").run().values
    assert sorted(row.word for row in rows) == ["aa", "be", "be", "be", "not", "or"]


class Keys(keyed.KeyedProcessFunction):
    def process_element(self, value: Any, ctx: keyed.Context) -> Iterator[Any]:
        yield (ctx.get_current_key(),)


def test_a_checkpoint_resumes_after_the_rows_of_the_source(tmp_path: Any) -> None:
    def run(count: int) -> list[Any]:
        stream = keyed.stream(LINES[:count]).flat_map(words)
        return [
            row.word
            for row in stream.key_by("word").process(Keys(), output="word string").run(checkpoint=tmp_path).values
        ]

    assert run(1) == ["to", "be", "or"]
    assert run(2) == ["not", "to", "be"]


def test_windows_and_vectorized_functions_read_them() -> None:
    class Lengths(VectorizedFunction):
        def process_batch(self, table: pa.Table, ctx: Any) -> None:
            ctx.emit(table.select(["word", "length"]))

    stream = keyed.stream(pa.Table.from_pylist(LINES), timestamp="time").flat_map(words)
    rows = stream.key_by("word").process(Lengths(), output=WORDS).filter(is_long).run().values
    assert [tuple(row) for row in rows] == [("not", 3)]


@attrs.frozen
class Case:
    build: Callable[[keyed.Stream], keyed.Stream]
    error: type[Exception]
    message: str
    key: str = "text"


def _text(value: Any) -> Any:
    return value.text


OUT, USER = OutputDefinitionError, UserFunctionError


def _raises(value: Any) -> Any:
    raise ZeroDivisionError(value.text)


CASES = {
    "map to None": Case(lambda s: s.map(lambda _: None), OUT, "returned None for Row(text='to be or'"),
    "map to a generator": Case(lambda s: s.map(lambda _: iter([1])), OUT, "use flat_map"),
    "filter by text": Case(lambda s: s.filter(_text), OUT, "return True or False"),
    "flat_map to text": Case(lambda s: s.flat_map(lambda row: row.text), OUT, "yield it"),
    "flat_map to a number": Case(lambda s: s.flat_map(lambda _: 1), OUT, "return a list of rows"),
    "flat_map yields None": Case(lambda s: s.flat_map(lambda _: [None]), OUT, "returned None"),
    "map of another type": Case(lambda s: s.map(lambda row: (row.text,), "n bigint"), OUT, "column 'n'", "n"),
    "an error": Case(lambda s: s.map(_raises), USER, "map(_raises) of Row(text='to be or', time=1000): Zero"),
    "no table": Case(lambda s: s.map_batches(lambda _: 1), OUT, "returned int; return a pyarrow.Table"),
    "no time": Case(lambda s: s.map_batches(lambda t: t.select(["text"])), OUT, TIMESTAMP_COLUMN),
    "other columns": Case(lambda s: s.map_batches(lambda t: t.drop_columns(["text"])), OUT, "without output="),
    "a lacking column": Case(lambda s: s.map_batches(lambda t: t, "b bigint"), OUT, "'b'", "b"),
    "a null key": Case(lambda s: s.map(lambda _: (None,), "text string"), NullKeyError, "key None"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_results_that_are_no_rows(case: Case) -> None:
    stream = case.build(keyed.stream(LINES, timestamp="time"))
    with pytest.raises(case.error, match=re.escape(case.message)) as caught:
        stream.key_by(case.key).process(Keys(), name="reader").run()
    assert "operator 'reader'" in str(caught.value)


def test_functions_are_checked_when_they_are_given() -> None:
    stream = keyed.stream(LINES)

    async def later(value: Any) -> Any:
        return value

    def missing(keyed_stream: Any) -> Any:
        return keyed_stream.map

    for call, message in [
        (lambda: stream.map(words), "the function is a generator; use flat_map"),
        (lambda: stream.filter(words), "the function is a generator; use flat_map"),  # type: ignore[arg-type]
        (lambda: stream.map(3), "give a function of one element"),  # type: ignore[arg-type]
        (lambda: stream.map(later), "asynchronous"),
        (lambda: stream.map(lambda one, two: one), "cannot be called with one element"),  # type: ignore[misc,arg-type]
        (lambda: missing(stream.key_by("text")), "it comes before the key: stream.map"),
    ]:
        with pytest.raises(DefinitionError, match=message):
            call()


def test_bad_rows() -> None:
    tag = keyed.OutputTag("bad")
    rows = [*LINES[:2], {"text": "x", "time": None}, {"text": None, "time": 4}]
    stream = keyed.stream(rows, timestamp="time", on_bad_row=tag)
    # A function gets no rows whose timestamps are bad, and a row that a filter leaves may have a bad key.
    output = stream.filter(lambda row: row.time > 0).key_by("text").process(Keys(), output="text string")
    (_, bad), result = collect(output, output.side_output(tag))
    assert [(row.text, row.time) for row in bad] == [("x", None), (None, 4)]
    assert result.metrics["Keys"]["rows_bad"] == 2


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    output = keyed.stream(LINES, timestamp="time").flat_map(words).filter(is_long).key_by("word").process(Keys())
    output.filter(is_long).key_by("word").process(Keys(), name="again").explain()
    text = capsys.readouterr().out
    assert "reads: source 1 → flat_map(words) → filter(is_long) by 'word'" in text
    assert "again: shuffled, because filter(is_long) is before its key" in text


class Rows(VectorizedFunction):
    """Emits what it gets, with the watermark that it sees."""

    def process_batch(self, table: pa.Table, ctx: Any) -> None:
        ctx.emit(table.append_column("watermark", pa.repeat(ctx.current_watermark(), table.num_rows)))


@pytest.mark.parametrize("timestamp", [None, "at"])
def test_functions_of_tables_before_a_vectorized_function_make_no_rows(timestamp: str | None) -> None:
    def output(rows: int, *, by_row: bool = False) -> keyed.Output:
        table = pa.table({"k": [i % 3 for i in range(rows)], "at": [rows - i for i in range(rows)]})
        stream = keyed.stream(table, timestamp=timestamp)
        if by_row:
            stream = stream.filter(lambda row: row.at % 2 == 0)
        else:
            stream = stream.map_batches(lambda t: t.filter(pc.equal(pc.bit_wise_and(t["at"], 1), pa.scalar(0))))
        # Nothing is left of a batch, and of later ones only a part.
        stream = stream.map_batches(lambda t: t.slice(0, 0 if pc.max(t["at"]).as_py() == rows else None))
        columns = "k bigint, at bigint, watermark bigint"
        return stream.key_by("k").process(Rows(), columns)

    def run(rows: int, *, by_row: bool = False, batch: int = 10) -> list[Any]:
        return sorted(tuple(row) for row in output(rows, by_row=by_row).run(rows_per_batch=batch).values)

    assert run(40) == run(40, by_row=True) != []
    few, many = (steps(lambda rows=rows: run(rows, batch=rows)) for rows in (100, 3_000))  # type: ignore[misc]
    assert many < 2 * few


@pytest.mark.parametrize("column", ["k", "at"])
def test_nulls_behind_functions_of_tables_are_bad_rows(column: str) -> None:
    rows: dict[str, list[int | None]] = {"k": [1, 2], "at": [1, 2]}
    rows[column][1] = None
    stream = keyed.stream(pa.table(rows), timestamp="at").map_batches(lambda table: table)
    with pytest.raises((NullKeyError, RowError), match=column):
        stream.key_by("k").process(Rows(), "k bigint, at bigint, watermark bigint").run()


def _naive(table: pa.Table) -> pa.Table:
    return pa.table({"at": pa.array([0] * table.num_rows, pa.timestamp("us"))})


def test_spark_gives_the_same(spark: Any, tmp_path: Any) -> None:
    tag = keyed.OutputTag("bad")
    rows: list[Any] = [*LINES, {"text": "bad", "time": None}]
    frame = spark.createDataFrame([(row["text"], row["time"]) for row in rows], "text string, time bigint")

    def run(source: Any) -> list[Any]:
        stream = keyed.stream(source, timestamp="time", on_bad_row=tag)
        short = (
            stream.filter(lambda row: len(row.text) < 6)
            .key_by("text")
            .process(Seen(), "text string, a bigint, b bigint, c bigint", name="short")
        )
        stream = stream.flat_map(words).map_batches(shout)
        first = stream.map(lambda row: (row.word + "!", row.length + 1), output=WORDS).filter(is_long)
        counted = first.key_by("word").process(Seen(), output=SEEN)
        again = counted.filter(lambda row: row.n < 3).key_by("n")
        second = again.process(Seen(), "n bigint, at bigint, seen bigint, watermark bigint", name="second")
        numbers = counted.map(lambda row: (row.n,), output="n int")
        values, _ = collect(numbers, second, short, counted.side_output(tag))
        return [sorted(tuple(row)[:3] for row in rows) for rows in values]

    assert run(frame.repartition(2)) == run(rows)
    untyped = keyed.stream(frame).map(lambda row: row).key_by("text").process(Keys(), output="text string")
    with pytest.raises(OutputDefinitionError, match="its result has no type, which Spark needs"):
        untyped.run()
    failing = keyed.stream(frame).map(_raises, "text string").key_by("text").process(Keys(), output="text string")
    with pytest.raises(UserFunctionError, match=r"operator 'Keys', map\(_raises\) of Row"):
        failing.run()
    for source in (frame, pa.Table.from_pylist(LINES)):
        naive = keyed.stream(source).map_batches(_naive, "at timestamp_ntz").key_by("at")
        with pytest.raises(EncodingError, match=r"(cannot be a key.*time zone|without a time zone.*cannot be keys)"):
            naive.process(Keys(), output="text string").run()
    folder = tmp_path / "in"
    frame.where("time is not null").coalesce(1).write.parquet(str(folder))
    stream = keyed.stream(spark.readStream.schema(frame.schema).parquet(str(folder)), timestamp="time").flat_map(words)
    output = stream.key_by("word").process(Seen(), output=SEEN)
    rows = output.filter(lambda row: row.n > 1).run(checkpoint=tmp_path / "checkpoint").values
    assert sorted(tuple(row)[:3] for row in rows) == [("be", 2000, 2), ("be", 3000, 3), ("to", 2000, 2)]


class Passed(VectorizedFunction):
    """Emits the rows that it gets, and keeps the types of their columns."""

    seen: list[pa.Schema] = []  # noqa: RUF012 - of the test that runs

    def process_batch(self, table: pa.Table, ctx: Any) -> None:
        self.seen.append(table.schema)
        ctx.emit(table)


def test_outputs_of_vectorized_functions_stay_columns_through_functions_of_tables(tmp_path):
    given = []

    def last(table: pa.Table) -> pa.Table:
        given.append(table.schema)
        return table.slice(table.num_rows - 1)

    rows = pa.table({"k": ["a", "a"], "n": pa.array([1, 2], pa.int32()), "t": pa.nulls(2, pa.string()), "at": [5, 6]})
    columns = "k string, n int, t string"
    Passed.seen.clear()
    first = keyed.stream(rows, timestamp="at").key_by("k").process(Passed(), columns, name="first")
    second = first.map_batches(last).key_by("k").process(Passed(), columns, name="second")
    values, tables = keyed.collect_sink(), str(tmp_path / "out")
    keyed.run(second.map_batches(last).to(values), first.map_batches(last).to(tables), drain=False)
    # A column without values has its type, which rows would not have told.
    assert {each.field("t").type for each in (*Passed.seen, *given)} == {pa.string()}
    assert [each.names[-1] for each in given].count(TIMESTAMP_COLUMN) == 1
    assert [tuple(row) for row in values.values] == [("a", 2, None)]
    assert pq.read_table(tmp_path / "out").to_pylist() == [{"k": "a", "n": 2, "t": None}]

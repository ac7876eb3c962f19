"""Vectorized functions from every source, beside row functions, with checkpoints."""

from __future__ import annotations

from typing import Any

import attrs
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import keyed
from keyed import OutputTag, bounded_out_of_orderness
from keyed.errors import DefinitionError, NullKeyError, OutputDefinitionError, TimestampError, UserFunctionError
from keyed.job.functions import combines
from keyed.vectorized import TIMESTAMP_COLUMN
from tests.keyed.runtimes.spark.functions import (
    BIG,
    EVERY,
    Best,
    BestColumns,
    CombinedColumns,
    CountColumns,
    CountInWindows,
    best,
    files_source,
    random_rows,
    write_file,
)
from tests.support.jobs import collect

COLUMNS = "user string, start bigint, n bigint, total bigint"


class Windows(keyed.vectorized.VectorizedFunction):
    """Count and sum in windows of 10 ms."""

    sums = keyed.vectorized.TableState(COLUMNS, key=("user", "start"))

    def combine(self, table):
        start = pc.multiply(pc.divide(table[TIMESTAMP_COLUMN], 10), 10)
        rows = pa.table({"user": table["user"], "start": start, "n": table["amount"], "total": table["amount"]})
        return (
            rows.group_by(["user", "start"])
            .aggregate([("n", "count"), ("total", "sum")])
            .rename_columns(["user", "start", "n", "total"])
        )

    def process_batch(self, table, ctx):
        self.sums.merge(table, {"n": "sum", "total": "sum"})

    def on_watermark(self, watermark, ctx):
        done = self.sums.take(("start", "<=", max(watermark - 9, keyed.MIN_TIMESTAMP)))
        ctx.emit(done.append_column(TIMESTAMP_COLUMN, pc.add(done["start"], 9)))
        ctx.output("closed", done.select(["user"]))


class Running(keyed.KeyedProcessFunction):
    """A running total a user, by rows."""

    total = keyed.ValueState(int, 0)

    def process_element(self, value, ctx):
        self.total.update(self.total.value() + value.total)
        yield value.user, ctx.timestamp(), self.total.value()


class Count(keyed.vectorized.VectorizedFunction):
    """Rows with and without a timestamp, a user."""

    def process_batch(self, table, ctx):
        timed = pc.cast(pc.is_valid(table[TIMESTAMP_COLUMN]), pa.int64())
        ctx.emit(pa.table({"user": table["user"], "timed": timed}))


@attrs.frozen
class Event:
    user: str
    at: int
    amount: int


EVENTS = [Event(f"u{i % 3}", i * 7 % 90, i) for i in range(100)]
DICTS = [attrs.asdict(event) for event in EVENTS]
TABLE = pa.Table.from_pylist(DICTS)
SOURCES = {"dicts": DICTS, "attrs": EVENTS, "pandas": pd.DataFrame(DICTS), "arrow": TABLE}


def windows(source: Any, **options: Any) -> keyed.Output:
    return (
        keyed.stream(source, timestamp="at", watermark=keyed.bounded_out_of_orderness(milliseconds=100))
        .key_by("user")
        .process(Windows(), output=COLUMNS, **options)
    )


def expected() -> list[tuple[Any, ...]]:
    sums: dict[tuple[str, int], tuple[int, int]] = {}
    for event in EVENTS:
        key = (event.user, event.at // 10 * 10)
        n, total = sums.get(key, (0, 0))
        sums[key] = (n + 1, total + event.amount)
    return sorted((*key, *value) for key, value in sums.items())


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("store", ["memory", "rocksdb"])
def test_every_source_gives_the_same(source: str, parallelism: int, store: Any) -> None:
    output = windows(SOURCES[source], parallelism=parallelism, store=store)
    for rows_per_batch in (7, 1000):
        result = output.run(rows_per_batch=rows_per_batch)
        assert sorted(result.values) == expected()
        assert result.metrics["Windows"]["live_entries"] == 0
        assert result.values[0]._fields == ("user", "start", "n", "total")


def test_stages_of_both_kinds_follow_each_other() -> None:
    first = windows(TABLE, parallelism=2)
    rows = first.key_by("user").process(Running(), output="user string, at bigint, total bigint", parallelism=3)
    last = rows.key_by("user").process(Count(), output="user string, timed bigint")
    closing = first.side_output(OutputTag("closed", "user string"))
    (collected, closed, counted), _ = collect(rows, closing, last, rows_per_batch=13)
    totals: dict[str, int] = {}
    running = []
    for user, start, _, total in sorted(expected(), key=lambda window: window[1]):
        totals[user] = totals.get(user, 0) + total
        running.append((user, start + 9, totals[user]))
    assert sorted(collected) == sorted(running)
    assert len(closed) == len(expected())
    assert sorted(set(counted)) == [("u0", 1), ("u1", 1), ("u2", 1)]


def test_a_run_goes_on_from_its_checkpoint(tmp_path: Any) -> None:
    seen: list[Any] = []
    for end in (30, 55, 100):
        result = windows(TABLE.slice(0, end), store="rocksdb", parallelism=2).run(
            checkpoint=tmp_path / "checkpoint", rows_per_batch=10, drain=end == 100
        )
        seen += result.values
    assert sorted(seen) == expected()


def test_tables_are_written_as_they_are(tmp_path: Any) -> None:
    windows(TABLE).run(keyed.parquet_sink(str(tmp_path / "out")), rows_per_batch=30)
    table = pq.read_table(tmp_path / "out")
    assert sorted(map(tuple, (row.values() for row in table.to_pylist()))) == expected()


def test_an_output_without_rows_is_a_table_with_columns(tmp_path: Any) -> None:
    for delay, count in ((10**9, 0), (1, 3)):
        stream = keyed.stream(TABLE, timestamp="at", watermark=keyed.bounded_out_of_orderness(milliseconds=delay))
        for function, name in ((Windows(), "columns"), (Silent(), "rows")):
            folder = tmp_path / name / str(count)
            stream.key_by("user").process(function, output=COLUMNS).run(str(folder), rows_per_batch=10, drain=False)
            table = pq.read_table(folder)
            assert table.column_names == ["user", "start", "n", "total"]
            assert bool(table.num_rows) == (count > 0 and name == "columns")


class Silent(keyed.KeyedProcessFunction):
    def process_element(self, value, ctx):
        pass


def test_bad_rows_are_refused_or_diverted() -> None:
    bad = pa.concat_tables(
        [TABLE, pa.table({"user": [None, "u1"], "at": pa.array([1, None], pa.int64()), "amount": [1, 1]})]
    )
    with pytest.raises(NullKeyError, match="is null"):
        windows(bad).run()
    with pytest.raises(TimestampError, match="no usable timestamp"):
        windows(bad.slice(101)).run()
    tag = OutputTag("bad")
    output = keyed.stream(bad, timestamp="at", on_bad_row=tag).key_by("user").process(Windows(), output=COLUMNS)
    (_, diverted), result = collect(output, output.side_output(tag))
    assert diverted == [(None, 1, 1), ("u1", None, 1)]
    assert result.metrics["Windows"]["rows_bad"] == 2


def test_what_is_wrong_is_said_before_or_at_the_first_row() -> None:
    with pytest.raises(DefinitionError, match="key_by needs the names of columns"):
        keyed.stream(TABLE).key_by(lambda row: row.user).process(Windows())
    with pytest.raises(DefinitionError, match="'user' is not in"):
        keyed.stream([{"x": 1}]).key_by("user").process(Count()).run()
    with pytest.raises(OutputDefinitionError, match="tuple has no columns"):
        keyed.stream(TABLE).key_by("user").process(Tuples()).key_by("user").process(Count()).run()


class Tuples(keyed.KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value.user, 1


# On Spark ------------------------------------------------------------------------------------------------------------


def rows_of(number, size):
    return random_rows(number, size, number * size, 60)


def outcome(source, function, then, **options):
    """All outputs of the chain, sorted, and its counters."""
    windows, ranked = best(source, function, then)
    sides = [windows.side_output(EVERY)] + ([] if combines(function) else [windows.side_output(BIG)])
    collected, result = collect(windows, ranked, *sides, drain=True, **options)
    counters = ("rows_in", "rows_out", "rows_late", "rows_side_output", "rows_dropped", "live_entries", "live_bytes")
    metrics = [{name: result.metrics[stage].get(name, 0) for name in counters} for stage in ("windows", "best")]
    return [sorted(map(tuple, rows)) for rows in collected], metrics


def files(folder, count, size):
    """Write batches as files, and give all rows as elements."""
    written = [rows_of(number, size) for number in range(count)]
    for number, rows in enumerate(written):
        write_file(folder, number, rows)
    return [{"k": k, "t": t, "v": v} for rows in written for k, t, v in rows]


LATENESS = bounded_out_of_orderness(milliseconds=30)


@pytest.mark.long
@pytest.mark.parametrize(("function", "then"), [(CountColumns, BestColumns), (CountInWindows, BestColumns)])
def test_chains_of_row_and_vectorized_functions_do_what_rows_do(spark, tmp_path, function, then):
    elements = files(tmp_path / "in", 3, 200)
    local = keyed.stream(elements, timestamp="t", watermark=LATENESS)
    rows, _ = outcome(local, CountInWindows(), Best(), rows_per_batch=200)
    assert all(rows)
    expected, counters = outcome(local, function(), then(), rows_per_batch=200)
    assert expected == rows
    source = files_source(spark, tmp_path / "in", watermark=LATENESS)
    found = outcome(source, function(), then(), checkpoint=tmp_path / "ck")
    assert found == (expected, counters)


@pytest.mark.long
def test_combining_before_the_shuffle_changes_no_result(spark, tmp_path):
    elements = files(tmp_path / "in", 3, 200)
    local = keyed.stream(elements, timestamp="t", watermark=LATENESS)
    plain, plain_counters = outcome(local, CountColumns(), Best(), rows_per_batch=200)
    source = files_source(spark, tmp_path / "in", watermark=LATENESS)
    combined, counters = outcome(source, CombinedColumns(), Best(), checkpoint=tmp_path / "ck")
    assert combined == plain[:3]
    assert counters[0]["rows_dropped"] == len(plain[3])
    assert counters[0]["rows_in"] == plain_counters[0]["rows_in"] == 600
    assert (counters[1], counters[0]["live_entries"]) == (plain_counters[1], 0)


@pytest.mark.smoke
def test_an_error_in_a_vectorized_function_comes_back_typed(spark):
    frame = spark.createDataFrame([("a", 1, 1)], "k string, t bigint, v bigint")
    windows = keyed.stream(frame, timestamp="t").key_by("k").process(Wrong(), "k string", name="wrong")
    with pytest.raises(UserFunctionError, match=r"operator 'wrong', key group \d, process_batch of 1 rows: KeyError"):
        windows.run()


class Wrong(CountColumns):
    def process_batch(self, table, ctx):
        table["nothing"]

"""The table of a window operator, in every kind of query and on every path, against brute force."""

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import attrs
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import keyed
from keyed import windows as w
from keyed.tables import open_tables
from keyed.testing import KeyedTestHarness
from keyed.testing.memory_changelog import MemoryChangelog
from keyed.windows.aggregates import ColumnAggregate
from tests.support.window_operators import window_columns, window_rows
from tests.windows.oracle import Oracle, Program
from tests.windows.programs import any_program, assigner_of, operator_of, random_program

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: `TopK` shows every element.
AGGREGATES = {"values": w.TopK(100, "value"), "mean": w.Mean("value")}
COLUMNS = {"key": "string", "value": "bigint", "at": "bigint"}
PATHS = ("packed", "general", "elements", "evicted", "columns")


class Elements(w.ProcessWindowFunction):
    def process(self, key, context, elements):
        return ()


def operator_on(path, program):
    """The operator of a program on a path, and what reads the table."""
    assigner, late = assigner_of(program), program.lateness
    if path == "columns":
        return window_columns(assigner=assigner, aggregate=AGGREGATES, columns=COLUMNS, allowed_lateness_ms=late)
    if path == "elements":
        return window_rows(assigner=assigner, process=Elements(), allowed_lateness_ms=late)
    if path == "evicted":
        evictor = w.CountEvictor.of(1000)
        aggregate = {"n": w.Mean(lambda row: row[1]), "values": w.TopK(100, lambda row: row[1])}
        return window_rows(assigner=assigner, aggregate=aggregate, evictor=evictor, allowed_lateness_ms=late)
    return operator_of(program, keeps=path)


def values_of(path, row):
    """Return the values of a row."""
    if path == "elements":
        return sorted(value for _, value in row["elements"])
    values = sorted(row["values"])
    if "mean" in row:
        assert row["mean"] == sum(values) / len(values)
    return values


def time(milliseconds):
    return EPOCH + timedelta(milliseconds=milliseconds)


def shown(path, entries):
    """Entries as {(key, window): values}."""
    return {(entry.key, entry.entry and tuple(entry.entry)): values_of(path, entry.value) for entry in entries}


def held(oracle):
    """Return the expected rows, computed from the whole history."""
    return {
        (key, tuple(map(time, window)) if window else None): sorted(pane.values)
        for (key, *window), pane in sorted(oracle.panes.items())
        if pane.values
    }


def check(program: Program, path: str, folder, rng) -> None:
    """Run a program, and compare the table with the oracle after each step, and in the end as of each step."""
    oracle, log = Oracle(program), MemoryChangelog()
    operator = operator_on(path, program)
    columns = path == "columns"
    key = "key" if columns else lambda row: row[0]
    past: dict[int, Any] = {}
    pushed: dict[Any, Any] = {}
    changes = None
    with (
        KeyedTestHarness(operator, key=key, changelog=log, parallelism=rng.choice((1, 3))) as harness,
        open_tables(log, folder, types={"function": operator}, history=timedelta(days=100_000)) as tables,
    ):
        for step in program.steps:
            match step:
                case ("row", key, at, value):
                    oracle.row(key, at, value)
                    if columns:
                        harness.process_batch(pa.table({"key": [key], "value": [value], "at": [at]}), "at")
                    else:
                        harness.process((key, value), at)
                case ("watermark", at):
                    oracle.advance(at)
                    harness.advance_watermark(at)
                case ("clock", at):
                    oracle.move_clock(at)
                    harness.advance_processing_time(at)
            tables.poll()
            if tables.batch < 0:
                continue
            (table,) = tables.values()
            past[tables.batch] = held(oracle)
            assert shown(path, table) == past[tables.batch], step
            changes = changes or table.subscribe(after="beginning")
            while batch := changes.take(0):
                for change in batch:
                    at = change.key, change.entry
                    assert pushed.get(at) == change.old
                    pushed[at] = change.new
                    if change.removed:
                        del pushed[at]
            assert pushed == {(entry.key, entry.entry): entry.value for entry in table}
        if not past:
            return
        assert changes is not None
        assert not changes.resets
        compare_past(table, path, past, rng)
        rows = tables.sql(f'select * from "{table.name}"').to_pylist()
        bounds = [] if program.kind in ("global", "count", "sliding-count") else ["window_start", "window_end"]
        assert all(list(row)[: 1 + len(bounds)] == ["key", *bounds] for row in rows)
        found = {(row["key"], tuple(row[bound] for bound in bounds) or None) for row in rows}
        assert found == past[tables.batch].keys()


def compare_past(table, path, past, rng):
    """Compare what the table was with what it gives of it, by batch, range, page and window."""
    for batch, was in rng.sample([*past.items()], min(3, len(past))):
        assert shown(path, table.scan(as_of=batch)) == was
        assert shown(path, table.scan(as_of=batch, reverse=True)) == was
        if any(window for _, window in was):
            first, end = sorted(rng.choices([window[0] for _, window in was], k=2))
            within = {at: values for at, values in was.items() if first <= at[1][0] < end}
            for reverse in (False, True):
                assert shown(path, table.scan(as_of=batch, windows=(first, end), reverse=reverse)) == within
            of_b = {at: values for at, values in within.items() if at[0] == "b"}
            assert shown(path, table.scan(as_of=batch, key="b", windows=(first, end))) == of_b
    pages, after = [], None
    while True:
        page = table.scan(limit=1, after=after)
        pages += page
        after = page.token
        if after is None:
            break
    assert pages == list(table)
    windows = sorted({at for was in past.values() for at in was}, key=repr)
    for key, window in rng.sample(windows, min(5, len(windows))):
        entry = () if window is None else (window,)
        versions = [was.get((key, window)) for was in past.values()]
        answers = [table.get(key, *entry, as_of=batch) for batch in past]
        assert [row and values_of(path, row) for row in answers] == versions
        found = table.history(key, *entry)
        changed = [
            (batch, new) for batch, (old, new) in zip(past, pairwise([None, *versions]), strict=True) if old != new
        ]
        shown_versions = [(each.batch, None if each.removed else values_of(path, each.value)) for each in found]
        # A batch may write the same values in another order.
        assert [pair for pair, older in pairwise([*shown_versions, (0, None)]) if pair[1] != older[1]] == changed[::-1]


def program_for(path, rng):
    program = any_program(rng) if path in ("packed", "general") else random_program(rng)
    steps = tuple(step for step in program.steps if step[0] != "crash")
    trigger = program.trigger if path in ("packed", "general") else "default"
    return attrs.evolve(program, steps=steps, trigger=trigger)


@pytest.mark.parametrize("path", PATHS)
def test_the_table_is_what_brute_force_gives(path, tmp_path):
    rng = random.Random(5)
    for number in range(2):
        check(program_for(path, rng), path, tmp_path / str(number), rng)


@pytest.mark.long
@settings(deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from(PATHS))
def test_tables_of_all_programs_are_what_brute_force_gives(tmp_path_factory, rng, path):
    check(program_for(path, rng), path, tmp_path_factory.mktemp("tables"), rng)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["row", "vectorized"])
def test_on_spark_the_table_is_what_brute_force_gives(spark, tmp_path, path):
    rng = random.Random(3)
    rows = sorted((rng.randint(0, 200), rng.choice("abc"), rng.randint(0, 9)) for _ in range(120))
    source = spark.createDataFrame([(key, at, value) for at, key, value in rows], "key string, at bigint, value bigint")
    source.coalesce(1).write.parquet(str(tmp_path / "rows"))
    stream = spark.readStream.schema(source.schema).parquet(str(tmp_path / "rows"))
    windowed = (
        keyed.stream(stream, timestamp="at", watermark=keyed.bounded_out_of_orderness(milliseconds=30))
        .key_by("key")
        .window(w.HoppingEventTimeWindows.of(40, 10))
        .allowed_lateness(15)
        .path(path)
    )
    output = windowed.aggregate({"n": w.Count(), "mean": w.Mean("value")}, name="hops", parallelism=2)
    kept = {"checkpoint": str(tmp_path / "checkpoint"), "tables": str(tmp_path / "tables")}
    watermark = rows[-1][0] - 31
    wanted = {}
    for start in range(-40, 210, 10):
        for key in "abc":
            inside = [value for at, k, value in rows if k == key and start <= at < start + 40]
            if inside and start + 39 + 15 > watermark:
                wanted[key, (time(start), time(start + 40))] = {"n": len(inside), "mean": sum(inside) / len(inside)}
    with output.run(**kept, drain=False).tables as tables:  # type: ignore[arg-type]
        assert [*tables] == ["hops"]
        assert {(entry.key, entry.entry): entry.value for entry in tables["hops"]} == wanted
        rows_of_sql = tables.sql("select * from hops").to_pylist()
    assert {(row["key"], (row["window_start"], row["window_end"])) for row in rows_of_sql} == wanted.keys()


def test_tables_of_other_processes_know_every_aggregate():
    """One that `window_table` does not name has its accumulator in place of its result there."""
    public = [getattr(keyed.windows, name) for name in keyed.windows.__all__]
    aggregates = {each for each in public if isinstance(each, type) and issubclass(each, ColumnAggregate)}
    assert aggregates == set(w.window_table._BUILT_IN.values())


class Fired(w.ProcessWindowFunction):
    total = keyed.ValueState(int, default=0)

    def process(self, key, context, elements):
        total = context.global_state(self.total)
        total.update(total.value() + len(elements))
        yield key, total.value()


@pytest.mark.parametrize(
    ("assigner", "size"), [(w.HoppingEventTimeWindows.of(20, 10), 20), (w.EventTimeSessionWindows.with_gap(3), 3)]
)
def test_users_see_the_names_that_they_gave(assigner, size, tmp_path):
    log = keyed.DirectoryChangelog(tmp_path / "log")
    rows: list[dict[str, Any]] = [{"key": "a", "at": at} for at in range(0, 50, 5)]
    watermark = keyed.bounded_out_of_orderness(milliseconds=30)
    windows = keyed.stream(rows, timestamp="at", watermark=watermark).key_by("key").window(assigner)
    output = windows.process(Fired(), output="key string, total bigint", name="fired", changelog=log)
    output.run(checkpoint=tmp_path / "checkpoint", drain=False)
    with open_tables(log, tmp_path / "copy") as tables:
        tables.wait_for(0, 300)
        assert sorted(tables) == ["fired", "total"]
        total = tables["total"].get("a")
        assert total == tables.sql("select value from total").to_pydict()["value"][0] > 0
    changes = list(keyed.recovery.read_changelog(log))
    assert {change.state for change in changes} == {"fired", "total"}
    assert [c.value for c in keyed.recovery.read_changelog(log, "total", value_type=int)][-1] == total
    with pytest.raises(keyed.errors.ChangelogError, match=r"no state 'process_total' .* its states are: fired, total"):
        list(keyed.recovery.read_changelog(log, "process_total"))
    with KeyedTestHarness(output.operators["fired"], key="key", watermark=watermark) as harness:
        for row in rows:
            harness.process(row, row["at"])
        assert harness.state_names == ["total", "windows"]
        assert harness.state("total")["a"] == total
        assert {end - start for start, end in harness.state("windows")["a"]} == {size}
        assert ", total {'a': " in repr(harness)
        assert ", windows {'a': {(" in repr(harness)
        assert not any(stored in repr(harness) for stored in ("window_contents", "process_total", "merging_windows"))

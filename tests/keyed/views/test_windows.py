"""Windows asked by key and time range, in every way that windowed state is kept."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

import keyed
import windows as w
from keyed.cli.main import main
from keyed.testing import KeyedTestHarness
from keyed.views import open_tables
from keyed.views.json_values import windows_of

ROWS = [{"k": key, "t": time, "n": 1} for time in range(0, 100, 5) for key in ("a", "b")]


class InNamespaces(keyed.KeyedProcessFunction):
    """Counts in windows of ten milliseconds, as functions of windows do it."""

    n = keyed.ValueState(int, default=0)

    def process_element(self, value, ctx):
        start = value["t"] // 10 * 10
        if start >= 60:
            n = self.n.namespace((start, start + 10))
            n.update(n.value() + 1)
        return ()


class InMap(keyed.KeyedProcessFunction):
    """Counts in a map by the start of the window."""

    n = keyed.MapState(int, int)

    def process_element(self, value, ctx):
        start = value["t"] // 10 * 10
        if start >= 60:
            self.n.put(start, (self.n.get(start) or 0) + 1)
        return ()


@pytest.fixture(params=["namespaces", "map", "vectorized", "row", "sessions"])
def tables(request, tmp_path):
    """Open windows of ten milliseconds: those from 60 on, as the watermark is at 59."""
    log = keyed.DirectoryChangelog(tmp_path / "log")
    data: Any = pa.Table.from_pylist(ROWS) if request.param == "vectorized" else ROWS
    late = 35
    if request.param == "sessions":
        data, late = [row for row in ROWS if row["t"] % 10 == 0], 30
    stream = keyed.stream(data, timestamp="t", watermark=keyed.bounded_out_of_orderness(milliseconds=late)).key_by("k")
    if request.param in ("vectorized", "row", "sessions"):
        sessions, tumbling = w.EventTimeSessionWindows.with_gap(9), w.TumblingEventTimeWindows.of(10)
        windowed = stream.window(sessions if request.param == "sessions" else tumbling).path(
            "vectorized" if request.param == "vectorized" else "row"
        )
        output = windowed.aggregate({"n": w.Sum("n")}, output="k string, window_start bigint, n bigint", changelog=log)
    else:
        output = stream.process(InNamespaces() if request.param == "namespaces" else InMap(), changelog=log)
    output.run(drain=False)
    with open_tables(log, tmp_path / "tables") as tables:
        tables.poll()
        yield tables


def starts(found: Any) -> list[tuple[str, int]]:
    result = []
    for entry in found:
        window = entry.entry if entry.namespace is None else entry.namespace
        result.append((entry.key, window[0] if isinstance(window, tuple) else window))
    return result


def test_windows_of_a_key_and_of_all_keys_by_time(tables):
    (table,) = (found for found in tables.values() if len(found) == 8)
    assert starts(table.scan(key="a")) == [("a", time) for time in (60, 70, 80, 90)]
    assert starts(table.scan(key="a", windows=(70, 90))) == [("a", 70), ("a", 80)]
    moments = datetime.fromtimestamp(0.065, UTC), datetime.fromtimestamp(0.080, UTC)
    assert starts(table.scan(windows=moments)) == [("a", 70), ("b", 70)]
    assert starts(table.scan(key="b", windows=(0, 71), reverse=True)) == [("b", 70), ("b", 60)]
    assert starts(table.scan(key="nobody", windows=(0, 100))) == []
    page = table.scan(key="a", windows=(60, 100), limit=3)
    assert starts(page) == [("a", 60), ("a", 70), ("a", 80)]
    assert starts(table.scan(key="a", windows=(60, 100), after=page.token)) == [("a", 90)]


def test_only_the_windows_that_are_asked_for_are_read(tables, monkeypatch):
    (table,) = (found for found in tables.values() if len(found) == 8)
    store = next(iter(tables._operators.values())).source.held.store
    scan, read = store.scan, []

    def counted(*arguments, **options):
        for entry in scan(*arguments, **options):
            read.append(entry)
            yield entry

    monkeypatch.setattr(store, "scan", counted)
    assert len(list(table.scan(key="a", windows=(80, 100)))) == 2
    # One shows how the windows are kept; those of a key may be one list.
    assert len(read) <= 3


def test_what_is_no_window_or_time_is_refused(tables, tmp_path, capsys):
    class Plain(keyed.KeyedProcessFunction):
        last = keyed.ValueState(int)

        def process_element(self, value, ctx):
            self.last.update(value)
            return ()

    log = keyed.DirectoryChangelog(tmp_path / "plain")
    keyed.stream([1]).key_by(lambda value: "a").process(Plain(), changelog=log).run()
    with open_tables(log, tmp_path / "plain-tables") as plain:
        plain.poll()
        with pytest.raises(keyed.DefinitionError, match="is of no window"):
            list(plain["last"].scan(windows=(0, 1)))
        wrong: Any
        for wrong in (("a", 1), (datetime(2026, 1, 1), 5), (1.5, 2)):
            with pytest.raises(keyed.DefinitionError, match="is no time"):
                plain["last"].scan(windows=wrong)
    for text in ("", "1", "1/", "a/b", "1/2/3", "\u0661/2"):
        with pytest.raises(keyed.DefinitionError, match="give FROM/TO"):
            windows_of(text)
    name = next(name for name, found in tables.items() if len(found) == 8)
    assert (
        main(["scan", str(tables.path), name, "--key", "a", "--windows", "70/1970-01-01T00:00:00.090Z", "--json"]) == 0
    )
    assert len(capsys.readouterr().out.splitlines()) == 2


def add(harness, *rows):
    """Process rows as one batch."""
    with harness.batch():
        for row in rows:
            harness.process(row, row["t"])


@pytest.fixture
def row_windows(tmp_path):
    """Windows by row, and what is written to them: gives a function that adds rows in a batch, and the tables."""
    with KeyedTestHarness(
        w.WindowOperator(assigner=w.TumblingEventTimeWindows.of(10), aggregate={"n": w.Count(), "most": w.Max("n")}),
        key=lambda row: row["k"],
        changelog=keyed.DirectoryChangelog(tmp_path / "log"),
    ) as harness:
        add(harness, *({"k": key, "t": time, "n": time} for key in "ab" for time in (1, 12, 15)))
        with open_tables(keyed.DirectoryChangelog(tmp_path / "log"), tmp_path / "tables") as tables:
            tables.poll()
            yield harness, tables


def test_windows_by_row_are_entries_in_every_kind_of_query(row_windows):
    harness, tables = row_windows
    table = tables["panes_2"]
    assert table.get("a") == {(0,): {"n": 1, "most": 1}, (10,): {"n": 2, "most": 15}}
    assert table.get("a", 10) == table.get("a", (10,)) == {"n": 2, "most": 15}
    assert table.get("a", 20) is None is table.get("nobody", 0)
    assert len(table) == 4
    assert str(table.schema).endswith("of rows of window.start int, n int, most object")
    with pytest.raises(keyed.DefinitionError, match="several entries"):
        table.get_many(["a"])
    assert tables.sql(
        'select key, sum(n) as n from panes_2 where "window.start" >= 10 group by key order by key'
    ).to_pylist() == [
        {"key": "a", "n": 2},
        {"key": "b", "n": 2},
    ]
    changes = table.subscribe()
    assert [(change.key, change.entry, change.new["n"]) for change in changes.take(1)] == [
        ("a", (0,), 1), ("a", (10,), 2), ("b", (0,), 1), ("b", (10,), 2)
    ]  # fmt: skip
    token = changes.token
    add(harness, {"k": "a", "t": 13, "n": 99}, {"k": "a", "t": 21, "n": 0})
    harness.advance_watermark(9)
    tables.poll()
    expected = [
        (("a", (10,)), {"n": 2, "most": 15}, {"n": 3, "most": 99}), (("a", (20,)), None, {"n": 1, "most": 0}),
        (("a", (0,)), {"n": 1, "most": 1}, None), (("b", (0,)), {"n": 1, "most": 1}, None),
    ]  # fmt: skip
    found = []
    again = table.subscribe(after=token)
    while batch := again.take(0):
        found += [((change.key, change.entry), change.old, change.new) for change in batch]
    assert found == expected
    assert starts(table.scan(windows=(0, 20))) == [("a", 10), ("b", 10)]
    assert starts(table.scan(windows=(0, 20), as_of=1)) == [("a", 0), ("a", 10), ("b", 0), ("b", 10)]
    assert [version.value for version in table.history("a", 10)] == [{"n": 3, "most": 99}, {"n": 2, "most": 15}]
    assert [(version.value, version.removed) for version in table.history("a", 0)] == [
        (None, True),
        ({"n": 1, "most": 1}, False),
    ]
    assert tables.sql("select count(*) as n from panes_2 where key = 'a'").to_pylist() == [{"n": 2}]


@pytest.fixture
def close():
    """Closes what a test has opened."""
    with ExitStack() as stack:
        yield stack


def test_an_aggregate_may_have_the_name_of_a_bound(tmp_path):
    windowed = keyed.stream(ROWS, timestamp="t").key_by("k").window(w.EventTimeSessionWindows.with_gap(9)).path("row")
    result = windowed.aggregate({"window.end": w.Count()}).run(tables=tmp_path / "tables", drain=False)
    with result.tables as tables:
        (entry,) = tables["sessions_1"].scan(key="a")
        assert entry.entry == (0,)
        assert (entry.value["window.end"], entry.value["value_window.end"]) == (104, 20)


class Rows(keyed.KeyedProcessFunction):
    """Keeps a list of rows that expires."""

    recent = keyed.ValueState(
        list, rows={"start": int, "n": str}, ttl=keyed.StateTtl(100, time_domain=keyed.TimeDomain.EVENT_TIME)
    )

    def process_element(self, value, ctx):
        self.recent.update(value["rows"])
        return ()


def test_rows_expire_with_their_list_and_a_list_that_is_no_rows_is_named(tmp_path, close):
    log = keyed.DirectoryChangelog(tmp_path / "log")
    with KeyedTestHarness(Rows(), key=lambda row: row["k"], changelog=log) as harness:
        add(harness, {"k": "a", "t": 0, "rows": [2, "x", 1, "y"]}, {"k": "b", "t": 50, "rows": [3, "z"]})
        tables = close.enter_context(open_tables(log, tmp_path / "tables", types=Rows()))
        tables.poll()
        table = tables["recent"]
        assert [(entry.key, entry.entry, entry.value, entry.expires) for entry in table] == [
            ("a", (1,), {"n": "y"}, 100), ("a", (2,), {"n": "x"}, 100), ("b", (3,), {"n": "z"}, 150)
        ]  # fmt: skip
        harness.advance_watermark(120)
        add(harness, {"k": "c", "t": 130, "rows": [1]})
        tables.poll()
        assert starts(table.scan(windows=(0, 9), to="c")) == [("b", 3)]
        assert table.get("a", 1) is None
        with pytest.raises(keyed.EncodingError, match="holds a list of 1 items, which is no number of rows"):
            table.get("c")


@pytest.mark.parametrize("wrong", [{"type": list, "rows": {"only": int}}, {"type": dict, "rows": {"a": int, "b": int}}])
def test_rows_of_anything_but_a_list_are_refused(wrong):
    with pytest.raises(keyed.StateDefinitionError, match="a plain list has rows"):
        keyed.ValueState(name="x", **wrong)

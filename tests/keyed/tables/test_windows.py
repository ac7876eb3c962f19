"""Windows asked by key and time range, in every way that windowed state is kept."""

from __future__ import annotations

import json
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import pairwise
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import keyed
from keyed import windows as w
from keyed.cli.main import main
from keyed.tables import open_tables
from keyed.tables.json_values import windows_of
from keyed.testing import KeyedTestHarness

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
        with pytest.raises(keyed.errors.DefinitionError, match="is of no window"):
            list(plain["last"].scan(windows=(0, 1)))
        wrong: Any
        for wrong in (("a", 1), (datetime(2026, 1, 1), 5), (1.5, 2)):
            with pytest.raises(keyed.errors.DefinitionError, match="is no time"):
                plain["last"].scan(windows=wrong)
    for text in ("", "1", "1/", "a/b", "1/2/3", "\u0661/2"):
        with pytest.raises(keyed.errors.DefinitionError, match="give FROM/TO"):
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
    with pytest.raises(keyed.errors.DefinitionError, match="several entries"):
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
    assert starts(table.scan(windows=(0, 20), as_of=0)) == [("a", 0), ("a", 10), ("b", 0), ("b", 10)]
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
        with pytest.raises(keyed.errors.EncodingError, match="holds a list of 1 items, which is no number of rows"):
            table.get("c")


@pytest.mark.parametrize("wrong", [{"type": list, "rows": {"only": int}}, {"type": dict, "rows": {"a": int, "b": int}}])
def test_rows_of_anything_but_a_list_are_refused(wrong):
    with pytest.raises(keyed.errors.StateDefinitionError, match="a plain list has rows"):
        keyed.ValueState(name="x", **wrong)


GAP = 10


class Sessions:
    """What sessions hold, computed from their rows with nothing incremental: {(key, (start, end)): values in order}."""

    def __init__(self):
        self.open = {}
        self.watermark = -(2**63)

    def add(self, row):
        key, window, values = row["k"], (row["t"], row["t"] + GAP), [row["n"]]
        touched = [at for at in self.open if at[0] == key and at[1][0] <= window[1] and window[0] <= at[1][1]]
        for at in touched:
            window = min(window[0], at[1][0]), max(window[1], at[1][1])
            values += self.open[at]
        if window[1] - 1 > self.watermark:
            for at in touched:
                del self.open[at]
            self.open[key, window] = sorted(values)

    def advance(self, watermark):
        self.watermark = watermark
        self.open = {at: values for at, values in self.open.items() if at[1][1] - 1 > watermark}


class Values(w.ProcessWindowFunction):
    def process(self, key, context, elements):
        return ()


KEPT: dict[str, tuple[dict[str, Any], str]] = {
    "trigger": ({"aggregate": {"n": w.Sum("n"), "last": w.Max("n")}, "trigger": w.CountTrigger(1000)}, "value"),
    "single": ({"aggregate": w.Sum("n"), "trigger": w.CountTrigger(3)}, "value"),
    "evictor": ({"process": Values(), "evictor": w.CountEvictor(1000)}, "list"),
    "function": ({"process": Values()}, "list"),
}


def shown(kept, values):
    """Return what a table has of the rows with these values."""
    if kept == "trigger":
        return [sum(values), max(values)]
    return [sum(values)] if kept == "single" else values


def numbers(kept, found):
    """Return what entries of a table hold, by (key, window): of lists the values of their rows."""
    held: dict[Any, Any] = {}
    for entry in found:
        if KEPT[kept][1] == "value":
            held[entry.key, entry.namespace] = entry.value
        else:
            row = entry.value[0] if kept == "evictor" else entry.value
            held[entry.key, entry.namespace] = sorted([*held.get((entry.key, entry.namespace), []), row["n"]])
    return held


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12))])
@pytest.mark.parametrize("kept", KEPT)
def test_sessions_that_merge_are_found_under_the_windows_that_they_are_now(tmp_path, kept, seed):
    random, expected, log = Random(seed), Sessions(), keyed.DirectoryChangelog(tmp_path / "log")
    operator = w.WindowOperator(assigner=w.EventTimeSessionWindows.with_gap(GAP), **KEPT[kept][0])
    past: dict[int, dict[Any, Any]] = {}
    pushed: dict[Any, Any] = {}
    changes = None
    with (
        KeyedTestHarness(operator, key=lambda row: row["k"], changelog=log, parallelism=2) as harness,
        open_tables(keyed.DirectoryChangelog(tmp_path / "log"), tmp_path / "tables") as tables,
    ):
        clock = 0
        for batch in range(40):
            if batch % 4:
                rows: list[dict[str, Any]] = [
                    {"k": random.choice("abc"), "t": clock + random.randint(-15, 60), "n": random.randint(1, 99)}
                    for _ in range(random.randint(1, 5))
                ]
                add(harness, *rows)
                for row in sorted(rows, key=lambda row: row["t"]):
                    expected.add(row)
            else:
                clock += random.randint(0, 30)
                harness.advance_watermark(clock)
                expected.advance(clock)
            tables.poll()
            table = next(table for name, table in tables.items() if name.startswith("window_contents"))
            past[batch] = {at: shown(kept, values) for at, values in sorted(expected.open.items())}
            assert numbers(kept, table) == past[batch]
            changes = changes or table.subscribe(after="beginning")
            while given := changes.take(0):
                for change in given:
                    at = change.key, change.namespace, change.entry
                    assert pushed.get(at) == change.old
                    pushed[at] = change.new
                    if change.removed:
                        del pushed[at]
            assert pushed == {(entry.key, entry.namespace, entry.entry): entry.value for entry in table}
        assert changes is not None
        assert not changes.resets
        for batch, was in past.items():
            assert numbers(kept, table.scan(as_of=batch)) == was
            first, end = sorted(random.sample(range(clock), 2))
            within = {at: value for at, value in was.items() if first <= at[1][0] < end}
            assert numbers(kept, table.scan(as_of=batch, windows=(first, end))) == within
            assert numbers(kept, table.scan(as_of=batch, windows=(first, end), reverse=True)) == within
            of_b = {at: value for at, value in within.items() if at[0] == "b"}
            assert numbers(kept, table.scan(as_of=batch, key="b", windows=(first, end))) == of_b
            pages: list[Any] = []
            after = None
            while True:
                page = table.scan(limit=1, after=after, as_of=batch)
                pages += page
                after = page.token
                if after is None:
                    break
            assert pages == list(table.scan(as_of=batch))
        windows = {at for was in past.values() for at in was}
        assert len(windows) > len({(key, start) for key, (start, _) in windows})
        for key, window in windows if KEPT[kept][1] == "value" else ():
            held = [was.get((key, window)) for was in past.values()]
            assert [table.get(key, namespace=window, as_of=batch) for batch in past] == held
            versions = [(batch, value) for batch, (old, value) in enumerate(pairwise([None, *held])) if old != value]
            found = table.history(key, namespace=window)
            assert [(version.batch, version.value) for version in found] == versions[::-1]
        sql = tables.sql(f"select key, namespace, count(*) as n from {table.name} group by all").to_pylist()
        assert {(row["key"], row["namespace"]) for row in sql} == {
            (key, f"[{start}, {end}]") for key, (start, end) in past[39]
        }
        with tables.snapshot() as snapshot:
            assert len(snapshot[table.name]) == sum(row["n"] for row in sql)
        if KEPT[kept][1] == "value":
            assert table.get_many(["a", "b", "c"], namespace=(0, 1)) == [None] * 3


def test_a_checkpoint_shows_sessions_under_the_windows_that_they_are_now(tmp_path, capsys):
    rows = [{"k": "a", "t": time, "n": 1} for time in (10, 15, 40, 5)]
    stream = keyed.stream(rows, timestamp="t", watermark=keyed.bounded_out_of_orderness(milliseconds=90)).key_by("k")
    windowed = (
        stream.window(w.EventTimeSessionWindows.with_gap(10)).trigger(w.CountTrigger(9)).aggregate({"n": w.Count()})
    )
    result = windowed.run(checkpoint=tmp_path / "job", tables=tmp_path / "tables", rows_per_batch=1, drain=False)
    with result.tables as tables:
        held = {entry.namespace: entry.value for entry in tables["window_contents_1"]}
    assert held == {(5, 25): [3], (40, 50): [1]}
    assert main(["inspect", str(tmp_path / "job"), "--key", "a", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)["entries"]
    found = {tuple(entry["about"]): entry["value"] for entry in entries if entry["state"] == "window_contents_1"}
    assert found == held


class Named(keyed.KeyedProcessFunction):
    """Keeps rows under namespaces that go by other names."""

    names = keyed.ValueState(list)
    kept = keyed.ValueState(list, rows={"start": int, "n": int}, named_by="names")

    def process_element(self, value, ctx):
        for namespace, n in value["kept"].items():
            self.kept.namespace(namespace).update(n)
        self.names.update(value["names"])
        return ()


def test_names_of_namespaces_may_be_of_rows_and_are_pairs(tmp_path):
    log = keyed.DirectoryChangelog(tmp_path / "log")
    with KeyedTestHarness(Named(), key=lambda row: row["k"], changelog=log) as harness:
        add(harness, {"k": "a", "t": 0, "kept": {"x": [1, 2], "y": [3, 4]}, "names": [["b", "x"]]})
        with open_tables(log, tmp_path / "tables") as tables:
            tables.poll()
            table = tables["kept"]
            assert [(entry.namespace, entry.entry) for entry in table] == [("b", (1,)), ("y", (3,))]
            assert table.get("a", 1, namespace="b") == {"n": 2}
            assert table.get("a", 1, namespace="x") is None
            assert table.get("a", namespace="y") == {(3,): {"n": 4}}
            changes = table.subscribe(after="now")
            add(harness, {"k": "a", "t": 0, "kept": {}, "names": [["c", "x"], ["a", "y"]]})
            tables.poll()
            assert [(change.namespace, change.removed) for change in changes.take(0)] == [
                ("a", False), ("b", True), ("c", False), ("y", True)
            ]  # fmt: skip
            add(harness, {"k": "a", "t": 0, "kept": {}, "names": [1]})
            tables.poll()
            with pytest.raises(keyed.errors.EncodingError, match="no pairs of a name and a namespace in \\[1\\]"):
                list(table)


def test_namespaces_are_named_by_a_value_state_that_there_is():
    class Unnamed(Named):
        names = None  # type: ignore[assignment]

    with (
        pytest.raises(keyed.errors.StateDefinitionError, match="named_by='names' of the value state 'kept'"),
        KeyedTestHarness(Unnamed(), key=lambda row: row["k"]) as harness,
    ):
        harness.process({"k": "a"})

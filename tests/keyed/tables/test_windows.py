"""Windows asked by key and time range, in every way that windowed state is kept."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import keyed
from keyed import windows as w
from keyed.base.arguments import instant_ms
from keyed.cli.main import main
from keyed.extending import inner_state
from keyed.tables.json_values import windows_of
from keyed.testing import KeyedTestHarness
from tests.support.tables import entries_read, followed, poll_tables
from tests.support.window_operators import window_rows

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
    with poll_tables(log, tmp_path / "tables") as tables:
        yield tables


def starts(found: Any) -> list[tuple[str, int]]:
    result = []
    for entry in found:
        window = entry.entry if entry.namespace is None else entry.namespace
        start = window[0] if isinstance(window, tuple) else window
        result.append((entry.key, start if isinstance(start, int) else instant_ms(start)))
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
    read = entries_read(tables, monkeypatch)
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
    with poll_tables(log, tmp_path / "plain-tables") as plain:
        with pytest.raises(keyed.errors.DefinitionError, match="which is not a window"):
            list(plain["last"].scan(windows=(0, 1)))
        wrong: Any
        for wrong in (("a", 1), (datetime(2026, 1, 1), 5), (1.5, 2)):
            with pytest.raises(keyed.errors.DefinitionError, match="is not a time"):
                plain["last"].scan(windows=wrong)
    for text in ("", "1", "1/", "a/b", "1/2/3", "\u0661/2"):
        with pytest.raises(keyed.errors.DefinitionError, match="give FROM/TO"):
            windows_of(text)
    name = next(name for name, found in tables.items() if len(found) == 8)
    scan = ["scan", str(tables.path), name, "--key", "a", "--windows", "70/1970-01-01T00:00:00.090Z"]
    assert main([*scan, "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    if tables[name].schema.kind == "window":
        assert main(scan) == 0
        head, first, _ = capsys.readouterr().out.splitlines()
        assert head.split() == ["k", "window_start", "window_end", "n"]
        assert first.split()[:2] == ["a", "1970-01-01T00:00:00.070000Z"]
        assert main(["get", str(tables.path), name, "a", "--entry", "1970-01-01T00:00:00.070Z"]) == 0
        assert main(["get", str(tables.path), name, "a", "--entry", "71"]) == 1
        assert main(["get", str(tables.path), name, "a", "--entry", "[true]"]) == 1
        assert "is not a window: give its start" in capsys.readouterr().err


def add(harness, *rows):
    """Process rows as one batch."""
    with harness.batch():
        for row in rows:
            harness.process(row, row["t"])


@pytest.fixture
def row_windows(tmp_path):
    """Windows by row, and what is written to them: gives a function that adds rows in a batch, and the tables."""
    counts = window_rows(assigner=w.TumblingEventTimeWindows.of(10), aggregate={"n": w.Count(), "most": w.Max("n")})
    with followed(counts, tmp_path, key="k") as (harness, tables):
        add(harness, *({"k": key, "t": time, "n": time} for key in "ab" for time in (1, 12, 15)))
        tables.poll()
        yield harness, tables


def time(milliseconds):
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=milliseconds)


def window(start):
    return time(start), time(start + 10)


def test_windows_are_rows_in_every_kind_of_query(row_windows):
    harness, tables = row_windows
    (name,) = tables
    assert tables[name].operator == name
    table = tables[name]
    assert table.get("a") == {window(0): {"n": 1, "most": 1}, window(10): {"n": 2, "most": 15}}
    wanted = {"n": 2, "most": 15}
    assert [table.get("a", entry) for entry in (10, (10,), (10, 20), window(10), w.TimeWindow(10, 20))] == [wanted] * 5
    assert table.get("a", 20) is None is table.get("nobody", 0)
    assert len(table) == 4
    assert table.types == "window_start: timestamp, window_end: timestamp, n: bigint, most: object"
    with pytest.raises(keyed.errors.DefinitionError, match="several entries"):
        table.get_many(["a"])
    with pytest.raises(keyed.errors.DefinitionError, match="has no time zone"):
        table.get("a", datetime(2026, 1, 1))
    query = f'select key, sum(n) as n, max(window_end) as last from "{name}" where window_start >= $1 group by 1'
    assert tables.sql(f"{query} order by 1", [time(10)]).to_pylist() == [
        {"key": "a", "n": 2, "last": time(20)},
        {"key": "b", "n": 2, "last": time(20)},
    ]
    add(harness, {"k": "a", "t": 13, "n": 99}, {"k": "a", "t": 21, "n": 0})
    harness.advance_watermark(9)
    tables.poll()
    assert [version.value for version in table.history("a", 10)] == [{"n": 3, "most": 99}, {"n": 2, "most": 15}]
    assert [(version.value, version.removed) for version in table.history("a", 0)] == [
        (None, True),
        ({"n": 1, "most": 1}, False),
    ]


class Tagged(NamedTuple):
    start: int
    end: int
    tag: str

    def max_timestamp(self):
        return self.end - 1


class TaggedWindows(w.WindowAssigner):
    window_type = Tagged

    def assign_windows(self, element, timestamp, processing_time):
        return [Tagged(timestamp // 10 * 10, timestamp // 10 * 10 + 10, tag) for tag in "xy"]


def test_windows_of_other_types_have_their_fields_as_columns(tmp_path):
    stream = keyed.stream(ROWS, timestamp="t", watermark=keyed.bounded_out_of_orderness(milliseconds=35)).key_by("k")
    output = stream.window(TaggedWindows()).aggregate(w.Count(), name="tagged", output="n bigint")
    with output.run(tables=tmp_path / "tables", drain=False).tables as tables:
        table = tables["tagged"]
        assert table.get("a", (60, 70, "y")) == {"result": 2}
        assert [entry.entry for entry in table.scan(key="a", windows=(90, 99))] == [(*window(90), tag) for tag in "xy"]
        query = "select window_tag, count(*) as n from tagged where window_start >= $1 group by 1 order by 1"
        found = [tuple(row.values()) for row in tables.sql(query, [time(80)]).to_pylist()]
        assert found == [('"x"', 4), ('"y"', 4)]


class Longest(w.Aggregate[Any, Any, Any]):
    """An aggregate of a class of its own, whose result is not its accumulator."""

    commutative = True

    def create_accumulator(self):
        return [""]

    def add(self, value, accumulator):
        return [max(accumulator[0], value["k"], key=len)]

    def merge(self, a, b):
        return [max(a[0], b[0], key=len)]

    def get_result(self, accumulator):
        return len(accumulator[0])


@pytest.mark.parametrize("assigner", [w.TumblingEventTimeWindows.of(10), w.HoppingEventTimeWindows.of(20, 10)])
def test_results_of_a_class_of_ones_own_come_with_the_operator(tmp_path, assigner):
    log, rows = keyed.DirectoryChangelog(tmp_path / "log"), [{"k": "abc", "t": time} for time in (1, 5, 12)]
    stream = keyed.stream(rows, timestamp="t", watermark=keyed.bounded_out_of_orderness(milliseconds=90)).key_by("k")
    output = stream.window(assigner).aggregate({"longest": Longest(), "n": w.Count()}, name="lengths", changelog=log)
    output.run(drain=False)
    hops = isinstance(assigner, w.HoppingEventTimeWindows)
    with poll_tables(log, tmp_path / "tables", types=output.operators["lengths"]) as tables:
        assert tables["lengths"].get("abc", 0) == {"longest": 3, "n": 3 if hops else 2}
    with poll_tables(log, tmp_path / "tables", types={"lengths": {"longest": Longest()}}) as tables:
        assert tables["lengths"].get("abc", 0)["longest"] == 3
    with poll_tables(log, tmp_path / "tables") as tables:
        # What is stored runs no code: without the class there is the stored result, and slices are not merged.
        if not hops:
            assert tables["lengths"].get("abc", 0) == {"longest": 3, "n": 2}
            return
        with pytest.raises(keyed.errors.DefinitionError, match="give the tables the operator"):
            tables["lengths"].get("abc", 0)
    with (
        poll_tables(log, tmp_path / "tables", types={"lengths": {"n": w.Count(), "other": w.Count()}}) as tables,
        pytest.raises(keyed.errors.DefinitionError, match="no aggregate 'other'; the columns are: longest, n"),
    ):
        tables["lengths"].get("abc", 0)


def span(ends):
    if not ends:
        raise ValueError("no values")
    return {"least": ends[0], "most": ends[1]}


SPAN: Any = w.aggregate_of(
    create=tuple,
    add=lambda row, ends: (min(ends[0], row.v), max(ends[1], row.v)) if ends else (row.v, row.v),
    merge=lambda a, b: (min(a[0], b[0]), max(a[1], b[1])) if a and b else a or b,
    result=span,
    type="struct<least:bigint,most:bigint>",
)


@pytest.mark.parametrize(
    "assigner",
    [
        w.TumblingEventTimeWindows.of(1_000),
        w.HoppingEventTimeWindows.of(1_000, 500),
        w.EventTimeSessionWindows.with_gap(1_000),
        w.GlobalWindows.create(),
    ],
)
def test_another_process_reads_the_result_of_an_aggregate_of_ones_own(tmp_path, assigner):
    log = keyed.DirectoryChangelog(tmp_path / "log")
    rows = [{"u": "a", "v": v, "t": t} for t, v in enumerate((30, 107, 40))]
    windows = keyed.stream(rows, timestamp="t").key_by("u").window(assigner)
    if isinstance(assigner, w.GlobalWindows):
        windows = windows.trigger(w.CountTrigger.of(5))
    windows.aggregate({"span": SPAN}, name="spans", changelog=log).run(drain=False, rows_per_batch=2)
    with poll_tables(log, tmp_path / "tables") as tables:
        right = {"least": 30, "most": 107}
        assert [entry.value["span"] for entry in tables["spans"].scan(key="a")][-1] == right
        assert tables.sql("select span.most as most from spans").to_pylist()[-1] == {"most": 107}


class Unstorable:
    """A result that no state can hold."""

    def __init__(self, length):
        self.length = length


@pytest.mark.parametrize(
    "assigner",
    [w.TumblingEventTimeWindows.of(1_000), w.EventTimeSessionWindows.with_gap(1_000), w.GlobalWindows.create()],
)
def test_the_result_of_ones_own_aggregate_is_computed_once_a_batch_and_may_be_of_any_class(tmp_path, assigner):
    calls = []

    def result(most):
        calls.append(most)
        return Unstorable(most)

    longest = w.aggregate_of(create=lambda: 0, add=lambda row, most: max(row.v, most), merge=max, result=result)
    rows = [{"u": u, "v": v, "t": v} for v in range(40) for u in "ab"]
    windows = keyed.stream(rows, timestamp="t").key_by("u").window(assigner)
    if isinstance(assigner, w.GlobalWindows):
        windows = windows.trigger(w.CountTrigger.of(40))
    log = keyed.DirectoryChangelog(tmp_path / "log")
    found = windows.aggregate(longest, name="longest", changelog=log).run(rows_per_batch=20).values
    assert [each.length for each in found] == [39, 39]
    # Two keys in four batches, and their windows.
    assert len(calls) <= 2 * 4 + 2
    with poll_tables(log, tmp_path / "tables") as tables:
        # What no state can hold is null for other processes.
        unknown = {"result": None}
        assert {entry.key: entry.value for entry in tables["longest"].scan(as_of=1)} == {"a": unknown, "b": unknown}


def test_columns_have_the_types_of_the_output_on_both_paths(tmp_path):
    data = pa.Table.from_pylist(ROWS)
    schemas = []
    for path in ("row", "vectorized"):
        stream = keyed.stream(data, timestamp="t", watermark=keyed.bounded_out_of_orderness(milliseconds=35)).key_by(
            "k"
        )
        windowed = stream.window(w.HoppingEventTimeWindows.of(20, 10)).path(path)
        output = windowed.aggregate(
            {"mean": w.Mean("n"), "top": w.TopK(2, "t"), "most": w.MostFrequent(1, "n")}, name="x"
        )
        with output.run(tables=tmp_path / path, drain=False).tables as tables:
            schemas.append((tables["x"].dataset().schema, tables["x"].types, tables.sql("from x").to_pylist()))
    assert schemas[0] == schemas[1]
    schema, types, rows = schemas[0]
    assert types.startswith("window_start: timestamp, window_end: timestamp, mean: double, top: array<bigint>")
    assert schema.names == ["k", "window_start", "window_end", "mean", "top", "most"]
    assert rows[0]["mean"] == 1.0
    assert rows[0]["most"] == [{"value": 1, "count": 4}]


def test_a_checkpoint_shows_windows_as_tables_do(tmp_path, capsys):
    rows = [{"k": "a", "t": time, "n": 1} for time in (10, 15, 40, 5)]
    stream = keyed.stream(rows, timestamp="t", watermark=keyed.bounded_out_of_orderness(milliseconds=90)).key_by("k")
    sessions = stream.window(w.EventTimeSessionWindows.with_gap(10))
    for name, windowed in {"packed": sessions, "general": sessions.trigger(w.CountTrigger(9))}.items():
        output = windowed.aggregate({"n": w.Count()}, name=name)
        kept = {"checkpoint": tmp_path / name, "tables": tmp_path / f"{name}-tables"}
        with output.run(**kept, rows_per_batch=1, drain=False).tables as tables:
            held = {entry.entry: entry.value for entry in tables[name]}
        assert held == {(time(5), time(25)): {"n": 3}, (time(40), time(50)): {"n": 1}}
        assert main(["inspect", str(tmp_path / name), "--key", "a", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert {state: about["kind"] for state, about in found["states"].items()} == {
            name: "window",
            "timers": "timers",
        }
        entries = {tuple(entry["entry"]): entry["value"] for entry in found["entries"] if entry["state"] == name}
        assert entries == {tuple(each.isoformat().replace("+00:00", "Z") for each in at): n for at, n in held.items()}


class Named(keyed.KeyedProcessFunction):
    """Keeps values under namespaces that go by other names."""

    names = keyed.MapState()
    kept = inner_state(keyed.ValueState(int), named_by="names")

    def process_element(self, value, ctx):
        for namespace, n in value["kept"].items():
            self.kept.namespace(namespace).update(n)
        for place, pair in value["names"].items():
            self.names.put(place, pair)
        return ()


def test_names_of_namespaces_are_pairs(tmp_path):
    with followed(Named(), tmp_path, key="k") as (harness, tables):

        def write(values, names):
            add(harness, {"k": "a", "t": 0, "kept": values, "names": names})
            tables.poll()

        write({"x": 2, "y": 4}, {1: ["b", "x"]})
        table = tables["kept"]
        assert [(entry.namespace, entry.value) for entry in table] == [("b", 2), ("y", 4)]
        assert table.get("a", namespace="b") == 2
        assert table.get("a", namespace="x") is None
        changes = table.subscribe(after="now")
        write({}, {1: ["c", "x"], 2: ["a", "y"]})
        seen = [(change.namespace, change.removed) for change in changes.take(0)]
        assert seen == [("a", False), ("b", True), ("c", False), ("y", True)]
        write({}, {1: 1})
        with pytest.raises(keyed.errors.EncodingError, match="1 is not a pair of a name and a namespace"):
            list(table)


def test_namespaces_are_named_by_a_map_state_that_there_is():
    class Unnamed(Named):
        names = None  # type: ignore[assignment]

    with (
        pytest.raises(keyed.errors.StateDefinitionError, match=r"named_by='names' of .* 'kept'.*no such map state"),
        KeyedTestHarness(Unnamed(), key=lambda row: row["k"]) as harness,
    ):
        harness.process({"k": "a"})

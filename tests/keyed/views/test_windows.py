"""Windows asked by key and time range, in every way that windowed state is kept."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

import keyed
import windows as w
from keyed.cli.main import main
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


@pytest.fixture(params=["namespaces", "map", "vectorized"])
def tables(request, tmp_path):
    """Open windows of ten milliseconds: those from 60 on, as the watermark is at 59."""
    log = keyed.DirectoryChangelog(tmp_path / "log")
    data: Any = pa.Table.from_pylist(ROWS) if request.param == "vectorized" else ROWS
    stream = keyed.stream(data, timestamp="t", watermark=keyed.bounded_out_of_orderness(milliseconds=35)).key_by("k")
    if request.param == "vectorized":
        windowed = stream.window(w.TumblingEventTimeWindows.of(10)).path("vectorized")
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
    # One shows how the windows are kept.
    assert len(read) == 3


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

"""A batch writes the windows of its rows, and not all open windows of their keys."""

from __future__ import annotations

import pytest

import keyed
from keyed import bounded_out_of_orderness
from keyed import windows as w
from tests.support.data_files import read_data
from tests.support.window_operators import trigger_of, windows_of

ROWS = 60
#: By name: windows, trigger and other options; whether the function gets the elements; and whether the watermark
#: ``moves``, since otherwise each window stays open.
WINDOWS = read_data("windows/costs.json")


class Elements(w.ProcessWindowFunction):
    def process(self, key, context, elements):
        return [len(elements)]


def windowed_by(case, stream):
    """The windows of a case."""
    windows = stream.window(windows_of(case["windows"]))
    if "trigger" in case:
        windows = windows.trigger(trigger_of(case["trigger"]))
    for option, value in case.get("options", {}).items():
        windows = getattr(windows, option)(w.TimeEvictor.of(value) if option == "evictor" else value)
    return windows


def bytes_written(case, log, rows, step):
    """Run a case over so many rows of a key, and return the size of its changelog."""
    given = [{"k": "a", "n": n, "t": step * n} for n in range(rows)]
    delay = 0 if case.get("moves") else 10**9
    windows = windowed_by(
        case, keyed.stream(given, timestamp="t", watermark=bounded_out_of_orderness(delay)).key_by("k")
    )
    changelog = keyed.DirectoryChangelog(log)
    if case.get("elements"):
        output = windows.process(Elements(), output="n bigint", changelog=changelog)
    else:
        output = windows.path("row").aggregate({"n": w.Count()}, changelog=changelog)
    output.run(rows_per_batch=5, drain=False)
    return sum(file.stat().st_size for file in log.rglob("*") if file.is_file())


@pytest.mark.parametrize("step", [10, -10], ids=["ascending", "descending"])
@pytest.mark.parametrize("name", WINDOWS)
def test_the_bytes_of_a_batch_do_not_grow_with_the_open_windows_of_its_keys(name, step, tmp_path):
    few, many = (bytes_written(WINDOWS[name], tmp_path / f"{rows}", rows, step) for rows in (ROWS, 3 * ROWS))
    assert many < 3.5 * few, f"{few:,} and {many:,} bytes"

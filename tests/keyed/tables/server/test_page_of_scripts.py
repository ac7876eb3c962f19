"""The page over the tables of a script, in a real browser: a slider over batches, the last changes, push queries."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from keyed import sql
from keyed.tables import read_tables
from keyed.tables.server import serving
from tests.support.waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.xdist_group("browser")]
TEXT = """
CREATE STREAM sales (title STRING KEY, price INT) WITH (FORMAT = 'JSON');
CREATE TABLE sold AS SELECT title, COUNT(*) AS n, SUM(price) AS income FROM sales GROUP BY title;
"""
SALES = [
    {"title": title, "price": price, "ROWTIME": 1_372_680_000_000 + 60_000 * number}
    for number, (title, price) in enumerate(
        [("Aliens", 5), ("Big", 6), ("Aliens", 7), ("<b>Rio</b>", 2), ("Big", 4), ("Aliens", 1)]
    )
]


def run(folder, rows):
    """Run the script over rows, one a batch, and return its tables."""
    options = {"checkpoint": folder / "state", "tables": folder / "tables"}
    result = sql.script(TEXT, {"sales": rows}, rows_per_batch=1, **options).run
    assert result is not None
    return result.tables


def picture(page, name):
    """Keep a screenshot, if a folder is named for them."""
    folder = os.environ.get("KEYED_PICTURES")
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


def rows_of(page):
    """The entries that are shown: their key, n and income."""
    cells = "all => all.map(row => [...row.children].map(cell => cell.innerText))"
    rows = page.get_by_role("region", name="Entries of sold").locator("tbody tr").evaluate_all(cells)
    return sorted(row[:3] for row in rows)


@pytest.mark.parametrize("width", [1200, 390])
def test_the_slider_shows_a_table_and_its_changes_as_of_a_batch(tmp_path, page, width):
    page.set_viewport_size({"width": width, "height": 844})
    with run(tmp_path, SALES) as tables, serving(tables, port=0, page=True) as address:
        page.goto(f"{address}/?view=tables&table=sold")
        newest = [["<b>Rio</b>", "1", "2"], ["Aliens", "3", "13"], ["Big", "2", "10"]]
        until(lambda: rows_of(page) == newest)
        slider = page.get_by_role("slider", name="Batch")
        slider.wait_for()
        assert [slider.get_attribute(name) for name in ("min", "max")] == ["0", "5"]
        picture(page, f"script-newest-{width}")
        slider.fill("2")
        until(lambda: rows_of(page) == [["Aliens", "2", "12"], ["Big", "1", "6"]])
        until(lambda: "batch 2 of 5, committed" in page.locator(".timeline output").inner_text())
        assert page.get_by_label("As of batch").input_value() == "2"
        assert "as_of=2" in page.url
        last = page.get_by_role("region", name="Last changes").locator(":scope > table > tbody > tr")
        until(lambda: last.count() == 2)
        batch, key, *values = last.first.locator(":scope > td").all_inner_texts()
        assert (batch, "Aliens" in key) == ("2", True)
        assert [each.split() for each in values] == [["n", "1", "income", "5"], ["n", "2", "income", "12"]]
        picture(page, f"script-batch-2-{width}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        slider.fill("5")
        until(lambda: rows_of(page) == newest)
        assert "as_of" not in page.url
        slider.focus()
        page.keyboard.press("ArrowLeft")
        until(lambda: rows_of(page)[1] == ["Aliens", "2", "12"])


@pytest.mark.parametrize("width", [1200, 390])
def test_a_query_that_ends_with_emit_changes_shows_rows_as_they_change(tmp_path, page, width):
    page.set_viewport_size({"width": width, "height": 844})
    with run(tmp_path, SALES) as tables:
        tables.close()
    with read_tables(tmp_path / "tables") as tables, serving(tables.start(every=0.05), port=0, page=True) as address:
        page.goto(f"{address}/?view=sql")
        query = page.get_by_label("Query")
        query.fill("SELECT UCASE(title) AS name, income / n AS mean FROM sold WHERE n > 1 EMIT CHANGES")
        page.keyboard.press("Control+Enter")
        log = page.get_by_role("log", name="Rows")
        until(lambda: log.locator("tbody tr").count() == 2)
        with run(tmp_path, [*SALES, {"title": "Big", "price": 11}]):
            log.get_by_role("row").filter(has_text="changed").first.wait_for()
        first = log.locator("tbody tr").first.locator("td").all_inner_texts()
        assert first == ["6", "changed", "BIG", "7"]
        picture(page, f"push-{width}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.get_by_role("button", name="Stop").click()
        page.get_by_text("Stopped: 3 changes").wait_for()
        query.fill("SELECT nn FROM sold EMIT CHANGES")
        page.keyboard.press("Control+Enter")
        page.get_by_role("alert").filter(has_text="line 1, column 8: unknown column nn; did you mean n?").wait_for()
        query.fill("SELECT n FROM sold EMIT CHANGES LIMIT 1;")
        page.keyboard.press("Control+Enter")
        page.get_by_text("The limit is reached: 1 change").wait_for()

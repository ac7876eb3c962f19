"""The page over the tables of any job, in a real browser: live, with a token, and against what is no text."""

from __future__ import annotations

import re
import time
from contextlib import AbstractContextManager
from typing import Any

import attrs
import pytest

import keyed
from keyed import windows as w
from keyed.tables import open_tables
from keyed.tables.server import Access, serving
from tests.support.limits import patient
from tests.support.tables import followed
from tests.support.waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.xdist_group("browser")]
TOKEN = "token-of-all-tables-0001"


class Sold(keyed.KeyedProcessFunction):
    sold = keyed.ValueState(int, default=0)
    by_day = keyed.MapState(str, int)

    def process_element(self, value, ctx):
        self.sold.update(self.sold.value() + value[1])
        self.by_day.put("monday", self.sold.value())


def served(tables: keyed.tables.StateTables, **options: Any) -> AbstractContextManager[str]:
    """The address of a page over tables."""
    return serving(tables, port=0, page=True, limits=patient(), **options)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A job, and its tables."""
    folder = tmp_path_factory.mktemp("job")
    with followed(Sold(), folder, parallelism=2) as (harness, tables):
        for number in range(1, 4):
            harness.process(("Die Hard", number))
        harness.process(("<b>bold</b>", 1))
        tables.start(every=0.05)
        tables.wait_for(3, 300)
        yield harness, tables


SEARCH = "Key, or what it begins with"


def look_up(page, label, text):
    """Fill in a field, and look up."""
    page.get_by_label(label).fill(text)
    page.get_by_role("button", name="Look up").click()


def test_a_table_is_searched_and_followed(job, page):
    harness, tables = job
    with served(tables, status=lambda: {"Cinemas": 3}) as address:
        page.goto(address)
        page.get_by_role("link", name="Die Hard").wait_for()
        assert page.get_by_role("link", name="<b>bold</b>").count() == 1
        until(lambda: "Cinemas" in page.locator("#facts").inner_text())
        page.get_by_role("button", name="Follow changes").click()
        page.get_by_role("log").wait_for()
        # One stream tells of batches, the other one of the changes from now on.
        until(lambda: "keyed_streams 2" in page.request.get(f"{address}/metrics").text())
        harness.process(("Die Hard", 10))
        row = page.get_by_role("row").filter(has_text="Die Hard").filter(has_text="16")
        row.first.wait_for()
        look_up(page, SEARCH, "Die Hard")
        page.locator(".chart canvas").wait_for()
        until(lambda: page.locator(".value").inner_text() == "16")
        look_up(page, "As of batch", "1")
        until(lambda: page.locator(".value").count() and page.locator(".value").inner_text() == "3")
        assert "as_of=1" in page.url
        look_up(page, "As of batch", "77")
        page.get_by_role("alert").filter(has_text="newest batch").first.wait_for()


def test_a_token_is_asked_for_once_and_kept_from_scripts_and_addresses(job, page):
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    with served(job[1], access=Access(tokens={TOKEN: ["*"]})) as address:
        page.goto(address)
        page.get_by_label("Token").fill("no such token at all")
        page.get_by_role("button", name="Open").click()
        page.get_by_text("the token is unknown").wait_for()
        page.get_by_label("Token").fill(TOKEN)
        page.get_by_role("button", name="Open").click()
        page.get_by_role("link", name="Die Hard").wait_for()
        page.locator(".connection[data-state=live]").wait_for()
        page.reload()
        page.get_by_role("link", name="Die Hard").wait_for()
        assert page.get_by_role("dialog").count() == 0
        assert page.evaluate("document.cookie + JSON.stringify(localStorage)") == "{}"
    assert asked
    assert not [url for url in asked if TOKEN in url or not url.startswith(address)]


NOON = 1_372_680_000_000  # 2013-07-01 12:00 UTC
NAMES = ["iPhone", "IPad", "Die Hard", "die Welle", "Zoë", "ZOË", "zebra"]


@attrs.frozen
class Visit:
    window_start: int
    seen: str
    number: int


class Visits(keyed.KeyedProcessFunction):
    """States whose times are told by their names or types, and others that only look like times."""

    visit = keyed.ValueState(Visit)
    watermark = keyed.ValueState(int)
    note = keyed.ValueState(str)
    number = keyed.ValueState(int)

    def process_element(self, value, ctx):
        self.visit.update(Visit(NOON, "2013-07-01T12:00:00Z", NOON))
        self.watermark.update(NOON)
        self.note.update("2013-07-01T12:00:00Z")
        self.number.update(NOON)
        ctx.timer_service().set_timer("later", ctx.timestamp() + 86_400_000)

    def on_timer(self, timestamp, ctx):
        """Do nothing."""


def visits(folder, timestamp, *, drain=False):
    """Write a changelog of `Visits` at a time, and open its tables."""
    changelog = keyed.DirectoryChangelog(folder / "log")
    rows = [{"name": name, "time": timestamp} for name in NAMES]
    stream = keyed.stream(rows, timestamp="time").key_by("name").process(Visits(), name="visits", changelog=changelog)
    stream.run(checkpoint=folder / "checkpoint", drain=drain)
    tables = open_tables(changelog, folder / "tables")
    tables.poll()
    return tables


@pytest.fixture(scope="module")
def replayed(tmp_path_factory):
    """The tables of a job over old rows."""
    with visits(tmp_path_factory.mktemp("replayed"), NOON) as tables:
        yield tables


def facts_of(page):
    """The facts in the header, by their names."""
    return dict(
        page.locator("#facts div").evaluate_all("all => all.map(one => [...one.children].map(part => part.innerText))")
    )


def test_a_live_job_is_behind_the_clock_a_replay_is_not_and_an_ended_one_is_finished(tmp_path, replayed, page):
    with served(replayed) as address:
        page.goto(address)
        until(lambda: facts_of(page).get("Watermark (UTC)") == "2013-07-01 11:59:59")
        assert "Behind the clock" not in facts_of(page)
        # That of the page: whether the job still runs is not known here, and it does not.
        assert page.locator(".connection").inner_text() == "connected"
    now = round(time.time() * 1000)
    with visits(tmp_path / "live", now) as tables, served(tables) as address:
        page.goto(address)
        until(lambda: "Behind the clock" in facts_of(page))
        assert re.fullmatch(r"[\d.]+ (s|min|h)", facts_of(page)["Behind the clock"])
    with visits(tmp_path / "ended", NOON, drain=True) as tables, served(tables) as address:
        page.goto(address)
        until(lambda: page.locator(".connection").inner_text() == "finished")
        assert {"Behind the clock", "Watermark (UTC)", "Committed"}.isdisjoint(facts_of(page))
        assert facts_of(page)["Finished"].endswith(" ago")


def test_times_are_times_by_their_types_and_names_alone(replayed, page):
    with served(replayed) as address:

        def cells(table):
            page.goto(f"{address}/?view=tables&table={table}&key=zebra")
            page.get_by_role("link", name="zebra").wait_for()
            heads = page.locator("main .panel .scroll").last.locator("th").all_inner_texts()
            return dict(
                zip(heads, page.locator("main .panel .scroll").last.locator("td").all_inner_texts(), strict=True)
            )

        # The fields of a class are columns. A text stays as it was written, a number a number.
        assert cells("visit") == {
            "name": "zebra",
            "window_start": "2013-07-01 12:00",
            "seen": "2013-07-01T12:00:00Z",
            "number": "1,372,680,000,000",
        }
        assert page.get_by_role("row").filter(has_text="window_start").first.is_visible()
        assert cells("watermark")["Value"] == "2013-07-01 12:00"
        assert cells("note")["Value"] == "2013-07-01T12:00:00Z"
        assert cells("number")["Value"] == "1,372,680,000,000"
        page.get_by_role("link", name="timers visits").click()
        page.get_by_role("row").filter(has_text="zebra").wait_for()
        row = page.get_by_role("row").filter(has_text="zebra").locator("td").all_inner_texts()
        assert row == ["2013-07-02 12:00", "event time", "later", "zebra"]
        query = "select window_start, seen, number from visit limit 1"
        page.goto(f"{address}/?view=sql&query={query}")
        page.locator("main td").first.wait_for()
        found = page.locator("main td").all_inner_texts()
        assert found == ["2013-07-01 12:00", "2013-07-01T12:00:00Z", "1,372,680,000,000"]


def lists(page, selector, field, names):
    """Wait until elements have these texts."""
    read = f"all => all.map(one => one.{field})"
    until(lambda: page.locator(selector).evaluate_all(read) == names)


def test_the_start_of_a_window_is_a_time(tmp_path, page):
    changelog = keyed.DirectoryChangelog(tmp_path / "log")
    rows = [{"name": "a", "time": NOON + 60_000 * minute} for minute in range(12)]
    late = keyed.bounded_out_of_orderness(minutes=60)
    windowed = keyed.stream(rows, timestamp="time", watermark=late).key_by("name")
    counts = windowed.window(w.TumblingEventTimeWindows.of(300_000)).aggregate(
        {"n": w.Count(), "mean": w.Mean("time")}, name="counts", changelog=changelog
    )
    counts.run(lambda rows, batch: None, checkpoint=tmp_path / "checkpoint", drain=False)
    with open_tables(changelog, tmp_path / "tables") as tables, served(tables) as address:
        tables.poll()
        page.goto(address)
        page.get_by_role("link", name="a", exact=True).first.wait_for()
        assert page.locator("main th").all_inner_texts() == ["name", "window_start", "window_end", "n", "mean"]
        starts = page.locator("tbody td:nth-child(2)").all_inner_texts()
        assert starts == ["2013-07-01 12:00", "2013-07-01 12:05", "2013-07-01 12:10"]
        assert page.locator("tbody td:nth-child(3)").all_inner_texts()[0] == starts[1]
        assert page.locator("tbody td:nth-child(4)").all_inner_texts() == ["5", "5", "2"]
        names = page.get_by_role("navigation", name="Tables").get_by_role("link").all_inner_texts()
        assert [text.split("\n")[0] for text in names] == ["counts", "timers"]


def test_the_search_ignores_case_and_completes_names(replayed, page):
    with served(replayed) as address:
        page.goto(f"{address}/?view=tables&table=number")
        search = page.get_by_label(SEARCH)
        for text, names in (
            ("ip", ["IPad", "iPhone"]),
            ("DIE", ["Die Hard", "die Welle"]),
            ("zOË", ["Zoë", "ZOË"]),
            ("q", []),
        ):
            search.fill(text)
            lists(page, "datalist option", "value", names)
        for text, names in (("DIE", ["Die Hard", "die Welle"]), ("z", ["ZOË", "Zoë", "zebra"]), ("q", [])):
            look_up(page, SEARCH, text)
            lists(page, "tbody td:first-child a", "innerText", names)
        # The changes are listed after the entries, and what is shown then stays.
        page.get_by_role("heading", name="Last changes").wait_for()
        assert page.get_by_text("No key begins with this.").is_visible()
        assert page.get_by_role("alert").count() == 0
        look_up(page, SEARCH, "die hard")
        page.get_by_role("heading", name="Die Hard", exact=True).wait_for()
        # Where two keys differ by case alone, the one that was typed is shown.
        look_up(page, SEARCH, "ZOË")
        page.get_by_role("heading", name="ZOË", exact=True).wait_for()


def test_a_view_that_fails_shows_why_until_the_next_batch_and_one_that_is_left_stays_silent(job, page):
    harness, _ = job
    refused: list[Any] = []

    def first_refused(route):
        if refused:
            return route.continue_()
        refused.append(route)
        return route.fulfill(status=503, json={"error": {"type": "Busy", "message": "no room for this request"}})

    with served(job[1]) as address:
        page.route("**/tables", first_refused)
        page.goto(address)
        page.get_by_role("alert").filter(has_text="no room for this request").wait_for()
        harness.process(("Die Hard", 1))
        page.get_by_role("link", name="Die Hard").wait_for()
        assert page.get_by_role("alert").count() == 0
        page.unroute("**/tables")
        # The fixture fails the test if the page raises because an answer is no longer wanted.
        page.route("**/tables", lambda route: None)
        with page.expect_request("**/tables"):
            page.get_by_role("button", name="Look up").click()
        with page.expect_request("**/tables"):
            page.go_back()
        page.unroute("**/tables")
        page.reload()
        page.get_by_role("link", name="Die Hard").wait_for()


def test_pages_of_several_spellings_follow_one_another(tmp_path, page):
    changelog = keyed.DirectoryChangelog(tmp_path / "log")
    names = [f"{letter}{number:03}" for letter in "Aa" for number in range(130)]
    stream = keyed.stream([{"name": name} for name in names]).key_by("name")
    stream.process(Counted(), name="counted", changelog=changelog).run(checkpoint=tmp_path / "checkpoint", drain=False)
    with open_tables(changelog, tmp_path / "tables") as tables, served(tables) as address:
        tables.poll()
        page.goto(f"{address}/?view=tables&table=n&key=a")
        for shown in (100, 200, 260):
            page.locator("tbody tr").nth(shown - 1).wait_for()
            assert page.locator("tbody tr").count() == shown
            if shown < 260:
                page.get_by_role("button", name="More").click()
        assert page.locator("tbody td:first-child").all_inner_texts() == names
        until(lambda: page.get_by_role("button", name="More").count() == 0)


class Counted(keyed.KeyedProcessFunction):
    n = keyed.ValueState(int)

    def process_element(self, value, ctx):
        self.n.update(1)


def test_the_sql_view_lists_tables_and_columns(replayed, page):
    with served(replayed) as address:
        page.goto(f"{address}/?view=sql")
        listed = page.get_by_role("navigation", name="Tables and columns")
        columns = listed.get_by_role("list", name="Columns of visit")
        columns.get_by_role("button", name="window_start").wait_for()
        assert columns.get_by_role("button").all_inner_texts() == [
            "name",
            "namespace",
            "window_start",
            "seen",
            "number",
        ]
        assert listed.locator("summary").all_inner_texts() == [
            "visit value",
            "watermark value",
            "note value",
            "number value",
        ]
        query = page.get_by_label("Query")
        query.fill("select  from visit")
        query.evaluate("area => area.setSelectionRange(7, 7)")
        columns.get_by_role("button", name="window_start").click()
        assert query.input_value() == "select window_start from visit"
        page.keyboard.press("Control+Enter")
        until(lambda: page.locator("main td").count() == len(NAMES))


def test_the_facts_of_the_header_wrap_together(replayed, page):
    facts = {"title": "Visits by name", **{f"Fact {number}": 10**number for number in range(9)}}
    with served(replayed, status=lambda: facts) as address:
        page.goto(address)
        page.get_by_role("heading", name="Visits by name").wait_for()
        assert page.title() == "Tables · Visits by name"
        assert "title" not in facts_of(page)
        for width in (1280, 1100, 900, 768, 390):
            page.set_viewport_size({"width": width, "height": 800})

            def rows():
                tops = page.locator("#facts dt").evaluate_all("all => all.map(one => one.getBoundingClientRect().top)")
                return [tops.count(top) for top in sorted(set(tops))]

            # The last row may be shorter by what does not divide, and never one number alone below a full row.
            until(lambda: len(rows()) < 9 and rows()[0] - rows()[-1] < max(2, len(rows())), report=rows)
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_failure_of_the_tables_is_shown_with_its_reason(replayed, page):
    broken: list[bool] = []

    def status():
        if broken:
            raise keyed.errors.ChangelogError("the changelog is gone")
        return {}

    with served(replayed, status=status) as address:
        page.goto(address)
        page.locator(".connection[data-state=live]").wait_for()
        broken.append(True)
        page.reload()
        page.locator(".connection[data-state=failed]").wait_for()
        page.get_by_role("alert").filter(has_text="the changelog is gone").wait_for()
        broken.clear()
        page.locator(".connection[data-state=live]").wait_for()
        until(lambda: page.get_by_role("alert").filter(has_text="the changelog is gone").count() == 0)

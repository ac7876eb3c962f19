"""The page of the main job in a real browser, against pandas; killed and started again while it is open."""

from __future__ import annotations

import os
import re
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from tests.support.limits import free_port
from tests.support.terminal import Job
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
PICTURES = os.environ.get("KEYED_PICTURES")
EVIL = "<img src=x onerror=\"document.title='evil'\">"

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.xdist_group("browser")]


@pytest.fixture(scope="module")
def flights(tmp_path_factory) -> Iterator[Job]:
    """The job over all flights, when the input has ended."""
    job = Job(tmp_path_factory.mktemp("flights") / "out", "--runtime", "local", "--pace", "0")
    job.has_printed("until Ctrl-C")
    job.serves()
    yield job
    assert job.interrupt() == 0, job.printed
    assert "Traceback" not in job.printed


@pytest.fixture(scope="module")
def top(flights) -> pd.DataFrame:
    """The rankings as the job has written them."""
    return pd.read_parquet(flights.output / "top")


def rows_of(page) -> list[tuple[int, str, int]]:
    """The ranking that is shown."""
    parts = "rows => rows.map(row => ['.rank', '.item', '.count'].map(part => row.querySelector(part).textContent))"
    found = page.locator(".ranking li:not(.leaving)").evaluate_all(parts)
    return [(int(rank), item, int(count.replace(",", ""))) for rank, item, count in found]


def ranking_of(top: pd.DataFrame, start: str | pd.Timestamp) -> list[tuple[int, str, int]]:
    window = top[top["window_start"] == pd.Timestamp(start)].sort_values("rank")
    return list(zip(window["rank"], window["item"], window["count"], strict=True))


def shows(page, rows: list[tuple[int, str, int]]) -> None:
    """Wait until a ranking is shown."""
    until(lambda: rows_of(page) == rows, report=lambda: f"{rows_of(page)} instead of {rows}")


def latest_full(top: pd.DataFrame) -> pd.Timestamp:
    """The newest window with as many rows as any of those in the last 200 rows has."""
    last = top.sort_values(["window_start", "rank"]).tail(200)
    sizes = last.groupby("window_start").size()
    sizes = sizes if len(last) == len(top) or len(sizes) == 1 else sizes.iloc[1:]
    return sizes[sizes == sizes.max()].index[-1]


def picture(page, name: str) -> None:
    """Keep a picture where one was asked for."""
    if PICTURES:
        page.wait_for_timeout(900)
        page.screenshot(path=f"{PICTURES}/{name}.png")


def test_the_latest_window_is_shown_and_one_steps_back(flights, top, page):
    starts = sorted(top["window_start"].unique())
    page.goto(flights.address)
    full = starts.index(latest_full(top))
    starts = starts[: full + 1]
    shows(page, ranking_of(top, starts[-1]))
    assert len(rows_of(page)) == 10
    # The first of the ranking is the item that is shown.
    page.get_by_role("heading", level=3, name=rows_of(page)[0][1]).wait_for()
    page.get_by_role("button", name="Earlier window").click()
    shows(page, ranking_of(top, starts[-2]))
    # Whoever gets the address sees the same window.
    shared = page.context.new_page()
    shared.goto(page.url)
    shows(shared, ranking_of(top, starts[-2]))
    page.keyboard.press("Escape")
    page.locator("h1").click()
    page.keyboard.press("ArrowLeft")
    shows(page, ranking_of(top, starts[-3]))
    page.keyboard.press("ArrowRight")
    shows(page, ranking_of(top, starts[-2]))
    page.go_back()
    shows(page, ranking_of(top, starts[-3]))
    page.get_by_role("button", name="Follow the latest window").click()
    shows(page, ranking_of(top, starts[-1]))
    # A night without flights is passed over.
    page.goto(f"{flights.address}/?view=ranking&window=2013-07-05T07:00:00Z")
    following = top.loc[top["window_start"] >= pd.Timestamp("2013-07-05T07:00Z"), "window_start"].min()
    shows(page, ranking_of(top, following))
    page.locator(".mono").filter(has_text="state hash").wait_for()
    until(lambda: re.search(r"Late rows\s+69", page.locator("#facts").inner_text()))
    assert page.get_by_role("heading", level=1).inner_text() == "Top 10 destinations from New York per hour"
    until(lambda: page.locator(".connection").inner_text() == "finished")
    assert "Behind the clock" not in page.locator("#facts").inner_text()


def test_what_was_known_at_a_batch_is_shown(flights, top, page):
    files = sorted((flights.output / "arrivals").glob("*.parquet"))
    for batch in (3, 9):
        rows = pd.concat(pd.read_parquet(file) for file in files[: batch + 1])
        ended = top[top["window_end"] <= rows["event_time"].max() - pd.Timedelta(minutes=60)]
        page.goto(f"{flights.address}/?as_of={batch}&item=BOS")
        shows(page, ranking_of(top, latest_full(ended)))
        assert page.locator(".mono").inner_text().startswith(f"batch {batch} ")
        counted = rows[(rows["item"] == "BOS") & (rows["event_time"] < ended["window_end"].max())]
        late = pd.read_parquet(flights.output / "late").merge(counted)
        page.locator("h3 + p").wait_for()
        assert page.locator("h3 + p").inner_text().startswith(f"{len(counted) - len(late):,} in ")
    page.goto(f"{flights.address}/?as_of=1000")
    page.get_by_text("the newest batch of operator 'rank-per-window' is").wait_for()


def test_an_item_is_found_with_its_counts(flights, top, page):
    page.goto(flights.address)
    search = page.get_by_role("combobox", name="Item")
    search.fill("at")
    until(lambda: page.locator("datalist option").evaluate_all("all => all.map(one => one.value)") == ["ATL"])
    search.fill("atl")
    page.get_by_role("button", name="Show").click()
    page.locator(".chart canvas").wait_for()
    page.get_by_role("heading", name="ATL").wait_for()
    total = int(page.locator("h3 + p").inner_text().split(" in ")[0].replace(",", ""))
    late = pd.read_parquet(flights.output / "late")["item"].value_counts()
    raw = pd.read_parquet(flights.output / "arrivals", columns=["item"])["item"].value_counts()
    assert total == raw["ATL"] - late.get("ATL", 0)
    assert "item=atl" in page.url
    # The picture of the README.
    page.set_viewport_size({"width": 1100, "height": 1130})
    page.goto(f"{flights.address}/?window=2013-07-12T20:00:00Z&item=ATL")
    page.locator(".chart canvas").wait_for()
    # A year of hours is drawn in weeks; what is dragged over in shorter lengths of time.
    page.get_by_text("Each bar is a week; drag over a part to see it closer.").wait_for()
    page.get_by_text("Each bar is a week; click one to go there; drag over a part to see it closer.").wait_for()
    picture(page, "top_n")
    page.get_by_role("img", name=re.compile("ATL by week, 2012-12-31 00:00 to 2013-12-30 00:00")).wait_for()
    over = page.locator(".chart .u-over").bounding_box()
    assert over is not None
    page.mouse.move(over["x"] + over["width"] * 0.5, over["y"] + 50)
    page.mouse.down()
    page.mouse.move(over["x"] + over["width"] * 0.53, over["y"] + 50, steps=5)
    page.mouse.up()
    page.get_by_text(re.compile(r"Each bar is (3 hours|an hour)\.")).wait_for()
    page.get_by_role("button", name="Show all").click()
    page.get_by_text("Each bar is a week; drag").wait_for()
    page.goto(f"{flights.address}/?item=nowhere")
    page.get_by_text("Nothing was counted of it yet.").wait_for()
    # The strip of all windows leads to the first one of the bar that is clicked.
    page.locator(".strip .u-over").click()
    page.wait_for_url(re.compile("window=2013-0[67]"))


def test_the_examples_of_sql_run(flights, page):
    page.goto(f"{flights.address}/?view=sql")
    examples = page.get_by_role("group", name="Examples").get_by_role("button")
    examples.nth(4).wait_for()
    assert examples.count() == 5
    for number in range(5):
        examples.nth(number).click()
        page.locator("[aria-busy=true]").wait_for(state="detached")
        assert page.get_by_role("alert").all_inner_texts() == []
        page.get_by_text(re.compile(r"^\d+ rows, \d+ ms$")).wait_for()


def test_the_page_is_readable_on_a_phone_and_in_the_dark(flights, browser):
    for colour in ("light", "dark"):
        context = browser.new_context(viewport={"width": 360, "height": 740}, color_scheme=colour)
        context.set_default_timeout(300_000)
        page = context.new_page()
        for path in (
            "/",
            "/?item=ATL",
            "/?view=tables&table=ranking",
            "/?view=sql&query=select+*+from+ranking+limit+5",
        ):
            page.goto(flights.address + path)
            page.locator("main .panel").first.wait_for()
            page.locator("#facts dd").first.wait_for()
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
        page.goto(flights.address)
        page.locator(".ranking li").first.wait_for()
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (max(map(int, re.findall(r"\d+", background)[:3])) < 64) == (colour == "dark")
        # The steps from window to window stay together, in one line.
        buttons = page.locator(".steps").first.get_by_role("button")
        tops = buttons.evaluate_all("all => all.map(one => one.getBoundingClientRect().top)")
        assert len(tops) == 3
        assert len(set(tops)) == 1
        picture(page, f"phone-{colour}")
        context.close()


def test_the_page_is_used_by_keyboard_alone(flights, top, page):
    page.goto(flights.address)
    page.locator(".ranking li").first.wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"

    def to(name: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if (
                page.evaluate(
                    "document.activeElement.title || document.activeElement.name || document.activeElement.textContent"
                )
                == name
            ):
                return
        raise AssertionError(f"{name} is not reached")

    to("Earlier window")
    page.keyboard.press("Enter")
    starts = sorted(top["window_start"].unique())
    shows(page, ranking_of(top, starts[starts.index(latest_full(top)) - 1]))
    to("item")
    page.keyboard.type("BOS")
    page.keyboard.press("Enter")
    page.locator(".chart canvas").wait_for()


def test_the_page_is_read_out_in_words(flights, top, page):
    start = pd.Timestamp("2013-07-12T20:00Z")
    before = {item: rank for rank, item, _ in ranking_of(top, str(start - pd.Timedelta(hours=1)))}
    page.goto(f"{flights.address}/?window={start:%Y-%m-%dT%H:%M:%SZ}")
    shows(page, ranking_of(top, str(start)))
    lines = []
    for rank, item, count in ranking_of(top, str(start)):
        up = before.get(item, rank) - rank
        change = "new" if item not in before else f"up {up}" if up > 0 else f"down {-up}" if up else "as before"
        lines += ["listitem:", f'text: "{rank}"', f'button "{item}"', f"text: {count} {change}"]
    read = page.get_by_role("list", name="Ranking").aria_snapshot()
    assert [line.strip().removeprefix("- ") for line in read.splitlines()[1:]] == lines
    # Whatever can be used has a name.
    snapshot = page.locator("body").aria_snapshot()
    assert re.findall(r"- (button|link|textbox|searchbox|combobox|img)(?::|$)", snapshot, re.MULTILINE) == []
    assert page.get_by_role("heading", level=1).count() == 1


def test_no_item_is_read_as_html(tmp_path, page):
    dataset = tmp_path / "rides.csv"
    lines = [f'"{EVIL.replace(chr(34), chr(34) * 2)}",2020-01-01T00:{minute:02}:00Z' for minute in range(10)]
    dataset.write_text("\n".join(["zone,pickup", *lines, "A,2020-01-01T05:00:00Z"]) + "\n")
    options = ["--runtime", "local", "--pace", "0", "--dataset", str(dataset)]
    job = Job(tmp_path / "out", *options, "--time-column", "pickup", "--item-column", "zone")
    try:
        job.has_printed("until Ctrl-C")
        job.serves()
        page.goto(f"{job.address}/?window=2020-01-01T00:00:00Z")
        shows(page, [(1, EVIL, 10)])
        page.locator(".ranking .item").click()
        page.locator("h3").wait_for()
        assert page.locator("h3").inner_text() == EVIL
        page.goto(f"{job.address}/?view=tables&table=history")
        page.get_by_role("link", name=EVIL).wait_for()
        page.get_by_role("link", name=EVIL).click()
        page.get_by_text("1 entry, listed below.").wait_for()
        assert page.locator("main img").count() == 0
        assert page.title() != "evil"
    finally:
        assert job.interrupt() == 0


@pytest.mark.parametrize("runtime", ["local", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.long])])
def test_killed_while_the_page_is_open_it_ends_with_the_same_numbers(tmp_path, flights, top, browser, page, runtime):
    options = ["--runtime", runtime, "--pace"]
    port = free_port()
    # Slow enough to be killed in the middle, however long the browser takes; what is left runs as fast as it can.
    job = Job(tmp_path / "out", *options, "120", port=port)
    others: list[threading.Thread] = []
    try:
        job.serves()
        page.goto(job.address)
        second = page.context.new_page()
        second.goto(job.address)
        page.locator(".connection[data-state=live]").wait_for()
        page.locator(".ranking li").first.wait_for()
        seen = page.locator(".window h2").inner_text()
        # Rows of 2013 are a replay, which is not behind the clock.
        assert "Behind the clock" not in page.locator("#facts").inner_text()
        # Bars move while the job goes on.
        until(lambda: page.locator(".window h2").inner_text() != seen)
        picture(page, "running")
        # A hundred others follow the job too.
        for _ in range(100):
            thread = threading.Thread(target=read_events, args=(f"{job.address}/batches",), daemon=True)
            thread.start()
            others.append(thread)
        seen = page.locator(".window h2").inner_text()
        until(lambda: page.locator(".window h2").inner_text() != seen)
        job.kill()
        page.locator(".connection[data-state=lost]").wait_for()
        job = Job(tmp_path / "out", *options, "0", port=port)
        job.has_printed("resuming where the last run stopped")
        page.locator(".connection[data-state=live]").wait_for()
        job.has_printed("until Ctrl-C")
        last = ranking_of(top, latest_full(top))
        for each in (page, second):
            shows(each, last)
        found = pd.read_parquet(tmp_path / "out" / "top")
        order = ["window_start", "rank"]
        pd.testing.assert_frame_equal(
            found.sort_values(order, ignore_index=True), top.sort_values(order, ignore_index=True)
        )
    finally:
        status = job.interrupt()
    assert status == 0, job.printed
    # Both pages were open when it was told to stop.
    assert not re.search("Traceback|Cancel", job.printed), job.printed
    for thread in others:
        thread.join(300)
        assert not thread.is_alive()


def read_events(url: str) -> None:
    """Read a stream of events until it ends."""
    try:
        with urllib.request.urlopen(url, timeout=300) as stream:
            while stream.readline():
                pass
    except OSError:
        pass

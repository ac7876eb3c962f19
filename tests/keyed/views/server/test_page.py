"""The page over the tables of any job, in a real browser: live, with a token, and against what is no text."""

from __future__ import annotations

import pytest

import keyed
from keyed.testing import KeyedTestHarness
from keyed.views import open_tables
from keyed.views.server import Access, serving
from tests.support.waiting import until

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.xdist_group("browser")]
TOKEN = "token-of-all-tables-0001"


class Sold(keyed.KeyedProcessFunction):
    sold = keyed.ValueState(int, default=0)
    by_day = keyed.MapState(str, int)

    def process_element(self, value, ctx):
        self.sold.update(self.sold.value() + value[1])
        self.by_day.put("monday", self.sold.value())


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A job, and its tables."""
    folder = tmp_path_factory.mktemp("job")
    changelog = keyed.DirectoryChangelog(folder / "log")
    with (
        KeyedTestHarness(Sold(), key=lambda value: value[0], parallelism=2, changelog=changelog) as harness,
        open_tables(changelog, folder / "tables") as tables,
    ):
        for number in range(1, 4):
            harness.process(("Die Hard", number))
        harness.process(("<b>bold</b>", 1))
        tables.start(every=0.05)
        tables.wait_for(4)
        yield harness, tables


def test_a_table_is_searched_and_followed(job, page):
    harness, tables = job
    with serving(tables, port=0, page=True, status=lambda: {"Cinemas": 3}) as address:
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
        page.get_by_label("Key, or what it begins with").fill("Die Hard")
        page.get_by_role("button", name="Look up").click()
        page.locator(".chart canvas").wait_for()
        until(lambda: page.locator("pre").inner_text() == "16")
        page.get_by_label("As of batch").fill("2")
        page.get_by_role("button", name="Look up").click()
        until(lambda: page.locator("pre").count() and page.locator("pre").inner_text() == "3")
        assert "as_of=2" in page.url
        page.get_by_label("As of batch").fill("77")
        page.get_by_role("button", name="Look up").click()
        page.get_by_role("alert").filter(has_text="newest batch").first.wait_for()


def test_a_token_is_asked_for_once_and_kept_from_scripts_and_addresses(job, page):
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    with serving(job[1], port=0, page=True, access=Access(tokens={TOKEN: ["*"]})) as address:
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

"""The build of the documentation site: staging, navigation, links and what the versions share; its pages in a browser.

Only the slow tests run the generator, if `make docs` has installed it.
"""

import functools
import http.server
import itertools
import json
import os
import re
import threading
from pathlib import Path

import pytest

from docs import build
from keyed import errors


@pytest.fixture(scope="module")
def staged(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site") / "pages"
    build.stage(folder)
    return folder


def test_blocks_links_and_lists_become_those_of_the_generator(tmp_path):
    page = build.DOCS / "how-to" / "timers.md"
    other = build.DOCS / "reference" / "streams.md"
    text = (
        "[a](../reference/streams.md#output) [`b`](../../pyproject.toml) [c](https://a.org/x)\n\n"
        "- one\n  two\n  - three\n- four\n\n  five\n- six\n\n```python spark\n- not a list\n```\n\n```output\n1\n```\n"
    )
    made = build.translated(text, page, "how-to/timers.md", {page: "how-to/timers.md", other: "reference/streams.md"})
    assert made == (
        "[a](../reference/streams.md#output) `b` [c](https://a.org/x)\n\n"
        "- one\n    two\n    - three\n\n- four\n\n    five\n\n- six\n"
        '\n```python\n- not a list\n```\n\n```{ .text .output title="Output" }\n1\n```\n'
    )


def test_an_option_is_not_a_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for arguments, status in ((["--help"], 0), (["--clean"], 2)):
        with pytest.raises(SystemExit, match=str(status)):
            build.main(arguments)
    said = capsys.readouterr()
    assert "folder for the site" in said.out
    assert "unrecognized arguments: --clean" in said.err
    assert list(tmp_path.iterdir()) == []


def test_a_link_to_nothing_fails_the_build():
    page = build.DOCS / "README.md"
    with pytest.raises(FileNotFoundError, match=r"docs/README.md links to gone.md"):
        build.translated("[a](gone.md)", page, "README.md", {page: "README.md"})


def test_every_page_is_in_the_navigation(staged):
    listed = set(re.findall(r'"([\w/-]+\.md)"', json.dumps(build.navigation())))
    pages = {path.relative_to(staged).as_posix() for path in staged.rglob("*.md")}
    examples = {page for page in pages if page.startswith("examples/")}
    assert examples
    assert pages - listed == examples  # these are linked from their index


def test_every_page_is_two_clicks_from_the_start_page(staged):
    def linked(page):
        targets = build.LINK.findall((staged / page).read_text())
        inside = [os.path.normpath(Path(page).parent / link[1].partition("#")[0]) for link in targets]
        return {target for target in inside if target.endswith(".md")}

    first = linked("README.md")
    within = {"README.md"} | first | {page for each in first for page in linked(each)}
    pages = {path.relative_to(staged).as_posix() for path in staged.rglob("*.md")}
    assert pages - within == set()


def test_figures_become_part_of_their_page(staged):
    text = (staged / "concepts.md").read_text()
    assert '<svg xmlns="http://www.w3.org/2000/svg" class="keyed-figure"' in text
    assert ".svg)" not in text


def test_dead_links_dead_anchors_and_foreign_files_are_found(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "index.html").write_text('<h1 id="there">x</h1>')
    (tmp_path / "index.html").write_text(
        '<a href="b/">1</a><a href="b/#there">2</a><a href="b/#gone">3</a><a href="c/">4</a><a href="#">5</a>'
        '<a href="https://a.org/">6</a><script src="https://a.org/x.js"></script><img src="y.png">'
    )
    assert build.check(tmp_path) == [
        "index.html: b/#gone has no such anchor",
        "index.html: c/ is not there",
        "index.html loads https://a.org/x.js",
        "index.html: y.png is not there",
    ]


def test_what_the_versions_share_leads_to_the_newest(staged, tmp_path, monkeypatch):
    for version in ("0.9", "0.10", "0.2"):
        (tmp_path / version).mkdir()
        monkeypatch.setattr(build, "VERSION", version)
        build.write_shared(tmp_path, staged)
    assert [each["version"] for each in json.loads((tmp_path / "versions.json").read_text())] == ["0.10", "0.9", "0.2"]
    assert "url=0.10/" in (tmp_path / "index.html").read_text()
    for name in errors.__all__:
        assert "url=../../0.10/" in (tmp_path / "errors" / name / "index.html").read_text()
    parallelism = (tmp_path / "errors" / "ParallelismChanged" / "index.html").read_text()
    assert "0.10/troubleshooting/#parallelismchanged" in parallelism
    assert "/0.10/how-to/timers.md)" in (tmp_path / "llms.txt").read_text()
    assert (tmp_path / "0.10" / "how-to" / "timers.md").exists()


def test_every_page_is_in_llms_txt_with_its_first_sentence(staged):
    text = build.llms(staged)
    assert text.startswith("# keyed\n\n> ")
    addresses = set(re.findall(rf"\({build.URL}{build.VERSION}/(\S+\.md)\)", text))
    assert {address for address in addresses if not (staged / address).exists()} == set()
    assert "- [Use timers]" in text
    assert "A timer calls `on_timer` of your function for one key, at a time that you set." in text


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The address of the built site."""
    if not (build.ENVIRONMENT / "made-from").exists():
        pytest.skip("the generator is not installed: make docs")
    folder = tmp_path_factory.mktemp("built")
    assert build.main([str(folder)]) == 0
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/{build.VERSION}/"
        server.shutdown()


#: What a reader searches for, and the page and section that has to be the first or the second result.
SEARCHES = {
    "async io": "how-to/enrich/#async-io-many-calls-at-a-time",
    "checkpoint lost": "how-to/restore/#a-lost-checkpoint",
    "write a trigger": "explanation/windows/#write-a-trigger",
    "slowly changing dimension": "how-to/recipes/#slowly-changing-dimension",
    "leaderboard": "how-to/recipes/#leaderboard",
    "deduplication": "how-to/recipes/#deduplicate",
    "deduplicate events": "how-to/recipes/#deduplicate",
    "funnel": "how-to/recipes/#funnel",
    "upgrade python": "how-to/production/#upgrades",
    "fraud": "tutorial/10-patterns/",
    "alert": "how-to/recipes/#alert-once",
    "backfill": "how-to/recipes/#backfill",
    "failed logins": "how-to/patterns/#recipes",
}


@pytest.mark.slow
def test_searches_find_the_page(site, page):
    wrong: dict[str, list[str]] = {}
    for query, wanted in SEARCHES.items():
        page.goto(site)
        page.locator(".md-search__button").click()
        page.keyboard.insert_text(query)  # at once: there are no results of a part of it
        results = page.locator("a[href*='?h=']")
        results.first.wait_for()
        found = [re.sub(r"\?h=[^#]*", "", each) for each in results.evaluate_all("all => all.map(each => each.href)")]
        wrong |= {} if site + wanted in found[:2] else {query: found[:3]}
    assert wrong == {}


#: What has parts that are hidden beside it: the page, or a block of code. Diagrams scroll on a phone.
HIDDEN = """() => [document.documentElement, ...document.querySelectorAll(".md-content pre > code")]
  .filter(each => innerWidth > 500 || !each.closest(".language-text:not(.output)"))
  .filter(each => each.scrollWidth > each.clientWidth + 1).map(each => each.innerText.slice(0, 60))"""


@pytest.mark.slow
def test_pages_fit_their_window(site, page, tmp_path):
    paths = ("", "explanation/comparison/", "how-to/windows/", "how-to/sql/", "reference/options/")
    for width, path in itertools.product((1280, 390), paths):
        page.set_viewport_size({"width": width, "height": 900})
        page.goto(site + path)
        page.screenshot(path=tmp_path / f"{path.replace('/', '-')}{width}.png")
        assert page.evaluate(HIDDEN) == [], path
        assert path or page.locator("svg.keyed-figure").bounding_box()["width"] > 300


def test_the_generator_is_pinned():
    pins = (build.ROOT / "constraints.txt").read_text()
    for requirement in build.PROJECT["optional-dependencies"]["docs"]:
        assert f"\n{re.split('[<>=]', requirement)[0]}==" in pins

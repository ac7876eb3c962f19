"""Builds the documentation site: ``python docs/build.py``, which `make docs` calls.

The site is written into `build/site`: a folder for the version that is built, and beside the versions what does not
depend on one: `versions.json` (the menu of versions), `llms.txt`, a start page, and an address for each error
(`errors/<name>/`), all of which lead to the newest version. ``python docs/build.py FOLDER`` builds into a folder of
yours, and keeps the other versions that are there.

The generator is Zensical: the authors of Material for MkDocs continue that as this, Material gets fixes until May 2027
only, and MkDocs 1 is not developed any more. Sphinx would need its own Markdown for what these pages have. Only the
Markdown, `configuration` and the environment depend on the choice; links are checked in the HTML by `check`.

The steps: `stage` copies the pages and turns them from GitHub's Markdown into the generator's, the generator
(Zensical, in an environment of its own) builds them with its warnings as errors, and `check` follows every link of the
HTML. Nothing is loaded from another host, neither here nor by the pages.
"""
# ruff: noqa: INP001, S603, T201 - a program, not a package, that runs pip and the generator

from __future__ import annotations

import argparse
import hashlib
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
ENVIRONMENT = ROOT / ".environments" / "docs"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: Where the site is published. This, and the addresses in errors, come from one line of `pyproject.toml`.
URL = PROJECT["urls"]["Documentation"]
#: The version in the site's menu: patches share their documentation.
VERSION = ".".join(PROJECT["version"].split(".")[:2])
#: Pages that are elsewhere in the project, by where they are in the site.
ELSEWHERE = {
    "project/changelog.md": ROOT / "CHANGELOG.md",
    "project/contributing.md": ROOT / "CONTRIBUTING.md",
    "project/security.md": ROOT / "SECURITY.md",
    "project/tests.md": ROOT / "tests" / "README.md",
}
#: The tabs of the site: a page, or the folder of an index page whose links are the pages below it, in their order.
TABS = (
    ("Start", "README.md"),
    ("Tutorial", "tutorial"),
    ("How-to", "how-to"),
    ("Explanation", "explanation"),
    ("Reference", "reference"),
    ("Coming from", "coming-from"),
    ("Project", "project"),
)
FENCE = re.compile(r"^( *)```(.*)$")
LINK = re.compile(r"(\[(?:[^\]\[]|\[[^\]]*\])*\]\()([^)\s]+)(\))")
ITEM = re.compile(r"^ *(?:[-*]|\d+\.) ")


def stage(to: Path) -> None:
    """Copy the pages into a folder, as the generator reads them.

    Raises:
        FileNotFoundError: A page links to a file that is not there.
    """
    shutil.rmtree(to, ignore_errors=True)
    pages = {path.relative_to(DOCS).as_posix(): path for path in DOCS.rglob("*.md")} | ELSEWHERE
    pages |= {f"examples/{path.stem}.md": path for path in (ROOT / "examples").glob("*.py") if path.stem[0] != "_"}
    places = {path: place for place, path in pages.items()}
    for place, path in pages.items():
        text = path.read_text()
        page = to / place
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(example(path.name, text) if path.suffix == ".py" else translated(text, path, place, places))
    for path in DOCS.rglob("*"):
        if path.suffix in {".svg", ".png", ".css"}:
            target = to / path.relative_to(DOCS)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def example(name: str, source: str) -> str:
    """Return the page of an example: its program."""
    return f"# `examples/{name}`\n\n```python\n{source}```\n"


def translated(text: str, path: Path, place: str, places: dict[Path, str]) -> str:
    """Return a page of GitHub's Markdown in the dialect of the generator.

    Args:
        text: The page.
        path: Its file, from which its links start.
        place: Its place in the site.
        places: The places of all pages.
    """

    def target(link: re.Match[str]) -> str:
        name, _, anchor = link[2].partition("#")
        if not name or "://" in name or name.startswith("mailto:"):
            return link[0]
        file = (path.parent / name).resolve()
        if file not in places and not file.exists():
            raise FileNotFoundError(f"{path.relative_to(ROOT)} links to {link[2]}, which is not there")
        if file not in places and not file.is_relative_to(DOCS):
            return link[1].removesuffix("](").removeprefix("[")  # a file of the project that is no page: its name
        inside = places.get(file) or file.relative_to(DOCS).as_posix()
        relative = os.path.relpath(inside, Path(place).parent)
        return f"{link[1]}{relative}{'#' if anchor else ''}{anchor}{link[3]}"

    lines: list[str] = []
    blank_in_item = False  # since the last item began
    item_indent = 0
    fence = -1  # spaces before the open fence
    shift = 0
    in_list = False
    for line in text.splitlines():
        found = FENCE.match(line)
        indent = len(line) - len(line.lstrip(" "))
        if found and fence < 0:
            fence = indent
            shift = _nested(indent) - indent if in_list else 0
            lines.append(" " * (indent + shift) + "```" + _language(found[2].strip()))
        elif fence >= 0:
            lines.append(" " * shift + line if line else line)
            if found and not found[2].strip():
                fence = -1
        else:
            if ITEM.match(line):
                in_list = True
                # The dialect takes it for a line of the paragraph or list above, unless a blank line is between.
                if lines and lines[-1] and (blank_in_item or indent < item_indent):
                    lines.append("")
                blank_in_item, item_indent = False, indent
            elif line and not indent:
                in_list, blank_in_item, item_indent = False, False, 0
            blank_in_item |= in_list and not line
            changed = " " * (_nested(indent) - indent) + line if in_list and line.strip() else line
            figure = re.fullmatch(r"!\[[^\]]*\]\((\S+\.svg)\)", line)
            drawn = (path.parent / figure[1]).read_text() if figure and (path.parent / figure[1]).exists() else ""
            if "keyed-figure" in drawn:
                # Part of the page, so that its colors follow the page's switch between light and dark.
                lines.append(f"<figure>\n{drawn.strip()}\n</figure>")
            else:
                lines.append(LINK.sub(target, changed))
    return "\n".join(lines) + "\n"


def _nested(indent: int) -> int:
    """Return the indentation of a list's inside: four spaces a level, where GitHub takes two or three."""
    return indent // 2 * 4


def _language(info: str) -> str:
    """Return the info string of a block: who runs it is the tests' concern."""
    if info == "output":
        return '{ .text .output title="Output" }'
    return info.split(" ", maxsplit=1)[0] or "text"


def entries(index: Path) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Yield the parts of an index page: a heading, and the titles and pages that are linked below it."""
    heading, found = "", list[tuple[str, str]]()
    seen = set[str]()
    for line in index.read_text().splitlines():
        if line.startswith("## "):
            yield heading, found
            heading, found = line[3:], []
        for title, link in re.findall(r"^(?:[-*]|\d+\.) \[([^\]]*)\]\(([^)#]*\.md)\)", line):
            if link not in seen:
                seen.add(link)
                found.append((title.replace("`", ""), link))
    yield heading, found


def navigation() -> list[object]:
    """Return the navigation, as the generator wants it."""
    tabs: list[object] = []
    for title, place in TABS:
        if place.endswith(".md"):
            tabs.append({title: [place, *(page for page in ("install.md", "concepts.md", "troubleshooting.md"))]})
            continue
        parts: list[object] = [f"{place}/README.md"]
        for heading, found in entries(DOCS / place / "README.md"):
            pages: list[object] = [{name: _inside(place, link)} for name, link in found]
            parts += [{heading: pages}] if heading and pages else pages
        tabs.append({title: parts})
    return tabs


def _inside(folder: str, link: str) -> str:
    """Return where the target of an index page's link is in the site."""
    file = (DOCS / folder / link).resolve()
    elsewhere = {path: place for place, path in ELSEWHERE.items()}
    return elsewhere.get(file) or file.relative_to(DOCS).as_posix()


def configuration(source: Path, to: Path) -> str:
    """Return the generator's settings; JSON's strings and lists are TOML's as well."""
    nav = ", ".join(_toml(tab) for tab in navigation())
    return f"""
[project]
site_name = "keyed"
site_url = "{URL}{VERSION}/"
site_description = {json.dumps(PROJECT["description"])}
docs_dir = "{source.name}"
site_dir = {json.dumps(os.path.relpath(to, source.parent))}
extra_css = ["site/keyed.css"]
nav = [{nav}]

[project.theme]
language = "en"
font = false    # from the system: nothing is loaded from other hosts
logo = "site/logo.svg"
favicon = "site/logo.svg"
features = [
  "content.code.copy", "navigation.footer", "navigation.indexes", "navigation.path", "navigation.tabs",
  "navigation.top", "navigation.sections", "search.highlight", "toc.follow",
]

[[project.theme.palette]]
media = "(prefers-color-scheme)"
toggle.icon = "lucide/sun-moon"
toggle.name = "Switch to light mode"

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle.icon = "lucide/sun"
toggle.name = "Switch to dark mode"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle.icon = "lucide/moon"
toggle.name = "Switch to system preference"

[project.extra]
generator = false

[project.extra.version]
provider = "mike"    # the menu reads ../versions.json; no other part of mike is used
alias = false

[project.validation]
invalid_links = true
invalid_link_anchors = true

[project.markdown_extensions]
attr_list = {{}}
md_in_html = {{}}
tables = {{}}

[project.markdown_extensions.toc]
permalink = true
slugify = {{object = "pymdownx.slugs.slugify", kwds = {{case = "lower"}}}}    # GitHub's anchors

[project.markdown_extensions.pymdownx.highlight]
anchor_linenums = false
pygments_lang_class = true

[project.markdown_extensions.pymdownx.superfences]

[project.markdown_extensions.pymdownx.tasklist]
custom_checkbox = true
"""


def _toml(value: object) -> str:
    """Return a list, a table or a string as TOML writes it on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def generator() -> Path:
    """Return the program of the generator, in an environment of its own that is made unless it is there.

    Of the project it needs the extra `docs` alone, in the versions of `constraints.txt`.
    """
    wanted = [*PROJECT["optional-dependencies"]["docs"], (ROOT / "constraints.txt").read_text(), str(ENVIRONMENT)]
    digest = hashlib.sha256("\n".join(wanted).encode()).hexdigest()
    stamp, python = ENVIRONMENT / "made-from", ENVIRONMENT / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != digest:
        print(f"Installing into {ENVIRONMENT.relative_to(ROOT)}", flush=True)
        shutil.rmtree(ENVIRONMENT, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", ENVIRONMENT], check=True)
        pip: list[str | Path] = [
            python,
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
            "--quiet",
            "-c",
            ROOT / "constraints.txt",
        ]
        subprocess.run([*pip, *PROJECT["optional-dependencies"]["docs"]], check=True)
        stamp.write_text(digest)
    return ENVIRONMENT / "bin" / "zensical"


class _Page(HTMLParser):
    """The addresses and the anchors of a page of HTML."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = {"", "__skip"}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Record the identifiers and links of a tag."""
        given = dict(attrs)
        self.anchors |= {value for name in ("id", "name") if (value := given.get(name))}
        address = given.get("src") or (given.get("href") if tag != "base" else None)
        if tag == "meta" and given.get("http-equiv") == "refresh":
            address = (given.get("content") or "").partition("url=")[2]
        if not address or given.get("rel") == "canonical":
            return
        (self.loaded if tag in {"script", "img", "link", "iframe"} else self.links).append(address)


def check(site: Path) -> list[str]:
    """Return what is wrong with the addresses in a site's pages.

    Each file and each anchor has to be there, and nothing may be loaded from another host.
    """
    pages: dict[Path, _Page] = {}
    for file in sorted(site.rglob("*.html")):
        pages[file] = page = _Page()
        page.feed(file.read_text())
    wrong = []
    for file, page in pages.items():
        if file.name == "404.html":
            continue  # its addresses are those of wherever it is shown
        where = file.relative_to(site)
        for address in (*page.links, *page.loaded):
            parts = urlsplit(address)
            if parts.scheme in {"mailto", "data", "javascript"}:
                continue
            if parts.scheme or parts.netloc:
                if address in page.loaded:
                    wrong.append(f"{where} loads {address}")
                continue
            path, anchor = urldefrag(address)
            target = (file.parent / unquote(urlsplit(path).path)).resolve() if path else file
            target = target / "index.html" if target.is_dir() else target
            if not target.exists():
                wrong.append(f"{where}: {address} is not there")
            elif target in pages and unquote(anchor) not in pages[target].anchors:
                wrong.append(f"{where}: {address} has no such anchor")
    return wrong


def redirect(to: str) -> str:
    """Return a page that leads to another one, without a script."""
    safe = html.escape(to)
    return (
        f'<!doctype html><meta charset="utf-8"><title>keyed</title><meta http-equiv="refresh" content="0; url={safe}">'
        f'<link rel="canonical" href="{safe}"><p><a href="{safe}">{safe}</a></p>\n'
    )


def names_of_errors() -> list[str]:
    """Return the names of the public errors, without importing the project."""
    listed = (ROOT / "keyed" / "errors.py").read_text().partition("__all__ = [")[2].partition("]")[0]
    return re.findall(r'"(\w+)"', listed)


def write_shared(site: Path, staged: Path) -> None:
    """Write what the versions share: their menu, the start page, the addresses of errors and `llms.txt`."""
    menu = site / "versions.json"
    others = json.loads(menu.read_text()) if menu.exists() else []
    versions = {each["version"] for each in others if (site / each["version"]).is_dir()} | {VERSION}
    newest = sorted(versions, key=lambda version: [int(part) for part in version.split(".")], reverse=True)
    menu.write_text(json.dumps([{"version": each, "title": each, "aliases": []} for each in newest], indent=1))
    if newest[0] != VERSION:
        return
    (site / "index.html").write_text(redirect(f"{VERSION}/"))
    anchors = sections(DOCS / "troubleshooting.md")
    for name in names_of_errors():
        folder = site / "errors" / name
        folder.mkdir(parents=True, exist_ok=True)
        section = f"troubleshooting/#{name.lower()}" if name.lower() in anchors else f"reference/errors/#{name.lower()}"
        (folder / "index.html").write_text(redirect(f"../../{VERSION}/{section}"))
    (site / "errors" / "index.html").write_text(redirect(f"../{VERSION}/troubleshooting/"))
    (site / "llms.txt").write_text(llms(staged))
    for page in staged.rglob("*.md"):
        copy = site / VERSION / page.relative_to(staged)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, copy)


def sections(page: Path) -> set[str]:
    """Return the anchors of the headings of a page that are nothing but a name."""
    return {name.lower() for name in re.findall(r"^#+ `(\w+)`$", page.read_text(), re.MULTILINE)}


def llms(staged: Path) -> str:
    """Return `llms.txt` (llmstxt.org): what the project is, and the address of each page as Markdown."""
    lines = ["# keyed", "", f"> {PROJECT['description']}", ""]
    for title, place in TABS:
        lines += [f"## {title}", ""]
        for page in _pages_of(place):
            text = (staged / page).read_text()
            name, about = title_of(text)
            lines.append(f"- [{name}]({URL}{VERSION}/{page}){': ' if about else ''}{about}")
        lines.append("")
    return "\n".join(lines)


def _pages_of(place: str) -> list[str]:
    """Return the pages of a tab."""
    if place.endswith(".md"):
        return [place, "install.md", "concepts.md", "troubleshooting.md"]
    links = [_inside(place, link) for _, found in entries(DOCS / place / "README.md") for _, link in found]
    return [f"{place}/README.md", *links]


def title_of(text: str) -> tuple[str, str]:
    """Return the title of a page, and the first sentence of its first paragraph."""
    title = next((line[2:] for line in text.splitlines() if line.startswith("# ")), "").replace("`", "")
    body = re.sub(r"^```.*?^```$|^<.*$|^ {4}.*$|^!\[.*$", "", text, flags=re.MULTILINE | re.DOTALL)
    paragraphs: Iterable[str] = (part.strip() for part in body.partition("\n")[2].split("\n\n"))
    first = next((part for part in paragraphs if part and part[0] not in "#|-<"), "")
    first = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(first.split()))
    return title, re.split(r"(?<=[.:]) ", first)[0].rstrip(":")


def main(arguments: list[str]) -> int:
    """Build the site, and return how many links are wrong."""
    parser = argparse.ArgumentParser(prog="docs/build.py", description="Build the documentation site.")
    default = ROOT / "build" / "site"
    parser.add_argument("site", nargs="?", type=Path, default=default, help="folder for the site (build/site)")
    site = parser.parse_args(arguments).site.resolve()
    version = site / VERSION
    # A folder for each build: the generator's cache is below its settings, and two builds do not share one.
    with tempfile.TemporaryDirectory(prefix="keyed-docs-") as scratch:
        staged, made = Path(scratch) / "pages", Path(scratch) / "html"
        stage(staged)
        settings = Path(scratch) / "zensical.toml"
        settings.write_text(configuration(staged, made))
        command: list[str | Path] = [generator(), "build", "--strict", "--clean", "-f", settings]
        built = subprocess.run(command, check=False, capture_output=True, text=True)
        if built.returncode:
            # Without colors, and without the calls inside the generator.
            print(re.sub(r"\x1b\[[\d;]*m", "", built.stdout + built.stderr).partition("Traceback")[0])
            return built.returncode
        shutil.rmtree(version, ignore_errors=True)
        shutil.copytree(made, version)
        write_shared(site, staged)
    wrong = check(site)
    print("\n".join(wrong) if wrong else f"{len(list(version.rglob('*.html')))} pages in {site}, no dead links")
    return min(len(wrong), 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The documentation as a test: snippets run and print what they say, links lead somewhere, nothing public is left out.

A fenced block ``python`` is run; ``python spark`` is run in the test session of Spark, ``python kafka`` there with a
broker whose address is in the environment variable ``KAFKA``. The blocks of a page are one program, and the pages of
the tutorial together are one. A block ``output`` after one of them is what it prints, with ``...`` for what differs
from run to run. Functions named ``test_*`` that a block defines are called after it. Blocks of other languages are only
read.
"""

import argparse
import contextlib
import doctest
import importlib
import inspect
import io
import os
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import pytest

from docs.generate import DOORS, ROOT, pages
from keyed.job.options import Options
from keyed.runtimes.job_metrics import OF_OPERATORS, OF_QUERY

DOCS = ROOT / "docs"
OUTSIDE = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "tests/README.md")]
PAGES = sorted([*OUTSIDE, *DOCS.rglob("*.md")])
REFERENCE = DOCS / "reference"
FENCE = re.compile(r"^```(.*)$")
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
COMPARE = doctest.OutputChecker()


class Block(NamedTuple):
    """A fenced block: its page, the line of its first line, its info string and its text."""

    page: Path
    line: int
    info: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page."""
    found: list[Block] = []
    start, info, lines = 0, "", list[str]()
    for number, line in enumerate(page.read_text().splitlines(), 1):
        fence = FENCE.match(line)
        if fence is None:
            lines.append(line)
        elif not start:
            start, info, lines = number + 1, fence[1].strip(), []
        else:
            found.append(Block(page, start, info, "\n".join(lines) + "\n"))
            start = 0
    assert not start, f"{page.name}: the fence at line {start - 1} is not closed"
    return found


def text_of(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def programs() -> dict[str, list[Block]]:
    """The blocks that are run together, by name."""
    found: dict[str, list[Block]] = {}
    for page in PAGES:
        name = page.relative_to(ROOT).with_suffix("").as_posix()
        name = "docs/tutorial" if page.parent.name == "tutorial" else name
        found.setdefault(name, []).extend(blocks_of(page))
    return found


PROGRAMS = programs()


def having(*infos: str) -> list[str]:
    """The programs that have a block with one of these info strings."""
    return [name for name, blocks in PROGRAMS.items() if any(block.info in infos for block in blocks)]


def run(blocks: list[Block], *infos: str) -> None:
    """Run the blocks with these info strings, and compare what they print."""
    # A user's script is __main__ too: Spark ships what is defined in it by value.
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if block.info not in infos:
            continue
        printed = io.StringIO()
        known = set(namespace)
        code = compile("\n" * (block.line - 1) + block.text, str(block.page), "exec", dont_inherit=True)
        with contextlib.redirect_stdout(printed):
            exec(code, namespace)
            for name in namespace.keys() - known:
                if name.startswith("test_"):
                    namespace[name]()
        if after is not None and after.info == "output":
            said = printed.getvalue()
            same = COMPARE.check_output(after.text, said, doctest.ELLIPSIS)
            assert same, f"{after.where} says\n{after.text}\nand the block at {block.where} printed\n{said}"
        else:
            assert not printed.getvalue(), f"{block.where} prints, and no block output follows: {printed.getvalue()}"


MARKS = {"README": pytest.mark.smoke, "docs/how-to/spark": pytest.mark.long}


#: Pages whose examples take seconds.
DEAR = {"docs/how-to/properties", "docs/tutorial"}

#: Packages of pages that an environment may lack which was made before they were needed.
NEW = {"docs/how-to/delta-and-iceberg": "pyiceberg"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in DEAR else ()) for name in having("python")]
)
def test_snippets_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if name in NEW and os.environ.get("CI") != "true":
        pytest.importorskip(NEW[name], reason=f"{NEW[name]} is not installed: make setup")
    run(PROGRAMS[name], "python")


@pytest.mark.parametrize("name", [pytest.param(name, marks=MARKS.get(name, ())) for name in having("python spark")])
def test_snippets_run_on_spark(name, spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(PROGRAMS[name], "python", "python spark")


@pytest.mark.parametrize("name", having("python kafka"))
def test_snippets_run_with_kafka(name, broker, spark_kafka, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KAFKA", broker.bootstrap)
    run(PROGRAMS[name], "python", "python kafka")


def test_blocks_have_a_known_language():
    # `python foreign` is a program of another framework, which nothing runs.
    known = {"python", "python kafka", "python spark", "output", "text", "console", "sql", "mermaid"}
    known |= {"python foreign", "java"}
    assert {
        block.where: block.info for blocks in PROGRAMS.values() for block in blocks if block.info not in known
    } == {}


def test_an_output_follows_what_is_run():
    for blocks in PROGRAMS.values():
        for before, block in zip([None, *blocks], blocks, strict=False):
            if block.info == "output":
                assert before is not None, block.where
                assert before.info.startswith("python"), f"{block.where} is the output of nothing"


@cache
def files_of(*tops: str) -> list[Path]:
    """The files and folders below folders of the project."""
    return [path.relative_to(ROOT / top) for top in tops for path in ROOT.glob(f"{top}/**/*")]


def missing_paths(text: str) -> list[str]:
    """The paths of the project that a text names and that are not there.

    A path starts at the root or at `tests/`, or is the end of just one file's path.
    """
    names = set(re.findall(r"(?<![\w./-])(?:keyed|windows|tests|examples|docs)/[\w./*-]*[\w/*]", text))
    names |= set(re.findall(r"`([\w./*-]+\.py)`", text))
    missing = []
    for name in sorted(names):
        tops = ("tests",) if name.rpartition("/")[2].startswith("test_") else ("keyed", "windows")
        there = any(ROOT.glob(name)) or any(ROOT.glob(f"tests/{name}"))
        if not there and sum(path.match(name) for path in files_of(*tops)) != 1:
            missing.append(name)
    return missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_paths_of_the_project_are_there(page):
    assert missing_paths(page.read_text()) == []


def test_a_path_that_is_not_there_is_seen():
    text = "`keyed/gone.py`, `gone.py`, `test_gone.py`, `keyed/gone/`, keyed/gone/x; `__init__.py` is many"
    assert len(missing_paths(text)) == 6
    assert missing_paths("`keyed/errors.py`, `keyed/*.py`, `errors.py`, tests/keyed/codec, `keyed/codec/`") == []


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    wrong = []
    for link in LINK.findall(text_of(page)):
        target, _, anchor = link.partition("#")
        if "://" in target or target.startswith("mailto:"):
            continue
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            wrong.append(link)
    assert wrong == []


def test_the_reference_is_what_the_docstrings_say():
    stale = [path.name for path, text in pages().items() if not path.exists() or path.read_text() != text]
    assert stale == [], "run: .venv/bin/python docs/generate.py"


MODULES = ("keyed", *(package for _, packages in DOORS.values() for package in packages))


def test_every_public_name_is_documented():
    text = "\n".join([*pages().values(), (DOCS / "troubleshooting.md").read_text()])
    headings = set(re.findall(r"^(?:#+|\||-(?= `[A-Z])) `(?:\w+\.)*(\w+)", text, re.MULTILINE))
    missing = {module: set(importlib.import_module(module).__all__) - headings for module in MODULES}
    assert {module: names for module, names in missing.items() if names} == {}


def rows_of_tables(page: Path) -> set[str]:
    """The names in backquotes in the first cells of the tables of a page, and before the colons of its lists."""
    cells = re.findall(r"^(?:\| ([^|]*) \||- ([^:]*):)", page.read_text(), re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", "".join(cell))}


def test_every_counter_is_documented():
    statuses = {each.name for each in OF_QUERY if each.name.endswith(("_status", "_failures"))}
    assert rows_of_tables(REFERENCE / "metrics.md") == {each.counter for each in OF_OPERATORS} | statuses


def test_every_option_of_run_and_start_is_documented():
    options = {field.name for field in attrs.fields(Options)}
    assert options - rows_of_tables(REFERENCE / "options.md") == set()


def test_every_setting_of_the_session_is_documented():
    from keyed.runtimes.spark.query import job
    from keyed.runtimes.spark.session import spark_session as session

    names = {*session._SQL, *session._LOCAL, session._PARTITIONS, session._JAVA_OPTIONS, job._LOCAL_DIR}
    assert names - rows_of_tables(REFERENCE / "options.md") == set()


def flags(parser: argparse.ArgumentParser) -> set[str]:
    """The long options of a command."""
    return {flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")} - {"--help"}


def test_every_flag_of_the_commands_is_documented():
    from examples.top_n.__main__ import _parser as top_n
    from tests.benchmarks.__main__ import _parser as benchmarks

    assert flags(top_n()) - rows_of_tables(REFERENCE / "options.md") == set()
    assert flags(benchmarks()) - rows_of_tables(ROOT / "tests" / "README.md") == set()


#: Benchmarks with a parser.
PARSED = "driver freshness joins nexmark properties requests scale scripts table_states tables versus_bytewax"
#: The options of benchmarks without one.
UNPARSED = {
    "crowded idle kafka latency patterns recovery rocks_memory sinks": "",
    "soak": "--minutes --runtime",
    "takeover": "--runtime",
}


def test_commands_in_the_docs_exist():
    from examples.nexmark.__main__ import _parser as nexmark
    from examples.top_n.__main__ import _parser as top_n
    from tests.benchmarks.__main__ import _parser as benchmarks

    known: dict[str, set[str]] = {f"examples.{path.stem}": set() for path in ROOT.glob("examples/*.py")}
    known |= {"examples.top_n": flags(top_n()), "tests.benchmarks": flags(benchmarks())}
    for names, options in UNPARSED.items():
        known |= {f"tests.benchmarks.{name}": set(options.split()) for name in names.split()}
    for name in PARSED.split():
        known[f"tests.benchmarks.{name}"] = flags(importlib.import_module(f"tests.benchmarks.{name}")._parser())
    known |= {
        "tests.keyed.patterns.count_flink_cases": set(),
        "tests.keyed.sql.count_ksqldb_cases": set(),
        "tests.keyed.sql.random_scripts": {"--seeds"},
    }
    commands = next(action.choices for action in nexmark()._actions if isinstance(action.choices, dict))
    known["examples.nexmark"] = set().union(*map(flags, commands.values()))
    targets = makefile_targets()
    for page in PAGES:
        text = page.read_text()
        for target in re.findall(r"^(?:\$ )?make ([a-z-]+)|`make ([a-z-]+)", text, re.MULTILINE):
            assert "".join(target) in targets, f"{page.name}: make {''.join(target)}"
        for module, rest in re.findall(r"python -m ((?:examples|tests)(?:\.\w+)+)(.*)$", text, re.MULTILINE):
            assert set(re.findall(r"--[a-z-]+", rest.partition("`")[0])) <= known[module], (
                f"{page.name}: {module}{rest}"
            )


def test_figures_of_nexmark_are_those_of_the_log():
    from tests.benchmarks import nexmark

    page = (DOCS / "explanation" / "performance.md").read_text()
    figures: dict[str, dict[str, dict[str, nexmark.Figures]]] = {}
    for (query, engine, runs), record in nexmark.read_log(ROOT / "tests" / "benchmarks" / "nexmark.jsonl").items():
        assert record["agrees"] is not False
        of_size = figures.setdefault(runs[-1].partition("-")[0], {})
        of_size.setdefault(query, {})[engine] = nexmark.figures_of(record)
    assert [*figures] == ["10000000", "1000000"]
    for of_size in figures.values():
        engines = [
            each for each in ("local", "flink", "keyed", "spark") if any(each in row for row in of_size.values())
        ]
        queries = sorted(of_size, key=lambda query: int(query[1:]))
        rows = {query: {engine: of_size[query].get(engine, "") for engine in engines} for query in queries}
        assert nexmark.table(rows, engines) in page


def test_the_functions_that_are_measured_are_those_of_the_page():
    from tests.benchmarks.minutes import MinuteByColumns, MinuteByRows

    page = (DOCS / "how-to" / "when-rows-are-too-slow.md").read_text()
    for function in (MinuteByRows, MinuteByColumns):
        assert inspect.getsource(function) in page


def test_every_folder_of_tests_is_documented():
    tests = ROOT / "tests"
    folders = {path.parent.relative_to(tests).as_posix() for path in tests.rglob("test_*.py")} - {"."}
    documented = rows_of_tables(tests / "README.md")
    missing = {f for f in folders if not {f"{f}/", f"{f}/test_*.py"} & documented}
    assert missing == set()


def makefile_targets() -> set[str]:
    """The targets that `make help` lists."""
    return set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_every_target_of_the_makefile_is_documented():
    documented = re.findall(r"^make ([a-z-]+) +#", (ROOT / "tests" / "README.md").read_text(), re.MULTILINE)
    assert makefile_targets() - set(documented) == set()


def test_every_kind_of_record_is_documented():
    sources = "\n".join(path.read_text() for path in (ROOT / "keyed").rglob("*.py"))
    kinds = set(re.findall(r'b"(K[A-Z]{3})"', sources))
    assert kinds <= rows_of_tables(REFERENCE / "byte-layouts.md")

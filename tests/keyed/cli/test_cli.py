"""The command line does what it says, and every command and option of it is documented."""

import argparse
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from random import Random

import pytest

import keyed
from docs.generate import ROOT
from keyed.changelog import DirectoryChangelog
from keyed.cli.main import main, parser
from keyed.testing.changelog_conformance import SampleGroup, state_of
from tests.support.data_files import read_data

COMMANDS = read_data("keyed/cli/commands.json")


@pytest.fixture
def changelog(tmp_path):
    made = DirectoryChangelog(tmp_path / "log", auto_compact=False)
    made.prepare("op", 2)
    for group in range(2):
        sample = SampleGroup(Random(group), group)
        for _ in range(5 + group):
            made.writer(group).append(*sample.commit())
    return made


def bases(changelog):
    return sorted(path.name for path in Path(changelog.path).glob("groups/*/*.base"))


def test_compact(changelog, capsys):
    states = [state_of(changelog.reader(group)) for group in range(2)]
    assert main(["compact", changelog.path]) == 0
    assert bases(changelog) == []
    assert main(["compact", changelog.path, "--lag-seconds", "2"]) == 0
    assert bases(changelog) == ["00000000000000000003.base", "00000000000000000004.base"]
    capsys.readouterr()
    assert main(["compact", changelog.path, "--history-bytes", "0"]) == 0
    assert bases(changelog) == ["00000000000000000004.base", "00000000000000000005.base"]
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith("group  base  newest")
    assert [line.split()[:3] for line in lines] == [["0", "4", "5"], ["1", "5", "6"]]
    assert [state_of(changelog.reader(group)) for group in range(2)] == states


def test_errors_are_told(tmp_path, capsys):
    assert main(["compact", str(tmp_path / "nothing")]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert (
        "is not there; give the folder of a changelog, or its prefix in an object store (see: keyed explain "
        in said.err
    )
    for wrong in ([], ["nothing"], ["compact"], ["compact", "x", "--lag-seconds", "y"]):
        with pytest.raises(SystemExit) as ended:
            main(wrong)
        assert ended.value.code == 2
    keyed.DirectoryChangelog(tmp_path).prepare("op", 1)
    assert main(["compact", str(tmp_path), "--lag-seconds", "-1"]) == 1
    assert "compaction_lag" in capsys.readouterr().err


@pytest.mark.parametrize(("line", "message"), COMMANDS["misspelt names"])
def test_misspelt_names_are_answered_with_near_ones(capsys, line, message):
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_what_only_looks_like_an_option_is_a_value(changelog, capsys):
    sample = ["get", changelog.path, "s", "--", "--limt"]
    assert main(sample) == 1
    assert "no option" not in capsys.readouterr().err
    # Options may be shortened, as ever.
    assert main(["compact", changelog.path, "--lag", "3600"]) == 0


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    package = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert capsys.readouterr().out == f"keyed {keyed.__version__}\n" == f"keyed {package['version']}\n"


def test_docs_name_the_program():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    said = [str(page) for page in pages if "python -m keyed.cli" in page.read_text()]
    # The page of commands names the other way to call it, once.
    assert said == [str(ROOT / "docs" / "reference" / "options.md")]


def test_every_command_and_option_is_documented():
    page = (ROOT / "docs" / "reference" / "options.md").read_text()
    (commands,) = (action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    for name, command in commands.choices.items():
        # Commands that have their arguments in common have one section.
        found = re.search(rf"^### .*`{name}`.*$", page, re.MULTILINE)
        assert found is not None, name
        section = page[found.end() :].partition("\n#")[0]
        for action in command._actions:
            for flag in action.option_strings or [action.dest.upper()]:
                assert flag in ("-h", "--help") or f"`{flag}`" in section, f"{name} {flag}"


@pytest.mark.parametrize(
    ("line", "completions"),
    [("keyed ve", ["verify "]), ("keyed hi", ["history "]), ("keyed compact log --h", ["--help", "--history-bytes"])],
)
def test_a_shell_completes_commands_and_options(tmp_path, line, completions):
    pytest.importorskip("argcomplete")
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(tmp_path / "completions"),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
    }
    command = [sys.executable, "-c", "from keyed.cli.main import console; console()"]
    subprocess.run(command, env=os.environ | asked, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    said = (tmp_path / "completions").read_text()
    assert sorted(word for word in said.split("\n") if word) == completions

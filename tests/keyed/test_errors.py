"""Errors: their addresses, in tracebacks and after travel."""

import copy
import pickle
import re
import tomllib
import traceback

import pytest

from docs.generate import ROOT
from keyed import errors
from keyed.cli.main import main
from keyed.errors import DOCUMENTATION, ChangelogDiverged, CorruptionError, UserFunctionError
from keyed.runtimes.spark.query.failures import translated

CLASSES = [getattr(errors, name) for name in errors.__all__]


def shown(error):
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_traceback_ends_with_the_address_of_the_error_and_its_text_does_not(cls):
    error = cls("the message")
    assert str(error) == "the message"
    assert shown(error).endswith(f": the message\nSee {DOCUMENTATION}errors/{cls.__name__}\n")


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_address_leads_to_a_section(cls):
    assert cls.help_url == f"{DOCUMENTATION}errors/{cls.__name__}"
    pages = [ROOT / "docs" / "troubleshooting.md", ROOT / "docs" / "reference" / "errors.md"]
    assert any(f"# `{cls.__name__}`\n" in page.read_text() for page in pages)


def test_at_least_twenty_errors_have_cause_and_remedy():
    text = (ROOT / "docs" / "troubleshooting.md").read_text()
    sections = re.split(r"^### `(\w+)`$", text, flags=re.MULTILINE)[1:]
    found = dict(zip(sections[::2], sections[1::2], strict=True))
    assert len(found) >= 20
    assert set(found) <= set(errors.__all__)
    assert [name for name, section in found.items() if "**Cause" not in section or "**Remedy" not in section] == []


def test_the_base_of_the_addresses_is_that_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["urls"]["Documentation"] == DOCUMENTATION


def test_an_error_of_another_package_has_the_address_of_its_base():
    class Own(ChangelogDiverged):
        pass

    assert Own("x").help_url == ChangelogDiverged.help_url


def test_the_address_stays_last_whatever_is_added():
    error = UserFunctionError("x")
    error.add_note("first")
    error.add_note("second")
    assert error.__notes__ == ["first", "second", f"See {error.help_url}"]


def test_errors_that_travel_a_thousand_times_have_one_address():
    error = CorruptionError("bad checksum", where="log", offset=3)
    other = UserFunctionError("x")
    other.add_note("In the worker")
    for _ in range(1_000):
        error = pickle.loads(pickle.dumps(error))
        other = copy.copy(pickle.loads(pickle.dumps(other)))
    assert (str(error), error.__notes__) == ("bad checksum in log at byte 3", [f"See {error.help_url}"])
    assert other.__notes__ == ["In the worker", f"See {other.help_url}"]


def test_an_error_that_comes_back_from_spark_as_text_has_one_address():
    text = "x\n" + shown(ChangelogDiverged("first line\nsecond line")) + "\n\tat a.b(C.java:1)"
    error = translated(RuntimeError(text), "q")
    assert type(error) is ChangelogDiverged
    assert str(error) == "first line\nsecond line"
    assert error.__notes__ == [f"See {ChangelogDiverged.help_url}"]


def test_the_command_line_prints_the_address(tmp_path, capsys):
    assert main(["verify", str(tmp_path / "gone")]) == 1
    assert re.search(rf" \(see {DOCUMENTATION}errors/\w+\)\n$", capsys.readouterr().err)


def test_a_message_that_quotes_another_error_has_no_address_inside():
    assert str(UserFunctionError(f"outer: {CorruptionError('inner')}")) == "outer: inner"

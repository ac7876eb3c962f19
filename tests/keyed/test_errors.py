"""Errors: the command that explains each, in tracebacks, after travel, and from a wheel."""

import copy
import pickle
import re
import traceback
from email.message import Message

import pytest

from keyed import errors
from keyed.cli.main import main
from keyed.errors import ChangelogDiverged, CorruptionError, UserFunctionError, remedy

CLASSES = [getattr(errors, name) for name in errors.__all__]


def shown(error):
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_a_traceback_ends_with_the_command_that_explains_the_error_and_its_text_does_not(cls):
    error = cls("the message")
    assert str(error) == "the message"
    assert shown(error).endswith(f": the message\nFor causes and remedies run: keyed explain {cls.__name__}\n")


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_is_explained(cls, capsys):
    assert cls.code == cls.__name__
    assert main(["explain", cls.code.lower()]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{cls.__name__}: {cls.__doc__.partition(chr(10))[0]}")
    has_section = cls is not errors.KeyedError
    assert ("\nCause" in text, "Remed" in text) == (has_section, has_section)
    assert "](" not in text.partition("```")[0]
    assert "keyed.example" not in text


def test_an_unknown_code_is_refused_with_those_that_are_near(capsys):
    assert main(["explain", "StateSchemaChange"]) == 1
    assert "did you mean StateSchemaChanged?" in capsys.readouterr().err
    assert main(["explain", "zzz"]) == 1
    assert "the errors are: ChangelogDiverged, " in capsys.readouterr().err


def test_a_real_address_of_the_metadata_is_printed(monkeypatch, capsys):
    for address, printed in (
        ("https://keyed.example/", ""),
        ("https://docs.keyed.dev", "https://docs.keyed.dev/errors/RowError"),
    ):
        found = Message()
        found["Project-URL"] = f"Documentation, {address}"
        monkeypatch.setattr("keyed.cli.explain_command.metadata", lambda _, found=found: found)
        assert main(["explain", "RowError"]) == 0
        assert ("https://" in (text := capsys.readouterr().out), text.count(printed) > 0) == (bool(printed), True)


def test_an_error_of_another_package_is_explained_as_its_base():
    class Own(ChangelogDiverged):
        pass

    assert Own("x").code == ChangelogDiverged.code


def test_the_command_stays_last_whatever_is_added():
    error = UserFunctionError("x")
    error.add_note("first")
    error.add_note("second")
    assert error.__notes__ == ["first", "second", remedy(type(error))]


def test_errors_that_travel_a_thousand_times_have_one_note():
    error = CorruptionError("bad checksum", where="log", offset=3)
    other = UserFunctionError("x")
    other.add_note("In the worker")
    for _ in range(1_000):
        error = pickle.loads(pickle.dumps(error))
        other = copy.copy(pickle.loads(pickle.dumps(other)))
    assert (str(error), error.__notes__) == ("bad checksum in log at byte 3", [remedy(type(error))])
    assert other.__notes__ == ["In the worker", remedy(type(other))]


def test_the_command_line_names_the_command(tmp_path, capsys):
    assert main(["verify", str(tmp_path / "gone")]) == 1
    assert re.search(r" \(see: keyed explain \w+\)\n$", capsys.readouterr().err)


def test_a_message_that_quotes_another_error_has_no_note_inside():
    assert str(UserFunctionError(f"outer: {CorruptionError('inner')}")) == "outer: inner"

"""Every command that is given the wrong thing names what it was given, and writes nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from keyed.cli.command import Place, place_of
from keyed.cli.main import main
from tests.support.data_files import read_data

FUNCTIONS = ["tests.keyed.cli.conftest:Count", "tests.keyed.cli.conftest:Twice"]
_PLACES = read_data("keyed/cli/commands.json")
#: What each folder of `job_folder` is in messages.
THINGS: dict[str, str] = _PLACES["things"]
#: Changelogs that are no folder, and checkpoints of Spark.
TOPIC, OBJECTS, URI = "kafka://host:9092/topic", "s3://bucket/folder", "hdfs://host/folder"
GROUPS = {"logs": {TOPIC, OBJECTS}, "remote": {OBJECTS, URI}}
#: Each argument of each command that names a place: the command line, what the argument takes, and what it takes too
#: that is not tried here, because it needs Spark, a broker or an object store.
ARGUMENTS = {
    name: (
        [word.format(first=FUNCTIONS[0], second=FUNCTIONS[1]) for word in argument["line"]],
        set(argument["takes"]),
        set[str]().union(*(GROUPS.get(thing, {thing}) for thing in argument["also"])),
    )
    for name, argument in _PLACES["arguments"].items()
}


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_the_wrong_thing_is_named(places, capsys, argument):
    line, _, also = ARGUMENTS[argument]
    before = sorted(places.rglob("*"))
    for thing in sorted(THINGS.keys() - ARGUMENTS[argument][1] - also):
        assert main([text.replace("?", thing) for text in line]) == 1, thing
        said = capsys.readouterr()
        assert said.out == ""
        assert re.match(rf"error: \S+ '{re.escape(thing)}' {re.escape(THINGS[thing])}; give ", said.err), said.err
        assert said.err.count("\n") == 1
    assert sorted(places.rglob("*")) == before


@pytest.mark.parametrize(
    ("argument", "thing"), [(argument, thing) for argument in ARGUMENTS for thing in sorted(ARGUMENTS[argument][1])]
)
@pytest.mark.usefixtures("places")
def test_the_right_thing_is_taken(capsys, argument, thing):
    assert main([text.replace("?", thing) for text in ARGUMENTS[argument][0]]) == 0
    said = capsys.readouterr()
    # Tables that are level already have nothing to report.
    assert said.out or argument == "standby to"
    assert said.err == ""


def test_every_command_is_tried():
    from keyed.cli.main import _parsers

    # ``explain`` takes no place.
    assert {line[0] for line, *_ in ARGUMENTS.values()} == set(_parsers()[1]) - {"explain"}


@pytest.mark.usefixtures("places")
def test_the_message_names_the_commands_for_a_thing_or_one_below_it_that_fits(tmp_path, capsys):
    assert main(["inspect", "changelog"]) == 1
    assert "Commands for a changelog: verify, tables, get" in capsys.readouterr().err
    folder = str(tmp_path / "places")
    for command, found in (("verify", "changelog"), ("inspect", "checkpoint")):
        assert main([command, folder]) == 1
        assert f", such as {str(Path(folder, found))!r} (see" in capsys.readouterr().err


def test_folders_without_files_are_empty(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert place_of(str(tmp_path)) is Place.EMPTY
    assert place_of("file:/tmp/checkpoint") is Place.REMOTE


@pytest.mark.parametrize(
    ("lines", "line", "reason"),
    [
        (['{"word": "be"}', "", '{"word":', '{"word": "or"}'], 3, ""),
        (['{"word": "be"}'] * 100_000 + ['{"word": 5}'], 100_001, "changed from string to number"),
        (['{"word": "be"}', "[1]"], 2, "changed from object to array"),
    ],
)
def test_a_line_that_is_no_row_is_named(job_folder, tmp_path, capsys, lines, line, reason):
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(lines))
    assert main(["replay", str(job_folder / "changelog"), *FUNCTIONS, str(file), "--key", "word"]) == 1
    assert re.search(
        f"rows '.*rows.jsonl', line {line} cannot be read: JSON parse error: .*{reason}", capsys.readouterr().err
    )

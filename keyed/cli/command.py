"""Commands of the command line, and functions that they share: for changelogs, checkpoints and folders.

A changelog is named by the path of a folder, ``kafka://HOST:PORT/TOPIC``, or ``s3://BUCKET/PREFIX`` (``gs://``, ``az://``).
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs

import keyed
from keyed.base.arguments import without_credentials
from keyed.changelog import Changelog, DirectoryChangelog, KafkaChangelog, ObjectStoreChangelog
from keyed.cli.places import CHANGELOGS, CHECKPOINTS, FREE, KAFKA, Place, check_place, place_of
from keyed.errors import DefinitionError

#: The forms of a changelog's address, for the help of arguments.
CHANGELOG = "a folder, kafka://HOST:PORT/TOPIC, or s3://, gs:// or az:// with BUCKET/PREFIX"
#: Numbers of key groups in one range; Spark has no use for as many partitions.
_MOST_GROUPS = 1_000_000


@attrs.frozen
class Command:
    """A command.

    Attributes:
        name: Its name.
        help: A sentence of description.
        add_arguments: Adds its arguments to a parser.
        run: Runs it, and returns the exit status.
        examples: Examples of its arguments to show in its help.
    """

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    examples: tuple[str, ...] = ()


def command(
    help: str, add_arguments: Callable[[argparse.ArgumentParser], None], *examples: str
) -> Callable[[Callable[[argparse.Namespace], int]], Command]:
    """Make a function the command of its name. Parameters are those of `Command`."""
    return lambda run: Command(run.__name__.strip("_"), help, add_arguments, run, examples)


def add_list(parser: argparse.ArgumentParser, option: str, metavar: str, about: str) -> None:
    """Add an option that may be given more than once."""
    about += "; may be given more than once"
    parser.add_argument(option, action="append", default=[], metavar=metavar, help=about)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the option for the settings of Kafka clients."""
    add_list(parser, "--kafka-setting", "NAME=VALUE", "a setting of the Kafka client")


def add_groups(parser: argparse.ArgumentParser) -> None:
    """Add the option for a share of the key groups."""
    parser.add_argument(
        "--groups", type=_groups, metavar="GROUPS", help="only these key groups, from 0, such as 0-15 or 0-3,7 (all)"
    )


def _groups(text: str) -> list[int]:
    """Return the key groups of a text such as ``0-3,7``."""
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:-(\d{1,9}))?\s*", part, re.ASCII)
        first, last = (0, -1) if match is None else (int(match[1]), int(match[2] or match[1]))
        if not 0 <= last - first < _MOST_GROUPS:
            raise argparse.ArgumentTypeError(f"{text!r}: give key groups such as 0-15 or 0-3,7")
        numbers += range(first, last + 1)
    return numbers


def check_checkpoint(text: str, parameter: str = "CHECKPOINT") -> None:
    """Check that an argument names a checkpoint, of the local runtime or of Spark.

    Raises:
        DefinitionError: It names something else.
    """
    check_place(text, CHECKPOINTS, parameter, "the folder of a checkpoint")


def check_tables_folder(text: str, parameter: str) -> None:
    """Check that tables can be kept in a folder.

    Raises:
        DefinitionError: The folder holds something else.
    """
    check_place(text, FREE | {Place.TABLES}, parameter, "a new folder for the tables, or that of earlier ones")


def session_for(checkpoint: str) -> Any:
    """Return a Spark session to read a checkpoint of Spark with, ``None`` for one of the local runtime.

    Spark reads all file systems other than the local one. The session is local, unless ``MASTER`` or ``spark-submit``
    set another master.
    """
    if place_of(checkpoint) in (Place.SPARK_CHECKPOINT, Place.REMOTE, Place.OBJECTS):
        return keyed.spark_session("keyed")
    return None


def changelog_of(
    text: str, arguments: argparse.Namespace, parameter: str = "CHANGELOG", *, may_be_new: bool = False
) -> Changelog:
    """Return the changelog that an argument names.

    Args:
        text: The argument.
        arguments: All arguments, with the settings of the client.
        parameter: Name of the argument.
        may_be_new: True if the command creates a missing one.

    Raises:
        DefinitionError: It or a setting is malformed, or it is not a changelog.
    """
    expected = f"the changelog of an operator ({CHANGELOG})"
    place = check_place(text, CHANGELOGS | FREE if may_be_new else CHANGELOGS, parameter, expected)
    if place is Place.OBJECTS:
        return ObjectStoreChangelog(text, auto_compact=False)
    if not text.startswith(KAFKA):
        # A short command leaves compaction to the job.
        return DirectoryChangelog(text, auto_compact=False)
    bootstrap, topic = topic_of(text, "changelog")
    return KafkaChangelog(topic, bootstrap=bootstrap, settings=settings_of(arguments))


def topic_of(text: str, parameter: str) -> tuple[str, str]:
    """Return the address of brokers and the topic that an argument names.

    Raises:
        DefinitionError: It is malformed.
    """
    bootstrap, slash, topic = text.removeprefix(KAFKA).partition("/")
    if not text.startswith(KAFKA) or not bootstrap or not slash or not topic:
        other = ", or the path of a folder" if parameter == "changelog" else ""
        raise DefinitionError(f"{parameter} {without_credentials(text)!r}: give kafka://HOST:PORT/TOPIC{other}")
    return bootstrap, topic


def settings_of(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the settings of Kafka clients, which may be empty. See `parse_pairs`."""
    return parse_pairs(arguments.kafka_setting, "--kafka-setting", allow_empty=True)


def parse_pairs(
    pairs: Iterable[str], option: str, form: str = "NAME=VALUE", *, allow_empty: bool = False
) -> dict[str, str]:
    """Return values by name.

    Raises:
        DefinitionError: One has no name or value, or a name comes twice.
    """
    values: dict[str, str] = {}
    for each in pairs:
        name, equals, value = each.partition("=")
        if not (name and equals and (value or allow_empty)):
            raise DefinitionError(f"{option} {each!r}: give {form}")
        if name in values:
            raise DefinitionError(f"{option} {each!r}: {name} is given twice")
        values[name] = value
    return values


def read_text(path: Path, parameter: str) -> str:
    """Return the text of a file.

    Raises:
        DefinitionError: It cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DefinitionError(f"{parameter} {str(path)!r} cannot be read: {error}") from error

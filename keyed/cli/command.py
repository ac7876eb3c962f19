"""Commands of the command line, and functions that they share: for changelogs, checkpoints, folders and output.

A changelog is named by the path of a folder, ``kafka://HOST:PORT/TOPIC``, or ``s3://BUCKET/PREFIX`` (``gs://``,
``az://``).

Rows on standard output are JSON lines, or a human-readable table with aligned columns. Its reader may exit, as in
``keyed scan ... | head``.

A command that is given a wrong kind of folder names its kind. A folder is recognized by the files that its writer
leaves: the header of a changelog, the commits of a checkpoint, the stores of state tables, the mark of a sink. Topics,
and the paths of other file systems, are recognized by their names.
"""

from __future__ import annotations

import argparse
import os
import re
import select
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Any

import attrs

import keyed
from keyed.base.arguments import time_text, without_credentials
from keyed.changelog import Changelog, DirectoryChangelog, KafkaChangelog, ObjectStoreChangelog
from keyed.changelog.objects.object_changelog import is_object_store
from keyed.destinations.parquet import MARK
from keyed.errors import DefinitionError, KeyedError
from keyed.formats.json_writer import as_json
from keyed.stores.commit_store import COMMITS_FOLDER

KAFKA = "kafka://"
#: Maximal number of subfolders searched for a suitable one.
_BELOW = 200


class Place(Enum):
    """Kinds of places, with their names in messages."""

    CHANGELOG = "a changelog"
    TOPIC = "a Kafka topic"
    OBJECTS = "a prefix in an object store"
    CHECKPOINT = "a checkpoint of the local runtime"
    SPARK_CHECKPOINT = "a checkpoint of Spark"
    REMOTE = "a URI"
    TABLES = "a folder of state tables"
    SINK = "a folder that a sink has written"
    RECORD = "a folder that a job's record= has written"
    EMPTY = "an empty folder"
    MISSING = "not there"
    FILE = "a file"
    FOREIGN = "a folder that holds nothing of keyed"


CHANGELOGS = frozenset({Place.CHANGELOG, Place.TOPIC, Place.OBJECTS})
CHECKPOINTS = frozenset({Place.CHECKPOINT, Place.SPARK_CHECKPOINT, Place.REMOTE, Place.OBJECTS})
#: Places for something new.
FREE = frozenset({Place.EMPTY, Place.MISSING})
#: The commands for each kind of place, for messages.
_COMMANDS = {
    Place.CHANGELOG: "verify, tables, get, sql, restore, standby, replay",
    Place.TOPIC: "verify, tables, get, sql, restore, standby, replay",
    Place.CHECKPOINT: "inspect, verify, flush",
    Place.SPARK_CHECKPOINT: "inspect, verify, flush",
    Place.TABLES: "tables, get, scan, history, sql, tail, serve",
    Place.RECORD: "replay (as ROWS)",
}


def place_of(text: str) -> Place:
    """Return the kind of place that an argument names."""
    if text.startswith(KAFKA):
        return Place.TOPIC
    if is_object_store(text):
        return Place.OBJECTS
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", text):
        return Place.REMOTE
    path = Path(text)
    if path.is_file():
        return Place.FILE
    if not path.is_dir():
        return Place.MISSING
    if (path / "header").is_file():
        return Place.CHANGELOG
    if (path / COMMITS_FOLDER).is_dir():
        return Place.CHECKPOINT
    if (path / "offsets").is_dir():
        return Place.SPARK_CHECKPOINT
    if next(path.glob("*/keyed-versions-*"), None) is not None:
        return Place.TABLES
    if (path / MARK).is_file():
        return Place.RECORD if _is_record(path) else Place.SINK
    # Empty folders that a killed program left behind are accepted.
    return Place.FOREIGN if any(not each.is_dir() for each in path.rglob("*")) else Place.EMPTY


def check_place(text: str, allowed: frozenset[Place], parameter: str, expected: str) -> Place:
    """Return the kind of place that an argument names.

    Args:
        text: The argument.
        allowed: The kinds that the command takes.
        parameter: Name of the argument.
        expected: Description of a valid argument, for the message.

    Raises:
        DefinitionError: It is of another kind.
    """
    place = place_of(text)
    if place in allowed:
        return place
    message = f"{parameter} {without_credentials(text)!r} is {place.value}; give {expected}"
    inner = next((each for each in _subfolders(text) if place_of(str(each)) in allowed - FREE), None)
    if inner is not None:
        message += f", such as {str(inner)!r}"
    elif place in _COMMANDS:
        message += f". Commands for {place.value}: {_COMMANDS[place]}"
    raise DefinitionError(message)


def _is_record(path: Path) -> bool:
    from keyed.testing import Recording

    try:
        Recording(path)
    except (KeyedError, KeyError, OSError, ValueError):
        return False
    return True


def _subfolders(text: str) -> Iterator[Path]:
    """Yield the subfolders of a folder that was not written by keyed, two levels deep."""
    if place_of(text) is not Place.FOREIGN:
        return iter(())
    path = Path(text)
    return islice((each for pattern in ("*/", "*/*/") for each in sorted(path.glob(pattern))), _BELOW)


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
        run: Runs it, and returns the exit status; nothing for 0.
        examples: Examples of its arguments to show in its help.
    """

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int | None]
    examples: tuple[str, ...] = ()


def command(
    help: str, add_arguments: Callable[[argparse.ArgumentParser], None], *examples: str
) -> Callable[[Callable[[argparse.Namespace], int | None]], Command]:
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


def print_json(rows: Iterable[Any]) -> None:
    """Print rows as JSON, one object per line."""
    for row in rows:
        sys.stdout.write(as_json(row).decode() + "\n")


def print_rows(rows: Iterable[dict[str, Any]]) -> None:
    """Print rows of the same columns, or a note that there are none."""
    shown = [{name: _text(value) for name, value in row.items()} for row in rows]
    if not shown:
        sys.stdout.write("nothing\n")
        return
    names = list(shown[0])
    widths = [max(len(name), *(len(row[name]) for row in shown)) for name in names]
    for line in (dict(zip(names, names, strict=True)), *shown):
        text = "  ".join(line[name].ljust(width) for name, width in zip(names, widths, strict=True))
        sys.stdout.write(text.rstrip() + "\n")


def namespace_text(namespace: Any) -> Any:
    """Return a human-readable namespace: a number that may be a time in milliseconds is shown with that time."""
    if isinstance(namespace, tuple):
        return ", ".join(_text(namespace_text(part)) for part in namespace)
    return time_text(namespace) if type(namespace) is int else namespace


def _text(value: Any) -> str:
    if value is None:
        return ""
    text = value if isinstance(value, str) else as_json(value).decode()
    if isinstance(value, datetime):
        text = text.strip('"')
    # Keys and values are untrusted: they must not move the cursor or break a line.
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


#: The status that a shell reports for programs that end by SIGPIPE, as ``cat`` and ``grep`` do.
BROKEN_PIPE_STATUS = 128 + signal.SIGPIPE
#: The status of a program ended by Ctrl-C.
INTERRUPTED_STATUS = 128 + signal.SIGINT


def check_reader() -> None:
    """Check that standard output is not a pipe or socket without a reader.

    Commands that wait for changes call it: without a change they would never write, and never notice.

    Raises:
        BrokenPipeError: The reader is gone.
    """
    try:
        number = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):
        return
    poll = select.poll()
    poll.register(number, 0)
    if any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0)):
        raise BrokenPipeError


def discard_stdout() -> None:
    """Discard the buffers of standard output and standard error, so that the exit prints nothing."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            continue
        try:
            stream.flush()
        except OSError:
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)

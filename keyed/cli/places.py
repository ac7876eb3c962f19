"""Recognizes the kinds of folders, so that a command that is given the wrong one can name its kind.

A folder is recognized by the files that its writer leaves: the header of a changelog, the commits of a checkpoint, the
stores of state tables, the mark of a sink. Topics, and the paths of other file systems, are recognized by their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from itertools import islice
from pathlib import Path

from keyed.base.arguments import without_credentials
from keyed.changelog.objects.object_changelog import is_object_store
from keyed.destinations.parquet import MARK
from keyed.errors import DefinitionError, KeyedError
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

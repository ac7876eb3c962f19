"""What commands of the command line are, and what they share: the changelogs that their arguments name.

A changelog is named by the path of a folder, or ``kafka://HOST:PORT/TOPIC``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import attrs

from keyed.changelog import Changelog, DirectoryChangelog, KafkaChangelog
from keyed.errors import DefinitionError

KAFKA = "kafka://"
#: How a changelog is named, for the help of arguments.
CHANGELOG = "a folder, or kafka://HOST:PORT/TOPIC"


@attrs.frozen
class Command:
    """A command.

    Attributes:
        name: Its name.
        help: What it does, in a sentence.
        add_arguments: Adds its arguments to a parser.
        run: Runs it, and gives the exit status.
        examples: Command lines to show in its help.
    """

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    examples: tuple[str, ...] = ()


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add the option for the settings of Kafka clients."""
    parser.add_argument(
        "--kafka-setting",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of the Kafka client; may be given more than once",
    )


def changelog_of(text: str, arguments: argparse.Namespace) -> Changelog:
    """Return the changelog that an argument names.

    Raises:
        DefinitionError: It, or a setting, is malformed.
    """
    if not text.startswith(KAFKA):
        # A command that is over in a moment leaves compaction to the job.
        return DirectoryChangelog(text, auto_compact=False)
    bootstrap, slash, topic = text.removeprefix(KAFKA).partition("/")
    if not bootstrap or not slash or not topic:
        raise DefinitionError(f"changelog {text!r}: give kafka://HOST:PORT/TOPIC, or the path of a folder")
    settings = {}
    for setting in arguments.kafka_setting:
        name, equals, value = setting.partition("=")
        if not equals:
            raise DefinitionError(f"--kafka-setting {setting!r}: give NAME=VALUE")
        settings[name] = value
    return KafkaChangelog(topic, bootstrap=bootstrap, settings=settings)

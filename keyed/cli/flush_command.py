"""``flush``: export what a checkpoint has committed."""

from __future__ import annotations

import argparse

import keyed
from keyed.cli.changelog_arguments import add_settings, changelog_of
from keyed.cli.checkpoint_kind import session_for
from keyed.errors import DefinitionError
from keyed.recovery import flush

NAME = "flush"
HELP = "Export to changelogs what a checkpoint, of the local runtime or of Spark, has committed and they lack."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument(
        "checkpoint",
        help="folder of the checkpoint; a run of the local runtime must not be using it, a query of Spark may",
    )
    parser.add_argument(
        "changelogs",
        nargs="+",
        metavar="OPERATOR=CHANGELOG",
        help="an operator and its changelog: a folder, or kafka://HOST:PORT/TOPIC",
    )
    add_settings(parser)


def run(arguments: argparse.Namespace) -> int:
    """Flush, and print the last commit of each operator."""
    changelogs = {}
    for pair in arguments.changelogs:
        operator, equals, text = pair.partition("=")
        if not equals:
            raise DefinitionError(f"{pair!r}: give OPERATOR=CHANGELOG")
        changelogs[operator] = changelog_of(text, arguments)
    session = session_for(arguments.checkpoint)
    if session is not None:
        done = keyed.spark_flush(session, arguments.checkpoint, changelogs)
    else:
        done = flush(arguments.checkpoint, changelogs)
    for operator, sequence in done.items():
        print(f"{operator}: commit {sequence}")
    return 0

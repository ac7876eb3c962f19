"""``verify``: check a changelog, or a checkpoint against it."""

from __future__ import annotations

import argparse
import sys

import keyed
from keyed.cli.changelog_arguments import add_settings, changelog_of
from keyed.cli.checkpoint_kind import session_for
from keyed.errors import ChangelogError
from keyed.recovery import verify_changelog, verify_checkpoint

NAME = "verify"
HELP = "Rebuild the state from a changelog, or from a checkpoint, and compare it with the hash in its commits."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("changelog", help="the changelog: a folder, or kafka://HOST:PORT/TOPIC")
    parser.add_argument("--checkpoint", help="check this checkpoint, of the local runtime or of Spark, and compare it")
    add_settings(parser)


def run(arguments: argparse.Namespace) -> int:
    """Verify, and print what was found of each key group. The status is 1 if anything is wrong."""
    changelog = changelog_of(arguments.changelog, arguments)
    if arguments.checkpoint is None:
        groups = verify_changelog(changelog)
    else:
        header = changelog.header()
        if header is None:
            raise ChangelogError(f"there is no changelog in {arguments.changelog}")
        session = session_for(arguments.checkpoint)
        if session is not None:
            groups = keyed.spark_verify(session, arguments.checkpoint, header.operator, changelog)
        else:
            groups = verify_checkpoint(arguments.checkpoint, header.operator, changelog)
    print("group  first commit  last commit  entries")
    for found in groups:
        print(f"{found.group:>5}  {found.first:>12}  {found.last:>11}  {found.entries:>7}")
    for found in groups:
        if found.note:
            print(f"group {found.group}: {found.note}")
    for found in groups:
        if found.problem:
            sys.stderr.write(f"group {found.group}: {found.problem}\n")
    return int(any(found.problem for found in groups))

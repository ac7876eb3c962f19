"""``restore``: make a checkpoint of the local runtime out of changelogs."""

from __future__ import annotations

import argparse

from keyed.cli.changelog_arguments import add_settings, changelog_of, until_of
from keyed.restoring import RestorePoint
from keyed.results import RestoreProgress
from keyed.runtimes.local.restored_checkpoint import restore_checkpoint

NAME = "restore"
HELP = "Make a new checkpoint of the local runtime out of the changelogs of a job's operators, at any parallelism."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("checkpoint", help="folder for the checkpoint; it must not be there yet")
    parser.add_argument(
        "changelogs",
        nargs="+",
        metavar="CHANGELOG",
        help="the changelog of each operator, in their order: a folder, or kafka://HOST:PORT/TOPIC",
    )
    parser.add_argument("--parallelism", type=int, help="number of key groups of each operator; as it was by default")
    parser.add_argument("--until", help="restore the state after this batch, or at this time (ISO 8601, with a zone)")
    add_settings(parser)


def run(arguments: argparse.Namespace) -> int:
    """Restore, and print what was restored."""
    until = until_of(arguments.until)
    points = [RestorePoint(changelog_of(text, arguments), until=until) for text in arguments.changelogs]

    def shown(progress: RestoreProgress) -> None:
        print(f"{progress.operator}: {progress.groups_done}/{progress.groups} key groups, {progress.records} records")

    restored = restore_checkpoint(arguments.checkpoint, points, arguments.parallelism, shown)
    print(f"restored batch {restored.sequence}")
    if not restored.with_position:
        print("there is no position of the local runtime: sources will be read from their start")
    return 0

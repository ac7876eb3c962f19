"""``compact``: fold the history of a directory log."""

from __future__ import annotations

import argparse

from keyed.changelog import DirectoryChangelog

NAME = "compact"
HELP = "Fold the history of a changelog in a directory into its bases. The job may be running."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("path", help="folder of the changelog")
    parser.add_argument(
        "--lag-seconds", type=float, default=3600, help="keep the commits of so many seconds before the newest (3600)"
    )
    parser.add_argument(
        "--history-bytes",
        type=int,
        help="if the commits of a key group have more bytes, keep the newest half of so many",
    )


def run(arguments: argparse.Namespace) -> int:
    """Compact, and print what there is of each key group."""
    changelog = DirectoryChangelog(
        arguments.path, compaction_lag=round(arguments.lag_seconds * 1000), history_bytes=arguments.history_bytes
    )
    groups = changelog.compact()
    print("group  base  newest  bytes of base  bytes of history  bytes removed")
    for done in groups:
        print(
            f"{done.group:>5}  {done.base:>4}  {done.newest:>6}  {done.base_bytes:>13}  {done.history_bytes:>16}  "
            f"{done.removed_bytes:>13}"
        )
    return 0

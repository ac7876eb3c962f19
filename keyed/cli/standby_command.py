"""``standby``: keep a copy of a running job's state."""

from __future__ import annotations

import argparse
import sys
import threading
import time

from keyed.cli.changelog_arguments import add_settings, changelog_of
from keyed.errors import ChangelogError
from keyed.views import open_tables

NAME = "standby"
HELP = "Follow a changelog into a folder of state tables until interrupted; a job is restored from it fast."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("changelog", help="the changelog: a folder, or kafka://HOST:PORT/TOPIC")
    parser.add_argument("path", help="folder for the copy")
    parser.add_argument(
        "--every", type=float, default=1.0, help="seconds from one look at the changelog to the next (1)"
    )
    parser.add_argument("--seconds", type=float, help="end after so many seconds")
    add_settings(parser)


def run(arguments: argparse.Namespace) -> int:
    """Follow, and print what was applied and how far the copy is behind."""
    end = None if arguments.seconds is None else time.monotonic() + arguments.seconds
    wait = threading.Event()
    with open_tables(changelog_of(arguments.changelog, arguments), arguments.path) as tables:
        try:
            while True:
                try:
                    records = tables.poll()
                    lag = tables.lag()
                except ChangelogError as error:
                    sys.stderr.write(f"tries again: {error}\n")
                    records = 0
                if records:
                    print(
                        f"{records} records applied, {lag.records} records and {lag.seconds:.1f} s behind", flush=True
                    )
                if end is not None and time.monotonic() >= end:
                    break
                wait.wait(arguments.every)
        except KeyboardInterrupt:
            pass
    return 0

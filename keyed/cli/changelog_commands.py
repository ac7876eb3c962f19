"""The commands on changelogs and checkpoints: ``compact``, ``flush``, ``restore``, ``standby`` and ``verify``."""

from __future__ import annotations

import argparse
import sys
import threading
import time
from contextlib import suppress

from keyed.changelog import DirectoryChangelog, ObjectStoreChangelog
from keyed.cli.command import (
    CHANGELOG,
    CHANGELOGS,
    CHECKPOINTS,
    FREE,
    Place,
    add_groups,
    add_settings,
    changelog_of,
    check_checkpoint,
    check_place,
    check_reader,
    check_tables_folder,
    command,
)
from keyed.errors import ChangelogError, DefinitionError
from keyed.job.restoring import RestorePoint
from keyed.job.results import RestoreProgress
from keyed.recovery import flush, restore, verify
from keyed.recovery.verification import Verified
from keyed.tables import open_tables
from keyed.tables.json_values import batch_or_time


def _add_compact(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", help="folder of the changelog, or s3://, gs:// or az:// with BUCKET/PREFIX")
    parser.add_argument(
        "--lag-seconds", type=float, default=3600, help="keep commits up to this many seconds before the newest (3600)"
    )
    parser.add_argument(
        "--history-bytes",
        type=int,
        help="if the commits of a key group exceed this size, keep only the newest half of it",
    )


@command("Fold the history of a changelog in a directory into its bases. The job may be running.", _add_compact)
def _compact(arguments: argparse.Namespace) -> None:
    """Compact, and print the sizes of each key group."""
    allowed = frozenset({Place.CHANGELOG, Place.OBJECTS})
    place = check_place(arguments.path, allowed, "PATH", "the folder of a changelog, or its prefix in an object store")
    kind = ObjectStoreChangelog if place is Place.OBJECTS else DirectoryChangelog
    changelog = kind(
        arguments.path, compaction_lag=round(arguments.lag_seconds * 1000), history_bytes=arguments.history_bytes
    )
    groups = changelog.compact()
    print("group  base  newest  bytes of base  bytes of history  bytes removed")
    for done in groups:
        print(
            f"{done.group:>5}  {done.base:>4}  {done.newest:>6}  {done.base_bytes:>13}  {done.history_bytes:>16}  "
            f"{done.removed_bytes:>13}"
        )


def _add_flush(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "checkpoint",
        help="folder of the checkpoint; it must not be in use by the local runtime; a Spark query may be using it",
    )
    parser.add_argument(
        "changelogs", nargs="+", metavar="OPERATOR=CHANGELOG", help=f"an operator and its changelog: {CHANGELOG}"
    )
    add_settings(parser)


@command(
    "Export committed batches of a checkpoint, of the local runtime or of Spark, that its changelogs lack.", _add_flush
)
def _flush(arguments: argparse.Namespace) -> None:
    """Flush, and print the last batch of each operator."""
    check_checkpoint(arguments.checkpoint)
    changelogs = {}
    for pair in arguments.changelogs:
        operator, equals, text = pair.partition("=")
        if not equals:
            raise DefinitionError(f"{pair!r}: give OPERATOR=CHANGELOG")
        changelogs[operator] = changelog_of(text, arguments, may_be_new=True)
    for operator, batch in flush(arguments.checkpoint, changelogs).items():
        print(f"{operator}: batch {batch}")


def _add_restore(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", help="folder for the checkpoint; must not exist")
    parser.add_argument(
        "changelogs", nargs="+", metavar="CHANGELOG", help=f"the changelog of each operator, in order: {CHANGELOG}"
    )
    parser.add_argument("--parallelism", type=int, help="number of key groups of each operator; by default unchanged")
    parser.add_argument("--as-of", help="restore the state after this batch, or at this time (ISO 8601, with a zone)")
    add_settings(parser)


@command(
    "Create a checkpoint of the local runtime from the changelogs of a job's operators, at any parallelism.",
    _add_restore,
)
def _restore(arguments: argparse.Namespace) -> None:
    """Restore, and print what was restored."""
    check_place(arguments.checkpoint, FREE, "CHECKPOINT", "a new folder for the checkpoint")
    as_of = batch_or_time(arguments.as_of, "--as-of")
    points = [RestorePoint(changelog_of(text, arguments), as_of=as_of) for text in arguments.changelogs]

    def shown(progress: RestoreProgress) -> None:
        print(f"{progress.operator}: {progress.groups_done}/{progress.groups} key groups, {progress.records} records")

    restored = restore(arguments.checkpoint, points, arguments.parallelism, shown)
    print(f"restored batch {restored.batch_id}")
    if not restored.with_position:
        print("there is no position of the local runtime: sources will be read from their start")


def _add_standby(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("changelog", help=f"the changelog: {CHANGELOG}")
    parser.add_argument("path", help="folder for the copy")
    parser.add_argument("--every", type=float, default=1.0, help="seconds between two polls of the changelog (1)")
    parser.add_argument("--seconds", type=float, help="end after this many seconds")
    add_groups(parser)
    add_settings(parser)


@command("Follow a changelog into a folder of state tables until interrupted, for a fast restore.", _add_standby)
def _standby(arguments: argparse.Namespace) -> None:
    """Follow, and print each new batch and the lag of the copy. A permanent error ends the command."""
    check_tables_folder(arguments.path, "PATH")
    end = None if arguments.seconds is None else time.monotonic() + arguments.seconds
    wait = threading.Event()
    changelog = changelog_of(arguments.changelog, arguments)
    with open_tables(changelog, arguments.path, groups=arguments.groups) as tables:
        shown = tables.batch
        with suppress(KeyboardInterrupt):
            tables.start(arguments.every)
            while True:
                tables.check()
                batch = tables.batch
                # The thread that follows the changelog reports that it cannot be read.
                with suppress(ChangelogError):
                    if batch != shown:
                        lag = tables.lag()
                        behind = f"{lag.records} records and {lag.seconds:.1f} s behind"
                        print(f"batch {batch}, {tables.status.value}, {behind}", flush=True)
                        shown = batch
                if end is not None and time.monotonic() >= end:
                    break
                check_reader()
                wait.wait(arguments.every)


def _add_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", metavar="SOURCE", help=f"a changelog ({CHANGELOG}), or the folder of a checkpoint of either runtime"
    )
    parser.add_argument("--checkpoint", help="check this checkpoint, of the local runtime or of Spark, and compare it")
    add_settings(parser)


@command(
    "Rebuild the state from a changelog, or from a checkpoint, and compare it with the hash in its commits.",
    _add_verify,
)
def _verify(arguments: argparse.Namespace) -> int:
    """Verify, and print the result of each key group. The exit status is 1 if there is a problem."""
    groups = _verify_source(arguments)
    operators = list(dict.fromkeys(group.operator for group in groups))
    for operator in operators:
        if len(operators) > 1:
            print(f"operator {operator}")
        of_this = [group for group in groups if group.operator == operator]
        print("group  first batch  last batch  entries")
        for group in of_this:
            print(f"{group.group:>5}  {group.first:>11}  {group.last:>10}  {group.entries:>7}")
        for group in of_this:
            if group.note:
                print(f"group {group.group}: {group.note}")
    for group in groups:
        if group.problem:
            of = f" of operator {group.operator}" if len(operators) > 1 else ""
            sys.stderr.write(f"group {group.group}{of}: {group.problem}\n")
    wrong = sum(bool(group.problem) for group in groups)
    print(f"not verified: {wrong} of {len(groups)} key groups" if wrong else "verified")
    return int(wrong > 0)


def _verify_source(arguments: argparse.Namespace) -> list[Verified]:
    if arguments.checkpoint is not None:
        changelog = changelog_of(arguments.source, arguments, "SOURCE")
        check_checkpoint(arguments.checkpoint, "--checkpoint")
        return verify(arguments.checkpoint, changelog)
    expected = f"a changelog ({CHANGELOG}) or a checkpoint"
    place = check_place(arguments.source, CHANGELOGS | CHECKPOINTS, "SOURCE", expected)
    # A checkpoint of Spark may also be in an object store.
    if place in CHANGELOGS and (place is not Place.OBJECTS or changelog_of(arguments.source, arguments).header()):
        return verify(changelog_of(arguments.source, arguments))
    return verify(arguments.source)

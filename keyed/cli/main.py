"""Reads the command line and runs a command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from keyed.cli import compact_command as compact
from keyed.cli import flush_command as flush
from keyed.cli import restore_command as restore
from keyed.cli import standby_command as standby
from keyed.cli import verify_command as verify
from keyed.errors import KeyedError

__all__ = ["main", "parser"]

_COMMANDS = (compact, flush, restore, standby, verify)


def parser() -> argparse.ArgumentParser:
    """The parser of the command line, with all commands."""
    result = argparse.ArgumentParser("python -m keyed.cli", description="Work on changelogs and checkpoints of keyed.")
    commands = result.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
        added = commands.add_parser(command.NAME, help=command.HELP, description=command.HELP)
        command.add_arguments(added)
        added.set_defaults(run=command.run)
    return result


def main(arguments: Sequence[str]) -> int:
    """Run a command.

    Args:
        arguments: The command line without the program.

    Returns:
        The exit status: 0, 1 after an error that is told on standard error, or 2 if the command line is wrong.
    """
    found = parser().parse_args(arguments)
    try:
        status: int = found.run(found)
    except KeyedError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return status

# PYTHON_ARGCOMPLETE_OK
"""Reads the command line and runs a command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from keyed.cli import changelog_commands, inspect_command, replay_command, table_commands
from keyed.errors import KeyedError


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, with all commands."""
    result = argparse.ArgumentParser("keyed", description="Work on changelogs, checkpoints and state tables of keyed.")
    commands = result.add_subparsers(title="commands", metavar="COMMAND", required=True)
    commands_of = (changelog_commands, inspect_command, replay_command, table_commands)
    for command in (command for module in commands_of for command in module.COMMANDS):
        examples = "".join(f"\n  {line}" for line in command.examples)
        added = commands.add_parser(
            command.name,
            help=command.help,
            description=command.help,
            epilog=f"examples:{examples}" if examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
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


def console() -> None:
    """Run the console script ``keyed``, or tell the shell that asks how a command line goes on."""
    if "_ARGCOMPLETE" in os.environ:
        from argcomplete import autocomplete

        autocomplete(parser())
    sys.exit(main(sys.argv[1:]))

"""Reads the command line and runs a command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from keyed.cli import compact_command as compact
from keyed.cli import flush_command as flush
from keyed.cli import restore_command as restore
from keyed.cli import standby_command as standby
from keyed.cli import table_commands
from keyed.cli import verify_command as verify
from keyed.cli.command import Command
from keyed.errors import KeyedError

_COMMANDS = (
    *(
        Command(module.NAME, module.HELP, module.add_arguments, module.run)
        for module in (compact, flush, restore, standby, verify)
    ),
    *table_commands.COMMANDS,
)


def parser() -> argparse.ArgumentParser:
    """The parser of the command line, with all commands."""
    result = argparse.ArgumentParser("keyed", description="Work on changelogs, checkpoints and state tables of keyed.")
    commands = result.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in _COMMANDS:
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
    """The console script ``keyed``."""
    sys.exit(main(sys.argv[1:]))

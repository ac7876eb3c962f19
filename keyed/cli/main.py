# PYTHON_ARGCOMPLETE_OK
"""Reads the command line and runs a command."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from itertools import takewhile

import keyed
from keyed.base.arguments import similar
from keyed.cli import changelog_commands, explain_command, inspect_command, replay_command, run_command, table_commands
from keyed.cli.command import BROKEN_PIPE_STATUS, INTERRUPTED_STATUS, Command, discard_stdout
from keyed.errors import KeyedError


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, with all commands."""
    return _parsers()[0]


def _parsers() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """Return the parser of the command line, and that of each command."""
    result = argparse.ArgumentParser(
        "keyed", description="Run SQL scripts; work on changelogs, checkpoints and state tables of keyed."
    )
    result.add_argument("--version", action="version", version=f"keyed {keyed.__version__}")
    commands = result.add_subparsers(title="commands", metavar="COMMAND", required=True)
    modules = (changelog_commands, explain_command, inspect_command, replay_command, run_command, table_commands)
    names = (name for module in modules for name in vars(module).values())
    parsers = {}
    for command in (name for name in names if isinstance(name, Command)):
        examples = "".join(f"\n  keyed {command.name} {example}" for example in command.examples)
        parsers[command.name] = added = commands.add_parser(
            command.name,
            help=command.help,
            description=command.help,
            epilog=f"examples:{examples}" if examples else None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(added)
        added.set_defaults(run=command.run)
    return result, parsers


def _check_names(
    root: argparse.ArgumentParser, commands: dict[str, argparse.ArgumentParser], arguments: Sequence[str]
) -> None:
    """Check the names of the command and of its options; exit with a suggestion for a misspelt one.

    argparse would first report the arguments that are missing because of the misspelt name.
    """
    name = next((text for text in arguments if not text.startswith("-")), None)
    before = list(takewhile(lambda text: text != name, arguments))
    for option in before:
        _check_option(root, option)
    if name is None:
        return
    if name not in commands:
        root.error(f"{name!r} is not a command{similar(name, commands)}: choose from {', '.join(commands)}")
    for option in takewhile(lambda text: text != "--", arguments[len(before) + 1 :]):
        _check_option(commands[name], option)


def _check_option(parser: argparse.ArgumentParser, text: str) -> None:
    # Like argparse, treat text with a space as a value, such as a query that begins with a comment.
    name = text.partition("=")[0]
    if not name.startswith("--") or name == "--" or " " in text:
        return
    options = [option for action in parser._actions for option in action.option_strings]  # noqa: SLF001 - no other way
    if not any(option.startswith(name) for option in options):
        parser.error(f"{name!r} is not an option of {parser.prog}{similar(name, options)}")


def main(arguments: Sequence[str]) -> int:
    """Run a command.

    Args:
        arguments: The command line without the program.

    Returns:
        The exit status: 0, 1 after an error that is printed on standard error, or 2 if the command line is wrong.

    Raises:
        BrokenPipeError: The reader of standard output is gone.
    """
    root, commands = _parsers()
    _check_names(root, commands, arguments)
    parsed = root.parse_args(arguments)
    try:
        status: int | None = parsed.run(parsed)
    except KeyedError as error:
        sys.stderr.write(f"error: {error} (see: keyed explain {error.code})\n")
        return 1
    return status or 0


def console() -> None:
    """Run the console script ``keyed``, or print the completions of a command line for the shell.

    If the reader of its output exits, as in ``keyed scan ... | head``, it exits without a message and with the status
    of a program ended by SIGPIPE, 141; after Ctrl-C with 130. If its output goes to a full disk, it exits with an error
    message and the status 1.
    """
    if "_ARGCOMPLETE" in os.environ:
        from argcomplete import autocomplete

        autocomplete(parser())
    if sys.stdout is None:
        # The program was started with a closed standard output, as by ``>&-``.
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    try:
        try:
            status = main(sys.argv[1:])
        finally:
            # Also for output of argparse before it exits.
            sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()
        status = BROKEN_PIPE_STATUS
    except OSError as error:
        # Errors of files have their names.
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        sys.stderr.write(f"error: standard output cannot be written: {error.strerror}\n")
        discard_stdout()
        status = 1
    except KeyboardInterrupt:
        status = INTERRUPTED_STATUS
    sys.exit(status)

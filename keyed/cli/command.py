"""What a command of the command line is."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import attrs


@attrs.frozen
class Command:
    """A command.

    Attributes:
        name: Its name.
        help: What it does, in a sentence.
        add_arguments: Adds its arguments to a parser.
        run: Runs it, and gives the exit status.
        examples: Command lines to show in its help.
    """

    name: str
    help: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    examples: tuple[str, ...] = ()

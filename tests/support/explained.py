"""The text of `keyed.Output.explain`, for tests."""

from __future__ import annotations

import io
from contextlib import redirect_stdout

from keyed import Output


def explained(output: Output, *others: Output) -> str:
    """Return the printed text."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        output.explain(*others)
    return printed.getvalue()


def computed(output: Output) -> str:
    """Return how the operator of an output is computed, without its name and the other operators."""
    details = explained(output).partition(f"\n{output.stage.name}: ")[2].splitlines()
    return next(line.partition(": ")[2] for line in details if line.startswith("    computed: "))

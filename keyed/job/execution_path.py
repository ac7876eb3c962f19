"""The choice between the two ways of computing an operator: row by row, or over whole columns at a time.

Whole columns cost a fraction, and results are the same. A library whose operators have both forms gives the reason why
a definition has to be computed row by row; the choice is made here. It is made once, when the operator is passed to
``process``, from what is known of the streams at that point.
"""

from __future__ import annotations

from typing import Literal

from keyed.errors import DefinitionError

Path = Literal["auto", "row", "vectorized"]
_OLD_NAME = "columnar"

#: The greatest length of a window, bound or tolerance over whole columns, milliseconds: sums of it and of times stay in
#: 64 bits.
MOST_LENGTH = 2**60


def check_path(path: str) -> None:
    """Check the name of a path.

    Raises:
        DefinitionError: There is no such path.
    """
    if path not in ("auto", "row", "vectorized"):
        now = "; it is called 'vectorized' now" if path == _OLD_NAME else ""
        raise DefinitionError(f"path={path!r} must be 'auto', 'row' or 'vectorized'{now}")


def choose_path(path: Path, row_reason: str | None, what: str) -> str | None:
    """Choose the path of an operator.

    Args:
        path: The path that the user asked for.
        row_reason: The reason why the operator has to be computed row by row; ``None`` if it can use whole columns.
        what: The operator, for messages.

    Returns:
        The reason why it is computed row by row; ``None`` if it is computed over whole columns.

    Raises:
        DefinitionError: ``path="vectorized"``, and there is a reason against it.
    """
    if row_reason is not None and path == "vectorized":
        raise DefinitionError(
            f"path='vectorized': {what} cannot be computed over whole columns, because {row_reason}; use path='auto' "
            "or 'row'"
        )
    return "of path='row'" if path == "row" else row_reason


def shown_path(row_reason: str | None) -> str:
    """Return the path for `keyed.Output.explain`: ``whole columns``, or ``row by row, because ...``."""
    return "whole columns" if row_reason is None else f"row by row, because {row_reason}"


def plain_type(type_: str) -> str:
    """Return the type of a stream's column, with one name for all kinds of text: ``string`` for ``varchar(3)``."""
    return "string" if type_.startswith(("string", "varchar(", "char(")) else type_


def kind_of(type_: str | None) -> str:
    """Return the type of a column without its parameters: ``decimal`` for ``decimal(10,2)``, nothing for ``None``."""
    return plain_type(type_ or "").partition("(")[0]

"""Errors of a script, with line, column and the line of the text."""

from __future__ import annotations

from typing import Any, NoReturn

from keyed.errors import SqlError


class Text:
    """The text of a script, which raises errors at places in it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def place(self, at: int) -> tuple[int, int]:
        """Return line and column of an offset, both from 1."""
        before = self.text[:at]
        return before.count("\n") + 1, at - (before.rfind("\n") + 1) + 1

    def check(self, *rules: tuple[Any, str, int]) -> None:
        """Raise the error of the first rule that is broken: whether it is, the message and the offset.

        Raises:
            SqlError: One is.
        """
        for is_broken, message, at in rules:
            if is_broken:
                self.fail(message, at)

    def fail(self, message: str, at: int) -> NoReturn:
        """Raise an error at an offset.

        Raises:
            SqlError: Always.
        """
        line, column = self.place(at)
        shown = self.text.split("\n")[line - 1] if self.text else ""
        first = max(0, column - 61)
        caret = " " * (column - 1 - first) + "^"
        raise SqlError(
            f"line {line}, column {column}: {message}\n  {shown[first : first + 120]}\n  {caret}",
            line=line,
            column=column,
        )

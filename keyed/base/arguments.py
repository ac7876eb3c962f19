"""Checks of users' arguments that are text, where a wrong type would fail later or be accepted silently."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from keyed.base.shown import shown
from keyed.errors import DefinitionError


def text(value: Any, what: str, expected: str = "text") -> str:
    """Return a text that is not empty.

    Args:
        value: The user's argument.
        what: Names it in messages.
        expected: Names what it has to be.

    Raises:
        DefinitionError: It is something else, empty, or has a NUL.
    """
    if not isinstance(value, str) or not value or "\0" in value:
        raise DefinitionError(f"{what}={shown(value)} must be {expected}")
    return value


def path_text(value: Any, what: str, expected: str = "a path") -> str:
    """Return a path as text. See `text`."""
    return text(os.fspath(value) if isinstance(value, os.PathLike) else value, what, expected)


def names(value: Any, what: str) -> tuple[str, ...]:
    """Return one or several names of columns.

    Raises:
        DefinitionError: It is something else, or a name comes twice.
    """
    columns = (value,) if isinstance(value, str) else value
    is_right = isinstance(columns, Sequence) and all(isinstance(name, str) and name for name in columns)
    if not is_right or len({*columns}) < len(columns):
        raise DefinitionError(f"{what}={shown(value)} must be the name of a column, or a list of different names")
    return tuple(columns)


def texts(value: Any, what: str) -> dict[str, str]:
    """Return options, whose values are never shown.

    Raises:
        DefinitionError: It is no mapping of texts.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(each, str) for pair in value.items() for each in pair):
        raise DefinitionError(f"{what} must be a dict of texts by name, not {_kinds(value)}")
    return dict(value)


def setting_text(value: Any) -> str:
    """Return the value of a setting as text, in which booleans are ``true`` and ``false``."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _kinds(value: Any) -> str:
    if not isinstance(value, Mapping):
        return type(value).__name__
    return next(
        f"{type(each).__name__} for {shown(name)}"
        for name, each in value.items()
        if not isinstance(name, str) or not isinstance(each, str)
    )

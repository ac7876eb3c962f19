"""Imports of the packages that an extra of the project installs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from keyed.errors import ExtraNotInstalled


@contextmanager
def extra(name: str, use: str) -> Iterator[None]:
    """Import packages of an extra inside of this context.

    Args:
        name: Name of the extra.
        use: The feature that needs it, for the message.

    Raises:
        ExtraNotInstalled: One of the packages is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "keyed").partition(".")[0]
        if package == "keyed":
            raise
        message = f"{use} needs the package {package}, which is not installed: pip install 'keyed[{name}]'"
        raise ExtraNotInstalled(message, name=error.name) from error

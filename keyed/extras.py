"""The packages that an extra of the project installs: imports of them, and the command that installs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from keyed.errors import ExtraNotInstalled


def install(name: str) -> str:
    """Return the command that installs an extra, for messages."""
    return f"pip install 'keyed[{name}]'"


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
        message = f"{use} needs the package {package}, which is not installed: {install(name)}"
        raise ExtraNotInstalled(message, name=error.name) from error

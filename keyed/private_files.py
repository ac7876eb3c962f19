"""Modes of keyed's files: readable by the user alone, or by a group too.

Folders and files that keyed creates get their mode regardless of the umask; existing folders keep theirs. A new file in
a folder of keyed's is readable by the group if the folder is.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from keyed.errors import DefinitionError

_FOLDER, _FILE = 0o700, 0o600
#: The additional mode for a group: reading. New files belong to the folder's group.
_GROUP_FOLDER, _GROUP_FILE = 0o2050, 0o040
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")


def make_private(path: Path, *, group: bool = False) -> list[Path]:
    """Create a folder with its parents.

    Args:
        path: The folder.
        group: Let the group read its content.

    Returns:
        The created folders, the topmost one last.

    Raises:
        OSError: One cannot be created.
    """
    missing = []
    folder = path
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for folder in reversed(missing):
        try:
            folder.mkdir(mode=_FOLDER)
        except FileExistsError:
            if not folder.is_dir():
                raise
            continue
        if group or _is_for_group(folder.parent):
            folder.chmod(_FOLDER | _GROUP_FOLDER)
    return missing


def file_mode(folder: Path) -> int:
    """Return the mode of a new file in a folder that `make_private` has made."""
    return _FILE | (_GROUP_FILE if _is_for_group(folder) else 0)


def folder_path(path: Any, what: str) -> str:
    """Return the path of a folder of this machine.

    Args:
        path: The user's argument.
        what: Names it in messages.

    Raises:
        DefinitionError: It is not a path, is empty, has a NUL, or is a URI.
    """
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(text, str) or not text or "\0" in text:
        raise DefinitionError(f"{what}={path!r}: give the path of a folder")
    if _URI.match(text):
        raise DefinitionError(
            f"{what}={path!r} is a URI, and a folder is needed; give the path at which its file system is mounted"
        )
    return text


def _is_for_group(folder: Path) -> bool:
    # The setgid bit distinguishes it from a folder that the umask leaves open to all.
    return folder.stat().st_mode & _GROUP_FOLDER == _GROUP_FOLDER

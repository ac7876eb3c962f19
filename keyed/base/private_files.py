"""Modes of keyed's files: readable by the user alone, or by a group too.

Folders and files that keyed creates get their mode regardless of the umask; existing folders keep theirs. A new file in
a folder of keyed's is readable by the group if the folder is.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from struct import Struct
from typing import Any

from keyed.base.arguments import without_credentials
from keyed.errors import DefinitionError

_FOLDER, _FILE = 0o700, 0o600
#: The additional mode for a group: reading. New files belong to the folder's group.
_GROUP_FOLDER, _GROUP_FILE = 0o2050, 0o040
#: A default ACL of Linux, which the system gives to each new file of a folder: its version, and for the user, the group
#: and others a tag, the permissions and no id.
_ACL = Struct("<I HHI HHI HHI")
_NO_ID = 0xFFFFFFFF
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]*:/")


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


def make_files_private(folder: Path) -> None:
    """Set the mode of the files in a folder, and of those that a library will create there, to `file_mode`.

    Where the file system has no ACLs, new files have the library's mode until the next call.

    Raises:
        OSError: The folder cannot be read.
    """
    mode = file_mode(folder)
    with suppress(OSError, AttributeError):
        acl = _ACL.pack(2, 1, 6, _NO_ID, 4, mode >> 3 & 7, _NO_ID, 0x20, 0, _NO_ID)
        os.setxattr(folder, "system.posix_acl_default", acl)
    for file in folder.iterdir():
        # A library may delete files meanwhile, and another user's files keep their mode.
        with suppress(FileNotFoundError, PermissionError):
            if file.stat().st_mode & 0o777 != mode:
                file.chmod(mode)


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
            f"{what}={without_credentials(text)!r} is a URI, and a folder is needed; give the path at which its file "
            "system is mounted"
        )
    return text


def _is_for_group(folder: Path) -> bool:
    # The setgid bit distinguishes it from a folder that the umask leaves open to all.
    return folder.stat().st_mode & _GROUP_FOLDER == _GROUP_FOLDER

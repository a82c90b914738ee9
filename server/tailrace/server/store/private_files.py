"""Files and folders that only the user of the server can read, independent of the umask.

On Windows, where the permissions of the folder decide, nothing is changed.
"""

import logging
import os
import stat
from pathlib import Path

logger = logging.getLogger("tailrace.server")

_OTHERS = stat.S_IRWXO


def create_private_folder(folder: Path) -> None:
    """Create a folder and its missing parents with mode 0700; an existing folder is unchanged.

    Raises:
        OSError: It cannot be created.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(exist_ok=True)  # an error if a file has its name


def open_private_file(path: str) -> int:
    """Open a file for reading and appending, created with mode 0600 if it is missing; return the descriptor.

    Raises:
        OSError: It cannot be opened.
    """
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)


def make_private(*paths: str) -> None:
    """Set files that all users of the machine can open to mode 0600, with a warning.

    Files that are open to a group only are unchanged, since their mode was set on purpose. Missing files are skipped.
    """
    if os.name == "nt":
        return
    for path in paths:
        try:
            found = os.stat(path)
        except FileNotFoundError:
            continue
        mode = stat.S_IMODE(found.st_mode)
        if not mode & _OTHERS:
            continue
        try:
            os.chmod(path, 0o600)
        except PermissionError:
            logger.warning(
                "%s has mode %04o and belongs to another user: every user of this machine can read it; "
                "run chmod 600 on it as its owner",
                path,
                mode,
            )
        else:
            logger.warning(
                "%s had mode %04o, and now has 0600: every user of this machine could read it", path, mode
            )

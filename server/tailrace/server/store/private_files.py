"""Files and folders that only the user of the server can read, independent of the umask.

On Windows, permissions are not changed.
"""

import logging
import os
import stat
from pathlib import Path

logger = logging.getLogger("tailrace.server")

_OTHERS = stat.S_IRWXO


def create_private_folder(folder: Path) -> None:
    """Create a folder and its missing parents with mode 0700. An existing folder is unchanged.

    Raises:
        OSError: The folder cannot be created.
    """
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(exist_ok=True)  # raises an error if the path is a file


def open_private_file(path: str) -> int:
    """Open a file for reading and appending, and return its descriptor. A missing file is created with mode 0600.

    Raises:
        OSError: The file cannot be opened.
    """
    return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)


def make_private(*paths: str) -> None:
    """Set the mode of files to 0600 if all users of the machine can open these files, and log a warning.

    Files that only a group can open are unchanged, because their mode was probably set on purpose. Missing files are skipped.
    """
    if os.name == "nt":
        return
    for path in paths:
        try:
            status = os.stat(path)
        except FileNotFoundError:
            continue
        mode = stat.S_IMODE(status.st_mode)
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

"""``--env-file``: reads settings from a file that the user names.

No file is read automatically: a file in the current folder may be part of a download, and settings can start programs
(``TAILRACE_TOOLS``) or send keys to another server (``TAILRACE_BASE_URL``).
"""

import sys
from pathlib import Path

from tailrace.server.former_settings import unread_env_file
from tailrace.wrappers import ConfigurationError
from tailrace.wrappers.redaction.log_escaping import printable


def announce_env_file(env_file: Path | None) -> None:
    """Print the path of the file, or a warning if an unread ``.env`` has settings.

    Raises:
        ConfigurationError: The file cannot be read, or is not text in UTF-8.
    """
    if env_file is None:
        _print(unread_env_file())
        return
    try:
        env_file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "it is not text in UTF-8"
        raise ConfigurationError(f"--env-file {printable(env_file)}: {reason}") from None
    _print(f"settings are read from {env_file.absolute()}")


def _print(line: str) -> None:
    if line:
        print(f"tailrace: {printable(line)}", file=sys.stderr)  # noqa: T201

"""Protection of logs against forged records. Control characters are escaped, and the length of texts is limited.

Names, identifiers and error texts in logs come from callers, providers and models. A line break in such a text would start a new
record, and an escape sequence would move the cursor of a terminal. A logging filter therefore applies `printable` to the
arguments and the traceback of each tailrace record.
"""

import logging
import traceback
from typing import Any, cast

MAX_TEXT = 4096
"""Maximum number of characters of one argument, or of one line of a traceback."""

MAX_LINES = 200
"""Maximum number of lines of a traceback. In a longer traceback, the lines in the middle are omitted."""

_INDENT = "    "  # indentation of each line of a traceback; only records begin in the first column


def printable(value: object, limit: int = MAX_TEXT) -> str:
    r"""Return a value as one line of text. Unprintable characters are escaped as in Python (``\n``, ``\x1b``, ``\u202e``).

    Args:
        value: A string, or an object that ``str`` converts to a string.
        limit: Maximum number of characters before escaping. The number of omitted characters is appended.
    """
    text = value if isinstance(value, str) else str(value)
    omitted = len(text) - limit
    if omitted > 0:
        text = text[:limit]
    if not text.isprintable():
        text = "".join(
            each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
        )
    return f"{text}… ({omitted} more characters)" if omitted > 0 else text


def printable_lines(text: str) -> str:
    """Make each line of a text (for example, a traceback) printable, and indent it. See `MAX_TEXT` and `MAX_LINES`."""
    lines = text.split("\n")
    omitted = len(lines) - MAX_LINES
    if omitted > 0:
        half = MAX_LINES // 2
        lines = [*lines[:half], f"… ({omitted} more lines)", *lines[-half:]]
    return "\n".join(_INDENT + printable(line) for line in lines)


class PrintableRecords(logging.Filter):
    """Logging filter that makes the arguments and the traceback of each record printable. It never drops a record."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Escape the traceback, and the arguments that are not numbers. In tailrace, the message itself is always a constant."""
        arguments: Any = record.args
        if isinstance(arguments, tuple):
            record.args = tuple(_printable(each) for each in cast("tuple[object, ...]", arguments))
        elif arguments:
            record.args = {name: _printable(each) for name, each in arguments.items()}
        if record.exc_info and not record.exc_text:
            # Formatters of the standard library use this text instead of formatting the traceback again.
            record.exc_text = printable_lines(
                "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
            )
        return True


def escape_records_of(*names: str) -> None:
    """Add `PrintableRecords` to the loggers with these names."""
    for name in names:
        logger = logging.getLogger(name)
        if not any(isinstance(each, PrintableRecords) for each in logger.filters):
            logger.addFilter(PrintableRecords())


def _printable(value: object) -> object:
    return value if isinstance(value, bool | int | float | None) else printable(value)

"""Protection of log records against forgery: control characters are escaped, and lengths are bounded.

Names, identifiers and error texts in logs come from callers, providers and models. A line break would start a new record,
an escape sequence would move a terminal's cursor, a bidirectional override would reorder a line. `printable` escapes them
all. It is applied to the arguments and traceback of every tailrace record when the record is created, independent of the
application's handlers and formatters, and by the formatters of `tailrace serve` to every line.
"""

import logging
import traceback
from typing import Any, cast

MAX_TEXT = 4096
"""Characters of one argument, or of one line of a traceback."""

MAX_LINES = 200
"""Lines of a traceback; the middle of a longer one is omitted."""

_INDENT = "    "  # indents each line of a traceback, so that only records start at the margin


def printable(value: object, limit: int = MAX_TEXT) -> str:
    r"""Return a value as text on one line; unprintable characters are escaped as in Python (``\n``, ``\x1b``, ``\u202e``).

    Args:
        value: A text, or any object, which is converted with ``str``.
        limit: Maximum number of characters; the number of omitted ones is appended.
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
    """Return a multi-line text, such as a traceback, with indented, bounded, printable lines; omit the middle of many."""
    lines = text.split("\n")
    omitted = len(lines) - MAX_LINES
    if omitted > 0:
        half = MAX_LINES // 2
        lines = [*lines[:half], f"… ({omitted} more lines)", *lines[-half:]]
    return "\n".join(_INDENT + printable(line) for line in lines)


class PrintableRecords(logging.Filter):
    """Logging filter that makes the arguments and traceback of each record printable; no record is dropped."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Modify the record's arguments, except numbers; its message is a constant."""
        arguments: Any = record.args
        if isinstance(arguments, tuple):
            record.args = tuple(_printable(each) for each in cast("tuple[object, ...]", arguments))
        elif arguments:
            record.args = {name: _printable(each) for name, each in arguments.items()}
        if record.exc_info and not record.exc_text:
            # Formatters of the standard library use this text instead of formatting the traceback.
            record.exc_text = printable_lines(
                "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
            )
        return True


def make_printable(*names: str) -> None:
    """Add `PrintableRecords` to the loggers of these names, independent of their handlers and formatters."""
    for name in names:
        logger = logging.getLogger(name)
        if not any(isinstance(each, PrintableRecords) for each in logger.filters):
            logger.addFilter(PrintableRecords())


def _printable(value: object) -> object:
    return value if isinstance(value, bool | int | float | None) else printable(value)

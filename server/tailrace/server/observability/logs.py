"""The format of the server's log: text, or one JSON object per line.

The content of messages and responses is never logged. Both formats escape control characters, and limit the length of a record's
message (`tailrace.wrappers.redaction.log_escaping`).
"""

import json
import logging
from contextvars import ContextVar
from copy import copy
from datetime import UTC, datetime
from typing import Any, Literal

from opentelemetry import trace
from uvicorn.logging import DefaultFormatter

from tailrace.wrappers.redaction.log_escaping import printable, printable_lines

TASK_IDS: ContextVar[tuple[str, str]] = ContextVar("tailrace_task_ids", default=("", ""))
"""The ids of the task and of the conversation for which the current code runs."""

LogFormat = Literal["text", "json"]

_MAX_MESSAGE = 16 * 1024  # characters


class IdsFilter(logging.Filter):
    """Adds ``task_id``, ``context_id``, ``trace_id`` and ``span_id`` to each record. They may be empty."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the ids, and return True for each record."""
        record.task_id, record.context_id = TASK_IDS.get()
        span = trace.get_current_span().get_span_context()
        record.trace_id = trace.format_trace_id(span.trace_id) if span.is_valid else ""
        record.span_id = trace.format_span_id(span.span_id) if span.is_valid else ""
        return True


class TextFormatter(DefaultFormatter):
    """Formats a record as one line with its level (coloured on a terminal), followed by its indented traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        line = copy(record)
        line.msg, line.args = printable(record.getMessage(), _MAX_MESSAGE), None
        line.exc_info = line.exc_text = line.stack_info = None
        line.__dict__.pop("color_message", None)  # uvicorn's copy of the message, with colours
        return "\n".join([super().format(line), *_tracebacks(record).values()])


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": printable(record.getMessage(), _MAX_MESSAGE),
        }
        for name in ("task_id", "context_id", "trace_id", "span_id"):
            value = getattr(record, name, "")
            if value:
                fields[name] = printable(value)
        return json.dumps(fields | _tracebacks(record))


def _tracebacks(record: logging.LogRecord) -> dict[str, str]:
    """Return the traceback and the stack of a record, if it has them."""
    found = {
        "exception": _PLAIN.formatException(record.exc_info) if record.exc_info else "",
        "stack": _PLAIN.formatStack(record.stack_info) if record.stack_info else "",
    }
    return {name: printable_lines(text) for name, text in found.items() if text}


_PLAIN = logging.Formatter()


def log_config(format: LogFormat) -> dict[str, Any]:
    """Return the configuration that uvicorn passes to `logging.config.dictConfig`. All logs are written to stderr."""
    formatter: dict[str, Any] = (
        {"()": JsonFormatter}
        if format == "json"
        else {"()": TextFormatter, "fmt": "%(levelprefix)s %(message)s"}
    )
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "filters": {"ids": {"()": IdsFilter}},
        "formatters": {"line": formatter},
        "handlers": {
            "stderr": {
                "class": "logging.StreamHandler",
                "stream": "ext://sys.stderr",
                "formatter": "line",
                "filters": ["ids"],
            }
        },
        "root": {"handlers": ["stderr"], "level": "WARNING"},
        "loggers": {
            "tailrace": {"level": "INFO"},
            "uvicorn": {"level": "INFO"},
            "uvicorn.access": {"level": "INFO", "handlers": [], "propagate": True},
        },
    }

"""The server's log: as text for people, or as JSON, one object a line, for programs.

Every record knows the task and the conversation that it is about, and the trace that was current, where there are any. What
is said to an agent and what it answers is never logged.
"""

import json
import logging
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal

from opentelemetry import trace

TASK_IDS: ContextVar[tuple[str, str]] = ContextVar("tailrace_task_ids", default=("", ""))
"""The task, and its conversation, that the code which is running works for."""

LogFormat = Literal["text", "json"]

_TEXT = "%(levelname)s: %(message)s"


class IdsFilter(logging.Filter):
    """Adds ``task_id``, ``context_id``, ``trace_id`` and ``span_id`` to every record; empty where there is none."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Add them; every record passes."""
        record.task_id, record.context_id = TASK_IDS.get()
        span = trace.get_current_span().get_span_context()
        record.trace_id = trace.format_trace_id(span.trace_id) if span.is_valid else ""
        record.span_id = trace.format_span_id(span.span_id) if span.is_valid else ""
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object a line, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        """Write a record."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in ("task_id", "context_id", "trace_id", "span_id"):
            value = getattr(record, name, "")
            if value:
                fields[name] = value
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            fields["stack"] = self.formatStack(record.stack_info)
        return json.dumps(fields)


def log_config(format: LogFormat) -> dict[str, Any]:
    """What uvicorn (`logging.config.dictConfig`) is to be given, for its own log and everybody else's, on stderr."""
    formatter: dict[str, Any] = (
        {"()": JsonFormatter}
        if format == "json"
        else {"()": "uvicorn.logging.DefaultFormatter", "fmt": "%(levelprefix)s %(message)s"}
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

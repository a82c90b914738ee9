"""A server for A2A agents: engine, store, protocol bindings, and the command line.

Exported names are imported at their first use.
"""

import logging
from importlib import import_module

TYPE_CHECKING = False  # known to type checkers; importing it from typing is slow
if TYPE_CHECKING:
    from tailrace.server.agent_factory import create_model
    from tailrace.server.app import create_app, create_router
    from tailrace.server.runtime.active_task import CallContext
    from tailrace.server.runtime.agent_handler import AgentHandler
    from tailrace.server.runtime.engine import Engine
    from tailrace.server.runtime.handlers import DirectHandler, FunctionHandler, Handler, Item, Turn
    from tailrace.server.runtime.stream_filter import (
        BackgroundFilter,
        BackgroundStream,
        BlockedError,
        FilterError,
        FilterStream,
        StreamFilter,
    )
    from tailrace.server.settings import (
        Bounds,
        Budget,
        CardSettings,
        JwtSettings,
        ModelPrice,
        OpenAIWebhookSettings,
        RetentionSettings,
        Settings,
    )
    from tailrace.server.store.store import Store

__all__ = (
    "AgentHandler",
    "BackgroundFilter",
    "BackgroundStream",
    "BlockedError",
    "Bounds",
    "Budget",
    "CallContext",
    "CardSettings",
    "DirectHandler",
    "Engine",
    "FilterError",
    "FilterStream",
    "FunctionHandler",
    "Handler",
    "Item",
    "JwtSettings",
    "ModelPrice",
    "OpenAIWebhookSettings",
    "RetentionSettings",
    "Settings",
    "Store",
    "StreamFilter",
    "Turn",
    "create_app",
    "create_model",
    "create_router",
)

_MODULES = {
    "AgentHandler": "runtime.agent_handler",
    "create_app": "app",
    "create_model": "agent_factory",
    "create_router": "app",
    "Engine": "runtime.engine",
    "DirectHandler": "runtime.handlers",
    "FunctionHandler": "runtime.handlers",
    "Handler": "runtime.handlers",
    "Item": "runtime.handlers",
    "Turn": "runtime.handlers",
    "CallContext": "runtime.active_task",
    "BackgroundFilter": "runtime.stream_filter",
    "BackgroundStream": "runtime.stream_filter",
    "BlockedError": "runtime.stream_filter",
    "FilterError": "runtime.stream_filter",
    "FilterStream": "runtime.stream_filter",
    "StreamFilter": "runtime.stream_filter",
    "Bounds": "settings",
    "Budget": "usage_settings",
    "CardSettings": "settings",
    "JwtSettings": "settings",
    "ModelPrice": "usage_settings",
    "OpenAIWebhookSettings": "settings",
    "RetentionSettings": "settings",
    "Settings": "settings",
    "Store": "store.store",
}
"""The module of each exported name, relative to this package."""


def _escape_record(record: logging.LogRecord) -> bool:
    """Escape control characters in a log record."""
    from tailrace.wrappers.redaction.log_escaping import PrintableRecords

    return PrintableRecords().filter(record)


__path__.extend([f"{folder}/deprecated" for folder in __path__])  # for imports under former module names

logging.getLogger("tailrace.server").addFilter(_escape_record)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""An A2A agent over HTTP: engine, store, protocol bindings, and the command line.

What is here is imported when it is first used: the command line has to be running before that, to end well when it is
interrupted meanwhile.
"""

from importlib import import_module

TYPE_CHECKING = False  # type checkers know the name; to import it takes most of the time that all this takes
if TYPE_CHECKING:
    from tailrace.server.agent_handler import AgentHandler
    from tailrace.server.app import create_app, create_model, create_router
    from tailrace.server.engine import Engine
    from tailrace.server.handlers import DirectHandler, FunctionHandler, Handler, Item, Turn
    from tailrace.server.live import CallContext
    from tailrace.server.settings import Settings
    from tailrace.server.store import Store

__all__ = (
    "AgentHandler",
    "CallContext",
    "DirectHandler",
    "Engine",
    "FunctionHandler",
    "Handler",
    "Item",
    "Settings",
    "Store",
    "Turn",
    "create_app",
    "create_model",
    "create_router",
)

_MODULES = {
    "AgentHandler": "agent_handler",
    "create_app": "app",
    "create_model": "app",
    "create_router": "app",
    "Engine": "engine",
    "DirectHandler": "handlers",
    "FunctionHandler": "handlers",
    "Handler": "handlers",
    "Item": "handlers",
    "Turn": "handlers",
    "CallContext": "live",
    "Settings": "settings",
    "Store": "store",
}
"""Where each name is at home."""


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

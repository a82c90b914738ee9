"""An A2A agent over HTTP: engine, store, protocol bindings, and the command line."""

from tailrace.server.agent_handler import AgentHandler
from tailrace.server.app import create_app, create_model, create_router
from tailrace.server.engine import Engine
from tailrace.server.handlers import DirectHandler, FunctionHandler, Handler, Item, Turn
from tailrace.server.settings import Settings
from tailrace.server.store import Store

__all__ = (
    "AgentHandler",
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

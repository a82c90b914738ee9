"""An A2A agent over HTTP: engine, store, protocol bindings, and the command line."""

from tailrace.server.app import create_app, create_model, create_router
from tailrace.server.engine import Engine
from tailrace.server.handlers import DirectHandler, FunctionHandler, Handler, ModelHandler, Turn
from tailrace.server.settings import Settings
from tailrace.server.store import Store

__all__ = (
    "DirectHandler",
    "Engine",
    "FunctionHandler",
    "Handler",
    "ModelHandler",
    "Settings",
    "Store",
    "Turn",
    "create_app",
    "create_model",
    "create_router",
)

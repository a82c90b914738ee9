"""Deprecated: import from `tailrace.server.runtime.operations`."""

from tailrace.server.runtime.caller import Caller
from tailrace.server.runtime.operations import Operations

__all__ = (
    "Caller",
    "Operations",
)

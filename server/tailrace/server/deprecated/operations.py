"""Deprecated: import from `tailrace.server.runtime.operations`."""

from tailrace.server.runtime.operations import Caller, Operations

__all__ = (
    "Caller",
    "Operations",
)

"""Deprecated: import from `tailrace.server.remote.client`."""

from tailrace.server.remote.client import RETRY_DELAYS, AgentClient, StreamEvent

__all__ = (
    "RETRY_DELAYS",
    "AgentClient",
    "StreamEvent",
)

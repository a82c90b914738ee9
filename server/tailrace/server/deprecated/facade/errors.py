"""Deprecated: use `tailrace.server.protocols.errors`."""

from tailrace.server.protocols.errors import OpenAIError

__all__ = ["OpenAIError"]

"""Deprecated: use `tailrace.server.protocols.openai_error`."""

from tailrace.server.protocols.openai_error import OpenAIError

__all__ = ["OpenAIError"]

"""Deprecated: use `tailrace.server.protocols.parallel_texts`."""

from tailrace.server.protocols.parallel_texts import DivergedError

__all__ = ["DivergedError"]

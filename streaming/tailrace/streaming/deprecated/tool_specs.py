"""Deprecated: import from `tailrace.streaming.tools.specs`."""

from tailrace.streaming.tools.specs import parse_tools

__all__ = ("parse_tools",)

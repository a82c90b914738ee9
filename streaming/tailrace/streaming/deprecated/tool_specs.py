"""Deprecated: import from `tailrace.streaming.tools.command_line_tools`."""

from tailrace.streaming.tools.command_line_tools import parse_tools

__all__ = ("parse_tools",)

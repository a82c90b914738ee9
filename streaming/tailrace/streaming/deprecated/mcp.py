"""Deprecated: import from `tailrace.streaming.tools.mcp`."""

from tailrace.streaming.tools.mcp import McpToolset

__all__ = ("McpToolset",)

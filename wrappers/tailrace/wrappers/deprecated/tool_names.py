"""Deprecated: import from `tailrace.wrappers.conversion.tool_names`."""

from tailrace.wrappers.conversion.tool_names import LETTERS_DIGITS_DASHES, NAMELESS, NameRule, ToolNames

__all__ = ("LETTERS_DIGITS_DASHES", "NAMELESS", "NameRule", "ToolNames")

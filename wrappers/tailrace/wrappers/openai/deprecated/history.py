"""Deprecated: import `OpenAIConverter` from `tailrace.wrappers.openai`."""

from tailrace.wrappers.openai.converter import OpenAIConverter

__all__ = ("OpenAIConverter",)

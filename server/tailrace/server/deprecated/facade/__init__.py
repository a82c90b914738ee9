"""Deprecated: the names of `tailrace.server.protocols.openai` under their old address."""

from tailrace.server.protocols.openai import CONVERSATION_HEADER, TASK_HEADER, OpenAIFacade

__all__ = ["CONVERSATION_HEADER", "TASK_HEADER", "OpenAIFacade"]

"""The OpenAI-compatible API; see ``docs/openai.md``."""

from tailrace.server.protocols.chat_endpoint import CONVERSATION_HEADER, TASK_HEADER
from tailrace.server.protocols.openai.routes import OpenAIFacade

__all__ = ["CONVERSATION_HEADER", "TASK_HEADER", "OpenAIFacade"]

"""The OpenAI facade: this server's agent for clients that speak OpenAI's APIs; see ``docs/openai.md``."""

from tailrace.server.facade.endpoints import CONVERSATION_HEADER, TASK_HEADER, OpenAIFacade

__all__ = ["CONVERSATION_HEADER", "TASK_HEADER", "OpenAIFacade"]

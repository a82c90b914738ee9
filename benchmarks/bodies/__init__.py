"""Generated response bodies in the providers' formats: one module per wire format.

The lengths of the deltas follow statistics of about five thousand recorded responses.
"""

from collections.abc import Callable, Mapping
from random import Random

from benchmarks.bodies.anthropic import MessagesWriter
from benchmarks.bodies.bedrock import ConverseWriter, InvocationWriter
from benchmarks.bodies.body_writer import BodyWriter, Kind, pieces, write_body
from benchmarks.bodies.chat_completions import (
    AzureWriter,
    ChatCompletionsWriter,
    MistralWriter,
    OpenRouterWriter,
)
from benchmarks.bodies.cohere import ChatWriter
from benchmarks.bodies.completions import CompletionsWriter
from benchmarks.bodies.gemini import ArrayWriter, GenerateContentWriter
from benchmarks.bodies.interactions import InteractionsWriter
from benchmarks.bodies.ollama import GenerateWriter, OllamaWriter
from benchmarks.bodies.responses import ResponsesWriter

WRITERS: Mapping[str, Callable[[Random], BodyWriter]] = {
    "openai": ChatCompletionsWriter,
    "azure": AzureWriter,
    "openrouter": OpenRouterWriter,
    "mistral": MistralWriter,
    "openai-responses": ResponsesWriter,
    "anthropic": MessagesWriter,
    "gemini": GenerateContentWriter,
    "ollama": OllamaWriter,
    "cohere": ChatWriter,
    "bedrock": ConverseWriter,
    # Further formats of the same providers.
    "openai-completions": CompletionsWriter,
    "gemini-generate": ArrayWriter,
    "google-interactions": InteractionsWriter,
    "ollama-generate": GenerateWriter,
    "bedrock-invoke": InvocationWriter,
}
"""The writers, by the provider names that `tailrace.wrappers.providers.find_provider` knows."""

__all__ = ("WRITERS", "BodyWriter", "Kind", "pieces", "write_body")

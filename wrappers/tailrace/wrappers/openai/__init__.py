"""OpenAI Chat Completions and compatible servers: decoder, history converter and model clients."""

from typing import TYPE_CHECKING, Any

from tailrace.wrappers.openai.converter import OpenAIConverter
from tailrace.wrappers.openai.decoder import (
    ChatCompletionsDecoder,
    ChoiceDelta,
    ChoiceDeltaWrapper,
    wrap_chunk,
)

if TYPE_CHECKING:
    from tailrace.wrappers.openai.package_client import OpenAIModel

__path__.extend([f"{folder}/deprecated" for folder in __path__])  # modules with deprecated names

__all__ = (
    "ChatCompletionsDecoder",
    "ChoiceDelta",
    "ChoiceDeltaWrapper",
    "OpenAIConverter",
    "OpenAIModel",
    "wrap_chunk",
)


def __getattr__(name: str) -> Any:
    if name == "OpenAIModel":  # imported on first use, because the openai package needs 15 MB
        from tailrace.wrappers.openai.package_client import OpenAIModel

        return OpenAIModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

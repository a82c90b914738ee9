"""OpenAI Chat Completions and everything compatible with it."""

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

__all__ = (
    "ChatCompletionsDecoder",
    "ChoiceDelta",
    "ChoiceDeltaWrapper",
    "OpenAIConverter",
    "OpenAIModel",
    "wrap_chunk",
)


def __getattr__(name: str) -> Any:
    if name == "OpenAIModel":  # loaded lazily: the openai package needs 15 MB
        from tailrace.wrappers.openai.package_client import OpenAIModel

        return OpenAIModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""The chunk wrapper of Bedrock streams, and the conversion of Bedrock's finish reasons, token counts and exceptions."""

from collections.abc import Mapping
from typing import Any

from tailrace.wrappers.bedrock.content_blocks import wire_json
from tailrace.wrappers.chunks import (
    FinishMessage,
    FinishReason,
    ReadWrapper,
    Usage,
)
from tailrace.wrappers.decoding.extra_fields import json_text
from tailrace.wrappers.decoding.lenient_json import as_mapping
from tailrace.wrappers.errors import UpstreamError, UpstreamFault
from tailrace.wrappers.openai.delta_shapes import first_count

_REASONS = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "stop": FinishReason.STOP,
    "finish": FinishReason.STOP,
    "stop_criteria_met": FinishReason.STOP,
    "complete": FinishReason.STOP,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "length": FinishReason.LENGTH,
    "tool_use": FinishReason.TOOL_CALLS,
    "tool_calls": FinishReason.TOOL_CALLS,
    "content_filtered": FinishReason.CONTENT_FILTER,
    "guardrail_intervened": FinishReason.CONTENT_FILTER,
    "error_toxic": FinishReason.CONTENT_FILTER,
}
# Field names of each count: first the name in Converse, and then the names in InvokeModel.
_INPUT = ("inputTokens", "inputTokenCount", "inputTextTokenCount", "prompt_token_count")
_OUTPUT = ("outputTokens", "outputTokenCount", "totalOutputTextTokenCount", "generation_token_count")
_CACHE_READ = ("cacheReadInputTokens", "cacheReadInputTokenCount")
_CACHE_WRITE = ("cacheWriteInputTokens", "cacheWriteInputTokenCount")


class BedrockWrapper(ReadWrapper[Mapping[str, Any]], gc=False):
    """Chunk wrapper for one Bedrock event. For a Converse event, ``raw`` has one member, whose name is the type of the event.

    The index of a tool call is the index of its content block.
    """


def finish_message(raw: object) -> FinishMessage | None:
    """Convert a ``stopReason`` to a finish message; None if the value is not a string or is empty."""
    if not isinstance(raw, str) or not raw:
        return None
    return FinishMessage(_REASONS.get(raw.lower(), FinishReason.UNSPECIFIED), raw)


def read_usage(fields: Mapping[str, Any]) -> Usage | None:
    """Return the token counts of a usage object in any of Bedrock's formats; None if the object has no counts.

    The returned input tokens include tokens that were read from or written to the prompt cache, which Bedrock counts separately.
    """
    input_tokens, output_tokens = first_count(fields, *_INPUT), first_count(fields, *_OUTPUT)
    total = first_count(fields, "totalTokens")
    if input_tokens is None and output_tokens is None and total is None:
        return None
    prompt_tokens = (
        (input_tokens or 0)
        + (first_count(fields, *_CACHE_READ) or 0)
        + (first_count(fields, *_CACHE_WRITE) or 0)
    )
    return Usage(
        prompt_tokens,
        output_tokens or 0,
        prompt_tokens + (output_tokens or 0) if total is None else total,
        fields,
    )


def service_error(name: str, payload: object, provider: str = "") -> UpstreamError:
    """Convert an exception of the Bedrock service to an error.

    Args:
        name: The type of the exception, for example ``throttlingException``.
        payload: The JSON object or the text of the exception.
        provider: The provider's name in the error.
    """
    fields = as_mapping(payload) or {}
    message = next(
        (fields[key] for key in ("message", "Message", "originalMessage") if fields.get(key)), payload
    )
    status = fields.get("originalStatusCode")
    return UpstreamError(
        (message if isinstance(message, str) else json_text(wire_json(message)) if message else "") or name,
        fault=UpstreamFault.PROVIDER,
        provider=provider,
        status=status if isinstance(status, int) and 400 <= status <= 599 else None,
        code=name or None,
        details=payload,
    )

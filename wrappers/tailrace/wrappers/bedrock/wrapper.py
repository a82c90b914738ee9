"""One delta of Bedrock's, and the words that all of its streams share: reasons, counts, exceptions."""

from collections.abc import Mapping
from typing import Any

from tailrace.wrappers.bedrock.blocks import wire_json
from tailrace.wrappers.chunks import (
    FinishMessage,
    FinishReason,
    ReadWrapper,
    Usage,
)
from tailrace.wrappers.errors import UpstreamError, UpstreamFault
from tailrace.wrappers.fields import json_text
from tailrace.wrappers.loose_json import as_count, as_mapping

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
# One after the other, as models call them: Converse's first, then those of InvokeModel.
_INPUT = ("inputTokens", "inputTokenCount", "inputTextTokenCount", "prompt_token_count")
_OUTPUT = ("outputTokens", "outputTokenCount", "totalOutputTextTokenCount", "generation_token_count")
_CACHE_READ = ("cacheReadInputTokens", "cacheReadInputTokenCount")
_CACHE_WRITE = ("cacheWriteInputTokens", "cacheWriteInputTokenCount")


class BedrockWrapper(ReadWrapper[Mapping[str, Any]], gc=False):
    """Over one event of Bedrock's: ``raw`` is the object with the event's name as its one member.

    Attributes:
        text: The visible text that this delta adds.
        reasoning: The reasoning text that this delta adds.
        calls: The fragments of tool calls; their index is that of the content block.
        finish: Why the answer ended, with Bedrock's ``stopReason`` as its raw word.
        usage: Token counts of the whole request.
    """


def finish_message(raw: object) -> FinishMessage | None:
    """The reason that a word means; None for what is no word."""
    if not isinstance(raw, str) or not raw:
        return None
    return FinishMessage(_REASONS.get(raw.lower(), FinishReason.UNSPECIFIED), raw)


def read_usage(fields: Mapping[str, Any]) -> Usage | None:
    """The counts in an object of any of Bedrock's vocabularies; None where it counts nothing.

    Tokens read from and written to the prompt's cache are counted apart from the others; here they are input.
    """
    given, made = _count(fields, _INPUT), _count(fields, _OUTPUT)
    total = _count(fields, ("totalTokens",))
    if given is None and made is None and total is None:
        return None
    whole = (given or 0) + (_count(fields, _CACHE_READ) or 0) + (_count(fields, _CACHE_WRITE) or 0)
    return Usage(whole, made or 0, whole + (made or 0) if total is None else total, fields)


def _count(fields: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = fields.get(name)
        count = as_count(value)
        if count is not None:
            return count
    return None


def service_error(name: str, payload: object, provider: str = "") -> UpstreamError:
    """What an exception of the service says.

    Args:
        name: Its type (``throttlingException``, …).
        payload: The exception's object, or text.
        provider: Named in the error.
    """
    fields = as_mapping(payload) or {}
    said = next(
        (fields[key] for key in ("message", "Message", "originalMessage") if fields.get(key)), payload
    )
    status = fields.get("originalStatusCode")
    return UpstreamError(
        (said if isinstance(said, str) else json_text(wire_json(said)) if said else "") or name,
        fault=UpstreamFault.PROVIDER,
        provider=provider,
        status=status if isinstance(status, int) and 400 <= status <= 599 else None,
        code=name or None,
        details=payload,
    )

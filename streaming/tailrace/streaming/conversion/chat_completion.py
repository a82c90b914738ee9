"""Conversion of an accumulated response to an OpenAI ``chat.completion`` object."""

from collections.abc import Mapping
from typing import Any, cast

from tailrace.streaming.accumulator import Accumulator
from tailrace.wrappers import (
    ContentPartFile,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    FinishMessage,
    FinishReason,
    MessageAssembly,
    UpstreamError,
    UpstreamFault,
)
from tailrace.wrappers.decoding.extra_fields import plain_json
from tailrace.wrappers.messages import join_surrogates
from tailrace.wrappers.openai.converter import content_param, tool_call_param

# Fields of deltas that are also fields of the message.
_MESSAGE_FIELDS = ("annotations", "audio", "images", "reasoning_details")


def to_chat_completion(accumulator: Accumulator) -> dict[str, Any]:
    """Return a response as a ``chat.completion`` object (OpenAI API reference, "The chat completion object").

    Reasoning is in ``message.reasoning_content``, and images of the model are in ``message.images``. Parts that the format does
    not define (other files, data, calls and results of tools that the provider runs) are in ``message.parts``, as JSON of
    `ContentPart`. Other metadata and fields have the names of the provider.

    If the response is incomplete, the additional member ``error`` has the fields ``type``, ``message`` and ``code``, and
    ``finish_reason`` is null. If the stream was truncated, complete choices keep their finish reason.

    Args:
        accumulator: The accumulator of the response, after `Accumulator.close`.

    Returns:
        The object, which every JSON parser accepts (see `plain_json`).
    """
    error = accumulator.error
    # One choice may be complete although the stream ended before another choice was complete.
    several = len(accumulator.choices) > 1 and error is not None and error.fault is UpstreamFault.TRUNCATED
    choices = [
        _choice(index, choice, failed=error is not None and not (several and choice.finish is not None))
        for index, choice in sorted(accumulator.choices.items())
    ]
    if not choices:
        choices = [_choice(0, MessageAssembly(), failed=True)]
    metadata = plain_json(accumulator.metadata)
    created = metadata.pop("created", 0)
    completion: dict[str, Any] = {
        "id": str(metadata.pop("id", "")),
        "object": "chat.completion",
        "created": int(created) if isinstance(created, int | float) else 0,
        "model": str(metadata.pop("model", "")),
        "choices": choices,
    }
    if accumulator.usage is not None:
        completion["usage"] = {
            **plain_json(accumulator.usage.raw),
            "prompt_tokens": accumulator.usage.input_tokens,
            "completion_tokens": accumulator.usage.output_tokens,
            "total_tokens": accumulator.usage.total_tokens,
        }
    completion |= {key: value for key, value in metadata.items() if key not in completion}
    if error is not None:
        completion["error"] = error_object(error)
    return completion


def error_object(error: UpstreamError) -> dict[str, Any]:
    """Return the member ``error``: the type and the message of an upstream error, and the provider's code and details."""
    fields: dict[str, Any] = {"type": str(error.fault), "message": str(error), "code": error.code}
    details = error.details
    if isinstance(details, Mapping):
        fields["details"] = cast("Mapping[str, object]", details)
    return plain_json(fields)


def _choice(index: int, assembly: MessageAssembly, *, failed: bool) -> dict[str, Any]:
    extra = assembly.extra
    message: dict[str, Any] = {"role": "assistant", "content": assembly.text or None}
    if assembly.reasoning:
        message["reasoning_content"] = assembly.reasoning
    message["refusal"] = assembly.refusal or None
    calls: list[dict[str, Any]] = []
    images: list[dict[str, Any]] = []
    other_parts: list[dict[str, Any]] = []
    for part in assembly.message().content:
        if isinstance(part, ContentPartToolCall) and part.kind != "server":
            calls.append(_tool_call(part))
        elif isinstance(part, ContentPartFile) and part.media_type.startswith("image/"):
            images.append(content_param(part))
        elif not isinstance(part, ContentPartText | ContentPartReasoning):
            other_parts.append(part.model_dump(mode="json"))
    if calls:
        message["tool_calls"] = calls
    message |= {name: extra.pop(name) for name in _MESSAGE_FIELDS if name in extra}
    if images:
        unread = message.get("images", [])
        message["images"] = images + (cast("list[Any]", unread) if isinstance(unread, list) else [unread])
    if other_parts:
        message["parts"] = other_parts
    choice: dict[str, Any] = {
        "index": index,
        "message": message,
        "finish_reason": None if failed else _finish_reason(assembly.finish, has_calls=bool(calls)),
        "logprobs": extra.pop("logprobs") if isinstance(extra.get("logprobs"), dict) else None,
    }
    # Other extra fields have the names of the provider.
    message |= {name: value for name, value in extra.items() if name not in message}
    return choice


def _finish_reason(finish: FinishMessage | None, *, has_calls: bool) -> str | None:
    if finish is None:
        return None
    if finish.reason is FinishReason.UNSPECIFIED:
        return join_surrogates(finish.raw)
    if has_calls and finish.reason is FinishReason.STOP:
        return str(FinishReason.TOOL_CALLS)
    return str(finish.reason)


def _tool_call(call: ContentPartToolCall) -> dict[str, Any]:
    entry = tool_call_param(call)
    if call.arguments_error is not None:
        entry["arguments_error"] = call.arguments_error
    return entry

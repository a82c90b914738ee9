"""The fields, the token usage, and the outcome (completed, failed, incomplete) of a response."""

from collections.abc import Mapping
from typing import Any

from tailrace.wrappers.chunks import FinishMessage, FinishReason, Usage
from tailrace.wrappers.decoding.decoder import merged_usage
from tailrace.wrappers.decoding.error_reports import provider_error
from tailrace.wrappers.decoding.lenient_json import as_mapping, as_text
from tailrace.wrappers.errors import UpstreamError, UpstreamFault
from tailrace.wrappers.openai.delta_shapes import first_count

_ENDS = {
    "response.completed": "completed",
    "response.done": "completed",
    "response.incomplete": "incomplete",
    "response.failed": "failed",
    "response.cancelled": "cancelled",
}
_INCOMPLETE_REASONS = {
    "content_filter": FinishReason.CONTENT_FILTER,
    "length": FinishReason.LENGTH,
    "max_output_tokens": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
}
# Members of a response that repeat the request, or that the decoder returns in another way.
_NON_METADATA = frozenset(
    {
        "background",
        "billing",
        "error",
        "frequency_penalty",
        "include",
        "incomplete_details",
        "instructions",
        "max_output_tokens",
        "max_tool_calls",
        "metadata",
        "object",
        "output",
        "output_text",
        "parallel_tool_calls",
        "presence_penalty",
        "previous_response_id",
        "prompt",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning",
        "safety_identifier",
        "status",
        "store",
        "stream",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "truncation",
        "usage",
        "user",
    }
)
_NON_EVENT_METADATA = frozenset({"event_id", "obfuscation", "response", "sequence_number", "type"})


class ResponseMetadata:
    """The fields and the usage of a response that the decoder has returned.

    Attributes:
        usage: The usage object; empty until the provider has sent one.
    """

    __slots__ = ("_reported", "usage")

    def __init__(self) -> None:
        self._reported: dict[str, Any] = {}
        self.usage: dict[str, Any] = {}

    def update(self, event: Mapping[str, Any], response: Mapping[str, Any]) -> dict[str, Any]:
        """Store the fields and the usage of an event and its response. Return the fields that are new or have changed.

        Args:
            event: The event.
            response: The response in the event, or the event if it is itself a response.
        """
        metadata = {name: value for name, value in response.items() if name not in _NON_METADATA}
        if response is not event:
            metadata |= {name: value for name, value in event.items() if name not in _NON_EVENT_METADATA}
        if "created_at" in metadata:
            metadata["created"] = metadata.pop("created_at")
        new = {
            name: value
            for name, value in metadata.items()
            if value not in (None, "", 0, [], {}) and self._reported.get(name) != value
        }
        self._reported |= new
        self.usage = merged_usage(self.usage, response.get("usage"))
        return new


def read_usage(fields: Mapping[str, Any]) -> Usage | None:
    """Return the token counts of a usage object; None if the object has no counts.

    The input tokens include cached tokens, and the output tokens include reasoning.
    """
    input_tokens = first_count(fields, "input_tokens", "prompt_tokens")
    output_tokens = first_count(fields, "output_tokens", "completion_tokens")
    total = first_count(fields, "total_tokens")
    if input_tokens is None and output_tokens is None and total is None:
        return None
    return Usage(
        input_tokens or 0,
        output_tokens or 0,
        total if total is not None else (input_tokens or 0) + (output_tokens or 0),
        fields,
    )


def is_end(fields: Mapping[str, Any]) -> bool:
    """Return True if an object is the last event of a response, or a complete response."""
    kind = fields.get("type")
    return kind in _ENDS if isinstance(kind, str) else fields.get("object") == "response"


def response_outcome(event: Mapping[str, Any], response: Mapping[str, Any]) -> str:
    """Return the status of a response, for example ``completed`` or ``in_progress``; empty if it is unknown."""
    status = as_text(response.get("status"))
    outcome = _ENDS.get(as_text(event.get("type")), status)
    return status if outcome == "completed" and status in _ENDS.values() else outcome


def is_final(outcome: str) -> bool:
    """Return True if a response with this status has ended."""
    return outcome in _ENDS.values()


def response_finish(outcome: str, response: Mapping[str, Any]) -> FinishMessage | None:
    """Return the finish message of a response; None if the response failed, was cancelled, or continues."""
    if outcome == "completed":
        return FinishMessage(FinishReason.STOP, outcome)
    if outcome != "incomplete":
        return None
    details = as_mapping(response.get("incomplete_details")) or {}
    reason = as_text(details.get("reason")) or outcome
    return FinishMessage(_INCOMPLETE_REASONS.get(reason, FinishReason.UNSPECIFIED), reason)


def response_error(outcome: str, response: Mapping[str, Any], provider: str) -> UpstreamError | None:
    """Return the error of a failed or cancelled response; None for any other response."""
    if outcome not in ("cancelled", "failed"):
        return None
    if response.get("error"):
        return provider_error(response["error"], provider)
    return UpstreamError(
        "the response was cancelled" if outcome == "cancelled" else "the response failed",
        fault=UpstreamFault.PROVIDER,
        provider=provider,
        code=outcome,
    )


def reported_error(event: Mapping[str, Any], provider: str) -> UpstreamError:
    """Return the error in the member ``error`` of an event. Without this member, the event itself is the error."""
    error = event.get("error")
    if not error:
        error = {
            name: value
            for name, value in event.items()
            if name != "sequence_number" and not (name in ("object", "type") and value == "error")
        }
    return provider_error(error, provider)

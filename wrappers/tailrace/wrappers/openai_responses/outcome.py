"""What an answer says about itself: facts, usage, and how it ended."""

from collections.abc import Mapping
from typing import Any

from tailrace.wrappers.chunks import FinishMessage, FinishReason, Usage
from tailrace.wrappers.decoding import merged_usage
from tailrace.wrappers.error_reports import provider_error
from tailrace.wrappers.errors import UpstreamError, UpstreamFault
from tailrace.wrappers.loose_json import as_count, as_mapping, as_text

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
# Members of a response that repeat the request, or that are said elsewhere.
_NO_FACTS = frozenset(
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
_NO_EVENT_FACTS = frozenset({"event_id", "obfuscation", "response", "sequence_number", "type"})


class ResponseFacts:
    """The facts about a response that were told, and its usage.

    Attributes:
        usage: The usage object so far; empty when there was none.
    """

    __slots__ = ("_told", "usage")

    def __init__(self) -> None:
        self._told: dict[str, Any] = {}
        self.usage: dict[str, Any] = {}

    def new(self, event: Mapping[str, Any], response: Mapping[str, Any]) -> dict[str, Any]:
        """The facts that are new or have changed; what the server says beside the response is one of them.

        Args:
            event: The event.
            response: The response in it, or the event itself where that is the response.
        """
        facts = {name: value for name, value in response.items() if name not in _NO_FACTS}
        if response is not event:
            facts |= {name: value for name, value in event.items() if name not in _NO_EVENT_FACTS}
        if "created_at" in facts:
            facts["created"] = facts.pop("created_at")
        new = {
            name: value
            for name, value in facts.items()
            if value not in (None, "", 0, [], {}) and self._told.get(name) != value
        }
        self._told |= new
        self.usage = merged_usage(self.usage, response.get("usage"))
        return new


def read_usage(fields: Mapping[str, Any]) -> Usage | None:
    """The token counts in a usage object; None where it counts nothing.

    Cached tokens are part of the input here already, and reasoning of the output.
    """
    given = _count(fields, "input_tokens", "prompt_tokens")
    made = _count(fields, "output_tokens", "completion_tokens")
    total = _count(fields, "total_tokens")
    if given is None and made is None and total is None:
        return None
    return Usage(given or 0, made or 0, total if total is not None else (given or 0) + (made or 0), fields)


def is_end(fields: Mapping[str, Any]) -> bool:
    """Whether an object is the last event of a response, or a whole response that was not streamed."""
    kind = fields.get("type")
    return kind in _ENDS if isinstance(kind, str) else fields.get("object") == "response"


def outcome_of(event: Mapping[str, Any], response: Mapping[str, Any]) -> str:
    """How a response ended, in the API's word; another word, or none, where it has not."""
    status = as_text(response.get("status"))
    outcome = _ENDS.get(as_text(event.get("type")), status)
    return status if outcome == "completed" and status in _ENDS.values() else outcome


def ends(outcome: str) -> bool:
    """Whether a word says that a response has ended."""
    return outcome in _ENDS.values()


def finish_of(outcome: str, response: Mapping[str, Any]) -> FinishMessage | None:
    """Why the answer ended; None for one that failed, or goes on."""
    if outcome == "completed":
        return FinishMessage(FinishReason.STOP, outcome)
    if outcome != "incomplete":
        return None
    details = as_mapping(response.get("incomplete_details")) or {}
    reason = as_text(details.get("reason")) or outcome
    return FinishMessage(_INCOMPLETE_REASONS.get(reason, FinishReason.UNSPECIFIED), reason)


def failure_of(outcome: str, response: Mapping[str, Any], provider: str) -> UpstreamError | None:
    """The error that a response ended with; None for one that did not fail."""
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
    """The error that an event reports: in a member of that name, or in its own members."""
    said = event.get("error")
    if not said:
        said = {
            name: value
            for name, value in event.items()
            if name != "sequence_number" and not (name in ("object", "type") and value == "error")
        }
    return provider_error(said, provider)


def _count(fields: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = fields.get(name)
        count = as_count(value)
        if count is not None:
            return count
    return None

"""Decoder of streams of Cohere's Chat API, version 2.

There are two forms of reasoning: the plan before tool calls (``tool_plan``), and ``thinking`` blocks. The metadata of a reasoning
part contains its form, because later requests contain the two forms in different fields.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import UNSET

from tailrace.wrappers.chunks import (
    BlockDelta,
    ChunkDetails,
    FinishMessage,
    FinishReason,
    ReadWrapper,
    ToolCallDelta,
    Usage,
)
from tailrace.wrappers.cohere.event_structs import CallDelta, ContentDelta, PlanDelta, read_common_event
from tailrace.wrappers.decoding.decoder import EventDecoder
from tailrace.wrappers.decoding.error_reports import pop_error, provider_error
from tailrace.wrappers.decoding.extra_fields import json_text, plain_json
from tailrace.wrappers.decoding.framing import MAX_EVENT_BYTES
from tailrace.wrappers.decoding.lenient_json import (
    as_count,
    as_index,
    as_mapping,
    as_mappings,
    as_object,
    as_text,
)
from tailrace.wrappers.errors import UpstreamError, UpstreamFault
from tailrace.wrappers.messages import ContentPartData

if TYPE_CHECKING:
    from pydantic import BaseModel

_FINISH_REASONS = {
    "COMPLETE": FinishReason.STOP,
    "STOP_SEQUENCE": FinishReason.STOP,
    "MAX_TOKENS": FinishReason.LENGTH,
    "ERROR_LIMIT": FinishReason.LENGTH,  # the limit of the context window
    "TOOL_CALL": FinishReason.TOOL_CALLS,
    "ERROR_TOXIC": FinishReason.CONTENT_FILTER,
}
_FAILURES = frozenset({"TIMEOUT", "NETWORK_ERROR"})

_THINKING = {"cohere": {"type": "thinking"}}
_TOOL_PLAN = {"cohere": {"type": "tool_plan"}}

_RESPONSE = frozenset({"finish_reason", "logprobs", "message", "usage"})
_MESSAGE = frozenset({"citations", "content", "role", "tool_calls", "tool_plan"})

_MAX_OPEN_CALLS = 1024


class CohereWrapper(ReadWrapper[dict[str, Any]], gc=False):
    """Chunk wrapper for one event of the stream.

    Attributes:
        reasoning: The ``thinking`` of a content block, or the ``tool_plan``.
        finish: The ``finish_reason`` of the event ``message-end``.
        usage: The counts of the event ``message-end``: ``tokens``, otherwise ``billed_units``.
    """


class CohereDecoder(EventDecoder[CohereWrapper]):
    """Sans-IO decoder of a streamed response body.

    The decoder also reads complete (not streamed) responses. Each event ``tool-call-start`` starts a new call, even if an earlier
    call has the same id or index.

    Args:
        provider: The provider's name in errors.
        max_event_bytes: Maximum size of one event in bytes.

    Attributes:
        done: True if the message has ended.
    """

    __slots__ = ("_calls", "_open_calls", "_pending_block", "_planning")

    def __init__(self, *, provider: str = "", max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        super().__init__(provider=provider, max_event_bytes=max_event_bytes)
        # The start of a block that has no text yet; None if there is none.
        self._pending_block: BlockDelta | None = None
        self._planning = False
        self._calls = 0
        # The indexes of calls in the chunk wrappers, by the provider's index.
        self._open_calls: dict[int, int] = {}

    def wrap(self, fields: dict[str, Any], *, error_event: bool = False) -> list[CohereWrapper]:
        """Return the chunk wrappers of one event or of a complete response."""
        kind = fields.get("type")
        wrappers = _wrap(fields, self._provider, error_event=error_event)
        if kind == "tool-plan-delta":
            self._plan(wrappers)
            return wrappers
        self._planning = False
        if kind == "content-start":
            return self._start_block(wrappers)
        for wrapper in wrappers:
            if wrapper.calls:
                wrapper.calls = tuple(self._number_call(call, kind) for call in wrapper.calls)
            elif self._pending_block is not None and (wrapper.text or wrapper.reasoning):
                details = wrapper.details = wrapper.details or ChunkDetails()
                details.block, self._pending_block = self._pending_block, None
                wrapper.plain = False
            self.done = self.done or wrapper.finish is not None
        self.done = self.done or kind == "message-end"
        return wrappers

    def wrap_common(self, payload: bytes) -> list[CohereWrapper]:
        """Return the chunk wrapper of an event that continues a block, a plan or a call; an empty list for other events."""
        event = read_common_event(payload)
        if type(event) is ContentDelta and self._pending_block is None:
            self._planning = False
            content = event.delta.message.content
            text, thinking = content.text, content.thinking
            if text is UNSET and thinking is not UNSET:
                return [CohereWrapper(event.raw("thinking", thinking), 0, None, True, "", thinking)]
            if thinking is UNSET and text is not UNSET:
                return [CohereWrapper(event.raw("text", text), 0, None, True, text)]
        elif type(event) is CallDelta and event.index in self._open_calls:
            self._planning = False
            call = ToolCallDelta(self._open_calls[event.index], arguments=event.arguments)
            return [CohereWrapper(event.raw(), calls=(call,))]
        elif type(event) is PlanDelta and self._planning:
            return [CohereWrapper(event.raw(), 0, None, True, "", event.plan)]
        return []

    def wrap_error(self, error: UpstreamError) -> CohereWrapper:
        """Return a chunk wrapper that contains only this error."""
        return CohereWrapper({}, details=ChunkDetails(error=error))

    def _start_block(self, wrappers: list[CohereWrapper]) -> list[CohereWrapper]:
        """Defer the start of a block until its first text arrives, so that empty blocks are not reported."""
        self._pending_block = None
        for wrapper in wrappers:
            details = wrapper.details
            if details is not None and details.block is not None and not (wrapper.text or wrapper.reasoning):
                self._pending_block, details.block = details.block, None
        return [wrapper for wrapper in wrappers if wrapper.details != ChunkDetails()]

    def _plan(self, wrappers: list[CohereWrapper]) -> None:
        """Let the first delta of a plan start a block, which later deltas continue."""
        for wrapper in wrappers:
            if wrapper.reasoning and self._planning:
                wrapper.details, wrapper.plain = None, True
            elif wrapper.reasoning and wrapper.details is not None:
                wrapper.details.block = BlockDelta("reasoning", starts_block=True, metadata=_TOOL_PLAN)
                self._planning, self._pending_block = True, None

    def _number_call(self, call: ToolCallDelta, kind: object) -> ToolCallDelta:
        """Return a fragment of a call with an index that is unique in the response."""
        index = call.index or 0
        if kind != "tool-call-delta" or index not in self._open_calls:
            if len(self._open_calls) >= _MAX_OPEN_CALLS:
                self._open_calls.clear()
            self._open_calls[index] = self._calls
            self._calls += 1
        return ToolCallDelta(
            self._open_calls[index], call.id, call.name, call.arguments, call.type, call.extra
        )


def wrap_chunk(chunk: "Mapping[str, Any] | BaseModel", *, provider: str = "") -> list[CohereWrapper]:
    """Return the chunk wrappers of one event or of a complete response.

    Args:
        chunk: The event or response, as a JSON object or an object of the ``cohere`` package.
        provider: The provider's name in errors.

    Returns:
        The chunk wrappers; an empty list for an event without content, for example the end of a block.
    """
    return _wrap(as_object(chunk) or {}, provider)


# --- events -----------------------------------------------------------------------------------------------------


def _wrap(fields: dict[str, Any], provider: str, *, error_event: bool = False) -> list[CohereWrapper]:
    wrappers = _wrap_event(fields, provider)
    # An error that is not an event has no ``type``, and a string as its ``message``.
    if (
        error_event
        or fields.get("error")
        or fields.get("type") == "error"
        or ("type" not in fields and isinstance(fields.get("message"), str))
    ):
        error = pop_error(dict(fields), provider, error_event=True)
        wrappers.append(CohereWrapper(fields, details=ChunkDetails(error=error)))
    return wrappers


def _wrap_event(fields: dict[str, Any], provider: str) -> list[CohereWrapper]:
    kind = as_text(fields.get("type"))
    delta = as_mapping(fields.get("delta")) or {}
    message = as_mapping(delta.get("message")) or {}
    if kind in ("content-start", "content-delta"):
        return [
            _wrap_content(fields, content, starts_block=kind == "content-start")
            for content in as_mappings(message.get("content"))
        ]
    if kind == "tool-plan-delta":
        return [_wrap_plan(fields, as_text(message.get("tool_plan")))]
    if kind in ("tool-call-start", "tool-call-delta"):
        index = as_index(fields.get("index"))
        calls = tuple(_read_call(call, index) for call in as_mappings(message.get("tool_calls")))
        return [CohereWrapper(fields, calls=calls)]
    if kind == "citation-start":
        return [_wrap_citation(fields, citation) for citation in as_mappings(message.get("citations"))]
    if kind == "message-end":
        return [_wrap_end(fields, delta, provider)]
    if kind == "message-start":
        metadata = _other_fields(fields, "type", "delta") | _other_fields(message, *_MESSAGE)
        return [
            CohereWrapper(fields, details=ChunkDetails(metadata=metadata or None)),
            *_wrap_message(fields, message),
        ]
    if kind == "debug":
        return [CohereWrapper(fields, details=ChunkDetails(metadata=_other_fields(fields, "type") or None))]
    if not kind and as_mapping(fields.get("message")) is not None:
        return _wrap_response(fields, provider)
    return []


def _wrap_response(fields: dict[str, Any], provider: str) -> list[CohereWrapper]:
    message = as_mapping(fields.get("message")) or {}
    end = _wrap_end(fields, fields, provider)
    end.details = end.details or ChunkDetails()
    end.details.metadata = (_other_fields(fields, *_RESPONSE) | _other_fields(message, *_MESSAGE)) or None
    if fields.get("logprobs"):
        end.details.extra = {"logprobs": fields["logprobs"]}
    return [*_wrap_message(fields, message), end]


def _wrap_message(fields: dict[str, Any], message: Mapping[str, Any]) -> list[CohereWrapper]:
    wrappers: list[CohereWrapper] = []
    plan = as_text(message.get("tool_plan"))
    if plan:
        wrappers.append(_wrap_plan(fields, plan, starts_block=True))
    content = message.get("content")
    blocks = as_mappings({"type": "text", "text": content} if isinstance(content, str) else content)
    wrappers += [_wrap_content(fields, block, starts_block=True) for block in blocks if not _is_empty(block)]
    wrappers += [_wrap_citation(fields, citation) for citation in as_mappings(message.get("citations"))]
    calls = as_mappings(message.get("tool_calls"))
    if calls:
        deltas = tuple(_read_call(call, index) for index, call in enumerate(calls))
        wrappers.append(CohereWrapper(fields, calls=deltas))
    return wrappers


def _wrap_content(fields: dict[str, Any], content: Mapping[str, Any], *, starts_block: bool) -> CohereWrapper:
    text, thinking = as_text(content.get("text")), as_text(content.get("thinking"))
    kind = as_text(content.get("type")) or ("thinking" if "thinking" in content else "text")
    details = ChunkDetails()
    if kind not in ("text", "thinking"):
        details.parts = (ContentPartData(data=plain_json(content), metadata={"cohere": {"type": kind}}),)
    elif starts_block and kind == "thinking":
        details.block = BlockDelta("reasoning", starts_block=True, metadata=_THINKING)
    elif starts_block:
        details.block = BlockDelta("text", starts_block=True)
    if "message" not in fields and fields.get("logprobs"):
        details.extra = {"logprobs": [fields["logprobs"]]}
    plain = details == ChunkDetails()
    return CohereWrapper(fields, 0, None if plain else details, plain, text, thinking)


def _is_empty(block: Mapping[str, Any]) -> bool:
    return block.get("type") in ("text", "thinking") and not (block.get("text") or block.get("thinking"))


def _wrap_plan(fields: dict[str, Any], plan: str, *, starts_block: bool = False) -> CohereWrapper:
    if not plan:
        return CohereWrapper(fields, plain=True)
    block = BlockDelta("reasoning", starts_block=starts_block, metadata=_TOOL_PLAN)
    return CohereWrapper(fields, details=ChunkDetails(block=block), reasoning=plan)


def _wrap_citation(fields: dict[str, Any], citation: Mapping[str, Any]) -> CohereWrapper:
    channel = "reasoning" if citation.get("type") in ("THINKING_CONTENT", "PLAN") else "text"
    block = BlockDelta(channel, metadata={"cohere": {"citations": [citation]}})
    return CohereWrapper(fields, details=ChunkDetails(block=block, extra={"annotations": [citation]}))


def _wrap_end(fields: dict[str, Any], end: Mapping[str, Any], provider: str) -> CohereWrapper:
    raw = as_text(end.get("finish_reason"))
    finish = FinishMessage(_FINISH_REASONS.get(raw, FinishReason.UNSPECIFIED), raw) if raw else None
    error = None
    if end.get("error"):
        error = provider_error(end["error"], provider)
    elif raw in _FAILURES or (raw.startswith("ERROR") and raw not in _FINISH_REASONS):
        error = UpstreamError(
            "the provider ended the response with an error",
            fault=UpstreamFault.PROVIDER,
            provider=provider,
            code=raw,
        )
    details = ChunkDetails(error=error) if error is not None else None
    return CohereWrapper(fields, details=details, finish=finish, usage=_read_usage(end.get("usage")))


def _read_call(call: Mapping[str, Any], index: int | None) -> ToolCallDelta:
    function = as_mapping(call.get("function")) or {}
    arguments = function.get("arguments")
    if arguments is None:
        arguments = ""
    elif not isinstance(arguments, str):
        arguments = json_text(arguments)
    extra = _other_fields(call, "id", "type", "function")
    other_fields = _other_fields(function, "name", "arguments")
    if other_fields:
        extra["function"] = other_fields
    return ToolCallDelta(
        index=index,
        id=as_text(call.get("id")),
        name=as_text(function.get("name")),
        arguments=arguments,
        type=as_text(call.get("type")),
        extra={"cohere": extra} if extra else None,
    )


def _read_usage(value: object) -> Usage | None:
    usage = as_mapping(value)
    if usage is None:
        return None
    counts = as_mapping(usage.get("tokens")) or as_mapping(usage.get("billed_units")) or {}
    input_tokens, output_tokens = as_count(counts.get("input_tokens")), as_count(counts.get("output_tokens"))
    if input_tokens is None and output_tokens is None:
        return None
    return Usage(input_tokens or 0, output_tokens or 0, (input_tokens or 0) + (output_tokens or 0), usage)


def _other_fields(fields: Mapping[str, Any], *standard: str) -> dict[str, Any]:
    return {
        name: value for name, value in fields.items() if name not in standard and value not in (None, "", [])
    }

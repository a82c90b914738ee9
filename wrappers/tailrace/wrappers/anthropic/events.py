"""Interpretation of the events of the Messages API. Anthropic, Vertex AI, Bedrock and gateways send these events.

A message is a series of content blocks. Text, reasoning and fragments of tool calls are returned immediately. The index of a
block identifies the tool call. Any other block (the result of a server tool, a compaction, …) is buffered, and becomes one part.
Its metadata contains the original block, because later requests must contain the block unchanged.
"""

from collections.abc import Mapping
from typing import Any, cast

from tailrace.wrappers.chunks import (
    BlockDelta,
    ChunkDetails,
    FinishMessage,
    FinishReason,
    ReadWrapper,
    ToolCallDelta,
    Usage,
)
from tailrace.wrappers.decoding.decoder import merged_usage
from tailrace.wrappers.decoding.error_reports import pop_error
from tailrace.wrappers.decoding.extra_fields import json_text, plain_json
from tailrace.wrappers.decoding.lenient_json import as_count, as_index, as_mapping, as_text
from tailrace.wrappers.messages import ContentPart, ContentPartData, ContentPartToolResult

KEY = "anthropic"
"""Metadata key of fields that must be unchanged in later requests to this API."""

_FINISH_REASONS = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "tool_use": FinishReason.TOOL_CALLS,
    "refusal": FinishReason.CONTENT_FILTER,
    # After ``pause_turn``, the response is not complete. A client continues it by sending the unchanged message in a
    # new request.
}
_MESSAGE_FIELDS = frozenset(
    {"completion", "content", "delta", "error", "message", "role", "stop_reason", "type", "usage"}
)
_MAX_PENDING_CALLS = 64  # server tool calls without a result

_NO_BLOCK = -1  # no block is open


class AnthropicEventWrapper(ReadWrapper[dict[str, Any]], gc=False):
    """Chunk wrapper for one delta of an event. An event with a complete message has several deltas.

    Attributes:
        finish: The finish reason in the event; None if there is none.
        usage: The token counts of the request so far; None if the event has no counts.
    """


class MessageEvents:
    """Sans-IO reader of the events of one response. Invalid content of an event never causes an exception.

    Args:
        provider: The provider's name in errors.
        start_repeated: True if the server sends the beginning of a block both at the start of the block and in the first delta,
            as MiniMax does. By default, repeated text is preserved, because a model may repeat text on purpose.

    Attributes:
        done: True if a message has ended and no other message has started.
    """

    __slots__ = (
        "_buffered_block",
        "_id",
        "_index",
        "_is_empty_text",
        "_names",
        "_next",
        "_offset",
        "_open",
        "_provider",
        "_start_arguments",
        "_start_event",
        "_start_repeated",
        "_start_signature",
        "_start_text",
        "_stop_reason",
        "_streaming",
        "_usage",
        "done",
    )

    def __init__(self, *, provider: str = "", start_repeated: bool = False) -> None:
        self._provider = provider
        self._start_repeated = start_repeated
        self.done = False
        self._open: bool = False  # True if a message has started and has not ended
        self._id: str = ""
        # Stop reason in the first event of the message, which is reported at its end.
        self._stop_reason: str | None = None
        self._usage: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        # The block indexes of each message start at 0. The number of blocks in earlier messages is added to them, so that
        # the indexes of tool calls are unique.
        self._offset = self._next = 0
        self._clear_block()

    def wrap(self, event: dict[str, Any], *, error_event: bool = False) -> list[AnthropicEventWrapper]:
        """Return the chunk wrappers of one event; an empty list for a ping or an unknown event.

        Args:
            event: The JSON object of the event. The wrappers refer to it, but do not change it.
            error_event: True if the name of the SSE event is ``error``.
        """
        # Fast path for deltas with three fields, which are most events.
        if len(event) == 3 and event.get("type") == "content_block_delta":
            wrappers = self.wrap_common(event)
            if wrappers:
                return wrappers
        wrappers = self._wrap(event)
        if error_event or event.get("error") or event.get("type") == "error":
            error = pop_error(dict(event), self._provider, error_event=error_event)
            wrappers.append(AnthropicEventWrapper(event, details=ChunkDetails(error=error)))
        return wrappers

    def wrap_common(self, event: dict[str, Any]) -> list[AnthropicEventWrapper]:
        """Return the chunk wrapper of an event that adds text, thinking or call arguments to the open block.

        Args:
            event: An event of type ``content_block_delta`` that has only the fields ``type``, ``index`` and ``delta``.

        Returns:
            A list with one chunk wrapper; an empty list for other events.
        """
        delta: Any = event.get("delta")
        index: Any = event.get("index")
        if delta.__class__ is not dict or index != self._streaming or index < 0 or index.__class__ is not int:
            return []
        kind = delta.get("type")
        if kind == "text_delta":
            text = delta.get("text")
            if text.__class__ is str:
                return [AnthropicEventWrapper(event, 0, None, True, text)]
        elif kind == "thinking_delta":
            text = delta.get("thinking")
            if text.__class__ is str:
                return [AnthropicEventWrapper(event, 0, None, True, "", text)]
        elif kind == "input_json_delta":
            text = delta.get("partial_json")
            if text and text.__class__ is str:
                call = ToolCallDelta(self._streaming + self._offset, "", "", text)
                return [AnthropicEventWrapper(event, 0, None, False, "", "", (call,))]
        return []

    def close(self) -> list[AnthropicEventWrapper]:
        """End the response. Return the chunk wrappers of an unfinished block."""
        return self._end_block()

    def _wrap(self, event: dict[str, Any]) -> list[AnthropicEventWrapper]:
        match event.get("type"):
            case "content_block_delta":
                return self._read_delta(event)
            case "content_block_start":
                return self._start_block(event, event.get("index"), event.get("content_block"))
            case "content_block_stop":
                return self._end_block() if event.get("index") in (None, self._index) else []
            case "message_start":
                return self._start_message(event, as_mapping(event.get("message")) or {})
            case "message_delta":
                return self._read_message_delta(event)
            case "message_stop":
                return self._end_message(event)
            case "message":
                return self._read_complete_message(event)
            case "completion":
                return self._read_completion(event)
            case _:
                return []

    # --- messages ---------------------------------------------------------------------------------------------

    def _start_message(
        self, event: dict[str, Any], message: Mapping[str, Any]
    ) -> list[AnthropicEventWrapper]:
        message_id = _identifier(message.get("id"))
        if self._open and message_id == self._id:
            return []  # the server sent the first event of the message again
        # A gateway has sent the request again if a message starts before the current message has ended.
        restarts = self._open
        wrappers: list[AnthropicEventWrapper] = []
        if restarts:
            self._clear_block()
            self._names.clear()
            self._offset = self._next = 0
        else:
            wrappers += self._end_block()
            self._offset = self._next
        self._index = self._streaming = _NO_BLOCK
        self._open, self.done, self._id, self._usage = True, False, message_id, {}
        self._stop_reason = as_text(message.get("stop_reason")) or None
        metadata = _response_fields(message)
        if restarts:
            metadata["restarted"] = True
        role = as_text(message.get("role"))
        details = ChunkDetails(role="" if role == "assistant" else role, restarts=restarts)
        wrapper = AnthropicEventWrapper(event, details=details)
        wrapper.usage = self._merge_usage(message.get("usage"), metadata)
        details.metadata = metadata or None
        wrappers.append(wrapper)
        content = message.get("content")
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        if isinstance(content, list):
            for index, block in enumerate(cast("list[object]", content)):
                wrappers += self._start_block(event, index, block)
            wrappers += self._end_block()
        return wrappers

    def _read_message_delta(self, event: dict[str, Any]) -> list[AnthropicEventWrapper]:
        wrappers = self._end_block()
        delta = as_mapping(event.get("delta")) or {}
        metadata = _response_fields(event) | _response_fields(delta)
        wrapper = AnthropicEventWrapper(event, finish=_finish(delta.get("stop_reason"), delta))
        wrapper.usage = self._merge_usage(event.get("usage"), metadata)
        if metadata:
            wrapper.details = ChunkDetails(metadata=metadata)
        if wrapper.finish is not None:
            self._open, self._stop_reason = False, None
        return [*wrappers, wrapper]

    def _end_message(self, event: dict[str, Any]) -> list[AnthropicEventWrapper]:
        wrappers = self._end_block()
        finish = _finish(self._stop_reason, {})
        metadata = _response_fields(event)
        if finish is not None or metadata:
            details = ChunkDetails(metadata=metadata) if metadata else None
            wrappers.append(AnthropicEventWrapper(event, details=details, finish=finish))
        self._open, self._stop_reason, self.done = False, None, True
        return wrappers

    def _read_complete_message(self, event: dict[str, Any]) -> list[AnthropicEventWrapper]:
        if _identifier(event.get("id")) == self._id and self._next > self._offset:
            event = {**event, "content": None}
        self._open = self._open and _identifier(event.get("id")) != self._id
        wrappers = self._start_message(event, event)
        self._open, self._stop_reason, self.done = False, None, True
        finish = _finish(event.get("stop_reason"), event)
        if finish is not None:
            wrappers.append(AnthropicEventWrapper(event, finish=finish))
        return wrappers

    def _read_completion(self, event: dict[str, Any]) -> list[AnthropicEventWrapper]:
        """Read an event of the legacy text completions API."""
        wrapper = AnthropicEventWrapper(event, text=as_text(event.get("completion")))
        wrapper.finish = _finish(event.get("stop_reason"), {})
        if not self._open or wrapper.finish is not None:
            wrapper.details = ChunkDetails(metadata=_response_fields(event))
        self._open = wrapper.finish is None
        self.done = not self._open
        wrapper.plain = wrapper.details is None
        return [wrapper]

    def _merge_usage(self, new: object, metadata: dict[str, Any]) -> Usage | None:
        """Merge counts into the usage and return it; None without new counts. Copy the service tier to ``metadata``."""
        if not as_mapping(new):
            return None
        self._usage = merged_usage(self._usage, new)
        tier = self._usage.get("service_tier")
        if tier:
            metadata["service_tier"] = tier
        return read_usage(self._usage)

    # --- blocks -----------------------------------------------------------------------------------------------

    def _clear_block(self) -> None:
        self._index = _NO_BLOCK  # index of the open block
        self._streaming = _NO_BLOCK  # index of the open block if it has received a delta
        self._is_empty_text = False  # True if the open block is a text block without text so far
        self._start_event: dict[str, Any] = {}
        # Content in the event that started the block. Deltas replace the arguments and the signature, and may repeat the text.
        self._start_arguments = ""
        self._start_signature = ""
        self._start_text = ""
        # The open block if it is buffered and becomes one part at its end.
        self._buffered_block: dict[str, Any] | None = None

    def _open_index(self, index: object) -> None:
        """Start a block. A block without an index gets the next index."""
        number = as_index(index)
        self._clear_block()
        self._index = self._next - self._offset if number is None else number
        self._next = max(self._next, self._offset + self._index + 1)

    def _start_block(
        self, event: dict[str, Any], index: object, content_block: object
    ) -> list[AnthropicEventWrapper]:
        wrappers = self._end_block()
        self._open_index(index)
        block = dict(as_mapping(content_block) or {})
        kind = as_text(block.get("type"))
        wrapper = AnthropicEventWrapper(event)
        self._start_event = event
        if kind == "text":
            wrapper.text = self._start_text = as_text(block.get("text"))
            self._is_empty_text = not wrapper.text
            own = _other_fields(block, "type", "text")
            wrapper.details = ChunkDetails(block=BlockDelta("text", True, "", {KEY: own} if own else None))
            if isinstance(own.get("citations"), list):
                wrapper.details.extra = {"annotations": own["citations"]}
                self._is_empty_text = False
        elif kind == "thinking":
            wrapper.reasoning = self._start_text = as_text(block.get("thinking"))
            self._start_signature = as_text(block.get("signature"))
            wrapper.details = ChunkDetails(
                block=_thinking(_other_fields(block, "type", "thinking", "signature"))
            )
        elif kind == "redacted_thinking":
            wrapper.details = ChunkDetails(block=BlockDelta("reasoning", True, "", {KEY: block}))
        elif kind.endswith("tool_use"):
            wrapper.calls = (self._start_call(block, kind),)
        elif kind:
            self._buffered_block = block
            return wrappers
        else:
            return wrappers  # the first delta determines the type of the block
        return [*wrappers, wrapper]

    def _start_call(self, block: dict[str, Any], kind: str) -> ToolCallDelta:
        call_id, name = _identifier(block.get("id")), as_text(block.get("name"))
        arguments = block.get("input")
        if arguments:
            self._start_arguments = arguments if isinstance(arguments, str) else json_text(arguments)
        own = _other_fields(block, "type", "id", "name", "input")
        if kind == "tool_use":
            return ToolCallDelta(
                self._offset + self._index, call_id, name, "", "function", {KEY: own} if own else None
            )
        if len(self._names) >= _MAX_PENDING_CALLS:
            del self._names[next(iter(self._names))]
        self._names[call_id] = name
        return ToolCallDelta(
            self._offset + self._index, call_id, name, "", "server", {KEY: {"type": kind, **own}}
        )

    def _read_delta(self, event: dict[str, Any]) -> list[AnthropicEventWrapper]:
        delta = as_mapping(event.get("delta"))
        if delta is None:
            return []
        wrappers: list[AnthropicEventWrapper] = []
        index = event.get("index")
        # A delta with another index than the open block starts another block.
        unknown = self._index == _NO_BLOCK or index not in (None, self._index)
        # If no message has started (as in `wrap_chunk`), a delta does not open a block.
        starts_block = unknown and (self._open or self._next > 0)
        if unknown:
            wrappers += self._end_block()
            self._open_index(index)
            self._start_event = event
        wrapper = AnthropicEventWrapper(event)
        kind = delta.get("type")
        if kind == "text_delta":
            wrapper.text = self._strip_repetition(delta.get("text"))
            if starts_block:
                wrapper.details = ChunkDetails(block=BlockDelta("text", True))
        elif kind == "thinking_delta":
            wrapper.reasoning = self._strip_repetition(delta.get("thinking"))
            if starts_block:
                wrapper.details = ChunkDetails(block=_thinking({}))
        elif kind == "signature_delta":
            seal, self._start_signature = as_text(delta.get("signature")), ""
            block = _thinking({}, seal) if starts_block else BlockDelta("reasoning", False, seal)
            wrapper.details = ChunkDetails(block=block)
        elif kind == "citations_delta":
            citations = [] if delta.get("citation") is None else [delta["citation"]]
            block = BlockDelta(
                "text", starts_block or self._is_empty_text, "", {KEY: {"citations": citations}}
            )
            wrapper.details = ChunkDetails(block=block, extra={"annotations": citations})
        elif kind == "input_json_delta":
            fragment = delta.get("partial_json")
            text = fragment if isinstance(fragment, str) else json_text(fragment) if fragment else ""
            if not text:
                # In most blocks, the first delta is empty. It does not replace the arguments from the start of the block.
                return wrappers
            self._start_arguments = ""
            wrapper.calls = (ToolCallDelta(self._offset + self._index, arguments=text),)
        elif self._buffered_block is not None:
            # A later value of a field replaces the earlier value.
            self._buffered_block |= _other_fields(delta, "type")
            return wrappers
        else:
            unknown_delta = {as_text(kind) or "delta": _other_fields(delta, "type")}
            wrapper.details = ChunkDetails(extra={KEY: unknown_delta})
            return [*wrappers, wrapper]
        self._is_empty_text = False
        self._streaming = self._index
        wrapper.plain = wrapper.details is None and not wrapper.calls
        return [*wrappers, wrapper]

    def _strip_repetition(self, value: object) -> str:
        text = as_text(value)
        start, self._start_text = self._start_text, ""
        return text.removeprefix(start) if self._start_repeated else text

    def _end_block(self) -> list[AnthropicEventWrapper]:
        """End the open block. Return the chunk wrappers of content that was not returned before."""
        wrappers: list[AnthropicEventWrapper] = []
        if self._start_arguments:
            call = ToolCallDelta(self._offset + self._index, arguments=self._start_arguments)
            wrappers.append(AnthropicEventWrapper(self._start_event, calls=(call,)))
        if self._start_signature:
            details = ChunkDetails(block=BlockDelta("reasoning", False, self._start_signature))
            wrappers.append(AnthropicEventWrapper(self._start_event, details=details))
        if self._buffered_block is not None:
            details = ChunkDetails(parts=[self._part(self._buffered_block)])
            target = as_mapping(self._buffered_block.get("to"))
            if self._buffered_block.get("type") == "fallback" and target and as_text(target.get("model")):
                # Another model continues the response after this block.
                details.metadata = {"model": target["model"]}
            wrappers.append(AnthropicEventWrapper(self._start_event, details=details))
        self._start_arguments = self._start_signature = self._start_text = ""
        self._buffered_block = None
        return wrappers

    def _part(self, fields: dict[str, Any]) -> ContentPart:
        block = plain_json(fields)
        kind = as_text(fields.get("type"))
        if not kind.endswith("_tool_result"):
            return ContentPartData(data=block, metadata={KEY: block})
        content = block.get("content")
        call_id = _identifier(fields.get("tool_use_id"))
        failure = as_text((as_mapping(content) or {}).get("type")).endswith("_error")
        return ContentPartToolResult(
            id=call_id,
            name=self._names.pop(call_id, "") or kind.removesuffix("_tool_result"),
            output=content,
            is_error=failure or block.get("is_error") is True,
            metadata={KEY: block},
        )


def read_usage(fields: Mapping[str, Any]) -> Usage | None:
    """Return the token counts of a usage object; None if the object has no counts.

    The returned input tokens include tokens that were read from or written to the prompt cache, which this API counts separately.
    """
    input_counts = [
        as_count(fields.get(name))
        for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    ]
    output_tokens = as_count(fields.get("output_tokens"))
    if output_tokens is None and all(each is None for each in input_counts):
        return None
    prompt = sum(each or 0 for each in input_counts)
    return Usage(prompt, output_tokens or 0, prompt + (output_tokens or 0), fields)


def _finish(reason: object, delta: Mapping[str, Any]) -> FinishMessage | None:
    raw = as_text(reason)
    if not raw:
        return None
    details = as_mapping(delta.get("stop_details")) or {}
    return FinishMessage(
        _FINISH_REASONS.get(raw, FinishReason.UNSPECIFIED), raw, as_text(details.get("explanation")) or None
    )


def _thinking(own: Mapping[str, Any], seal: str = "") -> BlockDelta:
    """Return the start of a thinking block. The metadata marks the block: later requests contain only marked blocks."""
    return BlockDelta("reasoning", True, seal, {KEY: {"type": "thinking", **own}})


def _response_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in fields.items()
        if name not in _MESSAGE_FIELDS and value not in (None, "")
    }


def _other_fields(fields: Mapping[str, Any], *standard: str) -> dict[str, Any]:
    return {
        name: value for name, value in fields.items() if name not in standard and value not in (None, "", [])
    }


def _identifier(value: object) -> str:
    return "" if value is None else str(value)

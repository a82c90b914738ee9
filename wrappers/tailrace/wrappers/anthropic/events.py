"""What the events of the Messages API mean, whoever carried them: Anthropic itself, Vertex AI, Bedrock, a gateway.

A message is a series of blocks. Text and reasoning are passed on as they come, tool calls in fragments under the
block's index. A block of any other kind (the result of a tool that Anthropic ran, a compaction, …) becomes one whole
part, with the block as it was sent in its metadata, for it must be sent back so.
"""

from collections.abc import Mapping
from typing import Any, cast

from tailrace.wrappers.chunks import (
    BlockDelta,
    ChunkDetails,
    ChunkWrapper,
    FinishMessage,
    FinishReason,
    ToolCallDelta,
    Usage,
)
from tailrace.wrappers.decoding import merged_usage
from tailrace.wrappers.error_reports import take_error
from tailrace.wrappers.fields import json_text, plain_json
from tailrace.wrappers.loose_json import as_count, as_index, as_mapping, as_text
from tailrace.wrappers.messages import ContentPart, ContentPartData, ContentPartToolResult

KEY = "anthropic"
"""The key in metadata under which stands what is sent back to this API as it was."""

_FINISH_REASONS = {
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "max_tokens": FinishReason.LENGTH,
    "model_context_window_exceeded": FinishReason.LENGTH,
    "tool_use": FinishReason.TOOL_CALLS,
    "refusal": FinishReason.CONTENT_FILTER,
    # ``pause_turn`` is none of these: the answer goes on when it is sent back as it stands.
}
_NO_FACTS = frozenset(
    {"completion", "content", "delta", "error", "message", "role", "stop_reason", "type", "usage"}
)
_MAX_UNANSWERED = 64  # calls of Anthropic's own tools that wait for their results

_NOTHING = -1  # an index that no block has


class AnthropicEventWrapper(ChunkWrapper[dict[str, Any]], gc=False):
    """What one event says. Most events are one; one that begins with a whole message is several.

    Attributes:
        raw: The event, with every field it came with.
        text: Visible text.
        reasoning: Reasoning text.
        call: A fragment of a tool call.
        finish: Why the answer ended.
        usage: The counts of the whole request so far.
    """

    text: str = ""
    reasoning: str = ""
    call: ToolCallDelta | None = None
    finish: FinishMessage | None = None
    usage: Usage | None = None

    def get_text(self) -> str:
        """The event's visible text."""
        return self.text

    def get_reasoning(self) -> str:
        """The event's reasoning text."""
        return self.reasoning

    def get_tool_calls(self) -> list[ToolCallDelta]:
        """The event's fragment of a tool call: never more than one."""
        return [self.call] if self.call is not None else []

    def get_finish_message(self) -> FinishMessage | None:
        """``stop_reason``, where the event has one."""
        return self.finish

    def get_usage(self) -> Usage | None:
        """All counts of the request that were reported so far, whichever event each came with."""
        return self.usage


class MessageEvents:
    """Reads the events of one response, one after the other. Sans-IO; never raises for what an event holds.

    Holds no more than the start of the block that is open, and the names of calls that Anthropic has yet to answer.

    Args:
        provider: Named in errors.
        start_repeated: The server says the beginning of a block twice: at its start, and again in its first delta
            (MiniMax does). Off, since text that repeats itself may be meant.

    Attributes:
        done: The end of a message was seen, and none has begun since.
    """

    __slots__ = (
        "_fresh",
        "_held",
        "_id",
        "_index",
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
        self._open: bool = False  # a message has begun and not ended
        self._id: str = ""
        self._stop_reason: str | None = None  # that the message began with, until its end
        self._usage: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        # The index of a block counts within its message: those of a further message go on behind the ones before.
        self._offset = self._next = 0
        self._clear_block()

    def wrap(self, event: dict[str, Any], *, error_event: bool = False) -> list[AnthropicEventWrapper]:
        """The deltas of one event, in order; none for a ping, or for an event that is not known.

        Args:
            event: Its JSON object, which is kept in the deltas and not changed.
            error_event: It came under the name ``error``.
        """
        # Nearly every event is this one. It has three fields; one that has more goes the long way.
        if len(event) == 3 and event.get("type") == "content_block_delta":
            wrappers = self.wrap_usual(event)
            if wrappers:
                return wrappers
        wrappers = self._wrap(event)
        if error_event or event.get("error") or event.get("type") == "error":
            error = take_error(dict(event), self._provider, error_event=error_event)
            wrappers.append(AnthropicEventWrapper(event, details=ChunkDetails(error=error)))
        return wrappers

    def wrap_usual(self, event: dict[str, Any]) -> list[AnthropicEventWrapper]:
        """The delta of an event that goes on with the block that is open: text, thinking, or a call's arguments.

        Args:
            event: One of type ``content_block_delta``, of nothing but type, index and delta.

        Returns:
            No delta for one that goes the long way, through `wrap`.
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
                return [AnthropicEventWrapper(event, 0, None, False, "", "", call)]
        return []

    def close(self) -> list[AnthropicEventWrapper]:
        """The response is over: what was held back of a block that was never ended."""
        return self._end_block()

    def _wrap(self, event: dict[str, Any]) -> list[AnthropicEventWrapper]:
        match event.get("type"):
            case "content_block_delta":
                return self._take_delta(event)
            case "content_block_start":
                return self._start_block(event, event.get("index"), event.get("content_block"))
            case "content_block_stop":
                return self._end_block() if event.get("index") in (None, self._index) else []
            case "message_start":
                return self._start_message(event, as_mapping(event.get("message")) or {})
            case "message_delta":
                return self._take_message_delta(event)
            case "message_stop":
                return self._end_message(event)
            case "message":
                return self._take_whole_message(event)
            case "completion":
                return self._take_completion(event)
            case _:
                return []

    # --- messages ---------------------------------------------------------------------------------------------

    def _start_message(
        self, event: dict[str, Any], message: Mapping[str, Any]
    ) -> list[AnthropicEventWrapper]:
        message_id = _identifier(message.get("id"))
        if self._open and message_id == self._id:
            return []  # sent twice
        # Another message before the first has ended: the request was sent again, behind our back.
        restarts = self._open
        wrappers: list[AnthropicEventWrapper] = []
        if restarts:
            self._clear_block()
            self._names.clear()
            self._offset = self._next = 0
        else:
            wrappers += self._end_block()
            self._offset = self._next
        self._index = self._streaming = _NOTHING
        self._open, self.done, self._id, self._usage = True, False, message_id, {}
        self._stop_reason = as_text(message.get("stop_reason")) or None
        metadata = _facts(message)
        if restarts:
            metadata["restarted"] = True
        role = as_text(message.get("role"))
        details = ChunkDetails(role="" if role == "assistant" else role, restarts=restarts)
        wrapper = AnthropicEventWrapper(event, details=details)
        wrapper.usage = self._take_usage(message.get("usage"), metadata)
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

    def _take_message_delta(self, event: dict[str, Any]) -> list[AnthropicEventWrapper]:
        wrappers = self._end_block()
        delta = as_mapping(event.get("delta")) or {}
        metadata = _facts(event) | _facts(delta)
        wrapper = AnthropicEventWrapper(event, finish=_finish(delta.get("stop_reason"), delta))
        wrapper.usage = self._take_usage(event.get("usage"), metadata)
        if metadata:
            wrapper.details = ChunkDetails(metadata=metadata)
        if wrapper.finish is not None:
            self._open, self._stop_reason = False, None
        return [*wrappers, wrapper]

    def _end_message(self, event: dict[str, Any]) -> list[AnthropicEventWrapper]:
        wrappers = self._end_block()
        finish = _finish(self._stop_reason, {})
        metadata = _facts(event)
        if finish is not None or metadata:
            details = ChunkDetails(metadata=metadata) if metadata else None
            wrappers.append(AnthropicEventWrapper(event, details=details, finish=finish))
        self._open, self._stop_reason, self.done = False, None, True
        return wrappers

    def _take_whole_message(self, event: dict[str, Any]) -> list[AnthropicEventWrapper]:
        """A message that was not streamed, or one that repeats what was."""
        if _identifier(event.get("id")) == self._id and self._next > self._offset:
            event = {**event, "content": None}
        self._open = self._open and _identifier(event.get("id")) != self._id
        wrappers = self._start_message(event, event)
        self._open, self._stop_reason, self.done = False, None, True
        finish = _finish(event.get("stop_reason"), event)
        if finish is not None:
            wrappers.append(AnthropicEventWrapper(event, finish=finish))
        return wrappers

    def _take_completion(self, event: dict[str, Any]) -> list[AnthropicEventWrapper]:
        """An event of the text completions that the Messages API has replaced."""
        wrapper = AnthropicEventWrapper(event, text=as_text(event.get("completion")))
        wrapper.finish = _finish(event.get("stop_reason"), {})
        if not self._open or wrapper.finish is not None:
            wrapper.details = ChunkDetails(metadata=_facts(event))
        self._open = wrapper.finish is None
        self.done = not self._open
        wrapper.plain = wrapper.details is None
        return [wrapper]

    def _take_usage(self, new: object, metadata: dict[str, Any]) -> Usage | None:
        """The counts so far, with new ones over them; which service tier they belong to is put into ``metadata``."""
        if not as_mapping(new):
            return None
        self._usage = merged_usage(self._usage, new)
        tier = self._usage.get("service_tier")
        if tier:
            metadata["service_tier"] = tier
        return read_usage(self._usage)

    # --- blocks -----------------------------------------------------------------------------------------------

    def _clear_block(self) -> None:
        self._index = _NOTHING  # of the block that is open
        self._streaming = _NOTHING  # the same, once something of the block was passed on
        self._fresh = False  # the block is of text, and nothing of it was passed on
        self._start_event: dict[str, Any] = {}
        # Of the block's start, for the case that its deltas do not bring it:
        self._start_arguments = ""  # arguments
        self._start_signature = ""
        self._start_text = ""
        self._held: dict[str, Any] | None = None  # a block that becomes a whole part

    def _open_index(self, index: object) -> None:
        """A block begins; those whose index is not said follow each other."""
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
            self._fresh = not wrapper.text
            own = _rest(block, "type", "text")
            wrapper.details = ChunkDetails(block=BlockDelta("text", True, "", {KEY: own} if own else None))
            if isinstance(own.get("citations"), list):
                wrapper.details.extra = {"annotations": own["citations"]}
                self._fresh = False
        elif kind == "thinking":
            wrapper.reasoning = self._start_text = as_text(block.get("thinking"))
            self._start_signature = as_text(block.get("signature"))
            wrapper.details = ChunkDetails(block=_thinking(_rest(block, "type", "thinking", "signature")))
        elif kind == "redacted_thinking":
            wrapper.details = ChunkDetails(block=BlockDelta("reasoning", True, "", {KEY: block}))
        elif kind.endswith("tool_use"):
            wrapper.call = self._start_call(block, kind)
        elif kind:
            self._held = block
            return wrappers
        else:
            return wrappers  # whatever its deltas are
        return [*wrappers, wrapper]

    def _start_call(self, block: dict[str, Any], kind: str) -> ToolCallDelta:
        call_id, name = _identifier(block.get("id")), as_text(block.get("name"))
        given = block.get("input")
        if given:
            self._start_arguments = given if isinstance(given, str) else json_text(given)
        own = _rest(block, "type", "id", "name", "input")
        if kind == "tool_use":
            return ToolCallDelta(
                self._offset + self._index, call_id, name, "", "function", {KEY: own} if own else None
            )
        if len(self._names) >= _MAX_UNANSWERED:
            del self._names[next(iter(self._names))]
        self._names[call_id] = name
        return ToolCallDelta(
            self._offset + self._index, call_id, name, "", "server", {KEY: {"type": kind, **own}}
        )

    def _take_delta(self, event: dict[str, Any]) -> list[AnthropicEventWrapper]:
        delta = as_mapping(event.get("delta"))
        if delta is None:
            return []
        wrappers: list[AnthropicEventWrapper] = []
        index = event.get("index")
        # Of a block that was never started, or that others have followed: what it adds is not joined with theirs.
        unknown = self._index == _NOTHING or index not in (None, self._index)
        opens = unknown and (self._open or self._next > 0)  # an event on its own begins nothing
        if unknown:
            wrappers += self._end_block()
            self._open_index(index)
            self._start_event = event
        wrapper = AnthropicEventWrapper(event)
        kind = delta.get("type")
        if kind == "text_delta":
            wrapper.text = self._without_repetition(delta.get("text"))
            if opens:
                wrapper.details = ChunkDetails(block=BlockDelta("text", True))
        elif kind == "thinking_delta":
            wrapper.reasoning = self._without_repetition(delta.get("thinking"))
            if opens:
                wrapper.details = ChunkDetails(block=_thinking({}))
        elif kind == "signature_delta":
            seal, self._start_signature = as_text(delta.get("signature")), ""
            block = _thinking({}, seal) if opens else BlockDelta("reasoning", False, seal)
            wrapper.details = ChunkDetails(block=block)
        elif kind == "citations_delta":
            citations = [] if delta.get("citation") is None else [delta["citation"]]
            block = BlockDelta("text", opens or self._fresh, "", {KEY: {"citations": citations}})
            wrapper.details = ChunkDetails(block=block, extra={"annotations": citations})
        elif kind == "input_json_delta":
            piece = delta.get("partial_json")
            text = piece if isinstance(piece, str) else json_text(piece) if piece else ""
            if not text:
                # The first one is empty, usually: it does not take the place of what the block began with.
                return wrappers
            self._start_arguments = ""
            wrapper.call = ToolCallDelta(self._offset + self._index, arguments=text)
        elif self._held is not None:
            # The last value counts: a compaction comes as one delta.
            self._held |= _rest(delta, "type")
            return wrappers
        else:
            rest = {as_text(kind) or "delta": _rest(delta, "type")}
            wrapper.details = ChunkDetails(extra={KEY: rest})
            return [*wrappers, wrapper]
        self._fresh = False
        self._streaming = self._index
        wrapper.plain = wrapper.details is None and wrapper.call is None
        return [*wrappers, wrapper]

    def _without_repetition(self, value: object) -> str:
        text = as_text(value)
        known, self._start_text = self._start_text, ""
        return text.removeprefix(known) if self._start_repeated else text

    def _end_block(self) -> list[AnthropicEventWrapper]:
        """What was held back of the block that is open: nothing more of it is to come."""
        wrappers: list[AnthropicEventWrapper] = []
        if self._start_arguments:
            call = ToolCallDelta(self._offset + self._index, arguments=self._start_arguments)
            wrappers.append(AnthropicEventWrapper(self._start_event, call=call))
        if self._start_signature:
            details = ChunkDetails(block=BlockDelta("reasoning", False, self._start_signature))
            wrappers.append(AnthropicEventWrapper(self._start_event, details=details))
        if self._held is not None:
            details = ChunkDetails(parts=[self._part(self._held)])
            target = as_mapping(self._held.get("to"))
            if self._held.get("type") == "fallback" and target and as_text(target.get("model")):
                # Another model goes on with the answer.
                details.metadata = {"model": target["model"]}
            wrappers.append(AnthropicEventWrapper(self._start_event, details=details))
        self._start_arguments = self._start_signature = self._start_text = ""
        self._held = None
        return wrappers

    def _part(self, held: dict[str, Any]) -> ContentPart:
        block = plain_json(held)
        kind = as_text(held.get("type"))
        if not kind.endswith("_tool_result"):
            return ContentPartData(data=block, metadata={KEY: block})
        content = block.get("content")
        call_id = _identifier(held.get("tool_use_id"))
        failure = as_text((as_mapping(content) or {}).get("type")).endswith("_error")
        return ContentPartToolResult(
            id=call_id,
            name=self._names.pop(call_id, "") or kind.removesuffix("_tool_result"),
            output=content,
            is_error=failure or block.get("is_error") is True,
            metadata={KEY: block},
        )


def read_usage(fields: Mapping[str, Any]) -> Usage | None:
    """The normalised triple beside the object as sent; None for an object that counts nothing.

    ``input_tokens`` there leaves out what came from the cache or went into it; here it counts the whole prompt.
    """
    given = [
        as_count(fields.get(name))
        for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    ]
    made = as_count(fields.get("output_tokens"))
    if made is None and all(each is None for each in given):
        return None
    prompt = sum(each or 0 for each in given)
    return Usage(prompt, made or 0, prompt + (made or 0), fields)


def _finish(reason: object, delta: Mapping[str, Any]) -> FinishMessage | None:
    raw = as_text(reason)
    if not raw:
        return None
    explained = as_mapping(delta.get("stop_details")) or {}
    return FinishMessage(
        _FINISH_REASONS.get(raw, FinishReason.UNSPECIFIED), raw, as_text(explained.get("explanation")) or None
    )


def _thinking(own: Mapping[str, Any], seal: str = "") -> BlockDelta:
    """The beginning of a thinking block. It is marked as one of this API's: only these are sent back."""
    return BlockDelta("reasoning", True, seal, {KEY: {"type": "thinking", **own}})


def _facts(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What an object says about the response, rather than of it."""
    return {
        name: value for name, value in fields.items() if name not in _NO_FACTS and value not in (None, "")
    }


def _rest(fields: Mapping[str, Any], *known: str) -> dict[str, Any]:
    return {
        name: value for name, value in fields.items() if name not in known and value not in (None, "", [])
    }


def _identifier(value: object) -> str:
    return "" if value is None else str(value)

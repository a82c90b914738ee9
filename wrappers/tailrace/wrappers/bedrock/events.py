"""Interpretation of the events of a Bedrock Converse stream.

An event is a JSON object with one member. Its name is the type of the event: ``messageStart``, ``contentBlockStart``,
``contentBlockDelta``, ``contentBlockStop``, ``messageStop``, ``metadata``, or the type of an exception. Amazon's models send the
same objects in InvokeModel streams.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tailrace.wrappers.bedrock.chunk_wrapper import BedrockWrapper, finish_message, read_usage, service_error
from tailrace.wrappers.bedrock.content_blocks import (
    KEY,
    PADDING,
    arguments_text,
    blob,
    own_metadata,
    read_part,
    read_tool_result,
    wire_json,
)
from tailrace.wrappers.chunks import (
    BlockDelta,
    ChunkDetails,
    ToolCallDelta,
)
from tailrace.wrappers.decoding.error_reports import provider_error
from tailrace.wrappers.decoding.extra_fields import json_text, plain_json
from tailrace.wrappers.decoding.framing import MAX_EVENT_BYTES
from tailrace.wrappers.decoding.lenient_json import as_index, as_mapping, as_mappings, as_text
from tailrace.wrappers.errors import UpstreamError, UpstreamFault
from tailrace.wrappers.messages import ContentPart, ContentPartFile, ContentPartText

EVENTS = frozenset(
    {
        "messageStart",
        "contentBlockStart",
        "contentBlockDelta",
        "contentBlockStop",
        "messageStop",
        "metadata",
    }
)
"""Types of the events of a Converse stream other than exceptions."""

_SERVER_TOOL = "server_tool_use"
_MAX_SERVER_CALLS = 256  # server tool calls whose tool names are stored
_SIGNED_METADATA = {KEY: {"type": "reasoningContent"}}


class _Pending:
    """A block that is buffered until it is complete: an image, or the result of a server tool."""

    __slots__ = ("chunks", "content", "dropped", "fields", "index", "kind", "size")

    def __init__(self, index: int | None, kind: str, fields: Mapping[str, Any]) -> None:
        self.index = index
        self.kind = kind
        self.fields: Mapping[str, Any] = fields
        self.content: list[Mapping[str, Any]] = []
        self.chunks: list[bytes] = []
        self.size = 0
        self.dropped = False

    def drop(self) -> None:
        self.content.clear()
        self.chunks.clear()
        self.fields = dict[str, Any]()
        self.dropped = True


class ConverseEvents:
    """Sans-IO reader of the events of one Converse stream.

    Args:
        provider: The provider's name in errors.
        blocks_are_tokens: True to join the text of adjacent blocks, because each token is a content block in InvokeModel streams
            of Amazon's models.
        max_block_bytes: Maximum size in bytes of a buffered block. A larger block is discarded, and an error is reported.

    Attributes:
        ended: True after an exception, or after the stop reason and the metadata have been received.
    """

    __slots__ = (
        "_annotated",
        "_blocks_are_tokens",
        "_bound",
        "_open",
        "_pending",
        "_provider",
        "_stopped",
        "_tools",
        "ended",
    )

    def __init__(
        self,
        *,
        provider: str = "",
        blocks_are_tokens: bool = False,
        max_block_bytes: int = MAX_EVENT_BYTES,
    ) -> None:
        self._provider = provider
        self._blocks_are_tokens = blocks_are_tokens
        self._bound = max_block_bytes
        self._open: object = None  # index of the latest block of text or reasoning
        self._annotated = False  # True if the latest block has a signature or citations
        self._pending: _Pending | None = None
        self._tools: dict[str, str] = {}  # names of the called server tools, by call id
        self._stopped = False
        self.ended = False

    def wrap(self, event: Mapping[str, Any]) -> list[BedrockWrapper]:
        """Return the chunk wrappers of an event of boto3: an object with one member."""
        wrappers: list[BedrockWrapper] = []
        for name, payload in event.items():
            wrappers += self.wrap_event(name, payload)
        return wrappers

    def wrap_event(self, name: str, payload: Any) -> list[BedrockWrapper]:
        """Return the chunk wrappers of an event, given its name and its payload; see `wrap`."""
        if name == "contentBlockDelta" and payload.__class__ is dict:
            delta: Any = payload.get("delta")
            index: Any = payload.get("contentBlockIndex")
            # The classes are also compared, because ``False`` equals 0.
            is_open_block = index == self._open and index.__class__ is self._open.__class__
            if is_open_block and delta.__class__ is dict and len(delta) == 1:
                # Fast path for most events, which add text to the open block.
                text: Any = delta.get("text")
                if text.__class__ is str:
                    return [BedrockWrapper({name: payload}, 0, None, True, text)]
                thought: Any = delta.get("reasoningContent")
                if thought.__class__ is dict and len(thought) == 1:
                    text = thought.get("text")
                    if text.__class__ is str:
                        return [BedrockWrapper({name: payload}, 0, None, True, "", text)]
        return self._wrap_any(name, payload)

    def _wrap_any(self, name: str, payload: Any) -> list[BedrockWrapper]:
        fields = as_mapping(payload)
        if fields is None:
            return [self._error(name, payload)] if name.endswith(("Exception", "Error")) else []
        wrapper: BedrockWrapper | None = None
        if name == "contentBlockDelta":
            wrapper = self._delta(fields)
        elif name == "contentBlockStart":
            wrapper = self._start(fields)
        elif name == "contentBlockStop":
            wrapper = self._end_block()
        elif name == "messageStop":
            wrapper = self._stop(fields)
        elif name == "metadata":
            wrapper = self._metadata(fields)
        elif name == "messageStart":
            role = as_text(fields.get("role"))
            if role not in ("", "assistant"):
                wrapper = BedrockWrapper({}, details=ChunkDetails(role=role))
        elif name.endswith(("Exception", "Error")):
            wrapper = self._error(name, fields)
        if wrapper is None:
            return []
        wrapper.raw = {name: payload}
        return [wrapper]

    def wrap_response(self, fields: Mapping[str, Any]) -> list[BedrockWrapper]:
        """Return the chunk wrappers of a complete response of ``converse``."""
        message = as_mapping((as_mapping(fields.get("output")) or {}).get("message")) or {}
        wrappers = [
            self.wrap_block(block, index)
            for index, block in enumerate(as_mappings(message.get("content") or []))
        ]
        other_fields = {name: value for name, value in fields.items() if name != "output"}
        if "stopReason" in other_fields:
            stop = self._stop({"stopReason": other_fields.pop("stopReason")})
            stop.raw = fields
            wrappers.append(stop)
        if other_fields:
            metadata = self._metadata(other_fields)
            metadata.raw = fields
            wrappers.append(metadata)
        return wrappers

    def wrap_block(self, block: Mapping[str, Any], index: int) -> BedrockWrapper:
        """Return the chunk wrapper of a complete content block."""
        wrapper = BedrockWrapper(block)
        call = as_mapping(block.get("toolUse"))
        result = as_mapping(block.get("toolResult"))
        reasoning = as_mapping(block.get("reasoningContent"))
        if call is not None:
            wrapper.calls = (self._call(call, index),)
        elif result is not None:
            name = self._tools.get(as_text(result.get("toolUseId")), "")
            wrapper.details = ChunkDetails(parts=(read_tool_result(result, name),))
        elif reasoning is not None:
            thought = as_mapping(reasoning.get("reasoningText")) or {}
            self._add_reasoning(wrapper, {**reasoning, **thought}, starts_block=True)
        else:
            part = read_part(block)
            if isinstance(part, ContentPartText):
                wrapper.text = part.text
                wrapper.details = ChunkDetails(block=BlockDelta("text", True, metadata=part.metadata or None))
                if citations := part.metadata.get(KEY, {}).get("citations"):
                    wrapper.details.extra = {"annotations": citations}
            else:
                wrapper.details = ChunkDetails(parts=(part,))
        return wrapper

    def close(self) -> list[BedrockWrapper]:
        """End the stream. Return the chunk wrapper of the buffered block, if there is one."""
        wrapper = self._end_block()
        return [] if wrapper is None else [wrapper]

    def _delta(self, fields: Mapping[str, Any]) -> BedrockWrapper:
        delta = as_mapping(fields.get("delta")) or {}
        index = as_index(fields.get("contentBlockIndex"))
        wrapper = BedrockWrapper(fields)
        for kind, value in delta.items():
            if value is None or kind in PADDING:
                continue
            if kind == "text" and isinstance(value, str):
                wrapper.text = value
                if self._starts_block(index):
                    _details(wrapper).block = BlockDelta("text", starts_block=True)
            elif kind == "reasoningContent" and (reasoning := as_mapping(value)) is not None:
                sealed = not reasoning.keys() <= {"text"}
                self._add_reasoning(
                    wrapper, reasoning, starts_block=self._starts_block(index, annotated=sealed)
                )
            elif kind == "toolUse" and (call := as_mapping(value)) is not None:
                wrapper.calls = (ToolCallDelta(index, arguments=arguments_text(call.get("input"))),)
            elif kind == "citation":
                self._add_citation(
                    wrapper, wire_json(value), starts_block=self._starts_block(index, annotated=True)
                )
            elif kind in ("toolResult", "image"):
                self._buffer(wrapper, index, kind, value)
            else:
                _details(wrapper).extra = {kind: plain_json(wire_json(value))}
        # Consumers read only the text and the reasoning of a plain wrapper.
        wrapper.plain = wrapper.details is None and not wrapper.calls
        return wrapper

    def _starts_block(self, index: int | None, *, annotated: bool = False) -> bool:
        """Return True if a delta starts a block that must not be joined with the previous block."""
        if index == self._open:
            self._annotated = self._annotated or annotated
            return False
        starts_block = not self._blocks_are_tokens or annotated or self._annotated
        self._open, self._annotated = index, annotated
        return starts_block

    def _add_reasoning(
        self, wrapper: BedrockWrapper, fields: Mapping[str, Any], *, starts_block: bool
    ) -> None:
        wrapper.reasoning = as_text(fields.get("text"))
        signature = as_text(fields.get("signature"))
        redacted = fields.get("redactedContent")
        if redacted is not None:
            # Each fragment of redacted content is a complete block.
            metadata = {KEY: {"redactedContent": plain_json(wire_json(redacted))}}
            _details(wrapper).block = BlockDelta("reasoning", starts_block=True, metadata=metadata)
        elif signature or starts_block:
            metadata = _SIGNED_METADATA if signature else None
            _details(wrapper).block = BlockDelta("reasoning", starts_block, signature, metadata)

    def _add_citation(self, wrapper: BedrockWrapper, citation: object, *, starts_block: bool) -> None:
        citations = [plain_json(citation)]
        details = _details(wrapper)
        details.block = BlockDelta("text", starts_block, metadata={KEY: {"citations": citations}})
        details.extra = {"annotations": citations}

    def _start(self, fields: Mapping[str, Any]) -> BedrockWrapper | None:
        start = as_mapping(fields.get("start")) or {}
        index = as_index(fields.get("contentBlockIndex"))
        call = as_mapping(start.get("toolUse"))
        if call is not None:
            return BedrockWrapper(fields, calls=(self._call(call, index),))
        finished = self._end_block()
        for kind in ("toolResult", "image"):
            if (initial := as_mapping(start.get(kind))) is not None:
                self._pending = _Pending(index, kind, initial)
        return finished

    def _call(self, call: Mapping[str, Any], index: int | None) -> ToolCallDelta:
        name, call_id = as_text(call.get("name")), as_text(call.get("toolUseId"))
        extra = own_metadata(call, "name", "toolUseId", "input")
        is_server_tool = call.get("type") == _SERVER_TOOL
        if is_server_tool and call_id:
            if len(self._tools) >= _MAX_SERVER_CALLS:
                del self._tools[next(iter(self._tools))]
            self._tools[call_id] = name
        return ToolCallDelta(
            index,
            call_id,
            name,
            arguments_text(call.get("input")),
            "server" if is_server_tool else "function",
            extra or None,
        )

    def _buffer(self, wrapper: BedrockWrapper, index: int | None, kind: str, value: object) -> None:
        """Buffer a fragment of a block, which is reported when it is complete."""
        pending = self._pending
        if pending is None or pending.index != index or pending.kind != kind:
            finished = self._end_block()
            if finished is not None and finished.details is not None:
                _details(wrapper).parts = finished.details.parts
            pending = self._pending = _Pending(index, kind, {})
        if pending.dropped:
            return
        if kind == "toolResult":
            for block in as_mappings(value):
                pending.content.append(block)
                pending.size += len(json_text(wire_json(block)))
        else:
            image = as_mapping(value) or {}
            source = as_mapping(image.get("source")) or {}
            data = blob(source.get("bytes"))
            if data is not None:
                pending.chunks.append(data)
                pending.size += len(data)
            elif source:
                pending.fields = {**pending.fields, "source": source}
            if image.get("error"):
                _details(wrapper).error = provider_error(image["error"], self._provider)
        if pending.size > self._bound:
            pending.drop()
            _details(wrapper).error = UpstreamError(
                f"a content block of the stream is larger than the allowed {self._bound} bytes",
                fault=UpstreamFault.TOO_LARGE,
                provider=self._provider,
            )

    def _end_block(self) -> BedrockWrapper | None:
        """Clear the buffer. Return the chunk wrapper of the buffered block, or None."""
        pending, self._pending = self._pending, None
        if pending is None or pending.dropped:
            return None
        part: ContentPart
        if pending.kind == "toolResult":
            fields = {**pending.fields, "content": _join_texts(pending.content)}
            part = read_tool_result(fields, self._tools.get(as_text(pending.fields.get("toolUseId")), ""))
        elif pending.chunks:
            media_type = f"image/{as_text(pending.fields.get('format')) or '*'}"
            part = ContentPartFile(data=b"".join(pending.chunks), media_type=media_type)
        elif "source" in pending.fields:
            part = read_part({pending.kind: pending.fields})
        else:
            return None
        return BedrockWrapper({}, details=ChunkDetails(parts=(part,)))

    def _stop(self, fields: Mapping[str, Any]) -> BedrockWrapper:
        metadata = _other_fields(fields, "stopReason")
        self._stopped = True
        return BedrockWrapper(
            fields,
            details=ChunkDetails(metadata=metadata) if metadata else None,
            finish=finish_message(fields.get("stopReason")),
        )

    def _metadata(self, fields: Mapping[str, Any]) -> BedrockWrapper:
        metadata = _other_fields(fields, "usage", "serviceTier")
        tier = fields.get("serviceTier")
        if tier is not None:
            metadata["service_tier"] = (as_mapping(tier) or {}).get("type", tier)
        usage = as_mapping(fields.get("usage"))
        self.ended = self._stopped
        return BedrockWrapper(
            fields,
            details=ChunkDetails(metadata=metadata) if metadata else None,
            usage=read_usage(usage) if usage else None,
        )

    def _error(self, name: str, payload: object) -> BedrockWrapper:
        self.ended = True
        error = service_error(name, payload, self._provider)
        return BedrockWrapper({name: payload}, details=ChunkDetails(error=error))


def _other_fields(fields: Mapping[str, Any], *standard: str) -> dict[str, Any]:
    return {
        name: wire_json(value)
        for name, value in fields.items()
        if name not in standard and name not in PADDING and value not in (None, {})
    }


def _details(wrapper: BedrockWrapper) -> ChunkDetails:
    details = wrapper.details
    if details is None:
        details = wrapper.details = ChunkDetails()
    return details


def _join_texts(content: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    joined: list[Mapping[str, Any]] = []
    for block in content:
        if joined and set(joined[-1]) == set(block) == {"text"}:
            joined[-1] = {"text": as_text(joined[-1]["text"]) + as_text(block["text"])}
        else:
            joined.append(block)
    return joined

"""Decoder of Mistral streams. They have the format of Chat Completions, but the content may be a list of parts.

Reasoning models send content parts of the type ``thinking``, which contain text parts. Citations are parts of the type
``reference`` after the cited text. Later requests contain both in the same positions.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from tailrace.wrappers.chunks import BlockDelta, ChunkDetails, ToolCallDelta
from tailrace.wrappers.decoding.extra_fields import plain_json
from tailrace.wrappers.decoding.framing import MAX_EVENT_BYTES
from tailrace.wrappers.decoding.lenient_json import as_index, as_mapping, as_mappings, as_object, as_text
from tailrace.wrappers.messages import ContentPart
from tailrace.wrappers.mistral.content_parts import KEY, THINKING, read_part
from tailrace.wrappers.openai.decoder import ChatCompletionsDecoder, ChoiceDeltaWrapper
from tailrace.wrappers.openai.delta_shapes import ChoiceDelta

if TYPE_CHECKING:
    from pydantic import BaseModel

_NO_ID = "null"  # some models send this instead of a call id
_MAX_CHOICES = 1024  # choices whose channel is stored


class _ThoughtDelta(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    content: list[dict[str, Any]]
    role: None = None


class _ThoughtChoice(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    delta: _ThoughtDelta
    index: int = 0
    finish_reason: None = None
    logprobs: None = None


class _Thought(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A chunk that contains only thinking."""

    choices: list[_ThoughtChoice]
    id: str = ""
    object: Literal["", "chat.completion.chunk"] = ""
    created: int = 0
    model: str = ""
    usage: None = None
    p: str = ""


_decode_thought = msgspec.json.Decoder(_Thought).decode


class MistralDeltaWrapper(ChoiceDeltaWrapper, gc=False):
    """Chunk wrapper for a delta that has further fields in its tool calls."""

    def get_tool_calls(self) -> list[ToolCallDelta]:
        """Return the fragments in ``delta.tool_calls``, with their further fields under the key ``"mistral"``."""
        return [
            ToolCallDelta(
                index=call.index,
                id=call.id or "",
                name=(call.function.name if call.function else "") or "",
                arguments=(call.function.arguments if call.function else "") or "",
                type=call.type or "",
                extra={KEY: call.model_extra} if call.model_extra else None,
            )
            for call in self.delta.tool_calls or ()
        ]


class MistralDecoder(ChatCompletionsDecoder):
    """Sans-IO decoder of a streamed Mistral response body.

    The decoder also reads complete (not streamed) responses.

    Args:
        provider: The provider's name in errors.
        max_event_bytes: Maximum size of one event in bytes.

    Attributes:
        done: True after ``[DONE]``. Later data is ignored.
    """

    __slots__ = ("_is_thinking", "_open", "_response_fields")

    def __init__(self, *, provider: str = "", max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        super().__init__(provider=provider, max_event_bytes=max_event_bytes)
        # Type of the latest content by choice: "text", "reasoning", "cited" (text with references), "calls" or "part".
        self._open: dict[int, str] = {}
        self._is_thinking = False  # True if the latest block is thinking
        # The id, the model and the presence of ``created`` in the previous chunk. With the defaults, `_wrap_thought` does not read
        # the next chunk.
        self._response_fields: tuple[object, object, bool] = (None, None, False)

    def wrap_common(self, payload: bytes) -> list[ChoiceDeltaWrapper]:
        """Return the chunk wrappers of a chunk that has a common shape or continues thinking; an empty list for other chunks."""
        if self._is_thinking:
            thought = self._wrap_thought(payload)
            if thought is not None:
                return [thought]
            # The other fields of this chunk may be different.
            self._is_thinking = False
        wrappers = super().wrap_common(payload)
        if wrappers:
            self._response_fields = (None, None, False)  # other fields of this chunk may be different
        for wrapper in wrappers:
            raw: Any = wrapper.raw
            if raw.model_extra is not None and "content" in raw.model_extra:
                return []  # `wrap` reads lists of parts, because the order of the parts matters
            if raw.reasoning and not raw.reasoning_content:
                raw.reasoning_content = raw.reasoning
            if not (wrapper.plain and raw.content) or raw.reasoning_content:
                return self._mark_block_starts(wrappers)
            if self._open.get(wrapper.choice) != "text":
                return self._mark_block_starts(wrappers)
        return wrappers

    def wrap(self, fields: dict[str, Any], *, error_event: bool = False) -> list[ChoiceDeltaWrapper]:
        """Return the chunk wrappers of one chunk or of a complete response. Each content part has a chunk wrapper."""
        response_fields = fields.get("id"), fields.get("model"), bool(fields.get("created"))
        wrappers: list[ChoiceDeltaWrapper] = []
        choices: list[Mapping[str, Any]] = []
        for choice in as_mappings(fields.get("choices") or []):
            index = as_index(choice.get("index")) or 0
            name = "delta" if as_mapping(choice.get("delta")) is not None else "message"
            delta = as_mapping(choice.get(name))
            if delta is not None and (name == "delta" or index not in self._open):
                content = delta.get("content")
                if isinstance(content, list):
                    wrappers += self._wrap_parts(index, cast("list[object]", content))
                    delta = {**delta, "content": None}
                # A complete message without previous deltas is read as a delta.
                choice = {**choice, "message": None, "delta": delta}
            choices.append(choice)
        if choices:
            fields = {**fields, "choices": choices}
        common = super().wrap(fields, error_event=error_event)
        # The fields of a ping have not been reported.
        self._response_fields = response_fields if common else (None, None, False)
        return [*wrappers, *self._mark_block_starts(common)]

    def _wrap_thought(self, payload: bytes) -> ChoiceDeltaWrapper | None:
        """Return the chunk wrapper of a chunk that contains only thinking of the current block; None for other chunks."""
        try:
            chunk = _decode_thought(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if len(chunk.choices) != 1 or (chunk.id, chunk.model, chunk.created != 0) != self._response_fields:
            return None
        choice = chunk.choices[0]
        if len(choice.delta.content) != 1 or self._open.get(choice.index) != "reasoning":
            return None
        part = choice.delta.content[0]
        inner: Any = part.get("thinking")
        if part.get("type") != "thinking" or inner.__class__ is not list:
            return None
        text = ""
        for member in inner:
            if (
                member.__class__ is not dict
                or member.get("type") != "text"
                or member.get("text").__class__ is not str
            ):
                return None
            text += member["text"]
        raw = ChoiceDelta(reasoning_content=text, model_extra={"content": choice.delta.content})
        return ChoiceDeltaWrapper(raw, choice.index, None, True)

    def _mark_block_starts(self, wrappers: Sequence[ChoiceDeltaWrapper]) -> list[ChoiceDeltaWrapper]:
        """Return chunk wrappers with block starts, where texts must not be joined, and with thinking marked as Mistral's."""
        wrappers_with_blocks: list[ChoiceDeltaWrapper] = []
        for wrapper in wrappers:
            delta = wrapper.delta
            if delta.reasoning_content and delta.content:
                # A delta can start only one block.
                thought = ChoiceDelta(
                    reasoning_content=delta.reasoning_content, model_extra=delta.model_extra
                )
                wrappers_with_blocks.append(ChoiceDeltaWrapper(thought, wrapper.choice))
                self._track_block(wrappers_with_blocks[-1], "reasoning")
                delta.reasoning_content = None
            if delta.reasoning_content:
                self._track_block(wrapper, "reasoning")
            elif delta.content:
                self._track_block(wrapper, "text")
            elif delta.tool_calls:
                self._set_channel(wrapper.choice, "calls")
            for call in delta.tool_calls or ():
                if call.id == _NO_ID:
                    call.id = None
                if call.model_extra:
                    wrapper = MistralDeltaWrapper(
                        delta, wrapper.choice, wrapper.details, False, wrapper.finish_reason, wrapper.usage
                    )
            wrappers_with_blocks.append(wrapper)
        return wrappers_with_blocks

    def _track_block(self, wrapper: ChoiceDeltaWrapper, channel: str) -> None:
        before = self._open.get(wrapper.choice)
        self._set_channel(wrapper.choice, channel)
        if before == channel:
            return
        if channel == "reasoning":
            block = BlockDelta("reasoning", starts_block=True, metadata=THINKING)
        elif before == "cited":
            block = BlockDelta("text", starts_block=True)
        else:
            return
        details = wrapper.details = wrapper.details or ChunkDetails()
        details.block = block
        wrapper.plain = False

    def _set_channel(self, choice: int, channel: str) -> None:
        self._is_thinking = channel == "reasoning"
        if choice in self._open or len(self._open) < _MAX_CHOICES:
            self._open[choice] = channel

    def _wrap_parts(self, choice: int, content: Sequence[object]) -> list[ChoiceDeltaWrapper]:
        wrappers: list[ChoiceDeltaWrapper] = []
        for item in content:
            part = {"type": "text", "text": item} if isinstance(item, str) else as_mapping(item)
            if part is None:
                continue
            raw = ChoiceDelta(model_extra={"content": [part]})
            kind = part.get("type")
            if kind == "text":
                raw.content = as_text(part.get("text"))
                wrappers += self._mark_block_starts([ChoiceDeltaWrapper(raw, choice)])
            elif kind == "thinking":
                wrappers += self._wrap_thinking(choice, raw, part)
            elif kind == "reference":
                wrappers.append(self._wrap_reference(choice, raw, part))
            else:
                parts: tuple[ContentPart, ...] = (read_part(part),)
                self._set_channel(choice, "part")
                wrappers.append(ChoiceDeltaWrapper(raw, choice, ChunkDetails(parts=parts)))
        return wrappers

    def _wrap_thinking(
        self, choice: int, raw: ChoiceDelta, part: Mapping[str, Any]
    ) -> list[ChoiceDeltaWrapper]:
        inner = part.get("thinking")
        parts = [{"type": "text", "text": inner}] if isinstance(inner, str) else as_mappings(inner or [])
        raw.reasoning_content = "".join(as_text(member.get("text")) for member in parts)
        wrappers = self._mark_block_starts([ChoiceDeltaWrapper(raw, choice)])
        references = [plain_json(member) for member in parts if member.get("type") == "reference"]
        if references:
            last = wrappers[-1].details = wrappers[-1].details or ChunkDetails()
            last.extra = {"annotations": references}
        return wrappers

    def _wrap_reference(self, choice: int, raw: ChoiceDelta, part: Mapping[str, Any]) -> ChoiceDeltaWrapper:
        references = [plain_json(part)]
        starts_block = self._open.get(choice) not in ("text", "cited")
        self._set_channel(choice, "cited")
        block = BlockDelta("text", starts_block, metadata={KEY: {"references": references}})
        return ChoiceDeltaWrapper(raw, choice, ChunkDetails(block=block, extra={"annotations": references}))


def wrap_chunk(chunk: "BaseModel | Mapping[str, Any]") -> list[ChoiceDeltaWrapper]:
    """Return the chunk wrappers of a single chunk, which is an object of the ``mistralai`` package or a JSON object.

    Args:
        chunk: A ``CompletionChunk``, or a ``CompletionEvent`` with the chunk.
    """
    fields = as_object(chunk) or {}
    return MistralDecoder().wrap(dict(as_mapping(fields.get("data")) or fields))

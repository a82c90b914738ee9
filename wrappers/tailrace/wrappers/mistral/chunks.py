"""Mistral's streams: Chat Completions, with content that may be a list of parts.

A model that thinks sends parts of type ``thinking``, which hold text one level down; one that cites sends parts of type
``reference`` behind the text that they support. The place of both counts, and they are sent back so.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from tailrace.wrappers.chunks import BlockDelta, ChunkDetails, ToolCallDelta
from tailrace.wrappers.fields import plain_json
from tailrace.wrappers.loose_json import as_index, as_mapping, as_mappings, as_text
from tailrace.wrappers.messages import ContentPart
from tailrace.wrappers.mistral.parts import KEY, THINKING, read_part
from tailrace.wrappers.openai.chunks import ChatCompletionsDecoder, ChoiceDeltaWrapper
from tailrace.wrappers.openai.shapes import ChoiceDelta
from tailrace.wrappers.wire import MAX_EVENT_BYTES

if TYPE_CHECKING:
    from pydantic import BaseModel

_NO_ID = "null"  # some models send this text in the place of a call's id
_MAX_CHOICES = 1024  # whose open block is remembered


class _ThoughtDelta(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    content: list[dict[str, Any]]
    role: None = None


class _ThoughtChoice(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    delta: _ThoughtDelta
    index: int = 0
    finish_reason: None = None
    logprobs: None = None


class _Thought(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A chunk that is nothing but thinking."""

    choices: list[_ThoughtChoice]
    id: str = ""
    object: Literal["", "chat.completion.chunk"] = ""
    created: int = 0
    model: str = ""
    usage: None = None
    p: str = ""


_decode_thought = msgspec.json.Decoder(_Thought).decode


class MistralDeltaWrapper(ChoiceDeltaWrapper, gc=False):
    """Over one delta of Mistral's whose tool calls have fields of their own."""

    def get_tool_calls(self) -> list[ToolCallDelta]:
        """The fragments in ``delta.tool_calls``; further fields stand under Mistral's name."""
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
    """Decodes the body of a streamed response of Mistral's. Sans-IO.

    A complete response that was not streamed is understood too.

    Args:
        provider: Named in errors.
        max_event_bytes: Bound on one event.

    Attributes:
        done: ``[DONE]`` was received; whatever follows it is ignored.
    """

    __slots__ = ("_facts", "_open", "_thinks")

    def __init__(self, *, provider: str = "", max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        super().__init__(provider=provider, max_event_bytes=max_event_bytes)
        # By choice, what its latest delta added to: "text", "reasoning", or "cited" for text with references.
        self._open: dict[int, str] = {}
        self._thinks = False  # the latest block is thinking
        # Id and model as of the last chunk that was read in full, and whether it said when it was made.
        self._facts: tuple[object, object, bool] = (None, None, False)

    def wrap_usual(self, payload: bytes) -> list[ChoiceDeltaWrapper]:
        """The deltas of a chunk of text, or of nothing but more thinking."""
        if self._thinks:
            thought = self._wrap_thought(payload)
            if thought is not None:
                return [thought]
            self._thinks = False  # until more thinking is read in full: this chunk's facts may be others
        wrappers = super().wrap_usual(payload)
        if wrappers:
            self._facts = (None, None, False)  # this chunk's may be others
        for wrapper in wrappers:
            raw: Any = wrapper.raw
            if raw.model_extra is not None and "content" in raw.model_extra:
                return []  # a list, in which places count
            if raw.reasoning and not raw.reasoning_content:
                raw.reasoning_content = raw.reasoning
            if not (wrapper.plain and raw.content) or raw.reasoning_content:
                return self._marked(wrappers)
            if self._open.get(wrapper.choice) != "text":
                return self._marked(wrappers)
        return wrappers

    def wrap(self, fields: dict[str, Any], *, error_event: bool = False) -> list[ChoiceDeltaWrapper]:
        """The deltas of one chunk, or of a whole response; one for each part of its content."""
        facts = fields.get("id"), fields.get("model"), bool(fields.get("created"))
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
                # A message of which nothing was streamed is a delta that says all.
                choice = {**choice, "message": None, "delta": delta}
            choices.append(choice)
        if choices:
            fields = {**fields, "choices": choices}
        others = super().wrap(fields, error_event=error_event)
        # Those of a ping were told nobody.
        self._facts = facts if others else (None, None, False)
        return [*wrappers, *self._marked(others)]

    def _wrap_thought(self, payload: bytes) -> ChoiceDeltaWrapper | None:
        """The delta of a chunk that adds to an open block of thinking; None where there is more to it."""
        try:
            chunk = _decode_thought(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        if len(chunk.choices) != 1 or (chunk.id, chunk.model, chunk.created != 0) != self._facts:
            return None
        choice = chunk.choices[0]
        if len(choice.delta.content) != 1 or self._open.get(choice.index) != "reasoning":
            return None
        part = choice.delta.content[0]
        inner: Any = part.get("thinking")
        if part.get("type") != "thinking" or inner.__class__ is not list:
            return None
        text = ""
        for piece in inner:
            if (
                piece.__class__ is not dict
                or piece.get("type") != "text"
                or piece.get("text").__class__ is not str
            ):
                return None
            text += piece["text"]
        raw = ChoiceDelta(reasoning_content=text, model_extra={"content": choice.delta.content})
        return ChoiceDeltaWrapper(raw, choice.index, None, True)

    def _marked(self, wrappers: Sequence[ChoiceDeltaWrapper]) -> list[ChoiceDeltaWrapper]:
        """The wrappers, with blocks of thinking marked as Mistral's, and text parted from what it must not run into."""
        marked: list[ChoiceDeltaWrapper] = []
        for wrapper in wrappers:
            delta = wrapper.delta
            if delta.reasoning_content and delta.content:
                # One chunk with both: a mark can only be set on what a delta ends with.
                thought = ChoiceDelta(
                    reasoning_content=delta.reasoning_content, model_extra=delta.model_extra
                )
                marked.append(ChoiceDeltaWrapper(thought, wrapper.choice))
                self._enter(marked[-1], "reasoning")
                delta.reasoning_content = None
            if delta.reasoning_content:
                self._enter(wrapper, "reasoning")
            elif delta.content:
                self._enter(wrapper, "text")
            elif delta.tool_calls:
                self._note(wrapper.choice, "calls")
            for call in delta.tool_calls or ():
                if call.id == _NO_ID:
                    call.id = None
                if call.model_extra:
                    wrapper = MistralDeltaWrapper(
                        delta, wrapper.choice, wrapper.details, False, wrapper.finish_reason, wrapper.usage
                    )
            marked.append(wrapper)
        return marked

    def _enter(self, wrapper: ChoiceDeltaWrapper, channel: str) -> None:
        """Note what a delta adds to, and say it where a block begins."""
        before = self._open.get(wrapper.choice)
        self._note(wrapper.choice, channel)
        if before == channel:
            return
        if channel == "reasoning":
            block = BlockDelta("reasoning", opens=True, metadata=THINKING)
        elif before == "cited":
            block = BlockDelta("text", opens=True)
        else:
            return
        details = wrapper.details = wrapper.details or ChunkDetails()
        details.block = block
        wrapper.plain = False

    def _note(self, choice: int, channel: str) -> None:
        self._thinks = channel == "reasoning"
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
                wrappers += self._marked([ChoiceDeltaWrapper(raw, choice)])
            elif kind == "thinking":
                wrappers += self._wrap_thinking(choice, raw, part)
            elif kind == "reference":
                wrappers.append(self._wrap_reference(choice, raw, part))
            else:
                parts: tuple[ContentPart, ...] = (read_part(part),)
                self._note(choice, "part")
                wrappers.append(ChoiceDeltaWrapper(raw, choice, ChunkDetails(parts=parts)))
        return wrappers

    def _wrap_thinking(
        self, choice: int, raw: ChoiceDelta, part: Mapping[str, Any]
    ) -> list[ChoiceDeltaWrapper]:
        inner = part.get("thinking")
        pieces = [{"type": "text", "text": inner}] if isinstance(inner, str) else as_mappings(inner or [])
        raw.reasoning_content = "".join(as_text(piece.get("text")) for piece in pieces)
        wrappers = self._marked([ChoiceDeltaWrapper(raw, choice)])
        cited = [plain_json(piece) for piece in pieces if piece.get("type") == "reference"]
        if cited:
            last = wrappers[-1].details = wrappers[-1].details or ChunkDetails()
            last.extra = {"annotations": cited}
        return wrappers

    def _wrap_reference(self, choice: int, raw: ChoiceDelta, part: Mapping[str, Any]) -> ChoiceDeltaWrapper:
        cited = [plain_json(part)]
        opens = self._open.get(choice) not in ("text", "cited")
        self._note(choice, "cited")
        block = BlockDelta("text", opens, metadata={KEY: {"references": cited}})
        return ChoiceDeltaWrapper(raw, choice, ChunkDetails(block=block, extra={"annotations": cited}))


def wrap_chunk(chunk: "BaseModel | Mapping[str, Any]") -> list[ChoiceDeltaWrapper]:
    """The deltas of one whole chunk on its own: the mistralai package's object, or its JSON object.

    Args:
        chunk: A ``CompletionChunk``, or the ``CompletionEvent`` around one.
    """
    if not isinstance(chunk, Mapping):
        chunk = chunk.model_dump(mode="json", exclude_unset=True, warnings=False)
    inner = as_mapping(chunk.get("data"))
    return MistralDecoder().wrap(dict(inner or chunk))

"""Folding the deltas of one answer into one message.

`MessageAssembly` is the one place where it is decided which fragments belong together: text to text, arguments to
their call, and which of several fields appends and which replaces. It works on `ChunkWrapper`s, so the decision is
made once for all providers. Each fold costs the same however long the answer has become: pieces are kept in lists
and joined when somebody asks.
"""

import json
import math
from enum import StrEnum
from typing import Any

import msgspec

from tailrace.wrappers.chunks import ChunkDetails, ChunkWrapper, FinishMessage, FinishReason, ToolCallDelta
from tailrace.wrappers.fields import FieldFold
from tailrace.wrappers.messages import (
    ContentPart,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    Message,
    Role,
    join_surrogates,
    json_value,
)
from tailrace.wrappers.thinking import ThinkTagSplitter


class Channel(StrEnum):
    """The kinds of text that an answer is made of."""

    TEXT = "text"
    REASONING = "reasoning"
    REFUSAL = "refusal"
    TOOL_CALL = "tool_call"


class Change(msgspec.Struct, frozen=True, gc=False):
    """What one fold added.

    Attributes:
        channel: Where.
        choice: Which of several parallel answers.
        text: The text added: visible text, reasoning, refusal, or a piece of a call's arguments, word for word
            (half a surrogate pair included); for a call that has just begun it may be empty.
        call: For a tool call its position in the order of appearance; else -1.
    """

    channel: Channel
    choice: int
    text: str
    call: int = -1


_TEXT = Channel.TEXT
_REASONING = Channel.REASONING

# Reasons that say the answer is not whole; a later "stop" does not make it so (providers do send both).
_DECISIVE = frozenset({FinishReason.LENGTH, FinishReason.CONTENT_FILTER, FinishReason.RECITATION})


class _ToolCall:
    """One tool call while its fragments arrive."""

    __slots__ = ("extra", "id", "kind", "name", "pieces", "position")

    def __init__(self, position: int) -> None:
        self.position = position
        self.id = ""
        self.name = ""
        self.kind = ""
        self.pieces: list[str] = []
        self.extra = FieldFold()

    def add(self, delta: ToolCallDelta) -> None:
        self.id = self.id or delta.id
        self.kind = self.kind or delta.type
        name = delta.name
        if name and name != self.name:
            # Some servers repeat the name, some repeat it growing, some cut it in pieces.
            self.name = name if name.startswith(self.name) else self.name + name
        if delta.arguments:
            self.pieces.append(delta.arguments)
        if delta.extra:
            self.extra.add(delta.extra)

    def part(self, finish: FinishReason | None) -> ContentPartToolCall:
        raw = join_surrogates("".join(self.pieces))
        kind = self.kind or "function"
        values: dict[str, Any] = {"id": self.id, "name": self.name, "kind": kind}
        values["metadata"] = self.extra.to_dict()
        if kind == "custom":
            return ContentPartToolCall(**values, arguments_text=raw)
        cut = finish is FinishReason.LENGTH
        return ContentPartToolCall(**values, **parse_arguments(raw, cut=cut))


class MessageAssembly:
    """Folds the deltas of one choice into one message of role MODEL.

    Args:
        choice: Which of several parallel answers.
        think_tags: The model writes its reasoning into the text, in ``<think>`` tags: part the two (see
            `tailrace.wrappers.thinking`).

    Attributes:
        finish: Why the answer ended; None as long as no chunk said so.
    """

    __slots__ = (
        "_by_index",
        "_calls",
        "_choice",
        "_extra",
        "_held",
        "_open",
        "_pieces",
        "_refusal",
        "_segments",
        "_splitter",
        "finish",
    )

    def __init__(self, choice: int = 0, *, think_tags: bool = False) -> None:
        self._choice = choice
        # In order of appearance: a channel with its pieces, or a tool call.
        self._segments: list[tuple[Channel, list[str]] | _ToolCall] = []
        self._open: Channel | None = None  # of the last segment, while text can still be added to it
        self._pieces: list[str] = []
        self._calls: list[_ToolCall] = []
        self._by_index: dict[int, _ToolCall] = {}
        self._refusal: list[str] = []
        self._held: dict[Channel, str] = {}  # the first half of a character whose second half has yet to come
        self._splitter = ThinkTagSplitter() if think_tags else None
        self._extra = FieldFold()
        self.finish: FinishMessage | None = None

    def add(self, chunk: ChunkWrapper[Any]) -> list[Change]:
        """Fold one delta; return what it added, in the order to be shown. O(1) in the length of the answer."""
        changes: list[Change] = []
        if chunk.details is not None and not self._take_details(chunk.details, changes):
            self._finish(chunk.get_finish_message())
            return changes
        reasoning = chunk.get_reasoning()
        if reasoning:
            self._append(_REASONING, reasoning, changes)
        text = chunk.get_text()
        if text:
            self._append(_TEXT, text, changes)
        if chunk.plain:
            return changes
        for delta in chunk.get_tool_calls():
            call = self._call_of(delta)
            call.add(delta)
            changes.append(Change(Channel.TOOL_CALL, self._choice, delta.arguments, call.position))
        self._finish(chunk.get_finish_message())
        return changes

    def close(self) -> list[Change]:
        """The stream is over: return the text that was held back, for what was to come behind it, if any."""
        changes: list[Change] = []
        held, self._held = self._held, {}
        for channel, half in held.items():
            self._append(channel, join_surrogates(half), changes)
        splitter, self._splitter = self._splitter, None
        for channel, text in splitter.close() if splitter is not None else ():
            self._show(Channel(channel), text, changes)
        return changes

    @property
    def extra(self) -> dict[str, Any]:
        """The fields beyond text, reasoning and tool calls, folded by the rule of their type."""
        return self._extra.to_dict()

    @property
    def finish_reason(self) -> FinishReason | None:
        """The common reason; ``stop`` counts as ``tool_calls`` when the answer holds calls."""
        if self.finish is None:
            return None
        if self._calls and self.finish.reason is FinishReason.STOP:
            return FinishReason.TOOL_CALLS
        return self.finish.reason

    @property
    def text(self) -> str:
        """The visible text so far."""
        return self._joined(_TEXT)

    @property
    def reasoning(self) -> str:
        """The reasoning text so far."""
        return self._joined(_REASONING)

    @property
    def refusal(self) -> str:
        """The text of a refusal so far."""
        return "".join(self._refusal)

    @property
    def tool_calls(self) -> list[ContentPartToolCall]:
        """The calls so far, in order of appearance; where no id came, a unique one is made here."""
        reason = self.finish.reason if self.finish is not None else None
        parts = [call.part(reason) for call in self._calls]
        taken = {part.id for part in parts if part.id}
        for position, part in enumerate(parts):
            if not part.id:
                made = _unused_id(position, taken)
                parts[position] = part.model_copy(update={"id": made, "synthetic_id": True})
        return parts

    def message(self) -> Message:
        """The message as it stands: parts in order of appearance, consecutive text joined."""
        calls = iter(self.tool_calls)
        content: list[ContentPart] = []
        for segment in self._segments:
            if isinstance(segment, _ToolCall):
                content.append(next(calls))
            elif segment[0] is _TEXT:
                content.append(ContentPartText(text="".join(segment[1])))
            else:
                content.append(ContentPartReasoning(text="".join(segment[1])))
        metadata: dict[str, Any] = {}
        if self._refusal:
            metadata["refusal"] = self.refusal
        if self.finish is not None:
            metadata["finish_reason"] = str(self.finish_reason)
        if self._extra:
            metadata["extra"] = self.extra
        return Message(role=Role.MODEL, content=tuple(content), metadata=metadata)

    def _take_details(self, details: ChunkDetails, changes: list[Change]) -> bool:
        """Fold what few chunks carry; False when the rest of the chunk repeats what was streamed already."""
        if details.snapshot and self._holds_an_answer():
            return False
        if details.refusal:
            self._append(Channel.REFUSAL, details.refusal, changes)
        if details.extra:
            extra = details.extra
            if details.snapshot:
                extra = {name: value for name, value in extra.items() if name not in self._extra}
            self._extra.add(extra)
        return True

    def _holds_an_answer(self) -> bool:
        waiting = self._splitter is not None and self._splitter.holding
        return bool(self._segments or self._refusal or self._held or waiting)

    def _append(self, channel: Channel, text: str, changes: list[Change]) -> None:
        if self._held or not text.isascii():
            text = self._whole_characters(channel, text)
            if not text:
                return
        if channel is self._open:
            self._pieces.append(text)
            changes.append(Change(channel, self._choice, text))
        elif channel is _TEXT and self._splitter is not None:
            # Text opens no segment of its own as long as it may still be reasoning.
            self._split(self._splitter, text, changes)
        else:
            self._show(channel, text, changes)

    def _show(self, channel: Channel, text: str, changes: list[Change]) -> None:
        if channel is self._open:
            self._pieces.append(text)
        else:
            self._open_segment(channel, text)
        changes.append(Change(channel, self._choice, text))

    def _split(self, splitter: ThinkTagSplitter, text: str, changes: list[Change]) -> None:
        pieces = splitter.feed(text)
        if splitter.done:
            self._splitter = None
        for channel, piece in pieces:
            self._show(Channel(channel), piece, changes)

    def _open_segment(self, channel: Channel, text: str) -> None:
        if channel is Channel.REFUSAL:
            self._refusal.append(text)
            return
        self._open = channel
        self._pieces = [text]
        self._segments.append((channel, self._pieces))

    def _whole_characters(self, channel: Channel, text: str) -> str:
        """``text`` with what was held back; a surrogate at its end is held back in turn."""
        text = self._held.pop(channel, "") + text
        if "\ud800" <= text[-1] <= "\udbff":
            self._held[channel] = text[-1]
            text = text[:-1]
        return join_surrogates(text)

    def _call_of(self, delta: ToolCallDelta) -> _ToolCall:
        """The call that a fragment belongs to, under missing, null, constant, shifted or repeated ids and indexes.

        With an index: the newest call of that index, unless the fragment names a tool under another id (servers
        that never count up do that). Without one: the call of the same id; else a new one if an id or a name
        says so; else the latest.
        """
        index = delta.index
        if index is not None:
            known = self._by_index.get(index)
            if known is None or (delta.name and delta.id and known.id and delta.id != known.id):
                known = self._by_index[index] = self._open_call()
            return known
        if delta.id:
            for call in reversed(self._calls):
                if call.id == delta.id:
                    return call
        if delta.id or delta.name or not self._calls:
            return self._open_call()
        return self._calls[-1]

    def _open_call(self) -> _ToolCall:
        call = _ToolCall(len(self._calls))
        self._calls.append(call)
        self._segments.append(call)
        self._open = None
        return call

    def _finish(self, finish: FinishMessage | None) -> None:
        """The last reason counts, but one that says "not whole" is not taken back by one that says "whole"."""
        if finish is None:
            return
        if self.finish is None or self.finish.reason not in _DECISIVE or finish.reason in _DECISIVE:
            self.finish = finish

    def _joined(self, channel: Channel) -> str:
        return "".join(
            piece
            for segment in self._segments
            if isinstance(segment, tuple) and segment[0] is channel
            for piece in segment[1]
        )


def _unused_id(position: int, taken: set[str]) -> str:
    made = f"call_{position}"
    while made in taken:
        made += "_"
    taken.add(made)
    return made


def parse_arguments(raw: str, *, cut: bool = False) -> dict[str, Any]:
    """What a call's joined argument text means, as fields of `ContentPartToolCall`.

    Args:
        raw: The text, joined from all fragments.
        cut: The answer ended at its length limit, so that missing arguments mean "cut off", not "none".

    Returns:
        ``arguments``, and where that does not say it all ``arguments_text`` and ``arguments_error``. Text that
        does not parse is kept as it is and never repaired; a document that a server sent twice counts once.
    """
    if not raw.strip():
        return {"arguments_error": "cut off before any argument arrived"} if cut else {"arguments": {}}
    try:
        value = json_value(json.loads(raw, parse_constant=_refuse, parse_float=_finite))
    except json.JSONDecodeError as error:
        half = len(raw) // 2
        if raw[:half] == raw[half:]:
            once = parse_arguments(raw[:half], cut=cut)
            if "arguments_error" not in once:
                return once
        return {"arguments_text": raw, "arguments_error": f"not valid JSON: {error}"}
    except RecursionError:
        return {"arguments_text": raw, "arguments_error": "nested too deeply"}
    except ValueError as error:
        # Python's reader takes it, others do not: NaN, numbers too large, depths that no reader follows.
        return {"arguments_text": raw, "arguments_error": str(error)}
    if isinstance(value, str):
        # Encoded twice: the text of the arguments inside a JSON string.
        inner = parse_arguments(value, cut=cut)
        if value and "arguments_text" not in inner:
            return inner
    if isinstance(value, dict):
        return {"arguments": value}
    return {"arguments_text": raw}


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def _finite(number: str) -> float:
    value = float(number)
    return value if math.isfinite(value) else _refuse(number)

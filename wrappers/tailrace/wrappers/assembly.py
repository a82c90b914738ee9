"""Folding the deltas of one answer into one message.

`MessageAssembly` is the one place where it is decided which fragments belong together: text to text, arguments to
their call, and which of several fields appends and which replaces. It works on `ChunkWrapper`s, so the decision is
made once for all providers. Each fold costs the same however long the answer has become: pieces are only collected,
and joined when somebody asks.
"""

from enum import StrEnum
from typing import Any

import msgspec

from tailrace.wrappers.chunks import (
    BlockDelta,
    ChunkDetails,
    ChunkWrapper,
    FinishMessage,
    FinishReason,
    ToolCallDelta,
)
from tailrace.wrappers.fields import FieldFold
from tailrace.wrappers.messages import (
    ContentPart,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    Message,
    Role,
    from_utf8,
    join_surrogates,
    to_utf8,
)
from tailrace.wrappers.thinking import ThinkTagSplitter
from tailrace.wrappers.tool_calls import ToolCallAssembly


class Channel(StrEnum):
    """The kinds of content that an answer is made of."""

    TEXT = "text"
    REASONING = "reasoning"
    REFUSAL = "refusal"
    TOOL_CALL = "tool_call"
    PART = "part"


class Change(msgspec.Struct, frozen=True, gc=False):
    """What one fold added.

    Attributes:
        channel: Where.
        choice: Which of several parallel answers.
        text: The text added: visible text, reasoning, refusal, or a piece of a call's arguments, word for word
            (half a surrogate pair included); for a call that has just begun it may be empty.
        call: For a tool call its position in the order of appearance; else -1.
        part: On the channel PART the whole part that was added (a file, data, what a tool of the provider's
            answered); else None.
        restarts: Everything that the choice held before is void; nothing is added.
    """

    channel: Channel
    choice: int
    text: str
    call: int = -1
    part: ContentPart | None = None
    restarts: bool = False


_TEXT = Channel.TEXT
_REASONING = Channel.REASONING
_TOOL_CALL = Channel.TOOL_CALL

# Reasons that say the answer is not whole; a later "stop" does not make it so (providers do send both).
_DECISIVE = frozenset({FinishReason.LENGTH, FinishReason.CONTENT_FILTER, FinishReason.RECITATION})


class _Block:
    """One block of text or reasoning while it grows."""

    __slots__ = ("channel", "metadata", "said", "signature")

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.said = bytearray()  # as UTF-8, which takes the least
        self.signature: list[str] = []
        self.metadata: FieldFold | None = None

    def add(self, facts: BlockDelta) -> None:
        if facts.signature:
            self.signature.append(facts.signature)
        if facts.metadata:
            self.metadata = self.metadata or FieldFold()
            self.metadata.add(facts.metadata)

    def part(self) -> ContentPart | None:
        """The block as a part; None when it says nothing."""
        text = from_utf8(self.said)
        metadata = self.metadata.to_dict() if self.metadata is not None else {}
        signature = "".join(self.signature)
        if not (text or signature or metadata):
            return None
        if self.channel is _TEXT:
            return ContentPartText(text=text, metadata=metadata)
        return ContentPartReasoning(text=text, signature=signature or None, metadata=metadata)


class _Restated:
    """Reasoning that comes in two forms, or only in the one that mostly restates the other: each text counts once."""

    __slots__ = ("_at", "_pieces", "_plain", "_text")

    def __init__(self, *, plain: bool) -> None:
        self._plain = plain  # the usual form has come: the other adds nothing any more
        self._pieces: list[str] = []  # what came in the other form alone
        self._text: str | None = None  # the same, as long as the usual form may be repeating it
        self._at = 0  # how much of it was repeated

    def other_form(self, text: str) -> str:
        if self._plain:
            return ""
        self._pieces.append(text)
        return text

    def usual_form(self, text: str) -> str:
        if not self._plain:
            self._plain = True
            self._text = "".join(self._pieces)
            self._pieces.clear()
        if self._text is None:
            return text
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return ""
        left = len(self._text) - self._at
        repeats = text.startswith(self._text[self._at :]) if left <= len(text) else False
        self._text = None
        return text[left:] if repeats else text


class MessageAssembly:
    """Folds the deltas of one choice into one message of role MODEL.

    Args:
        choice: Which of several parallel answers.
        think_tags: Part the reasoning that an answer begins with, in ``<think>`` tags, from its text (see
            `tailrace.wrappers.thinking`).

    Attributes:
        finish: Why the answer ended; None as long as no chunk said so.
    """

    __slots__ = (
        "_by_id",
        "_by_index",
        "_calls",
        "_choice",
        "_extra",
        "_held",
        "_open",
        "_refusal",
        "_restated",
        "_said",
        "_segments",
        "_splitter",
        "_think_tags",
        "_waiting",
        "finish",
    )

    def __init__(self, choice: int = 0, *, think_tags: bool = True) -> None:
        self._choice = choice
        self._think_tags = think_tags
        # In order of appearance.
        self._segments: list[_Block | ToolCallAssembly | ContentPart] = []
        self._open: Channel | None = None  # of the last segment, while text can still be added to it
        self._said = bytearray()  # of the last segment
        self._calls: list[ToolCallAssembly] = []
        self._by_id: dict[str, ToolCallAssembly] = {}  # of several calls of one id the last
        self._by_index: dict[int, ToolCallAssembly] = {}
        self._refusal: list[str] = []
        self._held: dict[Channel, str] = {}  # the first half of a character whose second half has yet to come
        self._splitter = (
            ThinkTagSplitter() if think_tags else None
        )  # until text was shown, or anything else came
        self._waiting: list[BlockDelta] = []  # facts about the text that is still to be told from reasoning
        self._extra = FieldFold()
        self._restated: _Restated | None = None  # once reasoning came in another form than the usual
        self.finish: FinishMessage | None = None

    def add(self, chunk: ChunkWrapper[Any]) -> list[Change]:
        """Fold one delta; return what it added, in the order to be shown. O(1) in the length of the answer."""
        reasoning, text = chunk.get_reasoning(), chunk.get_text()
        if (
            chunk.plain
            and self._open is _TEXT
            and text.isascii()
            and text
            and not reasoning
            and not self._held
        ):
            # As nearly always: what `_append` does, without asking for more.
            self._said += text.encode()
            return [Change(_TEXT, self._choice, text)]
        changes: list[Change] = []
        details = chunk.details
        if details is not None:
            if details.snapshot and self._holds_an_answer():
                # The rest of the chunk repeats what was streamed already.
                self._finish(chunk.get_finish_message())
                return changes
            if details.snapshot or details.restarts or details.block is not None or details.refusal:
                self._take_details(details, changes)
            elif details.extra:
                self._extra.add(details.extra)
        if reasoning and (self._restated is not None or (details is not None and details.restates)):
            reasoning = self._said_once(reasoning, details is not None and details.restates)
        if reasoning:
            opens = self._open is not _REASONING
            self._append(_REASONING, reasoning, changes)
            if opens and (details is None or details.block is None):
                self._take_origin(chunk)
        if text:
            self._append(_TEXT, text, changes)
        if chunk.plain:
            return changes
        if details is not None and (details.block is not None or details.parts):
            self._take_blocks(details, changes)
        for delta in chunk.get_tool_calls():
            self._begin(changes)
            call = self._call_of(delta)
            nameless = not call.id
            call.add(delta)
            if nameless and call.id:
                self._know_id(call)
            changes.append(Change(_TOOL_CALL, self._choice, delta.arguments, call.position))
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
        if self._waiting:
            self._open_segment(_TEXT)
        return changes

    @property
    def extra(self) -> dict[str, Any]:
        """The fields beyond text, reasoning and tool calls, folded by the rule of their type."""
        return self._extra.to_dict()

    @property
    def finish_reason(self) -> FinishReason | None:
        """The common reason; ``stop`` counts as ``tool_calls`` when the answer holds calls for somebody to run."""
        if self.finish is None:
            return None
        if self.finish.reason is FinishReason.STOP and any(call.kind != "server" for call in self._calls):
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

    def begun_call(self, position: int) -> ToolCallAssembly | None:
        """A call as far as it has come, by its place in the order of appearance; None of an answer begun anew since."""
        return self._calls[position] if position < len(self._calls) else None

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
            if isinstance(segment, ToolCallAssembly):
                content.append(next(calls))
            elif not isinstance(segment, _Block):
                content.append(segment)
            elif (part := segment.part()) is not None:
                content.append(part)
        metadata: dict[str, Any] = {}
        if self._refusal:
            metadata["refusal"] = self.refusal
        if self.finish is not None:
            metadata["finish_reason"] = str(self.finish_reason)
        if self._extra:
            metadata["extra"] = self.extra
        return Message(role=Role.MODEL, content=tuple(content), metadata=metadata)

    def _take_details(self, details: ChunkDetails, changes: list[Change]) -> None:
        """Fold what few chunks carry, as far as it comes before their text."""
        if details.restarts:
            self._restart(changes)
        if details.block is not None and details.block.opens:
            if self._waiting or (self._splitter is not None and self._splitter.holding):
                self._begin(changes)
            self._open = None
        if details.refusal:
            self._append(Channel.REFUSAL, details.refusal, changes)
        if details.extra:
            extra = details.extra
            if details.snapshot:
                extra = {name: value for name, value in extra.items() if name not in self._extra}
            self._extra.add(extra)

    def _take_blocks(self, details: ChunkDetails, changes: list[Change]) -> None:
        """Fold what concerns the block that the chunk's text went into, and what stands behind it."""
        facts = details.block
        if facts is not None and (facts.signature or facts.metadata):
            channel = Channel(facts.channel)
            if channel is _TEXT and self._splitter is not None:
                self._waiting.append(facts)
            else:
                self._begin(changes)
                if facts.opens and self._open is not channel:
                    self._open_segment(channel)  # sealed, or annotated, before any text
                block = self._latest(channel) or self._open_segment(channel)
                block.add(facts)
        for part in details.parts:
            self._begin(changes)
            self._open = None
            self._segments.append(part)
            changes.append(Change(Channel.PART, self._choice, "", part=part))

    def _take_origin(self, chunk: ChunkWrapper[Any]) -> None:
        """Keep how the reasoning came that a chunk has begun: it may have to go back that way."""
        origin = chunk.reasoning_origin
        block = self._latest(_REASONING) if origin else None
        if origin and block is not None:
            block.add(BlockDelta("reasoning", metadata=origin))

    def _latest(self, channel: Channel) -> _Block | None:
        for segment in reversed(self._segments):
            if isinstance(segment, _Block) and segment.channel is channel:
                return segment
        return None

    def _restart(self, changes: list[Change]) -> None:
        think_tags = self._think_tags
        self.__init__(self._choice, think_tags=think_tags)
        changes.append(Change(_TEXT, self._choice, "", restarts=True))

    def _holds_an_answer(self) -> bool:
        waiting = self._splitter is not None and self._splitter.holding
        return bool(self._segments or self._refusal or self._held or waiting)

    def _append(self, channel: Channel, text: str, changes: list[Change]) -> None:
        if self._held or not text.isascii():
            text = self._whole_characters(channel, text)
            if not text:
                return
        if channel is self._open:
            self._said += to_utf8(text)
            changes.append(Change(channel, self._choice, text))
        elif channel is _TEXT and self._splitter is not None:
            # Text opens no segment of its own as long as it may still be reasoning.
            self._split(self._splitter, text, changes)
        else:
            self._begin(changes)
            self._show(channel, text, changes)

    def _show(self, channel: Channel, text: str, changes: list[Change]) -> None:
        if channel is self._open:
            self._said += to_utf8(text)
        elif channel is Channel.REFUSAL:
            self._refusal.append(text)
        else:
            self._open_segment(channel).said += to_utf8(text)
        changes.append(Change(channel, self._choice, text))

    def _begin(self, changes: list[Change]) -> None:
        """Something else than text comes: if the answer began with no tag so far, it does not begin with one."""
        splitter = self._splitter
        if splitter is None or not splitter.undecided:
            return
        self._splitter = None
        for channel, text in splitter.close():
            self._show(Channel(channel), text, changes)
        if self._waiting:
            self._open_segment(_TEXT)

    def _split(self, splitter: ThinkTagSplitter, text: str, changes: list[Change]) -> None:
        pieces = splitter.feed(text)
        if splitter.done:
            self._splitter = None
        for channel, piece in pieces:
            self._show(_TEXT if channel == "text" else _REASONING, piece, changes)

    def _open_segment(self, channel: Channel) -> _Block:
        block = _Block(channel)
        if self._waiting and channel is _TEXT:
            for facts in self._waiting:
                block.add(facts)
            self._waiting.clear()
        self._open = channel
        self._said = block.said
        self._segments.append(block)
        return block

    def _whole_characters(self, channel: Channel, text: str) -> str:
        """``text`` with what was held back; a surrogate at its end is held back in turn."""
        text = self._held.pop(channel, "") + text
        if "\ud800" <= text[-1] <= "\udbff":
            self._held[channel] = text[-1]
            text = text[:-1]
        return join_surrogates(text)

    def _call_of(self, delta: ToolCallDelta) -> ToolCallAssembly:
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
            known = self._by_id.get(delta.id)
            if known is not None:
                return known
        if delta.id or delta.name or not self._calls:
            return self._open_call()
        return self._calls[-1]

    def _know_id(self, call: ToolCallAssembly) -> None:
        """Note the id that a call has got; an earlier call that gets the same id only now is not found by it."""
        known = self._by_id.get(call.id)
        if known is None or known.position < call.position:
            self._by_id[call.id] = call

    def _said_once(self, reasoning: str, restates: bool) -> str:
        """What of a piece of reasoning was not said yet, where a server sends all of it in two forms."""
        state = self._restated
        if state is None:
            block = self._latest(_REASONING)
            state = self._restated = _Restated(plain=block is not None and bool(block.said))
        return state.other_form(reasoning) if restates else state.usual_form(reasoning)

    def _open_call(self) -> ToolCallAssembly:
        call = ToolCallAssembly(len(self._calls))
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
            from_utf8(segment.said)
            for segment in self._segments
            if isinstance(segment, _Block) and segment.channel is channel
        )


def _unused_id(position: int, taken: set[str]) -> str:
    made = f"call_{position}"
    while made in taken:
        made += "_"
    taken.add(made)
    return made

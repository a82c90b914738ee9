"""Folding of one response's deltas into one message.

`MessageAssembly` assigns fragments to texts and calls, and decides which fields append and which replace. It works on
`ChunkWrapper`s, so the rules are the same for all providers. The cost of a fold is independent of the response's length:
fragments are collected, and joined only when they are read.
"""

from enum import StrEnum
from typing import Any

import msgspec

from tailrace.wrappers.assembly.tool_calls import ToolCallAssembly
from tailrace.wrappers.chunks import (
    BlockDelta,
    ChunkDetails,
    ChunkWrapper,
    FinishMessage,
    FinishReason,
    ToolCallDelta,
)
from tailrace.wrappers.decoding.fields import FieldFold
from tailrace.wrappers.decoding.thinking import ThinkTagSplitter
from tailrace.wrappers.errors import UpstreamError, UpstreamFault
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


class Channel(StrEnum):
    """Kinds of content of a response."""

    TEXT = "text"
    REASONING = "reasoning"
    REFUSAL = "refusal"
    TOOL_CALL = "tool_call"
    PART = "part"


class Change(msgspec.Struct, frozen=True, gc=False):
    """A change by one fold.

    Attributes:
        channel: The kind of content.
        choice: Index of the choice.
        text: The added text: visible text, reasoning, refusal, or a fragment of a call's arguments, verbatim
            (including half of a surrogate pair); may be empty for a new call.
        call: The position of a tool call in order of appearance; otherwise -1.
        part: On the channel PART the added part (a file, data, the result of a server tool); otherwise None.
        restarts: The choice's previous content is void; nothing is added.
    """

    channel: Channel
    choice: int
    text: str
    call: int = -1
    part: ContentPart | None = None
    restarts: bool = False


MAX_PARTS = 10_000
"""Maximum number of parts of one message: blocks of text and reasoning, calls, files."""

MAX_TOOL_CALLS = 1_000
"""Maximum number of tool calls of one message."""

_TEXT = Channel.TEXT
_REASONING = Channel.REASONING
_TOOL_CALL = Channel.TOOL_CALL

# Reasons of incomplete responses, which a later "stop" does not replace (some providers send both).
_DECISIVE = frozenset({FinishReason.LENGTH, FinishReason.CONTENT_FILTER, FinishReason.RECITATION})


class _Block:
    """A growing block of text or reasoning."""

    __slots__ = ("channel", "encoded", "metadata", "signature")

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.encoded = bytearray()  # as UTF-8, which needs the least memory
        self.signature: list[str] = []
        self.metadata: FieldFold | None = None

    def add(self, facts: BlockDelta) -> None:
        if facts.signature:
            self.signature.append(facts.signature)
        if facts.metadata:
            self.metadata = self.metadata or FieldFold()
            self.metadata.add(facts.metadata)

    def part(self) -> ContentPart | None:
        """Return the block as a part; None if it is empty."""
        text = from_utf8(self.encoded)
        metadata = self.metadata.to_dict() if self.metadata is not None else {}
        signature = "".join(self.signature)
        if not (text or signature or metadata):
            return None
        if self.channel is _TEXT:
            return ContentPartText(text=text, metadata=metadata)
        return ContentPartReasoning(text=text, signature=signature or None, metadata=metadata)


class _Restated:
    """Deduplication of reasoning that is sent in two forms."""

    __slots__ = ("_at", "_pieces", "_plain", "_text")

    def __init__(self, *, plain: bool) -> None:
        self._plain = plain  # the usual form was received, so the other form is ignored
        self._pieces: list[str] = []  # text received only in the other form
        self._text: str | None = None  # the same, while the usual form may repeat it
        self._at = 0  # number of repeated characters

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
    """Fold of one choice's deltas into one message of role MODEL.

    Args:
        choice: Index of the choice.
        think_tags: Separate reasoning in ``<think>`` tags at the start of the text (see
            `tailrace.wrappers.decoding.thinking`).

    Attributes:
        finish: The finish reason; None if no chunk had one.
    """

    __slots__ = (
        "_by_id",
        "_by_index",
        "_calls",
        "_choice",
        "_encoded",
        "_extra",
        "_held",
        "_open",
        "_refusal",
        "_restated",
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
        self._open: Channel | None = None  # channel of the last segment, while text can be added to it
        self._encoded = bytearray()  # text of the last segment
        self._calls: list[ToolCallAssembly] = []
        self._by_id: dict[str, ToolCallAssembly] = {}  # the last call of each id
        self._by_index: dict[int, ToolCallAssembly] = {}
        self._refusal: list[str] = []
        self._held: dict[Channel, str] = {}  # the first half of a surrogate pair
        self._splitter = (
            ThinkTagSplitter() if think_tags else None
        )  # until text or other content was reported
        self._waiting: list[BlockDelta] = []  # information about text that may still be reasoning
        self._extra = FieldFold()
        self._restated: _Restated | None = None  # set after reasoning in another form than the usual one
        self.finish: FinishMessage | None = None

    def add(self, chunk: ChunkWrapper[Any]) -> list[Change]:
        """Fold one delta; return its changes in order. The cost is independent of the response's length.

        Raises:
            UpstreamError: The message has too many parts or tool calls.
        """
        reasoning, text = chunk.get_texts()
        if (
            chunk.plain
            and self._open is _TEXT
            and text.isascii()
            and text
            and not reasoning
            and not self._held
        ):
            # The common case of `_append`, inlined.
            self._encoded += text.encode()
            return [Change(_TEXT, self._choice, text)]
        changes: list[Change] = []
        details = chunk.details
        if details is not None:
            if details.snapshot and self._holds_an_answer():
                # The chunk's other content repeats the streamed message.
                self._finish(chunk.get_finish_message())
                return changes
            if details.snapshot or details.restarts or details.block is not None or details.refusal:
                self._take_details(details, changes)
            elif details.extra:
                self._extra.add(details.extra)
        if reasoning and (self._restated is not None or (details is not None and details.restates)):
            reasoning = self._without_repetition(reasoning, details is not None and details.restates)
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
        """End the stream, and return the changes of buffered text."""
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
        """The fields other than text, reasoning and tool calls, folded by type."""
        return self._extra.to_dict()

    @property
    def finish_reason(self) -> FinishReason | None:
        """The common finish reason; ``stop`` becomes ``tool_calls`` if the response has client tool calls."""
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
        """Return a call by its position in order of appearance; None if the response was restarted since."""
        return self._calls[position] if position < len(self._calls) else None

    @property
    def tool_calls(self) -> list[ContentPartToolCall]:
        """The calls so far, in order of appearance; calls without an id get a unique synthetic one."""
        reason = self.finish.reason if self.finish is not None else None
        parts = [call.part(reason) for call in self._calls]
        taken = {part.id for part in parts if part.id}
        for position, part in enumerate(parts):
            if not part.id:
                made = _unused_id(position, taken)
                parts[position] = part.model_copy(update={"id": made, "synthetic_id": True})
        return parts

    def message(self) -> Message:
        """Return the message so far: parts in order of appearance, with consecutive text joined."""
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
        """Fold the details that precede a chunk's text."""
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
        """Fold the information about the block of the chunk's text, and the parts after it."""
        facts = details.block
        if facts is not None and (facts.signature or facts.metadata):
            channel = Channel(facts.channel)
            if channel is _TEXT and self._splitter is not None:
                self._waiting.append(facts)
            else:
                self._begin(changes)
                if facts.opens and self._open is not channel:
                    self._open_segment(channel)  # signed or annotated before any text
                block = self._latest(channel) or self._open_segment(channel)
                block.add(facts)
        for part in details.parts:
            self._begin(changes)
            self._open = None
            self._add_segment(part)
            changes.append(Change(Channel.PART, self._choice, "", part=part))

    def _take_origin(self, chunk: ChunkWrapper[Any]) -> None:
        """Store the origin of a chunk's reasoning, which may have to be returned in the same form."""
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
            self._encoded += to_utf8(text)
            changes.append(Change(channel, self._choice, text))
        elif channel is _TEXT and self._splitter is not None:
            # Text does not open a segment while it may still be reasoning.
            self._split(self._splitter, text, changes)
        else:
            self._begin(changes)
            self._show(channel, text, changes)

    def _show(self, channel: Channel, text: str, changes: list[Change]) -> None:
        if channel is self._open:
            self._encoded += to_utf8(text)
        elif channel is Channel.REFUSAL:
            self._refusal.append(text)
        else:
            self._open_segment(channel).encoded += to_utf8(text)
        changes.append(Change(channel, self._choice, text))

    def _begin(self, changes: list[Change]) -> None:
        """Handle other content than text: without a tag so far, the response does not begin with one."""
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
        self._encoded = block.encoded
        self._add_segment(block)
        return block

    def _add_segment(self, segment: "_Block | ToolCallAssembly | ContentPart") -> None:
        """Add a part.

        Raises:
            UpstreamError: There are too many.
        """
        if len(self._segments) >= MAX_PARTS:
            raise _too_many(f"{MAX_PARTS} parts")
        self._segments.append(segment)

    def _whole_characters(self, channel: Channel, text: str) -> str:
        """Return ``text`` after the buffered surrogate; a high surrogate at its end is buffered."""
        text = self._held.pop(channel, "") + text
        if "\ud800" <= text[-1] <= "\udbff":
            self._held[channel] = text[-1]
            text = text[:-1]
        return join_surrogates(text)

    def _call_of(self, delta: ToolCallDelta) -> ToolCallAssembly:
        """Return a fragment's call, tolerating missing, null, constant, shifted and repeated ids and indexes.

        With an index: the latest call of that index, unless the fragment has a name and another id (servers
        with a constant index). Without an index: the call of the same id; otherwise a new call if there is an id or a
        name, or the latest one.
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
        """Register a call's id; an earlier call that gets the id of a later one is not registered."""
        known = self._by_id.get(call.id)
        if known is None or known.position < call.position:
            self._by_id[call.id] = call

    def _without_repetition(self, reasoning: str, restates: bool) -> str:
        """Return the new text of reasoning that a server sends in two forms."""
        state = self._restated
        if state is None:
            block = self._latest(_REASONING)
            state = self._restated = _Restated(plain=block is not None and bool(block.encoded))
        return state.other_form(reasoning) if restates else state.usual_form(reasoning)

    def _open_call(self) -> ToolCallAssembly:
        if len(self._calls) >= MAX_TOOL_CALLS:
            raise _too_many(f"{MAX_TOOL_CALLS} tool calls")
        call = ToolCallAssembly(len(self._calls))
        self._add_segment(call)
        self._calls.append(call)
        self._open = None
        return call

    def _finish(self, finish: FinishMessage | None) -> None:
        """Store the finish reason; the reason of an incomplete response is not replaced by that of a complete one."""
        if finish is None:
            return
        if self.finish is None or self.finish.reason not in _DECISIVE or finish.reason in _DECISIVE:
            self.finish = finish

    def _joined(self, channel: Channel) -> str:
        return "".join(
            from_utf8(segment.encoded)
            for segment in self._segments
            if isinstance(segment, _Block) and segment.channel is channel
        )


def _too_many(allowed: str) -> UpstreamError:
    return UpstreamError(f"the response has more than the allowed {allowed}", fault=UpstreamFault.TOO_LARGE)


def _unused_id(position: int, taken: set[str]) -> str:
    made = f"call_{position}"
    while made in taken:
        made += "_"
    taken.add(made)
    return made

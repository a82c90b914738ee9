"""Incremental assembly of one message from the deltas of a response.

`MessageAssembly` determines the text or tool call that each fragment belongs to. It reads `ChunkWrapper`s, so the rules are the
same for all providers. The time for adding a delta does not depend on the length of the response.
"""

from typing import Any

from tailrace.wrappers.assembly.changes import Change, Channel
from tailrace.wrappers.assembly.repeated_reasoning import RepeatedReasoning
from tailrace.wrappers.assembly.tool_calls import ToolCallAssembly
from tailrace.wrappers.chunks import (
    BlockDelta,
    ChunkDetails,
    ChunkWrapper,
    FinishMessage,
    FinishReason,
    ToolCallDelta,
)
from tailrace.wrappers.decoding.extra_fields import FieldFold
from tailrace.wrappers.decoding.think_tags import ThinkTagSplitter
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

MAX_PARTS = 10_000
"""Maximum number of parts in one message: blocks of text or reasoning, calls, files, and other parts."""

MAX_TOOL_CALLS = 1_000
"""Maximum number of tool calls in one message."""

_TEXT = Channel.TEXT
_REASONING = Channel.REASONING
_TOOL_CALL = Channel.TOOL_CALL

# Finish reasons of incomplete responses. Some providers send "stop" afterwards, which does not replace them.
_DECISIVE = frozenset({FinishReason.LENGTH, FinishReason.CONTENT_FILTER, FinishReason.RECITATION})


class _Block:
    """A growing block of text or reasoning."""

    __slots__ = ("channel", "encoded", "metadata", "signature")

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.encoded = bytearray()  # text as UTF-8, which needs less memory than a list of strings
        self.signature: list[str] = []
        self.metadata: FieldFold | None = None

    def add(self, delta: BlockDelta) -> None:
        if delta.signature:
            self.signature.append(delta.signature)
        if delta.metadata:
            self.metadata = self.metadata or FieldFold()
            self.metadata.add(delta.metadata)

    def part(self) -> ContentPart | None:
        text = from_utf8(self.encoded)
        metadata = self.metadata.to_dict() if self.metadata is not None else {}
        signature = "".join(self.signature)
        if not (text or signature or metadata):
            return None
        if self.channel is _TEXT:
            return ContentPartText(text=text, metadata=metadata)
        return ContentPartReasoning(text=text, signature=signature or None, metadata=metadata)


class MessageAssembly:
    """Assembles the deltas of one choice to one message with the role MODEL.

    Args:
        choice: Index of the choice.
        think_tags: True to separate reasoning in ``<think>`` tags at the start of the response from the text.

    Attributes:
        finish: The finish reason; None until a chunk contains one.
        replaced_calls: The names and ids of calls that `restart` discarded, by position (see `ToolCallAssembly.final_id`).
    """

    __slots__ = (
        "_buffered",
        "_by_id",
        "_by_index",
        "_calls",
        "_choice",
        "_encoded",
        "_extra",
        "_open",
        "_refusal",
        "_repeated_reasoning",
        "_segments",
        "_splitter",
        "_think_tags",
        "_waiting",
        "finish",
        "replaced_calls",
    )

    def __init__(self, choice: int = 0, *, think_tags: bool = True) -> None:
        self._choice = choice
        self._think_tags = think_tags
        # In order of appearance.
        self._segments: list[_Block | ToolCallAssembly | ContentPart] = []
        # Channel of the last segment if text can extend it; otherwise None.
        self._open: Channel | None = None
        self._encoded = bytearray()  # UTF-8 text of the last segment
        self._calls: list[ToolCallAssembly] = []
        self._by_id: dict[str, ToolCallAssembly] = {}  # the latest call with each id
        self._by_index: dict[int, ToolCallAssembly] = {}
        self._refusal: list[str] = []
        # The first half of a surrogate pair by channel, until the second half arrives.
        self._buffered: dict[Channel, str] = {}
        self._splitter = ThinkTagSplitter() if think_tags else None  # None if no tag can follow
        # Data about the blocks of buffered text, which may turn out to be reasoning.
        self._waiting: list[BlockDelta] = []
        self._extra = FieldFold()
        # Not None after reasoning has arrived in a second field.
        self._repeated_reasoning: RepeatedReasoning | None = None
        self.finish: FinishMessage | None = None
        self.replaced_calls: tuple[tuple[str, str], ...] = ()

    def add(self, chunk: ChunkWrapper[Any]) -> list[Change]:
        """Add one delta to the message. Return the changes in order.

        Raises:
            UpstreamError: The message has more than `MAX_PARTS` parts or `MAX_TOOL_CALLS` tool calls.
        """
        reasoning, text = chunk.get_texts()
        if (
            chunk.plain
            and self._open is _TEXT
            and text.isascii()
            and text
            and not reasoning
            and not self._buffered
        ):
            # `_append`, inlined for the most common case.
            self._encoded += text.encode()
            return [Change(_TEXT, self._choice, text)]
        changes: list[Change] = []
        details = chunk.details
        if details is not None:
            if details.snapshot and self.has_content:
                # The rest of the chunk repeats the streamed message.
                self._finish(chunk.get_finish_message())
                return changes
            if details.snapshot or details.restarts or details.block is not None or details.refusal:
                self._apply_details(details, changes)
            elif details.extra:
                self._extra.add(details.extra)
        if reasoning and (
            self._repeated_reasoning is not None or (details is not None and details.is_second_field)
        ):
            reasoning = self._without_repetition(reasoning, details is not None and details.is_second_field)
        if reasoning:
            starts_block = self._open is not _REASONING
            self._append(_REASONING, reasoning, changes)
            if starts_block and (details is None or details.block is None):
                self._apply_origin(chunk)
        if text:
            self._append(_TEXT, text, changes)
        if chunk.plain:
            return changes
        if details is not None and (details.block is not None or details.parts):
            self._apply_blocks(details, changes)
        for delta in chunk.get_tool_calls():
            self._end_tag_search(changes)
            call = self._call_of(delta)
            has_no_id = not call.id
            call.add(delta)
            if has_no_id and call.id:
                self._register_id(call)
            changes.append(Change(_TOOL_CALL, self._choice, delta.arguments, call.position))
        self._finish(chunk.get_finish_message())
        return changes

    def close(self) -> list[Change]:
        """End the stream. Return the changes for text that was buffered."""
        changes: list[Change] = []
        buffered, self._buffered = self._buffered, {}
        for channel, surrogate in buffered.items():
            self._append(channel, join_surrogates(surrogate), changes)
        splitter, self._splitter = self._splitter, None
        for channel, text in splitter.close() if splitter is not None else ():
            self._publish(Channel(channel), text, changes)
        if self._waiting:
            self._open_segment(_TEXT)
        return changes

    @property
    def extra(self) -> dict[str, Any]:
        """The merged `ChunkDetails.extra` of all chunks."""
        return self._extra.to_dict()

    @property
    def finish_reason(self) -> FinishReason | None:
        """The finish reason, or None; ``tool_calls`` instead of ``stop`` if the provider does not run all called tools itself."""
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
        """The text of the refusal so far; empty if there is no refusal."""
        return "".join(self._refusal)

    @property
    def plain_text(self) -> str:
        """The text so far; empty if the response also has other content."""
        only = self._segments[0] if len(self._segments) == 1 else None
        if not isinstance(only, _Block) or only.channel is not _TEXT or self._refusal or self._waiting:
            return ""
        return "" if only.signature or only.metadata or self._holds_text else from_utf8(only.encoded)

    @property
    def _holds_text(self) -> bool:
        return self._splitter is not None and self._splitter.holding

    def resume(self) -> None:
        """Discard the buffered half of a surrogate pair, before the continuation of an interrupted response."""
        self._buffered.clear()

    def restart(self) -> Change:
        """Discard all content, because another attempt replaces it. Return the change."""
        changes: list[Change] = []
        calls = tuple((call.name, call.final_id) for call in self._calls)
        replaced = calls + self.replaced_calls[len(calls) :]
        self._restart(changes)
        self.replaced_calls = replaced
        return changes[0]

    def started_call(self, position: int) -> ToolCallAssembly | None:
        """Return the call at a position, from 0. It may be incomplete. None if there is no such call after a restart."""
        return self._calls[position] if position < len(self._calls) else None

    @property
    def tool_calls(self) -> list[ContentPartToolCall]:
        """The tool calls so far, in order of appearance. Calls without an id get a unique synthetic id."""
        reason = self.finish.reason if self.finish is not None else None
        parts = [call.part(reason) for call in self._calls]
        used_ids = {part.id for part in parts if part.id}
        for position, part in enumerate(parts):
            if not part.id:
                new_id = _unused_id(position, used_ids)
                parts[position] = part.model_copy(update={"id": new_id, "synthetic_id": True})
        return parts

    def message(self) -> Message:
        """Return the message so far."""
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

    def _apply_details(self, details: ChunkDetails, changes: list[Change]) -> None:
        """Process the details of a chunk that come before its text."""
        if details.restarts:
            self._restart(changes)
        if details.block is not None and details.block.starts_block:
            if self._waiting or self._holds_text:
                self._end_tag_search(changes)
            self._open = None
        if details.refusal:
            self._append(Channel.REFUSAL, details.refusal, changes)
        if details.extra:
            extra = details.extra
            if details.snapshot:
                extra = {name: value for name, value in extra.items() if name not in self._extra}
            self._extra.add(extra)

    def _apply_blocks(self, details: ChunkDetails, changes: list[Change]) -> None:
        """Process the details of a chunk that come after its text: signature and metadata of its block, and parts."""
        delta = details.block
        if delta is not None and (delta.signature or delta.metadata):
            channel = Channel(delta.channel)
            if channel is _TEXT and self._splitter is not None:
                self._waiting.append(delta)
            else:
                self._end_tag_search(changes)
                if delta.starts_block and self._open is not channel:
                    self._open_segment(channel)  # the block is signed or annotated before its first text
                block = self._latest(channel) or self._open_segment(channel)
                block.add(delta)
        for part in details.parts:
            self._end_tag_search(changes)
            self._open = None
            self._add_segment(part)
            changes.append(Change(Channel.PART, self._choice, "", part=part))

    def _apply_origin(self, chunk: ChunkWrapper[Any]) -> None:
        """Store the field that contained reasoning, because some providers require the same field in later requests."""
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

    @property
    def has_content(self) -> bool:
        """True if the message has content (since the last restart)."""
        return bool(self._segments or self._refusal or self._buffered or self._holds_text)

    def _append(self, channel: Channel, text: str, changes: list[Change]) -> None:
        if self._buffered or not text.isascii():
            text = self._whole_characters(channel, text)
            if not text:
                return
        if channel is self._open:
            self._encoded += to_utf8(text)
            changes.append(Change(channel, self._choice, text))
        elif channel is _TEXT and self._splitter is not None:
            # The text may contain a tag.
            self._split(self._splitter, text, changes)
        else:
            self._end_tag_search(changes)
            self._publish(channel, text, changes)

    def _publish(self, channel: Channel, text: str, changes: list[Change]) -> None:
        if channel is self._open:
            self._encoded += to_utf8(text)
        elif channel is Channel.REFUSAL:
            self._refusal.append(text)
        else:
            self._open_segment(channel).encoded += to_utf8(text)
        changes.append(Change(channel, self._choice, text))

    def _end_tag_search(self, changes: list[Change]) -> None:
        """Stop the search for a ``<think>`` tag, because content other than text has arrived."""
        splitter = self._splitter
        if splitter is None or not splitter.undecided:
            return
        self._splitter = None
        for channel, text in splitter.close():
            self._publish(Channel(channel), text, changes)
        if self._waiting:
            self._open_segment(_TEXT)

    def _split(self, splitter: ThinkTagSplitter, text: str, changes: list[Change]) -> None:
        segments = splitter.feed(text)
        if splitter.done:
            self._splitter = None
        for channel, segment in segments:
            self._publish(_TEXT if channel == "text" else _REASONING, segment, changes)

    def _open_segment(self, channel: Channel) -> _Block:
        block = _Block(channel)
        if self._waiting and channel is _TEXT:
            for delta in self._waiting:
                block.add(delta)
            self._waiting.clear()
        self._open = channel
        self._encoded = block.encoded
        self._add_segment(block)
        return block

    def _add_segment(self, segment: "_Block | ToolCallAssembly | ContentPart") -> None:
        """Add a part.

        Raises:
            UpstreamError: The message would have more than `MAX_PARTS` parts.
        """
        if len(self._segments) >= MAX_PARTS:
            raise _too_many(f"{MAX_PARTS} parts")
        self._segments.append(segment)

    def _whole_characters(self, channel: Channel, text: str) -> str:
        """Return ``text`` after the buffered surrogate. Buffer a high surrogate at the end of the text."""
        text = self._buffered.pop(channel, "") + text
        if "\ud800" <= text[-1] <= "\udbff":
            self._buffered[channel] = text[-1]
            text = text[:-1]
        return join_surrogates(text)

    def _call_of(self, delta: ToolCallDelta) -> ToolCallAssembly:
        """Return the call that a fragment belongs to. Ids and indexes may be missing, constant, shifted or repeated.

        A fragment with an index belongs to the latest call with the same index. But a fragment with a name and a different id
        starts a new call, because some servers send the same index for all calls. A fragment without an index belongs to the call
        with the same id. Without such a call, a fragment with an id or a name starts a new call, and any other fragment belongs
        to the latest call.
        """
        index = delta.index
        if index is not None:
            call_state = self._by_index.get(index)
            if call_state is None or (
                delta.name and delta.id and call_state.id and delta.id != call_state.id
            ):
                call_state = self._by_index[index] = self._open_call()
            return call_state
        if delta.id:
            call_state = self._by_id.get(delta.id)
            if call_state is not None:
                return call_state
        if delta.id or delta.name or not self._calls:
            return self._open_call()
        return self._calls[-1]

    def _register_id(self, call: ToolCallAssembly) -> None:
        """Register the id of a call, unless a later call has the same id."""
        call_state = self._by_id.get(call.id)
        if call_state is None or call_state.position < call.position:
            self._by_id[call.id] = call

    def _without_repetition(self, reasoning: str, is_second_field: bool) -> str:
        state = self._repeated_reasoning
        if state is None:
            block = self._latest(_REASONING)
            state = self._repeated_reasoning = RepeatedReasoning(
                plain=block is not None and bool(block.encoded)
            )
        return state.add_second_field(reasoning) if is_second_field else state.add_usual_field(reasoning)

    def _open_call(self) -> ToolCallAssembly:
        if len(self._calls) >= MAX_TOOL_CALLS:
            raise _too_many(f"{MAX_TOOL_CALLS} tool calls")
        position = len(self._calls)
        replaced = self.replaced_calls[position : position + 1]
        call = ToolCallAssembly(position, *replaced)
        self._add_segment(call)
        self._calls.append(call)
        self._open = None
        return call

    def _finish(self, finish: FinishMessage | None) -> None:
        """Store the finish reason. "stop" does not replace the reason of an incomplete response."""
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


def _unused_id(position: int, used_ids: set[str]) -> str:
    new_id = f"call_{position}"
    while new_id in used_ids:
        new_id += "_"
    used_ids.add(new_id)
    return new_id

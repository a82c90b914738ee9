"""Accumulation of one turn of an agent: the responses of a model, and the tool results between them.

`TurnAccumulator` returns the complete result so far, or only the content since the last read. It does not call models or tools
itself::

    turn = TurnAccumulator(question, history=history)
    while True:
        async with model.stream(turn.history) as batches:
            async for chunks in batches:
                for chunk in chunks:
                    turn.add(chunk)
                yield turn.pop_delta()
        turn.end_response()
        if not turn.calls_without_result:
            break
        turn.add_results(*await run(turn.calls_without_result))
    yield turn.pop_delta()
"""

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import msgspec

from tailrace.streaming.accumulator import Accumulator, sum_usages
from tailrace.wrappers import (
    Change,
    Channel,
    ChunkWrapper,
    ContentPartFile,
    ContentPartToolCall,
    ContentPartToolResult,
    FinishReason,
    History,
    Message,
    Role,
    UpstreamError,
    Usage,
)
from tailrace.wrappers.conversion.tool_ids import with_matched_ids
from tailrace.wrappers.messages import from_utf8, to_utf8

T = TypeVar("T")

# In Python 3.11, the lookup of an enum member takes more time than appending a delta.
_TEXT = Channel.TEXT
_REASONING = Channel.REASONING


class TurnDelta(msgspec.Struct, frozen=True):
    """The content of a turn since the last read. ``bool(delta)`` is False if there is no new content.

    Attributes:
        output: Visible text.
        messages: Messages that are complete.
        metadata: New or changed metadata of the responses.
        files: Files sent as bytes.
        linked_files: Files sent as URLs.
        replaces: True if the model restarted a response after a part of it was read. ``output``, ``reasoning``, ``files`` and
            ``linked_files`` are then the complete content of the turn so far, which replaces all earlier content.
    """

    output: str = ""
    reasoning: str = ""
    messages: tuple[Message, ...] = ()
    metadata: dict[str, Any] = {}
    files: tuple[ContentPartFile, ...] = ()
    linked_files: tuple[ContentPartFile, ...] = ()
    replaces: bool = False

    @property
    def links(self) -> tuple[ContentPartFile, ...]:
        """Deprecated name of `linked_files`; to be removed in 0.3."""
        return self.linked_files

    def __bool__(self) -> bool:
        return self != _NOTHING


_NOTHING = TurnDelta()


class _ResponseItems(Generic[T]):
    """A growing list. The items of the last response can be removed again."""

    __slots__ = ("_read_count", "_response", "add", "items")

    def __init__(self) -> None:
        self.items: list[T] = []
        self.add = self.items.append
        self._read_count = 0
        self._response = 0  # the number of items before the last response

    def begin_response(self) -> None:
        self._response = len(self.items)

    def void_response(self) -> bool:
        """Remove the items of the last response. Return True if some of them had been read."""
        del self.items[self._response :]
        return self._read_count > len(self.items)

    def pop_new(self) -> list[T]:
        new = self.items[self._read_count :]
        self._read_count = len(self.items)
        return new

    def repeat_all(self) -> None:
        """Return all items in the next `pop_new`."""
        self._read_count = 0


class _ResponseText:
    """A growing text, stored as UTF-8. The text of the last response can be removed again."""

    __slots__ = ("_read_count", "_response", "_text")

    def __init__(self) -> None:
        self._text = bytearray()
        self._read_count = 0
        self._response = 0

    def add(self, text: str) -> None:
        self._text += text.encode() if text.isascii() else to_utf8(text)

    def begin_response(self) -> None:
        self._response = len(self._text)

    def void_response(self) -> bool:
        del self._text[self._response :]
        return self._read_count > self._response

    def full(self) -> str:
        return from_utf8(self._text)

    def pop_new(self) -> str:
        new = from_utf8(self._text[self._read_count :])
        self._read_count = len(self._text)
        return new

    def repeat_all(self) -> None:
        self._read_count = 0


class TurnAccumulator:
    """Accumulator of the responses and tool results of one turn. Sans-IO; O(1) for each chunk.

    For each response, call `add` for each chunk, then `end_response`. Between two responses, call `add_results`. If a response
    has several choices, the first choice with content is used.

    Args:
        *messages: The first messages of the turn, usually one message of the user.
        history: The conversation before the turn; None for none. New tool calls get ids that are unique in the conversation.
        think_tags: See `Accumulator`.
        merge_choices: See `Accumulator`.
        collect_output: True to collect text and files for `pop_delta`, `output`, `reasoning`, `files` and `linked_files`. False saves
            the memory of a second copy of the text.

    Attributes:
        response: The current or last response; None before the first response.
    """

    __slots__ = (
        "_calls_without_result",
        "_collects_output",
        "_earlier_usage",
        "_files",
        "_history",
        "_id",
        "_ids",
        "_linked_files",
        "_merge_choices",
        "_messages",
        "_metadata",
        "_needed_line_break",
        "_needs_line_break",
        "_new_metadata",
        "_output",
        "_reasoning",
        "_receiving",
        "_replaces",
        "_returned_messages",
        "_think_tags",
        "response",
    )

    def __init__(
        self,
        *messages: Message,
        history: History | None = None,
        think_tags: bool = False,
        merge_choices: bool = False,
        collect_output: bool = True,
    ) -> None:
        self._collects_output = collect_output
        self._history = history or History()
        self._think_tags = think_tags
        self._merge_choices = merge_choices
        self._messages = list(messages)
        self._returned_messages = 0
        self._ids: set[str] | None = None  # of all calls; None before the first call
        self._output = _ResponseText()
        self._reasoning = _ResponseText()
        self._files: _ResponseItems[ContentPartFile] = _ResponseItems()
        self._linked_files: _ResponseItems[ContentPartFile] = _ResponseItems()
        self._new_metadata: dict[str, Any] = {}
        self._replaces = False
        self._needs_line_break = (
            False  # True if tools ran after the last visible text; the next text then begins on a new line
        )
        self._needed_line_break = False  # the value of _needs_line_break at the start of the last response
        self._earlier_usage: Usage | None = None  # usage of the responses before the last one
        self._receiving: Accumulator | None = None
        self._calls_without_result: tuple[ContentPartToolCall, ...] = ()
        self.response: Accumulator | None = None
        self._metadata: dict[str, Any] = {}
        self._id = ""

    # --- input ---------------------------------------------------------------------------------------------------------

    def begin_response(self) -> Accumulator:
        """Begin the next response. Return the accumulator for its chunks. Call `end_response` at its end."""
        self._earlier_usage = self.total_usage
        self._needed_line_break = self._needs_line_break
        self._calls_without_result = ()
        for growing in (self._output, self._reasoning, self._files, self._linked_files):
            growing.begin_response()
        if self._collects_output:
            response = _CollectedResponse(
                self._collect, think_tags=self._think_tags, merge_choices=self._merge_choices
            )
        else:
            response = Accumulator(think_tags=self._think_tags, merge_choices=self._merge_choices)
        self._merge_metadata()
        self.response = self._receiving = response
        return response

    def add(self, chunk: ChunkWrapper[Any]) -> list[Change]:
        """Add one chunk. Return the changes in order. The content of a chunk never causes an exception."""
        return (self._receiving or self.begin_response()).add(chunk)

    def fail_response(self, error: UpstreamError) -> None:
        """Record the error that ended the response. Call `end_response` afterwards."""
        response = self._receiving or self.begin_response()
        response.error = response.error or error

    def end_response(self, error: UpstreamError | None = None, *, keep_empty: bool = True) -> list[Change]:
        """End the response and add its message to `messages`. Return the changes from text that was still buffered.

        The message of an interrupted response is incomplete. If it is empty, it is not added. Its tool calls are not in
        `calls_without_result`.

        Args:
            error: The error that ended the stream; None for no error. See `Accumulator.close`.
            keep_empty: True to add the message of a complete response even if it has no content. False to omit such a message,
                unless it has a refusal.
        """
        response = self._receiving or self.begin_response()
        changes = response.close(error)
        self._receiving = None
        if not response.choices:
            return changes
        message = response.message(_choice(response))
        if not message.content and (
            response.error is not None or not (keep_empty or message.metadata.get("refusal"))
        ):
            return changes
        if message.tool_calls:
            message = self._with_own_ids(message)
        self._messages.append(message)
        if response.error is None:
            self._calls_without_result = tuple(call for call in message.tool_calls if call.kind != "server")
        return changes

    def resume_calls(self, calls: Iterable[ContentPartToolCall]) -> None:
        """Begin the turn with ``calls`` of the last response in the history. They become `calls_without_result`."""
        self._calls_without_result = tuple(calls)

    def add_results(self, *results: ContentPartToolResult) -> None:
        """Add results for `calls_without_result`, as one message with the role TOOL.

        Raises:
            ValueError: A result matches none of these calls, two results match the same call, or results were already added.
        """
        has_results = self._messages and self._messages[-1].role is Role.TOOL
        open_ids = [] if has_results else [call.id for call in self._calls_without_result]
        for result in results:
            if result.id not in open_ids:
                raise ValueError(f"the last response has no open call {result.id!r}")
            open_ids.remove(result.id)
        if results:
            self._messages.append(Message(role=Role.TOOL, content=results))
            self._calls_without_result = tuple(
                call for call in self._calls_without_result if call.id in open_ids
            )
            self._needs_line_break = bool(self._output.full())

    # --- output --------------------------------------------------------------------------------------------------------

    def take_new(self) -> TurnDelta:
        """Deprecated name of `pop_delta`; to be removed in 0.3."""
        return self.pop_delta()

    def pop_delta(self) -> TurnDelta:
        """Return the content since the last call of this method."""
        messages = tuple(self._messages[self._returned_messages :])
        self._returned_messages = len(self._messages)
        self._merge_metadata()
        metadata, self._new_metadata = self._new_metadata, {}
        replaces, self._replaces = self._replaces, False
        return TurnDelta(
            output=self._output.pop_new(),
            reasoning=self._reasoning.pop_new(),
            messages=messages,
            metadata=metadata,
            files=tuple(self._files.pop_new()),
            linked_files=tuple(self._linked_files.pop_new()),
            replaces=replaces,
        )

    @property
    def metadata(self) -> dict[str, Any]:
        """The merged metadata of the responses. A later value replaces an earlier one."""
        self._merge_metadata()
        return self._metadata

    @property
    def id(self) -> str:
        """The id of the last response that has an id; empty if no response has one."""
        self._merge_metadata()
        return self._id

    @property
    def output(self) -> str:
        """The visible text of all responses. If tools ran between two texts, a line break separates the texts."""
        return self._output.full()

    @property
    def last_text(self) -> str:
        """The visible text of the last response."""
        if self.response is None or not self.response.choices:
            return ""
        return self.response.choices[_choice(self.response)].text

    @property
    def reasoning(self) -> str:
        """The reasoning text of all responses."""
        return self._reasoning.full()

    @property
    def messages(self) -> tuple[Message, ...]:
        """The first messages, then the model's message and the tool results of each response."""
        return tuple(self._messages)

    @property
    def history(self) -> History:
        """The history for the next request: the conversation before the turn, and the messages of the turn."""
        return self._history.with_message(*self._messages)

    @property
    def files(self) -> tuple[ContentPartFile, ...]:
        """All files that responses contained as bytes."""
        return tuple(self._files.items)

    @property
    def linked_files(self) -> tuple[ContentPartFile, ...]:
        """All files that responses contained as URLs."""
        return tuple(self._linked_files.items)

    @property
    def links(self) -> tuple[ContentPartFile, ...]:
        """Deprecated name of `linked_files`; to be removed in 0.3."""
        return self.linked_files

    @property
    def calls_without_result(self) -> tuple[ContentPartToolCall, ...]:
        """The calls of the last response that have no result yet; empty if the response is incomplete."""
        return self._calls_without_result

    @property
    def unanswered_calls(self) -> tuple[ContentPartToolCall, ...]:
        """Deprecated name of `calls_without_result`; to be removed in 0.3."""
        return self.calls_without_result

    @property
    def finish_reason(self) -> FinishReason | None:
        """The finish reason of the last response; None while the response continues, or if it had no finish reason."""
        if self.response is None or not self.response.choices:
            return None
        return self.response.choices[_choice(self.response)].finish_reason

    @property
    def error(self) -> UpstreamError | None:
        """The reason why the last response is incomplete; None for no error."""
        return self.response.reported_error if self.response is not None else None

    @property
    def usage(self) -> Usage | None:
        """The tokens of the last response; None if the provider reported none."""
        return self.response.total_usage if self.response is not None else None

    @property
    def total_usage(self) -> Usage | None:
        """The tokens of all responses of the turn; None if the provider reported none. The field ``raw`` is empty."""
        return sum_usages((self._earlier_usage, self.usage))

    # --- private methods --------------------------------------------------------------------------------------------

    def _with_own_ids(self, message: Message) -> Message:
        """Return the message with tool call ids that are unique in the conversation."""
        if self._ids is None:
            messages = (*self._history.conversation, *self._messages)
            self._ids = {call.id for each in messages for call in each.tool_calls}
        ids = {call.id for call in message.tool_calls}
        own = "" not in ids and len(ids) == len(message.tool_calls) and self._ids.isdisjoint(ids)
        if not own or message.tool_results:
            # Only if necessary, because this traverses the complete conversation.
            *_, message = with_matched_ids(self.history.with_message(message)).conversation
        self._ids.update(call.id for call in message.tool_calls)
        return message

    def _collect(self, response: Accumulator, changes: list[Change]) -> None:
        for change in changes:
            if change.choice != _choice(response):
                continue
            if change.restarts:
                self._void_response()
            elif change.channel is _TEXT:
                if self._needs_line_break:
                    self._needs_line_break = False
                    self._output.add("\n")
                self._output.add(change.text)
            elif change.channel is _REASONING:
                self._reasoning.add(change.text)
            elif isinstance(change.part, ContentPartFile):
                (self._files if change.part.url is None else self._linked_files).add(change.part)

    def _merge_metadata(self) -> None:
        if self.response is None:
            return
        for name, value in self.response.metadata.items():
            if name not in self._metadata or self._metadata[name] != value:
                self._metadata[name] = self._new_metadata[name] = value
        self._id = str(self.response.metadata.get("id") or self._id)

    def _void_response(self) -> None:
        self._needs_line_break = self._needed_line_break
        growing = (self._output, self._reasoning, self._files, self._linked_files)
        were_read = [each.void_response() for each in growing]
        if any(were_read):
            self._replaces = True
            for each in growing:
                each.repeat_all()


class _CollectedResponse(Accumulator):
    """A response whose changes are collected for `TurnAccumulator.pop_delta`."""

    __slots__ = ("_collect",)

    def __init__(
        self,
        collect: Callable[[Accumulator, list[Change]], None],
        *,
        think_tags: bool,
        merge_choices: bool,
    ) -> None:
        super().__init__(think_tags=think_tags, merge_choices=merge_choices)
        self._collect = collect

    def add_all(self, chunks: Iterable[ChunkWrapper[Any]]) -> list[Change]:
        changes = super().add_all(chunks)
        self._collect(self, changes)
        return changes

    def close(self, error: UpstreamError | None = None) -> list[Change]:
        changes = super().close(error)
        self._collect(self, changes)
        return changes


def _choice(response: Accumulator) -> int:
    """Return the index of the choice that began first."""
    return next(iter(response.choices))

"""Folding one turn of an agent: the responses of a model, and the results of the tools that ran between them.

An agent asks the model, runs the tools that it calls, asks again with their results, and so on until an answer holds no
calls. `TurnAccumulator` is what has come out of that so far, as a whole and as what is new since somebody last asked.
It runs nothing itself::

    turn = TurnAccumulator(question, history=history)
    while True:
        async with model.stream(turn.history) as batches:
            async for chunks in batches:
                for chunk in chunks:
                    turn.add(chunk)
                yield turn.take_new()
        turn.end_response()
        if not turn.unanswered_calls:
            break
        turn.add_results(*await run(turn.unanswered_calls))
    yield turn.take_new()
"""

from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import msgspec

from tailrace.streaming.accumulator import Accumulator
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
from tailrace.wrappers.messages import from_utf8, to_utf8
from tailrace.wrappers.tool_ids import with_matched_ids

T = TypeVar("T")

# Kept: in Python 3.11 looking up a member costs more than appending a piece.
_TEXT = Channel.TEXT
_REASONING = Channel.REASONING


class TurnDelta(msgspec.Struct, frozen=True):
    """What a turn has brought since it was last asked; false when that is nothing.

    Attributes:
        output: Visible text.
        reasoning: Reasoning text.
        messages: Messages that are complete.
        metadata: Facts about the responses that are new or have changed.
        files: Files that came by value.
        links: Files that came by address.
        replaces: The model began a response anew, part of which had been given out: output, reasoning, files and
            links are all that the turn has brought so far, in place of what was given out before.
    """

    output: str = ""
    reasoning: str = ""
    messages: tuple[Message, ...] = ()
    metadata: dict[str, Any] = {}
    files: tuple[ContentPartFile, ...] = ()
    links: tuple[ContentPartFile, ...] = ()
    replaces: bool = False

    def __bool__(self) -> bool:
        return self != _NOTHING


_NOTHING = TurnDelta()


class _Growing(Generic[T]):
    """A list that grows, of which the items of the last response may turn out to be void."""

    __slots__ = ("_given", "_response", "add", "items")

    def __init__(self) -> None:
        self.items: list[T] = []
        self.add = self.items.append
        self._given = 0  # how many were taken
        self._response = 0  # how many there were before the last response

    def begin_response(self) -> None:
        self._response = len(self.items)

    def void_response(self) -> bool:
        """Drop the items of the last response; True when some of them were taken already."""
        del self.items[self._response :]
        return self._given > len(self.items)

    def take(self) -> list[T]:
        """The items that were not taken yet."""
        new = self.items[self._given :]
        self._given = len(self.items)
        return new

    def take_again(self) -> None:
        """Let the next `take` give all items."""
        self._given = 0


class _GrowingText:
    """As `_Growing`, of text, which is kept as UTF-8."""

    __slots__ = ("_given", "_response", "_text")

    def __init__(self) -> None:
        self._text = bytearray()
        self._given = 0
        self._response = 0

    def add(self, text: str) -> None:
        self._text += text.encode() if text.isascii() else to_utf8(text)

    def begin_response(self) -> None:
        self._response = len(self._text)

    def void_response(self) -> bool:
        del self._text[self._response :]
        return self._given > self._response

    def whole(self) -> str:
        return from_utf8(self._text)

    def take(self) -> str:
        new = from_utf8(self._text[self._given :])
        self._given = len(self._text)
        return new

    def take_again(self) -> None:
        self._given = 0


class TurnAccumulator:
    """Folds the responses and tool results of one turn. Sans-IO, O(1) a chunk.

    Feed every response with `add` and end it with `end_response`; put `add_results` between responses. A response
    begins with its first chunk. Where several choices were asked for, the turn is that of the first that says something.

    Args:
        *said: What begins the turn, usually one message of the user: the first of its new messages.
        history: The conversation before the turn; a tool call of the turn gets another id where it repeats one of
            this conversation, or of the turn.
        think_tags: The model writes its reasoning into the text, in ``<think>`` tags: part the two.
        merge_choices: As `Accumulator` takes it.

    Attributes:
        response: The response that is being received, else the last one; None before the first.
        metadata: Facts about the responses, merged; of the same key the last value.
        id: The last response's id that is not empty; empty when none had one.
    """

    __slots__ = (
        "_before",
        "_files",
        "_given_messages",
        "_ids",
        "_links",
        "_merge_choices",
        "_messages",
        "_new_metadata",
        "_output",
        "_reasoning",
        "_receiving",
        "_replaces",
        "_separate",
        "_separate_before",
        "_spent",
        "_think_tags",
        "_unanswered",
        "id",
        "metadata",
        "response",
    )

    def __init__(
        self,
        *said: Message,
        history: History | None = None,
        think_tags: bool = False,
        merge_choices: bool = False,
    ) -> None:
        self._before = history or History()
        self._think_tags = think_tags
        self._merge_choices = merge_choices
        self._messages = list(said)
        self._given_messages = 0
        self._ids: set[str] | None = None  # of all calls, once there is one to be compared with them
        self._output = _GrowingText()
        self._reasoning = _GrowingText()
        self._files: _Growing[ContentPartFile] = _Growing()
        self._links: _Growing[ContentPartFile] = _Growing()
        self._new_metadata: dict[str, Any] = {}
        self._replaces = False
        self._separate = False  # tools ran since the last visible text: the next begins in a new line
        self._separate_before = False  # the same when the last response began
        self._spent: Usage | None = None  # on the responses before the last
        self._receiving: Accumulator | None = None
        self._unanswered: tuple[ContentPartToolCall, ...] = ()
        self.response: Accumulator | None = None
        self.metadata: dict[str, Any] = {}
        self.id = ""

    # --- in ---------------------------------------------------------------------------------------------------------

    def add(self, chunk: ChunkWrapper[Any]) -> list[Change]:
        """Fold one chunk; return what it added to its response, in order. Never raises for what a provider sent."""
        response = self._receiving or self._begin()
        changes = response.add(chunk)
        if changes:
            self._take_changes(response, changes)
        details = chunk.details
        if details is not None and details.metadata:
            self._take_metadata(response, details.metadata)
        return changes

    def add_all(self, chunks: Iterable[ChunkWrapper[Any]]) -> list[Change]:
        """Fold chunks that arrived together; return what they added, as `add`."""
        changes: list[Change] = []
        for chunk in chunks:
            changes += self.add(chunk)
        return changes

    def fail_response(self, error: UpstreamError) -> None:
        """Something ended the response, and the transport knows what; `end_response` is still to be called."""
        response = self._receiving or self._begin()
        response.error = response.error or error

    def end_response(self, error: UpstreamError | None = None, *, keep_empty: bool = True) -> list[Change]:
        """The response is over: its message joins the new messages; return the text that was held back, if any.

        A message without content joins them too, if the model gave one: an answer may be empty. A response that
        broke off leaves the message that it had begun, but calls in it are not to be run.

        Args:
            error: What ended it, where the transport knows; see `Accumulator.close`.
            keep_empty: False leaves out a message without content that is no refusal: it is asked for again.
        """
        response = self._receiving or self._begin()
        changes = response.close(error)
        self._take_changes(response, changes)
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
            self._unanswered = tuple(call for call in message.tool_calls if call.kind != "server")
        return changes

    def drop_response(self) -> None:
        """Forget what the response that is being received has brought, since it is asked for again.

        Its metadata stays, and so does what it cost.
        """
        if self._receiving is not None:
            self._void_response()
            self._receiving = None

    def add_results(self, *results: ContentPartToolResult) -> None:
        """All results of the tools that the last response called: one message of role TOOL.

        Calls that none of them answers stay open, for somebody else to answer in a later turn.

        Raises:
            ValueError: A result does not answer one of `unanswered_calls`, two answer the same, or the results of
                the last response were given before.
        """
        given = self._messages and self._messages[-1].role is Role.TOOL
        open_ids = [] if given else [call.id for call in self._unanswered]
        for result in results:
            if result.id not in open_ids:
                raise ValueError(f"no call of the last response waits for the result {result.id!r}")
            open_ids.remove(result.id)
        if results:
            self._messages.append(Message(role=Role.TOOL, content=results))
            self._unanswered = tuple(call for call in self._unanswered if call.id in open_ids)
            self._separate = bool(self._output.whole())

    # --- out --------------------------------------------------------------------------------------------------------

    def take_new(self) -> TurnDelta:
        """What is new since this was last called. Costs what the new is long."""
        messages = tuple(self._messages[self._given_messages :])
        self._given_messages = len(self._messages)
        metadata, self._new_metadata = self._new_metadata, {}
        replaces, self._replaces = self._replaces, False
        return TurnDelta(
            output=self._output.take(),
            reasoning=self._reasoning.take(),
            messages=messages,
            metadata=metadata,
            files=tuple(self._files.take()),
            links=tuple(self._links.take()),
            replaces=replaces,
        )

    @property
    def output(self) -> str:
        """The visible text of all responses; a line break parts texts between which tools ran."""
        return self._output.whole()

    @property
    def last_text(self) -> str:
        """The visible text of the last response alone."""
        if self.response is None or not self.response.choices:
            return ""
        return self.response.choices[_choice(self.response)].text

    @property
    def reasoning(self) -> str:
        """The reasoning text of all responses, joined with nothing."""
        return self._reasoning.whole()

    @property
    def messages(self) -> tuple[Message, ...]:
        """The new messages that are complete: what began the turn, then the model's and one with results a round."""
        return tuple(self._messages)

    @property
    def history(self) -> History:
        """The conversation with the new messages: what the model is to be asked with next."""
        return self._before.with_message(*self._messages)

    @property
    def files(self) -> tuple[ContentPartFile, ...]:
        """The files of all responses that came by value."""
        return tuple(self._files.items)

    @property
    def links(self) -> tuple[ContentPartFile, ...]:
        """The files of all responses that came by address."""
        return tuple(self._links.items)

    @property
    def unanswered_calls(self) -> tuple[ContentPartToolCall, ...]:
        """The calls of the last response that somebody has yet to run; none of a response that broke off."""
        return self._unanswered

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the last response ended; None while it goes on, or when it did not say."""
        if self.response is None or not self.response.choices:
            return None
        return self.response.choices[_choice(self.response)].finish_reason

    @property
    def error(self) -> UpstreamError | None:
        """Why the last response is not whole; None as long as nothing says so."""
        return self.response.error if self.response is not None else None

    @property
    def usage(self) -> Usage | None:
        """Tokens of the last response; None when it reported none."""
        return self.response.usage if self.response is not None else None

    @property
    def total_usage(self) -> Usage | None:
        """Tokens of all responses together, each of which was a request of its own; None when none were reported.

        Its ``raw`` is empty.
        """
        return _sum(each for each in (self._spent, self.usage) if each is not None)

    # --- folding ----------------------------------------------------------------------------------------------------

    def _begin(self) -> Accumulator:
        self._spent = self.total_usage
        self._separate_before = self._separate
        self._unanswered = ()
        for growing in (self._output, self._reasoning, self._files, self._links):
            growing.begin_response()
        self.response = self._receiving = Accumulator(
            think_tags=self._think_tags, merge_choices=self._merge_choices
        )
        return self._receiving

    def _with_own_ids(self, message: Message) -> Message:
        """The message with an id for each call that no other of the conversation has."""
        if self._ids is None:
            said = (*self._before.conversation, *self._messages)
            self._ids = {call.id for each in said for call in each.tool_calls}
        ids = {call.id for call in message.tool_calls}
        own = "" not in ids and len(ids) == len(message.tool_calls) and self._ids.isdisjoint(ids)
        if not own or message.tool_results:
            # Only then: this goes through the whole conversation.
            *_, message = with_matched_ids(self.history.with_message(message)).conversation
        self._ids.update(call.id for call in message.tool_calls)
        return message

    def _take_changes(self, response: Accumulator, changes: list[Change]) -> None:
        for change in changes:
            if change.choice != _choice(response):
                continue
            if change.restarts:
                self._void_response()
            elif change.channel is _TEXT:
                if self._separate:
                    self._separate = False
                    self._output.add("\n")
                self._output.add(change.text)
            elif change.channel is _REASONING:
                self._reasoning.add(change.text)
            elif isinstance(change.part, ContentPartFile):
                (self._files if change.part.url is None else self._links).add(change.part)

    def _take_metadata(self, response: Accumulator, names: Iterable[str]) -> None:
        for name in names:
            value = response.metadata[name]
            if name not in self.metadata or self.metadata[name] != value:
                self.metadata[name] = self._new_metadata[name] = value
        self.id = str(response.metadata.get("id") or self.id)

    def _void_response(self) -> None:
        self._separate = self._separate_before
        growing = (self._output, self._reasoning, self._files, self._links)
        taken = [each.void_response() for each in growing]
        if any(taken):
            self._replaces = True
            for each in growing:
                each.take_again()


def _choice(response: Accumulator) -> int:
    """The choice that began first."""
    return next(iter(response.choices))


def _sum(usages: Iterable[Usage]) -> Usage | None:
    total: Usage | None = None
    for usage in usages:
        given, made, both = (
            (total.input_tokens, total.output_tokens, total.total_tokens) if total else (0, 0, 0)
        )
        total = Usage(given + usage.input_tokens, made + usage.output_tokens, both + usage.total_tokens)
    return total

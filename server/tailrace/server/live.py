"""A task that is alive in this process: being worked on, followed by somebody, or not all written yet."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import anyio
from opentelemetry.trace import SpanContext

from tailrace.server.store import PushConfig, SendKey
from tailrace.streaming.a2a.errors import TaskNotFoundError
from tailrace.streaming.a2a.models import Message
from tailrace.streaming.a2a.requests import SendMessageRequest
from tailrace.streaming.lifecycle import TaskState
from tailrace.streaming.log import TaskLog
from tailrace.streaming.task import Event, TaskRecord
from tailrace.streaming.updates import StatusUpdate
from tailrace.wrappers import StoreError


@dataclass(eq=False, slots=True, weakref_slot=True)
class LiveTask:
    """A task with its log, and what is going on with it.

    Attributes:
        record: The task as of its last event, which may not be kept yet.
        owner: Whose it is.
        log: What is kept, and shown to readers.
        running: A turn is under way, or about to be.
        waiting: The messages that no turn has begun with yet, the oldest first.
        scope: Cancelled to end the turn.
        ending: How the turn is to end when its scope is cancelled.
        said: Messages to be kept with the next event.
        rounds_said: How many answers of the turn are in the conversation, which a crash interrupted after them.
        round_calls: The ids of the calls that the last message has which joined the conversation.
        webhooks: Webhooks to be kept with the next event, and told of it.
        send_key: What the caller named the message by that makes the next event, to be kept with it.
        error: Why the task was given up: its events cannot be kept.
        followed: Another process writes it; the record and the log are what is heard of it.
        moved: This object is the task no more, as somebody else writes it by now: it is to be looked for again.
    """

    record: TaskRecord
    owner: str
    log: TaskLog
    running: bool = False
    waiting: list["Waiting"] = field(default_factory=list["Waiting"])  # few: an empty deque takes 0.8 KB
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ending: StatusUpdate | None = None
    said: list[Message] = field(default_factory=list[Message])
    rounds_said: int = 0
    round_calls: frozenset[str] = frozenset()
    webhooks: list[PushConfig] = field(default_factory=list[PushConfig])
    send_key: SendKey | None = None
    error: StoreError | None = None
    followed: bool = False
    moved: bool = False

    def begin_turn(self) -> None:
        """A turn is under way from now on, and can be cancelled."""
        self.running = True
        self.scope = anyio.CancelScope()
        self.ending = None


@dataclass(frozen=True, slots=True)
class CallContext:
    """How a caller's message came: what counts beside the request itself, on whichever node it is taken.

    Attributes:
        named_in: The version of the protocol in which the caller names its tasks: an id that is not known begins a
            task of that id. Empty where the server names them.
        spoken: The version of the protocol that a webhook of the request is to be told in.
        extensions: URIs of the extensions that the request uses.
        send_key: What the caller names the message by. One that was taken under the same name is not taken again:
            the task that it made is followed, as it stands by now. The name is kept as long as the task. Empty for none.
        fingerprint: Tells the request that was named so from others, where the message does not; see
            `Engine.sent_as`.
    """

    named_in: str = ""
    spoken: str = "1.0"
    extensions: tuple[str, ...] = ()
    send_key: str = ""
    fingerprint: str = ""


PLAIN_CALL = CallContext()
"""Of a message of which nothing is to be told."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A message of the caller, until its turn comes.

    Attributes:
        message: With the ids of the task.
        request: The request that brought it.
        extensions: URIs of the extensions that the request uses.
        number: 1 for the task's first message, 2 for the second, ….
        is_said: It is in the conversation already: a crash interrupted its turn.
        preceding: What was said before it, as its caller tells it; the conversation is a new one.
        origin: The trace that the request belongs to; None for none.
    """

    message: Message
    request: SendMessageRequest
    extensions: tuple[str, ...]
    number: int
    is_said: bool = False
    preceding: tuple[Message, ...] = ()
    origin: SpanContext | None = None

    @property
    def in_conversation(self) -> bool:
        """Something may have been said before it."""
        named = self.request.message
        return bool(self.number > 1 or named.context_id or named.task_id)


@dataclass(eq=False, slots=True)
class Reply:
    """What a turn that may answer directly has come to.

    Attributes:
        message: The direct answer, once it is there; a turn without one is a task.
        ready: It is known which of the two it is.
    """

    message: Message | None = None
    ready: anyio.Event = field(default_factory=anyio.Event)


class ReadEvents(Protocol):
    """Gives a task's events after a number."""

    def read(self, live: LiveTask, after: int, *, max_lag: int | None = None) -> Awaitable[list[Event]]:
        """Read on; see `TaskRegistry.read`."""
        ...

    def find(self, task_id: str, owner: str) -> Awaitable[LiveTask]:
        """Look for a task that has moved; see `TaskRegistry.find`."""
        ...


class Subscription:
    """A reader of one task: a number, and where to go on from it.

    Attributes:
        task_id: The task.
        take: Given the newest events in the place of `batches`, while that waits for them; see `EventStream.take_at_once`.
    """

    def __init__(
        self,
        live: LiveTask,
        after: int,
        first: Event | None,
        *,
        tasks: "ReadEvents",
        max_lag: int,
    ) -> None:
        self.task_id = live.record.id
        self.take: Callable[[Sequence[Event]], bool] | None = None
        self._tasks = tasks
        self._max_lag = max_lag
        self._live = live
        self._after = after
        self._first = first

    @property
    def after(self) -> int:
        """The number of the last event that was given, or was known to be."""
        return self._after

    @property
    def first(self) -> Event | None:
        """What is given before anything else."""
        return self._first

    @property
    def artifact_ids(self) -> Sequence[str]:
        """The artifacts that the task has by now, in the order of their making."""
        return self._live.record.artifact_ids

    async def begun(self) -> None:
        """Wait until the first event is durable; returns too when it never will be, which `batches` then says."""
        if self._first is None:  # which is durable
            await self._live.log.reach(self._after + 1)

    async def batches(
        self, *, until_interrupted: bool = False, holding: AbstractContextManager[object] | None = None
    ) -> AsyncGenerator[list[Event]]:
        """The events, in batches of what is there, until the task is over.

        Whoever begins at an earlier event is given every one from there. A reader that has caught up once and then
        falls further behind than the bound is given the task as it stands (`TaskRecord.overview`), and goes on
        from there: it has missed nothing that it still needs.

        Args:
            until_interrupted: End also when the task waits for its caller.
            holding: Left when the events end, or whoever reads them closes them.

        Raises:
            StoreError: Events could not be kept or read; what was yielded before is kept.
        """
        with holding or nullcontext():
            first, self._first = self._first, None  # which may be as long as the task
            if first is not None:
                state = first.state
                yield [first]
                del first
                if until_interrupted and ends_turn(state):
                    return
            max_lag: int | None = None
            while True:
                events = self._live.log.newest(self._after)
                if events is None:
                    max_lag = self._max_lag  # it has caught up
                    await self._live.log.change(
                        None if self.take is None else partial(self._take, self.take, until_interrupted)
                    )
                    continue
                if not events:
                    events = await self._next(max_lag)
                    if not events:
                        return
                if until_interrupted:
                    for at, event in enumerate(events):
                        if event.state is not None and ends_turn(event.state):
                            yield events[: at + 1]
                            return
                self._after = events[-1].number
                # A log that another process fills may be behind the store.
                if self._after >= self._live.log.number:
                    max_lag = self._max_lag
                yield events

    def _take(self, take: Callable[[Sequence[Event]], bool], until_interrupted: bool) -> bool:
        """Have what is new taken at once; False where `batches` has to see to it."""
        events = self._live.log.newest(self._after)
        if not events:
            return events is None
        if until_interrupted and any(event.state is not None for event in events):
            return False
        if not take(events):
            return False
        self._after = events[-1].number
        return True

    async def _next(self, max_lag: int | None) -> list[Event]:
        while True:
            events = await self._tasks.read(self._live, self._after, max_lag=max_lag)
            if events or not self._live.moved:
                return events
            try:
                self._live = await self._tasks.find(self.task_id, self._live.owner)
            except TaskNotFoundError:  # not even its beginning was kept
                raise self._live.error or StoreError("the task is not there any more") from None


def ends_turn(state: TaskState | None) -> bool:
    """Whether a turn is over once its task is in this state."""
    return state is not None and (state.terminal or state.interrupted)

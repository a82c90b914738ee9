"""A task that is alive in this process: being worked on, followed by somebody, or not all written yet."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field

import anyio

from tailrace.streaming.a2a.models import Message
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
        running: A turn is under way.
        scope: Cancelled to end the turn.
        ending: How the turn is to end when its scope is cancelled.
        said: Messages to be kept with the next event.
        error: Why the task was given up: its events cannot be kept.
    """

    record: TaskRecord
    owner: str
    log: TaskLog
    running: bool = False
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    ending: StatusUpdate | None = None
    said: list[Message] = field(default_factory=list[Message])
    error: StoreError | None = None

    def begin_turn(self) -> None:
        """A turn is under way from now on, and can be cancelled."""
        self.running = True
        self.scope = anyio.CancelScope()
        self.ending = None


@dataclass(eq=False, slots=True)
class Reply:
    """What a turn that may answer directly has come to.

    Attributes:
        message: The direct answer, once it is there; a turn without one is a task.
        ready: It is known which of the two it is.
    """

    message: Message | None = None
    ready: anyio.Event = field(default_factory=anyio.Event)


class Subscription:
    """A reader of one task: a number, and where to go on from it.

    Attributes:
        task_id: The task.
    """

    def __init__(
        self,
        live: LiveTask,
        after: int,
        first: Event | None,
        *,
        read: Callable[[LiveTask, int], Awaitable[list[Event]]],
    ) -> None:
        self.task_id = live.record.id
        self._read = read
        self._live = live
        self._after = after
        self._first = first

    async def batches(self, *, until_interrupted: bool = False) -> AsyncGenerator[list[Event]]:
        """The events, in batches of what is there, until the task is over.

        Args:
            until_interrupted: End also when the task waits for its caller.

        Raises:
            StoreError: Events could not be kept or read; what was yielded before is kept.
        """
        if self._first is not None:
            yield [self._first]
        while events := await self._read(self._live, self._after):
            ends = next((at for at, event in enumerate(events) if ends_turn(event.state)), None)
            if until_interrupted and ends is not None:
                yield events[: ends + 1]
                return
            self._after = events[-1].number
            yield events


def ends_turn(state: TaskState | None) -> bool:
    """Whether a turn is over once its task is in this state."""
    return state is not None and (state.terminal or state.interrupted)

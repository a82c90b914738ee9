"""The stream of events in the response to a request, for all protocols."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from tailrace.server.runtime.active_task import Subscription, continues_turn, read_batches
from tailrace.server.runtime.limits import Permit
from tailrace.server.store.store import SendKey
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.models import Message, StreamResponse, Task
from tailrace.wrappers.concurrency.worker_thread import json_text_cost, run_bounded

_TASK = b'{"task":'  # the beginning of an event that contains a task


class EventStream:
    """The events of the response to one request.

    Args:
        source: The subscription to the task, or the agent's direct message.
        history_length: Maximum number of messages in the history of the task; None for all.
        until_interrupted: True to also end the stream when the task waits for its caller.
        permit: The permit to release at the end of the stream; None if the stream needs none.

    Attributes:
        message: The agent's direct message, or None. A direct message is the only event of the stream, and has the number 0.
        read: Returns the next events, like `Subscription.read`; an empty sequence after the last event. The result may contain
            events after the event that closes the stream.
    """

    def __init__(
        self,
        source: Subscription | Message,
        *,
        history_length: int | None = None,
        until_interrupted: bool = False,
        permit: Permit | None = None,
    ) -> None:
        self.message = self._direct = source if isinstance(source, Message) else None
        self._subscription = None if isinstance(source, Message) else source
        self._history_length = history_length
        self._until_interrupted = until_interrupted
        self._permit = permit or Permit.none()
        self.read: Callable[[], Awaitable[Sequence[Event]]] = self._read_rewritten
        if self._subscription is not None and history_length is None:
            self.read = self._subscription.read  # without a wrapper, because it is called for each token

    @property
    def task_id(self) -> str:
        """The id of the task; empty for a direct message."""
        return self._subscription.task_id if self._subscription is not None else ""

    @property
    def repeated_key(self) -> SendKey | None:
        """The idempotency key of the request, if its message was accepted before; otherwise None."""
        return self._subscription.repeated_key if self._subscription is not None else None

    @property
    def artifact_ids(self) -> Sequence[str]:
        """The ids of the task's artifacts, in the order of their creation."""
        return self._subscription.artifact_ids if self._subscription is not None else ()

    def disable_snapshots(self) -> None:
        """See `Subscription.disable_snapshots`."""
        if self._subscription is not None:
            self._subscription.disable_snapshots()

    async def wait_for_start(self) -> None:
        """Wait until the message of the request is persisted. If the wait is cancelled or fails, close the stream."""
        if self._subscription is not None:
            try:
                await self._subscription.wait_for_start()
            except BaseException:
                self.close()
                raise

    async def _read_rewritten(self) -> Sequence[Event]:
        if self._subscription is None:
            message, self._direct = self._direct, None
            return [Event(0, StreamResponse(message=message).to_json())] if message is not None else []
        events = await self._subscription.read()
        if self._history_length is not None and events and events[0].body.startswith(_TASK):
            first, *others = events
            short = await run_bounded(
                json_text_cost(first.body), _shorten_history, first, self._history_length
            )
            return [short, *others]
        return events

    def batches(self) -> AsyncGenerator[Sequence[Event]]:
        """Yield batches of events up to the event that closes the stream, then close the stream.

        Raises:
            StoreError: Later events could not be persisted or read.
        """
        return read_batches(self.read, self.closes, self.close)

    def close(self) -> None:
        """Release the stream's permit."""
        self._permit.release()

    def closes(self, event: Event) -> bool:
        """Return whether an event is the last event of this stream."""
        if event.state is None:
            return self._subscription is None
        if event.state.terminal:
            return True
        return self._until_interrupted and event.state.interrupted and not continues_turn(event)


def newest_messages(task: Task, length: int) -> tuple[Message, ...]:
    """Return the newest messages of a task's history, at most ``length``, oldest first."""
    return task.history[-length:] if length else ()


def _shorten_history(event: Event, length: int) -> Event:
    task = StreamResponse.from_json(event.body).task
    if task is None:
        return event
    short = task.model_copy(update={"history": newest_messages(task, length)})
    return Event(event.number, StreamResponse(task=short).to_json(), event.state)

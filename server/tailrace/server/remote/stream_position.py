"""The events of a remote task, and the position of a client in them."""

from dataclasses import dataclass
from typing import Any

from tailrace.server.remote.response_validation import MISSING_ID
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import StreamResponse, Task
from tailrace.streaming.a2a.version_codec import Operation


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event of a stream.

    Attributes:
        response: The event. A task, or an artifact without ``append``, replaces earlier content.
        id: The SSE id of the event, after which the stream can be resumed; empty if the agent sends no id.
        raw: The event as JSON of A2A 1.0, with all members that the agent sent.
    """

    response: StreamResponse
    id: str
    raw: Any


class StreamPosition:
    """Position in the event stream of a task.

    Attributes:
        operation: The operation whose response is the current stream.
        task_id: The id of the task; empty until it is known.
        last_id: The id of the last event; empty if the events have no ids.
        settled: True if the stream may end here.
        ended: True if the client expects no further event.
        awaits_credentials: True if the task requires credentials. The agent may continue the stream when it has them.
    """

    def __init__(self, task_id: str = "", last_id: str = "") -> None:
        self.operation = Operation.SUBSCRIBE_TO_TASK
        self.task_id = task_id
        self.last_id = last_id
        self.settled = False
        self.ended = False
        self.awaits_credentials = False
        self._last_task: Task | None = None

    def advance(self, event: StreamEvent) -> bool:
        """Record an event. Return True if the event has new content."""
        response = event.response
        self.last_id = event.id or self.last_id
        update = response.artifact_update or response.status_update
        if response.message is not None:
            self.settled = self.ended = True
        elif response.task is not None:
            self.task_id = response.task.id
            # The first task of a stream may still have the state from before the message.
            streamed = self.operation is Operation.SEND_STREAMING_MESSAGE
            self._enter(response.task.status.state, waits=not streamed)
            # An agent may send the same task for each attempt, and then close the connection.
            known, self._last_task = self._last_task, response.task
            return response.task != known
        elif update is not None and update.task_id != MISSING_ID:
            self.task_id = update.task_id
        if response.status_update is not None:
            self._enter(response.status_update.status.state, waits=True)
        return True

    def _enter(self, state: TaskState, *, waits: bool) -> None:
        self.settled = ends_stream(state)
        streamed = self.operation in (Operation.SEND_STREAMING_MESSAGE, Operation.SUBSCRIBE_TO_TASK)
        self.awaits_credentials = state is TaskState.AUTH_REQUIRED and streamed
        self.ended = state.terminal or (state.interrupted and waits and not self.awaits_credentials)


def ends_stream(state: TaskState) -> bool:
    """Return True if a stream may end in this state of the task."""
    return state.terminal or state.interrupted

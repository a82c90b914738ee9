"""The events of a task's log."""

import msgspec

from tailrace.streaming.a2a.lifecycle import TaskState


class Event(msgspec.Struct, frozen=True, gc=False):
    """One entry of a task's log.

    Attributes:
        number: 1, 2, 3, … without gaps: one for each mutation of the task.
        body: The A2A 1.0 ``StreamResponse`` as JSON, encoded once and shared by all readers.
        state: The state the task is in from this event on, where the event changed its status; else None.
    """

    number: int
    body: bytes
    state: TaskState | None = None

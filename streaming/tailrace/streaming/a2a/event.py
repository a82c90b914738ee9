"""The events of a task's log."""

import msgspec

from tailrace.streaming.a2a.lifecycle import TaskState


class Event(msgspec.Struct, frozen=True, gc=False):
    """One event of a task's log.

    Attributes:
        number: 1, 2, 3, … without gaps.
        body: An A2A 1.0 ``StreamResponse`` in JSON, which is encoded once for all subscribers.
        state: The state of the task after this event; None if the event does not change the status.
    """

    number: int
    body: bytes
    state: TaskState | None = None

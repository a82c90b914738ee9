"""The entries in the log of a task."""

import msgspec

from tailrace.streaming.a2a.lifecycle import TaskState


class Event(msgspec.Struct, frozen=True, gc=False):
    """One entry of a task's log.

    Attributes:
        number: The number of the event in the log: 1, 2, 3, … without gaps.
        body: The event as an A2A 1.0 ``StreamResponse`` in JSON. It is encoded once for all subscribers.
        state: The state of the task after this event; None if the event does not change the status.
    """

    number: int
    body: bytes
    state: TaskState | None = None

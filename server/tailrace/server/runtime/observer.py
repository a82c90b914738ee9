"""The interface of observers of a server, which do nothing by default.

All notifications are for turns, failed commits, streams or refusals. There are none for single events: every token would pay for
them.
"""

from contextvars import ContextVar
from types import TracebackType
from typing import Literal, Self

from opentelemetry.trace import SpanContext

from tailrace.server.runtime.active_task import ActiveTask
from tailrace.streaming.task.updates import StatusUpdate

StreamKind = Literal["message", "subscription", "resume"]
"""The kind of a stream: of a message, of a task from now on, or of a task after a given event."""


class TurnWatch:
    """Observes one turn, as a context manager around it, in the task that runs it.

    Attributes:
        ending: The last status of the turn; None if it was interrupted, or had a direct response.
        direct: The response was a message without a task.
    """

    ending: StatusUpdate | None = None
    direct: bool = False

    def failed(self, error: BaseException) -> None:
        """An error ends the turn."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The turn has ended."""


class Observer:
    """Receives notifications of a server's work."""

    def origin(self) -> SpanContext | None:
        """Return the trace of the current request; None for none."""
        return None

    def turn(self, active: ActiveTask, external_context_id: str = "") -> TurnWatch:
        """A turn begins, for the oldest waiting message of a task.

        Args:
            active: The task.
            external_context_id: The identifier of its conversation in other systems, see `Turn.external_context_id`.
        """
        return TurnWatch()

    def commit_failed(self) -> None:
        """An attempt to commit failed."""

    def streaming(self, kind: StreamKind) -> None:
        """A stream begins."""

    def refused(self, error: Exception) -> None:
        """The response to a request is an error."""

    def waited(self, seconds: float) -> None:
        """A call to the provider had to wait for a permit."""

    def broker_entry_rejected(self, purpose: str) -> None:
        """An entry of the broker was skipped: an ``event`` or a ``command`` that is malformed or not authentic."""

    def webhook_tried(self) -> None:
        """An attempt to deliver a notification failed."""

    def webhook_sent(self, *, taken: bool) -> None:
        """A webhook accepted a notification, or the notification was given up."""


NO_OBSERVER = Observer()
"""An observer that does nothing."""

OBSERVER: ContextVar[Observer] = ContextVar("tailrace_observer", default=NO_OBSERVER)
"""The observer of the current request."""

"""The interface of observers, which record turns, commits, streams and errors in metrics and traces.

By default, the methods do nothing. There is no method for individual events, because it would be called for each token.
"""

from contextvars import ContextVar
from types import TracebackType
from typing import Literal, Self

from opentelemetry.trace import SpanContext

from tailrace.server.runtime.active_task import ActiveTask
from tailrace.server.store.store import UsageRecord
from tailrace.streaming.task.updates import StatusUpdate

StreamKind = Literal["message", "subscription", "resume"]
"""The kind of request that began a stream. A resume is a subscription after a given event."""


class TurnWatch:
    """Observes one turn, in the asyncio task that runs the turn.

    Attributes:
        ending: The last status of the turn; None if the turn was suspended or had a direct response.
        direct: True if the response was a message without a task.
    """

    ending: StatusUpdate | None = None
    direct: bool = False

    def failed(self, error: BaseException) -> None:
        """Record that an error ends the turn."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Record that the turn has ended."""


class Observer:
    """Records the work of a server."""

    def origin(self) -> SpanContext | None:
        """Return the trace of the current request, or None."""
        return None

    def turn(self, active: ActiveTask, external_context_id: str = "") -> TurnWatch:
        """Return an observer of the turn that begins for the oldest waiting message of a task."""
        return TurnWatch()

    def commit_failed(self) -> None:
        """Record that an attempt to commit failed."""

    def streaming(self, kind: StreamKind) -> None:
        """Record that a stream begins."""

    def error_occurred(self, error: Exception) -> None:
        """Record an error of a request."""

    def waited_for_call(self, seconds: float) -> None:
        """Record that a call to the provider waited for a permit."""

    def usage_recorded(self, record: UsageRecord) -> None:
        """Record the usage of an attempt."""

    def broker_entry_rejected(self, purpose: str) -> None:
        """Record that a malformed or forged entry of the broker was skipped. ``purpose`` is ``event`` or ``command``."""

    def webhook_attempt_failed(self) -> None:
        """Record that an attempt to deliver a notification failed."""

    def webhook_delivered(self, *, accepted: bool) -> None:
        """Record that a webhook accepted a notification, or that all attempts failed."""


NO_OBSERVER = Observer()
"""An observer that does nothing."""

OBSERVER: ContextVar[Observer] = ContextVar("tailrace_observer", default=NO_OBSERVER)
"""The observer of the current request."""

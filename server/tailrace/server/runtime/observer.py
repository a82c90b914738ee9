"""The interface through which a server reports turns, commits, streams and errors to metrics and traces.

The methods do nothing by default; `tailrace.server.observability.telemetry.Telemetry` implements them. There is no method for
single events, since it would be called for each token.
"""

from contextvars import ContextVar
from types import TracebackType
from typing import Literal, Self

from opentelemetry.trace import SpanContext

from tailrace.server.runtime.active_task import ActiveTask
from tailrace.server.store.store import UsageRecord
from tailrace.streaming.task.updates import StatusUpdate

StreamKind = Literal["message", "subscription", "resume"]
"""The request that began a stream: a message, a subscription, or a subscription after a given event (resume)."""


class TurnWatch:
    """Observes one turn. The engine enters it as a context manager in the asyncio task that runs the turn.

    Attributes:
        ending: The last status of the turn; None if the turn was interrupted or had a direct response.
        direct: True if the response was a message without a task.
    """

    ending: StatusUpdate | None = None
    direct: bool = False

    def failed(self, error: BaseException) -> None:
        """Report that an error ends the turn."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Report that the turn has ended."""


class Observer:
    """Receives notifications of a server's work."""

    def origin(self) -> SpanContext | None:
        """Return the trace of the current request; None if the request is not traced."""
        return None

    def turn(self, active: ActiveTask, external_context_id: str = "") -> TurnWatch:
        """Report that a turn begins for the oldest waiting message of a task, and return its observer.

        Args:
            active: The task.
            external_context_id: The identifier of the conversation in other systems, see `Turn.external_context_id`.
        """
        return TurnWatch()

    def commit_failed(self) -> None:
        """Report that an attempt to commit failed."""

    def streaming(self, kind: StreamKind) -> None:
        """Report that a stream begins."""

    def refused(self, error: Exception) -> None:
        """Report that a request is rejected with an error."""

    def waited(self, seconds: float) -> None:
        """Report that a call to the provider waited for a permit.

        Args:
            seconds: The duration of the wait.
        """

    def usage_recorded(self, record: UsageRecord) -> None:
        """Report the usage of an attempt of a model call."""

    def broker_entry_rejected(self, purpose: str) -> None:
        """Report that an entry of the broker is malformed or not authentic and was skipped.

        Args:
            purpose: ``event`` or ``command``.
        """

    def webhook_tried(self) -> None:
        """Report that an attempt to deliver a notification failed."""

    def webhook_sent(self, *, taken: bool) -> None:
        """Report the end of a delivery.

        Args:
            taken: True if the webhook accepted the notification; False if all attempts failed.
        """


NO_OBSERVER = Observer()
"""An observer that does nothing."""

OBSERVER: ContextVar[Observer] = ContextVar("tailrace_observer", default=NO_OBSERVER)
"""The observer of the current request."""

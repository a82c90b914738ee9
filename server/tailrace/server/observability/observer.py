"""Who is told of what the server does; by itself nobody, and nothing is done.

Everything here happens once a turn, a commit, a stream or a refusal. What happens once an event has no place here: a
token would pay for it.
"""

from contextvars import ContextVar
from types import TracebackType
from typing import Literal, Self

from opentelemetry.trace import SpanContext

from tailrace.server.live import LiveTask
from tailrace.streaming.updates import StatusUpdate

StreamKind = Literal["message", "subscription", "resume"]
"""What a stream is for: the answer to a message, a task from now on, or a task from a given event on."""


class TurnWatch:
    """Watches one turn, as a context manager around it, in the task that runs it.

    Attributes:
        ending: How the turn ended; None where it was broken off, or answered directly.
        direct: It was answered by a message without a task.
    """

    ending: StatusUpdate | None = None
    direct: bool = False

    def failed(self, error: BaseException) -> None:
        """Something went wrong that ends the turn."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """It is over."""


class Observer:
    """Told of what the server does."""

    def origin(self) -> SpanContext | None:
        """Which trace the request belongs to that is being answered; None for none."""
        return None

    def turn(self, live: LiveTask) -> TurnWatch:
        """A turn begins, for the oldest message of the task that waits."""
        return TurnWatch()

    def committed(self, events: int, lag: float) -> None:
        """A transaction was kept.

        Args:
            events: How many events are in it.
            lag: Seconds since the oldest of them was handed over.
        """

    def commit_failed(self) -> None:
        """A try to commit a transaction failed."""

    def streaming(self, kind: StreamKind) -> None:
        """A stream begins."""

    def refused(self, error: Exception) -> None:
        """A request is answered by an error."""

    def waited(self, seconds: float) -> None:
        """A call to the provider had to wait for others."""

    def webhook_tried(self) -> None:
        """A try to tell a webhook something failed."""

    def webhook_told(self, *, taken: bool) -> None:
        """A webhook took a notification, or it was given up."""


NO_OBSERVER = Observer()
"""Nobody is told."""

OBSERVER: ContextVar[Observer] = ContextVar("tailrace_observer", default=NO_OBSERVER)
"""Who is told of the request that is being answered."""

"""Watching what agents do: once an answer of a model, and once a call of a tool; never once a chunk.

Whoever wants to know (a tracer, a counter) sets a `RunObserver` for the context in which agents run; in any other context
nobody watches, and nothing is done::

    token = RUN_OBSERVER.set(observer)
    try:
        await agent.run("…")
    finally:
        RUN_OBSERVER.reset(token)
"""

from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from types import TracebackType
from typing import Self

from tailrace.streaming.turn import TurnAccumulator
from tailrace.wrappers import ContentPartToolCall, ContentPartToolResult
from tailrace.wrappers.model import ChunkBatches, Model
from tailrace.wrappers.options import RequestOptions


class AnswerWatch:
    """Watches one answer of a model, as a context manager around it; by itself it does nothing.

    Leaving the block by an exception means that the answer was given up: by GeneratorExit or a cancellation where
    nobody wants it any more.

    Attributes:
        chunks: How many have come.
    """

    chunks: int = 0

    def sent(
        self, stream: AbstractAsyncContextManager[ChunkBatches]
    ) -> AbstractAsyncContextManager[ChunkBatches]:
        """The request as it is to be sent: it goes out when what is returned is entered."""
        return stream

    def first_chunk(self) -> None:
        """The first chunks have come."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """It is over; what it has come to stands in the turn."""


class CallWatch:
    """Watches one call of a tool, as a context manager around it; by itself it does nothing.

    Attributes:
        result: What the tool answered; None as long as it has not.
    """

    result: ContentPartToolResult | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """It is over."""


class RunObserver:
    """Told of what agents do; by itself it watches nothing."""

    def answering(self, model: Model, options: RequestOptions, turn: TurnAccumulator) -> AnswerWatch:
        """A model is about to be asked.

        Args:
            model: The model.
            options: What it is asked for.
            turn: Folds the answer; its history is what the model is told.
        """
        return AnswerWatch()

    def calling(self, call: ContentPartToolCall) -> CallWatch:
        """A tool is about to be called."""
        return CallWatch()


NO_OBSERVER = RunObserver()
"""Nobody watches."""

RUN_OBSERVER: ContextVar[RunObserver] = ContextVar("tailrace_run_observer", default=NO_OBSERVER)
"""Who watches the agents that run in this context."""

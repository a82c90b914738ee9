"""Instrumentation of agents: notifications for each model response and tool call, never for each chunk.

Set a `RunObserver` for the context in which agents run; without one nothing is recorded::

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

from tailrace.streaming.turn_accumulator import TurnAccumulator
from tailrace.wrappers import ContentPartToolCall, ContentPartToolResult
from tailrace.wrappers.conversion.options import RequestOptions
from tailrace.wrappers.model import ChunkBatches, Model


class AnswerWatch:
    """Observes one response of a model, as a context manager around it; does nothing by default.

    An exception that leaves the block means that the response was cancelled or closed early (GeneratorExit).

    Attributes:
        chunks: The number of received chunks.
    """

    chunks: int = 0

    def sent(
        self, stream: AbstractAsyncContextManager[ChunkBatches]
    ) -> AbstractAsyncContextManager[ChunkBatches]:
        """Wrap the request; it is sent when the returned context manager is entered."""
        return stream

    def first_chunk(self) -> None:
        """The first chunks arrived."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The response has ended; the turn has its content."""


class CallWatch:
    """Observes one call of a tool, as a context manager around it; does nothing by default.

    Attributes:
        result: The result of the tool; None before it has one.
    """

    result: ContentPartToolResult | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The call has ended."""


class RunObserver:
    """Receives notifications from agents; does nothing by default."""

    def answering(self, model: Model, options: RequestOptions, turn: TurnAccumulator) -> AnswerWatch:
        """A request to a model is about to be sent.

        Args:
            model: The model.
            options: The options of the request.
            turn: Folds the response; its history is the request's.
        """
        return AnswerWatch()

    def calling(self, call: ContentPartToolCall) -> CallWatch:
        """A tool is about to be called."""
        return CallWatch()


NO_OBSERVER = RunObserver()
"""An observer that does nothing."""

RUN_OBSERVER: ContextVar[RunObserver] = ContextVar("tailrace_run_observer", default=NO_OBSERVER)
"""The observer of agents in this context."""

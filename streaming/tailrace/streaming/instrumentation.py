"""Interface for the instrumentation of agents: notifications of model responses, continuations and tool calls.

By default, nothing is recorded. To record something, set a `RunObserver` in the context in which agents run::

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

from tailrace.streaming.accumulator import Attempt
from tailrace.streaming.turn_accumulator import TurnAccumulator
from tailrace.wrappers import ContentPartToolCall, ContentPartToolResult
from tailrace.wrappers.continuation import Route
from tailrace.wrappers.model import ChunkBatches, Model
from tailrace.wrappers.request_options import RequestOptions


class ResponseObservation:
    """Context manager around one attempt: a request to a model, and its response. This base class does nothing.

    The block ends with an exception if the attempt was cancelled, or was closed before its end (``GeneratorExit``).

    Attributes:
        chunks: The number of received chunks.
    """

    chunks: int = 0

    def sent(
        self, stream: AbstractAsyncContextManager[ChunkBatches]
    ) -> AbstractAsyncContextManager[ChunkBatches]:
        """Wrap a request. The request is sent when the returned context manager is entered."""
        return stream

    def first_chunk(self) -> None:
        """Record that the first chunks have arrived."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Record that the attempt has ended."""


class ToolCallObservation:
    """Context manager around one call of a tool. This base class does nothing.

    Attributes:
        result: The result of the tool; None before the tool has returned a result.
    """

    result: ContentPartToolResult | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Record that the call has ended."""


class RunObserver:
    """Receiver of notifications from agents. This base class does nothing."""

    def observe_response(
        self, model: Model, options: RequestOptions, turn: TurnAccumulator
    ) -> ResponseObservation:
        """Return the context manager for an attempt, before its request is sent.

        The history of ``turn`` is the history of the request.
        """
        return ResponseObservation()

    def continued(self, attempt: Attempt, model: str, route: Route) -> None:
        """Record that another attempt, of a model ``provider:model``, continues an interrupted one."""

    def observe_call(self, call: ContentPartToolCall) -> ToolCallObservation:
        """Return the context manager for a tool call, before the tool is called."""
        return ToolCallObservation()


NO_OBSERVER = RunObserver()
"""An observer that does nothing."""

RUN_OBSERVER: ContextVar[RunObserver] = ContextVar("tailrace_run_observer", default=NO_OBSERVER)
"""The observer for agents that run in this context."""

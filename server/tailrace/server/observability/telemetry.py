"""The observer that records spans and metrics, and sets the ids of log records."""

import logging
from contextlib import AbstractAsyncContextManager
from contextvars import Token
from functools import partial
from time import perf_counter
from types import TracebackType
from typing import Self

import anyio
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import SpanContext, SpanKind, TracerProvider

from tailrace.server.observability import message_attributes
from tailrace.server.observability.error_labels import cause_and_type, error_type
from tailrace.server.observability.logs import TASK_IDS
from tailrace.server.observability.metrics import Metrics
from tailrace.server.observability.tracing import (
    Tracing,
    current_trace,
    fail,
    headers_of,
    parent_context,
    provider_name,
    request_attributes,
    within,
)
from tailrace.server.runtime.active_task import ActiveTask
from tailrace.server.runtime.observer import Observer, StreamKind, TurnWatch
from tailrace.server.runtime.served_agents import agent_name_of
from tailrace.server.store.store import UsageRecord
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.stream_extension import extension_metadata
from tailrace.streaming.accumulator import Attempt
from tailrace.streaming.agent.events import BrokenRunError
from tailrace.streaming.instrumentation import (
    RUN_OBSERVER,
    ResponseObservation,
    RunObserver,
    ToolCallObservation,
)
from tailrace.streaming.task.updates import StatusUpdate
from tailrace.streaming.turn_accumulator import TurnAccumulator
from tailrace.wrappers import ContentPartToolCall, UpstreamError, UpstreamFault
from tailrace.wrappers.concurrency.async_resource import AsyncResource, Exit
from tailrace.wrappers.continuation import Route
from tailrace.wrappers.model import REQUEST_HEADERS, ChunkBatches, Model
from tailrace.wrappers.request_options import RequestOptions

_FAULTS = frozenset(map(str, UpstreamFault))
logger = logging.getLogger("tailrace.server")

_MAX_CODE = 64  # maximum characters of an error code

_CANCELLED = "cancelled"  # the ``error.type`` of cancelled work


class Telemetry(Observer):
    """Records turns, model responses, tool calls and errors of a server.

    Args:
        agent: The name of the agent, if a server has only one. The attribute may be changed before the first turn.
        agent_version: The version of the agent; empty to omit it from the spans.
        provider: The provider of the model; empty if no model is configured.
        model: The name of the model; empty if no model is configured.
        metrics: The metrics; None to disable them.
        tracer_provider: Records spans; None to use the tracer provider of the process.
        with_content: True to add messages to spans.
    """

    def __init__(
        self,
        *,
        agent: str,
        agent_version: str = "",
        provider: str = "",
        model: str = "",
        metrics: Metrics | None = None,
        tracer_provider: TracerProvider | None = None,
        with_content: bool = False,
    ) -> None:
        self.agent = agent
        self.metrics = metrics
        self.tracing = Tracing(tracer_provider)
        self.with_content = with_content
        known = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": provider_name(provider) or "tailrace",
            "gen_ai.agent.version": agent_version,
            "gen_ai.request.model": model,
        }
        self.attributes = {name: value for name, value in known.items() if value}

    def origin(self) -> SpanContext | None:
        """Return the context of the current span; None if there is none."""
        return current_trace()

    def turn(self, active: ActiveTask, external_context_id: str = "") -> TurnWatch:
        """Begin a span for a turn."""
        return _Turn(self, active, external_context_id)

    def commit_failed(self) -> None:
        """Count a failed commit."""
        if self.metrics is not None:
            self.metrics.failed_commits.inc()

    def streaming(self, kind: StreamKind) -> None:
        """Count a stream."""
        if self.metrics is not None:
            self.metrics.streams.labels(kind).inc()

    def error_occurred(self, error: BaseException) -> None:
        """Count an error by its cause and type."""
        if self.metrics is not None:
            self.metrics.errors.labels(*cause_and_type(error)).inc()

    def waited_for_call(self, seconds: float) -> None:
        """Record the duration of a wait."""
        if self.metrics is not None:
            self.metrics.wait_seconds.observe(seconds)

    def usage_recorded(self, record: UsageRecord) -> None:
        """Count an attempt with its tokens and its cost."""
        if self.metrics is not None:
            self.metrics.count_usage(record, provider_name(record.provider))

    def broker_entry_rejected(self, purpose: str) -> None:
        """Count a rejected entry."""
        if self.metrics is not None:
            self.metrics.rejected_entries.labels(purpose).inc()

    def webhook_attempt_failed(self) -> None:
        """Count a failed attempt."""
        if self.metrics is not None:
            self.metrics.webhook_failures.inc()

    def webhook_delivered(self, *, accepted: bool) -> None:
        """Count a notification by its outcome."""
        if self.metrics is not None:
            self.metrics.webhook_notifications.labels("taken" if accepted else "given_up").inc()


class _Turn(TurnWatch, RunObserver):
    """Observes one turn, with its model responses and tool calls."""

    def __init__(self, telemetry: Telemetry, active: ActiveTask, external_context_id: str) -> None:
        self.external_context_id = external_context_id
        self._telemetry = telemetry
        self._active = active
        self._error = ""
        self._input_tokens = self._output_tokens = 0

    def __enter__(self) -> Self:
        telemetry, record = self._telemetry, self._active.record
        waiting = self._active.waiting[0]
        self._agent = agent_name_of(waiting.message) or telemetry.agent
        parent = parent_context(waiting.origin)
        attributes = {
            **telemetry.attributes,
            "gen_ai.agent.name": self._agent,
            "gen_ai.conversation.id": self.external_context_id,
            "tailrace.context.id": record.context_id,
            "tailrace.task.id": record.id,
            "tailrace.turn.number": waiting.number,
        }
        self._span = telemetry.tracing.begin(
            f"invoke_agent {self._agent}", SpanKind.INTERNAL, attributes, parent
        )
        self.context = within(self._span, parent)
        self._attached = attach(self.context)
        self._observing: Token[RunObserver] = RUN_OBSERVER.set(self)
        # Requests to a remote agent continue the trace of the turn.
        self._sending = REQUEST_HEADERS.set(headers_of(self.context))
        self._naming: Token[tuple[str, str]] = TASK_IDS.set((record.id, record.context_id))
        self._events = record.number
        self._began = perf_counter()
        return self

    def failed(self, error: BaseException) -> None:
        """Record the error of the turn, and count it unless it is already counted."""
        self._error = error_type(error)
        if not isinstance(error, BrokenRunError):
            self._telemetry.error_occurred(error)
        if isinstance(error, UpstreamError):
            logger.warning("the turn failed (%s)", _facts_of(error))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = perf_counter() - self._began
        TASK_IDS.reset(self._naming)
        REQUEST_HEADERS.reset(self._sending)
        RUN_OBSERVER.reset(self._observing)
        detach(self._attached)
        outcome, error_label = self._outcome()
        span, metrics = self._span, self._telemetry.metrics
        if span.is_recording():
            span.set_attribute("tailrace.turn.outcome", outcome)
            span.set_attribute("tailrace.turn.events", self._active.record.number - self._events)
            if self._input_tokens or self._output_tokens:
                span.set_attribute("gen_ai.usage.input_tokens", self._input_tokens)
                span.set_attribute("gen_ai.usage.output_tokens", self._output_tokens)
            if error_label:
                fail(span, error_label)
        span.end()
        if metrics is not None:
            metrics.turns.labels(outcome).inc()
            metrics.turn_seconds.labels(self._agent, error_label).observe(seconds)
        # Open connections of the turn reference its context, and thereby this object.
        del self._active
        self.ending = None

    def _outcome(self) -> tuple[str, str]:
        """Return the outcome of the turn, and the type of its error (may be empty)."""
        if self._active.error is not None:
            return "given_up", "StoreError"
        if self.direct:
            return "message", ""
        if self.ending is None:
            return "broken_off", _CANCELLED
        state = self.ending.state
        outcome = state.removeprefix("TASK_STATE_").lower()
        if state not in (TaskState.FAILED, TaskState.REJECTED):
            return outcome, ""
        return outcome, self._error or self._reported_error(self.ending) or "agent"

    def _reported_error(self, ending: StatusUpdate) -> str:
        """Count the provider's error in the last status, and return its type; empty if there is none."""
        metadata = extension_metadata(ending.metadata or {}).get("error")
        kind = metadata.get("type") if isinstance(metadata, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        if kind not in _FAULTS:
            return ""
        error = UpstreamError("", fault=UpstreamFault(kind))
        self._telemetry.error_occurred(error)
        return str(error.fault)

    def observe_response(
        self, model: Model, options: RequestOptions, turn: TurnAccumulator
    ) -> ResponseObservation:
        """Begin a span for a model response."""
        return _ObservedResponse(self._telemetry, self, model, options, turn)

    def continued(self, attempt: Attempt, model: str, route: Route) -> None:
        """Record the continuation of a response in the turn's span and in a metric."""
        cause = error_type(attempt.error) if attempt.error is not None else ""
        provider, _, name = model.partition(":")
        metadata = {"route": str(route), "from": attempt.model, "model": model, "error.type": cause}
        self._span.add_event(
            "tailrace.response.continued", {f"tailrace.{key}": value for key, value in metadata.items()}
        )
        logger.warning("%s: the response is continued by %s (%s)", attempt.model, model, route)
        if self._telemetry.metrics is not None:
            labels = (provider_name(provider), name, str(route), cause)
            self._telemetry.metrics.continuations.labels(*labels).inc()

    def observe_call(self, call: ContentPartToolCall) -> ToolCallObservation:
        """Begin a span for a tool call."""
        return _Call(self._telemetry, call)

    def add_response(self, input_tokens: int, output_tokens: int, error: str) -> None:
        """Add the token counts of a model response that has ended.

        Args:
            input_tokens: The number of input tokens.
            output_tokens: The number of output tokens.
            error: The type of the error of the response; empty if there was no error.
        """
        self._input_tokens += input_tokens
        self._output_tokens += output_tokens
        self._error = error


class _ObservedResponse(ResponseObservation):
    """Observes one response of a model."""

    def __init__(
        self,
        telemetry: Telemetry,
        of: _Turn,
        model: Model,
        options: RequestOptions,
        turn: TurnAccumulator,
    ) -> None:
        self._telemetry = telemetry
        self._of = of
        self._model = model
        self._turn = turn
        self._labels = ("chat", provider_name(model.provider), model.name)
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": self._labels[1],
            "gen_ai.request.model": model.name,
            "gen_ai.conversation.id": of.external_context_id,
            **request_attributes(options),
        }
        self._span = telemetry.tracing.begin(f"chat {model.name}", SpanKind.CLIENT, attributes)
        self._context: Context = within(self._span)
        if telemetry.with_content and self._span.is_recording():
            history = turn.history
            self._span.set_attribute(
                "gen_ai.input.messages", message_attributes.input_messages(history.conversation)
            )
            if history.system_message:
                self._span.set_attribute(
                    "gen_ai.system_instructions", message_attributes.instructions(history.system_message)
                )
        self._first = 0.0
        self._began = perf_counter()

    def sent(
        self, stream: AbstractAsyncContextManager[ChunkBatches]
    ) -> AbstractAsyncContextManager[ChunkBatches]:
        """Return the request with headers that continue the trace."""
        return AsyncResource(partial(self._sent, stream))

    async def _sent(self, stream: AbstractAsyncContextManager[ChunkBatches]) -> tuple[ChunkBatches, Exit]:
        # A generator must not change the context of its consumer, so the variable is set only while the request is sent.
        token = REQUEST_HEADERS.set({**REQUEST_HEADERS.get(), **headers_of(self._context)})
        attached = attach(self._context)
        try:
            return await stream.__aenter__(), stream.__aexit__
        finally:
            detach(attached)
            REQUEST_HEADERS.reset(token)

    def first_chunk(self) -> None:
        """Record the time to the first chunk."""
        self._first = perf_counter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        now = perf_counter()
        turn = self._turn
        # Before the first chunk, `turn.response` is the previous response.
        response = turn.response if kind is None or self.chunks else None
        usage = response.usage if response is not None else None
        upstream = response.error if response is not None else None
        error_label = ""
        if upstream is not None:
            error_label = error_type(upstream)
            self._telemetry.error_occurred(upstream)
            logger.warning("%s: incomplete response (%s)", ":".join(self._labels[1:]), _facts_of(upstream))
        elif error is not None:
            is_cancelled = isinstance(error, (GeneratorExit, anyio.get_cancelled_exc_class()))
            error_label = _CANCELLED if is_cancelled else error_type(error)
        self._of.add_response(
            usage.input_tokens if usage is not None else 0,
            usage.output_tokens if usage is not None else 0,
            error_label,
        )
        self._end_span(error_label)
        metrics = self._telemetry.metrics
        if metrics is None:
            return
        metrics.response_seconds.labels(*self._labels, error_label).observe(now - self._began)
        if self._first:
            metrics.first_chunk_seconds.labels(*self._labels).observe(self._first - self._began)
            if self.chunks > 1:
                metrics.chunk_seconds.labels(*self._labels).observe((now - self._first) / (self.chunks - 1))
        if usage is not None:
            metrics.tokens.labels(*self._labels, "input").observe(usage.input_tokens)
            metrics.tokens.labels(*self._labels, "output").observe(usage.output_tokens)

    def _end_span(self, error_label: str) -> None:
        span, turn, response = self._span, self._turn, self._turn.response
        if span.is_recording():
            if self._first:
                span.set_attribute("gen_ai.response.time_to_first_chunk", self._first - self._began)
            if self.chunks and response is not None:
                span.set_attribute("tailrace.response.chunks", self.chunks)
                metadata = response.metadata
                for field, name in (("id", "gen_ai.response.id"), ("model", "gen_ai.response.model")):
                    if metadata.get(field):
                        span.set_attribute(name, str(metadata[field]))
                if turn.finish_reason is not None:
                    span.set_attribute("gen_ai.response.finish_reasons", [str(turn.finish_reason)])
                if response.usage is not None:
                    span.set_attribute("gen_ai.usage.input_tokens", response.usage.input_tokens)
                    span.set_attribute("gen_ai.usage.output_tokens", response.usage.output_tokens)
                if self._telemetry.with_content and response.choices:
                    text = message_attributes.output_messages(response.message(), turn.finish_reason)
                    span.set_attribute("gen_ai.output.messages", text)
            if error_label:
                fail(span, error_label)
        span.end()


class _Call(ToolCallObservation):
    """Observes one tool call. The call runs in a separate asyncio task."""

    def __init__(self, telemetry: Telemetry, call: ContentPartToolCall) -> None:
        self._telemetry = telemetry
        self._call = call

    def __enter__(self) -> Self:
        call = self._call
        attributes = {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.call.id": call.id,
            "gen_ai.tool.type": "function",
        }
        self._span = self._telemetry.tracing.begin(f"execute_tool {call.name}", SpanKind.INTERNAL, attributes)
        if self._telemetry.with_content and self._span.is_recording():
            self._span.set_attribute("gen_ai.tool.call.arguments", message_attributes.arguments(call))
        self._attached = attach(within(self._span))
        self._began = perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        seconds = perf_counter() - self._began
        detach(self._attached)
        result = self.result
        error_label = _CANCELLED if result is None else "tool_error" if result.is_error else ""
        if self._span.is_recording():
            if result is not None and self._telemetry.with_content:
                self._span.set_attribute("gen_ai.tool.call.result", message_attributes.result(result))
            if error_label:
                fail(self._span, error_label)
        self._span.end()
        if self._telemetry.metrics is not None:
            self._telemetry.metrics.tool_seconds.labels(self._call.name, error_label).observe(seconds)


def _facts_of(error: UpstreamError) -> str:
    """Describe an error of a provider for the log.

    The message of the provider is omitted, because it may contain content of the request.
    """
    status = f"HTTP {error.status}" if error.status else ""
    code = (error.code or "")[:_MAX_CODE]
    tries = f"{error.tries} tries" if error.tries > 1 else ""
    return ", ".join(filter(None, (str(error.fault), status, code, tries, error.diagnosis)))

"""The driver of a turn: performs the actions of the state machine `AgentTurn`.

The driver contains all IO of a turn. A `TurnView` converts each step of the turn (`Step`) into an item, which the driver yields.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import anyio
import msgspec

from tailrace.streaming.accumulator import Accumulator
from tailrace.streaming.agent.continuation import (
    CircuitBreaker,
    ContinuationPolicy,
    InterruptedResponse,
    NextAttempt,
    ResponseAttempts,
    name_of,
)
from tailrace.streaming.agent.events import (
    AgentError,
    ExecutionStarting,
    Received,
    ResponseContinued,
    ResponseEnded,
    RoundEnded,
    Step,
    ToolEnded,
)
from tailrace.streaming.agent.turn import (
    AgentTurn,
    AwaitInput,
    CallModel,
    DecidedCalls,
    Done,
    RunTools,
    TurnView,
)
from tailrace.streaming.instrumentation import RUN_OBSERVER
from tailrace.streaming.tools.tools import ToolRunner
from tailrace.wrappers import ChunkWrapper, UpstreamError
from tailrace.wrappers.continuation import Route
from tailrace.wrappers.model import ChunkBatches, Model
from tailrace.wrappers.openai.decoder import wrap_chunk

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionChunk

S = TypeVar("S")


class ToolCallContext(msgspec.Struct, frozen=True):
    """The arguments of `ToolRunner.run` that are equal for all calls of a turn.

    Attributes:
        other_tools: The names of the tools that the caller runs.
        task_id: The id of the task; empty outside of a server.
        context_id: The id of the conversation; empty outside of a server. Callers choose this id; it is not unique.
        external_context_id: The id of the conversation for other systems; see `ToolContext`. Empty outside of a server.
    """

    other_tools: frozenset[str] = frozenset()
    task_id: str = ""
    context_id: str = ""
    external_context_id: str = ""


class TurnDriver(Generic[S]):
    """Performs the actions of one turn. A driver can be used once.

    Args:
        turn: The state machine of the turn.
        view: Converts each step into an item.
        runner: The tools of the agent.
        context: The context of the tool calls.
        models: The models, in the order in which they are requested, each with its circuit breaker.
        continuation: Limits of the continuation of a response that breaks off.
        merge_reads: True to combine all content that arrives with one network read into one step.
        wait_until_persisted: See `Agent.drive`.
    """

    def __init__(
        self,
        turn: AgentTurn,
        view: TurnView[S],
        *,
        runner: ToolRunner,
        context: ToolCallContext,
        models: Sequence[tuple[Model, CircuitBreaker]],
        continuation: ContinuationPolicy,
        merge_reads: bool,
        wait_until_persisted: Callable[[], Awaitable[None]],
    ) -> None:
        self._turn = turn
        self._view = view
        self._runner = runner
        self._context = context
        self._models = models
        self._continuation = continuation
        self._merge_reads = merge_reads
        self._wait_until_persisted = wait_until_persisted

    async def run(
        self, interrupted: InterruptedResponse | None = None, decided: DecidedCalls | None = None
    ) -> AsyncGenerator[S]:
        """Perform the actions until the turn ends, and yield the items of the view. See `Agent.drive`.

        Args:
            interrupted: See `Agent.drive`.
            decided: See `Agent.drive`.

        Raises:
            AgentError: As for `Agent.drive`.
            ProtocolError: As for `Agent.drive`.
        """
        turn, view = self._turn, self._view
        observer = RUN_OBSERVER.get()
        error: AgentError | None = None
        for item in view.begin():
            yield item
        try:
            while not isinstance(action := turn.next_action(), AwaitInput | Done):
                if isinstance(action, RunTools):
                    async with aclosing(self._run_tools(action, decided)) as items:
                        async for item in items:
                            yield item
                    decided = None
                    continue
                response = turn.accumulator.begin_response()
                received = view.begin_response(response)
                attempts = ResponseAttempts(self._models, self._continuation)
                attempt, interrupted = attempts.first(response, interrupted, action.options), None
                last_changes = None
                try:
                    while attempt is not None:
                        request, step = await _begin_attempt(response, attempts, attempt, action)
                        if step is not None:
                            yield view.translate(step)
                        batches = None
                        with observer.observe_response(
                            attempts.model, action.options, turn.accumulator
                        ) as watch:
                            try:
                                async with watch.sent(request) as batches:
                                    attempts.connected()
                                    async for batch in batches:
                                        batch = batch if batch.__class__ is list else _wrappers(batch)
                                        if not watch.chunks:
                                            watch.first_chunk()
                                            yield view.translate(attempts.first_chunk_step(batches))
                                        watch.chunks += len(batch)
                                        for chunks in (batch,) if self._merge_reads else zip(batch):
                                            changes = response.add_all(chunks)
                                            if changes:
                                                yield received(changes)
                                        if response.error is not None:
                                            break
                                        # Free the memory while the next batch is awaited.
                                        batch = chunks = changes = ()
                            except UpstreamError as failure:
                                # The traceback would keep the objects of the turn in memory.
                                turn.fail(failure.with_traceback(None))
                            attempt = attempts.ended(response, batches, watch.chunks)
                            last_changes = turn.end_response() if attempt is None else []
                finally:
                    await attempts.release()
                yield view.translate(ResponseEnded(last_changes or []))
        except AgentError as raised:
            error = raised
        for item in view.close(error):
            yield item

    async def _run_tools(self, action: RunTools, decided: DecidedCalls | None) -> AsyncGenerator[S]:
        turn, view = self._turn, self._view
        approved: Sequence[str] = ()
        if decided is not None:
            for result in decided.results:
                turn.tool_result(result)
                yield view.translate(ToolEnded(result))
            if decided.approved:
                yield view.translate(ExecutionStarting(tuple(call.id for call in action.calls)))
                await self._wait_until_persisted()
            approved = [digest for _, digest in decided.approved]
        results = self._runner.run(action.calls, approved=approved, **msgspec.structs.asdict(self._context))
        async with aclosing(results):
            async for result in results:
                turn.tool_result(result)
                yield view.translate(ToolEnded(result))
        turn.end_round()
        yield view.translate(RoundEnded())


async def _begin_attempt(
    response: Accumulator,
    attempts: ResponseAttempts,
    attempt: NextAttempt,
    action: CallModel,
) -> tuple[AbstractAsyncContextManager[ChunkBatches], ResponseContinued | None]:
    """Begin an attempt. Return its unsent request, and the step `ResponseContinued`; no step for a first attempt."""
    if attempt.delay:
        await anyio.sleep(attempt.delay)
    response.end_attempt()
    model = attempt.model
    choice = response.choices.get(0) if len(response.choices) == 1 else None
    text = choice.plain_text if choice is not None else ""
    request, route = attempt.rest, Route.ATTACH
    if request is None and attempt.may_continue_text and text:
        request, route = await model.continuation(text, action.history, action.options), Route.PREFILL
    if request is None:
        request, route = model.stream(action.history, action.options), Route.REPLACE
    if response.error is None:
        return request, None
    if route is not Route.ATTACH:
        await attempts.release()
    broken = attempts.broken(response)
    attempts.begin(attempt, route)
    response.continue_response(broken, route)
    RUN_OBSERVER.get().continued(broken, name_of(model), route)
    return request, ResponseContinued(broken, name_of(model), route, bool(text))


def _wrappers(batch: "Sequence[ChunkWrapper[Any]] | ChatCompletionChunk") -> Sequence[ChunkWrapper[Any]]:
    """Return the chunks of a batch. Iterators of the openai package yield single chunks, which are wrapped here."""
    return batch if isinstance(batch, list | tuple) else wrap_chunk(cast("ChatCompletionChunk", batch))


class StepView:
    """View that yields the steps unchanged."""

    def begin(self) -> Sequence[Step]:
        """Return no items."""
        return ()

    def begin_response(self, response: Accumulator) -> type[Received]:
        """Return the class of the steps with new content."""
        return Received

    def translate(self, step: Step) -> Step:
        """Return the step."""
        return step

    def close(self, error: AgentError | None) -> Sequence[Step]:
        """Raise the error that ended the turn, if there is one."""
        if error is not None:
            raise error
        return ()

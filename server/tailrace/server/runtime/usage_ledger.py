"""Creates a record of the usage of each attempt, for the ledger in the store.

An attempt is recorded when it ends, and the record is persisted with the next event of the task. If a crash interrupts an
attempt, the recovery of its task records the attempt (`UsageLedger.add_lost_attempts`).
"""

from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from time import time
from types import TracebackType
from typing import Any, Self, cast

import anyio
import msgspec

from tailrace.server.runtime.active_task import ActiveTask
from tailrace.server.runtime.budgets import Budgets, RunningCall, estimated
from tailrace.server.runtime.limits import user_of
from tailrace.server.runtime.prices import PriceTable
from tailrace.server.runtime.served_agents import agent_name_of
from tailrace.server.store.store import AttemptState, UsageRecord
from tailrace.server.store.usage_store import milliseconds
from tailrace.streaming.a2a.stream_extension import extension_metadata, provider_usage
from tailrace.streaming.accumulator import Attempt
from tailrace.streaming.instrumentation import (
    RUN_OBSERVER,
    ResponseObservation,
    RunObserver,
    ToolCallObservation,
)
from tailrace.streaming.task.updates import StatusUpdate
from tailrace.streaming.turn_accumulator import TurnAccumulator
from tailrace.wrappers import ContentPartToolCall, UpstreamError, UpstreamFault, Usage
from tailrace.wrappers.concurrency.async_resource import AsyncResource, Exit
from tailrace.wrappers.continuation import Route
from tailrace.wrappers.decoding.lenient_json import as_count, as_mapping, as_text
from tailrace.wrappers.model import ChunkBatches, Model
from tailrace.wrappers.request_options import RequestOptions
from tailrace.wrappers.usage_details import UsageDetails

_MAX_TOKENS = 10**12  # maximum tokens of one attempt
_MAX_NAME = 200  # maximum characters of the model name that a provider reports


class UsageLedger:
    """Creates the records of all attempts of a server.

    Args:
        agent: The name of the agent if the server has only one; otherwise empty.
        prices: Calculates the costs; None if the costs are unknown.
        recorded: Called with each record.
        budgets: The budgets of callers; None for no budgets.

    Attributes:
        budgets: The budgets of callers; None for no budgets.
    """

    def __init__(
        self,
        agent: str = "",
        prices: PriceTable | None = None,
        recorded: Callable[[UsageRecord], object] = lambda _: None,
        budgets: Budgets | None = None,
    ) -> None:
        self._agent = agent
        self._prices = prices
        self._recorded = recorded
        self.budgets = budgets

    @contextmanager
    def turn(self, active: ActiveTask) -> Generator["TurnUsage"]:
        """Record the attempts in the block, which runs the turn of the oldest waiting message of a task."""
        usage = TurnUsage(self, active, RUN_OBSERVER.get())
        token = RUN_OBSERVER.set(usage)
        try:
            yield usage
        finally:
            RUN_OBSERVER.reset(token)
            usage.close()

    def add_lost_attempts(
        self, active: ActiveTask, model: tuple[str, str], attempt: int, last_event: datetime | None
    ) -> None:
        """Add the record of an attempt that a crash interrupted.

        Args:
            active: The task. The turn of its oldest waiting message was interrupted.
            model: The provider and the model.
            attempt: The number of the attempt.
            last_event: The time of the last status change, used as the start of the attempt; None if it is unknown.
        """
        now = _now()
        started = min(milliseconds(last_event), now) if last_event is not None else now
        agent = agent_name_of(active.waiting[0].message) or self._agent
        key = (active.waiting[0].number, attempt, user_of(active.owner), agent)
        record = UsageRecord(*key, *model, AttemptState.LOST, started, now)
        active.usage += (self._counted(record, Usage(0, 0, 0)),)

    def record(
        self,
        owner: str,
        key: tuple[int, int],
        model: tuple[str, str],
        state: AttemptState,
        started: int,
        usage: Usage | None,
        reported_model: str,
        chunks: int = 0,
        agent: str = "",
    ) -> UsageRecord:
        """Create the record of an attempt that ends now.

        Args:
            owner: The owner of the task.
            key: The numbers of the turn and of the attempt.
            model: The provider and the requested model.
            state: The outcome of the attempt.
            started: The start of the attempt, in milliseconds since 1970.
            usage: The reported usage; None if none was reported.
            reported_model: The model that the provider reported; may be empty.
            chunks: The number of chunks that arrived.
            agent: The agent that made the call; empty if the server has only one agent.
        """
        usage = usage or Usage(0, 0, 0)
        record = UsageRecord(
            *key,
            user_of(owner),
            agent or self._agent,
            *model,
            state,
            started,
            max(started, _now()),
            reported_model[:_MAX_NAME],
            chunks=chunks,
        )
        return self._counted(record, usage)

    def _counted(self, record: UsageRecord, usage: Usage) -> UsageRecord:
        details = UsageDetails.of(usage.raw)
        record = msgspec.structs.replace(
            record,
            input_tokens=_bounded(usage.input_tokens),
            cached_tokens=_bounded(details.cached),
            output_tokens=_bounded(usage.output_tokens),
            reasoning_tokens=_bounded(details.reasoning),
            cost=self._prices.cost(record, usage, details) if self._prices is not None else None,
        )
        self._recorded(record)
        if self.budgets is not None:
            self.budgets.record(record)
        return record

    @asynccontextmanager
    async def direct_call(
        self, owner: str, model: Model, persist: Callable[[UsageRecord], object], agent: str = ""
    ) -> AsyncGenerator["DirectCall"]:
        """Record a model call that belongs to no task. The call is made in the block.

        Args:
            owner: The owner.
            model: The model.
            persist: Called with the record at the end.
            agent: As for `record`.

        Raises:
            BudgetExceededError: A budget is used up.
            OverloadedError: The ledger cannot be read.
        """
        await self.check(owner)
        call, started, state = DirectCall(), _now(), AttemptState.CUT
        try:
            async with self.loading_prices(model) or nullcontext():
                yield call
            state = AttemptState.FINAL if call.usage is not None else AttemptState.UNREPORTED
        except UpstreamError as error:
            state = AttemptState.FAILED if error.fault is UpstreamFault.STATUS else state
            raise
        finally:
            names = model.provider, model.name
            record = self.record(
                owner, (1, 1), names, state, started, call.usage, call.reported_model, agent=agent
            )
            persist(record)

    def loading_prices(self, model: Model) -> AbstractAsyncContextManager[None] | None:
        """Return a context manager that loads the prices for an attempt during its block; None if they need not be loaded."""
        prices = self._prices
        if prices is None or not prices.needs_load(model.provider, model.name):
            return None
        return prices.loading()

    async def check(self, owner: str) -> None:
        """Check the budgets of an owner.

        Raises:
            BudgetExceededError: A budget is used up.
            OverloadedError: The ledger cannot be read.
        """
        if self.budgets is not None:
            await self.budgets.check(owner)


@dataclass(slots=True)
class DirectCall:
    """A model call that belongs to no task.

    Attributes:
        usage: The reported usage; None if none was reported.
        reported_model: The model that the provider reported; may be empty.
    """

    usage: Usage | None = None
    reported_model: str = ""


class TurnUsage(RunObserver):
    """Records the attempts of one turn, and forwards all method calls to another observer.

    Attributes:
        ledger: The ledger of the server.
    """

    def __init__(self, ledger: UsageLedger, active: ActiveTask, inner: RunObserver) -> None:
        self.ledger = ledger
        self._active: ActiveTask | None = active
        self._inner = inner
        self._turn = active.waiting[0].number
        self._agent = agent_name_of(active.waiting[0].message)
        self._attempts = active.recorded_attempts
        self._begin_time = _now()

    def observe_response(
        self, model: Model, options: RequestOptions, turn: TurnAccumulator
    ) -> ResponseObservation:
        """Return an observation of an attempt."""
        inner = self._inner.observe_response(model, options, turn)
        if self._active is None or self.ledger.budgets is None:
            return _ObservedAttempt(self, model, turn, inner)
        return _LimitedAttempt(self, model, turn, inner, self.ledger.budgets, self._active.owner)

    def continued(self, attempt: Attempt, model: str, route: Route) -> None:
        """Mark the last attempt as `AttemptState.ATTACHED` if the next attempt receives the rest of its response.

        If the next attempt requests the response again, restore the record `ActiveTask.attached_attempt` in the ledger.
        """
        active = self._active
        if route is Route.ATTACH and active is not None and active.usage:
            *others, last = active.usage
            active.usage = (*others, msgspec.structs.replace(last, state=AttemptState.ATTACHED))
            if self.ledger.budgets is not None:
                self.ledger.budgets.refund(last)
        if route is not Route.ATTACH and active is not None and active.attached_attempt is not None:
            active.usage += (active.attached_attempt,)
            if self.ledger.budgets is not None:
                self.ledger.budgets.record(active.attached_attempt)
            active.attached_attempt = None
        self._inner.continued(attempt, model, route)

    def observe_call(self, call: ContentPartToolCall) -> ToolCallObservation:
        """Return the observation of the other observer."""
        return self._inner.observe_call(call)

    def add_attempt(
        self,
        provider: str,
        model: str,
        state: AttemptState,
        started: int,
        usage: Usage | None,
        reported_model: str,
        chunks: int = 0,
    ) -> None:
        """Record an attempt that ends now. After the end of the turn, do nothing.

        If a chunk has arrived, the record `ActiveTask.attached_attempt` is not restored.
        """
        if self._active is None:
            return
        self._attempts += 1
        if chunks:
            self._active.attached_attempt = None
        active, key = self._active, (self._turn, self._attempts)
        record = self.ledger.record(
            active.owner, key, (provider, model), state, started, usage, reported_model, chunks, self._agent
        )
        active.usage += (record,)

    def ended(self, ending: StatusUpdate) -> None:
        """Record the usage in the last status of a turn, if the turn called no model of this server."""
        fields = extension_metadata(ending.metadata or {})
        reported = as_mapping(fields.get("usage"))
        if self._attempts or reported is None:
            return
        counts = [as_count(reported.get(name)) for name in ("inputTokens", "outputTokens")]
        if counts == [None, None]:
            return
        input_tokens, output_tokens = (max(0, count or 0) for count in counts)
        usage = Usage(
            input_tokens,
            output_tokens,
            input_tokens + output_tokens,
            provider_usage(cast("dict[str, Any]", reported)),
        )
        response: Mapping[str, Any] = as_mapping(fields.get("response")) or {}
        self.add_attempt("", "", AttemptState.FINAL, self._begin_time, usage, as_text(response.get("model")))

    def close(self) -> None:
        """Release the task, because connections that the turn opened may keep this object alive."""
        self._active = None


class _ObservedAttempt(ResponseObservation):
    def __init__(
        self, usage: TurnUsage, model: Model, turn: TurnAccumulator, inner: ResponseObservation
    ) -> None:
        self._usage = usage
        self._model = model
        self._turn = turn
        self._inner = inner

    def __enter__(self) -> Self:
        self._started = _now()
        self._inner.__enter__()
        return self

    def sent(
        self, stream: AbstractAsyncContextManager[ChunkBatches]
    ) -> AbstractAsyncContextManager[ChunkBatches]:
        """Return the request of the other observation. The first request whose cost needs the prices also loads them."""
        request, loading = self._inner.sent(stream), self._usage.ledger.loading_prices(self._model)
        return request if loading is None else _both(loading, request)

    def first_chunk(self) -> None:
        """Notify the other observation."""
        self._inner.first_chunk()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        response = self._turn.response
        usage = response.usage if response is not None else None
        reported = str(response.metadata.get("model") or "") if response is not None and self.chunks else ""
        state = self._state(error)
        names = self._model.provider, self._model.name
        self._usage.add_attempt(*names, state, self._started, usage, reported, self.chunks)
        self._inner.chunks = self.chunks
        self._inner.__exit__(kind, error, trace)

    def _state(self, error: BaseException | None) -> AttemptState:
        response = self._turn.response
        if response is None:
            return AttemptState.FAILED
        failure = response.error
        if error is None and failure is None:
            is_complete = True
        else:  # with a finish reason, a response is complete, even if the stream is closed early
            is_complete = failure is None and response.finished and self.chunks > 0
        if is_complete:
            return AttemptState.FINAL if response.usage is not None else AttemptState.UNREPORTED
        if self.chunks:
            return AttemptState.CUT
        is_cancelled = isinstance(error, (GeneratorExit, anyio.get_cancelled_exc_class()))
        was_rejected = failure is not None and failure.fault is UpstreamFault.STATUS
        return (
            AttemptState.FAILED
            if was_rejected or (error is not None and not is_cancelled)
            else AttemptState.CUT
        )


class _LimitedAttempt(_ObservedAttempt):
    """Observes one attempt, and ends it when a budget is used up."""

    def __init__(
        self,
        usage: TurnUsage,
        model: Model,
        turn: TurnAccumulator,
        inner: ResponseObservation,
        budgets: Budgets,
        owner: str,
    ) -> None:
        self._chunks = self._counted = 0
        super().__init__(usage, model, turn, inner)
        self._budgets = budgets
        self._owner = owner
        self._call: RunningCall | None = None

    @property
    def chunks(self) -> int:
        """The number of received chunks. An assignment adds new chunks to the budgets, and may raise `BudgetExceededError`."""
        return self._chunks

    @chunks.setter
    def chunks(self, count: int) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._chunks = count
        if self._call is not None:
            response = self._turn.response
            tokens = estimated(response.usage if response is not None else None, count)
            added, self._counted = tokens - self._counted, tokens
            self._call.add(added)

    def sent(
        self, stream: AbstractAsyncContextManager[ChunkBatches]
    ) -> AbstractAsyncContextManager[ChunkBatches]:
        """Check the budgets, then send the request of the other observation."""
        return AsyncResource(partial(self._sent, super().sent(stream)))

    async def _sent(self, stream: AbstractAsyncContextManager[ChunkBatches]) -> tuple[ChunkBatches, Exit]:
        await self._budgets.check(self._owner)
        self._call = self._budgets.begin(self._owner, self._model.provider, self._model.name)
        return await stream.__aenter__(), stream.__aexit__

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.end()
        super().__exit__(kind, error, trace)


@asynccontextmanager
async def _both(
    outer: AbstractAsyncContextManager[None], request: AbstractAsyncContextManager[ChunkBatches]
) -> AsyncGenerator[ChunkBatches]:
    async with outer, request as batches:
        yield batches


def _bounded(count: int) -> int:
    """Limit a count, so that sums in the database do not overflow."""
    return min(max(count, 0), _MAX_TOKENS)


def _now() -> int:
    return int(time() * 1000)

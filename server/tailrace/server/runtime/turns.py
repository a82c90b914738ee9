"""Runs turns: the updates of a handler become events, which are persisted and then published.

A message to a running task waits for its turn, and the turns of one conversation run one after the other: the history that a
handler receives has the complete responses to the messages before it. Tasks that run in parallel, on request or by a setting, do
not wait for each other; their history has the turns that had ended.
"""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

import anyio
import anyio.lowlevel
import msgspec

from tailrace.server.runtime.active_task import ActiveTask, DirectReply, ends_turn
from tailrace.server.runtime.external_ids import ExternalIds
from tailrace.server.runtime.handlers import Handler, Item, Turn
from tailrace.server.runtime.large_updates import check_bytes, check_size
from tailrace.server.runtime.limits import Permit, RateLimitError
from tailrace.server.runtime.messages import (
    history_of,
    messages_from_artifacts,
    open_call_ids,
    results_in_artifacts,
    whole_rounds,
)
from tailrace.server.runtime.observer import NO_OBSERVER, Observer, TurnWatch
from tailrace.server.runtime.upstream_gate import OWNER
from tailrace.server.runtime.writer import GroupWriter
from tailrace.server.store.store import PushConfig, Store, TaskWrite
from tailrace.streaming.a2a.costs import cost_of
from tailrace.streaming.a2a.errors import InvalidAgentResponseError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Message
from tailrace.streaming.agent.request_facts import (
    kept_request_facts,
    runs_in_parallel,
    without_request_facts,
)
from tailrace.streaming.conversion.conversation import is_callers, to_common_message
from tailrace.streaming.task.task import TaskRecord, agent_message
from tailrace.streaming.task.updates import MessageAdded, StatusUpdate, TextDelta, Update
from tailrace.wrappers import History, StoreError, TailraceError
from tailrace.wrappers.concurrency.worker_thread import run_bounded
from tailrace.wrappers.messages import utf8_size

logger = logging.getLogger("tailrace.server")

_COMPLETED = StatusUpdate(TaskState.COMPLETED)
_HANDLER_FAILED = "the agent failed; its log says why"


class TurnRunner:
    """Runs the turns of a handler, and applies its updates.

    Args:
        handler: Runs a turn.
        store: Has the conversations.
        writer: Persists the events.
        fail: Called with a task whose events cannot be persisted.
        status_kept: Called with a task's id when a change of its status is persisted, and with the new webhooks.
        external_ids: The identifiers of turns in other systems.
        conversations: Returns the lock that a turn holds, so that no other turn of its conversation runs; by default, a
            lock within this process.
        max_history: The maximum number of messages of a conversation that a turn receives.
        max_seconds: The maximum duration of a turn; waiting for other turns of the conversation does not count.
        max_wait: The maximum duration of that wait, in seconds.
        parallel: Turns of different tasks do not wait for each other, unless their caller requests it.
        max_event_bytes: The maximum size of an update; 0 for no bound.
        observer: Notified of turns.

    Attributes:
        stopping: The server is stopping: the streams of input-required tasks end.
    """

    def __init__(
        self,
        handler: Handler,
        store: Store,
        writer: GroupWriter,
        fail: Callable[[ActiveTask], None],
        status_kept: Callable[[str, Sequence[PushConfig]], None] | None = None,
        conversations: Callable[[ActiveTask], AbstractAsyncContextManager[object]] | None = None,
        *,
        external_ids: ExternalIds,
        max_history: int,
        max_seconds: float = math.inf,
        max_wait: float = math.inf,
        parallel: bool = False,
        max_event_bytes: int = 0,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        self._observer = observer
        self._max_seconds = max_seconds
        self._max_wait = max_wait
        self._parallel = parallel
        self._max_event = max_event_bytes
        # Characters of a text that is certainly small enough: UTF-8 has at most four bytes for one.
        self._max_text = max_event_bytes // 4 if max_event_bytes else math.inf
        self._external_ids = external_ids
        self._handler = handler
        self._store = store
        self._writer = writer
        self._drop = fail
        self._status_kept = status_kept
        self._max_history = max_history
        self._conversations = conversations or self.conversation
        self._following: dict[tuple[str, str], list[anyio.Event]] = {}  # see `_Conversation`
        self.stopping = False

    def conversation(self, active: ActiveTask) -> AbstractAsyncContextManager[object]:
        """Return a lock that runs the turns of a conversation in this process one after the other."""
        return _Conversation(self._following, (active.owner, active.record.context_id))

    def begin(self, active: ActiveTask, submitted: Event | None = None) -> None:
        """Publish a task: its first event, with its message.

        Args:
            active: The task.
            submitted: The result of `TaskRecord.submitted`, if it was called before.
        """
        self.keep(active, (submitted or active.record.submitted(),), snapshot=True)

    async def run(self, active: ActiveTask, permit: Permit, reply: DirectReply | None = None) -> None:
        """Run a turn for every waiting message.

        Args:
            active: The task, with a waiting message; its turn has begun (`ActiveTask.begin_turn`).
            permit: The permit of the task; released at the end.
            reply: Receives the result of the first turn, which may respond directly.
        """
        this = asyncio.current_task()
        assert this is not None  # noqa: S101 — a coroutine runs in a task
        OWNER.set(active.owner)
        has_next = True
        try:
            while has_next:
                async with (
                    self._turn(active, reply) as turn,
                    aclosing(await self._updates(active, turn.conversation)) as batches,
                ):
                    async for items in batches:
                        if this.cancelling() and active.scope.cancel_called:
                            break  # a handler that suppresses its cancellation is ignored from now on
                        if reply is not None and self._answers_directly(active, reply, items):
                            break
                        ending = self.append(active, items)
                        if ending is not None:
                            turn.ending = ending
                            break
                        if self._writer.is_full:
                            await self._writer.room()
                        items = ()  # released while the next are awaited
                reply, has_next = None, turn.has_next
        except BaseException:
            active.running = False
            raise
        finally:
            permit.release()

    @asynccontextmanager
    async def _turn(self, active: ActiveTask, reply: DirectReply | None) -> AsyncGenerator["_Turn"]:
        """Run the block as a turn; end the turn with the result of the block.

        All of it runs in one task: a handler may hold cancel scopes open.
        """
        lock = nullcontext() if self.in_parallel(active) else self._conversations(active)
        async with _LazyContext(lock) as conversation:
            external_id = self._external_ids.context_id(active.owner, active.record.context_id)
            with self._observer.turn(active, external_id) as watch:
                turn = _Turn(conversation)
                try:
                    with active.scope:
                        yield turn
                    if active.scope.cancel_called and active.ending is None:
                        watch.failed(TimeoutError())
                        turn.ending = failed_because(
                            f"the answer took longer than the {self._max_seconds:g} seconds it may"
                        )
                except BaseException as error:
                    turn.ending = self._ending_of(active, watch, error)
                if reply is None or reply.message is None:
                    watch.ending = active.ending or turn.ending
                    self._end_turn(active, watch.ending)
                else:
                    watch.direct = True
                if reply is not None:
                    reply.ready.set()
            turn.has_next = bool(active.waiting)
            if turn.has_next:
                active.begin_turn()  # a cancellation from here on concerns the next turn
            else:
                active.running = False
            # The next turn of the conversation reads the messages of this one from the store.
            await active.log.reach(active.record.number)

    def in_parallel(self, active: ActiveTask) -> bool:
        """Return whether the next turn of a task does not wait for turns of other tasks."""
        requested = runs_in_parallel(_messages_to(active.record, active.waiting[0].message))
        return self._parallel if requested is None else requested

    async def _updates(
        self, active: ActiveTask, conversation: "_LazyContext"
    ) -> AsyncGenerator[Sequence[Item]]:
        """Begin the turn of the oldest waiting message, after the earlier turns of the conversation."""
        try:
            with anyio.fail_after(self._max_wait):
                await conversation.enter()
        except TimeoutError:
            raise RateLimitError(
                f"earlier tasks of the context did not end within {self._max_wait:g} s (max_context_wait in "
                'TAILRACE_BOUNDS): cancel them, send the message again later, or send it with "parallel": true',
                limit="max_context_wait",
                allowed=math.ceil(self._max_wait),
            ) from None
        active.scope.deadline = anyio.current_time() + self._max_seconds
        turn = await self._next_turn(active)
        await anyio.lowlevel.checkpoint_if_cancelled()
        return await self._handler.begin(turn)

    def _ending_of(self, active: ActiveTask, watch: TurnWatch, error: BaseException) -> StatusUpdate:
        """Return the last status of a turn whose handler raised an error.

        Raises:
            BaseException: The error, if it is not the handler's: the engine is cancelled, for example.
        """
        if isinstance(error, TailraceError):
            watch.failed(error)
            return StatusUpdate(TaskState.FAILED, agent_message(str(error)))
        is_cancelled = isinstance(error, anyio.get_cancelled_exc_class())
        if not (is_cancelled or isinstance(error, Exception)):
            raise error
        if is_cancelled and anyio.current_effective_deadline() == -math.inf:
            raise error  # the engine is cancelled
        watch.failed(error)
        # An object that the handler awaited was cancelled: raised here, the error would cancel all turns of the engine.
        what = "let a cancellation out" if is_cancelled else "failed"
        logger.error("the handler of task %s %s", active.record.id, what, exc_info=error)
        return failed_because(_HANDLER_FAILED)

    def _answers_directly(self, active: ActiveTask, reply: DirectReply, items: Sequence[Item]) -> bool:
        """Return whether the first update of a turn is a direct response; otherwise publish the task."""
        if active.record.number or not items:
            return False
        if isinstance(items[0], Message):
            reply.message = items[0]
            return True
        self.begin(active)
        reply.ready.set()
        return False

    async def _next_turn(self, active: ActiveTask) -> Turn:
        """Return the turn of the oldest waiting message, which is added to the conversation here."""
        record, waiting = active.record, active.waiting[0]
        messages = list(waiting.preceding)
        if not messages and waiting.in_conversation:
            recorded, running = await self._store.load_history(
                record.context_id, active.owner, self._max_history - 1
            )
            ordered = partial(history_of, recorded, running, record.id, is_resumed=waiting.in_history)
            messages = await run_bounded(cost_of(recorded), ordered)
        del active.waiting[0]
        if not waiting.in_history:
            active.new_messages.append(waiting.message)
            messages.append(waiting.message)
        questions = _messages_to(record, waiting.message)
        cost = cost_of(messages) + waiting.cost
        history = await run_bounded(cost, _common_history, messages)
        facts = await run_bounded(cost, kept_request_facts, questions)
        return Turn(
            task_id=record.id,
            context_id=record.context_id,
            message=waiting.message,
            history=history,
            number=waiting.number,
            accepted_output_modes=waiting.request.configuration.accepted_output_modes,
            metadata=waiting.request.metadata,
            extensions=waiting.extensions,
            facts=facts,
            resumed=_messages_since_caller(messages) if waiting.in_history else 0,
            max_event_bytes=self._max_event,
            external_context_id=self._external_ids.context_id(active.owner, record.context_id),
            external_message_id=self._external_ids.message_id(active.owner, record.id, waiting.number),
        )

    def _end_turn(self, active: ActiveTask, ending: StatusUpdate) -> None:
        """End a turn with an update of the handler, which may be invalid."""
        if active.error is not None:
            active.waiting.clear()
            return
        if not active.record.number:
            self.begin(active)
        if active.waiting and (ending.state is TaskState.COMPLETED or ending.state.interrupted):
            # Another message of the caller is waiting: it answers the question, and is not too late.
            ending = msgspec.structs.replace(ending, state=TaskState.WORKING)
        try:
            self.end(active, ending)
        except Exception:
            logger.exception("the last update of task %s cannot be carried out", active.record.id)
            if not active.record.state.terminal:
                self.end(active, active.ending or failed_because(_HANDLER_FAILED))

    def append(self, active: ActiveTask, items: Sequence[Item]) -> StatusUpdate | None:
        """Apply updates up to the one that ends the turn; return that one, which the caller applies.

        Raises:
            InvalidAgentResponseError: One of them is invalid; those before it were applied.
        """
        record = active.record
        events: list[Event] = []
        try:
            for item in items:
                if isinstance(item, TextDelta):  # almost always
                    if len(item.text) > self._max_text:
                        check_bytes(utf8_size(item.text), self._max_event)
                    events.append(record.append_text(item))
                    continue
                if isinstance(item, MessageAdded):
                    if events:  # the message is recorded with the next event
                        self.keep(active, events)
                        events = []
                    self._add_message(active, item.message)
                    continue
                if isinstance(item, Message):
                    raise InvalidAgentResponseError(
                        "a direct message is possible only as the first thing a handler yields"
                    )
                if not item.encoded:
                    check_size(item, self._max_event)
                if isinstance(item, StatusUpdate) and ends_turn(item.state) and not item.continues:
                    return item
                if not self._changes_nothing(active, item):
                    events.append(record.apply(item))
                    if isinstance(item, StatusUpdate) or item.encoded:
                        self.keep(active, events, is_large=bool(item.encoded))
                        events = []
        finally:
            if events:
                self.keep(active, events)
        return None

    def _add_message(self, active: ActiveTask, message: Message) -> None:
        """Record a message with the next event; it covers the artifacts so far."""
        record = active.record
        active.new_messages.append(
            message.model_copy(update={"context_id": record.context_id, "task_id": record.id})
        )
        active.round_calls = open_call_ids((message,))
        record.take_changed()

    def _changes_nothing(self, active: ActiveTask, item: Update) -> bool:
        """Return whether an update repeats WORKING, with which handlers begin, for a task that is resumed after a question."""
        return (
            isinstance(item, StatusUpdate)
            and item.state is active.record.state
            and item.message is None
            and not item.metadata
        )

    def end(self, active: ActiveTask, ending: StatusUpdate) -> None:
        """End a turn: complete open artifacts, then publish the last status, with the messages of the turn."""
        record = active.record
        for update in record.closing_updates():
            self.keep(active, (record.apply(update),))
        last = record.apply(ending)
        made = record.take_changed()
        results = results_in_artifacts(made, active.round_calls)
        if results is not None:
            self._add_message(active, results)
        message = messages_from_artifacts(made, record, active.recorded_rounds)
        active.recorded_rounds, active.round_calls = 0, frozenset()
        if message is not None:
            active.new_messages.append(message)
        if record.state.terminal:
            # Messages without a turn are recorded in the conversation, too.
            active.new_messages += [waiting.message for waiting in active.waiting if not waiting.in_history]
            active.waiting.clear()
        self.keep(active, (last,), snapshot=True)

    def keep(
        self, active: ActiveTask, events: Sequence[Event], *, snapshot: bool = False, is_large: bool = False
    ) -> None:
        """Have events written, and published after that.

        Args:
            active: The task.
            events: Its next events, which its record has already; at most the last one changes the status.
            snapshot: Update the task's snapshot in the store: at the bounds of a turn.
            is_large: One of the events is large.
        """
        if active.error is not None:
            return  # failed: what cannot be persisted is not published, and a log has no gaps
        record = active.record
        messages, active.new_messages = active.new_messages, []
        webhooks, active.webhooks = active.webhooks, []
        send_key, active.send_key = active.send_key, None
        write = TaskWrite(
            record.id,
            active.owner,
            record.context_id,
            events,
            record.snapshot() if snapshot else None,
            messages,
            record.status.timestamp if events[-1].state is not None else None,
            webhooks,
            send_key,
            active.holds_conversation,
            is_large,
        )
        changes_status = events[-1].state is not None
        publish = partial(self._publish_status, active, webhooks) if changes_status else active.log.publish
        self._writer.put(write, publish, partial(self.fail, active))

    def _publish_status(
        self, active: ActiveTask, webhooks: Sequence[PushConfig], events: Sequence[Event]
    ) -> None:
        """Publish events whose last one changes the status, and notify webhooks."""
        if active.error is not None:
            return
        active.log.publish(events)
        if self._status_kept is not None:
            self._status_kept(active.record.id, webhooks)
        self.end_log(active)

    def fail(self, active: ActiveTask, error: StoreError) -> None:
        """Fail a task whose events cannot be persisted; do nothing if it has failed already."""
        if active.error is not None:
            return
        logger.error("task %s is given up: %s", active.record.id, error)
        active.error = error
        active.log.end()
        active.scope.cancel()
        self._drop(active)

    def end_log(self, active: ActiveTask) -> None:
        """End the log of a task when all events are published and none follows.

        Also when the server stops and the task is input-required: clients can resume after the restart.
        """
        if active.log.number == active.record.number and (
            active.record.state.terminal or (self.stopping and not active.running)
        ):
            active.log.end()


@dataclass(eq=False, slots=True)
class _Turn:
    """A running turn.

    Attributes:
        conversation: The lock of the conversation, entered before the turn begins.
        ending: The last status, unless the scope is cancelled.
        has_next: After the turn: another message waits, whose turn has begun.
    """

    conversation: "_LazyContext"
    ending: StatusUpdate = _COMPLETED
    has_next: bool = False


class _Conversation:
    """The lock of a conversation: its turns run in order.

    An asyncio lock would do the same, with a kilobyte of memory.

    Args:
        following: By conversation, the turns that wait for the running one; without a running turn there is no entry.
        key: The conversation.
    """

    __slots__ = ("_following", "_key")

    def __init__(self, following: dict[tuple[str, str], list[anyio.Event]], key: tuple[str, str]) -> None:
        self._following = following
        self._key = key

    async def __aenter__(self) -> None:
        following = self._following.get(self._key)
        if following is None:
            # Without yielding: the request to the provider is sent before the first event is written.
            self._following[self._key] = []
            return
        begins = anyio.Event()
        following.append(begins)
        try:
            await begins.wait()
        except BaseException:
            if begins.is_set():
                self._release_next()
            else:
                following.remove(begins)
            raise

    async def __aexit__(self, *_raised: object) -> None:
        self._release_next()

    def _release_next(self) -> None:
        following = self._following[self._key]
        if following:
            following.pop(0).set()
        else:
            del self._following[self._key]


class _LazyContext:
    """Leaves a context manager at the end of the block, if it was entered within the block."""

    __slots__ = ("_context", "_is_entered")

    def __init__(self, context: AbstractAsyncContextManager[object]) -> None:
        self._context = context
        self._is_entered = False

    async def enter(self) -> None:
        await self._context.__aenter__()
        self._is_entered = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._context.__aexit__(kind, error, trace) if self._is_entered else None


def _messages_to(record: TaskRecord, message: Message) -> Sequence[Message]:
    """Return the messages of a task up to one of them."""
    return record.history[: 1 + record.history.index(message)]


def _common_history(messages: Sequence[Message]) -> History:
    common = map(to_common_message, map(without_request_facts, messages))
    return History(conversation=whole_rounds(common))


def _messages_since_caller(messages: Sequence[Message]) -> int:
    """Return the number of messages after the last one of the caller."""
    return next((count for count, message in enumerate(reversed(messages)) if is_callers(message)), 0)


def failed_because(reason: str) -> StatusUpdate:
    """Return the last status of a failed turn, with a reason for the caller."""
    return StatusUpdate(TaskState.FAILED, agent_message(reason))

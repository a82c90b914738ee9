"""Execution of turns: converts the updates of a handler to events, and passes the events to the writer.

By default, the turns of a conversation run one after the other. The history for a handler then contains the complete earlier
responses. With a setting or a request option, tasks of a conversation run in parallel. Their history then contains only turns
that have ended.
"""

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from weakref import ref

import anyio
import anyio.lowlevel
import msgspec
from anyio.abc import TaskGroup

from tailrace.server.runtime.active_task import ActiveTask, DirectReply, ends_turn
from tailrace.server.runtime.conversation_lock import LazyContext
from tailrace.server.runtime.filtered_turn import filtered
from tailrace.server.runtime.handlers import Item
from tailrace.server.runtime.large_updates import check_bytes, check_size, encoded_if_large
from tailrace.server.runtime.limits import Permit
from tailrace.server.runtime.messages import (
    messages_from_artifacts,
    open_call_ids,
    results_in_artifacts,
    tool_results,
)
from tailrace.server.runtime.observer import NO_OBSERVER, Observer
from tailrace.server.runtime.served_agents import ServedAgents
from tailrace.server.runtime.turn_ending import (
    COMPLETED,
    HANDLER_FAILED,
    ending_after,
    failed_because,
    with_attempts,
)
from tailrace.server.runtime.turn_preparation import TurnPreparation
from tailrace.server.runtime.upstream_gate import OWNER
from tailrace.server.runtime.usage_ledger import UsageLedger
from tailrace.server.store.store import PushConfig, TaskWrite, UsageRecord
from tailrace.server.store.writer import GroupWriter
from tailrace.streaming.a2a.errors import InvalidAgentResponseError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Message, Task
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.task.task_record import TaskRecord
from tailrace.streaming.task.updates import MessageAdded, StatusUpdate, TextDelta, Update
from tailrace.wrappers import StoreError
from tailrace.wrappers.messages import utf8_size
from tailrace.wrappers.model import MAY_CANCEL

logger = logging.getLogger("tailrace.server")


class TurnRunner:
    """Runs turns with handlers, and applies the updates of the handlers to the tasks.

    Args:
        fail: Called with a task whose events cannot be stored.
        conversations: Returns the lock of a task's conversation. A turn holds the lock so that no other turn of the conversation
            runs.
        status_persisted: Called with the id and the new webhooks of a task when a change of its status is stored; None for no
            call.
        is_written_here: Returns whether a task still belongs to this process; None if there is only one process.
        max_seconds: Maximum duration of a turn in seconds. The time in which the turn waits for other turns does not count.
        max_event_bytes: Maximum size of an update in bytes; 0 for no limit.

    Attributes:
        group: The task group in which turns run; None while the engine is not running.
        stopping: True if the server is stopping. The streams of tasks that wait for input then end.
    """

    def __init__(
        self,
        agents: ServedAgents,
        preparation: TurnPreparation,
        writer: GroupWriter,
        fail: Callable[[ActiveTask], None],
        conversations: Callable[[ActiveTask], AbstractAsyncContextManager[object]],
        status_persisted: Callable[[str, Sequence[PushConfig]], None] | None = None,
        is_written_here: Callable[[ActiveTask], Awaitable[bool]] | None = None,
        *,
        ledger: UsageLedger,
        max_seconds: float = math.inf,
        max_event_bytes: int = 0,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        self._observer = observer
        self._ledger = ledger
        self._max_seconds = max_seconds
        self._max_event = max_event_bytes
        # A character has at most 4 bytes in UTF-8, so a text of this length cannot exceed the limit.
        self._max_text = max_event_bytes // 4 if max_event_bytes else math.inf
        self._agents = agents
        self._preparation = preparation
        self._writer = writer
        self._remove_failed = fail
        self._status_persisted = status_persisted
        self._conversations = conversations
        self._is_written_here = is_written_here
        self.group: TaskGroup | None = None
        self.stopping = False

    def begin(self, active: ActiveTask, submitted: tuple[Event, Task] | None = None) -> None:
        """Store and publish the first event of a task, which contains the task with its message.

        Args:
            active: The task.
            submitted: The event and the snapshot that `TaskRecord.begin` returned; None to create them.
        """
        event, snapshot = submitted or active.record.begin()
        self.persist(active, (event,), snapshot=snapshot, received=active.record.history[0])

    def run_soon(self, active: ActiveTask, permit: Permit, reply: DirectReply | None = None) -> None:
        """Begin a turn and run it in the task group; see `run`."""
        assert self.group is not None  # noqa: S101 — a message is admitted only while the engine runs
        # The turn begins before any await, so that a cancellation or a stop always finds the cancel scope of the turn.
        if not active.running:
            active.begin_turn()
        self.group.start_soon(self.run, active, permit, reply, name=f"turns of {active.record.id}")

    async def run(self, active: ActiveTask, permit: Permit, reply: DirectReply | None = None) -> None:
        """Run a turn for each waiting message.

        Args:
            active: A task with a waiting message. `ActiveTask.begin_turn` has been called.
            permit: The permit of the task. It is released at the end.
            reply: Receives the direct response. None if the handler cannot respond to the first message without a task.
        """
        this = asyncio.current_task()
        assert this is not None  # noqa: S101 — a coroutine runs in a task
        OWNER.set(active.owner)
        # Connections that the turn opens keep its context (`contextvars`) alive. The weak reference lets the task be freed.
        MAY_CANCEL.set(partial(self._may_cancel, ref(active)))
        has_next = True
        try:
            while has_next:
                async with (
                    self._turn(active, reply) as turn,
                    aclosing(await self._updates(active, turn)) as batches,
                ):
                    async for items in batches:
                        if this.cancelling() and active.scope.cancel_called:
                            # After a cancellation, only results of tools are used, and only if the turn continues later.
                            if not active.suspended:
                                break
                            self.append(active, tool_results(items))
                            continue
                        if reply is not None and self._responds_directly(active, reply, items):
                            break
                        if items and items[-1].__class__ is not TextDelta:
                            items = await self._encoded(active, items)
                        turn.ending = self.append(active, items)
                        if turn.ending is not None:
                            break
                        if self._writer.is_full:
                            await self._writer.wait_for_room()
                        items = ()  # release the items while waiting for the next batch
                    else:
                        # A handler that returns because of its cancellation has not completed the response.
                        if not (this.cancelling() and active.scope.cancel_called):
                            turn.ending = COMPLETED
                reply, has_next = None, turn.has_next
        except BaseException:
            active.running = False
            raise
        finally:
            permit.release()

    async def _may_cancel(self, active: "ref[ActiveTask]") -> bool:
        """Return whether a turn that ends may cancel its response at the provider.

        Return False if the turn is suspended, if its events cannot be stored, or if another process has taken over the task. In
        these cases, another process may receive the rest of the response.
        """
        task = active()
        if task is None or task.suspended or task.error is not None:
            return False
        return self._is_written_here is None or await self._is_written_here(task)

    @asynccontextmanager
    async def _turn(self, active: ActiveTask, reply: DirectReply | None) -> AsyncGenerator["_Turn"]:
        """Run the block as a turn, and store its last status.

        A handler must enter and exit a cancel scope in the same asyncio task, so all of the turn runs in one asyncio task.
        """
        lock = nullcontext() if self._preparation.in_parallel(active) else self._conversations(active)
        async with LazyContext(lock) as conversation:
            external_id = self._preparation.external_context_id(active)
            with (
                ExitStack() as resources,
                self._observer.turn(active, external_id) as watch,
                self._ledger.turn(active) as attempts,
            ):
                turn = _Turn(conversation, resources, external_id)
                try:
                    with active.scope:
                        yield turn
                    if active.scope.cancel_called and active.ending is None and not active.suspended:
                        watch.failed(TimeoutError())
                        turn.ending = failed_because(
                            f"the response took longer than the maximum of {self._max_seconds:g} seconds"
                        )
                except BaseException as error:
                    ending = ending_after(error, active.record.id)
                    watch.failed(error)
                    turn.ending = None if active.suspended else ending
                if active.suspended and turn.ending is None:
                    self._suspend(active)
                elif reply is None or reply.message is None:
                    watch.ending = with_attempts(
                        active.ending or turn.ending or COMPLETED, active.record, turn.number
                    )
                    attempts.ended(watch.ending)
                    self._end_turn(active, watch.ending)
                else:
                    watch.direct = True
                    usage, active.usage = active.usage, ()
                    self.persist_usage(active.owner, usage)
                if reply is not None:
                    reply.ready.set()
            turn.has_next = bool(active.waiting) and not active.suspended
            if turn.has_next:
                active.begin_turn()  # from here on, a cancellation applies to the next turn
            else:
                active.running = False
            # The next turn of the conversation reads the messages of this turn from the store.
            await active.log.reach(active.record.number)
            if active.suspended:
                self.end_log(active)

    async def _updates(self, active: ActiveTask, running: "_Turn") -> AsyncGenerator[Sequence[Item]]:
        await self._preparation.wait(active, running.conversation)
        active.scope.deadline = anyio.current_time() + self._max_seconds
        running.number = active.waiting[0].number
        turn = await self._preparation.next_turn(active, running.external_context_id)
        if active.scope.cancel_called:
            await anyio.lowlevel.checkpoint()  # raise the cancellation before the handler begins
        agent = running.resources.enter_context(self._agents.turn(turn.message))
        filters = await agent.stream_filters(turn.caller_options)
        batches = await agent.handler.run_in_batches(turn)
        assert self.group is not None  # noqa: S101 — the turn runs in it
        return filtered(batches, filters, self.group, active.record) if filters else batches

    async def _encoded(self, active: ActiveTask, items: Sequence[Item]) -> Sequence[Item]:
        ids = active.record.id, active.record.context_id
        return [await encoded_if_large(item, *ids, self._max_event) for item in items]

    def _responds_directly(self, active: ActiveTask, reply: DirectReply, items: Sequence[Item]) -> bool:
        """Return True and set the direct response if the first update is a message. Otherwise, begin the task."""
        if active.record.number or not items:
            return False
        if isinstance(items[0], Message):
            reply.message = items[0]
            return True
        self.begin(active)
        reply.ready.set()
        return False

    def _suspend(self, active: ActiveTask) -> None:
        """Suspend a turn. The turn's last event marks the task as ``suspended``, so that the recovery assumes no crash.

        The usage so far is persisted with this event.
        """
        if active.record.state in (TaskState.SUBMITTED, TaskState.WORKING):
            fields = {EXTENSION_URI: {"suspended": True}}
            self.persist(active, (active.record.apply(StatusUpdate(TaskState.WORKING, metadata=fields)),))

    def _end_turn(self, active: ActiveTask, ending: StatusUpdate) -> None:
        """End a turn with a last status. If the status is invalid, end the task with `ActiveTask.ending`, or fail it."""
        if active.error is not None:
            active.waiting.clear()
            return
        if not active.record.number:
            self.begin(active)
        if active.waiting and (ending.state is TaskState.COMPLETED or ending.state.interrupted):
            # The task continues with the waiting message.
            ending = msgspec.structs.replace(ending, state=TaskState.WORKING)
        try:
            self.end(active, ending)
        except Exception:
            logger.exception("the last update of task %s is invalid", active.record.id)
            if not active.record.state.terminal:
                self.end(active, active.ending or failed_because(HANDLER_FAILED))

    def append(self, active: ActiveTask, items: Sequence[Item]) -> StatusUpdate | None:
        """Apply updates to a task. If an update raises an error, the updates before it were applied.

        Returns:
            The update that ends the turn, not yet applied; None if no update ends the turn.

        Raises:
            InvalidAgentResponseError: An update is not valid.
            IllegalTransition: The task cannot change to the state of an update.
        """
        record = active.record
        events: list[Event] = []
        try:
            for item in items:
                if isinstance(item, TextDelta):
                    if len(item.text) > self._max_text:
                        check_bytes(utf8_size(item.text), self._max_event)
                    events.append(record.append_text(item))
                    continue
                if isinstance(item, MessageAdded):
                    if events:  # the message belongs to the next event, so the earlier events are persisted without it
                        self.persist(active, events)
                        events = []
                    self._add_message(active, item.message)
                    continue
                if isinstance(item, Message):
                    raise InvalidAgentResponseError(
                        "a handler can yield a direct message only as its first item"
                    )
                if not item.encoded:
                    check_size(item, self._max_event)
                if isinstance(item, StatusUpdate) and ends_turn(item.state) and not item.continues:
                    return item
                if not _changes_nothing(record, item):
                    events.append(record.apply(item))
                    if isinstance(item, StatusUpdate) or item.encoded:
                        self.persist(active, events, has_large_event=bool(item.encoded))
                        events = []
        finally:
            if events:
                self.persist(active, events)
        return None

    def _add_message(self, active: ActiveTask, message: Message) -> None:
        """Store a message with the next event.

        This message and the earlier ones contain the content of all artifacts so far, so `end` must not add this content again.
        """
        record = active.record
        active.new_messages.append(
            message.model_copy(update={"context_id": record.context_id, "task_id": record.id})
        )
        active.unanswered_calls = open_call_ids((message,))
        record.pop_changed_artifacts()

    def end(self, active: ActiveTask, ending: StatusUpdate) -> None:
        """End a turn: complete open artifacts, then store the last status with the messages of the turn."""
        record = active.record
        for update in record.closing_updates():
            self.persist(active, (record.apply(update),))
        last = record.apply(ending)
        made = record.pop_changed_artifacts()
        results = results_in_artifacts(made, active.unanswered_calls)
        if results is not None:
            self._add_message(active, results)
        message = messages_from_artifacts(made, record, active.recorded_rounds)
        active.recorded_rounds, active.recorded_attempts, active.unanswered_calls = 0, 0, frozenset()
        # If no chunk of the response of this attempt arrived after the restart, its record is restored in the ledger.
        if active.attached_attempt is not None:
            active.usage += (active.attached_attempt,)
            active.attached_attempt = None
        if message is not None:
            active.new_messages.append(message)
        if record.state.terminal:
            # The turns of waiting messages will not run, but their messages are added to the conversation. Exception: the first
            # message of a task. It cannot be added now, because earlier turns of other tasks may still wait, and their messages
            # must come before it.
            active.new_messages += [
                waiting.message for waiting in active.waiting if not waiting.in_history and waiting.number > 1
            ]
            active.waiting.clear()
        self.persist(active, (last,), snapshot=record.snapshot())

    def persist_usage(self, owner: str, usage: Sequence[UsageRecord]) -> None:
        """Store records of model calls that belong to no task."""
        if usage:
            write = TaskWrite("", owner, "", (), usage=usage)
            self._writer.add_write(write, _ignore, partial(logger.error, "the usage of a turn is lost: %s"))

    def persist(
        self,
        active: ActiveTask,
        events: Sequence[Event],
        *,
        snapshot: Task | None = None,
        has_large_event: bool = False,
        received: Message | None = None,
    ) -> None:
        """Pass events to the writer, which stores and then publishes them.

        Args:
            active: The task.
            events: The next events of the task, already applied to its record. Only the last event may change the status.
            snapshot: The snapshot of the task after the events, to store it; None to keep the stored snapshot.
            has_large_event: True if an event is large (see `TaskWrite`).
            received: The caller's message that the task received with the events; None for no message.
        """
        if active.error is not None:
            return  # an earlier event could not be stored, and a log must not have gaps
        record = active.record
        messages, active.new_messages = active.new_messages, []
        webhooks, active.webhooks = active.webhooks, []
        send_key, active.send_key = active.send_key, None
        completion, active.completion = active.completion, None
        usage, active.usage = active.usage, ()
        write = TaskWrite(
            record.id,
            active.owner,
            record.context_id,
            events,
            snapshot,
            messages,
            record.status.timestamp if events[-1].state is not None else None,
            webhooks,
            send_key,
            active.holds_conversation_lock,
            has_large_event,
            completion,
            usage=usage,
            received=received,
        )
        changes_status = events[-1].state is not None
        publish = partial(self._publish_status, active, webhooks) if changes_status else active.log.publish
        self._writer.add_write(write, publish, partial(self.fail, active))

    def _publish_status(
        self, active: ActiveTask, webhooks: Sequence[PushConfig], events: Sequence[Event]
    ) -> None:
        """Publish events whose last one changes the status, and notify webhooks."""
        if active.error is not None:
            return
        active.log.publish(events)
        if self._status_persisted is not None:
            self._status_persisted(active.record.id, webhooks)
        self.end_log(active)

    def fail(self, active: ActiveTask, error: StoreError) -> None:
        """Fail a task whose events cannot be stored, unless it has already failed."""
        if active.error is not None:
            return
        logger.error("task %s failed because its events cannot be persisted: %s", active.record.id, error)
        active.error = error
        active.log.end()
        active.scope.cancel()
        self._remove_failed(active)

    def end_log(self, active: ActiveTask) -> None:
        """End the log of a task and its streams, if all events are published and the task has ended.

        If the server is stopping, also end the log of a task without a running turn: the task waits for input, or its turn was
        suspended. Clients can resume after the restart.
        """
        if active.log.number == active.record.number and (
            active.record.state.terminal or (self.stopping and not active.running)
        ):
            active.log.end()


@dataclass(eq=False, slots=True)
class _Turn:
    """A running turn.

    Attributes:
        conversation: The lock of the conversation. It is acquired before the turn begins.
        resources: Resources that are released when the turn ends.
        external_context_id: The id of the conversation for other systems.
        ending: The last status of the turn; None until the handler ends. `ActiveTask.ending` has priority.
        has_next: True if the turn has ended and another message of the task waits.
        number: The number of the message in the task, from 1; 0 until the turn begins.
    """

    conversation: "LazyContext"
    resources: ExitStack
    external_context_id: str
    ending: StatusUpdate | None = None
    has_next: bool = False
    number: int = 0


def _changes_nothing(record: TaskRecord, item: Update) -> bool:
    return (
        isinstance(item, StatusUpdate)
        and item.state is record.state
        and item.message is None
        and not item.metadata
    )


def _ignore(_events: Sequence[Event]) -> None:
    """Do nothing."""

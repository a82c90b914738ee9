"""Running tasks: the one place where handlers, log, store and readers meet, and the only one that is async in earnest.

A turn is run in a task of the engine's own task group, never in a request's: whoever asked may leave at any time.
Every event goes the same way: applied to the task's record, written by the `GroupWriter`, and only then published
to the `TaskLog` that the readers follow.
"""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from uuid import uuid4
from weakref import WeakValueDictionary

import anyio
from anyio.abc import TaskGroup

from tailrace.server.handlers import Handler, Turn
from tailrace.server.live import LiveTask, Reply, Subscription, ends_turn
from tailrace.server.messages import check_message, whole_rounds
from tailrace.server.store import Store, StoredTask
from tailrace.server.turns import TurnRunner, failed_because
from tailrace.server.writer import GroupWriter
from tailrace.streaming.a2a.errors import (
    InternalError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from tailrace.streaming.a2a.models import Message, Role, SendMessageRequest, StreamResponse, Task
from tailrace.streaming.conversation import to_common_message
from tailrace.streaming.lifecycle import TaskState
from tailrace.streaming.log import Behind, TaskLog
from tailrace.streaming.task import Event, TaskRecord
from tailrace.streaming.updates import StatusUpdate
from tailrace.wrappers import History

logger = logging.getLogger("tailrace.server")

MAX_BATCH_BYTES = 256 * 1024
"""Bytes of events from the store that a reader gets at once: what one that takes nothing keeps in memory."""


class Engine:
    """Runs tasks and answers for them, for every binding.

    ``owner`` is whose tasks a caller may see; it is checked in one place, before anything is looked up. An
    unknown task and somebody else's give the same `TaskNotFoundError`.

    Args:
        store: Opened and closed by `running`.
        handler: Does the work; closed by `running`.
        max_history_messages: How many messages of a conversation a turn is given at most.

    Attributes:
        stop_requested: Set by whoever first learns that the process is to end: the engine then stops, while there
            are still connections to say so on.
    """

    def __init__(self, store: Store, handler: Handler, *, max_history_messages: int = 1000) -> None:
        self.stop_requested = anyio.Event()
        self._store = store
        self._handler = handler
        self._max_history = max_history_messages
        # Every task that somebody holds: its turn, a reader, a write that is not done. A second object for the same
        # task would give the same numbers again, so there is one for as long as anybody has it, and none after.
        self._live: WeakValueDictionary[str, LiveTask] = WeakValueDictionary()
        self._given_up: set[str] = set()  # tasks that the store believes to be worked on
        self._writer = GroupWriter(store)
        self._turns = TurnRunner(handler, self._writer, self._give_up)
        self._group: TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["Engine"]:
        """Open the store, end what a crash interrupted, and accept requests until the block is left.

        On leaving, tasks that are still worked on end FAILED with what they had; everything is written.

        Raises:
            StoreError: The store cannot be opened.
        """
        await self._store.open()
        self._turns.stopping = False
        self.stop_requested = anyio.Event()
        try:
            async with anyio.create_task_group() as writing:
                writing.start_soon(self._writer.run)
                writing.start_soon(self._stop_on_request)
                async with anyio.create_task_group() as self._group:
                    await self._end_interrupted_tasks()
                    try:
                        yield self
                    finally:
                        self.stop()
                self.stop_requested.set()
                self._writer.close()
        finally:
            self._group = None
            with anyio.CancelScope(shield=True):
                await self._handler.aclose()
                await self._store.close()

    async def start(self, request: SendMessageRequest, owner: str = "") -> Subscription | Message:
        """Take a caller's message: begin a task, go on with one, or answer directly.

        Returns:
            A reader of the task from this message on (its first event is the task), or the handler's direct
            message.

        Raises:
            TaskNotFoundError: The message names a task that the caller has none of.
            UnsupportedOperationError: That task is over, or busy with an earlier message.
            PushNotificationNotSupportedError: The request brings a webhook.
            InvalidParamsError: The message names a task and a conversation that it does not belong to.
            InternalError: The server is stopping.
            StoreError: Nothing can be kept at present.
        """
        message = request.message
        if request.configuration.task_push_notification_config is not None:
            raise PushNotificationNotSupportedError
        check_message(message)
        if message.task_id:
            live = await self._find(message.task_id, owner)
            self._check_follow_up(live, message)
            return await self._continue(live, request)
        context_id = message.context_id or str(uuid4())
        live = LiveTask(TaskRecord.create(message, context_id=context_id), owner, TaskLog())
        [first_message] = live.record.history
        turn = await self._turn(live, request, first_message, number=1)
        self._check_running()
        self._live[live.record.id] = live
        if not self._handler.replies_directly:
            self._turns.begin(live)
            self._run_soon(live, turn)
            return self._reader(live, 0)
        reply = Reply()
        self._run_soon(live, turn, reply)
        await reply.ready.wait()
        if reply.message is not None:
            return reply.message.model_copy(update={"context_id": context_id, "task_id": ""})
        return self._reader(live, 0)

    async def get_task(self, task_id: str, owner: str = "", history_length: int | None = None) -> Task:
        """The task as it stands, everything in it durable.

        Raises:
            TaskNotFoundError: The caller has no such task.
        """
        live = await self._find(task_id, owner)
        task = live.record.snapshot(history_length)
        await self._until_kept(live, live.record.number)
        return task

    async def cancel_task(self, task_id: str, owner: str = "") -> Task:
        """Stop the work on a task and end it CANCELED; the connection to the provider is closed.

        Raises:
            TaskNotFoundError: The caller has no such task.
            TaskNotCancelableError: It is over already, or came to its end before it could be stopped.
        """
        live = await self._find(task_id, owner)
        if live.record.state.terminal:
            raise TaskNotCancelableError(metadata={"taskId": task_id})
        canceled = StatusUpdate(TaskState.CANCELED)
        if live.running:
            live.ending = canceled
            live.scope.cancel()
            await self._until_over(live)
        else:
            self._turns.end(live, canceled)
        await self._until_kept(live, live.record.number)
        if live.record.state is not TaskState.CANCELED:
            raise TaskNotCancelableError(metadata={"taskId": task_id})
        return live.record.snapshot()

    async def subscribe(self, task_id: str, owner: str = "", after: int | None = None) -> Subscription:
        """Follow a task.

        Args:
            task_id: The task.
            owner: The caller.
            after: A number: everything after that event, exactly once, also when the task is over. None: the
                task as it stands first, then what follows.

        Raises:
            TaskNotFoundError: The caller has no such task.
            UnsupportedOperationError: It is over, and no number was given (A2A 1.0, 3.1.6).
            InvalidParamsError: The task has no event of that number.
        """
        live = await self._find(task_id, owner)
        if after is not None:
            if not 0 <= after <= live.record.number:
                raise InvalidParamsError(
                    f"the task has no event {after}; its last one is {live.record.number}"
                )
            return self._reader(live, after)
        if live.record.state.terminal:
            raise UnsupportedOperationError(f"the task is over ({live.record.state})")
        number = live.record.number
        first = Event(number, StreamResponse(task=live.record.snapshot()).to_json())
        await self._until_kept(live, number)
        return self._reader(live, number, first)

    def _reader(self, live: LiveTask, after: int, first: Event | None = None) -> Subscription:
        return Subscription(live, after, first, read=self._read)

    async def _read(self, live: LiveTask, after: int) -> list[Event]:
        """The next events of a task after a number: from memory, or from the store for whoever is far behind.

        Waits for one when there is none yet; empty when the task is over and everything was read.

        Raises:
            StoreError: As `Subscription.batches`.
        """
        try:
            events = await live.log.read(after)
        except Behind:
            events = await self._store.load_events(live.record.id, after, max_bytes=MAX_BATCH_BYTES)
        if not events and live.error is not None:
            raise live.error
        return events

    # --- looking up ---------------------------------------------------------------------------------------------

    async def _find(self, task_id: str, owner: str) -> LiveTask:
        """The one gate: a task of that id that belongs to that owner, live or from the store."""
        live = self._live.get(task_id)
        if live is None:
            stored = await self._store.load_task(task_id, owner)
            # It may have come to life while the store was asked.
            live = self._live.get(task_id) or (stored and await self._revive(stored, owner))
        if live is None or live.owner != owner:
            raise TaskNotFoundError(metadata={"taskId": task_id})
        return live

    def _give_up(self, live: LiveTask) -> None:
        if self._live.get(live.record.id) is live:
            del self._live[live.record.id]
            self._given_up.add(live.record.id)

    async def _revive(self, stored: StoredTask, owner: str) -> LiveTask:
        record = TaskRecord(stored.task, stored.number)
        while events := await self._store.load_events(record.id, record.number):
            for event in events:
                record.replay(event)
        live = self._live.get(record.id)
        if live is not None:
            return live
        live = LiveTask(record, owner, TaskLog(record.number))
        self._live[record.id] = live
        if record.state.terminal:
            live.log.end()
        if record.id in self._given_up:
            self._given_up.discard(record.id)
            if not ends_turn(record.state):
                self._turns.end(live, failed_because("the task store did not work; what followed is lost"))
        return live

    def _check_follow_up(self, live: LiveTask, message: Message) -> None:
        if message.context_id and message.context_id != live.record.context_id:
            raise InvalidParamsError(
                "the message names a task and a context that the task does not belong to",
                metadata={"taskId": live.record.id},
            )
        if live.record.state.terminal:
            raise UnsupportedOperationError(
                f"the task is over ({live.record.state}); send a message without taskId to go on in its context"
            )
        if live.running:
            raise UnsupportedOperationError("the task is still working on an earlier message")

    async def _turn(
        self, live: LiveTask, request: SendMessageRequest, message: Message, *, number: int
    ) -> Turn:
        """What the handler is told; the new message is not in the store yet."""
        record = live.record
        said: list[Message] = []
        if request.message.context_id or request.message.task_id:
            said = await self._store.load_conversation(record.context_id, live.owner, self._max_history - 1)
        return Turn(
            task_id=record.id,
            context_id=record.context_id,
            message=message,
            history=History(conversation=whole_rounds(map(to_common_message, (*said, message)))),
            number=number,
            accepted_output_modes=request.configuration.accepted_output_modes,
            metadata=request.metadata,
        )

    # --- running turns ------------------------------------------------------------------------------------------

    async def _continue(self, live: LiveTask, request: SendMessageRequest) -> Subscription:
        # Marked as running before anything is awaited: of two messages at once, one is refused; and who cancels or
        # stops in the meantime finds the scope that the turn will run in.
        live.begin_turn()
        record = live.record
        message = request.message.model_copy(update={"task_id": record.id, "context_id": record.context_id})
        number = 1 + sum(item.role is Role.USER for item in record.history)
        try:
            turn = await self._turn(live, request, message, number=number)
            self._check_running()
        except BaseException:
            live.running = False
            if live.ending is not None and live.ending.state is TaskState.CANCELED:
                self._turns.end(live, live.ending)
            else:
                self._turns.end_log(live)
            raise
        live.said = [record.receive(message)]
        self._turns.keep(live, record.apply(StatusUpdate(TaskState.WORKING)), snapshot=True)
        first = Event(record.number, StreamResponse(task=record.snapshot()).to_json())
        self._run_soon(live, turn)
        await self._until_kept(live, first.number)
        return self._reader(live, first.number, first)

    def _check_running(self) -> None:
        if self._group is None or self._turns.stopping:
            raise InternalError("the server is stopping")

    def _run_soon(self, live: LiveTask, turn: Turn, reply: Reply | None = None) -> None:
        if self._group is None:
            raise InternalError("the server is stopping")
        if not live.running:
            live.begin_turn()
        self._group.start_soon(self._turns.run, live, turn, reply, name=f"turn of {live.record.id}")

    # --- waiting ------------------------------------------------------------------------------------------------

    async def _until_kept(self, live: LiveTask, number: int) -> None:
        while live.log.number < number:
            await self._progress(live)

    async def _until_over(self, live: LiveTask) -> None:
        """Until the turn that is running has ended and its last event is kept."""
        while not live.record.state.terminal or live.log.number < live.record.number:
            await self._progress(live)

    async def _progress(self, live: LiveTask) -> None:
        """Until another event of the task is kept.

        Raises:
            InternalError: None will be, because the server stops.
        """
        if not await self._read(live, live.log.number):
            raise InternalError("the server is stopping")

    # --- start and stop -----------------------------------------------------------------------------------------

    async def _stop_on_request(self) -> None:
        await self.stop_requested.wait()
        self.stop()

    def stop(self) -> None:
        """End all turns, FAILED with what they have, and take no more messages: every stream then ends by itself."""
        if self._turns.stopping:
            return
        self._turns.stopping = True
        for live in list(self._live.values()):
            if not live.running:
                self._turns.end_log(live)
            else:
                live.ending = live.ending or failed_because(
                    "the server was stopped before the answer was complete"
                )
                live.scope.cancel()

    async def _end_interrupted_tasks(self) -> None:
        """Tasks that were being worked on when the process ended: FAILED, with everything that was shown."""
        for task_id, owner in await self._store.load_unfinished():
            try:
                live = await self._find(task_id, owner)
            except ValueError:
                logger.exception("task %s was interrupted by a crash, and cannot be read", task_id)
                continue
            logger.warning("task %s was interrupted by a crash", task_id)
            self._turns.end(
                live, failed_because("the server stopped unexpectedly before the answer was complete")
            )

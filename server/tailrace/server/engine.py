"""Running tasks: the one place where handlers, log, store and readers meet, and the only one that is async in earnest.

A turn is run in a task of the engine's own task group, never in a request's: whoever asked may leave at any time.
Every event goes the same way: applied to the task's record, written by the `GroupWriter`, and only then published
to the `TaskLog` that the readers follow.
"""

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from uuid import uuid4

import anyio
from anyio.abc import TaskGroup

from tailrace.server.handlers import Handler, Turn
from tailrace.server.live import LiveTask, Subscription, ends_turn
from tailrace.server.store import Store, StoredTask, TaskWrite
from tailrace.server.writer import GroupWriter
from tailrace.streaming.a2a.errors import (
    InternalError,
    InvalidAgentResponseError,
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
from tailrace.streaming.task import Event, TaskRecord, agent_message
from tailrace.streaming.updates import StatusUpdate, Update
from tailrace.wrappers import History, StoreError, TailraceError

logger = logging.getLogger("tailrace.server")


class Engine:
    """Runs tasks and answers for them, for every binding.

    ``owner`` is whose tasks a caller may see; it is checked in one place, before anything is looked up. An
    unknown task and somebody else's give the same `TaskNotFoundError`.

    Args:
        store: Opened and closed by `running`.
        handler: Does the work; closed by `running`.
        max_history_messages: How many messages of a conversation a turn is given at most.
    """

    def __init__(self, store: Store, handler: Handler, *, max_history_messages: int = 1000) -> None:
        self._store = store
        self._handler = handler
        self._max_history = max_history_messages
        self._live: dict[str, LiveTask] = {}
        self._writer = GroupWriter(store)
        self._group: TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["Engine"]:
        """Open the store, end what a crash interrupted, and accept requests until the block is left.

        On leaving, tasks that are still worked on end FAILED with what they had; everything is written.

        Raises:
            StoreError: The store cannot be opened.
        """
        await self._store.open()
        try:
            async with anyio.create_task_group() as writing:
                writing.start_soon(self._writer.run)
                async with anyio.create_task_group() as self._group:
                    await self._end_interrupted_tasks()
                    try:
                        yield self
                    finally:
                        self._stop_turns()
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
            StoreError: Nothing can be kept at present.
        """
        message = request.message
        if request.configuration.task_push_notification_config is not None:
            raise PushNotificationNotSupportedError
        _check_message(message)
        if message.task_id:
            live = await self._find(message.task_id, owner)
            try:
                self._check_follow_up(live, message)
                return await self._continue(live, request)
            finally:
                self._release(live)
        context_id = message.context_id or str(uuid4())
        live = LiveTask(TaskRecord.create(message, context_id=context_id), owner, TaskLog())
        turn = await self._turn(live, request)
        updates = self._handler.run(turn)
        first: Update | Message | None = None
        if self._handler.replies_directly:
            first = await anext(updates, None)
            if isinstance(first, Message):
                async with aclosing(updates):  # pyright: ignore[reportArgumentType]
                    return first.model_copy(update={"context_id": context_id, "task_id": ""})
        live.said = list(live.record.history)
        self._live[live.record.id] = live
        self._keep(live, live.record.submitted(), snapshot=True)
        self._run_soon(live, updates, first)
        return self._reader(live, 0)

    async def get_task(self, task_id: str, owner: str = "", history_length: int | None = None) -> Task:
        """The task as it stands, everything in it durable.

        Raises:
            TaskNotFoundError: The caller has no such task.
        """
        live = await self._find(task_id, owner)
        task = live.record.snapshot(history_length)
        await self._until_kept(live, live.record.number)
        self._release(live)
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
            self._live[task_id] = live
            self._end(live, canceled)
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
        return Subscription(live, after, first, read=self._read, release=self._release)

    async def _read(self, live: LiveTask, after: int) -> list[Event]:
        """The next events of a task after a number: from memory, or from the store for whoever is far behind.

        Waits for one when there is none yet; empty when the task is over and everything was read.

        Raises:
            StoreError: As `Subscription.batches`.
        """
        try:
            events = await live.log.read(after)
        except Behind:
            events = await self._store.load_events(live.record.id, after)
        if not events and live.error is not None:
            raise live.error
        return events

    def _release(self, live: LiveTask) -> None:
        """Forget a task that nobody works on and nobody follows; it is in the store."""
        if live.idle and live.log.number == live.record.number:
            self._live.pop(live.record.id, None)

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

    async def _revive(self, stored: StoredTask, owner: str) -> LiveTask:
        record = TaskRecord(stored.task, stored.number)
        while events := await self._store.load_events(record.id, record.number):
            for event in events:
                record.replay(event)
        live = self._live.get(record.id)
        if live is not None:
            return live
        live = LiveTask(record, owner, TaskLog(record.number))
        if record.state.terminal:
            live.log.end()
        else:
            self._live[record.id] = live
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

    async def _turn(self, live: LiveTask, request: SendMessageRequest) -> Turn:
        """What the handler is told; the new message is not in the store yet."""
        record = live.record
        said: list[Message] = []
        if request.message.context_id or request.message.task_id:
            said = await self._store.load_conversation(record.context_id, live.owner, self._max_history - 1)
        message = record.history[-1]
        return Turn(
            task_id=record.id,
            context_id=record.context_id,
            message=message,
            history=History(conversation=tuple(map(to_common_message, (*said, message)))),
            number=sum(item.role is Role.USER for item in record.history),
            accepted_output_modes=request.configuration.accepted_output_modes,
            metadata=request.metadata,
        )

    # --- running turns ------------------------------------------------------------------------------------------

    async def _continue(self, live: LiveTask, request: SendMessageRequest) -> Subscription:
        # Marked as running before anything is awaited: of two messages at once, one is refused.
        live.running = True
        try:
            live.said = [live.record.receive(request.message)]
            turn = await self._turn(live, request)
            self._keep(live, live.record.apply(StatusUpdate(TaskState.WORKING)), snapshot=True)
            number = live.record.number
            first = Event(number, StreamResponse(task=live.record.snapshot()).to_json())
            self._run_soon(live, self._handler.run(turn), None)
        except BaseException:
            live.running = False
            raise
        await self._until_kept(live, number)
        return self._reader(live, number, first)

    def _run_soon(
        self, live: LiveTask, updates: AsyncIterator[Update | Message], first: Update | Message | None
    ) -> None:
        if self._group is None:
            raise InternalError("the server is shutting down")
        live.running = True
        live.scope = anyio.CancelScope()
        live.ending = None
        self._group.start_soon(self._run_turn, live, updates, first, name=f"turn of {live.record.id}")

    async def _run_turn(
        self, live: LiveTask, updates: AsyncIterator[Update | Message], first: Update | Message | None
    ) -> None:
        ending = StatusUpdate(TaskState.COMPLETED)
        try:
            with live.scope:
                async with aclosing(updates):  # pyright: ignore[reportArgumentType]
                    ending = await self._drive(live, updates, first) or ending
        except TailraceError as error:
            ending = StatusUpdate(TaskState.FAILED, agent_message(str(error)))
        except Exception:
            logger.exception("the handler of task %s failed", live.record.id)
            ending = StatusUpdate(TaskState.FAILED, agent_message("the agent failed; its log says why"))
        finally:
            live.running = False
        if live.error is None and not ends_turn(live.record.state):
            self._end(live, live.ending or ending)
        self._release(live)

    async def _drive(
        self, live: LiveTask, updates: AsyncIterator[Update | Message], first: Update | Message | None
    ) -> StatusUpdate | None:
        """Keep every update until the one that ends the turn; return that one, None when none came."""
        if first is not None:
            ending = self._take(live, first)
            if ending is not None:
                return ending
        async for item in updates:
            ending = self._take(live, item)
            if ending is not None:
                return ending
            await self._writer.room()
        return None

    def _take(self, live: LiveTask, item: Update | Message) -> StatusUpdate | None:
        if isinstance(item, Message):
            raise InvalidAgentResponseError(
                "a direct message is possible only as the first thing a handler yields"
            )
        if isinstance(item, StatusUpdate) and ends_turn(item.state):
            return item
        if not self._changes_nothing(live, item):
            self._keep(live, live.record.apply(item))
        return None

    def _changes_nothing(self, live: LiveTask, item: Update) -> bool:
        """A handler says WORKING first, which a task that goes on after a question is already."""
        return (
            isinstance(item, StatusUpdate)
            and item.state is live.record.state
            and item.message is None
            and not item.metadata
        )

    def _end(self, live: LiveTask, ending: StatusUpdate) -> None:
        """End a turn: complete what is open, then the last status, with all that joins the conversation."""
        record = live.record
        for update in record.closing_updates():
            self._keep(live, record.apply(update))
        said = ending.said or _said_in_artifacts(record)
        if said is not None:
            live.said.append(said.model_copy(update={"context_id": record.context_id, "task_id": record.id}))
        self._keep(live, record.apply(ending), snapshot=True)

    def _keep(self, live: LiveTask, event: Event, *, snapshot: bool = False) -> None:
        if live.error is not None:
            return  # given up: what cannot be kept is not shown, and a log has no gaps
        record = live.record
        said, live.said = live.said, []
        write = TaskWrite(
            record.id,
            live.owner,
            record.context_id,
            (event,),
            record.snapshot() if snapshot else None,
            said,
        )

        def kept(events: object, error: StoreError | None) -> None:
            self._kept(live, event, error)

        self._writer.put(write, kept)

    def _kept(self, live: LiveTask, event: Event, error: StoreError | None) -> None:
        """Show an event that is durable now; or give the task up when its events cannot be kept."""
        if live.error is not None:
            return
        if error is not None:
            logger.error("task %s is given up: %s", live.record.id, error)
            live.error = error
            live.log.end()
            live.scope.cancel()
            self._live.pop(live.record.id, None)
            return
        live.log.publish((event,))
        if event.state is not None and event.state.terminal:
            live.log.end()
        if not live.running:
            self._release(live)

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

    def _stop_turns(self) -> None:
        for live in list(self._live.values()):
            if not live.running:
                live.log.end()  # nothing more comes from here; who follows may resume when we are back
            else:
                live.ending = live.ending or _failed("the server was stopped before the answer was complete")
                live.scope.cancel()

    async def _end_interrupted_tasks(self) -> None:
        """Tasks that were being worked on when the process ended: FAILED, with everything that was shown."""
        for task_id, owner in await self._store.load_unfinished():
            live = await self._find(task_id, owner)
            logger.warning("task %s was interrupted by a crash", task_id)
            self._end(live, _failed("the server stopped unexpectedly before the answer was complete"))


def _check_message(message: Message) -> None:
    """Refuse now what could not be handed to a model later, and would spoil its conversation for good.

    Raises:
        InvalidParamsError: The message is no message of a user, or holds tool calls or results of a wrong form.
    """
    if message.role is not Role.USER:
        raise InvalidParamsError(
            "message.role must be ROLE_USER: the agent's messages are the agent's to make"
        )
    try:
        common = to_common_message(message)
    except ValueError as error:
        raise InvalidParamsError(f"message: {error}") from None
    if common.tool_calls:
        raise InvalidParamsError("message: tool_calls are the agent's; a user answers with tool_results")


def _failed(reason: str) -> StatusUpdate:
    return StatusUpdate(TaskState.FAILED, agent_message(reason))


def _said_in_artifacts(record: TaskRecord) -> Message | None:
    """What a handler that does not say it itself has said: the parts of the task's artifacts."""
    parts = tuple(part for artifact in record.snapshot().artifacts for part in artifact.parts)
    if not parts:
        return None
    return Message(message_id=str(uuid4()), role=Role.AGENT, parts=parts)

"""Running tasks: the one place where handlers, log, store and readers meet, and the only one that is async in earnest.

A turn is run in a task of the engine's own task group, never in a request's: whoever asked may leave at any time.
Every event goes the same way: applied to the task's record, written by the `GroupWriter`, and only then published
to the `TaskLog` that the readers follow.
"""

import logging
import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from uuid import uuid4
from weakref import WeakValueDictionary

import anyio
from anyio.abc import TaskGroup

from tailrace.server.handlers import Handler
from tailrace.server.interrupted import InterruptedTasks
from tailrace.server.limits import OverloadedError, Place, Quota, RateLimitError, UpstreamGate
from tailrace.server.live import PLAIN_CALL, CallContext, LiveTask, Reply, Subscription, Waiting
from tailrace.server.messages import (
    check_message,
    check_request,
    fingerprint_of,
    with_tools_named,
)
from tailrace.server.observability import NO_OBSERVER, Observer
from tailrace.server.observability.health import Health
from tailrace.server.push import PushNotifier
from tailrace.server.registry import Elsewhere, TaskRegistry
from tailrace.server.store import PushConfig, SendKey, Store, TaskFilter, TaskPage, TaskPosition
from tailrace.server.turns import TurnRunner, failed_because
from tailrace.server.writer import GroupWriter
from tailrace.streaming.a2a.errors import (
    InvalidParamsError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from tailrace.streaming.a2a.models import Message, Role, StreamResponse, Task
from tailrace.streaming.a2a.requests import SendMessageRequest, TaskPushNotificationConfig
from tailrace.streaming.a2a.v0_1 import scoped_id
from tailrace.streaming.extension import (
    extension_facts,
)
from tailrace.streaming.lifecycle import TaskState
from tailrace.streaming.log import TaskLog
from tailrace.streaming.request_facts import keep_request_facts
from tailrace.streaming.task import Event, TaskRecord
from tailrace.streaming.updates import StatusUpdate
from tailrace.wrappers import StoreError

logger = logging.getLogger("tailrace.server")

MAX_WAITING = 16
"""Messages to one task that wait for their turn."""

HEALTH_TIMEOUT = 2.0
"""Seconds that the store has to answer whoever asks how it is."""


class Engine:
    """Runs tasks and answers for them, for every binding.

    ``owner`` is whose tasks a caller may see; it is checked in one place, before anything is looked up. An
    unknown task and somebody else's give the same `TaskNotFoundError`.

    Args:
        store: Opened and closed by `running`.
        handler: Does the work; held running by `running`.
        max_history_messages: How many messages of a conversation a turn is given at most.
        max_lag: How many events a reader of a running task may fall behind before it is given the task as it stands.
        restart_interrupted: Begin tasks again that a crash interrupted, instead of ending them FAILED. The handler is
            given the message anew, with what was asked for with it, but without the rest of the request that brought it.
        push: Tells webhooks what happens to tasks; started and stopped by `running`. None where there is nobody to.
        working: Counts the tasks that are worked on, and refuses those that are too many; None for any number.
        gate: Of the calls to the provider: no message is taken while too many wait; None for any number.
        max_turn_seconds: How long a turn may take; 0 for as long as it likes.
        max_event_bytes: How large a thing may be that a handler yields; 0 for any size.
        stop_grace: Seconds that turns have to come to their end once the engine is told to stop.
        observer: Told of turns and transactions.

    Attributes:
        stop_requested: Set by whoever first learns that the process is to end: the engine then stops, while there
            are still connections to say so on.
    """

    def __init__(
        self,
        store: Store,
        handler: Handler,
        *,
        max_history_messages: int = 1000,
        max_lag: int = 10_000,
        restart_interrupted: bool = False,
        push: PushNotifier | None = None,
        working: Quota | None = None,
        gate: UpstreamGate | None = None,
        max_turn_seconds: float = 0,
        max_event_bytes: int = 0,
        stop_grace: float = 0,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        self._observer = observer
        self.stop_requested = anyio.Event()
        self._working = working
        self._gate = gate
        self._stop_grace = stop_grace
        self._store = store
        self._handler = handler
        self._push = push
        self._max_history = max_history_messages
        self._max_lag = max_lag
        self._naming: WeakValueDictionary[tuple[str, str, str], anyio.Lock] = WeakValueDictionary()
        self._tasks = TaskRegistry(store, self._end_lost, self._elsewhere())
        self._writer = GroupWriter(store, observer=observer)
        self._turns = TurnRunner(
            handler,
            store,
            self._writer,
            self._tasks.give_up,
            push and push.notify,
            self._conversation,
            max_history=max_history_messages,
            max_seconds=max_turn_seconds or math.inf,
            max_event_bytes=max_event_bytes,
            observer=observer,
        )
        self._interrupted = InterruptedTasks(
            store,
            self._tasks,
            self._turns,
            lambda live: self._run_soon(live, Place.none()),
            restart=restart_interrupted,
        )
        self._group: TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator["Engine"]:
        """Open the store, take up what a crash interrupted, and accept requests until the block is left.

        On leaving, tasks that are still worked on end FAILED with what they had when the grace time is over, or at
        once where an exception or a cancellation leaves the block; everything is written.

        Raises:
            StoreError: The store cannot be opened.
        """
        await self._store.open()
        self._turns.stopping = False
        self.stop_requested = anyio.Event()
        try:
            # The outermost: webhooks are told of the very last event, too.
            push = self._push.running(self.get_task) if self._push else nullcontext()
            async with self._place(), push, self._handler.running(), anyio.create_task_group() as writing:
                writing.start_soon(self._writer.run)
                grace = anyio.CancelScope()
                writing.start_soon(self._stop_on_request, grace)
                mending = anyio.CancelScope()
                writing.start_soon(self._mend, mending)
                async with anyio.create_task_group() as self._group:
                    await self._interrupted.take_up_all()
                    try:
                        yield self
                    except BaseException:
                        self.stop()
                        raise
                    self.stop_requested.set()
                grace.cancel()
                mending.cancel()
                self._writer.close()
        finally:
            self._group = None
            with anyio.CancelScope(shield=True):
                await self._store.close()

    async def start(
        self,
        request: SendMessageRequest,
        owner: str = "",
        call: CallContext = PLAIN_CALL,
        *,
        preceding: Sequence[Message] = (),
    ) -> Subscription | Message:
        """Take a caller's message: begin a task, go on with one, or answer directly.

        A message to a task that is at work on an earlier one waits for its turn; the task then goes on with it
        instead of coming to its end. When the task fails or is canceled, the messages that wait end with it.

        Args:
            request: The message, and how it is to be answered.
            owner: The caller.
            call: How the message came.
            preceding: What was said before, by either side, where the conversation is a new one whose beginning the
                caller knows; counts for a new task alone.

        Returns:
            A reader of the task from this message on (its first event is the task), or the handler's direct
            message (which is no task, and is made anew when the message is sent again).

        Raises:
            TaskNotFoundError: The message names a task that the caller has none of.
            UnsupportedOperationError: That task is over.
            PushNotificationNotSupportedError: The request brings a webhook, and nobody tells webhooks.
            InvalidParamsError: The message names a task and a conversation that it does not belong to, or the
                request brings a webhook that cannot be called, or another message was named by ``call.send_key``.
            RateLimitError: The caller has all the tasks worked on that it may, or too many messages to this one wait.
            OverloadedError: There are too many of all callers, or the server is stopping or was not started.
            StoreError: Nothing can be kept at present.
        """
        task_id = request.message.task_id if call.named_in else ""
        if not call.send_key:
            async with self._naming_task(owner, task_id):
                return await self._start(request, owner, call, None, preceding)
        async with self._naming.setdefault(("key", owner, call.send_key), anyio.Lock()):
            fingerprint = call.fingerprint or fingerprint_of(request)
            known = await self.sent_as(call.send_key, fingerprint, owner)
            if known is not None:
                return known
            async with self._naming_task(owner, task_id):
                started = await self._start(request, owner, call, (call.send_key, fingerprint), preceding)
            if isinstance(started, Subscription):
                await started.begun()
            return started

    async def sent_as(self, send_key: str, fingerprint: str, owner: str = "") -> Subscription | None:
        """Follow the task that took a message, as it stands by now.

        Args:
            send_key: What the caller named the message by.
            fingerprint: Of the request that brought it.
            owner: The caller.

        Returns:
            A reader, whose first event is the task; None where no message of that name was taken.

        Raises:
            InvalidParamsError: Another message was named so.
            StoreError: Nothing can be read at present.
        """
        known = await self._store.load_send_key(owner, send_key)
        if known is None:
            return None
        if known.fingerprint != fingerprint:
            raise InvalidParamsError("the idempotency key was used for another message; choose a new one")
        return await self.subscribe(known.task_id, owner, repeat_finished=True)

    def _naming_task(self, owner: str, task_id: str) -> AbstractAsyncContextManager[object]:
        """Of two messages that name the same new task at once, one begins it, and the other finds it begun."""
        return self._naming.setdefault(("task", owner, task_id), anyio.Lock()) if task_id else nullcontext()

    async def _start(
        self,
        request: SendMessageRequest,
        owner: str,
        call: CallContext,
        named: tuple[str, str] | None,
        preceding: Sequence[Message],
    ) -> Subscription | Message:
        message = request.message
        if request.configuration.task_push_notification_config is not None and self._push is None:
            raise PushNotificationNotSupportedError
        check_message(message)
        facts = check_request(request)
        self._handler.check(facts)
        message = keep_request_facts(message, facts)
        if message.task_id and not (call.named_in and await self._tasks.is_free(message.task_id, owner)):
            live = await self._tasks.find(message.task_id, owner)
            webhooks = await self._webhooks(live, request, call.spoken)
            return await self._follow_up(live, request, message, webhooks, call.extensions, named)
        message = with_tools_named(message, None, preceding)
        context_id = message.context_id or str(uuid4())
        task_id = scoped_id(message.task_id, owner)
        record = TaskRecord.create(message, task_id=task_id, context_id=context_id, dialect=call.named_in)
        live = LiveTask(record, owner, TaskLog())
        live.webhooks = await self._webhooks(live, request, call.spoken)
        if message.context_id:
            await self._check_conversation(live)
        place = self._admit(live)
        self._tasks.add(live)
        before = tuple(said.model_copy(update={"context_id": context_id}) for said in preceding)
        live.said.extend(before)
        origin = self._observer.origin()
        live.waiting.append(
            Waiting(record.history[0], request, call.extensions, number=1, preceding=before, origin=origin)
        )
        live.send_key = named and SendKey(*named, record.id)
        if not self._handler.replies_directly:
            self._turns.begin(live)
            self._run_soon(live, place)
            return self._reader(live, 0)
        reply = Reply()
        self._run_soon(live, place, reply)
        await reply.ready.wait()
        if reply.message is not None:
            ids = {"context_id": context_id, "task_id": record.id if call.named_in else ""}
            return reply.message.model_copy(update=ids)
        return self._reader(live, 0)

    async def get_task(self, task_id: str, owner: str = "", history_length: int | None = None) -> Task:
        """The task as it stands, everything in it durable.

        Raises:
            TaskNotFoundError: The caller has no such task.
        """
        return await self._tasks.kept_snapshot(await self._tasks.find(task_id, owner), history_length)

    async def list_tasks(
        self, wanted: TaskFilter, owner: str = "", *, after: TaskPosition | None = None, limit: int
    ) -> TaskPage:
        """The caller's tasks, the one with the newest status first, everything in them durable.

        Args:
            wanted: Which tasks.
            owner: The caller.
            after: Go on behind this position.
            limit: How many at most.
        """
        rows, total = await self._store.list_tasks(owner, wanted, after=after, limit=limit + 1)
        page = rows[:limit]
        tasks = [await self._tasks.as_it_stands(task, owner) for _, task in page]
        return TaskPage(tasks, total, page[-1][0] if len(rows) > limit else None)

    async def cancel_task(self, task_id: str, owner: str = "") -> Task:
        """Stop the work on a task and end it CANCELED; the connection to the provider is closed.

        Raises:
            TaskNotFoundError: The caller has no such task.
            TaskNotCancelableError: It is over already, or came to its end before it could be stopped.
        """
        live = await self._tasks.find(task_id, owner)
        if live.record.state.terminal:
            raise TaskNotCancelableError(metadata={"taskId": task_id})
        canceled = StatusUpdate(TaskState.CANCELED)
        if live.running:
            live.ending = canceled
            live.scope.cancel()
            await self._tasks.until_over(live)
        else:
            self._turns.end(live, canceled)
        await self._tasks.until_kept(live, live.record.number)
        if live.record.state is not TaskState.CANCELED:
            raise TaskNotCancelableError(metadata={"taskId": task_id})
        return live.record.snapshot()

    async def subscribe(
        self, task_id: str, owner: str = "", after: int | None = None, *, repeat_finished: bool = False
    ) -> Subscription:
        """Follow a task.

        Args:
            task_id: The task.
            owner: The caller.
            after: A number: everything after that event, exactly once, also when the task is over. None: the
                task as it stands first, then what follows.
            repeat_finished: Give a task that is over as it stands, too.

        Raises:
            TaskNotFoundError: The caller has no such task.
            UnsupportedOperationError: It is over, no number was given (A2A 1.0, 3.1.6), and it is not to be repeated.
            InvalidParamsError: The task has no event of that number.
        """
        live = await self._tasks.find(task_id, owner)
        if after is not None:
            if not 0 <= after <= live.record.number:
                raise InvalidParamsError(
                    f"the task has no event {after}; its last one is {live.record.number}"
                )
            return self._reader(live, after)
        if live.record.state.terminal and not repeat_finished:
            raise UnsupportedOperationError(f"the task is over ({live.record.state})")
        number = live.record.number
        first = Event(number, StreamResponse(task=live.record.snapshot()).to_json(), live.record.state)
        await self._tasks.until_kept(live, number)
        return self._reader(live, number, first)

    def _reader(self, live: LiveTask, after: int, first: Event | None = None) -> Subscription:
        return Subscription(live, after, first, tasks=self._tasks, max_lag=self._max_lag)

    async def conversation(self, context_id: str, owner: str, limit: int) -> list[Message]:
        """The newest messages of a conversation, oldest first; none of one that the owner does not have."""
        return await self._store.load_conversation(context_id, owner, limit)

    async def progress_of(self, task_id: str, owner: str = "") -> tuple[str, int, bool]:
        """The task's own id, the number of its last event that is kept, and whether the task is over with it.

        Raises:
            TaskNotFoundError: The caller has no such task.
        """
        live = await self._tasks.find(task_id, owner)
        number = live.log.number
        return live.record.id, number, live.record.state.terminal and live.record.number == number

    async def dialect_of(self, task_id: str, owner: str) -> str:
        """The version of the protocol that a task was begun in, where that was one whose callers name their tasks.

        Returns:
            The version; empty for any other task, and for one that the caller has not.
        """
        try:
            live = await self._tasks.find(task_id, owner)
        except TaskNotFoundError:
            return ""
        return str(extension_facts(live.record.snapshot(0).metadata).get("dialect", ""))

    async def set_webhook(
        self, config: TaskPushNotificationConfig, owner: str, dialect: str
    ) -> TaskPushNotificationConfig:
        """Set a webhook for a task, as `PushNotifier.create`; it is told of what happens from now on.

        Raises:
            TaskNotFoundError: The caller has no such task.
            PushNotificationNotSupportedError: Nobody tells webhooks.
            InvalidParamsError: It cannot be called, or the task has too many.
            StoreError: It cannot be kept.
        """
        if self._push is None:
            raise PushNotificationNotSupportedError
        task_id, after, is_over = await self.progress_of(config.task_id, owner)
        config = config.model_copy(update={"task_id": task_id})
        return await self._push.create(config, owner, dialect=dialect, after=after, is_over=is_over)

    async def delete_webhook(self, task_id: str, config_id: str, owner: str) -> None:
        """Forget a webhook of a task, as `PushNotifier.delete`.

        Raises:
            TaskNotFoundError: The caller has no such task.
            PushNotificationNotSupportedError: Nobody tells webhooks.
            StoreError: It cannot be deleted.
        """
        if self._push is None:
            raise PushNotificationNotSupportedError
        task_id, *_ = await self.progress_of(task_id, owner)
        await self._push.delete(task_id, config_id)

    # --- what is otherwise where several servers share a store --------------------------------------------------

    def _elsewhere(self) -> Elsewhere | None:
        """What other processes do with tasks."""
        return None

    def _conversation(self, live: LiveTask) -> AbstractAsyncContextManager[object]:
        """What a turn holds so that no other of its conversation runs."""
        return self._turns.conversation(live)

    def _place(self) -> AbstractAsyncContextManager[object]:
        """Entered when the store is open, and left when everything is written."""
        return nullcontext()

    # --- running turns ------------------------------------------------------------------------------------------

    async def _webhooks(self, live: LiveTask, request: SendMessageRequest, spoken: str) -> list[PushConfig]:
        """The webhook that a request brings, if it does, to be told of the task's events from now on."""
        config = request.configuration.task_push_notification_config
        if config is None or self._push is None:
            return []
        config = config.model_copy(update={"task_id": live.record.id})
        return [await self._push.accept(config, live.owner, dialect=spoken, after=live.record.number)]

    async def _follow_up(
        self,
        live: LiveTask,
        request: SendMessageRequest,
        message: Message,
        webhooks: list[PushConfig],
        extensions: tuple[str, ...],
        named: tuple[str, str] | None,
    ) -> Subscription:
        """A further message of a task: its turn comes at once, or when those before it are done."""
        await self._check_conversation(live)
        self._check_follow_up(live, message)
        message = with_tools_named(message, live.record)
        place = self._admit(live)
        record = live.record
        message = record.receive(message)
        number = sum(said.role is Role.USER for said in record.history)
        live.waiting.append(Waiting(message, request, extensions, number, origin=self._observer.origin()))
        live.webhooks = webhooks
        live.send_key = named and SendKey(*named, record.id)
        # While a turn is under way an artifact may be open, which no snapshot can say.
        self._turns.keep(live, record.receipt(message), snapshot=not live.running)
        first = Event(record.number, StreamResponse(task=record.snapshot()).to_json())
        if not live.running:
            self._run_soon(live, place)
        await self._tasks.until_kept(live, first.number)
        return self._reader(live, first.number, first)

    async def _check_conversation(self, live: LiveTask) -> None:
        """Whether what was said before can be read: if not, the message is not taken, and nothing else changes."""
        await self._store.load_conversation(live.record.context_id, live.owner, 1)

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
        if len(live.waiting) >= MAX_WAITING:
            raise RateLimitError(
                f"{MAX_WAITING} messages to the task wait for their turn already; send this one when it has answered",
                limit="waiting_messages",
                allowed=MAX_WAITING,
            )

    def _admit(self, live: LiveTask) -> Place:
        """Let a message in: the place among the tasks that are worked on which its task takes, if it has none."""
        if self._group is None and not self._turns.stopping:
            raise OverloadedError(
                "the server was not started: the lifespan of an application that is mounted is run by nobody"
            )
        if self._turns.stopping:
            raise OverloadedError("the server is stopping; send this to another one, or try again later")
        if self._gate is not None:
            self._gate.check()
        return Place.none() if live.running or self._working is None else self._working.take(live.owner)

    def _run_soon(self, live: LiveTask, place: Place, reply: Reply | None = None) -> None:
        assert self._group is not None  # noqa: S101 — the message was let in
        # Before anything is awaited: who cancels or stops in the meantime finds the scope that the turn will run in.
        live.begin_turn()
        self._group.start_soon(self._run, live, place, reply, name=f"turns of {live.record.id}")

    async def _run(self, live: LiveTask, place: Place, reply: Reply | None) -> None:
        with place:
            await self._turns.run(live, reply)

    # --- how it is --------------------------------------------------------------------------------------------------

    @property
    def events_waiting(self) -> int:
        """How many events wait to be kept."""
        return self._writer.waiting

    async def health(self) -> Health:
        """Whether messages can be taken and kept now; never raises, and takes `HEALTH_TIMEOUT` seconds at most."""
        problems: dict[str, str] = {}
        if self._group is None:
            problems["engine"] = "not running"
        elif self._turns.stopping or self.stop_requested.is_set():
            problems["engine"] = "stopping"
        trouble = "it does not answer"
        with anyio.move_on_after(HEALTH_TIMEOUT):
            try:
                await self._store.check()
                trouble = "the last transaction was not kept" if self._writer.trouble is not None else ""
            except StoreError as error:
                logger.warning("the store is not ready: %s", error)
                trouble = "it does not work"
        if trouble:
            problems["store"] = trouble
        return Health(problems, ("engine", "store"))

    # --- start and stop -----------------------------------------------------------------------------------------

    async def _stop_on_request(self, grace: anyio.CancelScope) -> None:
        await self.stop_requested.wait()
        self.stop(let_finish=True)
        with grace:  # left as soon as all turns are over
            await anyio.sleep(self._stop_grace)
        self._writer.hurry()
        self.stop()

    def stop(self, *, let_finish: bool = False) -> None:
        """Take no more messages, and end all turns, FAILED with what they have: every stream then ends by itself.

        Args:
            let_finish: Let the turns that are under way go on.
        """
        self._turns.stopping = True
        for live in self._tasks.all():
            if not live.running:
                self._turns.end_log(live)
            elif not let_finish:
                live.ending = live.ending or failed_because(
                    "the server was stopped before the answer was complete"
                )
                live.scope.cancel()

    async def _mend(self, scope: anyio.CancelScope) -> None:
        with scope:
            await self._tasks.end_given_up()

    def _end_lost(self, live: LiveTask) -> None:
        self._turns.end(live, failed_because("the task store did not work; what followed is lost"))

"""Running turns: a handler's updates become events, which are kept and then shown.

A message to a task that is at work waits for its turn, and the turns of one conversation come one after the other: what
a handler is given as the history holds the whole answer to what was said before.
"""

import logging
import math
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Self

import anyio
import anyio.lowlevel
import msgspec

from tailrace.server.handlers import Handler, Item, Turn, closing
from tailrace.server.limits import size_of
from tailrace.server.live import LiveTask, Reply, ends_turn
from tailrace.server.messages import open_call_ids, results_in_artifacts, said_in_artifacts, whole_rounds
from tailrace.server.observability import NO_OBSERVER, Observer, TurnWatch
from tailrace.server.store import PushConfig, Store, TaskWrite
from tailrace.server.writer import GroupWriter
from tailrace.streaming.a2a.errors import InvalidAgentResponseError
from tailrace.streaming.a2a.models import Message, Part
from tailrace.streaming.conversation import is_callers, to_common_message
from tailrace.streaming.lifecycle import TaskState
from tailrace.streaming.request_facts import kept_request_facts, without_request_facts
from tailrace.streaming.task import Event, agent_message
from tailrace.streaming.updates import ArtifactUpdate, Said, StatusUpdate, TextDelta, Update
from tailrace.wrappers import History, StoreError, TailraceError

logger = logging.getLogger("tailrace.server")

_HANDLER_FAILED = "the agent failed; its log says why"


class TurnRunner:
    """Runs a handler's turns, and carries out what they yield.

    Args:
        handler: Does the work.
        store: Holds the conversations.
        writer: Keeps the events.
        give_up: Called with a task whose events cannot be kept.
        status_kept: Called with a task's id when a change of its status is kept, and the webhooks that were with it.
        conversations: Gives what a turn holds so that no other of its conversation runs; by itself, among those here.
        max_history: How many messages of a conversation a turn is given at most.
        max_seconds: How long a turn may take; waiting for other turns of the conversation does not count.
        max_event_bytes: How large an update may be; 0 for any size.
        observer: Told of turns.

    Attributes:
        stopping: The server stops: a task that only waits sends its readers home.
    """

    def __init__(
        self,
        handler: Handler,
        store: Store,
        writer: GroupWriter,
        give_up: Callable[[LiveTask], None],
        status_kept: Callable[[str, Sequence[PushConfig]], None] | None = None,
        conversations: Callable[[LiveTask], AbstractAsyncContextManager[object]] | None = None,
        *,
        max_history: int,
        max_seconds: float = math.inf,
        max_event_bytes: int = 0,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        self._observer = observer
        self._max_seconds = max_seconds
        self._max_event = max_event_bytes
        # Characters of a text that is surely small enough: UTF-8 has four bytes for one at most.
        self._max_text = max_event_bytes // 4 if max_event_bytes else math.inf
        self._handler = handler
        self._store = store
        self._writer = writer
        self._give_up = give_up
        self._status_kept = status_kept
        self._max_history = max_history
        self._conversations = conversations or self.conversation
        self._following: dict[tuple[str, str], list[anyio.Event]] = {}  # see `_Conversation`
        self.stopping = False

    def conversation(self, live: LiveTask) -> AbstractAsyncContextManager[object]:
        """What keeps the turns of a conversation that run here one after the other."""
        return _Conversation(self._following, (live.owner, live.record.context_id))

    def begin(self, live: LiveTask) -> None:
        """Make the task known: its first event, with the message that it is for."""
        self.keep(live, live.record.submitted(), snapshot=True)

    async def run(self, live: LiveTask, reply: Reply | None = None) -> None:
        """A turn for every message that waits, until none is left.

        Args:
            live: The task, with a message that waits; its turn has begun (`LiveTask.begin_turn`).
            reply: Where the first turn may answer directly: told what it comes to.
        """
        more = True
        try:
            while more:
                async with _Held(self._conversations(live)) as conversation:
                    with self._observer.turn(live) as watch:
                        await self._run_turn(live, reply, conversation, watch)
                    more = bool(live.waiting)
                    if more:
                        live.begin_turn()  # whoever cancels from here on means the next turn
                    else:
                        live.running = False
                    # The next turn of the conversation reads from the store what this one has said.
                    await live.log.reach(live.record.number)
                reply = None
        except BaseException:
            live.running = False
            raise

    async def _run_turn(
        self, live: LiveTask, reply: Reply | None, conversation: "_Held", watch: TurnWatch
    ) -> None:
        """One turn from its first update to its last, all in one task: a handler may hold cancel scopes open."""
        ending = StatusUpdate(TaskState.COMPLETED)
        try:
            with live.scope:
                await conversation.enter()
                live.scope.deadline = anyio.current_time() + self._max_seconds
                turn = await self._next_turn(live)
                async with closing(self._handler.run(turn)) as updates:
                    ending = await self._drive(live, updates, reply) or ending
            if live.scope.cancel_called and live.ending is None:
                watch.failed(TimeoutError())
                ending = failed_because(
                    f"the answer took longer than the {self._max_seconds:g} seconds it may"
                )
        except TailraceError as error:
            watch.failed(error)
            ending = StatusUpdate(TaskState.FAILED, agent_message(str(error)))
        except anyio.get_cancelled_exc_class() as error:
            if anyio.current_effective_deadline() == -math.inf:
                raise  # the whole engine is cancelled
            watch.failed(error)
            # Something that the handler awaited was cancelled. Let out, it would cancel all turns of the engine.
            logger.exception("the handler of task %s let a cancellation out", live.record.id)
            ending = failed_because(_HANDLER_FAILED)
        except Exception as error:
            watch.failed(error)
            logger.exception("the handler of task %s failed", live.record.id)
            ending = failed_because(_HANDLER_FAILED)
        if reply is None or reply.message is None:
            watch.ending = live.ending or ending
            self._end_turn(live, watch.ending)
        else:
            watch.direct = True
        if reply is not None:
            reply.ready.set()

    async def _next_turn(self, live: LiveTask) -> Turn:
        """What the handler is told of the oldest message that waits, which joins the conversation here."""
        record, waiting = live.record, live.waiting[0]
        said = list(waiting.preceding)
        if not said and waiting.in_conversation:
            said = await self._store.load_conversation(record.context_id, live.owner, self._max_history - 1)
        del live.waiting[0]
        if not waiting.is_said:
            live.said.append(waiting.message)
            said.append(waiting.message)
        common = map(to_common_message, map(without_request_facts, said))
        asked = record.history[: 1 + record.history.index(waiting.message)]
        return Turn(
            task_id=record.id,
            context_id=record.context_id,
            message=waiting.message,
            history=History(conversation=whole_rounds(common)),
            number=waiting.number,
            accepted_output_modes=waiting.request.configuration.accepted_output_modes,
            metadata=waiting.request.metadata,
            extensions=waiting.extensions,
            facts=kept_request_facts(asked),
            resumed=_behind_caller(said) if waiting.is_said else 0,
            max_event_bytes=self._max_event,
            at_once=_AtOnce(self, self._writer, live),
        )

    def _end_turn(self, live: LiveTask, ending: StatusUpdate) -> None:
        """End a turn, whatever its last update holds: that is a handler's, and may be no update at all."""
        if live.error is not None:
            live.waiting.clear()
            return
        if not live.record.number:
            self.begin(live)
        if live.waiting and (ending.state is TaskState.COMPLETED or ending.state.interrupted):
            # Another message of the caller is there already: it is the answer to a question, and not too late.
            ending = msgspec.structs.replace(ending, state=TaskState.WORKING)
        try:
            self.end(live, ending)
        except Exception:
            logger.exception("the last update of task %s cannot be carried out", live.record.id)
            if not live.record.state.terminal:
                self.end(live, live.ending or failed_because(_HANDLER_FAILED))

    async def _drive(
        self, live: LiveTask, updates: AsyncIterator[Item], reply: Reply | None
    ) -> StatusUpdate | None:
        """Keep every update until the one that ends the turn; return that one, None when none came."""
        await anyio.lowlevel.checkpoint_if_cancelled()
        async for item in updates:
            if live.scope.cancel_called:
                return None  # a handler that does not let itself be cancelled is not listened to any more
            if reply is not None and not live.record.number:
                if isinstance(item, Message):
                    reply.message = item
                    return None
                self.begin(live)
                reply.ready.set()
            ending = self.take(live, item)
            if ending is not None:
                return ending
            if self._writer.is_full:
                await self._writer.room()
        return None

    def take(self, live: LiveTask, item: Item) -> StatusUpdate | None:
        """Carry out what a handler gives; returns what ends the turn, which is the caller's to carry out.

        Raises:
            InvalidAgentResponseError: It cannot be carried out.
        """
        if isinstance(item, TextDelta):  # first, since almost everything is one
            if len(item.text) > self._max_text:
                self._check_size(size_of(Part(text=item.text)))
            self.keep(live, live.record.apply(item))
            return None
        if isinstance(item, Said):
            self._say(live, item.message)
            return None
        if isinstance(item, Message):
            raise InvalidAgentResponseError(
                "a direct message is possible only as the first thing a handler yields"
            )
        if self._max_event:
            self._check_size(sum(map(size_of, _parts_of(item))))
        if isinstance(item, StatusUpdate) and ends_turn(item.state):
            return item
        if not self._changes_nothing(live, item):
            self.keep(live, live.record.apply(item))
        return None

    def _check_size(self, size: int) -> None:
        if size > self._max_event:
            raise InvalidAgentResponseError(
                f"an update has {size} bytes, and an event may have {self._max_event}"
            )

    def _say(self, live: LiveTask, message: Message) -> None:
        """A message joins the conversation with the next event; the artifacts so far are said by it."""
        record = live.record
        live.said.append(message.model_copy(update={"context_id": record.context_id, "task_id": record.id}))
        live.round_calls = open_call_ids((message,))
        record.take_changed()

    def _changes_nothing(self, live: LiveTask, item: Update) -> bool:
        """A handler says WORKING first, which a task that goes on after a question is already."""
        return (
            isinstance(item, StatusUpdate)
            and item.state is live.record.state
            and item.message is None
            and not item.metadata
        )

    def end(self, live: LiveTask, ending: StatusUpdate) -> None:
        """End a turn: complete what is open, then the last status, with all that joins the conversation."""
        record = live.record
        for update in record.closing_updates():
            self.keep(live, record.apply(update))
        last = record.apply(ending)
        made = record.take_changed()
        results = results_in_artifacts(made, live.round_calls)
        if results is not None:
            self._say(live, results)
        said = said_in_artifacts(made, record, live.rounds_said)
        live.rounds_said, live.round_calls = 0, frozenset()
        if said is not None:
            live.said.append(said)
        if record.state.terminal:
            # What no turn will answer any more was said all the same.
            live.said += [waiting.message for waiting in live.waiting if not waiting.is_said]
            live.waiting.clear()
        self.keep(live, last, snapshot=True)

    def keep(self, live: LiveTask, event: Event, *, snapshot: bool = False) -> None:
        """Have an event written, and shown once it is.

        Args:
            live: The task.
            event: Its next event, which its record holds already.
            snapshot: Bring the task in the store up to date with it: at the bounds of a turn.
        """
        if live.error is not None:
            return  # given up: what cannot be kept is not shown, and a log has no gaps
        record = live.record
        said, live.said = live.said, []
        webhooks, live.webhooks = live.webhooks, []
        send_key, live.send_key = live.send_key, None
        write = TaskWrite(
            record.id,
            live.owner,
            record.context_id,
            (event,),
            record.snapshot() if snapshot else None,
            said,
            record.status.timestamp if event.state is not None else None,
            webhooks,
            send_key,
        )
        self._writer.put(write, partial(self._kept, live, webhooks))

    def _kept(
        self,
        live: LiveTask,
        webhooks: Sequence[PushConfig],
        events: Sequence[Event],
        error: StoreError | None,
    ) -> None:
        """Show an event that is durable now; or give the task up when its events cannot be kept."""
        if live.error is not None:
            return
        if error is not None:
            self.give_up(live, error)
            return
        live.log.publish(events)
        if events[-1].state is not None:
            if self._status_kept is not None:
                self._status_kept(live.record.id, webhooks)
            self.end_log(live)
        elif self.stopping:
            self.end_log(live)

    def give_up(self, live: LiveTask, error: StoreError) -> None:
        """End the work on a task of which nothing more can be kept; nothing happens when that is so already."""
        if live.error is not None:
            return
        logger.error("task %s is given up: %s", live.record.id, error)
        live.error = error
        live.log.end()
        live.scope.cancel()
        self._give_up(live)

    def end_log(self, live: LiveTask) -> None:
        """Send the readers home when they have everything and nothing follows.

        That is also so when the server stops and the task only waits: who follows may resume when we are back.
        """
        if live.log.number == live.record.number and (
            live.record.state.terminal or (self.stopping and not live.running)
        ):
            live.log.end()


class _Conversation:
    """The turn of a conversation: begins when those before it are over.

    A lock would be that, too, and take a kilobyte.

    Args:
        following: By conversation, the turns that wait for the one that runs; those of which none runs are not in it.
        key: The conversation.
    """

    __slots__ = ("_following", "_key")

    def __init__(self, following: dict[tuple[str, str], list[anyio.Event]], key: tuple[str, str]) -> None:
        self._following = following
        self._key = key

    async def __aenter__(self) -> None:
        following = self._following.get(self._key)
        if following is None:
            # Without giving way to others: the provider is to be asked before the first event is written.
            self._following[self._key] = []
            return
        begins = anyio.Event()
        following.append(begins)
        try:
            await begins.wait()
        except BaseException:
            if begins.is_set():
                self._hand_on()
            else:
                following.remove(begins)
            raise

    async def __aexit__(self, *_raised: object) -> None:
        self._hand_on()

    def _hand_on(self) -> None:
        following = self._following[self._key]
        if following:
            following.pop(0).set()
        else:
            del self._following[self._key]


class _Held:
    """Holds a context manager that is entered within the block, if it is, and leaves it at the block's end."""

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


class _AtOnce:
    """What a handler gives from a callback, while `TurnRunner` waits for its next update; see `AtOnce`."""

    __slots__ = ("_live", "_turns", "_writer")

    def __init__(self, turns: TurnRunner, writer: GroupWriter, live: LiveTask) -> None:
        self._turns = turns
        self._writer = writer
        self._live = live

    @property
    def ready(self) -> bool:
        live = self._live
        return bool(live.record.number) and not (live.scope.cancel_called or self._writer.is_full)

    def show(self, item: Item) -> None:
        if self._turns.take(self._live, item) is not None:
            raise InvalidAgentResponseError("the end of a turn has to be yielded")


def _behind_caller(said: Sequence[Message]) -> int:
    """How many messages stand behind the last of the caller's."""
    return next((count for count, message in enumerate(reversed(said)) if is_callers(message)), 0)


def _parts_of(item: ArtifactUpdate | StatusUpdate) -> tuple[Part, ...]:
    if isinstance(item, ArtifactUpdate):
        return item.artifact.parts
    return item.message.parts if item.message is not None else ()


def failed_because(reason: str) -> StatusUpdate:
    """The end of a turn that went wrong, for the reason given to the caller."""
    return StatusUpdate(TaskState.FAILED, agent_message(reason))

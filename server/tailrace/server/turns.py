"""Running turns: a handler's updates become events, which are kept and then shown."""

import logging
import math
from collections.abc import AsyncIterator, Callable

import anyio
import anyio.lowlevel

from tailrace.server.handlers import Handler, Turn, closing
from tailrace.server.live import LiveTask, Reply, ends_turn
from tailrace.server.messages import said_in_artifacts
from tailrace.server.store import TaskWrite
from tailrace.server.writer import GroupWriter
from tailrace.streaming.a2a.errors import InvalidAgentResponseError
from tailrace.streaming.a2a.models import Message
from tailrace.streaming.lifecycle import TaskState
from tailrace.streaming.task import Event, agent_message
from tailrace.streaming.updates import StatusUpdate, Update
from tailrace.wrappers import StoreError, TailraceError

logger = logging.getLogger("tailrace.server")

_HANDLER_FAILED = "the agent failed; its log says why"


class TurnRunner:
    """Runs a handler's turns, and carries out what they yield.

    Args:
        handler: Does the work.
        writer: Keeps the events.
        give_up: Called with a task whose events cannot be kept.

    Attributes:
        stopping: The server stops: a task that only waits sends its readers home.
    """

    def __init__(self, handler: Handler, writer: GroupWriter, give_up: Callable[[LiveTask], None]) -> None:
        self._handler = handler
        self._writer = writer
        self._give_up = give_up
        self.stopping = False

    def begin(self, live: LiveTask) -> None:
        """Make the task known: its first event, with the message that it is for."""
        live.said = list(live.record.history)
        self.keep(live, live.record.submitted(), snapshot=True)

    async def run(self, live: LiveTask, turn: Turn, reply: Reply | None) -> None:
        """One turn from its first update to its last, all in one task: a handler may hold cancel scopes open."""
        ending = StatusUpdate(TaskState.COMPLETED)
        try:
            with live.scope:
                async with closing(self._handler.run(turn)) as updates:
                    ending = await self._drive(live, updates, reply) or ending
        except TailraceError as error:
            ending = StatusUpdate(TaskState.FAILED, agent_message(str(error)))
        except anyio.get_cancelled_exc_class():
            if anyio.current_effective_deadline() == -math.inf:
                raise  # the whole engine is cancelled
            # Something that the handler awaited was cancelled. Let out, it would cancel all turns of the engine.
            logger.exception("the handler of task %s let a cancellation out", live.record.id)
            ending = failed_because(_HANDLER_FAILED)
        except Exception:
            logger.exception("the handler of task %s failed", live.record.id)
            ending = failed_because(_HANDLER_FAILED)
        finally:
            live.running = False
        if reply is None or reply.message is None:
            self._end_turn(live, live.ending or ending)
        if reply is not None:
            reply.ready.set()

    def _end_turn(self, live: LiveTask, ending: StatusUpdate) -> None:
        """End a turn, whatever its last update holds: that is a handler's, and may be no update at all."""
        if live.error is not None:
            return
        if not live.record.number:
            self.begin(live)
        try:
            self.end(live, ending)
        except Exception:
            logger.exception("the last update of task %s cannot be carried out", live.record.id)
            if not live.record.state.terminal:
                self.end(live, live.ending or failed_because(_HANDLER_FAILED))

    async def _drive(
        self, live: LiveTask, updates: AsyncIterator[Update | Message], reply: Reply | None
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
            self.keep(live, live.record.apply(item))
        return None

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
        ids = {"context_id": record.context_id, "task_id": record.id}
        said = ending.said and ending.said.model_copy(update=ids)
        last = record.apply(ending)
        made = record.take_changed()
        said = said or said_in_artifacts(made, record)
        if said is not None:
            live.said.append(said)
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
            self._give_up(live)
            return
        live.log.publish((event,))
        self.end_log(live)

    def end_log(self, live: LiveTask) -> None:
        """Send the readers home when they have everything and nothing follows.

        That is also so when the server stops and the task only waits: who follows may resume when we are back.
        """
        if live.log.number == live.record.number and (
            live.record.state.terminal or (self.stopping and not live.running)
        ):
            live.log.end()


def failed_because(reason: str) -> StatusUpdate:
    """The end of a turn that went wrong, for the reason given to the caller."""
    return StatusUpdate(TaskState.FAILED, agent_message(reason))

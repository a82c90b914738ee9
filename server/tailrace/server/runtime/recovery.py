"""Recovery: fails the tasks that a crash or a stop interrupted, or restarts their turns."""

import logging
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from tailrace.server.runtime.active_task import ActiveTask, PendingMessage
from tailrace.server.runtime.approvals import decided_ids, executing_ids, results_after_stop
from tailrace.server.runtime.interrupted_responses import interrupted_response
from tailrace.server.runtime.limits import Permit
from tailrace.server.runtime.messages import (
    is_incomplete_turn,
    open_call_ids,
    results_in_artifacts,
    rounds_since_caller,
)
from tailrace.server.runtime.served_agents import ServedAgents, UnknownAgentError, agent_name_of
from tailrace.server.runtime.task_registry import TaskRegistry
from tailrace.server.runtime.turn_ending import failed_because
from tailrace.server.runtime.turns import TurnRunner
from tailrace.server.runtime.usage_ledger import UsageLedger
from tailrace.server.store.store import AttemptState, EventsDropped, Store
from tailrace.streaming.a2a.json_value_counts import cost_of
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Message, Role
from tailrace.streaming.a2a.requests import SendMessageRequest
from tailrace.streaming.a2a.stream_extension import extension_metadata, with_extension_metadata
from tailrace.streaming.agent.continuation import InterruptedResponse
from tailrace.streaming.conversion.message_conversion import is_callers, to_common_message
from tailrace.streaming.conversion.response_translator import ResponseTranslator
from tailrace.streaming.task.updates import StatusUpdate

logger = logging.getLogger("tailrace.server")

MAX_RESTARTS = 2
"""Maximum number of restarts of one turn, because the turn itself may crash the process."""


class InterruptedTasks:
    """Recovers interrupted tasks when the engine starts, and the tasks of a dead node when this node takes them over.

    Args:
        rerun: True to run interrupted turns again; False to fail their tasks.
    """

    def __init__(
        self,
        store: Store,
        agents: ServedAgents,
        tasks: TaskRegistry,
        turns: TurnRunner,
        ledger: UsageLedger,
        *,
        rerun: bool,
    ) -> None:
        self._store = store
        self._agents = agents
        self._tasks = tasks
        self._turns = turns
        self._ledger = ledger
        self._rerun = rerun

    async def recover_all(self) -> None:
        """Recover all tasks with an unfinished turn in the store."""
        for active in await self.read(await self._store.load_unfinished()):
            await self.recover(active)

    async def read(self, names: Iterable[tuple[str, str]]) -> list[ActiveTask]:
        """Read tasks, and return those with a turn to recover.

        Because the turns of a conversation run one after the other, turns that had begun come first. Otherwise, the times of the
        statuses determine the order.

        Args:
            names: Ids and owners of tasks. A task whose events are invalid or incomplete is skipped, and an error is logged.

        Raises:
            TaskNotFoundError: A task does not exist.
            StoreError: The store is not available.
        """
        found: list[ActiveTask] = []
        try:
            for task_id, owner in names:
                try:
                    active = await self._tasks.find(task_id, owner)
                except (ValueError, EventsDropped):
                    logger.exception("task %s was interrupted, and cannot be read", task_id)
                    continue
                if not (active.running or active.record.state.terminal):
                    active.begin_turn()  # later messages wait for this turn
                    found.append(active)
                    active.waiting[:] = _pending_messages(active, await self._messages(active))
        except BaseException:
            for active in found:
                active.running = False
            raise
        return sorted(found, key=_by_turn)

    async def recover(self, active: ActiveTask) -> None:
        """Restart the turn of a task, or fail the task. All published events remain.

        Args:
            active: A task that `read` returned. After an error, pass its id and its owner to `read` to try again.
        """
        try:
            if active.waiting:
                await self._record_attempt(active)
            # A stop is not caused by the task, so the restart does not count.
            restarts = _restarts_of_turn(active) + (not _is_suspended(active))
            if self._rerun and active.waiting and restarts <= MAX_RESTARTS:
                await self._rerun_turn(active, restarts)
            else:
                logger.warning("task %s was interrupted by %s, and fails", active.record.id, _cause(active))
                await self._publish_missing_results(active)
                self._discard_soon(active)
                failed = failed_because("the server stopped unexpectedly before the response was complete")
                self._turns.end(active, active.ending or failed)
                active.running = False
        except BaseException:
            active.running = False
            raise

    def _discard_soon(self, active: ActiveTask) -> None:
        if not (active.waiting and active.waiting[0].in_history) or self._turns.group is None:
            return
        interrupted, _ = interrupted_response(active.record, active.waiting[0].number, active.recorded_rounds)
        if interrupted.stored_id:
            self._turns.group.start_soon(self._discard, active.waiting[0].message, interrupted)

    async def _discard(self, message: Message, interrupted: InterruptedResponse) -> None:
        try:
            await self._agents.find(agent_name_of(message)).handler.cancel_interrupted(interrupted)
        except UnknownAgentError:
            pass  # the provider is unknown
        except Exception:
            logger.exception("the response of a failed task cannot be cancelled at its provider")

    async def _rerun_turn(self, active: ActiveTask, restarts: int) -> None:
        record = active.record
        logger.warning("task %s was interrupted by %s, and starts again", record.id, _cause(active))
        number = active.waiting[0].number
        again = with_extension_metadata({}, restarts=restarts, restartedTurn=number, suspended=False)
        self._turns.persist(active, (record.apply(StatusUpdate(TaskState.WORKING, metadata=again)),))
        # The transaction of this event also contains `ActiveTask.new_messages`.
        await self._tasks.wait_until_persisted(active, record.number)
        self._turns.run_soon(active, Permit.none())

    async def _publish_missing_results(self, active: ActiveTask) -> None:
        """Before a task fails, publish results for the calls that the caller has approved or rejected, and that have no result."""
        waiting = next((each for each in active.waiting if decided_ids(each.message)), None)
        if waiting is None:
            return
        record = active.record
        messages = await self._messages(active)
        common = [*map(to_common_message, messages), *map(to_common_message, active.new_messages)]
        answered = {result.id for each in common for result in each.tool_results}
        calls = [call for each in common for call in each.tool_calls if call.id not in answered]
        results = results_after_stop(waiting.message, calls, executing_ids(record.extension_metadata))
        published = sum(
            extension_metadata(each.metadata).get("channel") == "tool_result" for each in record.artifacts
        )
        translator = ResponseTranslator(turn=waiting.number, round=0, results=published)
        for result in results:
            self._turns.persist(active, (record.apply(translator.result(result)),))
        active.unanswered_calls = frozenset(result.id for result in results)

    async def _messages(self, active: ActiveTask) -> list[Message]:
        messages = await self._store.load_task_messages(active.record.id, active.owner)
        return [message for message in messages if message.task_id == active.record.id]

    async def _record_attempt(self, active: ActiveTask) -> None:
        """Record an attempt that may have been running at the time of a crash.

        The stored events do not show whether an attempt was running. A suspended turn has recorded all its attempts. If the stop
        cut its last attempt, and the provider stores the response, the continued turn receives this response again from the
        beginning. The usage of the new attempt then includes the usage of the interrupted attempt. The interrupted attempt is
        therefore marked as `AttemptState.ATTACHED`, so that its usage is not counted twice.
        """
        try:
            agent = self._agents.find(agent_name_of(active.waiting[0].message))
        except UnknownAgentError:
            return  # the model is unknown
        turn = active.waiting[0].number
        is_suspended = _is_suspended(active)
        last = await self._store.usage.last_attempt(active.record.id, turn)
        attempts = (last.attempt if last is not None else 0) + (not is_suspended)
        interrupted, _ = interrupted_response(active.record, turn, active.recorded_rounds)
        if is_suspended and last is not None and last.state is AttemptState.CUT and interrupted.stored_id:
            active.attached_attempt = last
            active.usage += (msgspec.structs.replace(last, state=AttemptState.ATTACHED),)
        if agent.model and not is_suspended:
            names = agent.provider, agent.model
            # The interrupted response may be from another model.
            if interrupted.attempts and interrupted.attempts[-1].model:
                provider, _, name = interrupted.attempts[-1].model.partition(":")
                names = provider, name
            self._ledger.add_lost_attempts(active, names, attempts, active.record.status.timestamp)
        active.recorded_attempts = attempts


def _pending_messages(active: ActiveTask, messages: Sequence[Message]) -> list[PendingMessage]:
    """Return the caller's messages that have no complete response yet, in chronological order.

    Also set `ActiveTask.recorded_rounds`. If published tool results are not in the conversation yet, set
    `ActiveTask.new_messages`.
    """
    turns = sum(map(is_callers, messages))
    is_open = bool(messages) and is_incomplete_turn(messages[-1])
    if is_open:
        active.recorded_rounds = rounds_since_caller(messages)
        results = results_in_artifacts(active.record.artifacts, open_call_ids(messages))
        if results is not None:
            ids = {"context_id": active.record.context_id, "task_id": active.record.id}
            active.new_messages[:] = [results.model_copy(update=ids)]
    answered = turns - is_open
    questions = [message for message in active.record.history if message.role is Role.USER]
    return [
        PendingMessage(
            message,
            SendMessageRequest(message=message),
            (),
            number,
            in_history=number <= turns,
            cost=cost_of((message,)),
        )
        for number, message in enumerate(questions, 1)
        if number > answered
    ]


def _restarts_of_turn(active: ActiveTask) -> int:
    fields = active.record.extension_metadata
    number = active.waiting[0].number if active.waiting else 0
    return fields.get("restarts", 0) if fields.get("restartedTurn", number) == number else 0


def _is_suspended(active: ActiveTask) -> bool:
    return active.record.extension_metadata.get("suspended") is True


def _cause(active: ActiveTask) -> str:
    return "the stop of a server" if _is_suspended(active) else "a crash"


def _by_turn(active: ActiveTask) -> tuple[bool, datetime]:
    """Return a sort key: turns that had begun precede the others. Within both groups, the time of the status decides."""
    has_begun = bool(active.waiting) and active.waiting[0].in_history
    return not has_begun, active.record.status.timestamp or datetime.min.replace(tzinfo=UTC)

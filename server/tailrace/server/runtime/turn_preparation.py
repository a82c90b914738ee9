"""Preparation of turns: the history, the options and the interrupted response of the next turn of a task."""

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

import anyio

from tailrace.server.runtime.active_task import ActiveTask, PendingMessage, TurnReference
from tailrace.server.runtime.approvals import decided_ids, executing_ids
from tailrace.server.runtime.conversation_lock import LazyContext
from tailrace.server.runtime.external_ids import ExternalIds
from tailrace.server.runtime.handlers import Turn
from tailrace.server.runtime.interrupted_responses import interrupted_response
from tailrace.server.runtime.limits import RateLimitError
from tailrace.server.runtime.messages import complete_rounds, continues_turn, history_of
from tailrace.server.runtime.served_agents import ServedAgents, agent_name_of, is_for_other_agent
from tailrace.server.runtime.waiting_turns import reference_of
from tailrace.server.store.store import Store
from tailrace.streaming.a2a.json_value_counts import cost_of
from tailrace.streaming.a2a.models import Message
from tailrace.streaming.agent.caller_options import (
    runs_in_parallel,
    stored_caller_options,
    without_caller_options,
)
from tailrace.streaming.conversion.approval_parts import to_common_messages
from tailrace.streaming.conversion.message_conversion import is_callers
from tailrace.streaming.task.task_record import TaskRecord
from tailrace.wrappers import History, StoreError
from tailrace.wrappers.concurrency.worker_thread import run_bounded
from tailrace.wrappers.conversion.result_repair import with_missing_results


class TurnPreparation:
    """Prepares the turns of tasks for their handlers.

    Args:
        load_earlier: Waits for the end of a turn and returns the first messages of a branch; see `WaitingTurns.earlier_messages`.
        max_history: Maximum number of messages of a conversation that a turn receives.
        max_wait: Maximum time in seconds that a turn waits for other turns of the conversation.
        parallel: True to run tasks of a conversation in parallel, unless the caller requests otherwise.
        max_event_bytes: Maximum size of an update in bytes; 0 for no limit.
    """

    def __init__(
        self,
        agents: ServedAgents,
        store: Store,
        load_earlier: Callable[[TurnReference, str, str], Awaitable[tuple[Message, ...]]],
        external_ids: ExternalIds,
        *,
        max_history: int,
        max_wait: float,
        parallel: bool,
        max_event_bytes: int,
    ) -> None:
        self._agents = agents
        self._store = store
        self._load_earlier = load_earlier
        self._external_ids = external_ids
        self._max_history = max_history
        self._max_wait = max_wait
        self._parallel = parallel
        self._max_event_bytes = max_event_bytes

    def in_parallel(self, active: ActiveTask) -> bool:
        """Return whether the next turn of a task runs in parallel with other tasks of the conversation."""
        requested = runs_in_parallel(_messages_to(active.record, active.waiting[0].message))
        return self._parallel if requested is None else requested

    def external_context_id(self, active: ActiveTask) -> str:
        """Return the id of a task's conversation for other systems."""
        return self._external_ids.context_id(active.owner, active.record.context_id)

    async def wait(self, active: ActiveTask, conversation: LazyContext) -> None:
        """Wait for earlier turns of the conversation, and acquire its lock.

        If the next turn begins a branch, also wait for the turn that it follows, and load the earlier messages.

        Raises:
            RateLimitError: The earlier turns did not end in time.
            TaskNotFoundError: The turn that the branch follows was deleted.
            StoreError: The conversation cannot be read.
        """
        waiting = active.waiting[0]
        turn = _followed_turn(waiting)
        if turn is None and not waiting.in_conversation:
            await conversation.enter()  # a new conversation has no earlier turns
            return
        with anyio.move_on_after(self._max_wait) as limit:
            await conversation.enter()
            if turn is not None:
                preceding = await self._load_earlier(turn, active.record.context_id, active.owner)
                active.waiting[0] = replace(waiting, preceding=preceding)
        if limit.cancelled_caught:
            raise RateLimitError(
                f"earlier tasks of the conversation did not end within {self._max_wait:g} s (TAILRACE_BOUNDS: "
                "max_context_wait); wait for their end or cancel them, then send the message again",
                limit="max_context_wait",
                allowed=math.ceil(self._max_wait),
            )

    async def next_turn(self, active: ActiveTask, external_context_id: str) -> Turn:
        """Add the oldest waiting message to the conversation, and return its turn.

        Args:
            active: The task.
            external_context_id: The result of `external_context_id`.

        Raises:
            A2AError: The agent does not accept an earlier message of the conversation (see `ServedAgents.check`).
            StoreError: The conversation cannot be read.
        """
        record, waiting = active.record, active.waiting[0]
        messages = list(waiting.preceding)
        cost = cost_of(messages) + waiting.cost
        if not messages and waiting.in_conversation:
            recorded, running = await self._store.load_history(
                record.context_id, active.owner, self._max_history - 1
            )

            def ordered() -> list[Message]:
                is_resumed = waiting.in_history or continues_turn(waiting.message)
                return history_of(recorded, running, record.id, is_resumed=is_resumed)

            cost += cost_of(recorded)
            messages = await run_bounded(cost, ordered)
        # Responses of other agents may have been added since the message was accepted.
        name = agent_name_of(waiting.message)
        if self._agents.restricts_content(name):
            await self._agents.check_conversation(name, messages)
        del active.waiting[0]
        if _followed_turn(waiting) is not None:
            active.new_messages.extend(waiting.preceding)
        if not waiting.in_history:
            active.new_messages.append(waiting.message)
            messages.append(waiting.message)
            active.unanswered_calls = decided_ids(waiting.message)
        questions = _messages_to(record, waiting.message)
        history = await run_bounded(cost, _common_history, messages)
        caller_options = await run_bounded(cost, stored_caller_options, questions)
        interrupted, published = (
            interrupted_response(record, waiting.number, active.recorded_rounds)
            if waiting.in_history
            else (None, ())
        )
        return Turn(
            task_id=record.id,
            context_id=record.context_id,
            message=waiting.message,
            history=history,
            number=waiting.number,
            accepted_output_modes=waiting.request.configuration.accepted_output_modes,
            metadata=waiting.request.metadata,
            extensions=waiting.extensions,
            caller_options=caller_options,
            resumed_message_count=_messages_since_caller(messages) if waiting.in_history else 0,
            interrupted=interrupted,
            published=published,
            max_event_bytes=self._max_event_bytes,
            external_context_id=external_context_id,
            external_message_id=self._external_ids.message_id(active.owner, record.id, waiting.number),
            executing_call_ids=executing_ids(record.extension_metadata)
            if waiting.in_history
            else frozenset(),
            cost=cost,
            wait_until_persisted=partial(_persisted, active),
        )


def _messages_to(record: TaskRecord, message: Message) -> Sequence[Message]:
    return record.history[: 1 + record.history.index(message)]


def _followed_turn(waiting: PendingMessage) -> TurnReference | None:
    """Return the turn that the branch of this message follows, or None."""
    return None if waiting.in_history or waiting.number > 1 else reference_of(waiting.message)


def _common_history(messages: Sequence[Message]) -> History:
    common = to_common_messages(map(without_caller_options, messages))
    history = History(conversation=complete_rounds(common))
    # The caller need not send results for calls of another agent.
    return with_missing_results(history) if is_for_other_agent(messages) else history


async def _persisted(active: ActiveTask) -> None:
    if not await active.log.reach(active.record.number) or active.error is not None:
        raise StoreError("the events of the task cannot be persisted")


def _messages_since_caller(messages: Sequence[Message]) -> int:
    return next((count for count, message in enumerate(reversed(messages)) if is_callers(message)), 0)

"""The handler that runs an `Agent`, which is a model with tools."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from tailrace.server.runtime.caller_message_checks import without_provider_metadata
from tailrace.server.runtime.handlers import Handler, Item, Turn
from tailrace.server.runtime.lost_results import LostResultPolicy, first_calls
from tailrace.streaming.a2a.errors import InvalidParamsError
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Message as A2AMessage
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.agent.agent import Agent
from tailrace.streaming.agent.caller_options import CallerOptions
from tailrace.streaming.agent.continuation import InterruptedResponse
from tailrace.streaming.agent.turn import DecidedCalls
from tailrace.streaming.conversion.approval_parts import RequestOf, recorded_pending, waiting_message
from tailrace.streaming.conversion.turn_translator import TurnTranslator
from tailrace.streaming.schemas.structured_output import OutputReader
from tailrace.streaming.task.updates import MessageAdded, StatusUpdate, Update
from tailrace.streaming.tools.approvals import ApprovalRequest
from tailrace.wrappers import ContentPartToolCall, History, Message, Role
from tailrace.wrappers.concurrency.worker_thread import json_cost, run_bounded
from tailrace.wrappers.conversion.tool_matching import calls_without_result


class AgentHandler(Handler):
    """Runs each turn of a task as a turn of an agent.

    Text, reasoning and the arguments of tool calls are streamed. A round is added to the conversation when it is complete. After
    a crash or a stop, a turn is resumed after its last complete round.

    If the model calls a tool that the caller declared, the turn ends with INPUT_REQUIRED. The caller continues the task with the
    tool results. A call that requires an approval ends the turn in the same way. The next turn runs the call if the caller
    approves it.

    Subclasses can override `run`, which yields one update at a time, or `run_in_batches`, which yields batches of updates.

    Args:
        agent: The agent. The handler closes it when the server stops.
        on_lost_result: See `tailrace.server.runtime.lost_results`.
    """

    continues_after_crash = True

    def __init__(self, agent: Agent[Any], *, on_lost_result: LostResultPolicy = "error") -> None:
        self._agent = agent
        self._on_lost_result: LostResultPolicy = on_lost_result
        self.accepts_native_tools = agent.model.accepts_native_tools
        self._overrides_run = type(self).run is not AgentHandler.run

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Connect the agent's tools until the block ends. Then disconnect the tools and close the model."""
        async with self._agent:
            yield

    async def cancel_interrupted(self, interrupted: InterruptedResponse) -> None:
        """Cancel a response that a provider still generates."""
        await self._agent.cancel_interrupted(interrupted)

    def check(self, caller_options: CallerOptions) -> None:
        """Check that no tool of the caller has the name of a tool of the agent.

        Raises:
            InvalidParamsError: A tool of the caller has the name of a tool of the agent.
        """
        for name in caller_options.tool_names:
            if self._agent.has_tool(name):
                raise InvalidParamsError(
                    f"metadata: {EXTENSION_URI}: tools: the agent already has a tool named {name!r}; choose "
                    "another name"
                )

    def message_to_store(self, message: A2AMessage) -> A2AMessage:
        """Remove provider-specific metadata, which the converter would send to the provider unchanged."""
        return without_provider_metadata(message)

    async def run(self, turn: Turn) -> AsyncIterator[Item]:
        """Yield the updates of a turn, one at a time."""
        updates = self._run_agent(turn) if self._overrides_run else self.run_in_batches(turn)
        async with aclosing(await updates) as batches:
            async for items in batches:
                for item in items:
                    yield item

    async def run_in_batches(self, turn: Turn) -> AsyncGenerator[Sequence[Item]]:
        """Return the updates of a turn in batches. If the provider fails, the task fails, and keeps the received text."""
        return await (super().run_in_batches(turn) if self._overrides_run else self._run_agent(turn))

    async def _run_agent(self, turn: Turn) -> AsyncGenerator[Sequence[Item]]:
        history, opening, decided, request_of = await run_bounded(turn.cost, self._prepared, turn)
        if isinstance(opening[-1], StatusUpdate) and opening[-1].state.interrupted:
            return _only(opening)
        options = turn.caller_options.options
        accumulator = self._agent.create_accumulator(history, collect_output=False)
        reader = self._agent.reader
        if options.output is not None:
            cost = json_cost(options.output.schema_)
            reader = await run_bounded(cost, OutputReader.of_format, options.output)
        translator = TurnTranslator(
            accumulator,
            turn=turn.number,
            rounds=sum(message.role is Role.MODEL for message in _messages_before_crash(turn)),
            results=sum(len(message.tool_results) for message in _messages_before_crash(turn)),
            reader=reader,
            max_event_bytes=turn.max_event_bytes,
            first_updates=opening,
            request_of=request_of,
            published=turn.published,
        )
        return self._agent.drive(
            accumulator,
            translator,
            options=options,
            task_id=turn.task_id,
            context_id=turn.context_id,
            external_context_id=turn.external_context_id,
            interrupted=turn.interrupted,
            decided=decided,
            wait_until_persisted=turn.wait_until_persisted,
        )

    def _prepared(
        self, turn: Turn
    ) -> tuple[History, list[Update | MessageAdded], DecidedCalls | None, RequestOf]:
        """Return the conversation, the first updates of the turn, the decided calls, and a function for approval requests.

        If results of the caller are missing, the last update ends the turn.

        Raises:
            AgentError: As for `first_calls`.
        """
        opening: list[Update | MessageAdded] = [StatusUpdate(TaskState.WORKING)]
        history = turn.history
        if history.system_message != turn.caller_options.instructions:
            history = history.model_copy(update={"system_message": turn.caller_options.instructions})
        calls = _open_calls(history)
        requests = {request.call_id: request for request in recorded_pending(turn.message)}

        def request_of(call: ContentPartToolCall) -> ApprovalRequest | None:
            """Return the approval request of a call, or None. An earlier request is reused, so its expiry does not change."""
            return requests.get(call.id) or self._agent.approval_request(call)

        first, repetitions = first_calls(turn, calls, request_of, self._agent, self._on_lost_result)
        requests.update(repetitions)
        owed = calls if first is None and (_ends_in_results(history) or turn.resumed_message_count) else ()
        if owed:
            opening.append(StatusUpdate(TaskState.INPUT_REQUIRED, waiting_message(owed, request_of)))
        return history, opening, first, request_of


async def _only(items: Sequence[Item]) -> AsyncGenerator[Sequence[Item]]:
    yield items


def _messages_before_crash(turn: Turn) -> Sequence[Message]:
    """Return the messages that the turn had added to the conversation before it was interrupted."""
    conversation = turn.history.conversation
    return conversation[len(conversation) - turn.resumed_message_count :]


def _ends_in_results(history: History) -> bool:
    return bool(history.conversation) and history.conversation[-1].role is Role.TOOL


def _open_calls(history: History) -> Sequence[ContentPartToolCall]:
    conversation = history.conversation
    last = max((at for at, message in enumerate(conversation) if message.role is Role.MODEL), default=None)
    if last is None:
        return ()
    return calls_without_result(history, since=last)

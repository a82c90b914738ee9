"""An agent (a model with tools) as a handler: what happens in its turn becomes updates of the task."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from tailrace.server.runtime.caller_content import without_provider_metadata
from tailrace.server.runtime.handlers import Handler, Item, Turn
from tailrace.streaming.a2a.errors import InvalidParamsError
from tailrace.streaming.a2a.extension import EXTENSION_URI
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Message as A2AMessage
from tailrace.streaming.agent.agent import Agent
from tailrace.streaming.agent.request_facts import RequestFacts, facts_cost
from tailrace.streaming.conversion.conversation import results_message
from tailrace.streaming.conversion.translator import calls_message
from tailrace.streaming.conversion.turn_translator import TurnTranslator
from tailrace.streaming.schemas.output import OutputReader
from tailrace.streaming.task.updates import MessageAdded, StatusUpdate, Update
from tailrace.wrappers import ContentPartToolCall, ContentPartToolResult, History, Message, Role
from tailrace.wrappers.concurrency.worker_thread import history_cost, json_cost, run_bounded
from tailrace.wrappers.conversion.options import RequestOptions
from tailrace.wrappers.conversion.tool_ids import unanswered_calls

_LOST = "the server stopped before the tool had answered; whether it did anything is not known"


class AgentHandler(Handler):
    """Answers each turn of a task by a turn of an agent.

    Text, reasoning and the arguments of calls are shown as they come, results of tools when they are there. What
    was said joins the conversation round by round: after a crash, a turn that is begun again goes on behind its last
    whole round. Calls of tools that the caller declared (`tailrace.streaming.agent.request_facts`) end the turn
    INPUT_REQUIRED, and their results, in a message to the same task, continue it.

    A class derived from this one overrides `run` or `begin`. An overridden `run` is driven update by update.

    Args:
        agent: Closed with the handler.
    """

    def __init__(self, agent: Agent[Any]) -> None:
        self._agent = agent
        self.accepts_native_tools = agent.model.accepts_native_tools
        self._overrides_run = type(self).run is not AgentHandler.run

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Connect the agent's tools; disconnect them and close the model at the end."""
        async with self._agent:
            yield

    def check(self, facts: RequestFacts) -> None:
        """Refuse tools of the caller's that have the name of one of the agent's."""
        for name in facts.tool_names:
            if self._agent.has_tool(name):
                raise InvalidParamsError(
                    f"metadata: {EXTENSION_URI}: tools: the agent has a tool named {name!r} itself: give yours "
                    "another name"
                )

    def received(self, message: A2AMessage) -> A2AMessage:
        """Remove provider-specific metadata, which the model's converter would send as it is."""
        return without_provider_metadata(message)

    async def run(self, turn: Turn) -> AsyncIterator[Item]:
        """The updates of a turn, one at a time."""
        begun = self._begin_agent(turn) if self._overrides_run else self.begin(turn)
        async with aclosing(await begun) as batches:
            async for items in batches:
                for item in items:
                    yield item

    async def begin(self, turn: Turn) -> AsyncGenerator[Sequence[Item]]:
        """Prepare a turn; an upstream that fails ends the task FAILED with what arrived persisted."""
        return await (super().begin(turn) if self._overrides_run else self._begin_agent(turn))

    async def _begin_agent(self, turn: Turn) -> AsyncGenerator[Sequence[Item]]:
        cost = history_cost(turn.history) + facts_cost(turn.facts)
        history, opening, options = await run_bounded(cost, _prepared, turn)
        if isinstance(opening[-1], StatusUpdate) and opening[-1].state.interrupted:
            return _only(opening)
        fold = self._agent.begin(history, collect_output=False)
        reader = self._agent.reader
        if options.output is not None:
            cost = json_cost(options.output.schema_)
            reader = await run_bounded(cost, OutputReader.of_format, options.output)
        translator = TurnTranslator(
            fold,
            turn=turn.number,
            rounds=sum(message.role is Role.MODEL for message in _behind(turn)),
            reader=reader,
            max_event_bytes=turn.max_event_bytes,
            opening=opening,
        )
        return self._agent.drive(
            fold,
            translator,
            options=options,
            task_id=turn.task_id,
            context_id=turn.context_id,
            external_context_id=turn.external_context_id,
        )


def _prepared(turn: Turn) -> tuple[History, list[Update | MessageAdded], RequestOptions]:
    """Return the conversation for the model, the first updates of a turn, and its options.

    The last of the updates ends the turn if the caller has not sent the results of all calls yet.
    """
    opening: list[Update | MessageAdded] = [StatusUpdate(TaskState.WORKING)]
    history = turn.history
    if history.system_message != turn.facts.instructions:
        history = history.model_copy(update={"system_message": turn.facts.instructions})
    lost = _calls_lost(turn)
    if lost:
        results = tuple(
            ContentPartToolResult(id=each.id, name=each.name, output=_LOST, is_error=True) for each in lost
        )
        history = history.with_message(Message(role=Role.TOOL, content=results))
        opening.append(MessageAdded(results_message(history.conversation[-1])))
    owed = _open_calls(history) if _ends_in_results(history) else ()
    if owed:
        opening.append(StatusUpdate(TaskState.INPUT_REQUIRED, calls_message(owed)))
    return history, opening, turn.facts.options


async def _only(items: Sequence[Item]) -> AsyncGenerator[Sequence[Item]]:
    yield items


def _behind(turn: Turn) -> Sequence[Message]:
    """Return the messages of a turn that a crash interrupted."""
    conversation = turn.history.conversation
    return conversation[len(conversation) - turn.resumed :]


def _calls_lost(turn: Turn) -> Sequence[ContentPartToolCall]:
    """Return the calls whose tools were running when a crash interrupted the turn: their effects are unknown."""
    if not turn.resumed:
        return ()
    theirs = turn.facts.tool_names
    return [call for call in _open_calls(turn.history) if call.name not in theirs]


def _ends_in_results(history: History) -> bool:
    """Return whether tool results are last; if the round is incomplete, the caller has to send the rest."""
    return bool(history.conversation) and history.conversation[-1].role is Role.TOOL


def _open_calls(history: History) -> Sequence[ContentPartToolCall]:
    """Return the calls of the last round without results."""
    conversation = history.conversation
    last = max((at for at, message in enumerate(conversation) if message.role is Role.MODEL), default=0)
    return unanswered_calls(history, since=last)

"""An agent (a model with tools) as a handler: what happens in its turn becomes updates of the task."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

from tailrace.server.handlers import AtOnce, Handler, Item, Turn
from tailrace.streaming.a2a.errors import InvalidParamsError
from tailrace.streaming.agent import Agent, open_calls
from tailrace.streaming.conversation import results_message
from tailrace.streaming.extension import EXTENSION_URI
from tailrace.streaming.lifecycle import TaskState
from tailrace.streaming.output import OutputReader
from tailrace.streaming.request_facts import RequestFacts
from tailrace.streaming.run import AgentError, Received
from tailrace.streaming.translator import calls_message
from tailrace.streaming.turn_translator import TurnTranslator
from tailrace.streaming.updates import Said, StatusUpdate
from tailrace.wrappers import ContentPartToolCall, ContentPartToolResult, History, Message, Role
from tailrace.wrappers.tool_ids import unanswered_calls

_LOST = "the server stopped before the tool had answered; whether it did anything is not known"


class AgentHandler(Handler):
    """Answers each turn of a task by a turn of an agent.

    Text, reasoning and the arguments of calls are shown as they come, results of tools when they are there. What
    was said joins the conversation round by round: after a crash, a turn that is begun again goes on behind its last
    whole round. Calls of tools that the caller declared (`tailrace.streaming.request_facts`) end the turn
    INPUT_REQUIRED, and their results, in a message to the same task, continue it.

    Args:
        agent: Closed with the handler.
    """

    def __init__(self, agent: Agent[Any]) -> None:
        self._agent = agent

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Connect the agent's tools; disconnect them and close the model at the end."""
        async with self._agent:
            yield

    def check(self, facts: RequestFacts) -> None:
        """Refuse tools of the caller's that have the name of one of the agent's."""
        for tool in facts.tools:
            if self._agent.has_tool(tool.name):
                raise InvalidParamsError(
                    f"metadata: {EXTENSION_URI}: tools: the agent has a tool named {tool.name!r} itself: give yours "
                    "another name"
                )

    async def run(self, turn: Turn) -> AsyncIterator[Item]:
        """Stream the turn; an upstream that fails ends the task FAILED with what arrived kept."""
        yield StatusUpdate(TaskState.WORKING)
        history = turn.history
        if history.system_message != turn.facts.instructions:
            history = history.model_copy(update={"system_message": turn.facts.instructions})
        lost = _calls_lost(turn)
        if lost:
            results = tuple(
                ContentPartToolResult(id=each.id, name=each.name, output=_LOST, is_error=True)
                for each in lost
            )
            history = history.with_message(Message(role=Role.TOOL, content=results))
            yield Said(results_message(history.conversation[-1]))
        owed = _open_calls(history) if _ends_in_results(history) else ()
        if owed:
            yield StatusUpdate(TaskState.INPUT_REQUIRED, calls_message(owed))
            return
        folded = self._agent.begin(history)
        asked = turn.facts.options
        translator = TurnTranslator(
            folded,
            turn=turn.number,
            rounds=sum(message.role is Role.MODEL for message in _behind(turn)),
            reader=self._agent.reader if asked.output is None else OutputReader.of_format(asked.output),
            max_event_bytes=turn.max_event_bytes,
        )
        steps = self._agent.steps(
            folded,
            options=asked,
            task_id=turn.task_id,
            context_id=turn.context_id,
            taker=None if turn.at_once is None else _Taker(translator, turn.at_once),
        )
        error: AgentError | None = None
        try:
            async with aclosing(steps):
                async for step in steps:
                    for item in translator.take(step):
                        yield item
                    del step  # not held while the next is waited for, or taken
        except AgentError as given:
            error = given
        for item in translator.close(open_calls(folded), error):
            yield item


class _Taker:
    """Shows the usual steps of a turn where they arrive.

    Args:
        translator: Says what they amount to.
        at_once: Carries it out.
    """

    __slots__ = ("_at_once", "_translate")

    def __init__(self, translator: TurnTranslator, at_once: AtOnce) -> None:
        self._at_once = at_once
        self._translate = translator.take

    @property
    def ready(self) -> bool:
        return self._at_once.ready

    def take(self, step: Received) -> None:
        for item in self._translate(step):
            self._at_once.show(item)


def _behind(turn: Turn) -> Sequence[Message]:
    """What the turn had come to when a crash interrupted it."""
    conversation = turn.history.conversation
    return conversation[len(conversation) - turn.resumed :]


def _calls_lost(turn: Turn) -> Sequence[ContentPartToolCall]:
    """The calls whose tools were running when a crash interrupted the turn: nobody knows what they did."""
    if not turn.resumed:
        return ()
    theirs = {tool.name for tool in turn.facts.tools}
    return [call for call in _open_calls(turn.history) if call.name not in theirs]


def _ends_in_results(history: History) -> bool:
    """Whether tools have answered last; where a round is not whole then, the caller owes the rest."""
    return bool(history.conversation) and history.conversation[-1].role is Role.TOOL


def _open_calls(history: History) -> Sequence[ContentPartToolCall]:
    """The calls of the last round that nobody has answered."""
    conversation = history.conversation
    last = max((at for at, message in enumerate(conversation) if message.role is Role.MODEL), default=0)
    return unanswered_calls(history, since=last)

"""One turn of an agent as a state machine: responses and tool results in, the next action out. Sans-IO.

A turn is one or more rounds: a request to the model, its response, and the results of the tools that the response calls.
`AgentTurn` decides the next action; the driver does the IO (`tailrace.streaming.agent.agent.Agent.drive`)::

    while True:
        action = turn.next_action()
        if isinstance(action, CallModel):
            response = turn.fold.begin_response()
            async with model.stream(action.history, action.options) as batches:
                async for chunks in batches:
                    show(response.add_all(chunks))
            show(turn.end_response())
        elif isinstance(action, RunTools):
            for call in action.calls:
                turn.tool_result(run(call))
            turn.end_round()
        else:
            break
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import msgspec

from tailrace.streaming.accumulator import Accumulator
from tailrace.streaming.agent.events import AgentError, Step
from tailrace.streaming.turn_accumulator import TurnAccumulator
from tailrace.wrappers import (
    Change,
    ContentPartToolCall,
    ContentPartToolResult,
    FinishReason,
    History,
    UpstreamError,
)
from tailrace.wrappers.conversion.options import NO_OPTIONS, RequestOptions

S = TypeVar("S", covariant=True)

NO_NAMES: frozenset[str] = frozenset()

_REFUSED = frozenset({FinishReason.CONTENT_FILTER, FinishReason.RECITATION})
_FORCED = ("required", "tool")  # choices with which a model would call tools without end


class CallModel(msgspec.Struct, frozen=True):
    """Send a request to the model, feed the response (`TurnAccumulator.begin_response`), then `AgentTurn.end_response`.

    Attributes:
        history: The conversation to send.
        options: The options of the request.
    """

    history: History
    options: RequestOptions


class RunTools(msgspec.Struct, frozen=True):
    """Run tools; then `AgentTurn.tool_result` for each, in any order, and `AgentTurn.end_round`.

    Attributes:
        calls: The calls of the last response that the agent runs itself.
    """

    calls: tuple[ContentPartToolCall, ...]


class AwaitInput(msgspec.Struct, frozen=True):
    """The turn has ended, and the caller must run tools before the next one.

    Attributes:
        calls: The calls to run.
    """

    calls: tuple[ContentPartToolCall, ...]


class Done(msgspec.Struct, frozen=True):
    """The turn has ended: with a response, or with the `TurnAccumulator.error` of a provider."""


Action = CallModel | RunTools | AwaitInput | Done
"""The next action of a turn."""


class TurnView(Protocol[S]):
    """Creates the items that the driver of a turn yields from its steps, in order."""

    def begin(self) -> Sequence[S]:
        """Return the items before the first request."""
        ...

    def begin_response(self, response: Accumulator) -> Callable[[list[Change]], S]:
        """Begin a response; return the function that creates an item from its changes."""
        ...

    def take(self, step: Step) -> S:
        """Return the item for another step."""
        ...

    def close(self, error: AgentError | None) -> Sequence[S]:
        """Return the items after the last step.

        Args:
            error: The reason why the turn has no result; to be raised, or to be part of the items.
        """
        ...


class AgentTurn:
    """The rounds of one turn.

    Args:
        fold: The messages of the turn; folds the responses.
        options: The options of every request of the turn. A tool choice that forces a call applies to the first request
            only, so that the turn can end.
        prepare: Returns the history to send for that of the turn: with instructions, and shortened.
        callers_tools: Names of the tools that the caller runs.
        has_tools: The request declares tools. If not, the model knows its tools from elsewhere, and the caller runs them.
        max_rounds: The maximum number of requests of the turn.

    Attributes:
        fold: As given.
    """

    __slots__ = (
        "_action",
        "_callers_tools",
        "_has_tools",
        "_max_rounds",
        "_may_repeat",
        "_options",
        "_prepare",
        "_results",
        "_round",
        "fold",
    )

    def __init__(
        self,
        fold: TurnAccumulator,
        *,
        options: RequestOptions = NO_OPTIONS,
        prepare: Callable[[History], History] = lambda history: history,
        callers_tools: frozenset[str] = NO_NAMES,
        has_tools: bool = False,
        max_rounds: int = 1,
    ) -> None:
        self.fold = fold
        self._options = options
        self._prepare = prepare
        self._callers_tools = callers_tools
        self._has_tools = has_tools
        self._max_rounds = max_rounds
        self._round = 0  # the number of requests so far
        self._may_repeat = False  # a response without content, after tools, is requested again
        self._results: dict[str, ContentPartToolResult] = {}
        self._action: Action | None = None  # None: another request

    def next_action(self) -> Action:
        """Return the next action; the same until it was carried out.

        Raises:
            AgentError: The turn has used all its rounds.
        """
        if self._action is None:
            if self._round == self._max_rounds:
                raise AgentError(
                    f"the model called tools in all {self._max_rounds} rounds of the turn",
                    self.fold.messages,
                )
            self._round += 1
            self._action = CallModel(self._prepare(self.fold.history), self._options)
        return self._action

    def fail(self, error: UpstreamError) -> None:
        """Record that the request failed, or the response broke off; `end_response` must follow."""
        self.fold.fail_response(error)

    def end_response(self) -> list[Change]:
        """End the response; return text that was held back, if any."""
        fold = self.fold
        count = len(fold.messages)
        is_last = not self._may_repeat or self._round == self._max_rounds
        keep_empty = is_last or fold.finish_reason in (*_REFUSED, FinishReason.LENGTH)
        changes = fold.end_response(keep_empty=keep_empty)
        self._action = self._after_response(is_empty=len(fold.messages) == count)
        return changes

    def tool_result(self, result: ContentPartToolResult) -> None:
        """Add the result of one call."""
        self._results[result.id] = result

    def end_round(self) -> None:
        """End a round: the results of all its calls are added as one message, in the order of the calls."""
        assert isinstance(self._action, RunTools)  # noqa: S101 — the action of the driver
        calls = self._action.calls
        self.fold.add_results(*(self._results.pop(call.id) for call in calls))
        unanswered = self.fold.unanswered_calls
        self._may_repeat = True
        choice = self._options.tool_choice
        if choice is not None and choice.mode in _FORCED:
            self._options = self._options.model_copy(update={"tool_choice": None})
        self._action = AwaitInput(unanswered) if unanswered else None

    def _after_response(self, *, is_empty: bool) -> Action | None:
        fold = self.fold
        if fold.error is not None or fold.finish_reason in _REFUSED or ends_in_half_a_call(fold):
            return Done()
        if self._may_repeat and is_empty:
            self._may_repeat = False
            return None
        calls = fold.unanswered_calls
        if not calls:
            return Done()
        known = self._has_tools or bool(self._callers_tools)
        ours = tuple(call for call in calls if known and call.name not in self._callers_tools)
        if not ours:
            return AwaitInput(calls)
        return RunTools(ours) if self._round < self._max_rounds else None


def ends_in_half_a_call(fold: TurnAccumulator) -> bool:
    """Return whether the last response reached its length limit within a tool call, which cannot be run then."""
    return fold.finish_reason is FinishReason.LENGTH and any(
        call.arguments_error is not None for call in fold.unanswered_calls
    )


def open_calls(fold: TurnAccumulator) -> tuple[ContentPartToolCall, ...]:
    """Return the calls that the caller must run after a turn; none of a response that was refused."""
    return () if fold.finish_reason in _REFUSED else fold.unanswered_calls

"""The state machine for one turn of an agent. Sans-IO.

`AgentTurn` receives responses and tool results, and returns the next action. `tailrace.streaming.agent.driver.TurnDriver`
performs the actions::

    while True:
        action = turn.next_action()
        if isinstance(action, CallModel):
            response = turn.accumulator.begin_response()
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
from tailrace.wrappers.request_options import NO_OPTIONS, RequestOptions

S = TypeVar("S", covariant=True)

NO_NAMES: frozenset[str] = frozenset()

_REFUSED = frozenset({FinishReason.CONTENT_FILTER, FinishReason.RECITATION})
_FORCED = ("required", "tool")  # modes of tool choice with which a model calls tools in every round


class CallModel(msgspec.Struct, frozen=True):
    """Action: send a request, add the response (`TurnAccumulator.begin_response`), then call `AgentTurn.end_response`."""

    history: History
    options: RequestOptions


class RunTools(msgspec.Struct, frozen=True):
    """Action: run tools, call `AgentTurn.tool_result` for each result, in any order, then call `AgentTurn.end_round`.

    Attributes:
        calls: Calls of the last response, or approved calls of the history.
    """

    calls: tuple[ContentPartToolCall, ...]


class DecidedCalls(msgspec.Struct, frozen=True):
    """Calls of the last response in the history, after their approvals have been decided.

    Attributes:
        open: All calls of the response that have no result.
        approved: The calls to run, with the digests of their approvals.
        results: The results of the calls that do not run.
    """

    open: tuple[ContentPartToolCall, ...]
    approved: tuple[tuple[ContentPartToolCall, str], ...] = ()
    results: tuple[ContentPartToolResult, ...] = ()


class AwaitInput(msgspec.Struct, frozen=True):
    """Action: the turn has ended. The caller must run tools or approve calls before the next turn."""

    calls: tuple[ContentPartToolCall, ...]


class Done(msgspec.Struct, frozen=True):
    """Action: the turn has ended with a response, or with an error of the provider in `TurnAccumulator.error`."""


Action = CallModel | RunTools | AwaitInput | Done
"""The next action of a turn."""


class TurnView(Protocol[S]):
    """Converter of the steps of a turn into the items that `TurnDriver` yields. It receives the steps in order."""

    def begin(self) -> Sequence[S]:
        """Return the items to yield before the first step."""
        ...

    def begin_response(self, response: Accumulator) -> Callable[[list[Change]], S]:
        """Begin a response. Return the function that converts changes of the response into an item."""
        ...

    def translate(self, step: Step) -> S:
        """Return the item for a step of any type except `Received`."""
        ...

    def close(self, error: AgentError | None) -> Sequence[S]:
        """Return the items to yield after the last step.

        Args:
            error: The error that ended the turn, or None. The view either raises the error or converts it into items.
        """
        ...


class AgentTurn:
    """The state machine of one turn.

    Args:
        accumulator: The accumulator of the turn. It contains the messages of the turn.
        options: The options of every request of the turn. A tool choice that forces a call applies only until the agent has
            run tools in this turn.
        prepare: Function that converts the history of the turn to the history of a request: it adds instructions and shortens
            the history.
        callers_tools: Names of the tools that the caller runs.
        has_tools: True if the agent declares tools. If neither the agent nor the caller declares tools, the caller runs all
            calls.
        max_rounds: Maximum number of rounds in the turn.
        needs_approval: Function that returns True for a call that may run only after an approval.
        decided: Calls of the history whose approvals have been decided; None if there are none.
    """

    __slots__ = (
        "_action",
        "_callers_tools",
        "_has_tools",
        "_max_rounds",
        "_may_request_again",
        "_needs_approval",
        "_options",
        "_prepare",
        "_results",
        "_round",
        "accumulator",
    )

    def __init__(
        self,
        accumulator: TurnAccumulator,
        *,
        options: RequestOptions = NO_OPTIONS,
        prepare: Callable[[History], History] = lambda history: history,
        callers_tools: frozenset[str] = NO_NAMES,
        has_tools: bool = False,
        max_rounds: int = 1,
        needs_approval: Callable[[ContentPartToolCall], bool] = lambda _: False,
        decided: DecidedCalls | None = None,
    ) -> None:
        self.accumulator = accumulator
        self._needs_approval = needs_approval
        self._options = options
        self._prepare = prepare
        self._callers_tools = callers_tools
        self._has_tools = has_tools
        self._max_rounds = max_rounds
        self._round = 0
        self._may_request_again = False  # True if an empty response after tool results may be requested again
        self._results: dict[str, ContentPartToolResult] = {}
        self._action: Action | None = None  # None if the next action is another request
        if decided is not None:
            accumulator.resume_calls(decided.open)
            self._action = RunTools(tuple(call for call, _ in decided.approved))

    def next_action(self) -> Action:
        """Return the next action. It remains the same until the driver has performed it.

        Raises:
            AgentError: Another request is needed after ``max_rounds`` rounds.
        """
        if self._action is None:
            if self._round == self._max_rounds:
                raise AgentError(
                    f"the model called tools in all {self._max_rounds} rounds of the turn",
                    self.accumulator.messages,
                )
            self._round += 1
            self._action = CallModel(self._prepare(self.accumulator.history), self._options)
        return self._action

    def fail(self, error: UpstreamError) -> None:
        """Record that the request failed or that the response broke off. The driver must then call `end_response`."""
        self.accumulator.fail_response(error)

    def end_response(self) -> list[Change]:
        """End the response and return the changes from the text that was still buffered."""
        accumulator = self.accumulator
        count = len(accumulator.messages)
        is_last = not self._may_request_again or self._round == self._max_rounds
        keep_empty = is_last or accumulator.finish_reason in (*_REFUSED, FinishReason.LENGTH)
        changes = accumulator.end_response(keep_empty=keep_empty)
        self._action = self._after_response(is_empty=len(accumulator.messages) == count)
        return changes

    def tool_result(self, result: ContentPartToolResult) -> None:
        """Add the result of one call."""
        self._results[result.id] = result

    def end_round(self) -> None:
        """End a round. Add the results of its calls as one message, in the order of the calls."""
        assert isinstance(self._action, RunTools)  # noqa: S101 — the driver has just run tools
        calls = [call for call in self.accumulator.calls_without_result if call.id in self._results]
        self.accumulator.add_results(*(self._results.pop(call.id) for call in calls))
        unanswered = self.accumulator.calls_without_result
        self._may_request_again = True
        choice = self._options.tool_choice
        if choice is not None and choice.mode in _FORCED:
            self._options = self._options.model_copy(update={"tool_choice": None})
        self._action = AwaitInput(unanswered) if unanswered else None

    def _after_response(self, *, is_empty: bool) -> Action | None:
        accumulator = self.accumulator
        if (
            accumulator.error is not None
            or accumulator.finish_reason in _REFUSED
            or has_truncated_call(accumulator)
        ):
            return Done()
        if self._may_request_again and is_empty:
            self._may_request_again = False
            return None
        calls = accumulator.calls_without_result
        if not calls:
            return Done()
        known = self._has_tools or bool(self._callers_tools)
        agent_calls = tuple(
            call
            for call in calls
            if known and call.name not in self._callers_tools and not self._needs_approval(call)
        )
        if not agent_calls:
            return AwaitInput(calls)
        return RunTools(agent_calls) if self._round < self._max_rounds else None


def has_truncated_call(accumulator: TurnAccumulator) -> bool:
    """Return True if the last response reached its length limit within a tool call, so that the call cannot run."""
    return accumulator.finish_reason is FinishReason.LENGTH and any(
        call.arguments_error is not None for call in accumulator.calls_without_result
    )


def open_calls(accumulator: TurnAccumulator) -> tuple[ContentPartToolCall, ...]:
    """Return the calls that the caller must run or approve after a turn; none if a filter stopped the last response."""
    return () if accumulator.finish_reason in _REFUSED else accumulator.calls_without_result

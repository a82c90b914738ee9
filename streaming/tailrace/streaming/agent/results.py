"""The result of a turn of an agent, and the errors of a turn without a usable result."""

from typing import Any

from tailrace.streaming.agent.events import AgentError, BrokenRunError, ChatResult
from tailrace.streaming.agent.turn import has_truncated_call, open_calls
from tailrace.streaming.turn_accumulator import TurnAccumulator, TurnDelta
from tailrace.wrappers import FinishReason

_REFUSED = frozenset({FinishReason.CONTENT_FILTER, FinishReason.RECITATION})


def result_of(turn: TurnAccumulator, delta: TurnDelta, *, last: bool = False) -> ChatResult[str]:
    """Return a result with new content; ``last`` is True for the last result of the turn."""
    return ChatResult(
        output=delta.output,
        messages=delta.messages,
        reasoning=delta.reasoning,
        finish_reason=turn.finish_reason if last else None,
        usage=turn.total_usage if last else None,
        metadata=delta.metadata,
        id=turn.id,
        files=delta.files,
        linked_files=delta.linked_files,
        open_calls=open_calls(turn) if last else (),
        replaces=delta.replaces,
    )


def with_output(result: ChatResult[str], output: object) -> ChatResult[Any]:
    """Return a copy of a result with another output."""
    fields = {name: getattr(result, name) for name in ChatResult.__slots__ if name != "output"}
    return ChatResult(output=output, **fields)


def check_completeness(turn: TurnAccumulator) -> None:
    """Raise an error if the responses of a turn are incomplete.

    Raises:
        BrokenRunError: The provider failed, or a response broke off.
        AgentError: A response reached its length limit within a tool call.
    """
    if turn.error is not None:
        raise BrokenRunError(turn.error, turn.messages) from turn.error
    if has_truncated_call(turn):
        raise AgentError("the response reached its length limit in the middle of a tool call", turn.messages)


def output_error(turn: TurnAccumulator, error: AgentError) -> AgentError:
    """Return the error for a text that is not the requested output, given the error of the parser.

    The reason may be an incomplete response or a refusal.
    """
    reason = str(error)
    refusal = turn.messages[-1].metadata.get("refusal")
    if turn.finish_reason is FinishReason.LENGTH:
        reason = "the response reached its length limit before it was complete"
    elif refusal or turn.finish_reason in _REFUSED:
        reason = f"the model refused the requested output: {refusal or turn.finish_reason}"
    return AgentError(reason, turn.messages)

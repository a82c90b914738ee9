"""Tool calls that were running when the server stopped. Their results are lost, and their effects are unknown.

A turn that runs again begins with these calls. A call of an idempotent tool (`Tool`) runs again. For other calls, the policy
applies:

- ``error``: the model receives an error as the result.
- ``ask``: the caller is asked for an approval to run the call again. If the call cannot be approved, the result is an error.
- ``fail``: the task fails.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from tailrace.server.runtime.approvals import LOST, decided_calls, error_result
from tailrace.server.runtime.handlers import Turn
from tailrace.streaming.agent.agent import Agent
from tailrace.streaming.agent.events import AgentError
from tailrace.streaming.agent.turn import DecidedCalls
from tailrace.streaming.conversion.approval_parts import RequestOf
from tailrace.streaming.tools.approvals import ApprovalRequest
from tailrace.wrappers import ContentPartToolCall, ContentPartToolResult

LostResultPolicy = Literal["error", "ask", "fail"]


def first_calls(
    turn: Turn,
    calls: Sequence[ContentPartToolCall],
    request_of: RequestOf,
    agent: Agent[Any],
    policy: LostResultPolicy,
) -> tuple[DecidedCalls | None, Mapping[str, ApprovalRequest]]:
    """Return the calls with which a turn begins, or None. Also return the requests to run calls again, by call id.

    Args:
        turn: The turn.
        calls: The calls of the conversation without a result.
        request_of: Returns the approval request of a call; None if it requires no approval.
        agent: The agent.
        policy: The policy for calls that are not idempotent.

    Raises:
        AgentError: The result of a call was lost, and the policy is ``fail``.
    """
    decided = decided_calls(turn.message, calls)
    if decided is None:
        lost = _running_calls(turn, calls, request_of)
        if not lost:
            return None, {}
        decided = DecidedCalls(tuple(calls))
    else:
        lost = [(call, digest) for call, digest in decided.approved if call.id in turn.executing_call_ids]
    approved = [pair for pair in decided.approved if pair not in lost]
    results: list[ContentPartToolResult] = [*decided.results]
    requests: dict[str, ApprovalRequest] = {}
    for call, digest in lost:
        if agent.is_idempotent(call):
            approved.append((call, digest))
        elif policy == "fail":
            raise AgentError(f"{call.name}: {LOST}")
        elif policy == "ask" and (request := agent.repetition_request(call, LOST)) is not None:
            requests[call.id] = request
        else:
            results.append(error_result(call, LOST))
    return DecidedCalls(decided.open, tuple(approved), tuple(results)), requests


def _running_calls(
    turn: Turn, calls: Sequence[ContentPartToolCall], request_of: RequestOf
) -> Sequence[tuple[ContentPartToolCall, str]]:
    """Return the calls that need no approval and were running when the turn was interrupted, each with an empty digest."""
    if not turn.resumed_message_count:
        return ()
    return [
        (call, "")
        for call in calls
        if call.name not in turn.caller_options.tool_names and request_of(call) is None
    ]

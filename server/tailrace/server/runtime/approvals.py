"""Decisions of callers about tool calls that wait for an approval.

`decided_message` checks the decisions in a message, and records them in its metadata. One event both stores the decisions and
changes the state of the task. Two decisions about one call therefore cannot both be accepted.

Before a turn runs approved calls, it writes their ids as ``executing`` to the log, and waits until this event is persisted. If
the server then crashes, the results of these calls are lost (`tailrace.server.runtime.lost_results`).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

from tailrace.server.runtime.caller import Caller
from tailrace.streaming.a2a.errors import InvalidParamsError
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Message, Task
from tailrace.streaming.agent.turn import DecidedCalls
from tailrace.streaming.conversion.approval_parts import (
    approval_requests,
    approval_responses,
    recorded_decisions,
    with_recorded_decisions,
)
from tailrace.streaming.conversion.message_conversion import is_callers
from tailrace.streaming.tools.approvals import (
    ApprovalDecision,
    ApprovalRequest,
    RecordedDecision,
    call_digest,
)
from tailrace.wrappers import ConfigurationError, ContentPartToolCall, ContentPartToolResult
from tailrace.wrappers.messages import shortened

LOST = "the server stopped before the tool returned a result; the tool may have had an effect"
"""The error for a call that was running when the server stopped."""

NOT_BEGUN = "the server stopped before the approved call ran; the tool did not run"
"""The error for an approved call whose task failed before the call began."""

_CALLER = "caller"
_SCOPES, _ROLES = ("scope", "scp"), ("role", "roles")

Approvers = Callable[[Caller], bool]


def parse_approvers(setting: str) -> Approvers:
    """Return a function that decides whether a caller may approve calls of the caller's own tasks.

    Args:
        setting: ``caller`` for all callers; ``scope:NAME`` or ``role:NAME`` for callers with a token that has this scope or role.

    Raises:
        ConfigurationError: The setting has none of these forms.
    """
    if setting == _CALLER:
        return lambda _: True
    kind, _, name = setting.partition(":")
    members = {"scope": _SCOPES, "role": _ROLES}.get(kind)
    if members is None or not name:
        raise ConfigurationError(f"approvers {setting!r}: not caller, scope:NAME or role:NAME")
    return lambda caller: any(name in _names(caller.claims.get(member)) for member in members)


def _names(value: object) -> Collection[str]:
    if isinstance(value, str):
        return value.split()
    return [str(each) for each in cast("list[object]", value)] if isinstance(value, list) else ()


def waiting_requests(task: Task) -> list[ApprovalRequest]:
    """Return the approval requests of a task that have no decision yet."""
    if task.status.state is not TaskState.INPUT_REQUIRED:
        return []
    return approval_requests(task.status.message)


def decided_message(message: Message, task: Task | None, *, may_approve: bool) -> Message:
    """Return a caller's message whose metadata records its decisions, and the approval requests that remain without a decision.

    Args:
        message: The message.
        task: The task of the message; None for a new task.
        may_approve: True if the caller may decide about calls.

    Raises:
        InvalidParamsError: A decision is malformed, is about no waiting call, is too late, or is not permitted.
    """
    try:
        responses = approval_responses(message)
    except ValueError as error:
        raise InvalidParamsError(f"message: {error}") from None
    waiting = {request.digest: request for request in waiting_requests(task)} if task is not None else {}
    if not responses and not waiting:
        return message
    if responses and not may_approve:
        raise InvalidParamsError("message: the caller may not approve tool calls (TAILRACE_APPROVERS)")
    decisions: list[RecordedDecision] = []
    for response in responses:
        request = waiting.pop(response.digest, None)
        if request is None:
            raise InvalidParamsError(
                f"message: no call with the digest {shortened(response.digest)} waits for an approval (taskId must name "
                f"the task of the call); waiting digests: {', '.join(waiting) or 'none'}"
            )
        decisions.append(_recorded(request, response))
    turn = sum(map(is_callers, task.history)) if task is not None else 0
    return with_recorded_decisions(message, turn, decisions, waiting.values())


def _recorded(request: ApprovalRequest, response: ApprovalDecision) -> RecordedDecision:
    if response.decision == "reject":
        return RecordedDecision(
            request.call_id, request.digest, "reject", response.reason, lost=bool(request.reason)
        )
    if datetime.now(UTC) >= request.expires_at:
        raise InvalidParamsError(
            f"message: the time to approve the call of {request.name} ended at {request.expires_at.isoformat()}; "
            "reject the call, or send another message"
        )
    if response.decision == "approve":
        return RecordedDecision(request.call_id, request.digest, "approve")
    call = ContentPartToolCall(id=request.call_id, name=request.name, arguments=response.arguments or {})
    try:
        digest = call_digest(call)
    except ValueError as error:
        raise InvalidParamsError(f"message: {error}") from None
    return RecordedDecision(request.call_id, digest, "edit", arguments=response.arguments)


def decided_calls(message: Message, calls: Sequence[ContentPartToolCall]) -> DecidedCalls | None:
    """Return the approved calls and the results of rejected calls in a message; None if it has no decisions.

    Args:
        message: The message of the turn.
        calls: The calls of the conversation without a result. Calls with an ``edit`` decision must already have the new
            arguments.
    """
    if not calls:
        return None
    decisions = {each.call_id: each for each in recorded_decisions(message)}
    decided = [(call, decisions[call.id]) for call in calls if call.id in decisions]
    if not decided:
        return None
    results: list[ContentPartToolResult] = []
    approved: list[tuple[ContentPartToolCall, str]] = []
    for call, decision in decided:
        if decision.decision == "reject":
            reason = f": {decision.reason}" if decision.reason else ""
            outcome = f"{LOST}; it did not run again" if decision.lost else "the tool did not run"
            results.append(error_result(call, f"the user rejected the call{reason}; {outcome}"))
        else:
            approved.append((call, decision.digest))
    return DecidedCalls(tuple(calls), tuple(approved), tuple(results))


def results_after_stop(
    message: Message, calls: Sequence[ContentPartToolCall], executing: Collection[str]
) -> list[ContentPartToolResult]:
    """Return results for the decided calls of an interrupted turn that is not run again.

    Args:
        message: The message with the decisions.
        calls: The calls of the conversation without a result.
        executing: The ids of the calls that had begun to run.
    """
    decided = decided_calls(message, calls)
    if decided is None:
        return []
    results = list(decided.results)
    for call, _ in decided.approved:
        results.append(error_result(call, LOST if call.id in executing else NOT_BEGUN))
    return results


def decided_ids(message: Message) -> frozenset[str]:
    """Return the ids of the calls about which a message has decisions."""
    return frozenset(each.call_id for each in recorded_decisions(message))


def executing_ids(metadata: Mapping[str, Any]) -> frozenset[str]:
    """Return the ids of approved calls that had begun to run, from the extension metadata of a task."""
    ids: object = metadata.get("executing")
    return frozenset(map(str, cast("list[object]", ids))) if isinstance(ids, list) else frozenset()


def error_result(call: ContentPartToolCall, text: str) -> ContentPartToolResult:
    """Return an error as the result of a call."""
    return ContentPartToolResult(id=call.id, name=call.name, output=text, is_error=True)

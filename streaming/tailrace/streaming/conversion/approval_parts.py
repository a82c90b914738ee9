"""The representation of approvals in A2A messages.

A data part in the message of the status ``input-required`` contains approval requests::

    {"approval_requests": [{"call_id", "name", "arguments", "canonical_arguments", "digest", "expires_at", "reason"}]}

A data part in the next message of the caller contains decisions::

    {"approval_responses": [{"digest", "decision": "approve" | "reject" | "edit", "reason", "arguments"}]}

The server records the decisions in the metadata of this message, as ``approvals`` under the URI of the extension:
``{"turn", "decisions": [{"callId", "digest", "decision", "reason", "arguments", "lost"}], "pending": [request, …]}``.
``turn`` is the number of the turn that requested the approvals. ``pending`` contains requests without a decision.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast
from uuid import uuid4

from tailrace.streaming.a2a.models import Message, Part, Role
from tailrace.streaming.a2a.stream_extension import (
    EXTENSION_URI,
    extension_metadata,
    with_extension_metadata,
    without_extension_metadata,
)
from tailrace.streaming.conversion.message_conversion import to_common_message
from tailrace.streaming.conversion.response_translator import calls_message
from tailrace.streaming.tools.approvals import ApprovalDecision, ApprovalRequest, RecordedDecision
from tailrace.wrappers import ContentPartToolCall
from tailrace.wrappers import Message as CommonMessage
from tailrace.wrappers.messages import shortened

REQUESTS = "approval_requests"
RESPONSES = "approval_responses"
APPROVAL_CHANNEL = "approval"
"""The channel of parts with approval requests. Protocols with their own representation omit these parts."""

RequestOf = Callable[[ContentPartToolCall], ApprovalRequest | None]
_DECISIONS = ("approve", "reject", "edit")
_MEMBERS = ("digest", "decision", "reason", "arguments")


def waiting_message(calls: Sequence[ContentPartToolCall], request_of: RequestOf) -> Message:
    """Return the message of a task that waits for the caller: the calls that the caller must run, and approval requests.

    Args:
        calls: The calls without a result.
        request_of: Function that returns the approval request for a call; None if the caller must run the call.
    """
    requests_of_calls = [(call, request_of(call)) for call in calls]
    requests = [request for _, request in requests_of_calls if request is not None]
    client_calls = [call for call, request in requests_of_calls if request is None]
    if not requests:
        return calls_message(client_calls)
    parts = calls_message(client_calls).parts if client_calls else ()
    return Message(
        message_id=str(uuid4()),
        role=Role.AGENT,
        parts=(
            *parts,
            Part(
                text=approval_text(requests),
                metadata=with_extension_metadata({}, channel=APPROVAL_CHANNEL),
            ),
            requests_part(requests),
        ),
        extensions=(EXTENSION_URI,),
    )


def approval_text(requests: Iterable[ApprovalRequest]) -> str:
    """Return a text for users: the names of the tools that require an approval, and the reasons."""
    names = [f"{each.name} ({each.reason})" if each.reason else each.name for each in requests]
    return f"Approval required: {', '.join(dict.fromkeys(names))}"


def requests_part(requests: Iterable[ApprovalRequest]) -> Part:
    """Return the data part with approval requests."""
    return Part(
        data={REQUESTS: [request_entry(request) for request in requests]},
        metadata=with_extension_metadata({}, channel=APPROVAL_CHANNEL),
    )


def request_entry(request: ApprovalRequest) -> dict[str, Any]:
    """Return a request as a JSON object."""
    return {
        "call_id": request.call_id,
        "name": request.name,
        "arguments": json.loads(request.arguments),
        "canonical_arguments": request.arguments,
        "digest": request.digest,
        "expires_at": time_text(request.expires_at),
        **({"reason": request.reason} if request.reason else {}),
    }


def time_text(time: datetime) -> str:
    """Return a time in UTC in the format of ISO 8601."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def approval_requests(message: Message | None) -> list[ApprovalRequest]:
    """Return the approval requests in a message of the agent."""
    if message is None:
        return []
    entries = [entry for part in message.parts for entry in _entries(part, REQUESTS)]
    return [request for entry in entries if (request := _request(entry)) is not None]


def without_requests(message: Message) -> Message:
    """Return a message of the agent without approval requests and the text about them."""
    parts = tuple(
        part for part in message.parts if extension_metadata(part.metadata).get("channel") != APPROVAL_CHANNEL
    )
    return message.model_copy(update={"parts": parts})


def approval_responses(message: Message) -> list[ApprovalDecision]:
    """Return the decisions in a message of the caller.

    Raises:
        ValueError: An entry is invalid, or the message has parts other than decisions and tool results.
    """
    entries = [entry for part in message.parts for entry in _entries(part, RESPONSES)]
    if entries and not all(
        _entries(part, RESPONSES) or _entries(part, "tool_results") for part in message.parts
    ):
        raise ValueError(f"a message with {RESPONSES} has no other parts but tool_results")
    return [_decision(entry, f"{RESPONSES}[{at}]") for at, entry in enumerate(entries)]


def decisions_data(decisions: Iterable[ApprovalDecision]) -> dict[str, Any]:
    """Return the data of a part with decisions."""
    entries: list[dict[str, Any]] = []
    for each in decisions:
        entry: dict[str, Any] = {"digest": each.digest, "decision": each.decision}
        if each.reason:
            entry["reason"] = each.reason
        if each.arguments is not None:
            entry["arguments"] = each.arguments
        entries.append(entry)
    return {RESPONSES: entries}


def with_recorded_decisions(
    message: Message, turn: int, decisions: Iterable[RecordedDecision], pending: Iterable[ApprovalRequest]
) -> Message:
    """Record decisions in the metadata of a caller's message.

    Args:
        message: The message.
        turn: The number of the turn that requested the approvals.
        decisions: The decisions.
        pending: The approval requests that remain without a decision.
    """
    fields = {
        "turn": turn,
        "decisions": [
            {
                "callId": each.call_id,
                "digest": each.digest,
                "decision": each.decision,
                "reason": each.reason,
                "arguments": each.arguments,
                **({"lost": True} if each.lost else {}),
            }
            for each in decisions
        ],
        "pending": [request_entry(request) for request in pending],
    }
    return message.model_copy(
        update={"metadata": with_extension_metadata(message.metadata, approvals=fields)}
    )


def recorded_decisions(message: Message) -> list[RecordedDecision]:
    """Return the decisions that the server recorded in a message of the caller."""
    return [
        RecordedDecision(
            each["callId"],
            each["digest"],
            each["decision"],
            each["reason"],
            each.get("arguments"),
            each.get("lost", False),
        )
        for each in _recorded(message).get("decisions", ())
    ]


def recorded_turn(message: Message) -> int:
    """Return the number of the turn whose approvals a message of the caller decides."""
    return _recorded(message).get("turn", 1)


def recorded_pending(message: Message) -> list[ApprovalRequest]:
    """Return the approval requests that a caller's message left without a decision."""
    requests = map(_request, _recorded(message).get("pending", ()))
    return [request for request in requests if request is not None]


def to_common_messages(messages: Iterable[Message]) -> list[CommonMessage]:
    """Convert the messages of a conversation for a model. Decisions are removed, and ``edit`` decisions are applied to calls."""
    common: list[CommonMessage] = []
    for message in messages:
        if "approvals" not in extension_metadata(message.metadata):
            common.append(to_common_message(message))
            continue
        edited = {each.call_id: each for each in recorded_decisions(message) if each.decision == "edit"}
        if edited:
            common = [_with_arguments(each, edited) for each in common]
        rest = without_decisions(message)
        if rest is not None:
            common.append(to_common_message(rest))
    return common


def without_decisions(message: Message) -> Message | None:
    """Remove the decisions from a message. Return None if the message has no other parts."""
    if "approvals" not in extension_metadata(message.metadata):
        return message
    parts = tuple(part for part in message.parts if not _entries(part, RESPONSES))
    metadata = without_extension_metadata(message.metadata, "approvals")
    return message.model_copy(update={"parts": parts, "metadata": metadata}) if parts else None


def _with_arguments(message: CommonMessage, edits: Mapping[str, RecordedDecision]) -> CommonMessage:
    if not any(call.id in edits for call in message.tool_calls):
        return message
    content = tuple(
        edited_call(part, edits[part.id].arguments or {})
        if isinstance(part, ContentPartToolCall) and part.id in edits
        else part
        for part in message.content
    )
    return message.model_copy(update={"content": content})


def edited_call(call: ContentPartToolCall, arguments: dict[str, Any]) -> ContentPartToolCall:
    """Return a call with other arguments."""
    if call.kind == "custom":
        return call.model_copy(update={"arguments_text": str(arguments.get("input", ""))})
    return call.model_copy(update={"arguments": arguments, "arguments_json": None})


def _fields(value: object) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _recorded(message: Message) -> Mapping[str, Any]:
    return _fields(extension_metadata(message.metadata).get("approvals"))


def _entries(part: Part, name: str) -> list[object]:
    data: object = part.data
    entries = cast("dict[str, object]", data).get(name) if isinstance(data, dict) else None
    return cast("list[object]", entries) if isinstance(entries, list) else []


def _request(entry: object) -> ApprovalRequest | None:
    fields = _fields(entry)
    names = ("call_id", "name", "canonical_arguments", "digest", "expires_at")
    texts = [fields.get(name) for name in names]
    if not all(isinstance(text, str) for text in texts):
        return None  # a request of a remote agent in another format
    *values, expires_at = cast("list[str]", texts)
    reason = fields.get("reason", "")
    if not isinstance(reason, str):
        return None
    try:
        return ApprovalRequest(*values, expires_at=datetime.fromisoformat(expires_at), reason=reason)
    except ValueError:
        return None


def _decision(entry: object, path: str) -> ApprovalDecision:
    fields = _fields(entry)
    digest, decision, reason = fields.get("digest"), fields.get("decision"), fields.get("reason") or ""
    arguments: object = fields.get("arguments")
    if not isinstance(digest, str):
        raise ValueError(f"{path}.digest: must be the digest of an approval request")
    if decision not in _DECISIONS:
        raise ValueError(f"{path}.decision: {shortened(decision)} is not one of {', '.join(_DECISIONS)}")
    if not isinstance(reason, str):
        raise ValueError(f"{path}.reason: must be text")
    if decision == "edit" and not isinstance(arguments, dict):
        raise ValueError(f"{path}.arguments: edit requires the new arguments, a JSON object")
    if decision != "edit" and arguments is not None:
        raise ValueError(
            f"{path}.arguments: {decision} does not change the arguments; to run the call with these arguments, "
            "send the decision edit"
        )
    if unknown := sorted(fields.keys() - set(_MEMBERS)):
        raise ValueError(f"{path}: unknown member {shortened(unknown[0])}; members: {', '.join(_MEMBERS)}")
    new_arguments = cast("dict[str, Any]", arguments) if decision == "edit" else None
    return ApprovalDecision(digest, cast("Any", decision), reason, new_arguments)

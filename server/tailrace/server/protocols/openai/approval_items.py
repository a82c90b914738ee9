"""Items of the Responses API for approvals of tool calls.

The output of a response contains ``mcp_approval_request`` items. The input of the next request contains ``mcp_approval_response``
items. The id of an approval request is ``mcpr_TASK_TURN_DIGEST``: ``TASK_TURN`` identifies the response, and ``DIGEST`` the call.

Items with other ids belong to tools that the provider runs, and are forwarded to the provider. With this API, clients cannot
change the arguments of a call.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tailrace.server.protocols.conversation_lookup import response_id_of_item
from tailrace.server.protocols.encoder import Fields
from tailrace.server.protocols.openai_error import OpenAIError
from tailrace.server.runtime.approvals import waiting_requests
from tailrace.streaming.a2a.models import Message, Task
from tailrace.streaming.conversion.approval_parts import approval_responses, recorded_decisions, recorded_turn
from tailrace.streaming.conversion.message_conversion import is_callers
from tailrace.streaming.tools.approvals import ApprovalDecision, ApprovalRequest, canonical_arguments
from tailrace.wrappers import ContentPartToolCall

REQUEST_PREFIX = "mcpr"
"""The prefix of the ids of approval requests."""

_RESPONSE_PREFIX = "mcpa"

_DIGEST = re.compile(r"[0-9a-f]{64}")

_REQUEST, _RESPONSE = "mcp_approval_request", "mcp_approval_response"

# Items that the model created, or that refer to such an item. The caller's new items follow the last of them and the last message
# of the assistant.
_MODEL_ITEMS = (_REQUEST, "item_reference", "reasoning", "function_call", "custom_tool_call")

_SERVER_LABEL = "tailrace"  # the API requires a label, even if the tools do not belong to an MCP server


class Decisions(NamedTuple):
    """The approval decisions in the input of a request.

    Attributes:
        items: The input without the approval items of this server. If there are decisions, items up to the last item of the model
            are also omitted. System and developer messages remain.
        decisions: The decisions about pending calls; may be empty.
        response: The id of the response that requested the decisions; empty if ``decisions`` is empty.
    """

    items: list[dict[str, Any]]
    decisions: list[ApprovalDecision]
    response: str


def pending_items(task: Task) -> list[Fields]:
    """Return an item for each undecided approval request of a task."""
    turn = sum(map(is_callers, task.history))
    prefix = f"{REQUEST_PREFIX}_{task.id}_{turn}"
    return [{"id": f"{prefix}_{each.digest}", **approval_item(each)} for each in waiting_requests(task)]


def approval_item(request: ApprovalRequest) -> Fields:
    """Return the item for an approval request, without its id."""
    return _request_fields(request.name, request.arguments)


def _request_fields(name: str, arguments: str) -> Fields:
    return {"type": _REQUEST, "name": name, "arguments": arguments, "server_label": _SERVER_LABEL}


def decision_items(
    message: Message, calls: Mapping[str, ContentPartToolCall]
) -> Iterator[tuple[str, list[Fields]]]:
    """Yield, for each decision in a message, the id of the call, and the items of the request and the decision."""
    recorded, response_name = recorded_decisions(message), f"{message.task_id}_{recorded_turn(message)}"
    for response, decision in zip(approval_responses(message) if recorded else (), recorded, strict=True):
        request_id = f"{REQUEST_PREFIX}_{response_name}_{response.digest}"
        call = calls.get(decision.call_id)
        if call is None:
            continue  # the message with the call was deleted
        answered: Fields = {
            "id": f"{_RESPONSE_PREFIX}_{response_name}_{response.digest}",
            "type": _RESPONSE,
            "approval_request_id": request_id,
            "approve": decision.decision != "reject",
            "reason": decision.reason or None,
        }
        yield (
            decision.call_id,
            [{"id": request_id, **_request_fields(call.name, canonical_arguments(call))}, answered],
        )


def read_decisions(items: Sequence[dict[str, Any]]) -> Decisions:
    """Return the decisions after the last item of the model in the input of a request.

    Raises:
        OpenAIError: A decision is invalid.
    """
    begins = 1 + max((at for at, item in enumerate(items) if _is_models(item)), default=-1)
    responses = [item for item in items[begins:] if item.get("type") == _RESPONSE and _is_ours(item)]
    if not responses:
        return Decisions([item for item in items if not _is_ours(item)], [], "")
    instructions = [item for item in items[:begins] if item.get("role") in ("system", "developer")]
    other_items = [item for item in items[begins:] if not _is_ours(item)]
    decisions = [_decision(item) for item in responses]
    response = response_id_of_item(responses[0]["approval_request_id"])
    return Decisions([*instructions, *other_items], decisions, response)


def _is_models(item: Mapping[str, Any]) -> bool:
    return item.get("role") == "assistant" or item.get("type") in _MODEL_ITEMS


def _is_ours(item: Mapping[str, Any]) -> bool:
    """Return whether this server requested the approval of an item."""
    item_id: object = item.get(
        {_REQUEST: "id", _RESPONSE: "approval_request_id"}.get(str(item.get("type")), "")
    )
    if not isinstance(item_id, str):
        return False
    response, _, digest = item_id.rpartition("_")
    prefix, _, turn = response.partition("_")
    task_id, _, number = turn.rpartition("_")
    is_response = prefix == REQUEST_PREFIX and task_id[:1] not in ("", "_") and number.isdecimal()
    return is_response and _DIGEST.fullmatch(digest) is not None


def _decision(item: Mapping[str, Any]) -> ApprovalDecision:
    request_id, approve, reason = item["approval_request_id"], item.get("approve"), item.get("reason")
    if not isinstance(approve, bool):
        raise _invalid("'approve' must be a boolean")
    if reason is not None and not isinstance(reason, str):
        raise _invalid("'reason' must be text")
    digest = request_id.rpartition("_")[2]
    return ApprovalDecision(digest, "approve" if approve else "reject", reason or "")


def _invalid(problem: str) -> OpenAIError:
    return OpenAIError(400, f"Invalid value for 'input': {problem}", param="input", code="invalid_value")

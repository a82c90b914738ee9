"""Converts a stored conversation to messages of the AI SDK, for a page that was reloaded.

The agent's messages between two messages of the user become one message, with its id from the stream of the response.
"""

import json
from collections.abc import Iterable, Iterator, Sequence

from tailrace.server.protocols.conversation_comparison import calls_run_here
from tailrace.server.protocols.encoder import Fields
from tailrace.server.protocols.task_events import is_mapping
from tailrace.streaming.a2a.models import Message as A2AMessage
from tailrace.streaming.a2a.models import Role as A2ARole
from tailrace.streaming.agent.caller_options import without_caller_options
from tailrace.streaming.conversion.approval_parts import recorded_decisions, without_decisions
from tailrace.streaming.conversion.message_conversion import is_callers, to_common_message
from tailrace.streaming.tools.approvals import ApprovalRequest, RecordedDecision
from tailrace.wrappers import (
    ContentPartData,
    ContentPartFile,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    Message,
)
from tailrace.wrappers.conversion.files import data_url


def ui_messages(stored: Iterable[A2AMessage], waiting: Sequence[ApprovalRequest] = ()) -> list[Fields]:
    """Return a conversation as ``UIMessage`` objects.

    Args:
        stored: The messages of the conversation, oldest first.
        waiting: The calls that wait for an approval.
    """
    stored = list(stored)
    snapshot = _Snapshot(calls_run_here(stored) | {request.call_id for request in waiting})
    for each in stored:
        snapshot.add(each)
    for request in waiting:
        snapshot.add_request(request)
    return snapshot.messages


class _Snapshot:
    """Converts the messages of a conversation one after the other.

    Args:
        ran_here: The ids of the calls that the client does not run, or that wait for an approval.
    """

    def __init__(self, ran_here: frozenset[str]) -> None:
        self.messages: list[Fields] = []
        self._ran_here = ran_here
        self._turns: dict[str, int] = {}
        self._calls: dict[str, Fields] = {}
        self._parts: list[Fields] | None = None  # of the agent's message; None after a user's message

    def add(self, stored: A2AMessage) -> None:
        """Add the next message."""
        if is_callers(stored):
            self._turns[stored.task_id] = self._turns.get(stored.task_id, 0) + 1
        for decision in recorded_decisions(stored):
            self._add_decision(decision)
        rest = without_decisions(stored)
        if rest is None:
            return
        message = to_common_message(without_caller_options(rest))
        for result in message.tool_results:
            self._add_result(result)
        if is_callers(stored):
            parts = [part for each in message.content if (part := _content_part(each)) is not None]
            if parts or not message.tool_results:
                self.messages.append({"id": stored.message_id, "role": "user", "parts": parts})
                self._parts = None
        elif stored.role is A2ARole.AGENT:
            if self._parts is None:
                self._parts = self._start(stored)
            self._parts += [{"type": "step-start"}, *self._agents_parts(message)]

    def _start(self, stored: A2AMessage) -> list[Fields]:
        parts: list[Fields] = []
        message: Fields = {"id": stored.message_id, "role": "assistant", "parts": parts}
        if stored.task_id:
            turn = self._turns.get(stored.task_id, 1)
            message["id"] = stored.task_id if turn == 1 else f"{stored.task_id}-{turn}"
            message["metadata"] = {"taskId": stored.task_id, "contextId": stored.context_id}
        self.messages.append(message)
        return parts

    def _agents_parts(self, message: Message) -> Iterator[Fields]:
        for each in message.content:
            if isinstance(each, ContentPartToolCall):
                yield self._call(each)
            elif (part := _content_part(each, {"state": "done"})) is not None:
                yield part
        refusal = message.metadata.get("refusal")
        if isinstance(refusal, str):
            yield {"type": "text", "text": refusal, "state": "done"}

    def _call(self, call: ContentPartToolCall) -> Fields:
        arguments = call.arguments_text if call.arguments_text is not None else call.arguments
        part: Fields = {"type": f"tool-{call.name}", "toolCallId": call.id}
        if call.id in self._ran_here:
            part = {
                "type": "dynamic-tool",
                "toolName": call.name,
                "toolCallId": call.id,
                "providerExecuted": True,
            }
        part |= {"state": "input-available", "input": arguments}
        if call.arguments_error:
            part |= {"state": "output-error", "errorText": call.arguments_error}
        self._calls[call.id] = part
        return part

    def add_request(self, request: ApprovalRequest) -> None:
        """Add a request for the approval of a call."""
        part = self._calls.get(request.call_id)
        if part is not None:
            part |= {"state": "approval-requested", "approval": {"id": request.digest}}

    def _add_decision(self, decision: RecordedDecision) -> None:
        part = self._calls.get(decision.call_id)
        if part is None:
            return
        approval: Fields = {"id": decision.digest, "approved": decision.decision != "reject"}
        if decision.reason:
            approval["reason"] = decision.reason
        part |= {"state": "approval-responded", "approval": approval}
        if decision.arguments is not None:
            part["input"] = decision.arguments

    def _add_result(self, result: ContentPartToolResult) -> None:
        part = self._calls.get(result.id)
        if part is None:
            return
        if part.get("approval", {}).get("approved") is False:
            part["state"] = "output-denied"
            return
        if not result.is_error:
            part |= {"state": "output-available", "output": result.output}
            return
        output = result.output
        text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
        part |= {"state": "output-error", "errorText": text}


def _content_part(part: object, state: Fields | None = None) -> Fields | None:
    match part:
        case ContentPartText(text=text):
            return {"type": "text", "text": text, **(state or {})}
        case ContentPartReasoning(text=text) if text:
            return {"type": "reasoning", "text": text, **(state or {})}
        case ContentPartFile():
            return _file(part)
        case ContentPartData(data=data):
            name = data.get("name") if is_mapping(data) else None
            return {"type": "data-artifact", "data": {"name": name or "", "data": data}}
        case _:
            return None


def _file(part: ContentPartFile) -> Fields:
    media_type = part.media_type or "application/octet-stream"
    url = part.url if part.data is None else data_url(media_type, part.data)
    name: Fields = {"filename": part.filename} if part.filename else {}
    return {"type": "file", "mediaType": media_type, "url": url, **name}

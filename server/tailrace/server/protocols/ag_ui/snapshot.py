"""Converts a stored conversation to messages of AG-UI, for a client that joins a thread.

Messages of the agent have the same ids as in the streams in which they were first sent.
"""

import base64
import json
from collections.abc import Iterable, Iterator

from tailrace.server.protocols import ui_events
from tailrace.server.protocols.ag_ui.encoder import AgUiEncoder, message_id, result_id
from tailrace.server.protocols.encoder import Fields
from tailrace.server.protocols.markdown import markdown_of
from tailrace.server.runtime.approvals import waiting_requests
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.models import Message as A2AMessage
from tailrace.streaming.a2a.models import Role as A2ARole
from tailrace.streaming.a2a.models import Task
from tailrace.streaming.agent.caller_options import without_caller_options
from tailrace.streaming.conversion.approval_parts import recorded_decisions, without_decisions
from tailrace.streaming.conversion.message_conversion import is_callers, to_common_message
from tailrace.wrappers import ContentPartFile, ContentPartText, Message
from tailrace.wrappers.conversion.text_joining import message_text
from tailrace.wrappers.openai.converter import arguments_text


def snapshot(stored: Iterable[A2AMessage]) -> list[Fields]:
    """Return a conversation (oldest message first) in the format of AG-UI."""
    messages: list[Fields] = []
    turns: dict[str, int] = {}
    rounds: dict[str, int] = {}
    for each in stored:
        task_id = each.task_id
        if is_callers(each):
            turns[task_id] = turns.get(task_id, 0) + 1
            rounds[task_id] = 0
        for decision in recorded_decisions(each):
            if decision.arguments is not None:
                _replace_arguments(messages, decision.call_id, decision.arguments)
        rest = without_decisions(each)
        if rest is None:
            continue
        message = to_common_message(without_caller_options(rest))
        if is_callers(each):
            messages += _callers(message, each.message_id)
        elif each.role is A2ARole.AGENT:
            rounds[task_id] = rounds.get(task_id, 0) + 1
            own_id = message_id(task_id, turns.get(task_id, 1), rounds[task_id])
            messages += _agents(message, own_id if task_id else each.message_id)
        else:
            for result in message.tool_results:
                own_id = result_id(task_id, result.id) if task_id else f"{each.message_id}-{result.id}"
                messages.append(_result(result.id, result.output, result.is_error, own_id))
    return messages


def finished_run(encoder: AgUiEncoder, task: Task | None) -> list[bytes]:
    """Return the payloads of a run without a response."""
    message = task.status.message if task is not None else None
    waits = task is not None and task.status.state is TaskState.INPUT_REQUIRED and message is not None
    calls = to_common_message(message).tool_calls if waits else ()
    started = (
        ui_events.TurnStarted(task.id, task.context_id) if task is not None else ui_events.TurnStarted("", "")
    )
    ended = ui_events.TurnEnded(
        TaskState.COMPLETED,
        pending=tuple(call.id for call in calls),
        approvals=waiting_requests(task) if task is not None else (),
    )
    return encoder.payloads([started, ended])


def _replace_arguments(messages: Iterable[Fields], call_id: str, arguments: object) -> None:
    for message in messages:
        for call in message.get("toolCalls", ()):
            if call["id"] == call_id:
                call["function"]["arguments"] = json.dumps(arguments, ensure_ascii=False)


def _callers(message: Message, own_id: str) -> Iterator[Fields]:
    for result in message.tool_results:
        yield _result(result.id, result.output, result.is_error, f"{own_id}-{result.id}")
    files = [part for part in message.content if isinstance(part, ContentPartFile)]
    if not files:
        text = message_text(message)
        if text or not message.tool_results:
            yield {"id": own_id, "role": "user", "content": text}
        return
    parts = (part for part in message.content if isinstance(part, ContentPartText | ContentPartFile))
    yield {"id": own_id, "role": "user", "content": list(map(_part, parts))}


def _part(part: ContentPartText | ContentPartFile) -> Fields:
    if isinstance(part, ContentPartText):
        return {"type": "text", "text": part.text}
    kind = part.media_type.partition("/")[0]
    source: Fields = {"type": "url", "value": part.url}
    if part.data is not None:
        source = {"type": "data", "value": base64.b64encode(part.data).decode("ascii")}
    if part.media_type or part.data is not None:
        source["mimeType"] = part.media_type or "application/octet-stream"
    return {"type": kind if kind in ("image", "audio", "video") else "document", "source": source}


def _agents(message: Message, own_id: str) -> Iterator[Fields]:
    if message.reasoning:
        yield {"id": f"{own_id}-reasoning", "role": "reasoning", "content": message.reasoning}
    fields: Fields = {"id": own_id, "role": "assistant"}
    text = markdown_of(message.content, with_data=False)
    refusal = message.metadata.get("refusal")
    text += refusal if isinstance(refusal, str) else ""
    if text:
        fields["content"] = text
    calls = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": arguments_text(call)},
        }
        for call in message.tool_calls
    ]
    if calls:
        fields["toolCalls"] = calls
    if text or calls:
        yield fields


def _result(call_id: str, output: object, is_error: bool, own_id: str) -> Fields:
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    fields: Fields = {"id": own_id, "role": "tool", "toolCallId": call_id, "content": text}
    return {**fields, "error": text} if is_error else fields

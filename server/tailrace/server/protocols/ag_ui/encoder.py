"""Encodes a response as events of AG-UI 1.0 (https://docs.ag-ui.com).

Each round of the turn becomes one assistant message with the tool calls of the round. Results of the agent's tools become tool
messages. Files become Markdown text, because assistant messages cannot contain files.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tailrace.server.protocols import ui_events
from tailrace.server.protocols.encoder import Fields, UiEncoder
from tailrace.server.protocols.event_translator import EventTranslator
from tailrace.server.protocols.markdown import file_markdown
from tailrace.server.protocols.openai_error import OpenAIError
from tailrace.streaming.a2a.json_encoding import encode_text
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.streaming.conversion.approval_parts import approval_text, time_text
from tailrace.streaming.tools.approvals import ApprovalRequest
from tailrace.wrappers import ContentPartFile

PROTOCOL_VERSION = "1.0"
"""The supported version of AG-UI."""

RESPONSE_SCHEMA: Fields = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "reason": {"type": "string", "description": "Why the call is rejected."},
        "editedArgs": {"type": "object", "description": "Arguments that replace those of the call."},
    },
    "required": ["approved"],
}
"""The JSON schema of the decision about a call."""


class AgUiEncoder(UiEncoder):
    """Encodes a turn as the events of one AG-UI run.

    Args:
        messages: The earlier messages in the format of AG-UI, if the client joins the thread; otherwise None.
        has_outcome: Whether the client supports the outcomes of AG-UI 1.0. Clients of 0.x reject outcomes. They treat a run
            without an outcome as successful, and read the pending calls from the stream.
    """

    def __init__(
        self,
        translator: EventTranslator,
        thread_id: str,
        run_id: str,
        messages: Sequence[Fields] | None = None,
        *,
        has_outcome: bool = True,
    ) -> None:
        super().__init__(translator)
        self._snapshot = messages
        self._has_outcome = has_outcome
        self._run: Fields = {"threadId": thread_id, "runId": run_id}
        self._base = run_id  # prefix of message ids
        self._message_id = message_id(run_id, 1, 1)  # of the current round
        self._used_ids: set[str] = set()
        self._message_ids: dict[str, str] = {}  # by the id of the text
        self._open_calls: list[str] = []
        self._rewritten: set[str] = set()  # calls whose arguments changed after they were sent
        self._result: Fields = {}

    def error(self, error: OpenAIError) -> Fields:
        """Return the event for an error."""
        return {"type": "RUN_ERROR", "message": str(error), "code": error.code or "failed"}

    def encode(self, event: ui_events.UiEvent) -> Iterator[Fields]:
        """Yield the AG-UI events for a chat event that is not a delta."""
        match event:
            case ui_events.TurnStarted():
                yield from self._start(event)
            case ui_events.TextStarted(text_id, channel):
                yield from self._start_text(text_id, channel)
            case ui_events.TextEnded(text_id, "reasoning"):
                yield {"type": "REASONING_MESSAGE_END", "messageId": self._message_ids[text_id]}
                yield {"type": "REASONING_END", "messageId": self._message_ids[text_id]}
            case ui_events.TextEnded(text_id):
                yield {"type": "TEXT_MESSAGE_END", "messageId": self._message_ids[text_id]}
            case ui_events.RoundStarted(turn, number):
                self._message_id = message_id(self._base, turn, number)
            case ui_events.FileAdded(artifact_id, url, media_type, filename):
                file = ContentPartFile(url=url, media_type=media_type, filename=filename)
                own_id = self._new_message_id(artifact_id)
                yield {"type": "TEXT_MESSAGE_START", "messageId": own_id, "role": "assistant"}
                yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": own_id, "delta": file_markdown(file)}
                yield {"type": "TEXT_MESSAGE_END", "messageId": own_id}
            case ui_events.DataAdded(_, name, data, is_output):
                if is_output:
                    self._result = {"result": data}
                else:
                    yield {"type": "CUSTOM", "name": "artifact", "value": {"name": name, "data": data}}
            case ui_events.StateChanged(state, text):
                value = {"state": state, "message": text} if text else {"state": state}
                yield {"type": "CUSTOM", "name": "status", "value": value}
            case ui_events.TurnEnded():
                yield from self._end(event)
            case _:
                yield from self._encode_call(event)

    def _encode_call(self, event: ui_events.UiEvent) -> Iterator[Fields]:
        match event:
            case ui_events.CallStarted(call_id, name):
                self._open_calls.append(call_id)
                prefix = b'{"type":"TOOL_CALL_ARGS","toolCallId":%b,"delta":'
                self._arguments_prefixes[call_id] = prefix % encode_text(call_id)
                call = {"toolCallId": call_id, "toolCallName": name}
                yield {"type": "TOOL_CALL_START", **call, "parentMessageId": self._message_id}
            case ui_events.CallEnded(call, _, as_written):
                self._open_calls.remove(call.id)
                if not as_written:
                    self._rewritten.add(call.id)
                yield {"type": "TOOL_CALL_END", "toolCallId": call.id}
            case ui_events.CallResult(call_id, output):
                text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
                ids = {"messageId": result_id(self._base, call_id), "toolCallId": call_id}
                yield {"type": "TOOL_CALL_RESULT", **ids, "content": text, "role": "tool"}
            case _:
                pass

    def _start(self, event: ui_events.TurnStarted) -> Iterator[Fields]:
        started: Fields = {"type": "RUN_STARTED", **self._run, "protocolVersion": PROTOCOL_VERSION}
        if event.task_id:
            self._base = event.task_id
            self._message_id = message_id(self._base, event.first_turn, 1)
            fields = {"taskId": event.task_id, "contextId": event.context_id}
            started["metadata"] = {EXTENSION_URI: fields}
        yield started
        if self._snapshot is not None:
            yield {"type": "MESSAGES_SNAPSHOT", "messages": self._snapshot}

    def _start_text(self, text_id: str, channel: ui_events.Channel) -> Iterator[Fields]:
        if channel == "reasoning":
            kind, own_id = "REASONING_MESSAGE", f"{self._message_id}-{text_id}"
            yield {"type": "REASONING_START", "messageId": own_id}
            yield {"type": "REASONING_MESSAGE_START", "messageId": own_id, "role": "reasoning"}
        else:
            kind, own_id = "TEXT_MESSAGE", self._new_message_id(text_id)
            yield {"type": "TEXT_MESSAGE_START", "messageId": own_id, "role": "assistant"}
        self._message_ids[text_id] = own_id
        prefix = b'{"type":"%b_CONTENT","messageId":%b,"delta":'
        self._text_prefixes[text_id] = prefix % (kind.encode(), encode_text(own_id))

    def _new_message_id(self, text_id: str) -> str:
        """Return an id for the message of a text. The first text of a round gets the id of the round's message."""
        own_id = self._message_id
        if own_id in self._used_ids:
            own_id = f"{own_id}-{text_id}"
        self._used_ids.add(own_id)
        return own_id

    def _end(self, ended: ui_events.TurnEnded) -> Iterator[Fields]:
        for call_id in self._open_calls:
            yield {"type": "TOOL_CALL_END", "toolCallId": call_id}
        usage = _usage(ended)
        if ended.error is not None and ended.state is not TaskState.CANCELED:
            yield {**self.error(ended.error), **usage}
            return
        if not self._rewritten.isdisjoint(ended.pending):
            # Without this error, the client would run the call with the arguments that were already sent.
            yield {"type": "RUN_ERROR", "message": "the arguments of a call were rewritten", **usage}
            return
        finished: Fields = {"type": "RUN_FINISHED", **self._run, **usage, **self._result}
        if self._has_outcome:
            finished["outcome"] = _outcome(ended)
        if ended.error is None:
            finished["metadata"] = {EXTENSION_URI: {"finishReason": ended.finish}}
        yield finished


def _outcome(ended: ui_events.TurnEnded) -> Fields:
    if ended.error is not None:
        return {"type": "cancelled"}
    if ended.approvals:
        return {"type": "interrupt", "interrupts": [_interrupt(request) for request in ended.approvals]}
    return {"type": "success", **({"pendingToolCallIds": list(ended.pending)} if ended.pending else {})}


def _interrupt(request: ApprovalRequest) -> Fields:
    """Return the interrupt that requests the approval of a call. Its id is the digest of the call."""
    return {
        "id": request.digest,
        "reason": "tool_call",
        "message": approval_text([request]),
        "toolCallId": request.call_id,
        "responseSchema": RESPONSE_SCHEMA,
        "expiresAt": time_text(request.expires_at),
    }


def message_id(task_id: str, turn: int, number: int) -> str:
    """Return the id of the agent's message for a round of a turn."""
    return f"{task_id}-{turn}-{number}"


def result_id(task_id: str, call_id: str) -> str:
    """Return the id of the tool message with the result of an agent's tool."""
    return f"{task_id}-result-{call_id}"


def _usage(ended: ui_events.TurnEnded) -> Fields:
    if ended.usage is None:
        return {}
    names = ("inputTokens", "outputTokens", "totalTokens")
    counts: Fields = {name: count for name in names if isinstance(count := ended.usage.get(name), int)}
    model = ended.response.get("model")
    named: Mapping[str, Any] = {"model": model} if isinstance(model, str) else {}
    return {"usage": [{**named, **counts}]}

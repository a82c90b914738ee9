"""Encodes a response as a UI message stream, version 1, of Vercel's AI SDK.

See https://ai-sdk.dev/docs/ai-sdk-ui/stream-protocol, where a chunk is one JSON payload. Tools that the client declared become
static tools (``tool-NAME``). Tools that the agent runs become dynamic tools. Their calls are marked as executed by the provider,
so that the client does not run them. The id of an approval is the digest of the call.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tailrace.server.protocols import ui_events
from tailrace.server.protocols.encoder import Fields, UiEncoder
from tailrace.server.protocols.event_translator import EventTranslator
from tailrace.server.protocols.openai_error import OpenAIError
from tailrace.server.protocols.task_events import is_mapping
from tailrace.streaming.a2a.json_encoding import encode_text
from tailrace.streaming.a2a.lifecycle import TaskState

_FINISH = {"content_filter": "content-filter", "tool_calls": "tool-calls"}
_DONE = msgspec.Raw(b"[DONE]")
_BY_AGENT: Fields = {"providerExecuted": True, "dynamic": True}


class UiMessageEncoder(UiEncoder):
    """Encodes a turn as the chunks of one UI message.

    Args:
        message_id: The id of a message in the client's conversation that the response extends; empty for a new message.
    """

    def __init__(self, translator: EventTranslator, message_id: str = "") -> None:
        super().__init__(translator)
        self._message_id = message_id
        self._in_step = False

    def error(self, error: OpenAIError) -> Fields:
        """Return the chunk for an error."""
        return {"type": "error", "errorText": str(error)}

    def encode(self, event: ui_events.UiEvent) -> Iterator[Fields | msgspec.Raw]:
        """Yield the chunks for a chat event that is not a delta."""
        match event:
            case ui_events.TurnStarted():
                yield self._start(event)
            case ui_events.TextStarted(part_id, channel):
                prefix = b'{"type":"%b-delta","id":%b,"delta":'
                self._text_prefixes[part_id] = prefix % (channel.encode(), encode_text(part_id))
                yield from self._set_step(is_open=True)
                yield {"type": f"{channel}-start", "id": part_id}
            case ui_events.TextEnded(part_id, channel):
                yield {"type": f"{channel}-end", "id": part_id}
            case ui_events.RoundStarted():
                yield from self._set_step(is_open=False)
                yield from self._set_step(is_open=True)
            case ui_events.FileAdded(_, url, media_type):
                yield from self._set_step(is_open=True)
                yield {"type": "file", "url": url, "mediaType": media_type}
            case ui_events.DataAdded(artifact_id, name, data, is_output):
                yield from self._set_step(is_open=True)
                kind, value = ("output", data) if is_output else ("artifact", {"name": name, "data": data})
                yield {"type": f"data-{kind}", "id": artifact_id, "data": value}
            case ui_events.StateChanged(state, text):
                fields = {"message": text} if text else {}
                yield {"type": "data-status", "data": {"state": state, **fields}, "transient": True}
            case ui_events.TurnEnded():
                yield from self._end(event)
            case _:
                yield from self._encode_call(event)

    def _encode_call(self, event: ui_events.UiEvent) -> Iterator[Fields]:
        match event:
            case ui_events.CallStarted(call_id, name, declared):
                prefix = b'{"type":"tool-input-delta","toolCallId":%b,"inputTextDelta":'
                self._arguments_prefixes[call_id] = prefix % encode_text(call_id)
                yield from self._set_step(is_open=True)
                fields: Fields = {} if declared else _BY_AGENT
                yield {"type": "tool-input-start", "toolCallId": call_id, "toolName": name, **fields}
            case ui_events.CallEnded():
                yield _input(event)
            case ui_events.CallPending(call):
                fields = {"toolCallId": call.id, "toolName": call.name, "input": call.arguments}
                yield {"type": "tool-input-available", **fields, "providerExecuted": False, "dynamic": True}
            case ui_events.CallResult():
                yield _output(event)
            case _:
                pass

    def _start(self, event: ui_events.TurnStarted) -> Fields:
        turn = f"-{event.first_turn}" if event.first_turn > 1 else ""
        message_id = self._message_id or (event.task_id and f"{event.task_id}{turn}")
        start: Fields = {"type": "start", "messageId": message_id} if message_id else {"type": "start"}
        if event.task_id:
            start["messageMetadata"] = {"taskId": event.task_id, "contextId": event.context_id}
        return start

    def _set_step(self, *, is_open: bool) -> Iterator[Fields]:
        if self._in_step != is_open:
            self._in_step = is_open
            yield {"type": "start-step" if is_open else "finish-step"}

    def _end(self, ended: ui_events.TurnEnded) -> Iterator[Fields | msgspec.Raw]:
        for request in ended.approvals:
            yield {
                "type": "tool-approval-request",
                "approvalId": request.digest,
                "toolCallId": request.call_id,
            }
        yield from _sources(ended)
        yield from self._set_step(is_open=False)
        if ended.error is None:
            names = ("inputTokens", "outputTokens", "totalTokens")
            usage = {name: ended.usage.get(name, 0) for name in names} if ended.usage is not None else None
            metadata = {"usage": usage} if usage is not None else {}
            finish = _FINISH.get(ended.finish, ended.finish)
            yield {"type": "finish", "finishReason": finish, "messageMetadata": metadata}
        elif ended.state is TaskState.CANCELED:
            yield {"type": "abort", "reason": str(ended.error)}
        else:
            yield self.error(ended.error)
        yield _DONE


def _input(ended: ui_events.CallEnded) -> Fields:
    call = ended.call
    fields: Fields = {"toolCallId": call.id, "toolName": call.name, "input": ended.input}
    if not ended.declared:
        fields |= _BY_AGENT
    if call.arguments_error:
        return {"type": "tool-input-error", **fields, "errorText": call.arguments_error}
    return {"type": "tool-input-available", **fields}


def _output(result: ui_events.CallResult) -> Fields:
    if result.is_rejected:
        return {"type": "tool-output-denied", "toolCallId": result.id}
    fields: Fields = {"toolCallId": result.id, **({} if result.by_caller else _BY_AGENT)}
    if not result.is_error:
        return {"type": "tool-output-available", **fields, "output": result.output}
    output = result.output
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    return {"type": "tool-output-error", **fields, "errorText": text}


def _sources(ended: ui_events.TurnEnded) -> Iterator[Fields]:
    urls: set[str] = set()
    for annotation in ended.annotations:
        for fields in _objects_in(annotation):
            url, title = fields.get("url") or fields.get("uri"), fields.get("title")
            if not isinstance(url, str) or url in urls:
                continue
            urls.add(url)
            source = {"type": "source-url", "sourceId": f"source-{len(urls)}", "url": url}
            yield {**source, "title": title} if isinstance(title, str) else source


def _objects_in(annotation: object) -> Iterator[Mapping[str, Any]]:
    """Yield an annotation and the objects in it. Depending on the provider, the URL is in one of them."""
    if is_mapping(annotation):
        yield annotation
        yield from filter(is_mapping, annotation.values())

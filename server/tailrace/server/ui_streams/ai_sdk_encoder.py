"""The UI message stream of Vercel's AI SDK, version 1 (https://ai-sdk.dev/docs/ai-sdk-ui/stream-protocol). Sans-IO.

One chunk a happening. Tools that the client has declared are static tools of the client, ``tool-NAME``; those that the
agent runs are dynamic, and said to be run by the provider, so that the client neither calls nor waits for them.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tailrace.server.facade.errors import OpenAIError
from tailrace.server.facade.events import is_mapping
from tailrace.server.ui_streams.framing import encode_json
from tailrace.server.ui_streams.happenings import (
    ArgumentsAdded,
    Begun,
    CallAnswered,
    CallBegun,
    CallEnded,
    CallLeft,
    DataGiven,
    Ended,
    FileGiven,
    Happening,
    RoundBegun,
    StateChanged,
    TextAdded,
    TextBegun,
    TextEnded,
)
from tailrace.streaming.a2a.encoding import encode_text
from tailrace.streaming.lifecycle import TaskState

Fields = dict[str, Any]

_FINISH = {"content_filter": "content-filter", "tool_calls": "tool-calls"}
_DONE = b"[DONE]"
_BY_AGENT: Fields = {"providerExecuted": True, "dynamic": True}


class UiMessageEncoder:
    """Writes what happens in a turn as the chunks of one message.

    Args:
        message_id: Of the message that the client has begun already, and that goes on; empty for a new one, whose id
            is made of the task's.
    """

    def __init__(self, message_id: str = "") -> None:
        self._message_id = message_id
        self._prefixes: dict[tuple[type, str], bytes] = {}
        self._begun = False
        self._in_step = False

    def write(self, happenings: Iterable[Happening]) -> list[bytes]:
        """The chunks of what happened."""
        chunks: list[bytes] = []
        for happening in happenings:
            if isinstance(happening, TextAdded):
                chunks.append(self._prefix(happening) + encode_text(happening.text) + b"}")
            elif isinstance(happening, ArgumentsAdded):
                chunks.append(self._prefix(happening) + encode_text(happening.text) + b"}")
            else:
                if not self._begun:
                    chunks.append(self._begin(happening))
                chunks += map(_as_bytes, self._write(happening))
        return chunks

    def fail(self, error: OpenAIError) -> list[bytes]:
        """The last chunks of a stream whose end is not known."""
        return [encode_json({"type": "error", "errorText": str(error)})]

    def _prefix(self, happening: TextAdded | ArgumentsAdded) -> bytes:
        """What comes before the text of a delta, which is the same for all of its part."""
        key = (type(happening), happening.id)
        prefix = self._prefixes.get(key)
        if prefix is None:
            part_id = encode_text(happening.id)
            if isinstance(happening, ArgumentsAdded):
                prefix = b'{"type":"tool-input-delta","toolCallId":%b,"inputTextDelta":' % part_id
            else:
                prefix = b'{"type":"%b-delta","id":%b,"delta":' % (happening.channel.encode(), part_id)
            self._prefixes[key] = prefix
        return prefix

    def _begin(self, happening: Happening) -> bytes:
        self._begun = True
        start: Fields = {"type": "start"}
        if isinstance(happening, Begun):
            turn = f"-{happening.first_turn}" if happening.first_turn > 1 else ""
            start["messageId"] = self._message_id or f"{happening.task_id}{turn}"
            start["messageMetadata"] = {"taskId": happening.task_id, "contextId": happening.context_id}
        elif self._message_id:
            start["messageId"] = self._message_id
        return encode_json(start)

    def _write(self, happening: Happening) -> Iterator[Fields | bytes]:
        if isinstance(happening, TextBegun):
            yield from self._step()
            yield {"type": f"{happening.channel}-start", "id": happening.id}
        elif isinstance(happening, TextEnded):
            yield {"type": f"{happening.channel}-end", "id": happening.id}
        elif isinstance(happening, RoundBegun):
            yield from self._end_step()
            yield from self._step()
        elif isinstance(happening, CallBegun):
            yield from self._step()
            called = {"toolCallId": happening.id, "toolName": happening.name}
            yield {"type": "tool-input-start", **called, **({} if happening.declared else _BY_AGENT)}
        elif isinstance(happening, CallEnded):
            yield _input_of(happening)
        elif isinstance(happening, CallLeft):
            called = {"toolCallId": happening.id, "toolName": happening.name, "input": happening.input}
            yield {"type": "tool-input-available", **called, "providerExecuted": False, "dynamic": True}
        elif isinstance(happening, CallAnswered):
            yield _output_of(happening)
        elif isinstance(happening, FileGiven):
            yield from self._step()
            yield {"type": "file", "url": happening.url, "mediaType": happening.media_type}
        elif isinstance(happening, DataGiven):
            yield from self._step()
            yield _data_of(happening)
        elif isinstance(happening, StateChanged):
            said = {"message": happening.words} if happening.words else {}
            yield {"type": "data-status", "data": {"state": happening.state, **said}, "transient": True}
        elif isinstance(happening, Ended):
            yield from self._end(happening)

    def _step(self) -> Iterator[Fields]:
        if not self._in_step:
            self._in_step = True
            yield {"type": "start-step"}

    def _end_step(self) -> Iterator[Fields]:
        if self._in_step:
            self._in_step = False
            yield {"type": "finish-step"}

    def _end(self, ended: Ended) -> Iterator[Fields | bytes]:
        yield from _sources(ended)
        yield from self._end_step()
        if ended.error is None:
            metadata = {"usage": _usage(ended.usage)} if ended.usage is not None else {}
            finish = _FINISH.get(ended.finish, ended.finish)
            yield {"type": "finish", "finishReason": finish, "messageMetadata": metadata}
        elif ended.state is TaskState.CANCELED:
            yield {"type": "abort", "reason": str(ended.error)}
        else:
            yield {"type": "error", "errorText": str(ended.error)}
        yield _DONE


def _as_bytes(chunk: Fields | bytes) -> bytes:
    return chunk if isinstance(chunk, bytes) else encode_json(chunk)


def _input_of(call: CallEnded) -> Fields:
    """The whole input of a call."""
    called: Fields = {"toolCallId": call.id, "toolName": call.name, "input": call.input}
    if not call.declared:
        called |= _BY_AGENT
    if call.error:
        return {"type": "tool-input-error", **called, "errorText": call.error}
    return {"type": "tool-input-available", **called}


def _output_of(answered: CallAnswered) -> Fields:
    """What came of a call."""
    given: Fields = {"toolCallId": answered.id}
    if not answered.by_caller:
        given |= _BY_AGENT
    if not answered.is_error:
        return {"type": "tool-output-available", **given, "output": answered.output}
    output = answered.output
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    return {"type": "tool-output-error", **given, "errorText": text}


def _data_of(given: DataGiven) -> Fields:
    if given.is_output:
        return {"type": "data-output", "id": given.id, "data": given.data}
    return {"type": "data-artifact", "id": given.id, "data": {"name": given.name, "data": given.data}}


def _sources(ended: Ended) -> Iterator[Fields]:
    """What an answer refers to, as far as it has an address; each address once."""
    told: set[str] = set()
    for annotation in ended.annotations:
        for fields in _mappings_in(annotation):
            url, title = fields.get("url") or fields.get("uri"), fields.get("title")
            if not isinstance(url, str) or url in told:
                continue
            told.add(url)
            source = {"type": "source-url", "sourceId": f"source-{len(told)}", "url": url}
            yield {**source, "title": title} if isinstance(title, str) else source


def _mappings_in(annotation: object) -> Iterator[Mapping[str, Any]]:
    """A provider's annotation, and the objects in it, where some have the address."""
    if is_mapping(annotation):
        yield annotation
        yield from filter(is_mapping, annotation.values())


def _usage(usage: Mapping[str, Any]) -> Fields:
    return {name: usage.get(name, 0) for name in ("inputTokens", "outputTokens", "totalTokens")}

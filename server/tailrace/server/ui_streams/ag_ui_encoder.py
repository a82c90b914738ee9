"""The events of AG-UI 1.0 (https://docs.ag-ui.com). Sans-IO.

A round of the turn is one assistant message, with its calls; its id is made of the task's. What the agent's tools answered
are tool messages. Files are text, as Markdown: an assistant's message has no place for them.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tailrace.server.facade.errors import OpenAIError
from tailrace.server.facade.markdown import file_markdown
from tailrace.server.ui_streams.framing import encode_json
from tailrace.server.ui_streams.happenings import (
    ArgumentsAdded,
    Begun,
    CallAnswered,
    CallBegun,
    CallEnded,
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
from tailrace.streaming.extension import EXTENSION_URI
from tailrace.streaming.lifecycle import TaskState
from tailrace.wrappers import ContentPartFile

Fields = dict[str, Any]

PROTOCOL_VERSION = "1.0"
"""The version of AG-UI that is spoken."""


class AgUiEncoder:
    """Writes what happens in a turn as the events of one run.

    Args:
        thread_id: The conversation, as the client calls it.
        run_id: The run, as the client calls it.
        messages: What was said before, in AG-UI's form, where the client is to be told; None where it knows.
    """

    def __init__(self, thread_id: str, run_id: str, messages: Sequence[Fields] | None = None) -> None:
        self._said = messages
        self._run: Fields = {"threadId": thread_id, "runId": run_id}
        self._begun = False
        self._base = run_id  # of ids of messages
        self._message_id = message_id(run_id, 1, 1)  # of the round
        self._taken: set[str] = set()  # ids of messages
        self._messages: dict[str, str] = {}  # ids of messages by those of texts
        self._prefixes: dict[tuple[type, str], bytes] = {}
        self._open_calls: list[str] = []
        self._unreadable: list[str] = []  # calls of which the client has other arguments than it is to
        self._output: Any = None
        self._has_output = False

    def write(self, happenings: Iterable[Happening]) -> list[bytes]:
        """The events of what happened."""
        events: list[bytes] = []
        for happening in happenings:
            if isinstance(happening, TextAdded | ArgumentsAdded):
                events.append(self._prefix(happening) + encode_text(happening.text) + b"}")
            else:
                if not self._begun:
                    events += map(encode_json, self._begin(happening))
                events += map(encode_json, self._write(happening))
        return events

    def fail(self, error: OpenAIError) -> list[bytes]:
        """The last event of a run whose end is not known."""
        return [encode_json(_error(error))]

    def _prefix(self, happening: TextAdded | ArgumentsAdded) -> bytes:
        """What comes before the text of a delta, which is the same for all of its message."""
        key = (type(happening), happening.id)
        prefix = self._prefixes.get(key)
        if prefix is None:
            if isinstance(happening, ArgumentsAdded):
                prefix = b'{"type":"TOOL_CALL_ARGS","toolCallId":%b,"delta":' % encode_text(happening.id)
            else:
                kind = b"REASONING_MESSAGE" if happening.channel == "reasoning" else b"TEXT_MESSAGE"
                said_id = encode_text(self._messages[happening.id])
                prefix = b'{"type":"%b_CONTENT","messageId":%b,"delta":' % (kind, said_id)
            self._prefixes[key] = prefix
        return prefix

    def _begin(self, happening: Happening) -> Iterator[Fields]:
        self._begun = True
        started: Fields = {"type": "RUN_STARTED", **self._run, "protocolVersion": PROTOCOL_VERSION}
        if isinstance(happening, Begun):
            self._base = happening.task_id
            self._message_id = message_id(self._base, happening.first_turn, 1)
            facts = {"taskId": happening.task_id, "contextId": happening.context_id}
            started["metadata"] = {EXTENSION_URI: facts}
        yield started
        if self._said is not None:
            yield {"type": "MESSAGES_SNAPSHOT", "messages": self._said}

    def _write(self, happening: Happening) -> Iterator[Fields]:
        if isinstance(happening, TextBegun):
            yield from self._begin_text(happening)
        elif isinstance(happening, TextEnded):
            said_id = self._messages[happening.id]
            if happening.channel == "reasoning":
                yield {"type": "REASONING_MESSAGE_END", "messageId": said_id}
                yield {"type": "REASONING_END", "messageId": said_id}
            else:
                yield {"type": "TEXT_MESSAGE_END", "messageId": said_id}
        elif isinstance(happening, RoundBegun):
            self._message_id = message_id(self._base, happening.turn, happening.round)
        elif isinstance(happening, CallBegun):
            self._open_calls.append(happening.id)
            called = {"toolCallId": happening.id, "toolCallName": happening.name}
            yield {"type": "TOOL_CALL_START", **called, "parentMessageId": self._message_id}
        elif isinstance(happening, CallEnded):
            yield from self._end_call(happening)
        elif isinstance(happening, CallAnswered):
            yield _result(happening, result_id(self._base, happening.id))
        elif isinstance(happening, FileGiven):
            yield from self._give_file(happening)
        elif isinstance(happening, DataGiven):
            if happening.is_output:
                self._output, self._has_output = happening.data, True
            else:
                value = {"name": happening.name, "data": happening.data}
                yield {"type": "CUSTOM", "name": "artifact", "value": value}
        elif isinstance(happening, StateChanged):
            said = {"message": happening.words} if happening.words else {}
            yield {"type": "CUSTOM", "name": "status", "value": {"state": happening.state, **said}}
        elif isinstance(happening, Ended):
            yield from self._end(happening)

    def _new_message(self, text_id: str) -> str:
        """The id of a message for a text: that of the round, where no other has it."""
        said_id = self._message_id if self._message_id not in self._taken else ""
        said_id = said_id or f"{self._message_id}-{text_id}"
        self._taken.add(said_id)
        return said_id

    def _begin_text(self, text: TextBegun) -> Iterator[Fields]:
        if text.channel == "reasoning":
            said_id = self._messages[text.id] = f"{self._message_id}-{text.id}"
            yield {"type": "REASONING_START", "messageId": said_id}
            yield {"type": "REASONING_MESSAGE_START", "messageId": said_id, "role": "reasoning"}
            return
        said_id = self._messages[text.id] = self._new_message(text.id)
        yield {"type": "TEXT_MESSAGE_START", "messageId": said_id, "role": "assistant"}

    def _give_file(self, given: FileGiven) -> Iterator[Fields]:
        file = ContentPartFile(url=given.url, media_type=given.media_type, filename=given.filename)
        said_id = self._new_message(given.id)
        yield {"type": "TEXT_MESSAGE_START", "messageId": said_id, "role": "assistant"}
        yield {"type": "TEXT_MESSAGE_CONTENT", "messageId": said_id, "delta": file_markdown(file)}
        yield {"type": "TEXT_MESSAGE_END", "messageId": said_id}

    def _end_call(self, call: CallEnded) -> Iterator[Fields]:
        self._open_calls.remove(call.id)
        if not call.as_written:
            self._unreadable.append(call.id)
        yield {"type": "TOOL_CALL_END", "toolCallId": call.id}

    def _end(self, ended: Ended) -> Iterator[Fields]:
        for call_id in self._open_calls:
            yield {"type": "TOOL_CALL_END", "toolCallId": call_id}
        usage = _usage(ended)
        if ended.error is not None and ended.state is not TaskState.CANCELED:
            yield {**_error(ended.error), **usage}
            return
        if any(call_id in self._unreadable for call_id in ended.waiting):
            # What was sent of a call cannot be taken back, and the client would run it.
            yield {"type": "RUN_ERROR", "message": "the arguments of a call were written anew", **usage}
            return
        outcome: Fields = {"type": "cancelled"} if ended.error is not None else {"type": "success"}
        if ended.waiting:
            outcome["pendingToolCallIds"] = list(ended.waiting)
        finished: Fields = {"type": "RUN_FINISHED", **self._run, "outcome": outcome, **usage}
        if self._has_output:
            finished["result"] = self._output
        if ended.error is None:
            finished["metadata"] = {EXTENSION_URI: {"finishReason": ended.finish}}
        yield finished


def message_id(task_id: str, turn: int, round_: int) -> str:
    """The id of what an agent says in a round."""
    return f"{task_id}-{turn}-{round_}"


def result_id(task_id: str, call_id: str) -> str:
    """The id of the message that holds what a tool of the agent's answered."""
    return f"{task_id}-result-{call_id}"


def _error(error: OpenAIError) -> Fields:
    return {"type": "RUN_ERROR", "message": str(error), "code": error.code or "failed"}


def _result(answered: CallAnswered, said_id: str) -> Fields:
    output = answered.output
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)
    ids = {"messageId": said_id, "toolCallId": answered.id}
    return {"type": "TOOL_CALL_RESULT", **ids, "content": text, "role": "tool"}


def _usage(ended: Ended) -> Fields:
    """What was counted, where something was."""
    if ended.usage is None:
        return {}
    counts: Fields = {
        name: count
        for name in ("inputTokens", "outputTokens", "totalTokens")
        if isinstance(count := ended.usage.get(name), int)
    }
    model: Mapping[str, Any] = {"model": said} if isinstance(said := ended.response.get("model"), str) else {}
    return {"usage": [{**model, **counts}]}

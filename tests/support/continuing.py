"""Servers of all formats. They stream a response, break off, and continue it.

::

    server = ContinuingServer("vllm", pieces)
    async with ScriptedUpstream(server.respond, lists_models=True) as upstream:
        model = server.model(upstream)

A server that begins a response again sends `ContinuingServer.SECOND` first, so that the texts of two attempts differ.
"""

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from support import event_frames
from support.provider_cases import CASES, ProviderCase
from support.upstream import Cut, Hang, Head, Received, Reset, ScriptedUpstream, Step, openai_chunk, sse
from tailrace.wrappers.http.http_model import HTTPModel

Fields = dict[str, Any]
Usage = tuple[int, int]

ARGUMENTS = '{"city": "Zürich", "days": 3}'
"""The arguments of the tool ``weather`` that a server calls."""


def _chunks(size: int, text: str) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def _openai(pieces: Sequence[str], usage: Usage, *, call: bool) -> bytes:
    chunks = [
        openai_chunk({"role": "assistant", "content": ""}),
        *(openai_chunk({"content": p}) for p in pieces),
    ]
    if call:
        function = {"name": "weather", "arguments": ""}
        chunks.append(
            openai_chunk({"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": function}]})
        )
        chunks += [
            openai_chunk({"tool_calls": [{"index": 0, "function": {"arguments": part}}]})
            for part in _chunks(5, ARGUMENTS)
        ]
    chunks.append(openai_chunk({}, finish="tool_calls" if call else "stop"))
    counts = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    return sse(*chunks, openai_chunk(usage=counts), "[DONE]")


def _mistral(pieces: Sequence[str], usage: Usage, *, call: bool) -> bytes:
    chunks = [
        openai_chunk({"role": "assistant", "content": ""}),
        *(openai_chunk({"content": p}) for p in pieces),
    ]
    last: Fields = {"content": ""}
    if call:
        last["tool_calls"] = [
            {"index": 0, "id": "call00001", "function": {"name": "weather", "arguments": ARGUMENTS}}
        ]
    counts = {"prompt_tokens": usage[0], "completion_tokens": usage[1], "total_tokens": sum(usage)}
    chunks.append(openai_chunk(last, finish="tool_calls" if call else "stop", usage=counts))
    return sse(*chunks, "[DONE]")


def _responses_events(pieces: Sequence[str], usage: Usage, *, call: bool) -> list[Fields]:
    events: list[Fields] = [{"type": "response.created", "response": {"id": "resp_1", "model": "m"}}]
    if pieces:
        item: Fields = {"type": "message", "id": "msg_1", "role": "assistant", "content": []}
        at = {"output_index": 0, "content_index": 0, "item_id": "msg_1"}
        events.append({"type": "response.output_item.added", "output_index": 0, "item": item})
        events += [{"type": "response.output_text.delta", **at, "delta": piece} for piece in pieces]
        events.append({"type": "response.output_text.done", **at, "text": "".join(pieces)})
    if call:
        index = 1 if pieces else 0
        item: Fields = {
            "type": "function_call",
            "id": "fc_1",
            "call_id": "c1",
            "name": "weather",
            "arguments": "",
        }
        events.append({"type": "response.output_item.added", "output_index": index, "item": item})
        events += [
            {
                "type": "response.function_call_arguments.delta",
                "output_index": index,
                "item_id": "fc_1",
                "delta": part,
            }
            for part in _chunks(5, ARGUMENTS)
        ]
        whole = {**item, "arguments": ARGUMENTS}
        events.append({"type": "response.output_item.done", "output_index": index, "item": whole})
    counts = {"input_tokens": usage[0], "output_tokens": usage[1], "total_tokens": sum(usage)}
    events.append(
        {"type": "response.completed", "response": {"id": "resp_1", "status": "completed", "usage": counts}}
    )
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def _responses(pieces: Sequence[str], usage: Usage, *, call: bool) -> bytes:
    return sse(*_responses_events(pieces, usage, call=call))


def _anthropic(pieces: Sequence[str], usage: Usage, *, call: bool) -> bytes:
    message: Fields = {
        "id": "m1",
        "model": "m",
        "content": [],
        "usage": {"input_tokens": usage[0], "output_tokens": 1},
    }
    events: list[Fields] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": piece}}
            for piece in pieces
        ),
        {"type": "content_block_stop", "index": 0},
    ]
    if call:
        block: Fields = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}}
        events.append({"type": "content_block_start", "index": 1, "content_block": block})
        events += [
            {
                "type": "content_block_delta",
                "index": 1,
                "delta": {"type": "input_json_delta", "partial_json": part},
            }
            for part in _chunks(5, ARGUMENTS)
        ]
        events.append({"type": "content_block_stop", "index": 1})
    reason = "tool_use" if call else "end_turn"
    events.append(
        {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": usage[1]}}
    )
    events.append({"type": "message_stop"})
    return sse(*events)


def _gemini(pieces: Sequence[str], usage: Usage, *, call: bool) -> bytes:
    def candidate(part: Fields, **members: Any) -> Fields:
        return {"candidates": [{"content": {"role": "model", "parts": [part]}, **members}]}

    counts = {"promptTokenCount": usage[0], "candidatesTokenCount": usage[1], "totalTokenCount": sum(usage)}
    last: Fields = (
        {"functionCall": {"name": "weather", "args": json.loads(ARGUMENTS)}} if call else {"text": ""}
    )
    return sse(
        *(candidate({"text": piece}) for piece in pieces),
        {**candidate(last, finishReason="STOP"), "usageMetadata": counts},
    )


def _ollama(pieces: Sequence[str], usage: Usage, *, call: bool) -> bytes:
    lines: list[Fields] = [
        {"model": "m", "message": {"role": "assistant", "content": p}, "done": False} for p in pieces
    ]
    if call:
        function = {"name": "weather", "arguments": json.loads(ARGUMENTS)}
        message = {"role": "assistant", "content": "", "tool_calls": [{"function": function}]}
        lines.append({"model": "m", "message": message, "done": False})
    end = {"done": True, "done_reason": "stop", "prompt_eval_count": usage[0], "eval_count": usage[1]}
    lines.append({"model": "m", "message": {"role": "assistant", "content": ""}, **end})
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def _cohere(pieces: Sequence[str], usage: Usage, *, call: bool) -> bytes:
    events: list[Fields] = [
        {"type": "message-start", "id": "r"},
        *(
            {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": piece}}}}
            for piece in pieces
        ),
    ]
    if call:
        start = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": ""}}
        events.append({"type": "tool-call-start", "index": 0, "delta": {"message": {"tool_calls": start}}})
        events += [
            {
                "type": "tool-call-delta",
                "index": 0,
                "delta": {"message": {"tool_calls": {"function": {"arguments": part}}}},
            }
            for part in _chunks(5, ARGUMENTS)
        ]
        events.append({"type": "tool-call-end", "index": 0})
    counts = {"tokens": {"input_tokens": usage[0], "output_tokens": usage[1]}}
    reason = "TOOL_CALL" if call else "COMPLETE"
    events.append({"type": "message-end", "delta": {"finish_reason": reason, "usage": counts}})
    return sse(*events)


def _bedrock(pieces: Sequence[str], usage: Usage, *, call: bool) -> bytes:
    events: list[Fields] = [
        {"messageStart": {"role": "assistant"}},
        *({"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"text": piece}}} for piece in pieces),
        {"contentBlockStop": {"contentBlockIndex": 0}},
    ]
    if call:
        start = {"toolUse": {"toolUseId": "t1", "name": "weather"}}
        events.append({"contentBlockStart": {"contentBlockIndex": 1, "start": start}})
        events += [
            {"contentBlockDelta": {"contentBlockIndex": 1, "delta": {"toolUse": {"input": part}}}}
            for part in _chunks(5, ARGUMENTS)
        ]
        events.append({"contentBlockStop": {"contentBlockIndex": 1}})
    counts = {"inputTokens": usage[0], "outputTokens": usage[1], "totalTokens": sum(usage)}
    events.append({"messageStop": {"stopReason": "tool_use" if call else "end_turn"}})
    events.append({"metadata": {"usage": counts}})
    return event_frames.converse(*events)


_BODIES: dict[str, Callable[..., bytes]] = {
    "openai": _openai,
    "openai-responses": _responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
    "ollama": _ollama,
    "cohere": _cohere,
    "mistral": _mistral,
    "bedrock": _bedrock,
}

FORMAT_OF = {
    "llamacpp": "openai",
    "vllm": "openai",
    "sglang": "openai",
    "deepseek": "openai",
    "other": "openai",
    "mistral": "mistral",
    "anthropic": "anthropic",
    "anthropic-4.6": "anthropic",
    "ollama": "ollama",
    "bedrock": "bedrock",
    "gemini": "gemini",
    "cohere": "cohere",
    "openai-responses": "openai-responses",
    "openai-background": "openai-responses",
}
"""The kinds of servers, and their formats."""

PREFILLING = frozenset(
    {"llamacpp", "vllm", "sglang", "deepseek", "mistral", "anthropic", "ollama", "bedrock"}
)
"""The kinds that continue a text."""

_REFUSAL = {
    "error": {
        "type": "invalid_request_error",
        "message": "This model does not support assistant message prefill.",
    }
}
_REPETITION = frozenset({"mistral"})

_MARKS = {"ollama": b"\n", "bedrock": b""}
"""The ends of events of formats other than server-sent events."""

_USAGE = {
    "openai": b'"total_tokens"',
    "openai-responses": b'"total_tokens"',
    "anthropic": b'"message_delta"',
    "gemini": b'"totalTokenCount"',
    "ollama": b'"eval_count"',
    "cohere": b'"output_tokens"',
    "mistral": b'"total_tokens"',
    "bedrock": b'"outputTokens"',
}
"""The content of the event with the complete usage."""


@dataclass
class ContinuingServer:
    """A server that breaks off its first response, and sends complete responses to all further requests.

    Args:
        kind: A key of `FORMAT_OF`.
        pieces: The texts of the deltas.
        cut: Byte of the first response at which it breaks off.
        ending: How the first response breaks off.
        call: True if the response ends with a call of ``weather``. After its result, the server sends ``Done.``.

    Attributes:
        prefills: The number of requests that continue a text.
        attachments: The number of requests for the rest of a stored response.
        usages: The reported usage of complete responses.
    """

    SECOND = "Again: "

    kind: str
    pieces: Sequence[str]
    cut: int | None = None
    ending: str = "close"
    call: bool = False
    prefills: int = 0
    attachments: int = 0
    generations: int = 0
    usages: list[Usage] = field(default_factory=list[Usage])

    @property
    def case(self) -> ProviderCase:
        """The format."""
        return CASES[FORMAT_OF[self.kind]]

    def body(self, pieces: Sequence[str], usage: Usage, *, call: bool) -> bytes:
        """The bytes of a complete response."""
        return _BODIES[self.case.name](pieces, usage, call=call)

    @property
    def first_body(self) -> bytes:
        """The bytes of the first response, if it is complete."""
        return self.body(self.pieces, (3, 2), call=self.call)

    @property
    def usage_before_cut(self) -> Usage:
        """The usage in the complete events of a response that breaks off."""
        if self.cut is None or self.attachments:
            return (0, 0)
        mark = b"" if self.ending == "error" else _MARKS.get(self.case.name, b"\n\n")
        sent = b"".join(_complete_events(self.first_body[: self.cut + len(mark)], self.case))
        if _USAGE[self.case.name] in sent:
            return (3, 2)
        # Anthropic reports the input and the first token when the response begins.
        return (3, 1) if self.case.name == "anthropic" and sent else (0, 0)

    def model(self, upstream: ScriptedUpstream, **arguments: Any) -> HTTPModel:
        """Return a model at this server."""
        if self.kind == "deepseek":
            arguments["prefill"] = "deepseek"
        if self.kind == "openai-background":
            arguments["parameters"] = {"background": True, "store": True}
        return self.case.model(upstream.base_url, **arguments)

    def respond(self, request: Received) -> Sequence[Step]:
        """The script of a response."""
        if request.method == "GET" and request.path.endswith("/models"):
            listed = {"object": "list", "data": [{"id": "m", "owned_by": self.kind}]}
            return [Head(headers={"content-type": "application/json"}), json.dumps(listed).encode()]
        if request.method == "GET":
            return self._attach(request)
        if request.path.endswith("/cancel"):
            return [Head(headers={"content-type": "application/json"}), b"{}"]
        members = request.json
        last = self._last_message(members)
        if last is None:
            return self._begin(members)
        return self._continue(request, members, last)

    def _begin(self, members: Fields) -> Sequence[Step]:
        if self._has_result(members):
            return self._whole(["Done."], call=False)
        self.generations += 1
        if self.generations == 1:
            if self.cut is None:
                return self._whole(self.pieces, call=self.call)
            return self.case.response(*_broken(self.first_body, self.cut, self.ending, self.case))
        return self._whole([self.SECOND, *self.pieces], call=self.call)

    def _continue(self, request: Received, members: Fields, last: Fields) -> Sequence[Step]:
        text = _text_of(last.get("content"))
        accepted = {
            "vllm": members.get("continue_final_message") is True
            and members.get("add_generation_prompt") is False,
            "sglang": members.get("continue_final_message") is True,
            "deepseek": last.get("prefix") is True and request.path == "/beta/chat/completions",
            "mistral": last.get("prefix") is True,
        }.get(self.kind, self.kind in PREFILLING)
        if not accepted or text != text.rstrip():
            return [Head(400, {"content-type": "application/json"}), json.dumps(_REFUSAL).encode()]
        self.prefills += 1
        whole = "".join(self.pieces)
        assert whole.startswith(text), "the request has another text than the server sent"
        rest = whole[len(text) :]
        # The boundaries of tokens differ from those of the first response.
        pieces = _chunks(7, rest)
        return self._whole([text, *pieces] if self.kind in _REPETITION else pieces, call=self.call)

    def _attach(self, request: Received) -> Sequence[Step]:
        path, _, query = request.path.partition("?")
        members = dict(each.split("=") for each in query.split("&"))
        if self.kind != "openai-background" or not path.endswith("/responses/resp_1"):
            return [Head(404, {"content-type": "application/json"}), b'{"error": {"message": "not found"}}']
        assert members["stream"] == "true"
        self.attachments += 1
        self.usages.append((3, 2))
        events = _responses_events(self.pieces, (3, 2), call=self.call)
        after = int(members.get("starting_after", "-1"))
        return self.case.response(sse(*(event for event in events if event["sequence_number"] > after)))

    def _whole(self, pieces: Sequence[str], *, call: bool) -> Sequence[Step]:
        usage = (5 + len(self.usages), 7)
        self.usages.append(usage)
        return self.case.response(self.body(pieces, usage, call=call))

    def _last_message(self, members: Fields) -> Fields | None:
        """The last message, if it is the model's."""
        if self.case.name == "openai-responses":
            return None
        messages = members.get("messages") or members["contents"]
        last = messages[-1]
        return last if last["role"] == "assistant" else None

    def _has_result(self, members: Fields) -> bool:
        text = json.dumps(members)
        return any(
            name in text
            for name in (
                '"tool_result"',
                '"toolResult"',
                '"role": "tool"',
                "functionResponse",
                "function_call_output",
            )
        )


def _text_of(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _broken(body: bytes, cut: int, ending: str, case: ProviderCase) -> Sequence[Step]:
    start = [body[:cut]] if cut else []
    if ending == "reset":
        return [*start, Reset()]
    if ending == "silence":
        return [*start, Hang()]
    if ending == "error":
        return [*_complete_events(body[:cut], case), case.failure("overloaded")]
    return [*start, Cut()]


def _complete_events(body: bytes, case: ProviderCase) -> Sequence[bytes]:
    """The complete events of a body."""
    if case.name == "bedrock":
        end = 0
        while end + 4 <= len(body) and end + (size := struct.unpack_from("!I", body, end)[0]) <= len(body):
            end += size
    else:
        mark = _MARKS.get(case.name, b"\n\n")
        end = body.rfind(mark) + len(mark) if mark in body else 0
    return [body[:end]] if end else []

"""Answers of Chat Completions: a whole one, and one piece by piece.

https://platform.openai.com/docs/api-reference/chat/object and …/chat-streaming. Reasoning is in ``reasoning_content``,
where most servers that OpenAI's clients speak to have it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tailrace.server.facade.errors import OpenAIError
from tailrace.server.facade.pieces import (
    CallArguments,
    CallBegun,
    Ending,
    Piece,
    ReasoningPiece,
    RefusalPiece,
    TextPiece,
)
from tailrace.streaming.a2a.encoding import encode_text, escape_separators

_encode = msgspec.json.Encoder().encode
_DONE = b"data: [DONE]\n\n"


def chat_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """What was counted, as Chat Completions says it; a provider's own object is kept where it is of that form.

    Args:
        usage: The fact ``usage`` of a task.
    """
    raw = usage.get("raw")
    own: dict[str, Any] = dict(raw) if isinstance(raw, Mapping) and "prompt_tokens" in raw else {}  # pyright: ignore[reportUnknownArgumentType]
    return {
        **own,
        "prompt_tokens": usage.get("inputTokens", 0),
        "completion_tokens": usage.get("outputTokens", 0),
        "total_tokens": usage.get("totalTokens", 0),
    }


def chat_completion(
    pieces: Iterable[Piece], *, completion_id: str, created: int, model: str
) -> dict[str, Any]:
    """A whole answer as a ``chat.completion``.

    Args:
        pieces: All of it.
        completion_id: Its id.
        created: When, in seconds.
        model: Who answers, by the name that was asked for.

    Raises:
        OpenAIError: There is no answer.
    """
    texts: list[str] = []
    reasoning: list[str] = []
    refusal: list[str] = []
    calls: list[dict[str, Any]] = []
    ending = Ending()
    for piece in pieces:
        if isinstance(piece, TextPiece):
            texts.append(piece.text)
        elif isinstance(piece, ReasoningPiece):
            reasoning.append(piece.text)
        elif isinstance(piece, RefusalPiece):
            refusal.append(piece.text)
        elif isinstance(piece, CallBegun):
            function = {"name": piece.name, "arguments": ""}
            calls.append({"id": piece.id, "type": "function", "function": function})
        elif isinstance(piece, CallArguments):
            calls[piece.index]["function"]["arguments"] += piece.text
        else:
            ending = piece
    if ending.error is not None:
        raise ending.error
    content = "".join(texts)
    message: dict[str, Any] = {"role": "assistant", "content": content}
    message["refusal"] = "".join(refusal) or None
    if not content and (calls or refusal):
        message["content"] = None
    if reasoning:
        message["reasoning_content"] = "".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": ending.finish}
    completion: dict[str, Any] = {
        "id": completion_id,
        "object": "chat.completion",
        "created": created,
        "model": model,
        "choices": [choice],
    }
    if ending.usage is not None:
        completion["usage"] = chat_usage(ending.usage)
    return completion


class ChatStream:
    """An answer as server-sent events: one chunk a piece, and ``[DONE]`` at the end of one that is whole.

    Args:
        completion_id: Its id.
        created: When, in seconds.
        model: Who answers, by the name that was asked for.
        include_usage: A last chunk says what was counted.
    """

    def __init__(self, *, completion_id: str, created: int, model: str, include_usage: bool) -> None:
        head: dict[str, Any] = {
            "id": completion_id,
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
        }
        self._head = b"data: " + escape_separators(_encode(head))[:-1]
        self._prefix = self._head + b',"choices":[{"index":0,"delta":'
        usage = b',"usage":null' if include_usage else b""
        self._suffix = b',"logprobs":null,"finish_reason":null}]' + usage + b"}\n\n"
        self._ended = b',"logprobs":null,"finish_reason":%b}]' + usage + b"}\n\n"
        self._include_usage = include_usage

    def begin(self) -> bytes:
        """The first chunk: who speaks."""
        return self._chunk(b'{"role":"assistant","content":""}')

    def write(self, pieces: Iterable[Piece]) -> bytes:
        """The chunks of some pieces."""
        return b"".join(map(self._write, pieces))

    def fail(self, error: OpenAIError) -> bytes:
        """The last event of a stream that has no answer, or none that is whole."""
        return b"data: " + error.body() + b"\n\n"

    def _write(self, piece: Piece) -> bytes:
        if isinstance(piece, TextPiece):
            return self._chunk(b'{"content":' + encode_text(piece.text) + b"}")
        if isinstance(piece, ReasoningPiece):
            return self._chunk(b'{"reasoning_content":' + encode_text(piece.text) + b"}")
        if isinstance(piece, CallArguments):
            said = b'{"index":%d,"function":{"arguments":%b}}' % (piece.index, encode_text(piece.text))
            return self._chunk(b'{"tool_calls":[' + said + b"]}")
        if isinstance(piece, CallBegun):
            called = (piece.index, encode_text(piece.id), encode_text(piece.name))
            said = b'{"index":%d,"id":%b,"type":"function","function":{"name":%b,"arguments":""}}' % called
            return self._chunk(b'{"tool_calls":[' + said + b"]}")
        if isinstance(piece, RefusalPiece):
            return self._chunk(b'{"refusal":' + encode_text(piece.text) + b"}")
        return self._end(piece)

    def _end(self, ending: Ending) -> bytes:
        if ending.error is not None:
            return self.fail(ending.error)
        last = self._prefix + b"{}" + self._ended % encode_text(ending.finish)
        if not self._include_usage:
            return last + _DONE
        usage = escape_separators(_encode(chat_usage(ending.usage))) if ending.usage is not None else b"null"
        return last + self._head + b',"choices":[],"usage":' + usage + b"}\n\n" + _DONE

    def _chunk(self, delta: bytes) -> bytes:
        return self._prefix + delta + self._suffix

"""Answers of the Responses API: the events of a stream, and the response that they add up to.

https://platform.openai.com/docs/api-reference/responses/object and …/responses-streaming. Reasoning is an item with a
summary, which is what clients show. A stream that has no answer, or none that is whole, ends with ``response.failed``.
"""

from collections.abc import Iterable, Mapping
from typing import Any, cast

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
from tailrace.streaming.a2a.encoding import escape_separators

Fields = dict[str, Any]

_encode = msgspec.json.Encoder().encode

# Why a response is not whole, by the words of Chat Completions.
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}

_DEFAULTS: Mapping[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "temperature": None,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": None,
    "truncation": "disabled",
    "user": None,
}


def responses_usage(usage: Mapping[str, Any]) -> Fields:
    """What was counted, as the Responses API says it.

    Args:
        usage: The fact ``usage`` of a task, with the provider's own object of either of OpenAI's APIs or another's.
    """
    given = usage.get("raw")
    raw: Mapping[str, Any] = given if isinstance(given, Mapping) else {}  # pyright: ignore[reportUnknownVariableType]
    cached = _detail(raw, "cached_tokens", "input_tokens_details", "prompt_tokens_details")
    thought = _detail(raw, "reasoning_tokens", "output_tokens_details", "completion_tokens_details")
    return {
        "input_tokens": usage.get("inputTokens", 0),
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": usage.get("outputTokens", 0),
        "output_tokens_details": {"reasoning_tokens": thought},
        "total_tokens": usage.get("totalTokens", 0),
    }


def _detail(raw: Mapping[str, Any], name: str, *places: str) -> int:
    for place in places:
        details = raw.get(place)
        count = details.get(name) if isinstance(details, Mapping) else None  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
        if isinstance(count, int):
            return count
    return 0


class ResponseWriter:
    """Folds an answer into a response, and says each step as an event.

    Args:
        response_id: Of the response.
        created: When, in seconds.
        model: Who answers, by the name that was asked for.
        echo: Members of the request, which the response repeats.
        conversation: The id of the conversation.

    Attributes:
        response: The response as it stands.
    """

    def __init__(
        self, *, response_id: str, created: int, model: str, echo: Mapping[str, Any], conversation: str
    ) -> None:
        self._suffix = response_id.removeprefix("resp_")
        self._number = 0  # of the next event
        self._item: Fields | None = None  # text or reasoning, while it grows
        self._pieces: list[str] = []  # of the last part of that item
        self._calls: list[tuple[int, Fields, list[str]]] = []
        self.response: Fields = {
            "id": response_id,
            "object": "response",
            "created_at": created,
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": model,
            "output": [],
            "conversation": {"id": conversation},
            "store": True,
            "usage": None,
            **_DEFAULTS,
            **echo,
        }

    def begin(self) -> bytes:
        """The first events."""
        return self._event("response.created", response=self.response) + self._event(
            "response.in_progress", response=self.response
        )

    def write(self, pieces: Iterable[Piece]) -> bytes:
        """The events of some pieces."""
        return b"".join(map(self._write, pieces))

    def fail(self, error: OpenAIError) -> bytes:
        """The last events of a stream that has no answer, or none that is whole."""
        frames = self._close_item("incomplete")
        fields = error.fields()
        self.response["status"] = "failed"
        self.response["error"] = {**fields, "code": fields["code"] or fields["type"]}
        return frames + self._event("response.failed", response=self.response)

    def _write(self, piece: Piece) -> bytes:
        if isinstance(piece, TextPiece):
            frames = self._open_part("output_text")
            self._pieces.append(piece.text)
            return frames + self._delta("response.output_text.delta", piece.text, logprobs=[])
        if isinstance(piece, ReasoningPiece):
            frames = self._open_reasoning()
            self._pieces.append(piece.text)
            return frames + self._delta("response.reasoning_summary_text.delta", piece.text)
        if isinstance(piece, CallArguments):
            at, item, pieces = self._calls[piece.index]
            pieces.append(piece.text)
            return self._event(
                "response.function_call_arguments.delta",
                item_id=item["id"],
                output_index=at,
                delta=piece.text,
            )
        if isinstance(piece, CallBegun):
            return self._begin_call(piece)
        if isinstance(piece, RefusalPiece):
            frames = self._open_part("refusal")
            self._pieces.append(piece.text)
            return frames + self._delta("response.refusal.delta", piece.text)
        return self._end(piece)

    # --- items --------------------------------------------------------------------------------------------------

    def _add_item(self, item: Fields) -> bytes:
        output: list[Fields] = self.response["output"]
        output.append(item)
        return self._event("response.output_item.added", output_index=len(output) - 1, item=item)

    def _item_id(self, kind: str) -> str:
        return f"{kind}_{self._suffix}_{len(self.response['output'])}"

    def _open_part(self, kind: str) -> bytes:
        """The part of a message that text or a refusal goes into."""
        item: Fields | None = self._item
        frames = b""
        if item is None or item["type"] != "message":
            frames = self._close_item()
            item = cast("Fields", {"id": self._item_id("msg"), "type": "message", "role": "assistant"})
            item |= {"status": "in_progress", "content": []}
            frames += self._add_item(item)
            self._item = item
        content: list[Fields] = item["content"]
        if content and content[-1]["type"] == kind:
            return frames
        frames += self._close_part()
        part: Fields = {"type": kind, "refusal": ""}
        if kind == "output_text":
            part = {"type": kind, "text": "", "annotations": [], "logprobs": []}
        # What was sent is not changed by what is added here.
        item["content"] = [*content, part]
        return frames + self._event("response.content_part.added", **self._place(), part=part)

    def _open_reasoning(self) -> bytes:
        if self._item is not None and self._item["type"] == "reasoning":
            return b""
        frames = self._close_item()
        item: Fields = {"id": self._item_id("rs"), "type": "reasoning", "summary": []}
        frames += self._add_item(item)
        self._item = item
        part = {"type": "summary_text", "text": ""}
        item["summary"] = [part]
        return frames + self._event("response.reasoning_summary_part.added", **self._place(), part=part)

    def _begin_call(self, call: CallBegun) -> bytes:
        frames = self._close_item()
        item: Fields = {"id": self._item_id("fc"), "type": "function_call", "call_id": call.id}
        item |= {"name": call.name, "arguments": "", "status": "in_progress"}
        frames += self._add_item(item)
        self._calls.append((len(self.response["output"]) - 1, item, []))
        return frames

    def _place(self) -> Fields:
        """Where the part stands that grows."""
        item = self._item
        assert item is not None  # noqa: S101 — asked only while one grows
        parts, name = (
            (item["content"], "content_index")
            if item["type"] == "message"
            else (item["summary"], "summary_index")
        )
        output_index = len(self.response["output"]) - 1
        return {"item_id": item["id"], "output_index": output_index, name: len(parts) - 1}

    def _delta(self, event: str, text: str, **fields: Any) -> bytes:
        return self._event(event, **self._place(), delta=text, **fields)

    def _close_part(self) -> bytes:
        """The last part of the item that grows is complete."""
        item = self._item
        parts: list[Fields] = (item.get("content") or item.get("summary") or []) if item is not None else []
        if not parts:
            return b""
        part, text = parts[-1], "".join(self._pieces)
        self._pieces.clear()
        kind = part["type"]
        if kind == "refusal":
            part["refusal"] = text
            frames = self._event("response.refusal.done", **self._place(), refusal=text)
        elif kind == "output_text":
            part["text"] = text
            frames = self._event("response.output_text.done", **self._place(), text=text, logprobs=[])
        else:
            part["text"] = text
            frames = self._event("response.reasoning_summary_text.done", **self._place(), text=text)
            return frames + self._event("response.reasoning_summary_part.done", **self._place(), part=part)
        return frames + self._event("response.content_part.done", **self._place(), part=part)

    def _close_item(self, status: str = "completed") -> bytes:
        """The item of text or reasoning that grows is complete."""
        item = self._item
        if item is None:
            return b""
        frames = self._close_part()
        if item["type"] == "message":
            item["status"] = status
        frames += self._event(
            "response.output_item.done", output_index=len(self.response["output"]) - 1, item=item
        )
        self._item = None
        return frames

    def _close_call(self, at: int, item: Fields, pieces: list[str]) -> bytes:
        item["arguments"] = "".join(pieces)
        item["status"] = "completed"
        place = {"item_id": item["id"], "output_index": at}
        return self._event(
            "response.function_call_arguments.done", **place, name=item["name"], arguments=item["arguments"]
        ) + self._event("response.output_item.done", output_index=at, item=item)

    def _end(self, ending: Ending) -> bytes:
        response = self.response
        if ending.usage is not None:
            response["usage"] = responses_usage(ending.usage)
        if ending.error is not None:
            return self.fail(ending.error)
        reason = _INCOMPLETE.get(ending.finish)
        frames = self._close_item("completed" if reason is None else "incomplete")
        if reason is not None:
            response["status"] = "incomplete"
            response["incomplete_details"] = {"reason": reason}
            return frames + self._event("response.incomplete", response=response)
        frames += b"".join(self._close_call(*call) for call in self._calls)
        response["status"] = "completed"
        return frames + self._event("response.completed", response=response)

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = escape_separators(_encode({"type": kind, "sequence_number": self._number, **fields}))
        self._number += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def whole_response(writer: ResponseWriter, pieces: Iterable[Piece]) -> Fields:
    """A whole answer as a ``response``.

    Args:
        writer: A new one.
        pieces: All of the answer.

    Raises:
        OpenAIError: There is no answer.
    """
    for piece in pieces:
        if isinstance(piece, Ending) and piece.error is not None:
            raise piece.error
        writer.write((piece,))
    return writer.response

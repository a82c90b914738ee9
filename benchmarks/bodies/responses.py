"""Response bodies of OpenAI Responses."""

from random import Random
from typing import Any

from benchmarks.bodies.body_writer import CREATED, BodyWriter, Kind, sse

_NAMES = {
    Kind.TEXT: "response.output_text.delta",
    Kind.REASONING: "response.reasoning_summary_text.delta",
    Kind.CALL: "response.function_call_arguments.delta",
}


class ResponsesWriter(BodyWriter):
    """Writes named and numbered events."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._id = "resp_" + self.token(48)
        self._count = 0
        self._item: dict[str, Any] = {}
        self._items: list[dict[str, Any]] = []

    def begin(self) -> list[bytes]:
        """Return the initial response, twice."""
        response = self._response("in_progress")
        return [
            self._event("response.created", response=response),
            self._event("response.in_progress", response=response),
        ]

    def open(self, kind: Kind) -> list[bytes]:
        """Return an item, and its first part."""
        if kind is Kind.CALL:
            names = {"call_id": "call_" + self.token(24), "name": "search"}
            return [self._added({"type": "function_call", "arguments": "", **names}, "fc_")]
        if kind is Kind.REASONING:
            item: dict[str, Any] = {"type": "reasoning", "summary": [], "encrypted_content": self.token(120)}
            return [self._added(item, "rs_"), self._part(kind, "added", "")]
        item = {"type": "message", "content": [], "role": "assistant"}
        return [self._added(item, "msg_"), self._part(kind, "added", "")]

    def delta(self, kind: Kind, piece: str) -> bytes:
        """Return one event, with random padding."""
        padding = self.token(self.rng.randint(2, 14))
        fields: dict[str, Any] = {"content_index": 0, "delta": piece, "logprobs": [], "obfuscation": padding}
        if kind is Kind.REASONING:
            fields = {"summary_index": 0, "delta": piece, "obfuscation": padding}
        elif kind is Kind.CALL:
            fields = {"delta": piece, "obfuscation": padding}
        return self._event(_NAMES[kind], **self._place(), **fields)

    def shut(self, kind: Kind, whole: str) -> list[bytes]:
        """Return the complete text, part and item."""
        done = _NAMES[kind].replace(".delta", ".done")
        if kind is Kind.CALL:
            self._item["arguments"] = whole
            events = [self._event(done, **self._place(), arguments=whole)]
        else:
            place = self._place() | {"summary_index" if kind is Kind.REASONING else "content_index": 0}
            events = [self._event(done, **place, text=whole), self._part(kind, "done", whole)]
            self._item["summary" if kind is Kind.REASONING else "content"] = [_part(kind, whole)]
        self._item["status"] = "completed"
        self._items.append(self._item)
        done = self._event("response.output_item.done", output_index=len(self._items) - 1, item=self._item)
        return [*events, done]

    def end(self, tokens: int) -> list[bytes]:
        """Return the complete response."""
        usage = {
            "input_tokens": 24,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 24 + tokens,
        }
        response = {**self._response("completed"), "output": self._items, "usage": usage}
        return [self._event("response.completed", response=response)]

    def _added(self, item: dict[str, Any], prefix: str) -> bytes:
        self._item = {"id": prefix + self.token(48), "status": "in_progress", **item}
        return self._event("response.output_item.added", output_index=len(self._items), item=self._item)

    def _part(self, kind: Kind, what: str, text: str) -> bytes:
        if kind is Kind.REASONING:
            name, place = f"response.reasoning_summary_part.{what}", {"summary_index": 0}
        else:
            name, place = f"response.content_part.{what}", {"content_index": 0}
        return self._event(name, **self._place(), **place, part=_part(kind, text))

    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item["id"], "output_index": len(self._items)}

    def _event(self, kind: str, **fields: Any) -> bytes:
        count, self._count = self._count, self._count + 1
        return sse({"type": kind, "sequence_number": count, **fields}, kind)

    def _response(self, status: str) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "response",
            "created_at": CREATED,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": "gpt-5-mini-2025-08-07",
            "output": [],
            "parallel_tool_calls": True,
            "reasoning": {"effort": "medium", "summary": "auto"},
            "service_tier": "default",
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "usage": None,
            "metadata": {},
        }


def _part(kind: Kind, text: str) -> dict[str, Any]:
    if kind is Kind.REASONING:
        return {"type": "summary_text", "text": text}
    return {"type": "output_text", "annotations": [], "logprobs": [], "text": text}

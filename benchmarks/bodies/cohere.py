"""Response bodies of Cohere Chat v2."""

from random import Random
from typing import Any

from benchmarks.bodies.body_writer import BodyWriter, Kind, sse


class ChatWriter(BodyWriter):
    """Writes named events, blocks with a beginning and an end, and reasoning as ``thinking`` content."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._index = 0
        self._calls = 0

    def begin(self) -> list[bytes]:
        """Return the empty message."""
        message: dict[str, Any] = {
            "role": "assistant",
            "content": [],
            "tool_plan": "",
            "tool_calls": [],
            "citations": [],
        }
        made = "-".join(self.token(size).lower() for size in (8, 4, 4, 4, 12))
        return [self._event("message-start", id=made, delta={"message": message})]

    def open(self, kind: Kind) -> list[bytes]:
        """Return a block of content, or a call."""
        if kind is Kind.CALL:
            function = {"name": "search", "arguments": ""}
            call = {"id": f"search_{self.token(12).lower()}", "type": "function", "function": function}
            return [self._message("tool-call-start", self._calls, tool_calls=call)]
        block = {"type": "text", "text": ""} if kind is Kind.TEXT else {"type": "thinking", "thinking": ""}
        return [self._message("content-start", self._index, content=block)]

    def delta(self, kind: Kind, piece: str) -> bytes:
        """Return one event."""
        if kind is Kind.CALL:
            return self._message(
                "tool-call-delta", self._calls, tool_calls={"function": {"arguments": piece}}
            )
        field = "text" if kind is Kind.TEXT else "thinking"
        return self._message("content-delta", self._index, content={field: piece})

    def shut(self, kind: Kind, whole: str) -> list[bytes]:
        """Return the end of the block."""
        if kind is Kind.CALL:
            self._calls += 1
            return [self._event("tool-call-end", index=self._calls - 1)]
        self._index += 1
        return [self._event("content-end", index=self._index - 1)]

    def end(self, tokens: int) -> list[bytes]:
        """Return finish reason and usage."""
        counts = {"input_tokens": 24, "output_tokens": tokens}
        reason = "TOOL_CALL" if self._calls else "COMPLETE"
        delta = {"finish_reason": reason, "usage": {"billed_units": counts, "tokens": counts}}
        return [self._event("message-end", delta=delta)]

    def _message(self, kind: str, index: int, **message: Any) -> bytes:
        return self._event(kind, index=index, delta={"message": message})

    @staticmethod
    def _event(kind: str, **fields: Any) -> bytes:
        return sse({"type": kind, **fields}, kind)

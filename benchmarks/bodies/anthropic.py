"""Response bodies of Anthropic Messages."""

from random import Random
from typing import Any

from benchmarks.bodies.body_writer import BodyWriter, Kind, sse

_DELTAS = {
    Kind.TEXT: ("text_delta", "text"),
    Kind.REASONING: ("thinking_delta", "thinking"),
    Kind.CALL: ("input_json_delta", "partial_json"),
}


class MessagesWriter(BodyWriter):
    """Writes blocks with a beginning and an end, a signature after the reasoning, and the usage in two parts."""

    lengths = "anthropic"

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._index = -1
        self._stop = "end_turn"

    def begin(self) -> list[bytes]:
        """Return the empty message, and a ping."""
        usage = {
            "input_tokens": 24,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
            "output_tokens": 1,
            "service_tier": "standard",
        }
        message: dict[str, Any] = {
            "model": "claude-sonnet-4-5-20250929",
            "id": "msg_01" + self.token(22),
            "type": "message",
            "role": "assistant",
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        return [self._event("message_start", message=message), b'event: ping\ndata: {"type": "ping"}\n\n']

    def open(self, kind: Kind) -> list[bytes]:
        """Return the start of a block."""
        self._index += 1
        block: dict[str, Any] = {"type": "text", "text": ""}
        if kind is Kind.REASONING:
            block = {"type": "thinking", "thinking": "", "signature": ""}
        elif kind is Kind.CALL:
            self._stop = "tool_use"
            block = {"type": "tool_use", "id": "toolu_01" + self.token(22), "name": "search", "input": {}}
        return [self._event("content_block_start", index=self._index, content_block=block)]

    def delta(self, kind: Kind, piece: str) -> bytes:
        """Return one event."""
        name, field = _DELTAS[kind]
        return self._event("content_block_delta", index=self._index, delta={"type": name, field: piece})

    def shut(self, kind: Kind, whole: str) -> list[bytes]:
        """Return the end of the block, preceded by the signature of reasoning."""
        events = [self._event("content_block_stop", index=self._index)]
        if kind is Kind.REASONING:
            seal = {"type": "signature_delta", "signature": self.token(200)}
            events.insert(0, self._event("content_block_delta", index=self._index, delta=seal))
        return events

    def end(self, tokens: int) -> list[bytes]:
        """Return stop reason and usage."""
        delta = {"stop_reason": self._stop, "stop_sequence": None}
        usage = {"input_tokens": 24, "output_tokens": tokens}
        return [self._event("message_delta", delta=delta, usage=usage), self._event("message_stop")]

    def _event(self, kind: str, **fields: Any) -> bytes:
        return sse({"type": kind, **fields}, kind)

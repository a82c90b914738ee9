"""Response bodies of OpenAI's text completions, the predecessor of Chat Completions."""

from random import Random
from typing import Any

from benchmarks.bodies.body_writer import CREATED, BodyWriter, Kind, sse


class CompletionsWriter(BodyWriter):
    """Writes only text."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._id = "cmpl-" + self.token(29)

    def begin(self) -> list[bytes]:
        """Return no event."""
        return []

    def open(self, kind: Kind) -> list[bytes]:
        """Return no event."""
        return []

    def delta(self, kind: Kind, piece: str) -> bytes:
        """Return one event for text; nothing for other content."""
        return self._event(piece, None) if kind is Kind.TEXT else b""

    def shut(self, kind: Kind, whole: str) -> list[bytes]:
        """Return no event."""
        return []

    def end(self, tokens: int) -> list[bytes]:
        """Return the finish reason, and ``[DONE]``."""
        return [self._event("", "stop"), b"data: [DONE]\n\n"]

    def _event(self, text: str, finish_reason: str | None) -> bytes:
        choice: dict[str, Any] = {"text": text, "index": 0, "logprobs": None, "finish_reason": finish_reason}
        head = {"id": self._id, "object": "text_completion", "created": CREATED}
        return sse({**head, "choices": [choice], "model": "gpt-3.5-turbo-instruct"})

"""Response bodies of Gemini ``streamGenerateContent``, with ``alt=sse`` and without."""

import json
from random import Random
from typing import Any

from benchmarks.bodies.body_writer import BodyWriter, Kind, sse


class GenerateContentWriter(BodyWriter):
    """Writes many JSON responses, each with a few parts and the usage so far."""

    lengths = "gemini"

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._id = self.token(22)
        self._tokens = 0

    def begin(self) -> list[bytes]:
        """Return no event."""
        return []

    def open(self, kind: Kind) -> list[bytes]:
        """Return no event."""
        return []

    def delta(self, kind: Kind, piece: str) -> bytes:
        """Return one response; none for a call."""
        self._tokens += len(piece) // 4
        if kind is Kind.CALL:
            return b""
        return self._response(
            [{"text": piece, "thought": True} if kind is Kind.REASONING else {"text": piece}]
        )

    def shut(self, kind: Kind, whole: str) -> list[bytes]:
        """Return a complete call, with the signature of the thought before it."""
        if kind is not Kind.CALL:
            return []
        call = {"name": "search", "args": json.loads(whole)}
        return [self._response([{"functionCall": call, "thoughtSignature": self.token(120)}])]

    def end(self, tokens: int) -> list[bytes]:
        """Return an empty text and the finish reason."""
        return [self._response([{"text": ""}], finishReason="STOP")]

    def _response(self, parts: list[dict[str, Any]], **fields: Any) -> bytes:
        candidate = {"content": {"parts": parts, "role": "model"}, **fields, "index": 0}
        usage = {
            "promptTokenCount": 24,
            "candidatesTokenCount": self._tokens,
            "totalTokenCount": 24 + self._tokens,
            "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 24}],
        }
        envelope = {"modelVersion": "gemini-2.5-flash", "responseId": self._id}
        return self.framed({"candidates": [candidate], "usageMetadata": usage, **envelope})

    def framed(self, response: dict[str, Any]) -> bytes:
        """Return one response with its framing."""
        return sse(response).replace(b"\n", b"\r\n")


class ArrayWriter(GenerateContentWriter):
    """The format without ``alt=sse``: an indented array with one element per response."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._separator = b"["

    def end(self, tokens: int) -> list[bytes]:
        """Return the last element, and the end of the array."""
        return [event + b"]" for event in super().end(tokens)]

    def framed(self, response: dict[str, Any]) -> bytes:
        """Return one element, with its separator."""
        separator, self._separator = self._separator, b",\r\n"
        return separator + json.dumps(response, ensure_ascii=False, indent=2).encode() + b"\n"

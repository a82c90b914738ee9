"""Response bodies of Amazon Bedrock (``ConverseStream``, ``InvokeModel``): frames of ``application/vnd.amazon.eventstream``."""

import json
from base64 import b64encode
from binascii import crc32
from random import Random
from string import ascii_letters, digits
from struct import pack
from typing import Any

from benchmarks.bodies.anthropic import MessagesWriter
from benchmarks.bodies.body_writer import BodyWriter, Kind, compact

_STRING = 7  # the type code of a header with a string value
_PADDING = ascii_letters + digits


class ConverseWriter(BodyWriter):
    """Writes one event per frame, with random padding ``p``. A call has a start event; a text has none."""

    lengths = "anthropic"

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._index = -1
        self._stop = "end_turn"

    def begin(self) -> list[bytes]:
        """Return the role."""
        return [self._event("messageStart", role="assistant")]

    def open(self, kind: Kind) -> list[bytes]:
        """Return a call's id and name."""
        self._index += 1
        if kind is not Kind.CALL:
            return []
        self._stop = "tool_use"
        start = {"toolUse": {"toolUseId": "tooluse_" + self.token(22), "name": "search"}}
        return [self._event("contentBlockStart", contentBlockIndex=self._index, start=start)]

    def delta(self, kind: Kind, piece: str) -> bytes:
        """Return one frame."""
        delta: dict[str, Any] = {"text": piece}
        if kind is Kind.REASONING:
            delta = {"reasoningContent": delta}
        elif kind is Kind.CALL:
            delta = {"toolUse": {"input": piece}}
        return self._event("contentBlockDelta", contentBlockIndex=self._index, delta=delta)

    def shut(self, kind: Kind, whole: str) -> list[bytes]:
        """Return the end of the block, preceded by the signature of reasoning."""
        events = [self._event("contentBlockStop", contentBlockIndex=self._index)]
        if kind is Kind.REASONING:
            delta = {"reasoningContent": {"signature": self.token(200)}}
            seal = self._event("contentBlockDelta", contentBlockIndex=self._index, delta=delta)
            events.insert(0, seal)
        return events

    def end(self, tokens: int) -> list[bytes]:
        """Return stop reason, then usage."""
        usage = {"inputTokens": 24, "outputTokens": tokens, "totalTokens": 24 + tokens}
        return [
            self._event("messageStop", stopReason=self._stop),
            self._event("metadata", metrics={"latencyMs": 4491}, usage=usage),
        ]

    def _event(self, kind: str, **fields: Any) -> bytes:
        return event_frame(kind, {**fields, "p": _PADDING[: self.rng.randint(2, 60)]})


class InvocationWriter(MessagesWriter):
    """The events of Anthropic's models through ``InvokeModelWithResponseStream``: one per frame, in base64."""

    def begin(self) -> list[bytes]:
        """Return the empty message; no ping."""
        return super().begin()[:1]

    def end(self, tokens: int) -> list[bytes]:
        """Return stop reason and usage, and Bedrock's own metrics."""
        metrics = {"inputTokenCount": 24, "outputTokenCount": tokens, "invocationLatency": 4491}
        counted = self._event("message_stop", **{"amazon-bedrock-invocationMetrics": metrics})
        return [*super().end(tokens)[:-1], counted]

    def _event(self, kind: str, **fields: Any) -> bytes:
        chunk = b64encode(json.dumps({"type": kind, **fields}, separators=(",", ":")).encode()).decode()
        return event_frame("chunk", {"bytes": chunk, "p": _PADDING[: self.rng.randint(2, 60)]})


def event_frame(kind: str, fields: dict[str, Any]) -> bytes:
    headers = {":event-type": kind, ":content-type": "application/json", ":message-type": "event"}
    return frame(headers, compact(fields))


def frame(headers: dict[str, str], payload: bytes) -> bytes:
    """Return a message of AWS's event stream encoding: lengths and checksums around headers and payload."""
    encoded = b"".join(_header(name, value) for name, value in headers.items())
    prelude = pack("!II", 16 + len(encoded) + len(payload), len(encoded))
    message = prelude + pack("!I", crc32(prelude)) + encoded + payload
    return message + pack("!I", crc32(message))


def _header(name: str, value: str) -> bytes:
    return pack("!B", len(name)) + name.encode() + pack("!BH", _STRING, len(value.encode())) + value.encode()

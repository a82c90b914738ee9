"""Which format a stream has, told from its first bytes: for recorded bodies whose source nobody wrote down."""

from collections.abc import Mapping
from typing import Any
from zlib import crc32

from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.decoding import EventDecoder, ResponseDecoder
from tailrace.wrappers.errors import UpstreamError
from tailrace.wrappers.loose_json import as_text
from tailrace.wrappers.providers import FORMATS

_DEFAULT = "openai"
_CONVERSE = frozenset({"contentBlockDelta", "contentBlockStart", "messageStart", "messageStop"})
_HELD_BYTES = 1024 * 1024  # when so much says nothing, it is read as the default format

_PRELUDE_BYTES = 12  # of a binary frame: two lengths, and their checksum

# Words of ``type`` that only one format uses; ``ping`` and ``error`` are everybody's.
_ANTHROPIC = ("message_", "content_block_")
_COHERE = ("content-", "message-", "tool-plan-", "tool-call-", "citation-", "stream-")


def detect_format(fields: Mapping[str, Any]) -> str | None:
    """The format that one object of a stream belongs to, a key of `FORMATS`; None where it does not tell."""
    kind = as_text(fields.get("type"))
    if "choices" in fields or as_text(fields.get("object")).startswith(
        ("chat.completion", "text_completion")
    ):
        return "openai"
    if kind.startswith("response.") or fields.get("object") == "response":
        return "openai-responses"
    if kind.startswith(_ANTHROPIC) or (kind in ("message", "completion") and "stop_reason" in fields):
        return "anthropic"
    if kind.startswith(_COHERE):
        return "cohere"
    if fields.keys() & {"candidates", "promptFeedback", "usageMetadata", "event_type"}:
        return "gemini"
    if "done" in fields and fields.keys() & {"message", "response"}:
        return "ollama"
    if ("payload" in fields and "event" in fields) or fields.keys() & _CONVERSE:
        return "bedrock"
    return None


class _Probe(EventDecoder[ChunkWrapper[Any]]):
    """Reads events for nothing but what they tell about their format."""

    __slots__ = ("found",)

    def __init__(self) -> None:
        super().__init__()
        self.found: str | None = None

    def wrap(self, fields: dict[str, Any], *, error_event: bool = False) -> list[ChunkWrapper[Any]]:
        self.found = self.found or detect_format(fields)
        return []

    def wrap_error(self, error: UpstreamError) -> Any:
        return error  # of no interest: whoever reads the body says it again


class DetectingDecoder(ResponseDecoder[ChunkWrapper[Any]]):
    """Decodes a body of any known format. Sans-IO.

    Bytes are held until an object tells the format; a body that never does is read as Chat Completions, whose
    decoder says what it is instead.

    Attributes:
        format: The format that was found, a key of `FORMATS`; None as long as none was.
    """

    __slots__ = ("_decoder", "_held", "_probe", "done", "format")

    def __init__(self) -> None:
        self._probe = _Probe()
        self._decoder: ResponseDecoder[Any] | None = None
        self._held = bytearray()
        self.format: str | None = None
        self.done = False

    def feed(self, data: bytes) -> list[ChunkWrapper[Any]]:
        """Take the next bytes of the body; see `ResponseDecoder.feed`."""
        if self._decoder is None:
            self._held += data
            if not self._tells(data):
                return []
            data = self._begin()
        return self._feed(data)

    def close(self) -> list[ChunkWrapper[Any]]:
        """The body is over; see `ResponseDecoder.close`."""
        begun: list[ChunkWrapper[Any]] = []
        if self._decoder is None:
            self._probe.close()
            self.format = self._probe.found
            begun = self._feed(self._begin())
        return begun + (self._decoder.close() if self._decoder is not None else [])

    def _tells(self, data: bytes) -> bool:
        if self._held.startswith(b"\0") and len(self._held) >= _PRELUDE_BYTES:
            checksum = int.from_bytes(self._held[8:_PRELUDE_BYTES], "big")
            if crc32(self._held[:8]) == checksum:
                self.format = "bedrock"
                return True
        self._probe.feed(data)
        self.format = self._probe.found
        return self.format is not None or len(self._held) > _HELD_BYTES

    def _begin(self) -> bytes:
        self._decoder = FORMATS[self.format or _DEFAULT].create_decoder()
        data = bytes(self._held)
        self._held.clear()
        return data

    def _feed(self, data: bytes) -> list[ChunkWrapper[Any]]:
        if self._decoder is None:
            return []
        wrappers = self._decoder.feed(data)
        self.done = self._decoder.done
        return wrappers

"""Detection of the format of a recorded stream from its first events."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast
from zlib import crc32

from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.decoding.decoder import EventDecoder, ResponseDecoder
from tailrace.wrappers.decoding.lenient_json import as_text
from tailrace.wrappers.errors import UpstreamError
from tailrace.wrappers.providers import FORMATS

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionChunk

_DEFAULT = "openai"
_CONVERSE = frozenset({"contentBlockDelta", "contentBlockStart", "messageStart", "messageStop"})
# Number of bytes after which the default format is used.
_MAX_BUFFERED = 1024 * 1024

_PRELUDE_BYTES = 12  # start of a binary frame: two lengths and a checksum

# Prefixes of types that only one format has.
_ANTHROPIC = ("message_", "content_block_")
_COHERE = ("content-", "message-", "tool-plan-", "tool-call-", "citation-", "stream-")


def detect_format(fields: Mapping[str, Any]) -> str | None:
    """Return the format (a key of `FORMATS`) of a stream with this JSON object; None if the object does not show the format."""
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
    __slots__ = ("format",)

    def __init__(self) -> None:
        super().__init__()
        self.format: str | None = None

    def wrap(self, fields: dict[str, Any], *, error_event: bool = False) -> list[ChunkWrapper[Any]]:
        self.format = self.format or detect_format(fields)
        return []

    def wrap_error(self, error: UpstreamError) -> Any:
        # The decoder of the detected format reports the error.
        return error


class DetectingDecoder(ResponseDecoder[ChunkWrapper[Any]]):
    """Sans-IO decoder of a body in any supported format.

    Bytes are buffered until the format is detected. If no format is detected, the decoder of Chat Completions decodes the body.

    Attributes:
        format: The detected format (a key of `FORMATS`); None before the detection.
    """

    __slots__ = ("_buffer", "_decoder", "_probe", "done", "format")

    def __init__(self) -> None:
        self._probe = _Probe()
        self._decoder: ResponseDecoder[Any] | None = None
        self._buffer = bytearray()
        self.format: str | None = None
        self.done = False

    def feed(self, data: "bytes | ChatCompletionChunk") -> list[ChunkWrapper[Any]]:
        """Decode the next bytes of the body (see `ResponseDecoder.feed`), or one chunk object of the ``openai`` package."""
        if self._decoder is None:
            if hasattr(data, "model_dump"):
                self.format = "openai"
                self._start()
                return self._feed(cast("bytes", data))
            data = cast("bytes", data)
            self._buffer += data
            if not self._detect(data):
                return []
            data = self._start()
        return self._feed(cast("bytes", data))

    def close(self) -> list[ChunkWrapper[Any]]:
        """End the body; see `ResponseDecoder.close`."""
        wrappers: list[ChunkWrapper[Any]] = []
        if self._decoder is None:
            self._probe.close()
            self.format = self._probe.format
            wrappers = self._feed(self._start())
        return wrappers + (self._decoder.close() if self._decoder is not None else [])

    def _detect(self, data: bytes) -> bool:
        if self._buffer.startswith(b"\0") and len(self._buffer) >= _PRELUDE_BYTES:
            checksum = int.from_bytes(self._buffer[8:_PRELUDE_BYTES], "big")
            if crc32(self._buffer[:8]) == checksum:
                self.format = "bedrock"
                return True
        self._probe.feed(data)
        self.format = self._probe.format
        return self.format is not None or len(self._buffer) > _MAX_BUFFERED

    def _start(self) -> bytes:
        self._decoder = FORMATS[self.format or _DEFAULT].create_decoder()
        data = bytes(self._buffer)
        self._buffer.clear()
        return data

    def _feed(self, data: bytes) -> list[ChunkWrapper[Any]]:
        if self._decoder is None:
            return []
        wrappers = self._decoder.feed(data)
        self.done = self._decoder.done
        return wrappers

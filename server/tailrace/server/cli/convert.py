"""``tailrace convert``: converts a recorded provider stream to A2A."""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal

from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.v0_1 import Version01
from tailrace.streaming.a2a.v0_3 import Version03, write_part
from tailrace.streaming.a2a.v1_0 import Version10
from tailrace.streaming.a2a.version_codec import Dialect, Operation
from tailrace.streaming.conversion.chat_completion import to_chat_completion
from tailrace.streaming.conversion.recorded_stream import StreamConversion
from tailrace.wrappers import ConfigurationError
from tailrace.wrappers.format_detection import DetectingDecoder
from tailrace.wrappers.providers import find_provider

_READ_BYTES = 64 * 1024


Target = Literal["events", "task", "message", "openai"]
"""The output format."""

Version = Literal["1.0", "0.3", "0.1"]
"""The version of A2A to write."""

_DIALECTS: Mapping[Version, type[Dialect]] = {"1.0": Version10, "0.3": Version03, "0.1": Version01}
# The member of a part that names its kind, in versions before 1.0.
_DISCRIMINATORS = {"0.3": "kind", "0.1": "type"}


def convert(
    file: Path,
    *,
    provider: str | None = None,
    to: Target = "events",
    think_tags: bool = True,
    version: Version = "1.0",
) -> None:
    """Convert a recorded stream to A2A, and write the result to standard output.

    Args:
        file: The recorded body; ``-`` for standard input.
        provider: The provider of the stream; detected if None.
        to: The output format.
        think_tags: True to separate reasoning in ``<think>`` tags from the text.
        version: The version of A2A to write.

    Raises:
        ConfigurationError: The file cannot be read, or the provider is unknown.
        ProtocolError: The input is not a provider stream.
    """
    decoder = find_provider(provider).wire_format.create_decoder() if provider else DetectingDecoder()
    conversion = StreamConversion(decoder, think_tags=think_tags)
    try:
        if str(file) == "-":
            _write_all(conversion, sys.stdin.buffer, to, version)
        else:
            with file.open("rb") as body:
                _write_all(conversion, body, to, version)
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror or error}") from None


def _write_all(conversion: StreamConversion, body: BinaryIO, to: Target, version: Version) -> None:
    write = sys.stdout.buffer.write
    dialect = _DIALECTS[version]().for_stream()
    for event in _events(conversion, body):
        if to == "events":
            closes = event.state is not None and (event.state.terminal or event.state.interrupted)
            written = dialect.write_event(event, is_last=closes)
            if written is not None:  # versions before 1.0 have no form for some events
                write(written + b"\n")
    if to == "task":
        write(dialect.write_result(Operation.GET_TASK, conversion.record.snapshot()) + b"\n")
    elif to == "message":
        write(_to_line(_in_version(conversion.message(), version)))
    elif to == "openai":
        write(_to_line(to_chat_completion(conversion.accumulator)))
    sys.stdout.buffer.flush()


def _events(conversion: StreamConversion, body: BinaryIO) -> Iterator[Event]:
    """Yield the events of a stream. If the input is not a stream, raise an error."""
    while data := body.read(_READ_BYTES):
        yield from conversion.feed(data)
    events = conversion.close()
    if conversion.unreadable is not None:
        raise conversion.unreadable
    yield from events


def _in_version(message: dict[str, Any], version: Version) -> dict[str, Any]:
    discriminator = _DISCRIMINATORS.get(version)
    if discriminator is None:
        return message
    kind = {"kind": "message"} if version == "0.3" else {}
    return {**message, **kind, "parts": [write_part(part, discriminator) for part in message["parts"]]}


def _to_line(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=True).encode("ascii") + b"\n"

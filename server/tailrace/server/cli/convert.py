"""``tailrace convert``: a recorded provider stream in, A2A out."""

import json
import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from tailrace.server.cli.completion import complete_provider
from tailrace.streaming.a2a.dialect import Dialect, Operation
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.v0_1 import Version01
from tailrace.streaming.a2a.v0_3 import Version03, write_part
from tailrace.streaming.a2a.v1_0 import Version10
from tailrace.streaming.conversion.chat_completion import to_chat_completion
from tailrace.streaming.conversion.recorded_stream import StreamConversion
from tailrace.wrappers import ConfigurationError
from tailrace.wrappers.detection import DetectingDecoder
from tailrace.wrappers.providers import find_provider

_READ_BYTES = 64 * 1024


class Target(StrEnum):
    """The output format."""

    EVENTS = "events"
    TASK = "task"
    MESSAGE = "message"
    OPENAI = "openai"


class Version(StrEnum):
    """The version of A2A to write."""

    V1_0 = "1.0"
    V0_3 = "0.3"
    V0_1 = "0.1"


_DIALECTS: Mapping[Version, type[Dialect]] = {
    Version.V1_0: Version10,
    Version.V0_3: Version03,
    Version.V0_1: Version01,
}
# The member that has the kind of a part, in versions before 1.0.
_DISCRIMINATORS = {Version.V0_3: "kind", Version.V0_1: "type"}


def convert(
    file: Annotated[
        Path, typer.Argument(help="The recorded body; - for standard input.", allow_dash=True)
    ] = Path("-"),
    provider: Annotated[
        str | None,
        typer.Option(
            help="Whose format the stream has (see `tailrace providers`); told from its bytes if not given.",
            autocompletion=complete_provider,
        ),
    ] = None,
    to: Annotated[
        Target,
        typer.Option(help="A2A events as JSON lines, the final task, the message, or one chat.completion."),
    ] = Target.EVENTS,
    think_tags: Annotated[
        bool,
        typer.Option(help="Part the reasoning that an answer begins with, in <think> tags, from its text."),
    ] = True,
    dialect: Annotated[
        Version,
        typer.Option(
            help="The version of A2A to write, where A2A is written; 0.1 stands for all before 0.2."
        ),
    ] = Version.V1_0,
) -> None:
    """Convert a recorded provider stream (the bytes of a response body) to A2A.

    A stream that broke off is converted as far as it goes, with a terminal event that has the reason; the exit status is
    0. Input that cannot be read, or is no such stream: exit status 2, one line on stderr.
    """
    decoder = find_provider(provider).wire_format.create_decoder() if provider else DetectingDecoder()
    conversion = StreamConversion(decoder, think_tags=think_tags)
    try:
        if str(file) == "-":
            _write_all(conversion, sys.stdin.buffer, to, dialect)
        else:
            with file.open("rb") as body:
                _write_all(conversion, body, to, dialect)
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror or error}") from None


def _write_all(conversion: StreamConversion, body: BinaryIO, to: Target, version: Version) -> None:
    write = sys.stdout.buffer.write
    dialect = _DIALECTS[version]().for_stream()
    for event in _events(conversion, body):
        if to is Target.EVENTS:
            closes = event.state is not None and (event.state.terminal or event.state.interrupted)
            written = dialect.write_event(event, closes=closes)
            if written is not None:  # older versions have no event for some
                write(written + b"\n")
    if to is Target.TASK:
        write(dialect.write_result(Operation.GET_TASK, conversion.record.snapshot()) + b"\n")
    elif to is Target.MESSAGE:
        write(_to_line(_in_version(conversion.message(), version)))
    elif to is Target.OPENAI:
        write(_to_line(to_chat_completion(conversion.accumulator)))
    sys.stdout.buffer.flush()


def _events(conversion: StreamConversion, body: BinaryIO) -> Iterator[Event]:
    """Yield the events of a stream; raise the error before the first one if the input is no stream."""
    while data := body.read(_READ_BYTES):
        yield from conversion.feed(data)
    events = conversion.close()
    if conversion.unreadable is not None:
        raise conversion.unreadable
    yield from events


def _in_version(message: dict[str, Any], version: Version) -> dict[str, Any]:
    """Convert a message of A2A 1.0 to another version."""
    discriminator = _DISCRIMINATORS.get(version)
    if discriminator is None:
        return message
    kind = {"kind": "message"} if version is Version.V0_3 else {}
    return {**message, **kind, "parts": [write_part(part, discriminator) for part in message["parts"]]}


def _to_line(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=True).encode("ascii") + b"\n"

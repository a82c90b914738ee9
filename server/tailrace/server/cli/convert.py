"""``tailrace convert``: a recorded provider stream in, A2A out."""

import json
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from tailrace.streaming.chat_completion import to_chat_completion
from tailrace.streaming.conversion import StreamConversion
from tailrace.streaming.task import Event
from tailrace.wrappers import ConfigurationError
from tailrace.wrappers.openai import ChatCompletionsDecoder

_READ_BYTES = 64 * 1024


class Target(StrEnum):
    """What to make of the stream."""

    EVENTS = "events"
    TASK = "task"
    MESSAGE = "message"
    OPENAI = "openai"


class Provider(StrEnum):
    """Whose format the stream has."""

    OPENAI = "openai"


class Dialect(StrEnum):
    """The version of A2A to write."""

    V1_0 = "1.0"


def convert(
    file: Annotated[
        Path, typer.Argument(help="The recorded body; - for standard input.", allow_dash=True)
    ] = Path("-"),
    provider: Annotated[Provider, typer.Option(help="Whose format the stream has.")] = Provider.OPENAI,
    to: Annotated[
        Target,
        typer.Option(help="A2A events as JSON lines, the final task, the message, or one chat.completion."),
    ] = Target.EVENTS,
    think_tags: Annotated[
        bool,
        typer.Option(help="The model writes its reasoning into the text, in <think> tags: part the two."),
    ] = False,
    dialect: Annotated[Dialect, typer.Option(help="The version of A2A to write.")] = Dialect.V1_0,
) -> None:
    """Convert a recorded provider stream (the bytes of a response body) into A2A.

    A stream that broke off still gives everything that it held, and a terminal event that says why it ended; the
    exit status is 0. Input that cannot be read, or is no such stream at all: exit status 2, one line on stderr.
    """
    del provider, dialect  # one of each so far; the option parser has refused every other
    conversion = StreamConversion(ChatCompletionsDecoder(), think_tags=think_tags)
    try:
        if str(file) == "-":
            _write_all(conversion, sys.stdin.buffer, to)
        else:
            with file.open("rb") as body:
                _write_all(conversion, body, to)
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror or error}") from None


def _write_all(conversion: StreamConversion, body: BinaryIO, to: Target) -> None:
    write = sys.stdout.buffer.write
    for event in _events(conversion, body):
        if to is Target.EVENTS:
            write(event.body + b"\n")
    if to is Target.TASK:
        write(conversion.record.snapshot().to_json() + b"\n")
    elif to is Target.MESSAGE:
        write(_to_line(conversion.message()))
    elif to is Target.OPENAI:
        write(_to_line(to_chat_completion(conversion.accumulator)))
    sys.stdout.buffer.flush()


def _events(conversion: StreamConversion, body: BinaryIO) -> Iterator[Event]:
    """The events as they come about; raises the reason, before the first of them, for what is no stream."""
    while data := body.read(_READ_BYTES):
        yield from conversion.feed(data)
    events = conversion.close()
    if conversion.unreadable is not None:
        raise conversion.unreadable
    yield from events


def _to_line(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=True).encode("ascii") + b"\n"

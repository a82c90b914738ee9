"""The base classes of encoders, which convert the events of a task to frames of server-sent events."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from tailrace.server.protocols import ui_events
from tailrace.server.protocols.event_translator import EventTranslator
from tailrace.server.protocols.openai_error import OpenAIError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.json_encoding import encode_json as encode_line
from tailrace.streaming.a2a.json_encoding import encode_text
from tailrace.wrappers.concurrency.worker_thread import json_text_cost
from tailrace.wrappers.messages import json_value

Fields = dict[str, Any]


class Encoder(ABC):
    """Encodes the response to one request.

    Args:
        translator: Translates the events of the task. Also an attribute.

    Attributes:
        ends_response: True if the stream ends with an error, so that no further choice is streamed.
    """

    def __init__(self, translator: EventTranslator) -> None:
        self.translator = translator
        self.ends_response = False

    @abstractmethod
    def feed(self, event: Event) -> bytes:
        """Encode an event of the task as frames."""

    def cost(self, events: Iterable[Event]) -> int:
        """Return the cost of encoding events."""
        return sum(json_text_cost(event.body) for event in events)

    @abstractmethod
    def fail(self, error: OpenAIError) -> bytes:
        """Encode an error as the last frames of a stream whose turn has not ended."""


class UiEncoder(Encoder):
    """Encodes a response as frames with JSON payloads."""

    def __init__(self, translator: EventTranslator) -> None:
        super().__init__(translator)
        self._text_prefixes: dict[str, bytes] = {}
        self._arguments_prefixes: dict[str, bytes] = {}

    def feed(self, event: Event) -> bytes:
        """Encode an event of the task as frames."""
        return frame_payloads(self.payloads(self.translator.feed(event)), event.number)

    def fail(self, error: OpenAIError) -> bytes:
        """Encode an error as the last frames of a stream whose turn has not ended."""
        return frame_payloads([encode_json(self.error(error))])

    def payloads(self, events: Iterable[ui_events.UiEvent]) -> list[bytes]:
        """Encode chat events as JSON payloads."""
        payloads: list[bytes] = []
        for event in events:
            if isinstance(event, ui_events.TextAdded):
                payloads.append(self._text_prefixes[event.id] + encode_text(event.text) + b"}")
            elif isinstance(event, ui_events.ArgumentsAdded):
                payloads.append(self._arguments_prefixes[event.id] + encode_text(event.text) + b"}")
            else:
                payloads += map(encode_json, self.encode(event))
        return payloads

    @abstractmethod
    def encode(self, event: ui_events.UiEvent) -> Iterator[Fields | msgspec.Raw]:
        """Yield the payloads for an event that is not a delta. At the start of a text or call, set the prefix of its deltas."""

    @abstractmethod
    def error(self, error: OpenAIError) -> Fields:
        """Return the payload for an error."""


def encode_json(value: object) -> bytes:
    """Encode a JSON value as one line. Lone surrogates become U+FFFD."""
    try:
        return encode_line(value)
    except UnicodeEncodeError:
        return encode_line(json_value(value))


def frame_payloads(payloads: Sequence[bytes], number: int = 0) -> bytes:
    """Encode payloads as frames. Each payload must be a single line.

    Args:
        payloads: The payloads for one event of a task.
        number: The number of the event; 0 for no number. Only the last frame has this ``id``, so that no client resumes between
            the frames of an event.
    """
    if not payloads:
        return b""
    if not number:
        return b"data: " + b"\n\ndata: ".join(payloads) + b"\n\n"
    *others, last = payloads
    return b"".join(b"data: %b\n\n" % each for each in others) + b"id: %d\ndata: %b\n\n" % (number, last)

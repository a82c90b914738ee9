"""Base class of encoders for one choice of a completion. The encoder of the last choice adds the usage of all choices."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from tailrace.server.protocols import ui_events
from tailrace.server.protocols.chat_request import ChatRequest
from tailrace.server.protocols.encoder import Encoder, Fields, encode_json
from tailrace.server.protocols.event_translator import EventTranslator
from tailrace.server.protocols.openai_error import OpenAIError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.json_encoding import encode_text
from tailrace.streaming.a2a.stream_extension import provider_usage

_DONE = b"data: [DONE]\n\n"


def chat_usage(usage: Mapping[str, Any]) -> Fields:
    """Return the usage in the format of Chat Completions. If the provider has the same format, include its further members.

    Args:
        usage: The extension metadata ``usage`` of a task.
    """
    raw = provider_usage(usage)
    own: Fields = raw if "prompt_tokens" in raw else {}
    return {
        **own,
        "prompt_tokens": usage.get("inputTokens", 0),
        "completion_tokens": usage.get("outputTokens", 0),
        "total_tokens": usage.get("totalTokens", 0),
    }


class ChoiceEncoder(Encoder):
    """Encodes a turn as one choice of a completion. After the last choice, the stream ends with ``[DONE]``.

    Args:
        previous: The encoder of the previous choice, which must have ended; None for the first choice.

    Attributes:
        id_prefix: The prefix of the ids of completions.
        kind: The member ``object`` of a complete completion.
        chunk_kind: The member ``object`` of a chunk.
        choice_prefix: The beginning of each chunk of the choice, before the content.
    """

    id_prefix: ClassVar[str]
    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(
        self, translator: EventTranslator, request: ChatRequest, previous: "ChoiceEncoder | None" = None
    ) -> None:
        super().__init__(translator)
        self._request = request
        self._previous = previous
        self._fields: Fields = {}
        self._usage: Fields | None = None  # of this and all previous choices
        self._choices: list[Fields] = []
        usage = b',"usage":null' if request.include_usage else b""
        self._head = self.choice_prefix = b""
        self._suffix = b',"logprobs":null,"finish_reason":null}]' + usage + b"}\n\n"
        self._last_suffix = b',"logprobs":null,"finish_reason":%b}]' + usage + b"}\n\n"

    @abstractmethod
    def encode(self, event: ui_events.UiEvent) -> bytes:
        """Encode a chat event as chunks."""

    @abstractmethod
    def _choice(self, events: Iterable[ui_events.UiEvent]) -> Fields:
        """Return the choice of a successful turn, without ``index`` and ``finish_reason``."""

    def feed(self, event: Event) -> bytes:
        """Encode an event of the task as frames."""
        return b"".join(map(self.encode, self.translator.feed(event)))

    def fail(self, error: OpenAIError) -> bytes:
        """Encode an error as the last frame of the stream."""
        self.ends_response = True
        return b"data: " + error.body() + b"\n\n"

    def complete(self, events: Iterable[ui_events.UiEvent], ended: ui_events.TurnEnded) -> Fields:
        """Return the completion with this choice and all previous choices, after a successful turn.

        Args:
            events: All events of the turn.
            ended: The last event of the turn.
        """
        events = list(events)
        for event in events:
            if isinstance(event, ui_events.TurnStarted):
                self._start(event)
        self._add_usage(ended)
        choice: Fields = {
            "index": self._request.choice,
            **self._choice(events),
            "logprobs": None,
            "finish_reason": ended.finish,
        }
        self._choices = [*(self._previous._choices if self._previous else ()), choice]
        usage = {"usage": self._usage} if self._usage is not None else {}
        return {**self._fields, "object": self.kind, "choices": self._choices, **usage}

    def _start(self, started: ui_events.TurnStarted) -> None:
        if self._previous is not None:
            self._fields = self._previous._fields
        else:
            self._fields = {
                "id": f"{self.id_prefix}-{started.task_id}-{started.first_turn}",
                "object": self.chunk_kind,
                "created": self._request.created,
                "model": self._request.model,
                **({"warnings": self._request.warnings} if self._request.warnings else {}),
            }
        self._head = b"data: " + encode_json(self._fields)[:-1]
        self.choice_prefix = self._head + b',"choices":[{"index":%d,' % self._request.choice

    def _chunk(self, content: bytes) -> bytes:
        return self.choice_prefix + content + self._suffix

    def _end(self, ended: ui_events.TurnEnded, content: bytes) -> bytes:
        """Return the last frames of the choice. ``content`` is the content of a chunk without text."""
        if ended.error is not None:
            return self.fail(ended.error)
        self._add_usage(ended)
        last = self.choice_prefix + content + self._last_suffix % encode_text(ended.finish)
        if self._request.choice < self._request.choices - 1:
            return last
        if not self._request.include_usage:
            return last + _DONE
        usage = encode_json(self._usage) if self._usage is not None else b"null"
        return last + self._head + b',"choices":[],"usage":' + usage + b"}\n\n" + _DONE

    def _add_usage(self, ended: ui_events.TurnEnded) -> None:
        own = chat_usage(ended.usage) if ended.usage is not None else None
        earlier = self._previous._usage if self._previous is not None else None
        self._usage = _sum(earlier, own) if earlier is not None and own is not None else own or earlier


def _sum(one: Mapping[str, Any], other: Mapping[str, Any]) -> Fields:
    both: Fields = {**one, **other}
    for name in one.keys() & other.keys():
        first, second = one[name], other[name]
        if isinstance(first, int | float) and isinstance(second, int | float):
            both[name] = first + second
        elif isinstance(first, Mapping) and isinstance(second, Mapping):
            both[name] = _sum(first, second)  # pyright: ignore[reportUnknownArgumentType]
    return both

"""Responses with texts that a filter blocks, and a search for these texts in all output of a server."""

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from support.upstream import Cut, Hang, Head, Received, Step, json_answer, openai_chunk, sse
from tailrace.server.runtime.json_schema_filter import JsonSchemaFilter
from tailrace.server.runtime.moderation_filter import ModerationFilter
from tailrace.server.runtime.pii_filter import PiiFilter
from tailrace.server.runtime.stream_filter import StreamFilter
from tailrace.server.runtime.word_filters import RegexFilter, WordFilter
from tailrace.wrappers import SSEDecoder

WORD = "Forbidden Ägypten"
NUMBER = "4111-1111"
EMAIL, CARD, PHONE, IBAN = (
    "jo.doe@example.com",
    "4111 1111 1111 1111",
    "+44 20 7946. 0958",
    "DE89370400440532013000",
)
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["fine"]}}, "additionalProperties": False}
_WORDS = (WORD, WORD.upper(), WORD.lower())


@dataclass(frozen=True)
class Kind:
    """A filter, and texts for it.

    Attributes:
        name: The name.
        forbidden: The texts that the filter blocks.
        create: Creates the filters from the base URL of a moderation endpoint.
        pieces: Texts of which responses consist, with forbidden ones.
        only_text: Whether the filter checks only the text of responses.
    """

    name: str
    forbidden: tuple[str, ...]
    create: Callable[[str], Sequence[StreamFilter]]
    pieces: tuple[str, ...]
    only_text: bool = False

    def text(self, chance: random.Random) -> str:
        """A random text."""
        return "".join(chance.choices(self.pieces, k=1 if self.only_text else 6))


_FINE = (" text ", "é🌊", "\n", ". ")
KINDS = {
    each.name: each
    for each in (
        Kind("words", _WORDS, lambda _: [WordFilter([WORD])], (*_WORDS, "Forbidden ", *_FINE)),
        Kind(
            "regex",
            (NUMBER,),
            lambda _: [RegexFilter(r"\d{4}-\d{4}", max_match=12)],
            (NUMBER, NUMBER, "4111-", *_FINE),
        ),
        Kind(
            "pii",
            (EMAIL, CARD, PHONE, IBAN),
            lambda _: [PiiFilter()],
            (*(f" It is {each}, I think. " for each in (EMAIL, CARD, PHONE, IBAN)), *_FINE),
        ),
        Kind(
            "moderation",
            _WORDS,
            lambda url: [ModerationFilter(base_url=url, api_key="key", window=24, delay=0)],
            (WORD, WORD.lower(), "Forbidden ", *_FINE, *_FINE),
        ),
        Kind(
            "schema",
            (WORD,),
            lambda _: [JsonSchemaFilter(SCHEMA)],
            (
                WORD,
                *(json.dumps(value, ensure_ascii=is_ascii) for value in ({"a": WORD}, {WORD: 1}, [WORD]) for is_ascii in (True, False)),
                '{"a": "fine"}',
            ),
            only_text=True,
        ),
    )
}  # fmt: skip
"""The filters of the project."""

UNFILTERED = Kind("none", ("Unfiltered Ägypten",), lambda _: [], ("Unfiltered Ägypten ", *_FINE))
"""No filter, to show that the search finds texts."""


def pieces_of(chance: random.Random, text: str, most: int = 30) -> list[str]:
    """A text in random pieces, or in single characters."""
    if chance.random() < 0.2:
        return list(text)
    cuts = sorted(chance.choices(range(len(text) + 1), k=chance.randrange(1, most)))
    return [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True) if end > start]


@dataclass
class Answer:
    """The responses to one prompt.

    Attributes:
        key: The name in the prompt.
        kind: The filter.
        chance: Random choices.
        ending: ``complete``; ``cut`` or ``hang`` (at a random byte of the first response); ``error`` (after the response);
            ``refused`` (only an error).
        requests: The number of requests.
    """

    key: str
    kind: Kind
    chance: random.Random
    ending: str = "complete"
    requests: int = 0
    text: str = field(init=False)

    def __post_init__(self) -> None:
        self.text = self.kind.text(self.chance)

    def respond(self, request: Received) -> Sequence[Step]:
        """The script of the next response."""
        self.requests += 1
        last = request.json["messages"][-1]
        if last["role"] == "assistant":  # the provider continues a text
            published = last["content"]
            rest = self.text.removeprefix(published) if self.text.startswith(published) else self.text
            return self._steps(sse(*_texts("content", self._pieces(rest)), *_END))
        error = {
            "error": {"message": f"cannot write {self._error}", "type": "invalid_request_error", "code": "c"}
        }
        if self.ending == "refused":
            return json_answer(error, 400)
        body = self._body()
        if self.ending == "error":
            return self._steps(body.removesuffix(sse(*_END)) + sse(error))
        if self.ending in ("cut", "hang") and self.requests == 1:
            end = Cut() if self.ending == "cut" else Hang()
            return [*self._steps(body[: self.chance.randrange(1, len(body))]), end]
        return self._steps(body)

    @property
    def _error(self) -> str:
        return "it" if self.kind.only_text else self.text

    def _pieces(self, text: str) -> list[str]:
        return pieces_of(self.chance, text)

    def _body(self) -> bytes:
        """Only text, or also reasoning and a tool call."""
        text, chance = self.text, self.chance
        chunks = _texts("content", self._pieces(text))
        if self.kind.only_text or chance.random() < 0.4:
            return sse(*chunks, *_END)
        arguments = json.dumps({"a": text, text: [text]}, ensure_ascii=chance.random() < 0.5)
        function = {"name": "look", "arguments": ""}
        begun = {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": function}]}
        calls = [
            openai_chunk({"tool_calls": [{"index": 0, "function": {"arguments": each}}]})
            for each in self._pieces(arguments)
        ]
        reasoning = _texts("reasoning_content", self._pieces(text))
        return sse(
            *reasoning, *chunks, openai_chunk(begun), *calls, openai_chunk({}, finish="tool_calls"), "[DONE]"
        )

    def _steps(self, body: bytes) -> list[Step]:
        """A body in segments that end at random bytes."""
        cuts = sorted(self.chance.choices(range(len(body) + 1), k=self.chance.randrange(6)))
        ends = zip([0, *cuts], [*cuts, len(body)], strict=True)
        return [body[start:end] for start, end in ends if end > start]


_END = (openai_chunk({}, finish="stop"), "[DONE]")


def _texts(name: str, pieces: Sequence[str]) -> list[dict[str, Any]]:
    return [openai_chunk({name: piece}) for piece in pieces]


class Provider:
    """A provider with a response for each prompt, and a moderation endpoint.

    Attributes:
        answers: The responses by the names in the prompts.
    """

    def __init__(self) -> None:
        self.answers: dict[str, Answer] = {}

    def add(self, answer: Answer) -> str:
        """Add responses; return the prompt."""
        self.answers[answer.key] = answer
        return f"case {answer.key}."

    def respond(self, request: Received) -> Sequence[Step]:
        """The script of a response."""
        if request.method == "GET":
            listed = {"object": "list", "data": [{"id": "m", "owned_by": "llamacpp"}]}
            return [Head(headers={"content-type": "application/json"}), json.dumps(listed).encode()]
        if request.path.endswith("/moderations"):
            flagged = WORD.casefold() in request.json["input"].casefold()
            return json_answer({"id": "m", "results": [{"flagged": flagged}]})
        users = [each["content"] for each in request.json["messages"] if each["role"] == "user"]
        [key] = re.findall(r"case ([\w-]+)\.", json.dumps(users[-1]))
        return self.answers[key].respond(request)


class Search:
    """Searches for the forbidden texts of a filter.

    Attributes:
        sizes: The number of bytes that were searched, by place.
        found: The forbidden texts that were found, by place.
    """

    def __init__(self, kind: Kind) -> None:
        self.sizes: Counter[str] = Counter()
        self.found: dict[str, set[str]] = {}
        forms = {
            form
            for each in kind.forbidden
            for form in (each, json.dumps(each)[1:-1], repr(each.encode())[2:-1])
        }
        self._forms = {form: form.encode() for form in forms}

    def look(self, place: str, data: bytes | str) -> None:
        """Search bytes, as they are."""
        given = data if isinstance(data, bytes) else data.encode("utf-8", "replace")
        self.sizes[place] += len(given)
        for form, encoded in self._forms.items():
            if encoded in given:
                self.found.setdefault(place, set()).add(form)

    def look_at_json(self, place: str, values: Sequence[Any]) -> None:
        """Search the texts of JSON values, after joining the texts of each item and member."""
        for text in _item_texts(values).values():
            self.look(place, text)

    def look_at_response(self, place: str, content_type: str, data: bytes) -> None:
        """Search the body of a response, and the texts of its JSON."""
        self.look(place, data)
        if content_type.startswith("text/event-stream"):
            values = [each.data for each in SSEDecoder().feed(data) if each.data != b"[DONE]"]
            self.look_at_json(place, [json.loads(each) for each in values])
        elif content_type.startswith(("application/json", "application/a2a+json")):
            self.look_at_json(place, [json.loads(data)])


def texts_of(events: Sequence[Any]) -> dict[str, str]:
    """All texts of the events, joined by member."""
    texts: dict[str, str] = {}
    for (_, name), text in _item_texts(events).items():
        texts[name] = texts.get(name, "") + text
    return texts


_ITEM_IDS = ("item_id", "artifactId", "messageId", "toolCallId", "id")


def _item_texts(events: Sequence[Any]) -> dict[tuple[str, str], str]:
    """All texts of the events, joined by item and member."""
    texts: dict[tuple[str, str], list[str]] = {}

    def walk(item: str, name: str, value: Any) -> None:
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            ids = [members[each] for each in _ITEM_IDS if isinstance(members.get(each), str)]
            for key, each in members.items():
                walk(ids[0] if ids else item, "name", key)
                walk(ids[0] if ids else item, key, each)
        elif isinstance(value, list):
            for each in cast("list[Any]", value):
                walk(item, name, each)
        elif isinstance(value, str):
            texts.setdefault((item, name), []).append(value)

    for event in events:
        walk("", "", event)
    return {key: "".join(each) for key, each in texts.items()}

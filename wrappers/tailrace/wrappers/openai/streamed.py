"""Chunks of the shapes that nearly all servers send, decoded at speed: straight into the wrappers of their choices.

`PlainChunk` is text or reasoning and nothing else, as nearly all chunks are: what decodes as one needs no further look.
`DocumentedChunk` is all that OpenAI documents; `VendorChunk` has the fields, too, that stand in *every* chunk of some
vendor's. All refuse unknown fields, so that what decodes has no others; a chunk that does not decode is read as plain
JSON instead, where nothing is lost either (`tailrace.wrappers.openai.chunks`).

A choice is decoded into its wrapper, which makes wrapping free: the provider's fields stand under the names that the
interface gives them, and the interface's own fields under names that no provider sends.
"""

# The structs narrow the types of inherited fields to what JSON may hold there.
# pyright: reportIncompatibleVariableOverride=false

from typing import Any, Literal, cast

import msgspec

from tailrace.wrappers.fields import is_settled
from tailrace.wrappers.loose_json import read_json
from tailrace.wrappers.openai.deltas import ChoiceDeltaWrapper
from tailrace.wrappers.openai.shapes import (
    ChoiceDelta,
    FunctionDelta,
    ToolCallChunk,
    details_text,
    legacy_call,
    says_something,
    take_parts,
)

_MAX_CHOICES = 64  # whose fields are remembered: some servers count tokens in the index of the choice

ABSENT = msgspec.Raw()
"""The value of a field that a chunk does not have, where the value is kept as the JSON that it is."""


class PlainDelta(ChoiceDelta, forbid_unknown_fields=True, gc=False):
    """A delta of nothing but text or reasoning."""

    role: Literal["assistant"] | None = None  # many servers repeat it in every chunk
    refusal: None = None
    reasoning_details: None = None
    tool_calls: None = None


class PlainChoice(ChoiceDeltaWrapper, forbid_unknown_fields=True, gc=False):
    """A choice of nothing but text or reasoning."""

    raw: PlainDelta = msgspec.field(default_factory=PlainDelta, name="delta")
    choice: int = msgspec.field(default=0, name="index")
    details: None = msgspec.field(default=None, name="(details)")
    plain: bool = msgspec.field(default=True, name="(plain)")
    finish_reason: None = None
    usage: None = None
    logprobs: None = None
    native_finish_reason: None = None
    matched_stop: None = None
    stop_reason: None = None
    token_ids: None = None

    def get_text(self) -> str:
        """``delta.content``."""
        return self.raw.content or ""

    def get_reasoning(self) -> str:
        """``delta.reasoning_content`` or ``delta.reasoning``."""
        delta = self.raw
        return delta.reasoning_content or delta.reasoning or ""


class PlainChunk(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A chunk of nothing but text or reasoning."""

    id: str = ""
    object: str = ""
    created: int | float = 0
    model: str = ""
    provider: str | None = None
    service_tier: str | None = None
    system_fingerprint: str | None = None
    choices: list[PlainChoice] = []
    usage: None = None
    obfuscation: str | None = None
    p: str | None = None


class DocumentedChoice(PlainChoice, forbid_unknown_fields=True, gc=False):
    """A choice as OpenAI documents it, and as OpenRouter does."""

    raw: ChoiceDelta = msgspec.field(default_factory=ChoiceDelta, name="delta")
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    logprobs: dict[str, Any] | None = None
    native_finish_reason: str | None = None

    def get_reasoning(self) -> str:
        """``delta.reasoning_content``, ``delta.reasoning`` or the text in ``delta.reasoning_details``."""
        delta = self.raw
        said = delta.reasoning_content or delta.reasoning
        return said or (details_text(delta.reasoning_details) if delta.reasoning_details else "")


class DocumentedChunk(PlainChunk, forbid_unknown_fields=True, gc=False):
    """A chunk as OpenAI documents it."""

    choices: list[DocumentedChoice] = []
    usage: dict[str, Any] | None = None


class VendorDelta(ChoiceDelta, forbid_unknown_fields=True, gc=False):
    """A delta, also with what is in every one of Groq's (channel), Together's (token_id) and Writer's (…_data)."""

    content: str | list[Any] | None = None
    function_call: FunctionDelta | None = None
    index: int | None = None
    channel: str | None = None
    token_id: int | None = None
    graph_data: dict[str, Any] | None = None
    image_data: None = None
    llm_data: None = None
    translation_data: None = None
    web_search_data: None = None


class VendorChoice(DocumentedChoice, forbid_unknown_fields=True, gc=False):
    """A choice, also with what is in every one of Azure's (filters), Together's (text, seed), Perplexity's (message)."""

    raw: VendorDelta | None = msgspec.field(default=None, name="delta")
    matched_stop: int | str | None = None
    stop_reason: int | str | None = None
    content_filter_results: dict[str, Any] | None = None
    message: msgspec.Raw = ABSENT
    obfuscation: str | None = None
    seed: int | None = None
    text: str | None = None
    trace_details: None = None


class VendorChunk(DocumentedChunk, forbid_unknown_fields=True, gc=False):
    """A chunk, also with what is in every one of Perplexity's (citations, search results) and LiteLLM's (options)."""

    choices: list[VendorChoice] = []
    citations: msgspec.Raw = ABSENT
    search_results: msgspec.Raw = ABSENT
    stream_options: msgspec.Raw = ABSENT


decode_plain_chunk = msgspec.json.Decoder(PlainChunk).decode
decode_documented_chunk = msgspec.json.Decoder(DocumentedChunk).decode
decode_vendor_chunk = msgspec.json.Decoder(VendorChunk).decode


class VendorFields:
    """What vendors' own fields say that is new.

    Many servers send some fields again with every token, and mostly with the same value. Where the last value counts,
    one that is the same as in the chunk before says nothing new, and is not told again.
    """

    __slots__ = ("_of_choices", "_of_response")

    def __init__(self) -> None:
        self._of_choices: dict[int, dict[str, Any]] = {}
        self._of_response: dict[str, msgspec.Raw] = {}

    def of_response(self, chunk: VendorChunk) -> dict[str, Any]:
        """The facts about the response. They are compared byte by byte: they may be large.

        Raises:
            ValueError: One is no JSON.
            RecursionError: One is nested too deeply.
        """
        facts: dict[str, Any] = {}
        if chunk.citations is not ABSENT:
            self._compare("citations", chunk.citations, facts)
        if chunk.search_results is not ABSENT:
            self._compare("search_results", chunk.search_results, facts)
        if chunk.stream_options is not ABSENT:
            self._compare("stream_options", chunk.stream_options, facts)
        return facts

    def forget(self) -> None:
        """Tell everything once more: something else may have been told by other ways."""
        self._of_choices.clear()
        self._of_response.clear()

    def _compare(self, name: str, value: msgspec.Raw, facts: dict[str, Any]) -> None:
        if self._of_response.get(name) != value:
            facts[name] = read_json(bytes(value))
            self._of_response[name] = value.copy()

    def of_choice(self, choice: VendorChoice) -> dict[str, Any]:
        """The fields of a choice and of its delta, which is brought into the documented shape.

        Raises:
            ValueError: There is a whole message instead of a delta.
        """
        delta = choice.raw
        if delta is None:
            delta = choice.raw = VendorDelta(content=choice.text)
        fields: dict[str, Any] = {}
        if delta.channel is not None:
            fields["channel"] = delta.channel
        if delta.token_id is not None:
            fields["token_id"] = delta.token_id
        if delta.graph_data is not None:
            fields["graph_data"] = delta.graph_data
        if fields:
            delta.model_extra = fields.copy()
        if choice.content_filter_results is not None:
            fields["content_filter_results"] = choice.content_filter_results
        if choice.matched_stop is not None:
            fields["matched_stop"] = choice.matched_stop
        if choice.stop_reason is not None:
            fields["stop_reason"] = choice.stop_reason
        if choice.seed is not None:
            fields["seed"] = choice.seed
        if fields:
            fields = self._news(fields, choice.choice)
        if delta.function_call is not None or isinstance(delta.content, list):
            _bring_into_shape(delta, fields)
        if choice.message is not ABSENT and not says_something(delta):
            raise ValueError("a whole message instead of a delta")
        return fields

    def _news(self, fields: dict[str, Any], choice: int) -> dict[str, Any]:
        told = self._of_choices.get(choice)
        if told == fields:
            return {}
        if told is None:
            if len(self._of_choices) > _MAX_CHOICES:
                self._of_choices.clear()
            told = self._of_choices[choice] = {}
        news: dict[str, Any] = {}
        for name, value in fields.items():
            # An object without members adds nothing to the one before.
            if told.get(name) != value and not (value == {} and name in told):
                news[name] = value
                if isinstance(value, dict) and not is_settled(cast("dict[str, Any]", value)):
                    told.pop(name, None)
                else:
                    told[name] = value
        return news


def _bring_into_shape(delta: VendorDelta, fields: dict[str, Any]) -> None:
    odd = delta.model_extra = delta.model_extra or {}
    if isinstance(delta.content, list):
        odd["content"] = delta.content
        sent = {"reasoning_content": delta.reasoning_content, "reasoning": delta.reasoning}
        odd.update({name: text for name, text in sent.items() if text})
        take_parts(delta, delta.content, fields)
    if delta.function_call is not None:
        odd["function_call"] = msgspec.to_builtins(delta.function_call)
        call = legacy_call(ToolCallChunk(function=delta.function_call))
        delta.tool_calls = [*(delta.tool_calls or ()), call]

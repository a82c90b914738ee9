"""Decoder of Chat Completions streams from OpenAI and compatible servers.

Most payloads are decoded directly into structs, which reject unknown fields. `PlainChunk` has only text or reasoning, like most
chunks. `DocumentedChunk` also has the other fields that OpenAI documents, for example tool calls and usage. `VendorChunk` also
has fields that some vendors send in *every* chunk. The struct of a choice is also a chunk wrapper, so that no second object is
created. Its fields that exist only in Python have a JSON name that no provider sends, for example ``(plain)``.

All other payloads are read by `wrap_mapping`, which preserves unknown fields. The content of the stream, and never the name of
the vendor, determines how it is read.
"""

# Subclasses change the types of inherited fields to those of their shape.
# pyright: reportIncompatibleVariableOverride=false

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from tailrace.wrappers.chunks import ChunkDetails
from tailrace.wrappers.decoding.decoder import EventDecoder
from tailrace.wrappers.decoding.extra_fields import is_settled
from tailrace.wrappers.decoding.framing import MAX_EVENT_BYTES
from tailrace.wrappers.decoding.lenient_json import read_json
from tailrace.wrappers.errors import UpstreamError
from tailrace.wrappers.openai.delta_shapes import (
    ChoiceDelta,
    FunctionDelta,
    ToolCallChunk,
    counting_usage,
    details_text,
    has_content,
    legacy_call,
    read_parts,
)
from tailrace.wrappers.openai.delta_wrappers import (
    EMPTY_DELTA,
    ChoiceDeltaWrapper,
    delta_details,
    plain_chunk,
    wrap_chunk,
    wrap_mapping,
)

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionChunk

__all__ = ("ChatCompletionsDecoder", "ChoiceDelta", "ChoiceDeltaWrapper", "wrap_chunk", "wrap_mapping")

# Fields that describe the response.
_ENVELOPE = ("id", "model", "created", "service_tier", "system_fingerprint", "provider")
_ERROR = "error"  # the value of ``object`` in an error payload
_DECODE_ERRORS = (msgspec.DecodeError, ValueError, RecursionError)
_MAX_INTERVAL = 64

# Shapes of chunks: one for each struct, and one for all others.
_PLAIN, _DOCUMENTED, _VENDORS, _OTHER = range(4)

# Maximum number of choices whose fields are stored: some servers increase the index of the choice for each token.
_MAX_CHOICES = 64

ABSENT = msgspec.Raw()
"""Value of a raw JSON field that the chunk does not contain."""


class PlainDelta(ChoiceDelta, forbid_unknown_fields=True, gc=False):
    """A delta that contains only text or reasoning."""

    role: Literal["assistant"] | None = None  # many servers repeat the role in every chunk
    refusal: None = None
    reasoning_details: None = None
    tool_calls: None = None


class PlainChoice(ChoiceDeltaWrapper, forbid_unknown_fields=True, gc=False):
    """A choice that contains only text or reasoning."""

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
        """Return ``delta.content``."""
        return self.raw.content or ""

    def get_reasoning(self) -> str:
        """Return ``delta.reasoning_content`` or ``delta.reasoning``."""
        delta = self.raw
        return delta.reasoning_content or delta.reasoning or ""

    def get_texts(self) -> tuple[str, str]:
        """Return the results of `get_reasoning` and `get_text`."""
        delta = self.raw
        return delta.reasoning_content or delta.reasoning or "", delta.content or ""


class PlainChunk(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A chunk that contains only text or reasoning."""

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
    """A choice with the fields that OpenAI and OpenRouter document."""

    raw: ChoiceDelta = msgspec.field(default_factory=ChoiceDelta, name="delta")
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None
    logprobs: dict[str, Any] | None = None
    native_finish_reason: str | None = None

    def get_reasoning(self) -> str:
        """Return ``delta.reasoning_content``, ``delta.reasoning`` or the text in ``delta.reasoning_details``."""
        delta = self.raw
        text = delta.reasoning_content or delta.reasoning
        return text or (details_text(delta.reasoning_details) if delta.reasoning_details else "")

    def get_texts(self) -> tuple[str, str]:
        """Return the results of `get_reasoning` and `get_text`."""
        return self.get_reasoning(), self.get_text()


class DocumentedChunk(PlainChunk, forbid_unknown_fields=True, gc=False):
    """A chunk with the fields that OpenAI documents."""

    choices: list[DocumentedChoice] = []
    usage: dict[str, Any] | None = None


class VendorDelta(ChoiceDelta, forbid_unknown_fields=True, gc=False):
    """A delta with the additional fields of Groq (channel), Together (token_id) and Writer (…_data)."""

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
    """A choice with the additional fields of Azure (filters), Together (text, seed) and Perplexity (message)."""

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
    """A chunk with the additional fields of Perplexity (citations, search results) and LiteLLM (options)."""

    choices: list[VendorChoice] = []
    citations: msgspec.Raw = ABSENT
    search_results: msgspec.Raw = ABSENT
    stream_options: msgspec.Raw = ABSENT


decode_plain_chunk = msgspec.json.Decoder(PlainChunk).decode
decode_documented_chunk = msgspec.json.Decoder(DocumentedChunk).decode
decode_vendor_chunk = msgspec.json.Decoder(VendorChunk).decode


class VendorFields:
    """Stores the latest values of vendor-specific fields, which many servers repeat in every chunk.

    The methods return only fields that have changed since the previous chunk.
    """

    __slots__ = ("_choice_fields", "_response_fields")

    def __init__(self) -> None:
        self._choice_fields: dict[int, dict[str, Any]] = {}
        self._response_fields: dict[str, msgspec.Raw] = {}

    def response_fields(self, chunk: VendorChunk) -> dict[str, Any]:
        """Return the changed fields of the response. Encoded values are compared, because decoding large values is slow.

        Raises:
            ValueError: A value is not JSON.
            RecursionError: A value is nested too deeply.
        """
        metadata: dict[str, Any] = {}
        if chunk.citations is not ABSENT:
            self._compare("citations", chunk.citations, metadata)
        if chunk.search_results is not ABSENT:
            self._compare("search_results", chunk.search_results, metadata)
        if chunk.stream_options is not ABSENT:
            self._compare("stream_options", chunk.stream_options, metadata)
        return metadata

    def forget(self) -> None:
        """Discard the stored values, so that all fields of the next chunk count as changed."""
        self._choice_fields.clear()
        self._response_fields.clear()

    def _compare(self, name: str, value: msgspec.Raw, metadata: dict[str, Any]) -> None:
        if self._response_fields.get(name) != value:
            metadata[name] = read_json(bytes(value))
            self._response_fields[name] = value.copy()

    def choice_fields(self, choice: VendorChoice) -> dict[str, Any]:
        """Return the changed fields of a choice and its delta. Convert the delta to the documented shape in place.

        Raises:
            ValueError: The choice has a complete message instead of a delta.
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
            fields = self._changed_fields(fields, choice.choice)
        if delta.function_call is not None or isinstance(delta.content, list):
            _normalise(delta, fields)
        if choice.message is not ABSENT and not has_content(delta):
            raise ValueError("the choice has a complete message instead of a delta")
        return fields

    def _changed_fields(self, fields: dict[str, Any], choice: int) -> dict[str, Any]:
        previous = self._choice_fields.get(choice)
        if previous == fields:
            return {}
        if previous is None:
            if len(self._choice_fields) > _MAX_CHOICES:
                self._choice_fields.clear()
            previous = self._choice_fields[choice] = {}
        changed: dict[str, Any] = {}
        for name, value in fields.items():
            # The receiver merges objects, so an empty object changes nothing.
            if previous.get(name) != value and not (value == {} and name in previous):
                changed[name] = value
                if isinstance(value, dict) and not is_settled(cast("dict[str, Any]", value)):
                    previous.pop(name, None)
                else:
                    previous[name] = value
        return changed


def _normalise(delta: VendorDelta, fields: dict[str, Any]) -> None:
    unmapped = delta.model_extra = delta.model_extra or {}
    if isinstance(delta.content, list):
        unmapped["content"] = delta.content
        reasoning = {"reasoning_content": delta.reasoning_content, "reasoning": delta.reasoning}
        unmapped.update({name: text for name, text in reasoning.items() if text})
        read_parts(delta, delta.content, fields)
    if delta.function_call is not None:
        unmapped["function_call"] = msgspec.to_builtins(delta.function_call)
        call = legacy_call(ToolCallChunk(function=delta.function_call))
        delta.tool_calls = [*(delta.tool_calls or ()), call]


class ChatCompletionsDecoder(EventDecoder[ChoiceDeltaWrapper]):
    """Sans-IO decoder of a streamed Chat Completions response body.

    The decoder also reads complete (not streamed) responses, and streams of the legacy completions API.

    Args:
        provider: The provider's name in errors.
        max_event_bytes: Maximum size of one event in bytes.
        merge_choices: True to merge all choices into one choice, for requests with ``n=1`` to servers that distribute the
            response over several choices.

    Attributes:
        done: True after ``[DONE]``. Later data is ignored.
    """

    __slots__ = (
        "_created",
        "_fingerprint",
        "_id",
        "_interval",
        "_merge_choices",
        "_model",
        "_object",
        "_remaining",
        "_server",
        "_shape",
        "_tier",
        "_vendors",
    )

    def __init__(
        self, *, provider: str = "", max_event_bytes: int = MAX_EVENT_BYTES, merge_choices: bool = False
    ) -> None:
        super().__init__(provider=provider, max_event_bytes=max_event_bytes)
        self._merge_choices = merge_choices
        self._shape = _PLAIN  # the shape that is tried first for the next chunk
        self._remaining = 0  # number of chunks until the plain shape is tried again
        self._interval = 4  # the next value of ``_remaining``
        self._vendors = VendorFields()
        self._id: str | None = None  # this and the next five: values of the previous chunk
        self._model: str | None = None
        self._tier: str | None = None
        self._fingerprint: str | None = None
        self._server: str | None = None  # the provider that a router selected for the request
        self._object: str | None = None
        self._created = False  # True after a chunk with ``created``; later values are not reported

    if TYPE_CHECKING:

        def feed(self, data: "bytes | ChatCompletionChunk | Mapping[str, Any]") -> list[ChoiceDeltaWrapper]:
            """Decode the next bytes of the body, or one chunk (an object of the ``openai`` package or a JSON object)."""
            ...

    def _feed_slow(self, data: "bytes | ChatCompletionChunk | Mapping[str, Any]") -> list[ChoiceDeltaWrapper]:
        # Chunk objects have no framing, so `EventDecoder.feed` always passes them to this method. The fast path for bytes
        # need not check for them.
        if isinstance(data, bytes | bytearray):
            return super()._feed_slow(data)
        if isinstance(data, Mapping):
            return self.wrap(dict(data))
        return self.wrap(plain_chunk(data))

    def wrap(self, fields: dict[str, Any], *, error_event: bool = False) -> list[ChoiceDeltaWrapper]:
        """Return the chunk wrappers of one chunk; see `wrap_mapping`."""
        # The stored values would be outdated for the next chunk.
        self._id = None
        self._vendors.forget()
        wrappers = wrap_mapping(fields, provider=self._provider, error_event=error_event)
        if self._merge_choices:
            for wrapper in wrappers:
                wrapper.choice = 0
        return wrappers

    def wrap_error(self, error: UpstreamError) -> ChoiceDeltaWrapper:
        """Return a chunk wrapper that contains only this error."""
        return ChoiceDeltaWrapper(EMPTY_DELTA, details=ChunkDetails(error=error))

    def wrap_common(self, payload: bytes) -> list[ChoiceDeltaWrapper]:
        """Return the chunk wrappers of a chunk with a common shape; an empty list for other shapes."""
        if self._shape != _PLAIN:
            return self._wrap_with_slower_structs(payload)
        try:
            chunk = decode_plain_chunk(payload)
        except _DECODE_ERRORS:
            # The next chunks probably have the same additional fields. The plain shape is tried again after twice as many
            # chunks as before.
            self._shape, self._remaining = _DOCUMENTED, self._interval
            self._interval = min(2 * self._interval, _MAX_INTERVAL)
            return self._wrap_with_slower_structs(payload)
        wrappers: list[Any] = chunk.choices
        if (
            chunk.model != self._model
            or chunk.id != self._id
            or chunk.service_tier != self._tier
            or chunk.system_fingerprint != self._fingerprint
            or chunk.provider != self._server
            or chunk.object != self._object
            or (chunk.created and not self._created)
        ):
            if chunk.object == _ERROR:
                return []
            metadata = self._new_metadata(chunk)
            if metadata and wrappers:
                wrappers[0].details = ChunkDetails(metadata=metadata)
                wrappers[0].plain = False
        if self._merge_choices:
            for wrapper in wrappers:
                wrapper.choice = 0
        return wrappers

    def _wrap_with_slower_structs(self, payload: bytes) -> list[ChoiceDeltaWrapper]:
        """Return the chunk wrappers of a chunk that is not plain; an empty list if no struct accepts it."""
        wrappers: list[ChoiceDeltaWrapper] = []
        if self._shape == _DOCUMENTED:
            try:
                wrappers = self._complete(decode_documented_chunk(payload), {})
            except _DECODE_ERRORS:
                self._shape = _VENDORS
        if self._shape == _VENDORS:
            try:
                chunk = decode_vendor_chunk(payload)
                wrappers = self._complete(chunk, self._vendors.response_fields(chunk), self._vendors)
            except _DECODE_ERRORS:
                self._shape = _OTHER
        self._remaining -= 1
        if not self._remaining:
            self._shape = _PLAIN
        return wrappers

    def _complete(
        self, chunk: DocumentedChunk, metadata: dict[str, Any], vendors: VendorFields | None = None
    ) -> list[ChoiceDeltaWrapper]:
        """Add the details to the choices of a chunk, which are chunk wrappers. Return the choices.

        Without choices, `wrap_mapping` reads the chunk, which may be a ping.
        """
        if not chunk.choices:
            return []
        metadata |= self._new_metadata(chunk)
        usage = chunk.usage
        wrappers: list[Any] = chunk.choices
        for wrapper in wrappers:
            extra = vendors.choice_fields(wrapper) if vendors is not None else {}
            if wrapper.logprobs is not None:
                extra["logprobs"] = wrapper.logprobs
            if wrapper.native_finish_reason is not None:
                extra["native_finish_reason"] = wrapper.native_finish_reason
            details = delta_details(wrapper.raw, extra, wrapper.finish_reason, self._provider)
            if metadata:
                details = details or ChunkDetails()
                details.metadata, metadata = metadata, {}
            if usage:
                wrapper.usage, usage = counting_usage(usage, wrapper.usage), None
            if details is not None:
                wrapper.details = details
                wrapper.plain = False
            elif wrapper.finish_reason or wrapper.usage or wrapper.raw.tool_calls:
                wrapper.plain = False
            if self._merge_choices:
                wrapper.choice = 0
        return wrappers

    def _new_metadata(self, chunk: PlainChunk) -> dict[str, Any]:
        """Return all fields that describe the response if one of them differs from the previous chunk; otherwise an empty dict.

        Raises:
            ValueError: The payload is an error.
        """
        if (
            chunk.model == self._model
            and chunk.id == self._id
            and chunk.service_tier == self._tier
            and chunk.system_fingerprint == self._fingerprint
            and chunk.provider == self._server
            and chunk.object == self._object
            and (self._created or not chunk.created)
        ):
            return {}
        if chunk.object == _ERROR:
            raise ValueError("the payload is an error instead of a chunk")
        self._id, self._model = chunk.id, chunk.model
        self._tier, self._fingerprint = chunk.service_tier, chunk.system_fingerprint
        self._server, self._object = chunk.provider, chunk.object
        self._created = self._created or bool(chunk.created)
        values = (self._id, self._model, chunk.created, self._tier, self._fingerprint, self._server)
        return {name: value for name, value in zip(_ENVELOPE, values, strict=True) if value}

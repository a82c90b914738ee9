"""OpenAI Chat Completions streams, and everything that calls itself compatible with them.

Two ways in, one wrapper out: the bytes of a response body through `ChatCompletionsDecoder`, or the openai package's
own objects through `ChoiceDeltaWrapper(delta)` and `wrap_chunk(chunk)`.

Nearly every payload has a shape that is decoded straight into structs, which refuse unknown fields (see
`tailrace.wrappers.openai.streamed`). A payload with any other field or type goes through `wrap_mapping` instead, which
loses nothing either (see `tailrace.wrappers.openai.shapes`). Quirks are told by what the stream holds, never by the
vendor's name.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from tailrace.wrappers.chunks import ChunkDetails
from tailrace.wrappers.decoding import EventDecoder
from tailrace.wrappers.error_reports import provider_error, take_error
from tailrace.wrappers.errors import UpstreamError
from tailrace.wrappers.loose_json import as_index, as_mapping, as_mappings
from tailrace.wrappers.openai.deltas import ChoiceDeltaWrapper, delta_details
from tailrace.wrappers.openai.shapes import (
    PADDING,
    ChoiceDelta,
    counting_usage,
    read_delta,
    says_something,
)
from tailrace.wrappers.openai.streamed import (
    DocumentedChunk,
    PlainChunk,
    VendorFields,
    decode_documented_chunk,
    decode_plain_chunk,
    decode_vendor_chunk,
)
from tailrace.wrappers.wire import MAX_EVENT_BYTES

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionChunk

__all__ = ("ChatCompletionsDecoder", "ChoiceDelta", "ChoiceDeltaWrapper", "wrap_chunk", "wrap_mapping")

# Facts about the response rather than about the message; the first non-empty id stays, of the others the last.
_ENVELOPE = ("id", "model", "created", "service_tier", "system_fingerprint", "provider")
_CHOICE_FIELDS = frozenset({"delta", "finishReason", "finish_reason", "message", "text", "usage", *PADDING})
_ERROR = "error"  # the type of an object that is none of a response
_EMPTY = ChoiceDelta()
_NOT_USUAL = (msgspec.DecodeError, ValueError, RecursionError)
_MAX_PATIENCE = 64

# What a chunk may be decoded as: the struct of its shape, or none where it has fields that no struct has.
_PLAIN, _DOCUMENTED, _VENDORS, _ODD = range(4)


class ChatCompletionsDecoder(EventDecoder[ChoiceDeltaWrapper]):
    """Decodes the body of a streamed Chat Completions response. Sans-IO.

    A complete response that was not streamed is understood too, and so are those of the completions API before it.

    Args:
        provider: Named in errors.
        max_event_bytes: Bound on one event.
        merge_choices: All choices are one answer. For a request of one answer (``n=1``) to a server that spreads it
            over several choices, or counts its tokens in their index.

    Attributes:
        done: ``[DONE]`` was received; whatever follows it is ignored.
    """

    __slots__ = (
        "_created",
        "_fingerprint",
        "_id",
        "_left",
        "_merge_choices",
        "_model",
        "_object",
        "_patience",
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
        self._shape = _PLAIN  # of the next chunk, as far as the last ones tell
        self._left = 0  # how many chunks are expected to be of that shape, where it is not the plain one
        self._patience = 4  # how many that will be the next time
        self._vendors = VendorFields()
        self._id: str | None = None  # these of the chunk before
        self._model: str | None = None
        self._tier: str | None = None
        self._fingerprint: str | None = None
        self._server: str | None = None  # which of several a router has asked
        self._object: str | None = None
        self._created = False  # of the chunks so far, one has said when it was; the first counts

    def wrap(self, fields: dict[str, Any], *, error_event: bool = False) -> list[ChoiceDeltaWrapper]:
        """The deltas of one chunk; see `wrap_mapping`."""
        # All that it says is told, which may differ from what was told last.
        self._id = None
        self._vendors.forget()
        wrappers = wrap_mapping(fields, provider=self._provider, error_event=error_event)
        if self._merge_choices:
            for wrapper in wrappers:
                wrapper.choice = 0
        return wrappers

    def wrap_error(self, error: UpstreamError) -> ChoiceDeltaWrapper:
        """An empty delta with this error."""
        return ChoiceDeltaWrapper(_EMPTY, details=ChunkDetails(error=error))

    def wrap_usual(self, payload: bytes) -> list[ChoiceDeltaWrapper]:
        """The deltas of a chunk of a shape that nearly all servers send."""
        if self._shape != _PLAIN:
            return self._wrap_other(payload)
        try:
            chunk = decode_plain_chunk(payload)
        except _NOT_USUAL:
            # What this chunk holds besides, further ones hold too: the more, the more often that was so.
            self._shape, self._left = _DOCUMENTED, self._patience
            self._patience = min(2 * self._patience, _MAX_PATIENCE)
            return self._wrap_other(payload)
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
            facts = self._new_facts(chunk)
            if facts and wrappers:
                wrappers[0].details = ChunkDetails(metadata=facts)
                wrappers[0].plain = False
        if self._merge_choices:
            for wrapper in wrappers:
                wrapper.choice = 0
        return wrappers

    def _wrap_other(self, payload: bytes) -> list[ChoiceDeltaWrapper]:
        """The deltas of a chunk that is expected to hold more than text and reasoning; none where it has odd fields."""
        wrappers: list[ChoiceDeltaWrapper] = []
        if self._shape == _DOCUMENTED:
            try:
                wrappers = self._complete(decode_documented_chunk(payload), {})
            except _NOT_USUAL:
                self._shape = _VENDORS
        if self._shape == _VENDORS:
            try:
                chunk = decode_vendor_chunk(payload)
                wrappers = self._complete(chunk, self._vendors.of_response(chunk), self._vendors)
            except _NOT_USUAL:
                self._shape = _ODD
        self._left -= 1
        if not self._left:
            self._shape = _PLAIN
        return wrappers

    def _complete(
        self, chunk: DocumentedChunk, facts: dict[str, Any], vendors: VendorFields | None = None
    ) -> list[ChoiceDeltaWrapper]:
        """The choices of a chunk, which are wrappers, with all that they hold in its place.

        None where there is no choice: whether the chunk is a ping or says something is told by other fields.
        """
        if not chunk.choices:
            return []
        facts |= self._new_facts(chunk)
        usage = chunk.usage
        wrappers: list[Any] = chunk.choices
        for wrapper in wrappers:
            extra = vendors.of_choice(wrapper) if vendors is not None else {}
            if wrapper.logprobs is not None:
                extra["logprobs"] = wrapper.logprobs
            if wrapper.native_finish_reason is not None:
                extra["native_finish_reason"] = wrapper.native_finish_reason
            details = delta_details(wrapper.raw, extra, wrapper.finish_reason, self._provider)
            if facts:
                details = details or ChunkDetails()
                details.metadata, facts = facts, {}
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

    def _new_facts(self, chunk: PlainChunk) -> dict[str, Any]:
        """The facts about the response, if they differ from those of the chunk before.

        Raises:
            ValueError: It is none, but an error.
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
            raise ValueError("an error in the place of a chunk")
        self._id, self._model = chunk.id, chunk.model
        self._tier, self._fingerprint = chunk.service_tier, chunk.system_fingerprint
        self._server, self._object = chunk.provider, chunk.object
        self._created = self._created or bool(chunk.created)
        return {name: value for name in _ENVELOPE if (value := getattr(chunk, name)) not in (None, "", 0)}


def wrap_chunk(chunk: "ChatCompletionChunk | Mapping[str, Any]") -> list[ChoiceDeltaWrapper]:
    """The deltas of one whole chunk: the openai package's object, or its JSON object.

    Returns:
        One wrapper a choice; one with an empty delta where the chunk has no choice but says something (usage,
        facts about the response, an error); none for a ping.
    """
    if isinstance(chunk, Mapping):
        return wrap_mapping(chunk)
    return wrap_mapping(chunk.model_dump(mode="json", exclude_unset=True, warnings=False))


def wrap_mapping(
    chunk: Mapping[str, Any], *, provider: str = "", error_event: bool = False
) -> list[ChoiceDeltaWrapper]:
    """The deltas of one chunk given as a JSON object, whatever of its fields are missing, null or misshapen.

    Args:
        chunk: The object; also a whole ``chat.completion``, whose messages count as snapshots.
        provider: Named in errors.
        error_event: The object came as the payload of an event of type ``error``.
    """
    fields = dict(chunk)
    error = take_error(fields, provider, error_event=error_event)
    groq = as_mapping(fields.get("x_groq")) or {}
    if error is None and groq.get("error"):
        error = provider_error(groq["error"], provider)
    usage = counting_usage(as_mapping(fields.pop("usage", None)), as_mapping(groq.get("usage")))
    choices = fields.pop("choices", None)
    metadata = {
        name: value for name, value in fields.items() if name not in PADDING and value not in (None, "", 0)
    }
    wrappers: list[ChoiceDeltaWrapper] = []
    for choice in as_mappings(choices):
        counted = counting_usage(usage, as_mapping(choice.get("usage")))
        wrappers.append(_wrap_choice(choice, counted, provider))
        usage = None
    if not wrappers:
        if not usage and error is None and not isinstance(choices, list):
            return []  # a ping
        wrappers.append(ChoiceDeltaWrapper(_EMPTY, usage=usage))
    if metadata:
        first = wrappers[0].details = wrappers[0].details or ChunkDetails()
        first.metadata = metadata
    if error is not None:
        # What a choice says in the place of its finish reason is less than this.
        for wrapper in wrappers:
            if wrapper.details is not None:
                wrapper.details.error = None
        last = wrappers[-1].details = wrappers[-1].details or ChunkDetails()
        last.error = error
    return wrappers


def _wrap_choice(
    choice: Mapping[str, Any], usage: Mapping[str, Any] | None, provider: str
) -> ChoiceDeltaWrapper:
    sent = as_mapping(choice.get("delta"))
    if sent is None:
        sent = {"content": choice["text"]} if isinstance(choice.get("text"), str) else {}
    delta, extra = read_delta(sent)
    # A whole message beside or instead of a delta repeats what was streamed, if anything was.
    message = as_mapping(choice.get("message"))
    snapshot = message is not None and not says_something(delta)
    if message is not None and snapshot:
        delta, extra = read_delta(message)
    extra |= {key: value for key, value in choice.items() if key not in _CHOICE_FIELDS and value is not None}
    if sent.get("error") and not extra.get("error"):
        extra["error"] = sent["error"]
    reason = choice.get("finish_reason") or choice.get("finishReason")
    reason = reason if isinstance(reason, str) else None
    details = delta_details(delta, extra, reason, provider)
    if snapshot:
        details = details or ChunkDetails()
        details.snapshot = True
    return ChoiceDeltaWrapper(
        delta, as_index(choice.get("index")) or 0, details, finish_reason=reason, usage=usage
    )

"""Decoder of Gemini streams: generateContent (Gemini API and Vertex AI), and the Interactions API.

A *candidate* is a choice of the response. A generateContent stream has no end marker. A candidate ends with a ``finishReason``,
but further chunks may follow. Token counts are cumulative. If the prompt is blocked, the response has a ``blockReason`` instead
of a candidate. The finish reason is then ``content_filter``.

Other fields of a candidate are returned in `ChunkDetails.extra`. ``citationMetadata.citations`` is returned as ``annotations``.
Google sends some lists repeatedly, so only their new items are reported. ``safetyRatings`` change with each chunk, so only the
last ones are reported, at the end.
"""

from collections.abc import Mapping
from typing import Any, cast

import msgspec
from pydantic import BaseModel

from tailrace.wrappers.chunks import ChunkDetails, FinishMessage, FinishReason, Usage
from tailrace.wrappers.decoding.decoder import EventDecoder, merged_usage
from tailrace.wrappers.decoding.error_reports import pop_error
from tailrace.wrappers.decoding.framing import MAX_EVENT_BYTES
from tailrace.wrappers.decoding.lenient_json import as_index, as_mapping, as_mappings, as_text
from tailrace.wrappers.errors import UpstreamError
from tailrace.wrappers.gemini.content_parts import (
    CallCounter,
    Fields,
    GeminiPartWrapper,
    PartReader,
    read_finish,
    read_usage,
)
from tailrace.wrappers.gemini.interactions import InteractionReader


class _CommonContent(msgspec.Struct, gc=False):
    parts: list[dict[str, Any]]


class _CommonCandidate(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    content: _CommonContent
    index: int = 0
    safetyRatings: list[Any] | None = None


class _CommonChunk(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """A chunk of the most common format: one candidate without a finish reason, and token counts."""

    candidates: tuple[_CommonCandidate]
    usageMetadata: dict[str, Any] | None = None
    modelVersion: str | None = None
    responseId: str | None = None
    createTime: str | None = None


_decode_common = msgspec.json.Decoder(_CommonChunk).decode

_CONTENT = frozenset({"candidates", "usageMetadata"})
_NAMES = {"modelVersion": "model", "responseId": "id"}
# A response has at least one of these fields.
_RESPONSE_FIELDS = frozenset({"candidates", "modelVersion", "promptFeedback", "responseId", "usageMetadata"})
# Fields of a candidate that are not reported in ``extra``.
_CANDIDATE_FIELDS = frozenset({"content", "finishMessage", "finishReason", "index"})
# Fields that the ``google-genai`` package adds to a response.
_PACKAGE_FIELDS = {"automatic_function_calling_history", "parsed", "sdk_http_response"}
_URL_SAFE = str.maketrans("-_", "+/")


class _Candidate:
    __slots__ = ("lists", "parts", "ratings")

    def __init__(self, parts: PartReader) -> None:
        self.parts = parts
        self.ratings: object = None
        # The last value of each list, by name of the field and name of the list.
        self.lists: dict[tuple[str, str], list[Any]] = {}


class GeminiDecoder(EventDecoder[GeminiPartWrapper]):
    """Sans-IO decoder of a streamed response body (server-sent events or one JSON array).

    The decoder also reads complete responses, and streams of the Interactions API.

    Args:
        provider: The provider's name in errors.
        max_event_bytes: Maximum size of one event in bytes.
        is_single_chunk: True to decode a single chunk. Calls then have no index.

    Attributes:
        done: True after the event that ends an interaction, and after ``[DONE]``, which some gateways send.
    """

    __slots__ = (
        "_candidates",
        "_counter",
        "_envelope",
        "_interaction",
        "_raw_usage",
        "_response_fields",
        "_tier",
        "_usage",
    )

    def __init__(
        self, *, provider: str = "", max_event_bytes: int = MAX_EVENT_BYTES, is_single_chunk: bool = False
    ) -> None:
        super().__init__(provider=provider, max_event_bytes=max_event_bytes)
        self._counter = None if is_single_chunk else CallCounter()
        self._candidates: dict[int, _Candidate] = {}
        self._response_fields: Fields = {}  # of the previous chunk
        self._envelope: tuple[object, ...] = (None, None, None)  # model, id and time in the previous chunk
        self._raw_usage: Mapping[str, Any] | None = None
        self._usage: Mapping[str, Any] = {}
        self._tier = ""
        self._interaction: InteractionReader | None = None

    def wrap_common(self, payload: bytes) -> list[GeminiPartWrapper]:
        """Return the chunk wrapper of a chunk whose only new content is one text or thought; an empty list for other chunks."""
        if self._interaction is not None:
            return []
        try:
            chunk = _decode_common(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return []
        candidate = chunk.candidates[0]
        state = self._candidates.get(candidate.index)
        parts = candidate.content.parts
        model, response_id, time = self._envelope
        if (
            state is None
            or len(parts) != 1
            or chunk.responseId != response_id
            or chunk.modelVersion != model
            or chunk.createTime != time
        ):
            return []
        wrapper = state.parts.read_plain(parts[0])
        if wrapper is None:
            return []
        raw_usage = chunk.usageMetadata
        if raw_usage and raw_usage != self._raw_usage:
            # The fast path requires all counts, and an unchanged service tier.
            if b"null" in payload or not raw_usage.keys() >= self._usage.keys():
                return []
            usage = read_usage(raw_usage)
            if usage is None or raw_usage.get("serviceTier", self._tier) != self._tier:
                return []
            self._usage = self._raw_usage = raw_usage
            wrapper.usage = usage
            wrapper.plain = False
        if candidate.safetyRatings is not None:
            state.ratings = candidate.safetyRatings
        return [wrapper]

    def wrap(self, fields: Fields, *, error_event: bool = False) -> list[GeminiPartWrapper]:
        """Return chunk wrappers for the parts of a chunk, and for new fields that belong to no part."""
        if "event_type" in fields or fields.get("object") == "interaction":
            return self._wrap_interaction(fields)
        error = pop_error(fields, self._provider, error_event=error_event)
        if error is not None:
            # Google's name of the status is used instead of the code, which is only the HTTP status.
            error.code = as_text((as_mapping(error.details) or {}).get("status")) or error.code
        elif _RESPONSE_FIELDS.isdisjoint(fields):
            return []
        wrappers: list[GeminiPartWrapper] = []
        candidates = fields.get("candidates")
        if candidates:
            for candidate in as_mappings(candidates):
                self._wrap_candidate(candidate, wrappers)
        response_fields = {name: value for name, value in fields.items() if name not in _CONTENT}
        metadata = self._new_metadata(response_fields) if response_fields != self._response_fields else None
        usage = fields.get("usageMetadata")
        if usage and usage != self._raw_usage:
            usage = self._new_usage(as_mapping(usage) or {})
            if self._usage.get("serviceTier", self._tier) != self._tier:
                self._tier = self._usage["serviceTier"]
                metadata = {**(metadata or {}), "service_tier": self._tier}
        else:
            usage = None
        blocked = None if wrappers else _blocked_finish(fields)
        if metadata or usage or error or blocked:
            if not wrappers:
                wrappers.append(GeminiPartWrapper(fields, finish=blocked))
            first = wrappers[0]
            first.plain = False
            first.usage = usage
            if metadata:
                first.details = first.details or ChunkDetails()
                first.details.metadata = metadata
            if error is not None:
                last = wrappers[-1]
                last.plain = False
                last.details = last.details or ChunkDetails()
                last.details.error = error
        return wrappers

    def wrap_error(self, error: UpstreamError) -> GeminiPartWrapper:
        """Return a chunk wrapper that contains only this error."""
        return GeminiPartWrapper({}, details=ChunkDetails(error=error))

    def close(self) -> list[GeminiPartWrapper]:
        """End the body. Return all remaining chunk wrappers; see `ResponseDecoder.close`."""
        return super().close() + self.flush()

    def flush(self) -> list[GeminiPartWrapper]:
        """Return chunk wrappers for all buffered content: safety ratings, and the arguments of incomplete calls."""
        wrappers = self._interaction.close() if self._interaction is not None else []
        for choice, candidate in self._candidates.items():
            calls = candidate.parts.end_call(complete=False)
            ratings, candidate.ratings = candidate.ratings, None
            if calls or ratings:
                details = ChunkDetails(extra={"safetyRatings": ratings}) if ratings else None
                wrappers.append(GeminiPartWrapper({}, choice, details, calls=calls))
        return wrappers

    def _wrap_interaction(self, fields: Fields) -> list[GeminiPartWrapper]:
        if self._interaction is None:
            self._interaction = InteractionReader(self._provider)
        wrappers = self._interaction.read(fields)
        self.done = self._interaction.done
        return wrappers

    def _wrap_candidate(self, candidate: Mapping[str, Any], wrappers: list[GeminiPartWrapper]) -> None:
        choice = as_index(candidate.get("index")) or 0
        state = self._candidates.get(choice)
        if state is None:
            state = self._candidates[choice] = _Candidate(PartReader(choice, self._counter))
        start = len(wrappers)
        content = candidate.get("content")
        if isinstance(content, dict):
            parts = cast("Fields", content).get("parts")
            if parts:
                read = state.parts.read
                wrappers += [read(cast("Fields", part)) for part in as_mappings(parts)]
        finish = read_finish(candidate)
        extra: Fields = {}
        for name, value in candidate.items():
            if name not in _CANDIDATE_FIELDS and value is not None:
                _add_field(name, value, state, extra)
        if finish is None and not extra:
            return
        calls = (
            state.parts.end_call(complete=finish.reason is FinishReason.STOP) if finish is not None else ()
        )
        if calls or len(wrappers) == start:
            wrappers.append(GeminiPartWrapper(candidate, choice, calls=calls))
        last = wrappers[-1]
        last.plain = False
        last.finish = finish
        if extra:
            last.details = last.details or ChunkDetails()
            last.details.extra = extra

    def _new_metadata(self, response_fields: Fields) -> Fields | None:
        """Return the fields of the response that differ from the previous chunk."""
        previous, self._response_fields = self._response_fields, response_fields
        self._envelope = (
            response_fields.get("modelVersion"),
            response_fields.get("responseId"),
            response_fields.get("createTime"),
        )
        new = {
            _NAMES.get(name, name): value
            for name, value in response_fields.items()
            if value != previous.get(name)
        }
        return {name: value for name, value in new.items() if value not in (None, "")}

    def _new_usage(self, usage: Mapping[str, Any]) -> Usage | None:
        self._raw_usage = usage
        self._usage = merged_usage(self._usage, usage)
        return read_usage(self._usage)


def wrap_chunk(
    chunk: BaseModel | Mapping[str, Any], decoder: GeminiDecoder | None = None
) -> list[GeminiPartWrapper]:
    """Return the chunk wrappers of one chunk.

    Args:
        chunk: A ``GenerateContentResponse`` or an event of the Interactions API, as an object of the ``google-genai`` package or
            as a JSON object.
        decoder: The decoder of the chunk's stream; None for a single chunk. A decoder reports repeated fields only once, and
            joins streamed arguments. Call `GeminiDecoder.close` at the end of the stream.
    """
    fields = read_fields(chunk)
    if decoder is not None:
        return decoder.wrap(fields)
    single = GeminiDecoder(is_single_chunk=True)
    return single.wrap(fields) + single.flush()


def read_fields(value: object) -> Fields:
    """Return an object of the ``google-genai`` package as a JSON object, or a copy of a JSON object; empty for other values."""
    if not isinstance(value, BaseModel):
        return dict(as_mapping(value) or {})
    fields = value.model_dump(
        mode="json", by_alias=True, exclude_unset=True, exclude=_PACKAGE_FIELDS, warnings=False
    )
    for candidate in as_mappings(fields.get("candidates")):
        _use_standard_base64(as_mapping(candidate.get("content")) or {})
    _use_standard_base64({"parts": fields.get("parts", fields)})  # a content, or a single part
    return fields


def _use_standard_base64(content: Mapping[str, Any]) -> None:
    """Convert the URL-safe base64 of the package to the standard base64 of the API."""
    for part in as_mappings(content.get("parts")):
        for owner, name in ((part, "thoughtSignature"), (part.get("inlineData"), "data")):
            if isinstance(owner, dict) and name in owner:
                fields = cast("Fields", owner)
                fields[name] = as_text(fields[name]).translate(_URL_SAFE)


def _blocked_finish(fields: Mapping[str, Any]) -> FinishMessage | None:
    feedback = as_mapping(fields.get("promptFeedback")) or {}
    reason = feedback.get("blockReason")
    if not reason:
        return None
    message = as_text(feedback.get("blockReasonMessage")) or None
    return FinishMessage(FinishReason.CONTENT_FILTER, str(reason), message)


def _add_field(name: str, value: object, state: _Candidate, extra: Fields) -> None:
    """Add a field of a candidate to ``extra``, or store it in the state of the candidate."""
    fields = as_mapping(value)
    if name == "safetyRatings":
        state.ratings = value
    elif name == "citationMetadata" and fields is not None:
        citations = fields.get("citations") or fields.get("citationSources")
        if new := _new_items(state, (name, ""), citations):
            extra["annotations"] = new
    elif fields is not None and name.endswith("Metadata"):
        new = {key: _new_items(state, (name, key), inner) for key, inner in fields.items()}
        if new := {key: inner for key, inner in new.items() if inner not in (None, [])}:
            extra[name] = new
    else:
        extra[name] = value


def _new_items(state: _Candidate, key: tuple[str, str], value: object) -> object:
    """Return the new items of a list. Return any other value unchanged."""
    if not isinstance(value, list):
        return value
    items = cast("list[Any]", value)
    previous = state.lists.get(key, [])
    if items == previous[: len(items)]:
        return []
    state.lists[key] = items
    return items[len(previous) :] if items[: len(previous)] == previous else items

"""Gemini streams: generateContent of the Gemini API and of Vertex AI, and the Interactions API.

Two ways in, one wrapper out: the bytes of a response body through `GeminiDecoder`, or the google-genai package's own
objects through `wrap_chunk`.

generateContent has no end marker: a candidate has ended when it has given a ``finishReason``, and more may follow.
Token counts grow from chunk to chunk; each chunk's replace those before. A prompt that was refused has no candidate,
but a ``blockReason``, which ends the answer as a content filter does.

Where a candidate's further facts stand in the answer's ``extra``: ``annotations`` (``citationMetadata.citations``),
``groundingMetadata``, ``urlContextMetadata``, ``logprobsResult`` and any unknown field as they come, of lists that are
sent again and longer only what is new; ``safetyRatings``, which change from chunk to chunk, once at the end.
"""

from collections.abc import Mapping
from typing import Any, cast

import msgspec
from pydantic import BaseModel

from tailrace.wrappers.chunks import ChunkDetails, FinishMessage, FinishReason, Usage
from tailrace.wrappers.decoding import EventDecoder, merged_usage
from tailrace.wrappers.error_reports import take_error
from tailrace.wrappers.errors import UpstreamError
from tailrace.wrappers.gemini.interactions import InteractionReader
from tailrace.wrappers.gemini.parts import (
    CallCounter,
    Fields,
    GeminiPartWrapper,
    PartReader,
    read_finish,
    read_usage,
)
from tailrace.wrappers.loose_json import as_index, as_mapping, as_mappings, as_text
from tailrace.wrappers.wire import MAX_EVENT_BYTES


class _UsualContent(msgspec.Struct, gc=False):
    parts: list[dict[str, Any]]


class _UsualCandidate(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    content: _UsualContent
    index: int = 0
    safetyRatings: list[Any] | None = None


class _UsualChunk(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """What nearly every chunk is: one candidate that goes on, and counts."""

    candidates: tuple[_UsualCandidate]
    usageMetadata: dict[str, Any] | None = None
    modelVersion: str | None = None
    responseId: str | None = None
    createTime: str | None = None


_decode_usual = msgspec.json.Decoder(_UsualChunk).decode

_CONTENT = frozenset({"candidates", "usageMetadata"})
_NAMES = {"modelVersion": "model", "responseId": "id"}
# An object with none of these is somebody else's.
_KNOWN = frozenset({"candidates", "modelVersion", "promptFeedback", "responseId", "usageMetadata"})
_USUAL = frozenset({"content", "finishMessage", "finishReason", "index"})  # fields of a candidate
# What the package adds to a response that Google never sent.
_PACKAGES_OWN = {"automatic_function_calling_history", "parsed", "sdk_http_response"}
_URL_SAFE = str.maketrans("-_", "+/")


class _Candidate:
    """What has to be remembered of one candidate while its chunks arrive."""

    __slots__ = ("lists", "parts", "ratings")

    def __init__(self, parts: PartReader) -> None:
        self.parts = parts
        self.ratings: object = None
        self.lists: dict[tuple[str, str], list[Any]] = {}  # by the fact's name and the list's, as last sent


class GeminiDecoder(EventDecoder[GeminiPartWrapper]):
    """Decodes the body of a streamed response, as events or as one JSON array. Sans-IO.

    A complete response that was not streamed is understood too, and so are streams of the Interactions API.

    Args:
        provider: Named in errors.
        max_event_bytes: Bound on one event.
        alone: One chunk of a stream is read by itself: what came before it is not known, so that its calls cannot
            be numbered.

    Attributes:
        done: An interaction has ended, or ``[DONE]`` was received (which Google does not send, but some gateways do).
    """

    __slots__ = (
        "_candidates",
        "_counter",
        "_envelope",
        "_facts",
        "_interaction",
        "_tier",
        "_usage",
        "_usage_sent",
    )

    def __init__(
        self, *, provider: str = "", max_event_bytes: int = MAX_EVENT_BYTES, alone: bool = False
    ) -> None:
        super().__init__(provider=provider, max_event_bytes=max_event_bytes)
        self._counter = None if alone else CallCounter()
        self._candidates: dict[int, _Candidate] = {}
        self._facts: Fields = {}  # of the last chunk
        self._envelope: tuple[object, ...] = (None, None, None)  # those of them that every chunk has
        self._usage_sent: Mapping[str, Any] | None = None
        self._usage: Mapping[str, Any] = {}
        self._tier = ""
        self._interaction: InteractionReader | None = None

    def wrap_usual(self, payload: bytes) -> list[GeminiPartWrapper]:
        """The deltas of a chunk with one part, a text or a thought, when its facts are known already."""
        if self._interaction is not None:
            return []
        try:
            chunk = _decode_usual(payload)
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
        sent = chunk.usageMetadata
        if sent and sent != self._usage_sent:
            # All that was counted before is counted again, and for the same tier: these counts replace those.
            if b"null" in payload or not sent.keys() >= self._usage.keys():
                return []
            usage = read_usage(sent)
            if usage is None or sent.get("serviceTier", self._tier) != self._tier:
                return []
            self._usage = self._usage_sent = sent
            wrapper.usage = usage
            wrapper.plain = False
        if candidate.safetyRatings is not None:
            state.ratings = candidate.safetyRatings
        return [wrapper]

    def wrap(self, fields: Fields, *, error_event: bool = False) -> list[GeminiPartWrapper]:
        """The deltas of one chunk, one a part; one with an empty delta where there is no part to say something."""
        if "event_type" in fields or fields.get("object") == "interaction":
            return self._wrap_interaction(fields)
        error = take_error(fields, self._provider, error_event=error_event)
        if error is not None:
            # The number says no more than the HTTP status, which is known already; the word is Google's own code.
            error.code = as_text((as_mapping(error.details) or {}).get("status")) or error.code
        elif _KNOWN.isdisjoint(fields):
            return []
        wrappers: list[GeminiPartWrapper] = []
        candidates = fields.get("candidates")
        if candidates:
            for candidate in as_mappings(candidates):
                self._wrap_candidate(candidate, wrappers)
        facts = {name: value for name, value in fields.items() if name not in _CONTENT}
        metadata = self._new_facts(facts) if facts != self._facts else None
        usage = fields.get("usageMetadata")
        if usage and usage != self._usage_sent:
            usage = self._new_usage(as_mapping(usage) or {})
            if self._usage.get("serviceTier", self._tier) != self._tier:
                self._tier = self._usage["serviceTier"]
                metadata = {**(metadata or {}), "service_tier": self._tier}
        else:
            usage = None
        blocked = None if wrappers else _blocked(fields)
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
        """An empty delta with this error."""
        return GeminiPartWrapper({}, details=ChunkDetails(error=error))

    def close(self) -> list[GeminiPartWrapper]:
        """The body is over; see `ResponseDecoder.close`. Gives also what was held back to the end."""
        return super().close() + self.rest()

    def rest(self) -> list[GeminiPartWrapper]:
        """What was held back: safety ratings, and the arguments of calls that never ended."""
        wrappers = self._interaction.close() if self._interaction is not None else []
        for choice, candidate in self._candidates.items():
            calls = candidate.parts.end_call(whole=False)
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
        begin = len(wrappers)
        content = candidate.get("content")
        if isinstance(content, dict):
            parts = cast("Fields", content).get("parts")
            if parts:
                read = state.parts.read
                wrappers += [read(cast("Fields", part)) for part in as_mappings(parts)]
        finish = read_finish(candidate)
        extra: Fields = {}
        for name, value in candidate.items():
            if name not in _USUAL and value is not None:
                _take_fact(name, value, state, extra)
        if finish is None and not extra:
            return
        calls = state.parts.end_call(whole=finish.reason is FinishReason.STOP) if finish is not None else ()
        if calls or len(wrappers) == begin:
            wrappers.append(GeminiPartWrapper(candidate, choice, calls=calls))
        last = wrappers[-1]
        last.plain = False
        last.finish = finish
        if extra:
            last.details = last.details or ChunkDetails()
            last.details.extra = extra

    def _new_facts(self, facts: Fields) -> Fields | None:
        """Facts about the response, which differ from those of the chunk before."""
        known, self._facts = self._facts, facts
        self._envelope = (facts.get("modelVersion"), facts.get("responseId"), facts.get("createTime"))
        new = {_NAMES.get(name, name): value for name, value in facts.items() if value != known.get(name)}
        return {name: value for name, value in new.items() if value not in (None, "")}

    def _new_usage(self, usage: Mapping[str, Any]) -> Usage | None:
        self._usage_sent = usage
        self._usage = merged_usage(self._usage, usage)
        return read_usage(self._usage)


def wrap_chunk(
    chunk: BaseModel | Mapping[str, Any], decoder: GeminiDecoder | None = None
) -> list[GeminiPartWrapper]:
    """The deltas of one chunk: the google-genai package's object, or its JSON object.

    Args:
        chunk: A ``GenerateContentResponse``, or an event of the Interactions API.
        decoder: Follows the stream that the chunk belongs to: knows what came before, so that facts come once and
            arguments that are streamed are put together. Its `GeminiDecoder.close` gives what it held back. None for
            a chunk that is looked at by itself.
    """
    fields = read_fields(chunk)
    if decoder is not None:
        return decoder.wrap(fields)
    alone = GeminiDecoder(alone=True)
    return alone.wrap(fields) + alone.rest()


def read_fields(value: object) -> Fields:
    """The JSON object that an object of the google-genai package stands for; a JSON object as it is."""
    if not isinstance(value, BaseModel):
        return dict(as_mapping(value) or {})
    fields = value.model_dump(
        mode="json", by_alias=True, exclude_unset=True, exclude=_PACKAGES_OWN, warnings=False
    )
    for candidate in as_mappings(fields.get("candidates")):
        _use_standard_base64(as_mapping(candidate.get("content")) or {})
    _use_standard_base64({"parts": fields.get("parts", fields)})  # of a content, or a part by itself
    return fields


def _use_standard_base64(content: Mapping[str, Any]) -> None:
    """Write bytes as Google does: the package writes them in the other alphabet."""
    for part in as_mappings(content.get("parts")):
        for place, name in ((part, "thoughtSignature"), (part.get("inlineData"), "data")):
            if isinstance(place, dict) and name in place:
                fields = cast("Fields", place)
                fields[name] = as_text(fields[name]).translate(_URL_SAFE)


def _blocked(fields: Mapping[str, Any]) -> FinishMessage | None:
    """That the prompt was refused, and why; None when it was not."""
    feedback = as_mapping(fields.get("promptFeedback")) or {}
    reason = feedback.get("blockReason")
    if not reason:
        return None
    message = as_text(feedback.get("blockReasonMessage")) or None
    return FinishMessage(FinishReason.CONTENT_FILTER, str(reason), message)


def _take_fact(name: str, value: object, state: _Candidate, extra: Fields) -> None:
    """Take one further field of a candidate."""
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


def _new_items(state: _Candidate, place: tuple[str, str], sent: object) -> object:
    """What of a list has not been sent before; anything but a list as it is."""
    if not isinstance(sent, list):
        return sent
    items = cast("list[Any]", sent)
    known = state.lists.get(place, [])
    if items == known[: len(items)]:
        return []
    state.lists[place] = items
    return items[len(known) :] if items[: len(known)] == known else items

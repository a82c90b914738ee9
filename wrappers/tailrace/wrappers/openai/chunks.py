"""OpenAI Chat Completions streams, and everything that calls itself compatible with them.

Two ways in, one wrapper out: the bytes of a response body through `ChatCompletionsDecoder`, or the openai package's
own objects through `ChoiceDeltaWrapper(delta)` and `wrap_chunk(chunk)`.

Nearly every payload has the shape that OpenAI documents and is decoded straight into structs, which refuse unknown
fields. A payload with any other field or type goes through `wrap_mapping` instead, which loses nothing either (see
`tailrace.wrappers.openai.shapes`). Quirks are told by what the stream holds, never by the vendor's name.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import msgspec

from tailrace.wrappers.chunks import (
    ChunkDetails,
    ChunkWrapper,
    FinishMessage,
    FinishReason,
    ToolCallDelta,
    Usage,
)
from tailrace.wrappers.errors import UpstreamError, UpstreamFault
from tailrace.wrappers.openai.errors import finish_error, provider_error, take_error
from tailrace.wrappers.openai.shapes import (
    PADDING,
    ChoiceDelta,
    Chunk,
    ChunkChoice,
    FunctionDelta,
    as_mapping,
    as_mappings,
    read_delta,
    read_json,
    read_usage,
)
from tailrace.wrappers.wire import MAX_EVENT_BYTES, ServerSentEvent, SSEDecoder

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionChunk
    from openai.types.chat.chat_completion_chunk import ChoiceDelta as PackageChoiceDelta

_FINISH_REASONS = {
    "stop": FinishReason.STOP,
    "eos": FinishReason.STOP,
    "end_turn": FinishReason.STOP,
    "stop_sequence": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "max_tokens": FinishReason.LENGTH,
    "model_length": FinishReason.LENGTH,
    "tool_calls": FinishReason.TOOL_CALLS,
    "tool_use": FinishReason.TOOL_CALLS,
    "function_call": FinishReason.TOOL_CALLS,
    "content_filter": FinishReason.CONTENT_FILTER,
    "safety": FinishReason.CONTENT_FILTER,
    "sensitive": FinishReason.CONTENT_FILTER,
    "recitation": FinishReason.RECITATION,
}
# Facts about the response rather than about the message; the first non-empty id stays, of the others the last.
_ENVELOPE = ("id", "model", "created", "service_tier", "system_fingerprint")

_decode_chunk = msgspec.json.Decoder(Chunk).decode
_CHOICE_FIELDS = frozenset({"delta", "finishReason", "finish_reason", "message", "text", "usage", *PADDING})
# What a line may begin with (up to the colon) in an event stream that has no event yet; comments with nothing.
_EMPTY_FIELDS = frozenset({b"", b"data", b"event", b"id", b"retry"})
_EMPTY = ChoiceDelta()
_NO_FUNCTION = FunctionDelta()
_NO_DESCRIPTION = "an error without a description"


class ChoiceDeltaWrapper(ChunkWrapper["ChoiceDelta | PackageChoiceDelta"], gc=False):
    """Over one ``ChoiceDelta``: the openai package's object, or the struct that our decoder makes.

    Attributes:
        finish_reason: ``choices[].finish_reason``, which stands beside the delta.
        usage: The chunk's usage object, as sent.
    """

    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = None
    _delta: ChoiceDelta | None = None

    def __post_init__(self) -> None:
        """Find what the package's object means, which may hold any field that a compatible server sent."""
        if type(self.raw) is not ChoiceDelta:
            package = cast("PackageChoiceDelta", self.raw)
            self._delta, extra = read_delta(
                package.model_dump(mode="json", exclude_unset=True, warnings=False)
            )
            if self.details is None:
                self.details = _delta_details(self._delta, extra)

    @property
    def delta(self) -> ChoiceDelta:
        """The delta in our own shape, whichever class ``raw`` is of."""
        return self._delta or cast("ChoiceDelta", self.raw)

    def get_text(self) -> str:
        """``delta.content``; the text parts of it where a server sends a list."""
        delta: Any = self._delta or self.raw
        return delta.content or ""

    def get_reasoning(self) -> str:
        """``delta.reasoning_content`` or ``delta.reasoning``: servers that send both repeat the same text."""
        delta: Any = self._delta or self.raw
        return delta.reasoning_content or delta.reasoning or ""

    def get_tool_calls(self) -> list[ToolCallDelta]:
        """The fragments in ``delta.tool_calls``."""
        return [
            ToolCallDelta(
                index=call.index,
                id=call.id or "",
                name=(call.function or _NO_FUNCTION).name or "",
                arguments=(call.function or _NO_FUNCTION).arguments or "",
                type=call.type or "",
                extra=call.model_extra or None,
            )
            for call in self.delta.tool_calls or ()
        ]

    def get_finish_message(self) -> FinishMessage | None:
        """The choice's ``finish_reason``; null and the empty string both mean that it goes on."""
        raw = self.finish_reason
        if not raw:
            return None
        return FinishMessage(_FINISH_REASONS.get(raw.lower(), FinishReason.UNSPECIFIED), raw)

    def get_usage(self) -> Usage | None:
        """The chunk's usage object, wherever in the chunk it stood."""
        return read_usage(self.usage) if self.usage else None


class ChatCompletionsDecoder:
    """Decodes the body of a streamed Chat Completions response. Sans-IO.

    Args:
        provider: Named in errors.
        max_event_bytes: Bound on one event.

    Attributes:
        done: ``[DONE]`` was received; whatever follows it is ignored.
    """

    __slots__ = ("_fingerprint", "_head", "_id", "_model", "_provider", "_seen", "_sse", "_tier", "done")

    _HEAD_BYTES = 8 * 1024 * 1024  # a whole response that was not streamed is read from here

    def __init__(self, *, provider: str = "", max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._sse = SSEDecoder(error_field=True, max_event_bytes=max_event_bytes)
        self._provider = provider
        self._id = self._model = ""
        self._tier: str | None = None
        self._fingerprint: str | None = None
        self._seen = False
        self._head = bytearray()
        self.done = False

    def feed(self, data: bytes) -> list[ChoiceDeltaWrapper]:
        """Take the next bytes of the body; return the deltas that they complete, in order.

        An error that the provider reports, and an event that is not JSON, come as a delta whose
        ``details.error`` is set; nothing that was read before is lost.

        Raises:
            UpstreamError: One event is larger than the bound.
        """
        if self.done:
            return []
        if self._seen:
            return self._wrap_events(self._sse.feed(data))
        if len(self._head) < self._HEAD_BYTES:
            self._head += data
        wrappers = self._wrap_events(self._sse.feed(data))
        if self._seen:
            self._head.clear()
        return wrappers

    def close(self) -> list[ChoiceDeltaWrapper]:
        """The body is over. Returns what an unfinished last event held, and an error if that was cut.

        A body that held no event at all is looked at as a whole: an error object, or a complete response
        that was not streamed, is understood; one of nothing but keep-alives is empty; anything else is an
        error of fault ``invalid_stream``.

        Raises:
            UpstreamError: See `feed`.
        """
        if self.done:
            return []
        wrappers = self._wrap_events(self._sse.close(), last=True)
        body = bytes(self._head).removeprefix(b"\xef\xbb\xbf").strip()
        if self._seen or all(line.partition(b":")[0] in _EMPTY_FIELDS for line in body.splitlines()):
            return wrappers
        return self._wrap_body(body)

    def _wrap_events(self, events: list[ServerSentEvent], *, last: bool = False) -> list[ChoiceDeltaWrapper]:
        wrappers: list[ChoiceDeltaWrapper] = []
        for event in events:
            if self.done:
                break
            try:
                chunk = _decode_chunk(event.data)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self._wrap_lenient(event, wrappers, last=last)
                continue
            self._seen = True
            metadata = None
            if (
                chunk.model != self._model
                or chunk.id != self._id
                or chunk.service_tier != self._tier
                or chunk.system_fingerprint != self._fingerprint
            ):
                metadata = self._new_facts(chunk)
            usage = chunk.usage
            for choice in chunk.choices:
                delta = choice.delta or _EMPTY
                if (
                    choice.finish_reason
                    or delta.tool_calls
                    or delta.refusal
                    or (delta.role and delta.role != "assistant")  # many servers repeat it in every chunk
                    or delta.reasoning_details
                    or choice.logprobs
                    or choice.content_filter_results is not None
                    or usage
                    or metadata
                ):
                    details = self._details(choice, delta, metadata)
                    wrappers.append(
                        ChoiceDeltaWrapper(delta, choice.index, details, False, choice.finish_reason, usage)
                    )
                    usage = metadata = None
                else:
                    wrappers.append(ChoiceDeltaWrapper(delta, choice.index, None, True))
            if not chunk.choices:
                error = self._provider_error(_NO_DESCRIPTION) if event.event == "error" else None
                if usage or metadata or error:
                    details = ChunkDetails(metadata=metadata, error=error)
                    wrappers.append(ChoiceDeltaWrapper(_EMPTY, 0, details, False, None, usage))
        return wrappers

    def _details(
        self, choice: ChunkChoice, delta: ChoiceDelta, metadata: dict[str, Any] | None
    ) -> ChunkDetails | None:
        extra: dict[str, Any] = {}
        if choice.logprobs:
            extra["logprobs"] = choice.logprobs
        if choice.native_finish_reason:
            extra["native_finish_reason"] = choice.native_finish_reason
        if choice.content_filter_results is not None:
            extra["content_filter_results"] = choice.content_filter_results
        details = _delta_details(delta, extra, choice.finish_reason, self._provider)
        if metadata:
            details = details or ChunkDetails()
            details.metadata = metadata
        return details

    def _new_facts(self, chunk: Chunk) -> dict[str, Any]:
        """The facts about the response, which differ from those of the chunk before."""
        self._id, self._model = chunk.id, chunk.model
        self._tier, self._fingerprint = chunk.service_tier, chunk.system_fingerprint
        return {
            name: value
            for name in (*_ENVELOPE, "provider")
            if (value := getattr(chunk, name)) not in (None, "", 0)
        }

    def _wrap_lenient(
        self, event: ServerSentEvent, wrappers: list[ChoiceDeltaWrapper], *, last: bool
    ) -> None:
        payload = event.data.strip()
        if not payload and event.event != "error":
            return
        self._seen = True
        if payload.startswith(b"[DONE]") or (last and payload and b"[DONE]".startswith(payload)):
            self.done = True
            return
        try:
            value = read_json(payload)
        except (ValueError, RecursionError):
            if event.event == "error":
                error = self._provider_error(payload.decode("utf-8", "replace") or _NO_DESCRIPTION)
            elif last:
                error = UpstreamError(
                    "the stream broke off in the middle of an event",
                    fault=UpstreamFault.TRUNCATED,
                    provider=self._provider,
                )
            elif event.event not in ("", "message"):
                return  # an event of somebody else's vocabulary
            else:
                error = self._invalid("an event that is not JSON", payload)
            wrappers.append(ChoiceDeltaWrapper(_EMPTY, details=ChunkDetails(error=error)))
            return
        if isinstance(value, dict):
            wrappers += wrap_mapping(
                cast("dict[str, Any]", value), provider=self._provider, error_event=event.event == "error"
            )
        elif event.event == "error":
            wrappers.append(
                ChoiceDeltaWrapper(_EMPTY, details=ChunkDetails(error=self._provider_error(value)))
            )

    def _wrap_body(self, body: bytes) -> list[ChoiceDeltaWrapper]:
        try:
            value = read_json(body)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            wrappers = wrap_mapping(cast("dict[str, Any]", value), provider=self._provider)
            if wrappers:
                return wrappers
        error = self._invalid("a body that is not an event stream", body)
        return [ChoiceDeltaWrapper(_EMPTY, details=ChunkDetails(error=error))]

    def _provider_error(self, value: object) -> UpstreamError:
        return provider_error(value, self._provider)

    def _invalid(self, what: str, payload: bytes) -> UpstreamError:
        start = payload[:80].decode("utf-8", "replace")
        return UpstreamError(
            f"the provider sent {what}: {start!r}{'…' if len(payload) > 80 else ''}",
            fault=UpstreamFault.INVALID,
            provider=self._provider,
        )


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
    usage = as_mapping(fields.pop("usage", None)) or as_mapping(groq.get("usage"))
    choices = fields.pop("choices", None)
    metadata = {
        name: value for name, value in fields.items() if name not in PADDING and value not in (None, "", 0)
    }
    wrappers: list[ChoiceDeltaWrapper] = []
    for choice in as_mappings(choices):
        wrappers.append(_wrap_choice(choice, usage or as_mapping(choice.get("usage")), provider))
        usage = None
    if not wrappers:
        if not usage and error is None and not isinstance(choices, list):
            return []  # a ping
        wrappers.append(ChoiceDeltaWrapper(_EMPTY, usage=usage))
    if metadata:
        first = wrappers[0].details = wrappers[0].details or ChunkDetails()
        first.metadata = metadata
    if error is not None:
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
    snapshot = message is not None and not _says_something(delta)
    if message is not None and snapshot:
        delta, extra = read_delta(message)
    extra |= {key: value for key, value in choice.items() if key not in _CHOICE_FIELDS and value is not None}
    reason = choice.get("finish_reason") or choice.get("finishReason")
    reason = reason if isinstance(reason, str) else None
    details = _delta_details(delta, extra, reason, provider)
    if snapshot:
        details = details or ChunkDetails()
        details.snapshot = True
    index = choice.get("index")
    return ChoiceDeltaWrapper(
        delta, index if isinstance(index, int) else 0, details, finish_reason=reason, usage=usage
    )


def _says_something(delta: ChoiceDelta) -> bool:
    return bool(
        delta.content or delta.reasoning_content or delta.reasoning or delta.refusal or delta.tool_calls
    )


def _delta_details(
    delta: ChoiceDelta, extra: dict[str, Any], finish_reason: str | None = None, provider: str = ""
) -> ChunkDetails | None:
    """What a delta holds beyond the interface's five questions; None for nothing."""
    if delta.reasoning_details:
        extra = {**extra, "reasoning_details": delta.reasoning_details}
    role = delta.role if delta.role != "assistant" else None
    error = finish_error(finish_reason, provider)
    if not (delta.refusal or extra or role or error):
        return None
    return ChunkDetails(role=role or "", refusal=delta.refusal or "", extra=extra or None, error=error)

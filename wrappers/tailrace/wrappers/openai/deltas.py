"""The wrapper over one Chat Completions delta, and the reading of chunks of any shape."""

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
from tailrace.wrappers.decoding.error_reports import finish_error, provider_error, take_error
from tailrace.wrappers.decoding.lenient_json import as_index, as_mapping, as_mappings
from tailrace.wrappers.messages import ContentPart
from tailrace.wrappers.openai.files import file_part
from tailrace.wrappers.openai.shapes import (
    PADDING,
    REASONING_FIELDS,
    ChoiceDelta,
    FunctionDelta,
    ToolCallChunk,
    counting_usage,
    details_text,
    has_content,
    read_delta,
    read_usage,
)

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
_NO_FUNCTION = FunctionDelta()
_CHOICE_FIELDS = frozenset({"delta", "finishReason", "finish_reason", "message", "text", "usage", *PADDING})

EMPTY_DELTA = ChoiceDelta()
"""The delta of wrappers of chunks without a choice."""


class _WrapperMeta(type(ChunkWrapper)):
    # Without a return type, type checkers use the signature of the called class.
    def __call__(cls, raw: Any, *args: Any, **kwargs: Any):
        """Create a wrapper over a tailrace struct, or a `PackageDeltaWrapper` over the package's object.

        Decoders do not use this path: they create structs without calling their class.
        """
        if cls is ChoiceDeltaWrapper and not isinstance(raw, ChoiceDelta):
            cls = PackageDeltaWrapper
        return super().__call__(raw, *args, **kwargs)


class ChoiceDeltaWrapper(ChunkWrapper["ChoiceDelta | PackageChoiceDelta"], gc=False, metaclass=_WrapperMeta):
    """Wrapper over one ``ChoiceDelta``: the openai package's object or the decoder's struct.

    Attributes:
        finish_reason: ``choices[].finish_reason``, a sibling of the delta.
        usage: The chunk's usage object, unchanged.
    """

    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = None

    @property
    def delta(self) -> ChoiceDelta:
        """The delta as a tailrace struct, independent of the class of ``raw``."""
        delta: Any = self.raw
        return delta

    def get_text(self) -> str:
        """Return ``delta.content``; the text parts if the server sends a list."""
        return self.delta.content or ""

    def get_reasoning(self) -> str:
        """Return ``delta.reasoning_content`` or ``delta.reasoning``; servers that send both repeat the same text.

        Without either, return the text in ``delta.reasoning_details``; see `ChunkDetails.restates`.
        """
        delta = self.delta
        text = delta.reasoning_content or delta.reasoning
        return text or (details_text(delta.reasoning_details) if delta.reasoning_details else "")

    @property
    def reasoning_origin(self) -> Mapping[str, Any] | None:
        """The field that held the reasoning; None if the reasoning was separated from the content."""
        delta = self.delta
        # For undocumented shapes, ``model_extra`` holds the original field.
        unmapped = delta.model_extra or {}
        name = next((name for name in REASONING_FIELDS if unmapped.get(name)), "")
        if not name and "content" not in unmapped:
            name = "reasoning_content" if delta.reasoning_content else "reasoning" if delta.reasoning else ""
        return {"openai": {"field": name}} if name else None

    def get_tool_calls(self) -> list[ToolCallDelta]:
        """Return the fragments in ``delta.tool_calls``."""
        calls = self.delta.tool_calls
        return [_tool_call(call) for call in calls] if calls else []

    def get_finish_message(self) -> FinishMessage | None:
        """Return the choice's ``finish_reason``; null and the empty string both mean that the choice continues."""
        raw = self.finish_reason
        if not raw:
            return None
        return FinishMessage(_FINISH_REASONS.get(raw.lower(), FinishReason.UNSPECIFIED), raw)

    def get_usage(self) -> Usage | None:
        """Return the chunk's normalised usage object."""
        return read_usage(self.usage) if self.usage else None


class PackageDeltaWrapper(ChoiceDeltaWrapper, gc=False):
    """Wrapper over the openai package's object, which may hold any field of a compatible server."""

    _delta: ChoiceDelta = msgspec.field(default_factory=ChoiceDelta)

    def __post_init__(self) -> None:
        """Convert the package's object to a tailrace struct."""
        package = cast("PackageChoiceDelta", self.raw)
        self._delta, extra = read_delta(package.model_dump(mode="json", exclude_unset=True, warnings=False))
        if self.details is None:
            self.details = delta_details(self._delta, extra)

    @property
    def delta(self) -> ChoiceDelta:
        """The delta as a tailrace struct."""
        return self._delta


def _tool_call(call: ToolCallChunk) -> ToolCallDelta:
    function = call.function or _NO_FUNCTION
    return ToolCallDelta(
        call.index,
        call.id or "",
        function.name or "",
        function.arguments or "",
        call.type or "",
        {"openai": call.model_extra} if call.model_extra else None,
    )


def delta_details(
    delta: ChoiceDelta, extra: dict[str, Any], finish_reason: str | None = None, provider: str = ""
) -> ChunkDetails | None:
    """Return a delta's details beyond the five accessors; None if there are none.

    Args:
        delta: The delta.
        extra: Fields of the delta and its choice that have no accessor; modified by this function. A member ``error``
            reports a failure of the provider.
        finish_reason: The choice's finish reason; some values report a failure.
        provider: The provider's name in errors.
    """
    if delta.reasoning_details:
        extra["reasoning_details"] = delta.reasoning_details
    role = "" if delta.role is None or delta.role == "assistant" else delta.role
    failure = extra.pop("error", None)
    if failure:
        error = provider_error(failure, provider)
    else:
        error = finish_error(finish_reason, provider) if finish_reason else None
    if not (extra or delta.refusal or role or error):
        return None
    details = ChunkDetails(role, delta.refusal or "", None, extra, error)
    if delta.reasoning_details and not (delta.reasoning_content or delta.reasoning):
        details.restates = True
    if "images" in extra:
        details.parts = _extract_images(extra)
    if not extra:
        details.extra = None
    return details


def _extract_images(extra: dict[str, Any]) -> list[ContentPart]:
    """Move generated images from the further fields into parts; entries that are no images remain."""
    parts: list[ContentPart] = []
    others: list[object] = []
    images = extra.pop("images")
    for entry in cast("list[object]", images) if isinstance(images, list) else [images]:
        try:
            part = file_part(as_mapping(entry) or {})
        except ValueError:
            part = None
        if part is None:
            others.append(entry)
        else:
            parts.append(part)
    if others:
        extra["images"] = others
    return parts


def wrap_chunk(chunk: "ChatCompletionChunk | Mapping[str, Any]") -> list[ChoiceDeltaWrapper]:
    """Return the deltas of one complete chunk: the openai package's object or its JSON object.

    Returns:
        One wrapper per choice; one with an empty delta for a chunk without choices that has other content (usage,
        response-level fields, an error); none for a ping.
    """
    if isinstance(chunk, Mapping):
        return wrap_mapping(chunk)
    return wrap_mapping(plain_chunk(chunk))


def plain_chunk(chunk: "ChatCompletionChunk") -> dict[str, Any]:
    """Return a chunk of the openai package as a JSON object."""
    return chunk.model_dump(mode="json", exclude_unset=True, warnings=False)


def wrap_mapping(
    chunk: Mapping[str, Any], *, provider: str = "", error_event: bool = False
) -> list[ChoiceDeltaWrapper]:
    """Return the deltas of one chunk given as a JSON object; missing, null and malformed fields are tolerated.

    Args:
        chunk: The object; also a complete ``chat.completion``, whose messages count as snapshots.
        provider: The provider's name in errors.
        error_event: The object is the payload of an event of type ``error``.
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
        choice_usage = counting_usage(usage, as_mapping(choice.get("usage")))
        wrappers.append(_wrap_choice(choice, choice_usage, provider))
        usage = None
    if not wrappers:
        if not usage and error is None and not isinstance(choices, list):
            return []  # a ping
        wrappers.append(ChoiceDeltaWrapper(EMPTY_DELTA, usage=usage))
    if metadata:
        first = wrappers[0].details = wrappers[0].details or ChunkDetails()
        first.metadata = metadata
    if error is not None:
        # This error takes precedence over one derived from a finish reason.
        for wrapper in wrappers:
            if wrapper.details is not None:
                wrapper.details.error = None
        last = wrappers[-1].details = wrappers[-1].details or ChunkDetails()
        last.error = error
    return wrappers


def _wrap_choice(
    choice: Mapping[str, Any], usage: Mapping[str, Any] | None, provider: str
) -> ChoiceDeltaWrapper:
    delta_fields = as_mapping(choice.get("delta"))
    if delta_fields is None:
        delta_fields = {"content": choice["text"]} if isinstance(choice.get("text"), str) else {}
    delta, extra = read_delta(delta_fields)
    # A complete message beside or instead of a delta repeats the streamed text, if there was any.
    message = as_mapping(choice.get("message"))
    snapshot = message is not None and not has_content(delta)
    if message is not None and snapshot:
        delta, extra = read_delta(message)
    extra |= {key: value for key, value in choice.items() if key not in _CHOICE_FIELDS and value is not None}
    if delta_fields.get("error") and not extra.get("error"):
        extra["error"] = delta_fields["error"]
    reason = choice.get("finish_reason") or choice.get("finishReason")
    reason = reason if isinstance(reason, str) else None
    details = delta_details(delta, extra, reason, provider)
    if snapshot:
        details = details or ChunkDetails()
        details.snapshot = True
    return ChoiceDeltaWrapper(
        delta, as_index(choice.get("index")) or 0, details, finish_reason=reason, usage=usage
    )

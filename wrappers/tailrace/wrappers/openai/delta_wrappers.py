"""The chunk wrapper of Chat Completions, and functions that create chunk wrappers from chunks of any shape."""

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
from tailrace.wrappers.decoding.error_reports import finish_error, pop_error, provider_error
from tailrace.wrappers.decoding.lenient_json import as_index, as_mapping, as_mappings
from tailrace.wrappers.messages import ContentPart
from tailrace.wrappers.openai.delta_shapes import (
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
from tailrace.wrappers.openai.files import file_part

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
"""The delta of a chunk wrapper whose chunk has no choice."""


class _WrapperMeta(type(ChunkWrapper)):
    # Without a return type, type checkers use the signature of the class that is called.
    def __call__(cls, raw: Any, *args: Any, **kwargs: Any):
        """Create a chunk wrapper; a `PackageDeltaWrapper` if ``raw`` is an object of the ``openai`` package.

        ``msgspec`` creates structs without this method.
        """
        if cls is ChoiceDeltaWrapper and not isinstance(raw, ChoiceDelta):
            cls = PackageDeltaWrapper
        return super().__call__(raw, *args, **kwargs)


class ChoiceDeltaWrapper(ChunkWrapper["ChoiceDelta | PackageChoiceDelta"], gc=False, metaclass=_WrapperMeta):
    """Chunk wrapper for one ``ChoiceDelta``: an object of the ``openai`` package, or a struct of the decoder.

    Attributes:
        finish_reason: The ``finish_reason`` of the choice, or None.
        usage: The unchanged usage object of the chunk or choice, or None. Of several choices, only the first has the usage of the
            chunk.
    """

    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = None

    @property
    def delta(self) -> ChoiceDelta:
        """The delta as a struct."""
        delta: Any = self.raw
        return delta

    def get_text(self) -> str:
        """Return ``delta.content``. If the provider sent a list of parts, the result is the text of the parts."""
        return self.delta.content or ""

    def get_reasoning(self) -> str:
        """Return ``delta.reasoning_content``, ``delta.reasoning`` or the text in ``delta.reasoning_details``.

        See `ChunkDetails.is_second_field`.
        """
        delta = self.delta
        text = delta.reasoning_content or delta.reasoning
        return text or (details_text(delta.reasoning_details) if delta.reasoning_details else "")

    @property
    def reasoning_origin(self) -> Mapping[str, Any] | None:
        """Metadata with the name of the field with the reasoning; None for reasoning in ``content`` or ``reasoning_details``."""
        delta = self.delta
        # ``model_extra`` still contains a field from which `read_delta` moved the reasoning.
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
        """Return the finish reason of the choice; None while the choice continues."""
        raw = self.finish_reason
        if not raw:
            return None
        return FinishMessage(_FINISH_REASONS.get(raw.lower(), FinishReason.UNSPECIFIED), raw)

    def get_usage(self) -> Usage | None:
        """Return the token counts in the usage object of the chunk; None if the chunk has no counts."""
        return read_usage(self.usage) if self.usage else None


class PackageDeltaWrapper(ChoiceDeltaWrapper, gc=False):
    """Chunk wrapper for an object of the ``openai`` package, with any field of a compatible server."""

    _delta: ChoiceDelta = msgspec.field(default_factory=ChoiceDelta)

    def __post_init__(self) -> None:
        """Convert the object of the package to a struct."""
        package = cast("PackageChoiceDelta", self.raw)
        self._delta, extra = read_delta(package.model_dump(mode="json", exclude_unset=True, warnings=False))
        if self.details is None:
            self.details = delta_details(self._delta, extra)

    @property
    def delta(self) -> ChoiceDelta:
        """The delta as a struct."""
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
    """Return the content of a delta for which `ChunkWrapper` has no methods; None if there is no such content.

    Args:
        delta: The delta.
        extra: The other fields of the delta and of its choice. The function modifies this dict. Its member ``error`` is an error
            that the provider reported.
        finish_reason: The finish reason of the choice, or None. Some values report an error of the provider.
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
    is_second_field = bool(delta.reasoning_details) and not (delta.reasoning_content or delta.reasoning)
    details = ChunkDetails(role, delta.refusal or "", None, extra, error, is_second_field=is_second_field)
    if "images" in extra:
        details.parts = _extract_images(extra)
    if not extra:
        details.extra = None
    return details


def _extract_images(extra: dict[str, Any]) -> list[ContentPart]:
    """Move generated images from ``extra`` into parts. Other entries stay in ``extra``."""
    parts: list[ContentPart] = []
    other_parts: list[object] = []
    images = extra.pop("images")
    for entry in cast("list[object]", images) if isinstance(images, list) else [images]:
        try:
            part = file_part(as_mapping(entry) or {})
        except ValueError:
            part = None
        if part is None:
            other_parts.append(entry)
        else:
            parts.append(part)
    if other_parts:
        extra["images"] = other_parts
    return parts


def wrap_chunk(chunk: "ChatCompletionChunk | Mapping[str, Any]") -> list[ChoiceDeltaWrapper]:
    """Return the chunk wrappers of one chunk, which is an object of the ``openai`` package or a JSON object.

    There is one chunk wrapper for each choice. A chunk without choices becomes one wrapper with an empty delta, or none if it is
    a ping (without usage, error, and ``choices``).
    """
    if isinstance(chunk, Mapping):
        return wrap_mapping(chunk)
    return wrap_mapping(plain_chunk(chunk))


def plain_chunk(chunk: "ChatCompletionChunk") -> dict[str, Any]:
    """Convert a chunk of the ``openai`` package to a JSON object."""
    return chunk.model_dump(mode="json", exclude_unset=True, warnings=False)


def wrap_mapping(
    chunk: Mapping[str, Any], *, provider: str = "", error_event: bool = False
) -> list[ChoiceDeltaWrapper]:
    """Return the chunk wrappers of a JSON object. Missing, null or malformed fields cause no error.

    Args:
        chunk: The chunk, or a complete ``chat.completion``.
        provider: The provider's name in errors.
        error_event: True if the object is the payload of a server-sent event with the type ``error``.
    """
    fields = dict(chunk)
    error = pop_error(fields, provider, error_event=error_event)
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
            return []  # the chunk is a ping
        wrappers.append(ChoiceDeltaWrapper(EMPTY_DELTA, usage=usage))
    if metadata:
        first = wrappers[0].details = wrappers[0].details or ChunkDetails()
        first.metadata = metadata
    if error is not None:
        # The finish reasons may report the same error.
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
    # Some servers send a complete message in the choice. After deltas, it repeats their text.
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

"""The wrapper over one delta of Chat Completions, and what a delta says beyond the interface's five questions."""

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
from tailrace.wrappers.error_reports import finish_error, provider_error
from tailrace.wrappers.loose_json import as_mapping
from tailrace.wrappers.messages import ContentPart
from tailrace.wrappers.openai.files import file_part
from tailrace.wrappers.openai.shapes import (
    REASONING_FIELDS,
    ChoiceDelta,
    FunctionDelta,
    ToolCallChunk,
    details_text,
    read_delta,
    read_usage,
)

if TYPE_CHECKING:
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


class _WrapperMeta(type(ChunkWrapper)):
    # Without a return type: type checkers then go by the signature of the class that is called.
    def __call__(cls, raw: Any, *args: Any, **kwargs: Any):
        """A wrapper over our struct, or over the package's object, which has a class of its own.

        Nothing that is decoded comes by here: a decoder makes structs without calling their class.
        """
        if cls is ChoiceDeltaWrapper and not isinstance(raw, ChoiceDelta):
            cls = PackageDeltaWrapper
        return super().__call__(raw, *args, **kwargs)


class ChoiceDeltaWrapper(ChunkWrapper["ChoiceDelta | PackageChoiceDelta"], gc=False, metaclass=_WrapperMeta):
    """Over one ``ChoiceDelta``: the openai package's object, or the struct that our decoder makes.

    Attributes:
        finish_reason: ``choices[].finish_reason``, which stands beside the delta.
        usage: The chunk's usage object, as sent.
    """

    finish_reason: str | None = None
    usage: Mapping[str, Any] | None = None

    @property
    def delta(self) -> ChoiceDelta:
        """The delta in our own shape, whichever class ``raw`` is of."""
        delta: Any = self.raw
        return delta

    def get_text(self) -> str:
        """``delta.content``; the text parts of it where a server sends a list."""
        return self.delta.content or ""

    def get_reasoning(self) -> str:
        """``delta.reasoning_content`` or ``delta.reasoning``: servers that send both repeat the same text.

        Where there is neither, the text in ``delta.reasoning_details``, see `ChunkDetails.restates`.
        """
        delta = self.delta
        said = delta.reasoning_content or delta.reasoning
        return said or (details_text(delta.reasoning_details) if delta.reasoning_details else "")

    @property
    def reasoning_origin(self) -> Mapping[str, Any] | None:
        """The field that the reasoning came in; None where it was parted from the content."""
        delta = self.delta
        # A delta that came in another shape has the text under our name, and the field that it came in beside it.
        sent = delta.model_extra or {}
        name = next((name for name in REASONING_FIELDS if sent.get(name)), "")
        if not name and "content" not in sent:
            name = "reasoning_content" if delta.reasoning_content else "reasoning" if delta.reasoning else ""
        return {"openai": {"field": name}} if name else None

    def get_tool_calls(self) -> list[ToolCallDelta]:
        """The fragments in ``delta.tool_calls``."""
        calls = self.delta.tool_calls
        return [_tool_call(call) for call in calls] if calls else []

    def get_finish_message(self) -> FinishMessage | None:
        """The choice's ``finish_reason``; null and the empty string both mean that it goes on."""
        raw = self.finish_reason
        if not raw:
            return None
        return FinishMessage(_FINISH_REASONS.get(raw.lower(), FinishReason.UNSPECIFIED), raw)

    def get_usage(self) -> Usage | None:
        """The chunk's usage object, wherever in the chunk it stood."""
        return read_usage(self.usage) if self.usage else None


class PackageDeltaWrapper(ChoiceDeltaWrapper, gc=False):
    """Over the openai package's object, which may hold any field that a compatible server sent."""

    _delta: ChoiceDelta = msgspec.field(default_factory=ChoiceDelta)

    def __post_init__(self) -> None:
        """Find what the object means."""
        package = cast("PackageChoiceDelta", self.raw)
        self._delta, extra = read_delta(package.model_dump(mode="json", exclude_unset=True, warnings=False))
        if self.details is None:
            self.details = delta_details(self._delta, extra)

    @property
    def delta(self) -> ChoiceDelta:
        """The delta in our own shape."""
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
    """What a delta holds beyond the interface's five questions; None for nothing.

    Args:
        delta: The delta.
        extra: Those of its fields, and of its choice's, that have no place in the interface; the callee's to change. A
            member ``error`` among them says that the provider failed.
        finish_reason: Of its choice; some say so, too.
        provider: Named in errors.
    """
    if delta.reasoning_details:
        extra["reasoning_details"] = delta.reasoning_details
    role = "" if delta.role is None or delta.role == "assistant" else delta.role
    said = extra.pop("error", None)
    if said:
        error = provider_error(said, provider)
    else:
        error = finish_error(finish_reason, provider) if finish_reason else None
    if not (extra or delta.refusal or role or error):
        return None
    details = ChunkDetails(role, delta.refusal or "", None, extra, error)
    if delta.reasoning_details and not (delta.reasoning_content or delta.reasoning):
        details.restates = True
    if "images" in extra:
        details.parts = _take_images(extra)
    if not extra:
        details.extra = None
    return details


def _take_images(extra: dict[str, Any]) -> list[ContentPart]:
    """Take the images that a model made out of the further fields, as parts; what is none stays there."""
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

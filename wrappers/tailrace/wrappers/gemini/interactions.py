"""Interpretation of streams of Google's Interactions API. The API is an alternative to generateContent.

An interaction is a series of steps: thoughts, output, tool calls and tool results. Each step has a start event, deltas and a stop
event. The names of events before Google renamed them (``content.start`` to ``step.start``, …) are supported, too. Signatures and
annotations are in the metadata under ``"google-interactions"``, because generateContent would reject them.
"""

from collections.abc import Mapping
from typing import Any, Literal, cast

from pydantic import ValidationError

from tailrace.wrappers.chunks import (
    BlockDelta,
    ChunkDetails,
    FinishMessage,
    FinishReason,
    ToolCallDelta,
    Usage,
)
from tailrace.wrappers.decoding.decoder import merged_usage
from tailrace.wrappers.decoding.error_reports import provider_error
from tailrace.wrappers.decoding.extra_fields import json_text, plain_json
from tailrace.wrappers.decoding.lenient_json import as_index, as_mapping, as_mappings, as_text
from tailrace.wrappers.gemini.content_parts import GeminiPartWrapper, own_fields
from tailrace.wrappers.messages import (
    ContentPart,
    ContentPartData,
    ContentPartFile,
    ContentPartToolResult,
)

_KEY = "google-interactions"
_REASONS = {
    "completed": FinishReason.STOP,
    "requires_action": FinishReason.TOOL_CALLS,
    "incomplete": FinishReason.LENGTH,
    "budget_exceeded": FinishReason.LENGTH,
    "cancelled": FinishReason.UNSPECIFIED,
    "requires_continuation": FinishReason.UNSPECIFIED,
}
_METADATA_FIELDS = (
    "id",
    "model",
    "created",
    "service_tier",
    "agent",
    "environment_id",
    "previous_interaction_id",
)
_CONTENT_FIELDS = frozenset({"annotations", "data", "text", "uri"})
_FILES = frozenset({"audio", "document", "file", "image", "video"})


class _Step:
    """The state of a step that has not ended."""

    __slots__ = (
        "arguments",
        "call_id",
        "index",
        "is_call",
        "is_error",
        "is_open",
        "is_result",
        "kind",
        "name",
        "own",
        "result",
        "streamed",
    )

    def __init__(self, index: int, kind: str) -> None:
        self.index = index
        self.kind = kind
        self.is_call = kind.endswith("_call")
        self.is_result = kind.endswith("_result")
        self.is_open = False  # True if the block of text or reasoning of this step has started
        self.streamed = False  # True if the arguments of the call arrive as text deltas
        self.arguments: object = None  # arguments that arrive as an object, possibly several times
        self.result: object = None
        self.is_error = False
        self.call_id = ""
        self.name = ""
        self.own: dict[str, Any] = {}


class InteractionReader:
    """Reads the events of one interaction.

    Args:
        provider: The provider's name in errors.

    Attributes:
        done: True after the event that ends the interaction.
    """

    __slots__ = ("_provider", "_steps", "_streamed", "_usage", "done")

    def __init__(self, provider: str = "") -> None:
        self._provider = provider
        self._steps: dict[int, _Step] = {}
        self._streamed = False
        self._usage: dict[str, Any] = {}
        self.done = False

    def read(self, event: dict[str, Any]) -> list[GeminiPartWrapper]:
        """Return the chunk wrappers of one event, or of a complete interaction."""
        text = self._plain_text(event)
        if text is not None:
            return [GeminiPartWrapper(event, 0, None, True, text)]
        kind = as_text(event.get("event_type"))
        if kind.endswith(".delta"):
            wrappers = self._delta(event)
        elif kind.endswith(".start") and kind != "interaction.start":
            wrappers = self._start(
                event, as_mapping(event.get("step")) or as_mapping(event.get("content")) or {}
            )
        elif kind.endswith(".stop"):
            step = self._steps.pop(as_index(event.get("index")) or 0, None)
            wrappers = self._stop(step, event) if step is not None else []
        elif kind == "error":
            error = provider_error(event.get("error") or "", self._provider)
            wrappers = [GeminiPartWrapper(event, details=ChunkDetails(error=error))]
        else:
            wrappers = self._interaction(event, as_mapping(event.get("interaction")) or event)
            self.done = self.done or kind in ("interaction.completed", "interaction.complete")
        usage = self._read_usage(event)
        if usage is not None:
            if not wrappers:
                wrappers.append(GeminiPartWrapper(event))
            wrappers[-1].plain, wrappers[-1].usage = False, usage
        return wrappers

    def _plain_text(self, event: dict[str, Any]) -> str | None:
        """Return the text of an event that only adds text to an open block; None for all other events."""
        delta = event.get("delta")
        if type(delta) is not dict or "metadata" in event:
            return None
        fields = cast("dict[str, Any]", delta)
        if len(fields) != 2 or fields.get("type") != "text":
            return None
        step = self._steps.get(as_index(event.get("index")) or 0)
        text = fields.get("text")
        return text if step is not None and step.is_open and type(text) is str else None

    def close(self) -> list[GeminiPartWrapper]:
        """Return chunk wrappers for the buffered content of steps that have not ended."""
        steps, self._steps = self._steps, {}
        return [wrapper for step in steps.values() for wrapper in self._stop(step, {})]

    # --- the interaction ----------------------------------------------------------------------------------------

    def _interaction(self, event: dict[str, Any], fields: Mapping[str, Any]) -> list[GeminiPartWrapper]:
        wrappers: list[GeminiPartWrapper] = []
        steps = fields.get("steps") or fields.get("outputs")
        if steps and not self._streamed:
            for index, step in enumerate(as_mappings(steps)):
                wrappers += self._start({"index": index}, step)
            wrappers += self.close()
        metadata = {name: fields[name] for name in _METADATA_FIELDS if fields.get(name)}
        status = as_text(fields.get("status"))
        reason = _REASONS.get(status)
        error = None
        if status == "failed":
            error = provider_error(next(iter(as_mappings(fields.get("errors"))), "the interaction failed"))
            error.provider = self._provider
        if metadata or reason or error:
            finish = FinishMessage(reason, status) if reason else None
            details = ChunkDetails(metadata=metadata, error=error)
            wrappers.append(GeminiPartWrapper(event, details=details, finish=finish))
        return wrappers

    def _read_usage(self, event: Mapping[str, Any]) -> Usage | None:
        """Return the token counts of an event; None if it has no counts, or they have not changed."""
        reported: object = None
        for owner in (event.get("interaction"), event.get("metadata"), event):
            if owner and (fields := as_mapping(owner)) is not None:
                reported = reported or fields.get("usage") or fields.get("total_usage")
        if not reported:
            return None
        usage = merged_usage(self._usage, reported)
        if usage == self._usage:
            return None
        self._usage = usage
        counts = {name: as_index(usage.get(f"total_{name}")) or 0 for name in _COUNTS}
        input_tokens = counts["input_tokens"] + counts["tool_use_tokens"]
        output_tokens = counts["output_tokens"] + counts["thought_tokens"]
        return Usage(input_tokens, output_tokens, counts["tokens"] or input_tokens + output_tokens, usage)

    # --- steps --------------------------------------------------------------------------------------------------

    def _start(self, event: dict[str, Any], fields: Mapping[str, Any]) -> list[GeminiPartWrapper]:
        index = as_index(event.get("index")) or 0
        step = self._open(index, as_text(fields.get("type")))
        if step.kind == "user_input":
            return []
        wrappers: list[GeminiPartWrapper] = []
        if step.is_call or step.is_result:
            self._update_step(step, fields)
        if step.is_call:
            name = step.name or step.kind.removesuffix("_call")
            kind = "function" if step.kind == "function_call" else "server"
            extra = {_KEY: dict(step.own)} if step.own else None
            call = ToolCallDelta(index, step.call_id, name, "", kind, extra)
            wrappers.append(GeminiPartWrapper(event, calls=(call,)))
        elif not step.is_result:
            # In events with the old names, the content is the step itself.
            initial = fields.get("content") or fields
            for content in (fields,) if initial is fields else as_mappings(initial):
                if not _CONTENT_FIELDS.isdisjoint(content):
                    wrappers += self._content(event, step, content)
            for summary in as_mappings(fields["summary"]) if fields.get("summary") else ():
                wrappers += self._content(event, step, {"type": "thought_summary", "content": summary})
            if signature := as_text(fields.get("signature")):
                wrappers += self._content(event, step, {"type": "thought_signature", "signature": signature})
            if (failure := fields.get("error")) and (error := as_mapping(failure)):
                details = ChunkDetails(error=provider_error(error, self._provider))
                wrappers.append(GeminiPartWrapper(event, details=details))
        return wrappers

    def _open(self, index: int, kind: str) -> _Step:
        self._streamed = True
        step = self._steps[index] = _Step(index, kind)
        return step

    def _delta(self, event: dict[str, Any]) -> list[GeminiPartWrapper]:
        delta = as_mapping(event.get("delta")) or {}
        kind = as_text(delta.get("type"))
        index = as_index(event.get("index")) or 0
        step = self._steps.get(index)
        if step is None:
            if kind.endswith(("_call", "_result")):
                return self._start(event, delta)
            step = self._open(index, kind)
        if step.kind == "user_input":
            return []
        if kind == "arguments_delta" or isinstance(delta.get("arguments"), str):
            step.streamed = True
            call = ToolCallDelta(index, arguments=as_text(delta.get("arguments")))
            return [GeminiPartWrapper(event, calls=(call,))]
        if step.is_call or step.is_result:
            previous = dict(step.own)
            self._update_step(step, delta)
            new = {
                name: value
                for name, value in step.own.items()
                if name not in previous or previous[name] != value
            }
            extra = {_KEY: new} if new else None
            if step.is_call and extra:
                return [GeminiPartWrapper(event, calls=(ToolCallDelta(index, extra=extra),))]
            return []
        return self._content(event, step, delta)

    def _update_step(self, step: _Step, fields: Mapping[str, Any]) -> None:
        step.call_id = step.call_id or as_text(fields.get("id")) or as_text(fields.get("call_id"))
        step.name = step.name or as_text(fields.get("name"))
        step.is_error = step.is_error or fields.get("is_error") is True
        if fields.get("arguments"):
            step.arguments = fields["arguments"]
        new = fields.get("result")
        previous = step.result
        if isinstance(previous, str) and isinstance(new, str):
            step.result = previous + new
        elif isinstance(previous, list) and isinstance(new, list):
            step.result = [*cast("list[object]", previous), *cast("list[object]", new)]
        elif new is not None:
            step.result = new
        step.own.update(own_fields(fields, *_CALL_FIELDS))

    def _stop(self, step: _Step, event: dict[str, Any]) -> list[GeminiPartWrapper]:
        """Return the arguments or the result of a complete step. Both are buffered, because Google may repeat them."""
        if step.is_call and not step.streamed:
            text = json_text({} if step.arguments is None else step.arguments)
            return [GeminiPartWrapper(event, calls=(ToolCallDelta(step.index, arguments=text),))]
        if not step.is_result:
            return []
        result = ContentPartToolResult(
            id=step.call_id,
            name=step.name or step.kind.removesuffix("_result"),
            output=plain_json(step.result),
            is_error=step.is_error,
            metadata={_KEY: plain_json(step.own)} if step.own else {},
        )
        return [GeminiPartWrapper(event, details=ChunkDetails(parts=(result,)))]

    # --- content ------------------------------------------------------------------------------------------------

    def _content(
        self, event: dict[str, Any], step: _Step, content: Mapping[str, Any]
    ) -> list[GeminiPartWrapper]:
        """Return the chunk wrappers for the content of a thought or of output."""
        kind = as_text(content.get("type"))
        if kind == "thought_signature":
            seal = {"signature": content.get("signature")}
            return [self._block_delta(event, step, "reasoning", own=seal)]
        if kind == "thought_summary":
            content = as_mapping(content.get("content")) or {}
            kind = as_text(content.get("type"))
            if kind == "text":
                return [self._block_delta(event, step, "reasoning", as_text(content.get("text")))]
        if kind == "text" or kind.startswith("text_annotation"):
            annotations = as_mappings(content.get("annotations"))
            own = {"annotations": annotations} if annotations else None
            wrapper = self._block_delta(event, step, "text", as_text(content.get("text")), own=own)
            if annotations:
                wrapper.details = wrapper.details or ChunkDetails()
                wrapper.details.extra = {"annotations": annotations}
            return [wrapper]
        if not kind:
            return []
        return [GeminiPartWrapper(event, details=ChunkDetails(parts=(_file_or_data(kind, content),)))]

    def _block_delta(
        self,
        event: dict[str, Any],
        step: _Step,
        channel: Literal["text", "reasoning"],
        text: str = "",
        *,
        own: Mapping[str, Any] | None = None,
    ) -> GeminiPartWrapper:
        """Return a chunk wrapper for the block of a step. The first such wrapper opens the block."""
        details = None
        if own or not step.is_open:
            metadata = {_KEY: own} if own else None
            details = ChunkDetails(
                block=BlockDelta(channel, starts_block=not step.is_open, metadata=metadata)
            )
            step.is_open = step.is_open or bool(text or own)
        if channel == "text":
            return GeminiPartWrapper(event, 0, details, details is None, text)
        return GeminiPartWrapper(event, 0, details, details is None, "", text)


_COUNTS = ("input_tokens", "output_tokens", "thought_tokens", "tool_use_tokens", "tokens")
_CALL_FIELDS = ("type", "id", "call_id", "name", "arguments", "result", "is_error")


def _file_or_data(kind: str, content: Mapping[str, Any]) -> ContentPart:
    """Return content as a file part if it is a valid file, otherwise as a data part."""
    if kind in _FILES:
        own = own_fields(content, "type", "data", "uri", "mime_type")
        source = {"url": content["uri"]} if content.get("uri") else {"data": content.get("data") or ""}
        try:
            return ContentPartFile.model_validate(
                {
                    **source,
                    "media_type": as_text(content.get("mime_type")),
                    "metadata": {_KEY: plain_json(own)} if own else {},
                }
            )
        except ValidationError:
            pass
    return ContentPartData(data=plain_json(content), metadata={_KEY: {"part": True}})

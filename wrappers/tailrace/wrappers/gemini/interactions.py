"""Streams of Google's Interactions API: another vocabulary than that of generateContent, in front of the same models.

An interaction is a series of steps (thoughts, output, calls and results of tools), each of which is started, grows by
deltas and stops. The events were renamed once (``content.start`` became ``step.start``, …): both names are known.

What seals and annotates a block stands under ``"google-interactions"`` in its metadata, apart from that of
generateContent, which would refuse it.
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
from tailrace.wrappers.decoding import merged_usage
from tailrace.wrappers.error_reports import provider_error
from tailrace.wrappers.fields import json_text, plain_json
from tailrace.wrappers.gemini.parts import GeminiPartWrapper, own_fields
from tailrace.wrappers.loose_json import as_index, as_mapping, as_mappings, as_text
from tailrace.wrappers.messages import (
    ContentPart,
    ContentPartData,
    ContentPartFile,
    ContentPartToolResult,
)

_OWN = "google-interactions"
_REASONS = {
    "completed": FinishReason.STOP,
    "requires_action": FinishReason.TOOL_CALLS,
    "incomplete": FinishReason.LENGTH,
    "budget_exceeded": FinishReason.LENGTH,
    "cancelled": FinishReason.UNSPECIFIED,
    "requires_continuation": FinishReason.UNSPECIFIED,
}
_FACTS = ("id", "model", "created", "service_tier", "agent", "environment_id", "previous_interaction_id")
_SUBSTANCE = frozenset({"annotations", "data", "text", "uri"})
_FILES = frozenset({"audio", "document", "file", "image", "video"})


class _Step:
    """A step while it grows."""

    __slots__ = (
        "arguments",
        "call_id",
        "index",
        "is_call",
        "is_error",
        "is_result",
        "kind",
        "name",
        "opened",
        "own",
        "result",
        "streamed",
    )

    def __init__(self, index: int, kind: str) -> None:
        self.index = index
        self.kind = kind
        self.is_call = kind.endswith("_call")
        self.is_result = kind.endswith("_result")
        self.opened = False  # its block of text or reasoning
        self.streamed = False  # its arguments, as text
        self.arguments: object = None  # as an object, which may come again
        self.result: object = None
        self.is_error = False
        self.call_id = ""
        self.name = ""
        self.own: dict[str, Any] = {}


class InteractionReader:
    """Reads the events of one interaction, in order.

    Args:
        provider: Named in errors.

    Attributes:
        done: The interaction has ended.
    """

    __slots__ = ("_provider", "_steps", "_streamed", "_usage", "done")

    def __init__(self, provider: str = "") -> None:
        self._provider = provider
        self._steps: dict[int, _Step] = {}
        self._streamed = False
        self._usage: dict[str, Any] = {}
        self.done = False

    def read(self, event: dict[str, Any]) -> list[GeminiPartWrapper]:
        """The deltas of one event, or of a whole interaction that was not streamed."""
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
        """The text of an event that adds to an open block of text, and says nothing else; None for any other."""
        delta = event.get("delta")
        if type(delta) is not dict or "metadata" in event:
            return None
        fields = cast("dict[str, Any]", delta)
        if len(fields) != 2 or fields.get("type") != "text":
            return None
        step = self._steps.get(as_index(event.get("index")) or 0)
        text = fields.get("text")
        return text if step is not None and step.opened and type(text) is str else None

    def close(self) -> list[GeminiPartWrapper]:
        """What steps that never stopped have held back."""
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
        metadata = {name: fields[name] for name in _FACTS if fields.get(name)}
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
        """Token counts, wherever the event has them; None where they have not changed."""
        sent: object = None
        for place in (event.get("interaction"), event.get("metadata"), event):
            if place and (fields := as_mapping(place)) is not None:
                sent = sent or fields.get("usage") or fields.get("total_usage")
        if not sent:
            return None
        usage = merged_usage(self._usage, sent)
        if usage == self._usage:
            return None
        self._usage = usage
        counts = {name: as_index(usage.get(f"total_{name}")) or 0 for name in _COUNTS}
        read = counts["input_tokens"] + counts["tool_use_tokens"]
        written = counts["output_tokens"] + counts["thought_tokens"]
        return Usage(read, written, counts["tokens"] or read + written, usage)

    # --- steps --------------------------------------------------------------------------------------------------

    def _start(self, event: dict[str, Any], fields: Mapping[str, Any]) -> list[GeminiPartWrapper]:
        index = as_index(event.get("index")) or 0
        step = self._open(index, as_text(fields.get("type")))
        if step.kind == "user_input":
            return []
        wrappers: list[GeminiPartWrapper] = []
        if step.is_call or step.is_result:
            self._take(step, fields)
        if step.is_call:
            name = step.name or step.kind.removesuffix("_call")
            kind = "function" if step.kind == "function_call" else "server"
            extra = {_OWN: dict(step.own)} if step.own else None
            call = ToolCallDelta(index, step.call_id, name, "", kind, extra)
            wrappers.append(GeminiPartWrapper(event, calls=(call,)))
        elif not step.is_result:
            # A step may begin with some of its content, and a whole one does. The older vocabulary has no step around
            # a piece of content.
            begun = fields.get("content") or fields
            for content in (fields,) if begun is fields else as_mappings(begun):
                if not _SUBSTANCE.isdisjoint(content):
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
            known = dict(step.own)
            self._take(step, delta)
            new = {
                name: value for name, value in step.own.items() if name not in known or known[name] != value
            }
            extra = {_OWN: new} if new else None
            if step.is_call and extra:
                return [GeminiPartWrapper(event, calls=(ToolCallDelta(index, extra=extra),))]
            return []
        return self._content(event, step, delta)

    def _take(self, step: _Step, fields: Mapping[str, Any]) -> None:
        """Take what a step that is a call or a result says, at its start or later."""
        step.call_id = step.call_id or as_text(fields.get("id")) or as_text(fields.get("call_id"))
        step.name = step.name or as_text(fields.get("name"))
        step.is_error = step.is_error or fields.get("is_error") is True
        if fields.get("arguments"):
            step.arguments = fields["arguments"]
        new = fields.get("result")
        known = step.result
        if isinstance(known, str) and isinstance(new, str):
            step.result = known + new
        elif isinstance(known, list) and isinstance(new, list):
            step.result = [*cast("list[object]", known), *cast("list[object]", new)]
        elif new is not None:
            step.result = new
        step.own.update(own_fields(fields, *_CALL_FIELDS))

    def _stop(self, step: _Step, event: dict[str, Any]) -> list[GeminiPartWrapper]:
        """What was held back because it might have come again."""
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
            metadata={_OWN: plain_json(step.own)} if step.own else {},
        )
        return [GeminiPartWrapper(event, details=ChunkDetails(parts=(result,)))]

    # --- content ------------------------------------------------------------------------------------------------

    def _content(
        self, event: dict[str, Any], step: _Step, content: Mapping[str, Any]
    ) -> list[GeminiPartWrapper]:
        """What a piece of a thought or of output says."""
        kind = as_text(content.get("type"))
        if kind == "thought_signature":
            seal = {"signature": content.get("signature")}
            return [self._in_block(event, step, "reasoning", own=seal)]
        if kind == "thought_summary":
            content = as_mapping(content.get("content")) or {}
            kind = as_text(content.get("type"))
            if kind == "text":
                return [self._in_block(event, step, "reasoning", as_text(content.get("text")))]
        if kind == "text" or kind.startswith("text_annotation"):
            annotations = as_mappings(content.get("annotations"))
            own = {"annotations": annotations} if annotations else None
            wrapper = self._in_block(event, step, "text", as_text(content.get("text")), own=own)
            if annotations:
                wrapper.details = wrapper.details or ChunkDetails()
                wrapper.details.extra = {"annotations": annotations}
            return [wrapper]
        if not kind:
            return []
        return [GeminiPartWrapper(event, details=ChunkDetails(parts=(_whole(kind, content),)))]

    def _in_block(
        self,
        event: dict[str, Any],
        step: _Step,
        channel: Literal["text", "reasoning"],
        text: str = "",
        *,
        own: Mapping[str, Any] | None = None,
    ) -> GeminiPartWrapper:
        """A piece of the step's block, which its first piece opens."""
        details = None
        if own or not step.opened:
            metadata = {_OWN: own} if own else None
            details = ChunkDetails(block=BlockDelta(channel, opens=not step.opened, metadata=metadata))
            step.opened = step.opened or bool(text or own)
        if channel == "text":
            return GeminiPartWrapper(event, 0, details, details is None, text)
        return GeminiPartWrapper(event, 0, details, details is None, "", text)


_COUNTS = ("input_tokens", "output_tokens", "thought_tokens", "tool_use_tokens", "tokens")
_CALL_FIELDS = ("type", "id", "call_id", "name", "arguments", "result", "is_error")


def _whole(kind: str, content: Mapping[str, Any]) -> ContentPart:
    """A file; anything else as data."""
    if kind in _FILES:
        own = own_fields(content, "type", "data", "uri", "mime_type")
        source = {"url": content["uri"]} if content.get("uri") else {"data": content.get("data") or ""}
        try:
            return ContentPartFile.model_validate(
                {
                    **source,
                    "media_type": as_text(content.get("mime_type")),
                    "metadata": {_OWN: plain_json(own)} if own else {},
                }
            )
        except ValidationError:
            pass
    return ContentPartData(data=plain_json(content), metadata={_OWN: {"part": True}})

"""Structs for fast decoding of a stream's most common events in their documented shape.

The structs reject unknown fields and other types, so that the event's JSON object can be restored from them. Any other
event is read field by field, see `tailrace.wrappers.cohere.decoder`.
"""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Shape(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """An object without unknown fields."""


class _Content(_Shape):
    text: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET


class _ContentMessage(_Shape):
    content: _Content


class _ContentDelta(_Shape):
    message: _ContentMessage


class ContentDelta(_Shape, tag_field="type", tag="content-delta"):
    """A delta of a content block."""

    index: int
    delta: _ContentDelta

    def raw(self, name: str, text: str) -> dict[str, Any]:
        """Return the event as a JSON object with ``name`` as its only content field."""
        return {
            "type": "content-delta",
            "index": self.index,
            "delta": {"message": {"content": {name: text}}},
        }


class _Function(_Shape):
    arguments: str


class _ToolCall(_Shape):
    function: _Function


class _CallMessage(_Shape):
    tool_calls: _ToolCall


class _CallDelta(_Shape):
    message: _CallMessage


class CallDelta(_Shape, tag_field="type", tag="tool-call-delta"):
    """A delta of a tool call's arguments."""

    index: int
    delta: _CallDelta

    @property
    def arguments(self) -> str:
        """The fragment of the arguments."""
        return self.delta.message.tool_calls.function.arguments

    def raw(self) -> dict[str, Any]:
        """Return the event as a JSON object."""
        call = {"function": {"arguments": self.arguments}}
        return {"type": "tool-call-delta", "index": self.index, "delta": {"message": {"tool_calls": call}}}


class _PlanMessage(_Shape):
    tool_plan: str


class _PlanDelta(_Shape):
    message: _PlanMessage


class PlanDelta(_Shape, tag_field="type", tag="tool-plan-delta"):
    """A delta of the plan before tool calls."""

    delta: _PlanDelta

    @property
    def plan(self) -> str:
        """The fragment of the plan."""
        return self.delta.message.tool_plan

    def raw(self) -> dict[str, Any]:
        """Return the event as a JSON object."""
        return {"type": "tool-plan-delta", "delta": {"message": {"tool_plan": self.plan}}}


_decode = msgspec.json.Decoder(ContentDelta | CallDelta | PlanDelta).decode


def read_common_event(payload: bytes) -> ContentDelta | CallDelta | PlanDelta | None:
    """Decode a payload; return None for other kinds of events and other shapes."""
    try:
        return _decode(payload)
    except _ERRORS:
        return None

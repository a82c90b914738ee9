"""The events that nearly all of a stream is made of, in the shape that Cohere documents, decoded at speed.

The structs refuse unknown fields and other types, so that what one of them holds is all that the event said: the JSON
object can be made of it again. Any other event is read field by field, see `tailrace.wrappers.cohere.chunks`.
"""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Shape(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """An object of the documented shape."""


class _Content(_Shape):
    text: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET


class _ContentMessage(_Shape):
    content: _Content


class _ContentDelta(_Shape):
    message: _ContentMessage


class ContentDelta(_Shape, tag_field="type", tag="content-delta"):
    """A piece of a content block."""

    index: int
    delta: _ContentDelta

    def raw(self, name: str, piece: str) -> dict[str, Any]:
        """The event as a JSON object, its content being only the field ``name``."""
        return {
            "type": "content-delta",
            "index": self.index,
            "delta": {"message": {"content": {name: piece}}},
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
    """A piece of a tool call's arguments."""

    index: int
    delta: _CallDelta

    @property
    def arguments(self) -> str:
        """The piece."""
        return self.delta.message.tool_calls.function.arguments

    def raw(self) -> dict[str, Any]:
        """The event as a JSON object."""
        call = {"function": {"arguments": self.arguments}}
        return {"type": "tool-call-delta", "index": self.index, "delta": {"message": {"tool_calls": call}}}


class _PlanMessage(_Shape):
    tool_plan: str


class _PlanDelta(_Shape):
    message: _PlanMessage


class PlanDelta(_Shape, tag_field="type", tag="tool-plan-delta"):
    """A piece of the plan that goes before tool calls."""

    delta: _PlanDelta

    @property
    def plan(self) -> str:
        """The piece."""
        return self.delta.message.tool_plan

    def raw(self) -> dict[str, Any]:
        """The event as a JSON object."""
        return {"type": "tool-plan-delta", "delta": {"message": {"tool_plan": self.plan}}}


_decode = msgspec.json.Decoder(ContentDelta | CallDelta | PlanDelta).decode


def usual_event(payload: bytes) -> ContentDelta | CallDelta | PlanDelta | None:
    """The event of a payload; None for any that is of another kind, or in another shape."""
    try:
        return _decode(payload)
    except _ERRORS:
        return None

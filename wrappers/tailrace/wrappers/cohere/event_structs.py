"""Structs for fast decoding of the most common events of a Cohere stream.

A struct accepts only the documented fields and types, so that the JSON object of the event can be restored. `CohereDecoder`
decodes other events to dicts.
"""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Shape(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """Base class of the structs. It rejects unknown fields."""


class _Content(_Shape):
    text: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET


class _ContentMessage(_Shape):
    content: _Content


class _ContentDelta(_Shape):
    message: _ContentMessage


class ContentDelta(_Shape, tag_field="type", tag="content-delta"):
    """An event that adds text or thinking to a content block."""

    index: int
    delta: _ContentDelta

    def raw(self, name: str, text: str) -> dict[str, Any]:
        """Return the event as a JSON object. ``name`` is the name of the field that contains the text."""
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
    """An event that adds a fragment to the arguments of a tool call."""

    index: int
    delta: _CallDelta

    @property
    def arguments(self) -> str:
        """The fragment of the argument text."""
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
    """An event that adds text to the plan, which precedes tool calls."""

    delta: _PlanDelta

    @property
    def plan(self) -> str:
        """The fragment of the text."""
        return self.delta.message.tool_plan

    def raw(self) -> dict[str, Any]:
        """Return the event as a JSON object."""
        return {"type": "tool-plan-delta", "delta": {"message": {"tool_plan": self.plan}}}


_decode = msgspec.json.Decoder(ContentDelta | CallDelta | PlanDelta).decode


def read_common_event(payload: bytes) -> ContentDelta | CallDelta | PlanDelta | None:
    """Decode the payload of an event; None if no struct accepts it."""
    try:
        return _decode(payload)
    except _ERRORS:
        return None

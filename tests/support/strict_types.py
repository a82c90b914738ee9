"""Strict checks of objects of OpenAI's APIs with the types of the openai package."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, cast

from pydantic import BaseModel, TypeAdapter

OWN_MEMBERS: Mapping[str, frozenset[str]] = {
    "Response": frozenset({"store", "warnings"}),
    "ResponseError": frozenset({"reason", "upstream"}),
    "ResponseErrorEvent": frozenset({"error"}),  # not documented; OpenAI's API sends it
    "ResponseCustomToolCall": frozenset({"status"}),
    "ResponseFunctionCallArgumentsDoneEvent": frozenset({"name"}),  # older openai packages require it
    "ResponseCustomToolCallInputDoneEvent": frozenset({"name"}),
    "ChatCompletion": frozenset({"warnings"}),
    "ChatCompletionMessage": frozenset({"reasoning_content"}),
    "ChatCompletionStoreMessage": frozenset({"reasoning_content", "tool_call_id"}),
    "ChoiceDelta": frozenset({"reasoning_content"}),
}
"""The members that the server adds to the objects of the API (docs/openai.md)."""


def check_strictly(kind: Any, text: str | bytes) -> Any:
    """Validate JSON text strictly, without members that its type does not have; return the object.

    Args:
        kind: A type of the openai package.
        text: The JSON text.
    """
    found = _adapter(kind).validate_json(text, strict=True)
    unknown = sorted(set(_unknown_members(found)))
    assert not unknown, f"unknown members of {getattr(kind, '__name__', kind)}: {unknown}"
    return found


@cache  # a new adapter takes longer than its use
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _unknown_members(value: object) -> Iterator[str]:
    if isinstance(value, BaseModel):
        name = type(value).__name__
        extra = value.model_extra or {}
        yield from (f"{name}.{each}" for each in extra.keys() - OWN_MEMBERS.get(name, frozenset()))
        for field in type(value).model_fields:
            yield from _unknown_members(getattr(value, field))
    elif isinstance(value, (list, tuple)):
        for each in cast("Iterable[object]", value):
            yield from _unknown_members(each)
    elif isinstance(value, dict):
        for each in cast("Mapping[str, object]", value).values():
            yield from _unknown_members(each)

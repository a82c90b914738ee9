"""tailrace's extension of A2A.

Its data is in the metadata of messages, artifacts and events, under the URI of the extension.

A client that does not know the extension can ignore this metadata, and uses a normal A2A agent.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

EXTENSION_URI = "urn:tailrace:ext:stream:v1"
"""The URI of the extension, which is in the agent card, in ``extensions`` of messages and artifacts, and in
metadata."""


def extension_metadata(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the data of the extension in an object's metadata; empty if there is no data or it is no JSON object."""
    facts = metadata.get(EXTENSION_URI)
    return cast("Mapping[str, Any]", facts) if isinstance(facts, Mapping) else {}


_NOT_THE_ANSWER = ("reasoning", "tool_call", "tool_result", "output")
"""Channels that are not part of the response's text. The text contains a value of ``output`` too."""


def is_answer(metadata: Mapping[str, Any]) -> bool:
    """Return True if the artifact or part with this metadata belongs to the text of the agent's response.

    Reasoning, tool calls, tool results and further choices do not belong to the response. An artifact without data of
    the extension does.
    """
    facts = extension_metadata(metadata)
    return not facts.get("choice") and facts.get("channel") not in _NOT_THE_ANSWER


def turn_continues(metadata: Mapping[str, Any]) -> bool:
    """Return True if the turn continues in an interrupted state.

    In this case the agent waits for credentials that arrive in another way than by a message.
    """
    return extension_metadata(metadata).get("continues") is True


def provider_text(members: Mapping[str, Any]) -> str:
    """Return a JSON object of the provider as text, for a member ``raw``.

    The object is encoded as text, because member names in A2A are in camelCase (A2A 1.0, section 5.5), and the names
    of providers are not.
    """
    return msgspec.json.encode(members).decode()


def provider_json(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object of the provider as an object with names in camelCase.

    Members whose names, at any depth, are in snake_case are in ``raw``, as JSON text of one object. `provider_members`
    is the inverse.
    """
    named = {
        name: value for name, value in members.items() if name != "raw" and _is_camel_case({name: value})
    }
    rest = {name: value for name, value in members.items() if name not in named}
    return {**named, "raw": provider_text(rest)} if rest else named


def provider_members(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object of the provider from the result of `provider_json`.

    tailrace 0.1 wrote the object itself, which is returned unchanged.
    """
    named = {name: value for name, value in fields.items() if name != "raw"}
    raw = fields.get("raw")
    if isinstance(raw, str):
        return {**named, **_decoded(raw)}
    return dict(fields)


def provider_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usage object of the provider from the member ``usage``; empty if there is none.

    tailrace 0.1 wrote an object in place of the text.
    """
    raw = usage.get("raw")
    if isinstance(raw, str):
        return _decoded(raw)
    return cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}


def _decoded(text: str) -> dict[str, Any]:
    """Return the JSON object of a text; empty if it has none."""
    try:
        value: object = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _is_camel_case(value: object) -> bool:
    """Return True if no member name in a JSON value has an underscore."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Mapping):
            fields = cast("Mapping[object, object]", each)
            if any("_" in str(name) for name in fields):
                return False
            waiting += fields.values()
        elif isinstance(each, list | tuple):
            waiting += cast("Sequence[object]", each)
    return True


def with_extension_metadata(metadata: Mapping[str, Any], **facts: Any) -> dict[str, Any]:
    """Return a copy of ``metadata`` with additional data of the extension."""
    return {**metadata, EXTENSION_URI: {**extension_metadata(metadata), **facts}}


def without_extension_metadata(metadata: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return a copy of ``metadata`` without some members of the extension's data.

    If no member is left, the copy has no entry for the extension.
    """
    left = {name: fact for name, fact in extension_metadata(metadata).items() if name not in names}
    rest = {key: value for key, value in metadata.items() if key != EXTENSION_URI}
    return {**rest, EXTENSION_URI: left} if left else rest

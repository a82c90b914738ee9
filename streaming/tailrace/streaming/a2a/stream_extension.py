"""tailrace's extension of A2A: data in the metadata of messages, artifacts and events, under the URI of the extension.

A client that does not support the extension can ignore this data.
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

EXTENSION_URI = "urn:tailrace:ext:stream:v1"
"""The URI of the extension in the agent card, in ``extensions`` of messages and artifacts, and in metadata."""


def extension_metadata(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the data of the extension in an object's metadata; empty if the metadata has none."""
    fields = metadata.get(EXTENSION_URI)
    if fields is None:
        return {}
    return cast("Mapping[str, Any]", fields) if isinstance(fields, Mapping) else {}


_OTHER_CHANNELS = ("reasoning", "tool_call", "tool_result", "output")
"""Channels that do not belong to the text of the response. The channel ``output`` has the parsed value of a JSON response,
whose text contains the same JSON."""


def is_response_text(metadata: Mapping[str, Any]) -> bool:
    """Return True if the artifact or part with this metadata belongs to the text of the agent's response.

    Reasoning, tool calls, tool results, structured output, and choices other than the first do not belong to it. An artifact
    without data of the extension belongs to it.
    """
    fields = extension_metadata(metadata)
    return not fields.get("choice") and fields.get("channel") not in _OTHER_CHANNELS


def turn_continues(metadata: Mapping[str, Any]) -> bool:
    """Return True if a task is in the state auth-required, but its turn waits for credentials and then continues.

    These credentials do not arrive with a message of the caller.
    """
    return extension_metadata(metadata).get("continues") is True


def provider_text(members: Mapping[str, Any]) -> str:
    """Encode a JSON object of the provider as text, for a member ``raw`` of the extension's data.

    The names in the JSON of most providers are snake_case, which A2A does not allow for members (A2A 1.0, section 5.5).
    """
    return msgspec.json.encode(members).decode()


def provider_json(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object of the provider as a JSON object whose names are camelCase. `provider_members` is the inverse.

    Members with a snake_case name, also of a nested object, are moved to ``raw``: one JSON object, encoded as a string.
    """
    camel_case = {
        name: value for name, value in members.items() if name != "raw" and _is_camel_case({name: value})
    }
    rest = {name: value for name, value in members.items() if name not in camel_case}
    return {**camel_case, "raw": provider_text(rest)} if rest else camel_case


def provider_members(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the object of the provider for a result of `provider_json`.

    Earlier versions stored the object itself, which is returned unchanged.
    """
    camel_case = {name: value for name, value in fields.items() if name != "raw"}
    raw = fields.get("raw")
    if isinstance(raw, str):
        return {**camel_case, **_decoded(raw)}
    return dict(fields)


def provider_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the usage object of the provider in the extension's member ``usage``; empty if there is none.

    In data of earlier versions, ``raw`` is an object instead of text.
    """
    raw = usage.get("raw")
    if isinstance(raw, str):
        return _decoded(raw)
    return cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}


def _decoded(text: str) -> dict[str, Any]:
    """Decode a JSON object; return an empty dict for any other text."""
    try:
        value: object = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _is_camel_case(value: object) -> bool:
    """Return True if no member name in a JSON value, at any depth, contains an underscore."""
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


def with_extension_metadata(metadata: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a copy of ``metadata`` with additional data of the extension."""
    return {**metadata, EXTENSION_URI: {**extension_metadata(metadata), **fields}}


def without_extension_metadata(metadata: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return a copy of ``metadata`` without some members of the extension's data."""
    kept = {name: member for name, member in extension_metadata(metadata).items() if name not in names}
    rest = {key: value for key, value in metadata.items() if key != EXTENSION_URI}
    return {**rest, EXTENSION_URI: kept} if kept else rest

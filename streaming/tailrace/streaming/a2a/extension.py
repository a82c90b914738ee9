"""The extension of A2A: its data is metadata under its URI.

A client that does not know the extension sees metadata it may ignore, and a plain, correct A2A agent.
"""

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from tailrace.wrappers import Usage
from tailrace.wrappers.decoding.fields import plain_json

EXTENSION_URI = "urn:tailrace:ext:stream:v1"
"""Names the extension in the agent card, in ``extensions`` of messages and artifacts, and in metadata."""


def extension_facts(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """The extension's facts in some object's metadata; empty when there are none, or none that are an object."""
    facts = metadata.get(EXTENSION_URI)
    return cast("Mapping[str, Any]", facts) if isinstance(facts, Mapping) else {}


_NOT_THE_ANSWER = ("reasoning", "tool_call", "tool_result", "output")
"""Channels beside the answer; a value of ``output`` stands in the text as well."""


def is_answer(metadata: Mapping[str, Any]) -> bool:
    """Return whether the artifact or part with this metadata belongs to the agent's answer.

    Reasoning, tool calls, tool results and further choices do not. Without the extension's facts it does.
    """
    facts = extension_facts(metadata)
    return not facts.get("choice") and facts.get("channel") not in _NOT_THE_ANSWER


def turn_continues(metadata: Mapping[str, Any]) -> bool:
    """Return whether the turn continues in an interrupted state: the agent waits for credentials that arrive out of band."""
    return extension_facts(metadata).get("continues") is True


def usage_json(usage: Usage) -> str:
    """Return the provider's own usage object as JSON text, for the fact ``usage.raw``.

    As text, because member names in A2A are in camelCase (A2A 1.0, section 5.5), and those of providers are not.
    """
    return msgspec.json.encode(plain_json(dict(usage.raw))).decode()


def provider_usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return the provider's own usage object of a fact ``usage``; empty when there is none.

    Version 0.1 wrote an object in place of text.
    """
    raw = usage.get("raw")
    if isinstance(raw, str):
        try:
            raw = msgspec.json.decode(raw)
        except msgspec.DecodeError:
            raw = None
    return cast("dict[str, Any]", raw) if isinstance(raw, dict) else {}


def with_extension_facts(metadata: Mapping[str, Any], **facts: Any) -> dict[str, Any]:
    """A copy of ``metadata`` to whose extension's facts ``facts`` are added."""
    return {**metadata, EXTENSION_URI: {**extension_facts(metadata), **facts}}


def without_extension_facts(metadata: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """A copy of ``metadata`` without the extension's facts of these names; without its entry when none is left."""
    left = {name: fact for name, fact in extension_facts(metadata).items() if name not in names}
    rest = {key: value for key, value in metadata.items() if key != EXTENSION_URI}
    return {**rest, EXTENSION_URI: left} if left else rest

"""What goes beyond A2A: one extension, whose facts stand in metadata under its URI.

A client that does not know the extension sees metadata it may ignore, and a plain, correct A2A agent.
"""

from collections.abc import Mapping
from typing import Any, cast

EXTENSION_URI = "urn:tailrace:ext:stream:v1"
"""Names the extension in the agent card, in ``extensions`` of messages and artifacts, and in metadata."""


def extension_facts(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """The extension's facts in some object's metadata; empty when there are none, or none that are an object."""
    facts = metadata.get(EXTENSION_URI)
    return cast("Mapping[str, Any]", facts) if isinstance(facts, Mapping) else {}


def with_extension_facts(metadata: Mapping[str, Any], **facts: Any) -> dict[str, Any]:
    """A copy of ``metadata`` to whose extension's facts ``facts`` are added."""
    return {**metadata, EXTENSION_URI: {**extension_facts(metadata), **facts}}


def without_extension_facts(metadata: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """A copy of ``metadata`` without the extension's facts of these names; without its entry when none is left."""
    left = {name: fact for name, fact in extension_facts(metadata).items() if name not in names}
    rest = {key: value for key, value in metadata.items() if key != EXTENSION_URI}
    return {**rest, EXTENSION_URI: left} if left else rest

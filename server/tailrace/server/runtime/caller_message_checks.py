"""Checks callers' messages for references that a provider would resolve with the credentials of the server.

A provider executes requests with the permissions of this server. A caller could therefore read an object of the server's account
with a file URL such as ``s3://BUCKET/KEY``, or with a provider-specific field. The setting ``file_schemes`` limits file URLs, and
provider-specific metadata of callers' messages is removed.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from tailrace.streaming.a2a.errors import FieldViolation, InvalidParamsError
from tailrace.streaming.a2a.models import Message, Part

PROVIDER_METADATA = ("anthropic", "bedrock", "cohere", "gemini", "mistral", "ollama")
"""Namespaces of providers' metadata (`WireFormat.name`) that are removed from callers' messages."""

OPENAI_METADATA = ("openai", "openai-responses")
"""Namespaces of metadata of the OpenAI-compatible API. File ids are removed from callers' messages."""

_REMOVED = frozenset((*PROVIDER_METADATA, *OPENAI_METADATA))
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)
_FILE_IDS = frozenset({"file_id", "file_ids"})
_MAX_SHOWN = 40


def check_file_urls(message: Message, schemes: Sequence[str]) -> None:
    """Check that the scheme of each file URL is allowed.

    Args:
        message: A message from a caller.
        schemes: The allowed schemes in lower case; ``*`` for all.

    Raises:
        InvalidParamsError: The scheme of a URL is not allowed.
    """
    if "*" in schemes:
        return
    for at, part in enumerate(message.parts):
        if part.url is None:
            continue
        found = _SCHEME.match(part.url)
        if found is None or found[1].lower() not in schemes:
            actual = f"the scheme {found[1][:_MAX_SHOWN]!r}" if found else "a URL without a scheme"
            description = f"{actual} is not accepted; allowed: {', '.join(schemes)} (TAILRACE_FILE_SCHEMES)"
            field = f"message.parts[{at}].url"
            raise InvalidParamsError(
                f"{field}: {description}", violations=[FieldViolation(field, description)]
            )


def without_provider_metadata(message: Message) -> Message:
    """Remove provider-specific metadata from a caller's message, its parts and its tool results."""
    parts = tuple(map(_without_part_metadata, message.parts))
    metadata = _allowed(message.metadata)
    if metadata is message.metadata and all(map(_is_same, parts, message.parts)):
        return message
    return message.model_copy(update={"metadata": metadata, "parts": parts})


def _is_same(one: object, other: object) -> bool:
    return one is other


def _without_part_metadata(part: Part) -> Part:
    update: dict[str, Any] = {}
    metadata = _allowed(part.metadata)
    if metadata is not part.metadata:
        update["metadata"] = metadata
    data = cast("object", part.data)
    results = cast("dict[str, Any]", data).get("tool_results") if isinstance(data, dict) else None
    if isinstance(results, list):
        entries = list(map(_without_entry_metadata, cast("list[object]", results)))
        if not all(map(_is_same, entries, cast("Iterable[object]", results))):
            update["data"] = {**cast("dict[str, Any]", data), "tool_results": entries}
    return part.model_copy(update=update) if update else part


def _without_entry_metadata(entry: object) -> object:
    if not isinstance(entry, dict):
        return entry
    fields = cast("dict[str, Any]", entry)
    metadata = fields.get("metadata")
    if not isinstance(metadata, dict):
        return fields
    allowed = _allowed(cast("dict[str, Any]", metadata))
    return fields if allowed is metadata else {**fields, "metadata": allowed}


def _allowed(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    if _REMOVED.isdisjoint(metadata):
        return metadata
    return {
        name: _without_file_ids(value) if name in OPENAI_METADATA else value
        for name, value in metadata.items()
        if name not in PROVIDER_METADATA
    }


def _without_file_ids(value: object) -> object:
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value)
        return {name: _without_file_ids(each) for name, each in fields.items() if name not in _FILE_IDS}
    if isinstance(value, list):
        return [_without_file_ids(each) for each in cast("list[object]", value)]
    return value

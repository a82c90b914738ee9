"""How Chat Completions servers report an error inside a stream, and what it means."""

import json
from collections.abc import Mapping
from typing import Any

from tailrace.wrappers.errors import UpstreamError, UpstreamFault
from tailrace.wrappers.openai.shapes import as_mapping

# Words in the place of a finish reason that say the provider failed, not why the model stopped.
_FAILURES = frozenset({"error", "internal_error", "network_error", "insufficient_system_resource"})


def provider_error(value: object, provider: str = "") -> UpstreamError:
    """What a provider's error object (or text) says, as an `UpstreamError` of fault ``provider_error``."""
    fields = as_mapping(value)
    if fields is None:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return UpstreamError(text or "unspecified error", fault=UpstreamFault.PROVIDER, provider=provider)
    inner = fields.get("error")
    if isinstance(inner, str | Mapping) and "message" not in fields:
        error = provider_error(inner, provider)
        error.details = value
        return error
    message = fields.get("message") or fields.get("detail") or json.dumps(value, ensure_ascii=False)
    code = next((fields[key] for key in ("code", "type") if fields.get(key) not in (None, "")), None)
    status = fields.get("code")
    return UpstreamError(
        str(message),
        fault=UpstreamFault.PROVIDER,
        provider=provider,
        status=status if isinstance(status, int) and 400 <= status <= 599 else None,
        code=None if code is None else str(code),
        details=value,
    )


def take_error(fields: dict[str, Any], provider: str, *, error_event: bool) -> UpstreamError | None:
    """The error that a chunk reports in one of the known ways; what reports it is taken out of ``fields``.

    Args:
        fields: The chunk.
        provider: Named in the error.
        error_event: The chunk came as the payload of an event of type ``error``.
    """
    value = fields.pop("error", None)
    if value:
        return provider_error(value, provider)
    if error_event or fields.get("object") == "error" or fields.get("type") == "error":
        error = provider_error(dict(fields), provider)
        fields.clear()
        return error
    return None


def finish_error(reason: str | None, provider: str) -> UpstreamError | None:
    """The error that stands in the place of a finish reason; None for a reason."""
    if reason not in _FAILURES:
        return None
    return UpstreamError(
        "the provider ended the answer with an error",
        fault=UpstreamFault.PROVIDER,
        provider=provider,
        code=reason,
    )

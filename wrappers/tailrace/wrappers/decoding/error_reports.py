"""Conversion of errors inside a stream to `UpstreamError`."""

from collections.abc import Mapping
from typing import Any

from tailrace.wrappers.decoding.extra_fields import json_text
from tailrace.wrappers.decoding.lenient_json import as_index, as_mapping
from tailrace.wrappers.errors import UpstreamError, UpstreamFault

# Finish reasons that report an error of the provider.
_FAILURES = frozenset({"error", "internal_error", "network_error", "insufficient_system_resource"})
_UNDESCRIBED = "an error without a description"
_MAX_WRAPPINGS = 4  # nesting depth of errors; a gateway may wrap the error of a provider


def provider_error(value: object, provider: str = "") -> UpstreamError:
    """Convert the error object or error text of a provider to an `UpstreamError` with the fault ``provider_error``."""
    report = value
    for _ in range(_MAX_WRAPPINGS):
        envelope = as_mapping(report)
        if envelope is None or "message" in envelope or not isinstance(envelope.get("error"), str | Mapping):
            break
        report = envelope["error"]
    fields = as_mapping(report)
    if fields is None:
        return UpstreamError(
            _text(report) or _UNDESCRIBED,
            fault=UpstreamFault.PROVIDER,
            provider=provider,
            details=None if report is value else value,
        )
    message = fields.get("message") or fields.get("detail") or fields or _UNDESCRIBED
    code = next((fields[key] for key in ("code", "type") if fields.get(key) not in (None, "")), None)
    numbers = (as_index(fields.get(key)) for key in ("code", "status", "status_code"))
    status = next((number for number in numbers if number is not None and 400 <= number <= 599), None)
    return UpstreamError(
        _text(message),
        fault=UpstreamFault.PROVIDER,
        provider=provider,
        status=status,
        code=None if code is None else _text(code),
        details=value,
    )


def pop_error(fields: dict[str, Any], provider: str, *, error_event: bool) -> UpstreamError | None:
    """Remove the error from a chunk and return it; None if the chunk has no error.

    Args:
        fields: The JSON object of the chunk.
        provider: The provider's name in the error.
        error_event: True if the chunk is the payload of a server-sent event with the type ``error``.
    """
    value = fields.pop("error", None)
    if value:
        return provider_error(value, provider)
    if error_event or fields.get("object") == "error" or fields.get("type") == "error":
        description = {name: value for name, value in fields.items() if name not in ("choices", "usage")}
        for name in description:
            del fields[name]
        return provider_error(description, provider)
    return None


def finish_error(reason: str | None, provider: str) -> UpstreamError | None:
    """Return an error if the finish reason reports an error of the provider; otherwise None."""
    if reason not in _FAILURES:
        return None
    return UpstreamError(
        "the provider ended the response with an error",
        fault=UpstreamFault.PROVIDER,
        provider=provider,
        code=reason,
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else json_text(value)

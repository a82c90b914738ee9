"""The errors of tailrace; the class denotes the responsible party.

::

    TailraceError
    ├── UpstreamError         the provider: rejected the request, timed out, sent invalid data, disconnected
    ├── ProtocolError         the caller: a request that cannot be carried out (see tailrace.streaming.a2a.errors)
    ├── StoreError            the server's store: full, locked, damaged
    └── ConfigurationError    the operator: a setting that is missing or contradicts another

Every error has its details as attributes, so that handlers never have to parse text.
"""

from enum import StrEnum


class TailraceError(Exception):
    """Base class of all errors that tailrace raises deliberately."""


class UpstreamFault(StrEnum):
    """Kind of failure between tailrace and the provider."""

    CONNECTION = "connection_failed"
    """The connection could not be established, or was reset."""
    TIMEOUT = "timeout"
    """No data arrived within the limit (connect or read timeout)."""
    STATUS = "http_status"
    """The provider returned an HTTP error status."""
    PROVIDER = "provider_error"
    """The provider reported an error inside the stream."""
    TRUNCATED = "stream_truncated"
    """The stream ended before the response was complete (no finish reason)."""
    INVALID = "invalid_stream"
    """The body is not valid for this API: HTML, invalid JSON, a wrong content type."""
    TOO_LARGE = "event_too_large"
    """An event of the stream exceeds the size limit."""


class UpstreamError(TailraceError):
    """The provider rejected the request, failed, or sent an invalid response. Content received before is kept.

    Args:
        message: Description in one line, suitable for end users.
        fault: The kind of failure.
        provider: The provider's name, as in ``provider:model``; empty if unknown.
        status: The HTTP status, if one was received.
        code: The provider's error code or type, unchanged.
        retry_after: Seconds to wait before a retry, if the provider sent a value.
        tries: The number of times the request was sent.
        details: The provider's error object; for models without credentials and internal addresses, see
            `tailrace.wrappers.redaction.redaction`.
        diagnosis: Information for the operator's log that callers must not receive; without credentials. Empty if there
            is nothing beyond ``message``.
    """

    def __init__(
        self,
        message: str,
        *,
        fault: UpstreamFault,
        provider: str = "",
        status: int | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        tries: int = 1,
        details: object = None,
        diagnosis: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.fault = fault
        self.provider = provider
        self.status = status
        self.code = code
        self.retry_after = retry_after
        self.tries = tries
        self.details = details
        self.diagnosis = diagnosis

    def __str__(self) -> str:
        """Return the message with its details: ``openai: rate limited (HTTP 429, rate_limit_exceeded, 3 tries)``."""
        candidates = (
            f"HTTP {self.status}" if self.status else "",
            self.code or "",
            f"{self.tries} tries" if self.tries > 1 else "",
            f"retry after {self.retry_after:g} s" if self.retry_after else "",
        )
        facts = ", ".join(filter(None, candidates))
        prefix = f"{self.provider}: " if self.provider else ""
        return f"{prefix}{self.message} ({facts})" if facts else f"{prefix}{self.message}"


class ProtocolError(TailraceError):
    """The caller's request is not allowed by the protocol or the task's state."""


class StoreError(TailraceError):
    """The store could not read or persist data.

    Args:
        message: Description of the failure.
        temporary: The store is unavailable (full, locked, disconnected), and a retry may succeed; False if it rejects
            this particular data.
    """

    def __init__(self, message: str, *, temporary: bool = True) -> None:
        super().__init__(message)
        self.temporary = temporary


class ConfigurationError(TailraceError):
    """A setting is missing, malformed, or contradicts another; the message names the setting and the fix."""

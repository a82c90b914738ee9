"""The errors of tailrace: one tree, and the class says whose fault it is.

::

    TailraceError
    ├── UpstreamError         the provider: refused, timed out, sent garbage, broke off
    ├── ProtocolError         the caller: a request that cannot be carried out (see tailrace.streaming.a2a.errors)
    ├── StoreError            our store: full, locked, damaged
    └── ConfigurationError    the operator: a setting that is missing or contradicts another

Every error carries its facts as attributes and builds its message from them, so that a handler never has to
parse text.
"""

from enum import StrEnum


class TailraceError(Exception):
    """Base of every error that tailrace raises on purpose."""


class UpstreamFault(StrEnum):
    """What went wrong between us and the provider, as a word that programs may switch on."""

    CONNECTION = "connection_failed"
    """No connection, or one that was reset."""
    TIMEOUT = "timeout"
    """Nothing came within the time allowed (connect, or between two reads)."""
    STATUS = "http_status"
    """The provider answered with an HTTP error status."""
    PROVIDER = "provider_error"
    """The provider reported an error of its own inside the stream."""
    TRUNCATED = "stream_truncated"
    """The stream ended before the answer was complete (no finish reason)."""
    INVALID = "invalid_stream"
    """What came is not what this API sends: HTML, broken JSON, a wrong content type."""
    TOO_LARGE = "event_too_large"
    """One event of the stream is larger than the stated bound."""


class UpstreamError(TailraceError):
    """The provider refused, failed, or sent what cannot be read. What arrived before is kept.

    Args:
        message: What happened, in one line that an end user may be shown.
        fault: The kind of trouble.
        provider: The provider's name, as in ``provider:model``; empty when not known.
        status: The HTTP status, where one was received.
        code: The provider's own error code or type, word for word.
        retry_after: Seconds the provider asked us to wait, where it did.
        tries: How often the request was sent.
        details: Whatever else the provider said (its error object), unchanged.
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

    def __str__(self) -> str:
        """The message with its facts: ``openai: rate limited (HTTP 429, rate_limit_exceeded, 3 tries)``."""
        known = (
            f"HTTP {self.status}" if self.status else "",
            self.code or "",
            f"{self.tries} tries" if self.tries > 1 else "",
            f"retry after {self.retry_after:g} s" if self.retry_after else "",
        )
        facts = ", ".join(filter(None, known))
        where = f"{self.provider}: " if self.provider else ""
        return f"{where}{self.message} ({facts})" if facts else f"{where}{self.message}"


class ProtocolError(TailraceError):
    """The caller asked for something that the protocol or the task's state does not allow."""


class StoreError(TailraceError):
    """Our store could not keep or find what it must.

    Args:
        message: What happened.
        temporary: Whether the store is in trouble (full, locked, gone) and the same may succeed later; False when it
            does not take this very thing.
    """

    def __init__(self, message: str, *, temporary: bool = True) -> None:
        super().__init__(message)
        self.temporary = temporary


class ConfigurationError(TailraceError):
    """A setting is missing, malformed, or contradicts another; the message names the setting and the mend."""

"""The exceptions of all layers of tailrace. The class of an exception shows who is responsible.

::

    TailraceError
    ├── UpstreamError         the provider: it rejected the request, timed out, sent invalid data, or disconnected
    ├── ProtocolError         the caller: the request cannot be executed (see tailrace.streaming.a2a.errors)
    ├── StoreError            the server's store: it is full, locked or damaged
    └── ConfigurationError    the operator: a setting is missing, or contradicts another setting

Details are attributes, so that handlers need not parse the message.
"""

from enum import StrEnum


class TailraceError(Exception):
    """Base class of all exceptions that tailrace raises on purpose."""


class UpstreamFault(StrEnum):
    """Type of a failure of a request to the provider."""

    CONNECTION = "connection_failed"
    """The connection to the provider could not be opened, or was reset."""
    TIMEOUT = "timeout"
    """The connect timeout or the read timeout has expired."""
    STATUS = "http_status"
    """The provider returned an HTTP error status."""
    PROVIDER = "provider_error"
    """The provider reported an error inside the stream."""
    TRUNCATED = "stream_truncated"
    """The stream ended without a finish reason."""
    INVALID = "invalid_stream"
    """The provider sent an invalid response, for example HTML or invalid JSON."""
    TOO_LARGE = "event_too_large"
    """An event of the stream, or the response, exceeds a size limit."""


_TEMPORARY_FAULTS = frozenset({UpstreamFault.CONNECTION, UpstreamFault.TIMEOUT, UpstreamFault.TRUNCATED})
_TEMPORARY_STATUSES = frozenset({408, 409, 425, 429})
# Codes of temporary errors inside a stream, in lower case and without separators.
_TEMPORARY_CODES = frozenset(
    """
    aborted apierror badgateway deadlineexceeded error failed gatewaytimeout insufficientsystemresource internal internalerror
    internalservererror internalserverexception modelstreamerrorexception modeltimeoutexception networkerror overloaded
    overloadederror ratelimiterror ratelimitexceeded resourceexhausted servererror serviceunavailable
    serviceunavailableexception throttlingexception timeout timeouterror toomanyrequests unavailable 3505
    """.split()
)
_PERMANENT_CODES = frozenset({"insufficientquota", "billingerror"})
_ACCESS_STATUSES = frozenset({401, 402, 403, 404})


class UpstreamError(TailraceError):
    """The provider rejected the request, failed, or sent an invalid response.

    Content that was received before the error is valid.

    Args:
        message: Description of the failure in one line. It can be shown to end users.
        fault: The type of the failure.
        provider: The name of the provider, as in ``provider:model``; empty if unknown.
        status: The HTTP status of the response, or the status in the provider's error object; None if there is neither.
        code: The provider's error code or error type, unchanged; None if there is none.
        retry_after: The delay in seconds before a retry that the provider requests; None if it requests none.
        tries: The number of times that the request was sent.
        details: The error object of the provider. Model clients remove credentials and internal addresses
            (`tailrace.wrappers.redaction.redactor`).
        diagnosis: Further information for the operator's log, without credentials; may be empty. Callers must not receive it.
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

    @property
    def is_temporary(self) -> bool:
        """True if the same request may succeed later: after a connection error, an overload, or a server error."""
        code = "".join(filter(str.isalnum, (self.code or "").lower()))
        if self.fault in _TEMPORARY_FAULTS:
            return True
        if self.fault not in (UpstreamFault.STATUS, UpstreamFault.PROVIDER) or code in _PERMANENT_CODES:
            return False
        if self.status is not None:
            return self.status >= 500 or self.status in _TEMPORARY_STATUSES
        return not code or code in _TEMPORARY_CODES

    @property
    def concerns_provider(self) -> bool:
        """True if the same request to another provider may succeed.

        This is the case after a temporary error, denied access, an exceeded quota, or an invalid response.
        """
        code = "".join(filter(str.isalnum, (self.code or "").lower()))
        refused = self.fault in (UpstreamFault.STATUS, UpstreamFault.PROVIDER) and (
            self.status in _ACCESS_STATUSES or code in _PERMANENT_CODES
        )
        return self.is_temporary or refused or self.fault is UpstreamFault.INVALID

    def __str__(self) -> str:
        """Return the message and its details: ``openai: rate limited (HTTP 429, rate_limit_exceeded, 3 tries)``."""
        candidates = (
            f"HTTP {self.status}" if self.status else "",
            self.code or "",
            f"{self.tries} tries" if self.tries > 1 else "",
            f"retry after {self.retry_after:g} s" if self.retry_after else "",
        )
        details = ", ".join(filter(None, candidates))
        prefix = f"{self.provider}: " if self.provider else ""
        return f"{prefix}{self.message} ({details})" if details else f"{prefix}{self.message}"


class ProtocolError(TailraceError):
    """The caller's request is invalid: the protocol, the provider, or the state of the task does not permit it."""


class StoreError(TailraceError):
    """The store could not read or persist data.

    Args:
        message: Description of the failure in one line.
        temporary: True if the store is unavailable (full, locked, disconnected), so that a retry may succeed. False if it rejects
            the data.
    """

    def __init__(self, message: str, *, temporary: bool = True) -> None:
        super().__init__(message)
        self.temporary = temporary


class ConfigurationError(TailraceError):
    """A setting is missing or invalid, or contradicts another setting. The message names the setting and the correction."""

"""Classifies errors for logs and metrics by their cause (provider, caller or server) and by their type."""

from tailrace.server.runtime.auth_error import AuthError
from tailrace.streaming.a2a.errors import A2AError
from tailrace.wrappers import ConfigurationError, ProtocolError, StoreError, UpstreamError

PROVIDER, CALLER, SERVER = "provider", "caller", "server"


def cause_and_type(error: BaseException) -> tuple[str, str]:
    """Return the cause of an error (`PROVIDER`, `CALLER` or `SERVER`), and its type."""
    if isinstance(error, UpstreamError):
        return PROVIDER, str(error.fault)
    if isinstance(error, AuthError):
        return CALLER, "AuthError"
    if isinstance(error, A2AError):
        return (CALLER if error.http_status < 500 else SERVER), type(error).__name__
    if isinstance(error, ProtocolError):
        return CALLER, "ProtocolError"
    if isinstance(error, StoreError):
        return SERVER, "StoreError"
    if isinstance(error, ConfigurationError):
        return SERVER, "ConfigurationError"
    if isinstance(error, TimeoutError):
        return SERVER, "timeout"
    return SERVER, "internal"


def error_type(error: BaseException) -> str:
    """Return the ``error.type``: the HTTP status from the provider, or else the type of the error."""
    if isinstance(error, UpstreamError) and error.status is not None:
        return str(error.status)
    return cause_and_type(error)[1]

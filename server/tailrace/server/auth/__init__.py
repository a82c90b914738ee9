"""Authentication of callers by bearer tokens, API keys, or a custom authenticator."""

from tailrace.server.auth.authentication import Authenticator, Credentials, Identity
from tailrace.server.runtime.auth_error import AuthError

__all__ = (
    "AuthError",
    "Authenticator",
    "Credentials",
    "Identity",
)

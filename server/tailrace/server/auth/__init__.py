"""Authentication of callers: bearer tokens, API keys, and authenticators of your own."""

from tailrace.server.auth.authentication import Authenticator, Credentials, Identity
from tailrace.server.runtime.errors import AuthError

__all__ = (
    "AuthError",
    "Authenticator",
    "Credentials",
    "Identity",
)

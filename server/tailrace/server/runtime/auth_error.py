"""The error for requests that fail authentication or authorization."""

from tailrace.wrappers import TailraceError


class AuthError(TailraceError):
    """The request was rejected because of missing, invalid or insufficient credentials.

    Args:
        message: The text for the caller. It must not contain secrets.
        challenge: The value of the ``WWW-Authenticate`` header; empty for no header.
        forbidden: True if the caller is authenticated but lacks a permission.
        presented: True if the request had credentials.
    """

    def __init__(
        self, message: str, *, challenge: str, forbidden: bool = False, presented: bool = False
    ) -> None:
        super().__init__(message)
        self.challenge = challenge
        self.forbidden = forbidden
        self.presented = presented

    @property
    def http_status(self) -> int:
        """403 if the caller is authenticated but lacks a permission, otherwise 401."""
        return 403 if self.forbidden else 401

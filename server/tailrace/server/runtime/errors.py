"""Errors of the operations that are neither the protocol's nor a limit's."""

from tailrace.wrappers import TailraceError


class AuthError(TailraceError):
    """A request that is not let in.

    Args:
        message: Text for the caller; without secrets.
        challenge: The value of ``WWW-Authenticate``: how one is let in.
        forbidden: The caller is known, and may not; else it is not known.
        presented: The request carried credentials of this kind, which are wrong; else there were none.
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
        """401, or 403 for a caller that is known."""
        return 403 if self.forbidden else 401

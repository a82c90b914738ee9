"""Authentication of the callers of one agent on a server with several agents."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tailrace.server.auth.authentication import ApiKeys, Authenticator, Credentials, Identity
from tailrace.server.runtime.approvals import parse_approvers
from tailrace.server.runtime.auth_error import AuthError
from tailrace.server.runtime.caller import Caller

SUBJECT = "subject:"
"""Prefix of entries that permit the subject (``sub``) of a bearer token."""

Permission = Callable[[Caller], bool]
"""A function that returns whether a caller may use an agent."""


def parse_callers(callers: Sequence[str] | None) -> Permission:
    """Return a function that decides whether a caller may use an agent.

    Args:
        callers: Names of callers with API keys, or ``subject:NAME``, ``scope:NAME`` or ``role:NAME`` for bearer tokens. None to
            permit all callers.

    Raises:
        ConfigurationError: An entry has none of these forms.
    """
    if callers is None:
        return lambda _: True
    names = frozenset(each for each in callers if ":" not in each)
    subjects = frozenset(each.removeprefix(SUBJECT) for each in callers if each.startswith(SUBJECT))
    roles = [parse_approvers(each) for each in callers if ":" in each and not each.startswith(SUBJECT)]

    def permits(caller: Caller) -> bool:
        is_named = caller.claims.get("sub") in subjects if caller.claims else caller.user in names
        return is_named or any(has_role(caller) for has_role in roles)

    return permits


class AgentAuthenticator(Authenticator):
    """Accepts only callers who may use an agent. The tasks of a caller at different agents are separate.

    Args:
        authenticator: Authenticates the callers.
        name: The name of the agent.
        permits: Returns whether a caller may use the agent.
    """

    def __init__(self, authenticator: Authenticator, name: str, permits: Permission) -> None:
        self._authenticator = authenticator
        self._name = name
        self._permits = permits

    async def authenticate(self, credentials: Credentials) -> Identity:
        """Return the identity of the caller with the agent's name as its namespace.

        Raises:
            AuthError: The caller is not authenticated, or may not use the agent.
            OverloadedError: See `Authenticator.authenticate`.
        """
        identity = await self._authenticator.authenticate(credentials)
        if not self._permits(Caller(identity.user, claims=identity.claims)):
            raise AuthError(f"you may not use the agent {self._name!r}", challenge="", forbidden=True)
        return replace(identity, namespace=self._name)

    def schemes(self) -> Mapping[str, Any]:
        """Return the schemes of the wrapped authenticator."""
        return self._authenticator.schemes()


class ReplaceableKeys(Authenticator):
    """API keys that can be replaced while the server runs.

    Attributes:
        current: The keys.
    """

    def __init__(self, current: ApiKeys) -> None:
        self.current = current

    async def authenticate(self, credentials: Credentials) -> Identity:
        """Return the caller who has the API key of the credentials."""
        return await self.current.authenticate(credentials)

    def schemes(self) -> Mapping[str, Any]:
        """Return the security scheme for API keys."""
        return self.current.schemes()

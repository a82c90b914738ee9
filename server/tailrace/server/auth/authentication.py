"""The interface of authenticators, and an authenticator for API keys.

To support another scheme, write a subclass of `Authenticator`. The authenticator for bearer tokens (JWT) is in
`tailrace.server.auth.bearer`.
"""

import hmac
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from tailrace.server.runtime.auth_error import AuthError
from tailrace.server.runtime.limits import OverloadedError
from tailrace.server.runtime.observer import OBSERVER
from tailrace.wrappers import ConfigurationError

API_KEY_HEADER = "X-API-Key"
API_KEY_QUERY = "api_key"
TOKEN_QUERY = "access_token"  # noqa: S105 — the name of a parameter
COOKIE = "tailrace_token"

_KEY_CHALLENGE = f'ApiKey realm="tailrace", header="{API_KEY_HEADER}"'

logger = logging.getLogger("tailrace.server")


@dataclass(frozen=True)
class Credentials:
    """The credentials of a request, independent of the protocol.

    A web page of another site can send requests with the user's cookie, or link to a URL with a query. `bearer` and `api_key`
    therefore ignore the cookie and the query if ``reads`` is False. An authenticator that reads cookies itself must prevent
    forged requests, too.

    Attributes:
        headers: The headers by lower-case name.
        query: The query parameters.
        reads: True if the method is GET or HEAD. Such a request changes nothing (RFC 9110, section 9.2.1).
    """

    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    reads: bool = False

    @property
    def bearer(self) -> str:
        """The bearer token in the header Authorization, the query ``access_token`` or the cookie; empty if there is none."""
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return token.strip()
        return self._read_query_or_cookie(TOKEN_QUERY)

    def has_bearer(self, token: str) -> bool:
        """Compare `bearer` with a token in constant time."""
        return hmac.compare_digest(self.bearer.encode(), token.encode())

    @property
    def api_key(self) -> str:
        """The API key in the header ``X-API-Key``, the query ``api_key`` or the cookie; empty if there is none."""
        return self.headers.get(API_KEY_HEADER.lower(), "") or self._read_query_or_cookie(API_KEY_QUERY)

    def _read_query_or_cookie(self, parameter: str) -> str:
        if not self.reads:
            return ""
        return self.query.get(parameter, "") or _cookie(self.headers.get("cookie", ""), COOKIE)


def _cookie(header: str, name: str) -> str:
    """Return the value of a cookie; empty if the header does not contain the cookie.

    Each pair (RFC 6265, section 5.4) is parsed separately, because other programs on the same host may set invalid cookies.
    """
    for pair in header.split(";"):
        cookie_name, _, value = pair.strip().partition("=")
        if cookie_name.rstrip() == name:
            value = value.strip()
            is_quoted = len(value) > 1 and value[0] == value[-1] == '"'
            return value[1:-1] if is_quoted else value
    return ""


@dataclass(frozen=True)
class Identity:
    """An authenticated caller.

    Attributes:
        user: The name of the caller, to which its tasks belong; empty for an anonymous caller.
        claims: Further data about the caller, for handlers and extended cards.
        namespace: The name of the agent to which the tasks belong; empty for all agents.
    """

    user: str = ""
    claims: Mapping[str, Any] = field(default_factory=dict[str, Any])
    namespace: str = ""


class Authenticator(ABC):
    """Authenticates callers."""

    @abstractmethod
    async def authenticate(self, credentials: Credentials) -> Identity:
        """Return the caller with these credentials.

        Raises:
            AuthError: The credentials are missing, invalid, or insufficient.
            OverloadedError: The credentials cannot be verified at present.
        """

    @abstractmethod
    def schemes(self) -> Mapping[str, Any]:
        """Return the security schemes for the agent card, by name, in the format of A2A 1.0. A caller must use one of them."""

    def running(self) -> AbstractAsyncContextManager[None]:
        """Run background work during the block, in which the server runs. By default, there is none."""
        return nullcontext()


class Anonymous(Authenticator):
    """Accepts all callers as anonymous."""

    async def authenticate(self, credentials: Credentials) -> Identity:
        """Return an identity without a name."""
        return Identity()

    def schemes(self) -> Mapping[str, Any]:
        """Return no security schemes."""
        return {}


class ApiKeys(Authenticator):
    """Authenticates callers by API keys.

    Args:
        keys: The API keys by the name of the caller. A caller may have several keys.

    Raises:
        ConfigurationError: There are no keys, a name or a key is empty, or two callers have the same key.
    """

    def __init__(self, keys: Mapping[str, str | Sequence[str]]) -> None:
        users: dict[bytes, str] = {}
        for user, user_keys in keys.items():
            for key in (user_keys,) if isinstance(user_keys, str) else user_keys:
                if not user:
                    # A caller with the empty name would own the tasks of anonymous callers.
                    raise ConfigurationError("TAILRACE_CALLER_KEYS: a name is empty; write NAME:KEY")
                if not key:
                    raise ConfigurationError(f"TAILRACE_CALLER_KEYS: the key of {user!r} is empty")
                other = users.setdefault(_digest(key), user)
                if other != user:
                    raise ConfigurationError(
                        f"TAILRACE_CALLER_KEYS: {other!r} and {user!r} have the same key; give each caller its own"
                    )
        if not users:
            raise ConfigurationError("TAILRACE_CALLER_KEYS: at least one NAME:KEY is needed")
        self._users = list(users.items())

    async def authenticate(self, credentials: Credentials) -> Identity:
        """Return the caller who has the API key. The comparison takes constant time."""
        api_key = credentials.api_key
        digest = _digest(api_key)
        found = [user for known, user in self._users if hmac.compare_digest(known, digest)]
        if not api_key or not found:
            problem = "the API key is not known" if api_key else f"an API key is required in {API_KEY_HEADER}"
            raise AuthError(problem, challenge=_KEY_CHALLENGE, presented=bool(api_key))
        return Identity(found[0])

    def schemes(self) -> Mapping[str, Any]:
        """Return the security scheme for API keys in a header."""
        return {"apiKey": {"apiKeySecurityScheme": {"location": "header", "name": API_KEY_HEADER}}}


class CombinedAuthenticator(Authenticator):
    """Accepts callers that any of several authenticators accepts.

    If all reject a caller, one error is raised. Errors about insufficient permissions are preferred, then errors about
    credentials that were present. The challenge of the error lists the schemes of all authenticators.
    """

    def __init__(self, *authenticators: Authenticator) -> None:
        self._authenticators = authenticators

    async def authenticate(self, credentials: Credentials) -> Identity:
        """Return the identity from the first authenticator that accepts the credentials."""
        errors: list[AuthError] = []
        unavailable: OverloadedError | None = None
        for authenticator in self._authenticators:
            try:
                return await authenticator.authenticate(credentials)
            except AuthError as error:
                errors.append(error)
            except OverloadedError as error:
                unavailable = unavailable or error
        if unavailable is not None:
            raise unavailable  # another attempt may succeed
        first = min(errors, key=lambda error: (not error.forbidden, not error.presented))
        first.challenge = ", ".join(dict.fromkeys(error.challenge for error in errors))
        raise first

    def schemes(self) -> Mapping[str, Any]:
        """Return the security schemes of all authenticators."""
        return {name: scheme for each in self._authenticators for name, scheme in each.schemes().items()}

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Run the background work of all authenticators."""
        async with AsyncExitStack() as stack:
            for each in self._authenticators:
                await stack.enter_async_context(each.running())
            yield


class LoggingAuthenticator(Authenticator):
    """Logs each rejected caller and the reason, without credentials (A2A 1.0, section 13.1)."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    async def authenticate(self, credentials: Credentials) -> Identity:
        """Return the identity from the wrapped authenticator, or log its error and raise it again."""
        try:
            return await self._authenticator.authenticate(credentials)
        except AuthError as error:
            logger.warning("refused a caller (%d): %s", error.http_status, error)
            OBSERVER.get().error_occurred(error)
            raise

    def schemes(self) -> Mapping[str, Any]:
        """Return the security schemes of the wrapped authenticator."""
        return self._authenticator.schemes()

    def running(self) -> AbstractAsyncContextManager[None]:
        """Run the background work of the wrapped authenticator."""
        return self._authenticator.running()


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "replace")).digest()

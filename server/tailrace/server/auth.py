"""Who may ask: how a caller is known, declared in the card and checked on every request of every binding.

An `Authenticator` looks at what a request carries and says who it is; nothing else in the server ever looks at
credentials. API keys are here and bearer tokens (JWT) in `tailrace.server.bearer`; anything else is a class of one's own.
"""

import hmac
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from tailrace.server.limits import OverloadedError
from tailrace.server.observability.observer import OBSERVER
from tailrace.server.settings import Settings
from tailrace.wrappers import ConfigurationError, TailraceError

API_KEY_HEADER = "X-API-Key"
API_KEY_QUERY = "api_key"
TOKEN_QUERY = "access_token"  # noqa: S105 — the name of a parameter
COOKIE = "tailrace_token"

_KEY_CHALLENGE = f'ApiKey realm="tailrace", header="{API_KEY_HEADER}"'

logger = logging.getLogger("tailrace.server")


@dataclass(frozen=True)
class Credentials:
    """What a request carries, whatever binding it came by.

    A cookie, which a browser adds to what any page sends, and an address, which stands in links and logs, let a caller
    read and nothing more: `bearer` and `api_key` find them where ``reads`` is true alone. An authenticator that looks
    at the cookie header by itself has to do the same, or else guard against forged requests in another way.

    Attributes:
        headers: By lower-case name.
        query: The parameters of the address, for clients that can set no header (a browser's EventSource).
        reads: The request can change nothing: its method is GET or HEAD (RFC 9110, section 9.2.1).
    """

    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    query: Mapping[str, str] = field(default_factory=dict[str, str])
    reads: bool = False

    @property
    def bearer(self) -> str:
        """A bearer token: of the Authorization header, the query ``access_token``, or the cookie; else empty."""
        scheme, _, token = self.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return token.strip()
        return self._beside_headers(TOKEN_QUERY)

    @property
    def api_key(self) -> str:
        """An API key: of the header ``X-API-Key``, the query ``api_key``, or the cookie; else empty."""
        return self.headers.get(API_KEY_HEADER.lower(), "") or self._beside_headers(API_KEY_QUERY)

    def _beside_headers(self, parameter: str) -> str:
        if not self.reads:
            return ""
        return self.query.get(parameter, "") or _cookie(self.headers.get("cookie", ""), COOKIE)


def _cookie(header: str, name: str) -> str:
    """The value of a cookie; empty where there is none.

    The header is a list of pairs (RFC 6265, section 5.4), and what one of them holds is nobody else's business: other
    programs of the host put there what the standard's grammar has no room for.
    """
    for pair in header.split(";"):
        given, _, value = pair.strip().partition("=")
        if given.rstrip() == name:
            value = value.strip()
            is_quoted = len(value) > 1 and value[0] == value[-1] == '"'
            return value[1:-1] if is_quoted else value
    return ""


@dataclass(frozen=True)
class Identity:
    """An authenticated caller.

    Attributes:
        user: The name under which its tasks are kept; empty for anybody.
        claims: What else is known of it, for a handler or an extended card.
    """

    user: str = ""
    claims: Mapping[str, Any] = field(default_factory=dict[str, Any])


class AuthError(TailraceError):
    """A request that is not let in.

    Args:
        message: What the caller is told; never a secret.
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


class Authenticator(ABC):
    """Says who asks."""

    @abstractmethod
    async def authenticate(self, credentials: Credentials) -> Identity:
        """The caller that the credentials are of.

        Raises:
            AuthError: They are missing, wrong, or not enough.
            OverloadedError: Nobody can say at present, which is not the caller's fault.
        """

    @abstractmethod
    def schemes(self) -> Mapping[str, Any]:
        """The security schemes for the card, by name, as A2A 1.0 writes them; any one of them lets a caller in."""

    def running(self) -> AbstractAsyncContextManager[None]:
        """What goes on besides while the server runs, which is as long as the block; nothing, unless overridden."""
        return nullcontext()


class Anonymous(Authenticator):
    """Lets everybody in, as nobody in particular."""

    async def authenticate(self, credentials: Credentials) -> Identity:
        """Nobody in particular."""
        return Identity()

    def schemes(self) -> Mapping[str, Any]:
        """None."""
        return {}


class ApiKeys(Authenticator):
    """Knows callers by a key.

    Args:
        keys: Each caller's key, by the caller's name; several, while one takes another's place. They are kept as
            digests.

    Raises:
        ConfigurationError: There is none, a name or a key is empty, or two callers have the same key.
    """

    def __init__(self, keys: Mapping[str, str | Sequence[str]]) -> None:
        users: dict[bytes, str] = {}
        for user, given in keys.items():
            for key in (given,) if isinstance(given, str) else given:
                if not user:
                    # Its tasks would be those of nobody in particular.
                    raise ConfigurationError("TAILRACE_CALLER_KEYS: a name is empty; write NAME:KEY")
                if not key:
                    raise ConfigurationError(f"TAILRACE_CALLER_KEYS: the key of {user!r} is empty")
                other = users.setdefault(_digest(key), user)
                if other != user:
                    raise ConfigurationError(
                        f"TAILRACE_CALLER_KEYS: {other!r} and {user!r} have the same key, which then tells nobody"
                    )
        if not users:
            raise ConfigurationError("TAILRACE_CALLER_KEYS: at least one NAME:KEY is needed")
        self._users = list(users.items())

    async def authenticate(self, credentials: Credentials) -> Identity:
        """The caller whose key it is; all keys are compared, so that time tells nothing."""
        given = credentials.api_key
        digest = _digest(given)
        found = [user for known, user in self._users if hmac.compare_digest(known, digest)]
        if not given or not found:
            what = "the API key is not known" if given else f"an API key is required in {API_KEY_HEADER}"
            raise AuthError(what, challenge=_KEY_CHALLENGE, presented=bool(given))
        return Identity(found[0])

    def schemes(self) -> Mapping[str, Any]:
        """An API key in the header."""
        return {"apiKey": {"apiKeySecurityScheme": {"location": "header", "name": API_KEY_HEADER}}}


class AnyOf(Authenticator):
    """Lets in whom any one of several lets in.

    Args:
        authenticators: At least one. The error is that of the first that knows the caller, else of the first whose
            credentials were presented, else of the first; its challenge names all ways.
    """

    def __init__(self, *authenticators: Authenticator) -> None:
        self._authenticators = authenticators

    async def authenticate(self, credentials: Credentials) -> Identity:
        """The caller as the first one that knows it says."""
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
            raise unavailable  # it may be that this one would let the caller in
        first = min(errors, key=lambda error: (not error.forbidden, not error.presented))
        first.challenge = ", ".join(dict.fromkeys(error.challenge for error in errors))
        raise first

    def schemes(self) -> Mapping[str, Any]:
        """Those of all."""
        return {name: scheme for each in self._authenticators for name, scheme in each.schemes().items()}

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """What goes on besides for each."""
        async with AsyncExitStack() as stack:
            for each in self._authenticators:
                await stack.enter_async_context(each.running())
            yield


class Reporting(Authenticator):
    """Tells the log whom another one does not let in, and why; never with what (A2A 1.0, section 13.1).

    Args:
        authenticator: The other one.
    """

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    async def authenticate(self, credentials: Credentials) -> Identity:
        """As the other one says."""
        try:
            return await self._authenticator.authenticate(credentials)
        except AuthError as error:
            logger.warning("a caller was not let in (%d): %s", error.http_status, error)
            OBSERVER.get().refused(error)
            raise

    def schemes(self) -> Mapping[str, Any]:
        """As the other one says."""
        return self._authenticator.schemes()

    def running(self) -> AbstractAsyncContextManager[None]:
        """What goes on besides for the other one."""
        return self._authenticator.running()


def create_authenticator(settings: Settings) -> Authenticator:
    """What the settings say: API keys, bearer tokens, either of them, or everybody.

    Raises:
        ConfigurationError: They cannot be used.
    """
    known: list[Authenticator] = []
    if settings.caller_keys is not None:
        known.append(ApiKeys(_read_caller_keys(settings.caller_keys.get_secret_value())))
    if settings.caller_jwks_url:
        # Here, since it brings what checks signatures with it, which nobody else needs.
        from tailrace.server.bearer import JwtBearer

        known.append(
            JwtBearer(
                settings.caller_jwks_url,
                issuer=settings.caller_jwt_issuer,
                audience=settings.caller_jwt_audience,
            )
        )
    if not known:
        return Anonymous()
    return known[0] if len(known) == 1 else AnyOf(*known)


def _read_caller_keys(setting: str) -> dict[str, list[str]]:
    """The keys by name, of ``NAME:KEY,NAME:KEY``; a name may come several times, so that its key can be replaced.

    Raises:
        ConfigurationError: An entry is no such pair. The message does not show it: it may be a key.
    """
    keys: dict[str, list[str]] = {}
    entries = setting.split(",")
    for number, entry in enumerate(entries, 1):
        user, colon, key = (each.strip() for each in entry.partition(":"))
        if not (user and colon and key):
            lacks = (
                "a name before the colon" if colon and not user else "a key" if colon else "the form NAME:KEY"
            )
            raise ConfigurationError(f"TAILRACE_CALLER_KEYS: entry {number} of {len(entries)} lacks {lacks}")
        keys.setdefault(user, []).append(key)
    return keys


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "replace")).digest()

"""Fetches and caches the public keys of a token issuer (a JWK Set, RFC 7517).

If the issuer is unavailable, slow or returns an invalid set, cached keys are used until they reach `MAX_AGE`.

==============  ======  =============================================================================================
constant        value   meaning
==============  ======  =============================================================================================
`TIMEOUT`       5 s     maximum duration of one fetch, from connecting to the last byte
`FRESH`         5 min   age after which keys are fetched again; the cached keys are used in the meantime
`MAX_AGE`       1 h     age at which keys expire, so that keys that the issuer has withdrawn are rejected
`PAUSE`         5 s     pause after a failed fetch, and between fetches for unknown key ids
==============  ======  =============================================================================================
"""

import json
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast
from urllib.parse import urlsplit

import aiohttp
import anyio
import jwt
from anyio.abc import TaskGroup

from tailrace.server.runtime.limits import OverloadedError
from tailrace.wrappers import ConfigurationError
from tailrace.wrappers.concurrency.worker_thread import json_text_cost, run_bounded

TIMEOUT = 5.0
FRESH = 300.0
MAX_AGE = 3600.0
PAUSE = 5.0

_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_ALGORITHMS_BY_TYPE: Mapping[tuple[object, object], tuple[str, ...]] = {
    ("RSA", None): _RSA,
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
    ("OKP", "Ed448"): ("EdDSA",),
}
"""The algorithms by type and curve of a key (RFC 7518, section 3.1; RFC 8037, section 3.1)."""

ALGORITHMS = (*_RSA, "ES256", "ES384", "ES512", "EdDSA")
"""Accepted signature algorithms. HS256 is not among them: its secret would be the public key."""

SigningKeys = Mapping[tuple[str, str], jwt.PyJWK]
"""Keys by id and algorithm. A key with the member ``alg`` is used only for this algorithm (RFC 8725, section 3.1)."""

_MAX_BYTES = 1024 * 1024  # maximum size of a key set; a large set has about 10,000 bytes

logger = logging.getLogger("tailrace.server")


class UnusableKeysError(Exception):
    """The response of an issuer contains no keys for signatures."""


def read_keys(body: bytes) -> SigningKeys:
    """Return the signature keys of a JWK Set by key id and algorithm.

    A key without ``alg`` is returned once for each algorithm of its type. Encryption keys, keys of unknown types and keys without
    an id are ignored (RFC 7517, section 5). Of several keys with the same id and algorithm, the first is returned.

    Raises:
        UnusableKeysError: The body is not a JWK Set, or the set has no signature key.
    """
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        raise UnusableKeysError("the response is not JSON") from None
    members: Any = cast("dict[str, Any]", value).get("keys") if isinstance(value, dict) else None
    if not isinstance(members, list):
        raise UnusableKeysError("the response is not a JWK Set")
    found: dict[tuple[str, str], jwt.PyJWK] = {}
    for member in cast("list[Any]", members):
        for key in _read_member(member):
            found.setdefault((cast("str", key.key_id), key.algorithm_name), key)
    if not found:
        raise UnusableKeysError("the response has no key for signatures")
    return found


def _read_member(member: Any) -> Iterator[jwt.PyJWK]:
    """Yield the key in a member of a JWK Set, once for each of its algorithms."""
    if not isinstance(member, dict):
        return
    fields = cast("dict[str, Any]", member)
    kid = fields.get("kid")
    if not isinstance(kid, str) or not kid or not _verifies(fields):
        return
    for algorithm in _algorithms_of(fields):
        try:
            yield jwt.PyJWK(fields, algorithm)
        except (jwt.PyJWTError, TypeError, ValueError, LookupError, AttributeError):
            return  # PyJWT raises errors of many types for invalid keys


def _verifies(fields: Mapping[str, Any]) -> bool:
    """Return whether a key is for signatures (RFC 7517, sections 4.2 and 4.3)."""
    operations: object = fields.get("key_ops", ["verify"])
    return fields.get("use", "sig") == "sig" and isinstance(operations, list) and "verify" in operations


def _algorithms_of(fields: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the algorithms of a key: its ``alg`` (RFC 7517, section 4.4), or all algorithms of its type."""
    kind, curve = fields.get("kty"), fields.get("crv")
    if not isinstance(kind, str) or not isinstance(curve, str | None):
        return ()
    fitting = _ALGORITHMS_BY_TYPE.get((kind, None if kind == "RSA" else curve), ())
    return tuple(each for each in fitting if fields.get("alg", each) == each)


class IssuerKeys:
    """The keys of one issuer.

    Args:
        url: The URL of the JWK Set. Redirects are not followed.
        timeout: The maximum duration of one fetch in seconds.
        clock: A function that returns the time in seconds.

    Raises:
        ConfigurationError: The URL is not an HTTP URL.
    """

    def __init__(
        self, url: str, *, timeout: float = TIMEOUT, clock: Callable[[], float] = time.monotonic
    ) -> None:
        try:
            parts = urlsplit(url)
            is_valid = parts.scheme in ("http", "https") and parts.hostname
        except ValueError:
            is_valid = False
        if not is_valid:
            raise ConfigurationError("TAILRACE_CALLER_JWT: jwks_url: must be http://… or https://…")
        self._url = url
        self._timeout = timeout
        self._clock = clock
        self._keys: SigningKeys = {}
        self._fetched_at = -math.inf
        self._failing_until = -math.inf
        self._unknown_until = -math.inf
        self._fetches = 0  # the number of fetches that ended, successfully or not
        self._running_fetch: anyio.Event | None = None
        self._tasks: TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Fetch keys in background tasks during the block. Outside the block, `find` fetches them."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                yield
            finally:
                if self._tasks is tasks:
                    self._tasks = None
                tasks.cancel_scope.cancel()

    async def find(self, kid: str, algorithm: str) -> jwt.PyJWK | None:
        """Return the key with an id and an algorithm; None if the issuer publishes no such key.

        An unknown key id causes a fetch, but at most once in `PAUSE` seconds, so that clients cannot cause load with invented
        ids. While `running` is active, a cancellation does not end the fetch.

        Raises:
            OverloadedError: The issuer is unavailable. The error has the time to wait.
        """
        before = self._fetches
        age = self._age
        if age > MAX_AGE:
            await self._fetch()
            if self._age > MAX_AGE:
                raise self._unavailable()
        elif age > FRESH:
            await self._renew()
        if (kid, algorithm) in self._keys:
            return self._keys[kid, algorithm]
        if self._fetches == before and self._clock() >= self._unknown_until:
            await self._fetch()
        if self._fetches != before:
            self._unknown_until = self._clock() + PAUSE
        if (kid, algorithm) in self._keys:
            return self._keys[kid, algorithm]
        if self._is_failing:
            raise self._unavailable()
        return None

    @property
    def _age(self) -> float:
        return self._clock() - self._fetched_at

    @property
    def _is_failing(self) -> bool:
        return self._clock() < self._failing_until

    def _unavailable(self) -> OverloadedError:
        pause = max(self._failing_until - self._clock(), 1.0)
        return OverloadedError(
            "the keys of the token issuer cannot be fetched at present; try again later", retry_after=pause
        )

    async def _renew(self) -> None:
        """Fetch the keys again, if possible in the background."""
        if self._tasks is None:
            if self._running_fetch is None:
                await self._fetch()
        elif self._running_fetch is None and not self._is_failing:
            self._tasks.start_soon(self._run_fetch, self._begin_fetch())

    async def _fetch(self) -> None:
        """Wait for the current or a new fetch. During the pause after a failure, return immediately."""
        before = self._fetches
        while self._fetches == before:
            if self._running_fetch is not None:
                await self._running_fetch.wait()  # if the fetch is cancelled, the loop starts another fetch
            elif self._is_failing:
                return
            elif self._tasks is not None:
                self._tasks.start_soon(self._run_fetch, self._begin_fetch())
            else:
                await self._run_fetch(self._begin_fetch())

    def _begin_fetch(self) -> anyio.Event:
        self._running_fetch = anyio.Event()
        return self._running_fetch

    async def _run_fetch(self, ended: anyio.Event) -> None:
        try:
            with anyio.fail_after(self._timeout):
                body = await self._load()
                self._keys = await run_bounded(json_text_cost(body), read_keys, body)
            self._fetched_at = self._clock()
            self._failing_until = -math.inf
            self._fetches += 1
        except Exception as error:  # cached keys remain in use
            self._failing_until = self._clock() + PAUSE
            self._fetches += 1
            # The messages of libraries may contain the complete URL.
            reason = str(error) if isinstance(error, UnusableKeysError) else type(error).__name__
            logger.warning(
                "the keys of the token issuer at %s cannot be fetched: %s",
                urlsplit(self._url).hostname,
                reason,
            )
        finally:
            if self._running_fetch is ended:
                self._running_fetch = None
            ended.set()

    async def _load(self) -> bytes:
        body = bytearray()
        async with (
            aiohttp.ClientSession(
                trust_env=True,  # use the proxies of the environment
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),  # `_run_fetch` sets the timeout
                headers={"User-Agent": "tailrace", "Accept": "application/jwk-set+json, application/json"},
            ) as http,
            http.get(self._url, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise UnusableKeysError(f"status {response.status}")
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > _MAX_BYTES:
                    raise UnusableKeysError(f"the response is larger than {_MAX_BYTES} bytes")
        return bytes(body)

"""The public keys of an issuer of tokens (a JWK Set, RFC 7517): fetched once for all who wait, and kept for a while.

An issuer that is away, slow, or answers nonsense is nobody's fault here: keys that are known go on being used for
`MAX_AGE`, and only where none are known is a caller told to come back later.

==============  ======  =============================================================================================
what            value   what it bounds
==============  ======  =============================================================================================
`TIMEOUT`       5 s     one fetch, from the first byte to the last; whoever waits for it waits no longer
`FRESH`         5 min   how old keys may be before they are fetched anew, while they go on being used
`MAX_AGE`       1 h     how old keys may be at all: how long those that are withdrawn count while the issuer is away
`PAUSE`         5 s     between fetches after one that failed, and between those for keys that nobody knows
==============  ======  =============================================================================================
"""

import json
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast
from urllib.parse import urlsplit

import aiohttp
import anyio
import jwt
from anyio.abc import TaskGroup

from tailrace.server.limits import OverloadedError
from tailrace.wrappers import ConfigurationError

TIMEOUT = 5.0
FRESH = 300.0
MAX_AGE = 3600.0
PAUSE = 5.0

ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
"""How a token may be signed: a secret of both sides (HS256) makes no sense with published keys."""

_MAX_BYTES = 1024 * 1024  # of a set of keys; large ones have some ten thousand

logger = logging.getLogger("tailrace.server")


class UnusableKeysError(Exception):
    """What an issuer answers is no set of keys that signatures can be checked with."""


def read_keys(body: bytes) -> dict[str, jwt.PyJWK]:
    """The keys of a JWK Set that signatures can be checked with, by their ids.

    Members that are no such key (for encryption, of a type that is not known, without an id) are passed over, as
    RFC 7517, section 5, wants it; of two with one id the first counts.

    Args:
        body: The set, in JSON.

    Raises:
        UnusableKeysError: It is no set, or none of its members is such a key.
    """
    try:
        value: Any = json.loads(body)
    except (ValueError, RecursionError):
        raise UnusableKeysError("the answer is not JSON") from None
    members: Any = cast("dict[str, Any]", value).get("keys") if isinstance(value, dict) else None
    if not isinstance(members, list):
        raise UnusableKeysError("the answer is no JWK Set")
    found: dict[str, jwt.PyJWK] = {}
    for member in cast("list[Any]", members):
        if (key := _read_key(member)) is not None and key.key_id is not None:
            found.setdefault(key.key_id, key)
    if not found:
        raise UnusableKeysError("the answer holds no key for signatures")
    return found


def _read_key(member: Any) -> jwt.PyJWK | None:
    if not isinstance(member, dict):
        return None
    fields = cast("dict[str, Any]", member)
    kid, use = fields.get("kid"), fields.get("use", "sig")
    if not isinstance(kid, str) or not kid or use != "sig":
        return None
    try:
        key = jwt.PyJWK(fields)
    except (jwt.PyJWTError, TypeError, ValueError, LookupError, AttributeError):
        return None  # the library trips over members of a wrong type in many ways
    return key if key.algorithm_name in ALGORITHMS else None


class IssuerKeys:
    """The keys of one issuer.

    While `running`, keys that grow old are fetched behind the back of whoever asks; else one of those who ask does.

    Args:
        url: Where the set is; redirects are not followed.
        timeout: Seconds for one fetch.
        clock: Tells the seconds.

    Raises:
        ConfigurationError: The address is not one of HTTP.
    """

    def __init__(
        self, url: str, *, timeout: float = TIMEOUT, clock: Callable[[], float] = time.monotonic
    ) -> None:
        try:
            parts = urlsplit(url)
            known = parts.scheme in ("http", "https") and parts.hostname
        except ValueError:
            known = False
        if not known:
            raise ConfigurationError("TAILRACE_CALLER_JWKS_URL: must be http://… or https://…")
        self._url = url
        self._timeout = timeout
        self._clock = clock
        self._keys: Mapping[str, jwt.PyJWK] = {}
        self._fetched_at = -math.inf
        self._failing_until = -math.inf
        self._unknown_until = -math.inf
        self._fetches = 0  # that came to an end, good or bad
        self._under_way: anyio.Event | None = None
        self._tasks: TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Fetch in a task of our own while the block runs: no caller waits who need not, none takes a fetch with it."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                yield
            finally:
                if self._tasks is tasks:
                    self._tasks = None
                tasks.cancel_scope.cancel()

    async def find(self, kid: str) -> jwt.PyJWK | None:
        """The key of this id; None when the issuer publishes none of that id.

        Keys that are not known are looked for with one fetch, at most every `PAUSE` seconds, so that new keys are
        found and invented ones cost nothing. Cancelling ends the wait; others who wait for the same fetch go on.

        Raises:
            OverloadedError: Nobody can say, because the issuer does not answer; says when to come back.
        """
        before = self._fetches
        age = self._age
        if age > MAX_AGE:
            await self._fetch()
            if self._age > MAX_AGE:
                raise self._unavailable()
        elif age > FRESH:
            await self._renew()
        if kid in self._keys:
            return self._keys[kid]
        if self._fetches == before and self._clock() >= self._unknown_until:
            await self._fetch()
        if self._fetches != before:
            self._unknown_until = self._clock() + PAUSE
        if kid in self._keys:
            return self._keys[kid]
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
            "the keys of the tokens' issuer cannot be fetched at present; try again later", retry_after=pause
        )

    async def _renew(self) -> None:
        """Have the keys fetched; waits for it only where nobody else can do it."""
        if self._tasks is None:
            if self._under_way is None:
                await self._fetch()
        elif self._under_way is None and not self._is_failing:
            self._tasks.start_soon(self._fly, self._take_off())

    async def _fetch(self) -> None:
        """Wait until a fetch has come to an end, one's own or another's; does nothing in the pause after a failure."""
        before = self._fetches
        while self._fetches == before:
            if self._under_way is not None:
                await self._under_way.wait()  # if it was cancelled, the next one takes its place
            elif self._is_failing:
                return
            elif self._tasks is not None:
                self._tasks.start_soon(self._fly, self._take_off())
            else:
                await self._fly(self._take_off())

    def _take_off(self) -> anyio.Event:
        self._under_way = anyio.Event()
        return self._under_way

    async def _fly(self, landed: anyio.Event) -> None:
        try:
            with anyio.fail_after(self._timeout):
                self._keys = read_keys(await self._load())
            self._fetched_at = self._clock()
            self._failing_until = -math.inf
            self._fetches += 1
        except (
            Exception
        ) as error:  # whatever it is: there are no keys, and the server that this runs in goes on
            self._failing_until = self._clock() + PAUSE
            self._fetches += 1
            # Of errors that are not ours the name alone: the text of some holds the whole address.
            reason = str(error) if isinstance(error, UnusableKeysError) else type(error).__name__
            logger.warning(
                "the keys of the tokens' issuer at %s cannot be fetched: %s",
                urlsplit(self._url).hostname,
                reason,
            )
        finally:
            if self._under_way is landed:
                self._under_way = None
            landed.set()

    async def _load(self) -> bytes:
        body = bytearray()
        async with (
            aiohttp.ClientSession(
                trust_env=True,  # the way out may be a proxy
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),  # set around all of it
                headers={"User-Agent": "tailrace", "Accept": "application/jwk-set+json, application/json"},
            ) as http,
            http.get(self._url, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise UnusableKeysError(f"status {response.status}")
            async for piece in response.content.iter_any():
                body += piece
                if len(body) > _MAX_BYTES:
                    raise UnusableKeysError(f"the answer is larger than {_MAX_BYTES} bytes")
        return bytes(body)

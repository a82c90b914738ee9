"""Posting notifications to webhooks (A2A 1.0, section 4.3.3): one request a try, and when there is another try.

What fails for a reason that may pass (no connection, no answer in time, 408, 425, 429, 5xx) is tried again, with growing
pauses; whatever else a webhook answers is its last word on that notification. Redirects are not followed.
"""

import logging
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from io import BytesIO
from weakref import WeakValueDictionary

import aiohttp
import anyio
from yarl import URL

from tailrace.server.observability import NO_OBSERVER, Observer
from tailrace.server.webhooks import ForbiddenAddress, WebhookGuard
from tailrace.streaming.a2a.errors import InvalidParamsError
from tailrace.streaming.a2a.requests import TaskPushNotificationConfig

logger = logging.getLogger("tailrace.server")

EVENT_HEADER = "X-Tailrace-Event"
"""Names a notification: ``TASK/NUMBER`` of the event; ``TASK/NUMBER/task`` for the whole task at the end. The same
notification that comes twice has the same name."""

TOKEN_HEADER = "X-A2A-Notification-Token"  # noqa: S105 — the name of a header

_MAX_REQUESTS_PER_ORIGIN = 64  # open at a time; the webhooks of other hosts are not held up by one that hangs
_MAX_RETRY_AFTER = 120.0  # seconds that a webhook may ask for
_RETRIED = frozenset({408, 425, 429})


class Stopping(Exception):
    """The server stops, so there is no further try; what was not taken is to be told after the next start."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a try failed; the reason is for the log and holds nothing secret."""

    reason: str
    may_pass: bool
    retry_after: float | None = None


class WebhookClient:
    """Posts notifications.

    Args:
        guard: Says which webhooks may be called.
        timeout: Seconds that a webhook has for one answer.
        attempts: How often a notification is tried before it is given up.
        first_pause: Seconds before the second try; doubled for each further one, and shortened at random by up to half.
        longest_pause: The bound of that.
        observer: Told of notifications.

    Attributes:
        guard: As given.
    """

    def __init__(
        self,
        guard: WebhookGuard,
        *,
        timeout: float = 15.0,
        attempts: int = 8,
        first_pause: float = 0.5,
        longest_pause: float = 30.0,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        self._observer = observer
        self.guard = guard
        self._timeout = timeout
        self._attempts = attempts
        self._first_pause = first_pause
        self._longest_pause = longest_pause
        self._limiters: WeakValueDictionary[URL, anyio.CapacityLimiter] = WeakValueDictionary()
        self._stopping = anyio.Event()
        self._http: aiohttp.ClientSession

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Be ready to post while the block runs."""
        self._stopping = anyio.Event()
        connector = aiohttp.TCPConnector(
            resolver=self.guard,
            use_dns_cache=False,  # every connection goes to an address that was checked for it
            limit=0,
            force_close=True,
        )
        async with aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),  # set around each try, all of it
            headers={"User-Agent": "tailrace"},
        ) as self._http:
            yield

    def stop(self) -> None:
        """No more tries after those under way: who waits for the next one gets `Stopping`."""
        self._stopping.set()

    async def pause(self, seconds: float) -> None:
        """Wait.

        Raises:
            Stopping: The server stops.
        """
        with anyio.move_on_after(seconds):
            await self._stopping.wait()
        if self._stopping.is_set():
            raise Stopping

    async def tell(
        self,
        config: TaskPushNotificationConfig,
        name: str,
        body: bytes,
        *,
        media_type: str,
        once: bool = False,
    ) -> bool:
        """Post a notification until the webhook takes it or it is given up, which is logged.

        Args:
            config: The webhook.
            name: The notification's name, for `EVENT_HEADER`.
            body: Its body.
            media_type: What the body is.
            once: No second try.

        Returns:
            Whether the webhook took it.

        Raises:
            Stopping: The server stops before another try.
        """
        attempts = 1 if once else self._attempts
        headers = {"Content-Type": media_type, EVENT_HEADER: name, **_secrets(config)}
        for attempt in range(1, attempts + 1):
            failure = await self._post(config.url, body, headers)
            if failure is None:
                self._observer.webhook_told(taken=True)
                return True
            self._observer.webhook_tried()
            if attempt == attempts or not failure.may_pass:
                logger.warning(
                    "webhook %r of task %s (%s): event %s is given up after try %d of %d: %s",
                    config.id,
                    config.task_id,
                    _origin(config.url),
                    name.removeprefix(f"{config.task_id}/"),
                    attempt,
                    attempts,
                    failure.reason,
                )
                self._observer.webhook_told(taken=False)
                break
            await self.pause(self._pause_after(attempt, failure.retry_after))
        return False

    def _pause_after(self, attempt: int, asked: float | None) -> float:
        if asked is not None:
            return min(asked, _MAX_RETRY_AFTER)
        # At random, so that many webhooks of a host that comes back do not all come back at once.
        longest = min(self._first_pause * 2 ** min(attempt - 1, 32), self._longest_pause)
        return longest * (1 - 0.5 * random.random())  # noqa: S311

    async def _post(self, address: str, body: bytes, headers: dict[str, str]) -> _Failure | None:
        """One try; None when the webhook took it."""
        try:
            url = self.guard.check_url(address)
        except InvalidParamsError:
            return _Failure("its address may not be called", may_pass=False)
        try:
            async with self._limiter(url.origin()):
                with anyio.fail_after(self._timeout):
                    status, retry_after = await self._request(url, body, headers)
        except ForbiddenAddress as error:
            return _Failure(str(error), may_pass=False)
        except ValueError as error:  # an address or a header that cannot be sent
            return _Failure(type(error).__name__, may_pass=False)
        except (aiohttp.ClientError, OSError) as error:
            # Its name alone: the text of some holds the whole address, which may hold a secret.
            return _Failure(type(error).__name__, may_pass=True)
        if 200 <= status < 300:
            return None
        may_pass = status in _RETRIED or status >= 500
        return _Failure(f"status {status}", may_pass, retry_after)

    async def _request(self, url: URL, body: bytes, headers: dict[str, str]) -> tuple[int, float | None]:
        # As a file: a large body is then written piece by piece, and nobody else waits for all of it. The answer's
        # own body is not read.
        async with self._http.post(
            url, data=BytesIO(body), headers=headers, allow_redirects=False
        ) as response:
            return response.status, _retry_after(response.headers.get("Retry-After", ""))

    def _limiter(self, origin: URL) -> anyio.CapacityLimiter:
        limiter = self._limiters.get(origin)
        if limiter is None:
            limiter = self._limiters[origin] = anyio.CapacityLimiter(_MAX_REQUESTS_PER_ORIGIN)
        return limiter


def _secrets(config: TaskPushNotificationConfig) -> dict[str, str]:
    """How a webhook knows who calls. A scheme without credentials says nothing that could be sent."""
    headers: dict[str, str] = {}
    if config.token:
        headers[TOKEN_HEADER] = config.token
    if config.authentication is not None and config.authentication.credentials:
        headers["Authorization"] = f"{config.authentication.scheme} {config.authentication.credentials}"
    return headers


def _retry_after(value: str) -> float | None:
    """Seconds that a webhook asks for: a number, or a date (RFC 9110, section 10.2.3)."""
    if value.isascii() and value.isdigit() and len(value) < 10:
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def _origin(url: str) -> str:
    """What of an address may be logged: its path and query may hold secrets."""
    try:
        return str(URL(url).origin())
    except ValueError:
        return "?"

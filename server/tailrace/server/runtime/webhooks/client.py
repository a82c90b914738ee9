"""The HTTP client that posts notifications to webhooks (A2A 1.0, section 4.3.3).

After temporary failures (no connection, a timeout, 408, 425, 429, 5xx), it retries with increasing pauses. Other error statuses
are final. It does not follow redirects.
"""

import logging
import random
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread

from tailrace.server.runtime.limits import user_of
from tailrace.server.runtime.observer import NO_OBSERVER, Observer
from tailrace.server.runtime.upstream_gate import UpstreamGate
from tailrace.server.runtime.webhooks.addresses import ForbiddenAddress, WebhookGuard, parse_url
from tailrace.server.runtime.webhooks.signatures import Signature
from tailrace.streaming.a2a.errors import InvalidParamsError
from tailrace.streaming.a2a.requests import TaskPushNotificationConfig
from tailrace.wrappers.concurrency.worker_thread import run_bounded, text_cost

try:
    import resource
except ImportError:  # Windows
    resource = None

if TYPE_CHECKING:
    from yarl import URL

    from tailrace.server.runtime.webhooks.session import WebhookSession

logger = logging.getLogger("tailrace.server")

EVENT_HEADER = "X-Tailrace-Event"
"""The header by which a webhook detects a repeated notification. The value is ``TASK/NUMBER`` for an event, and
``TASK/NUMBER/task`` for the complete task after the last event."""

TOKEN_HEADER = "X-A2A-Notification-Token"  # noqa: S105 — the name of a header

# Maximum number of concurrent requests of one caller to one origin, but never more than half of ``max_requests``, so that a
# hanging host does not delay other webhooks.
_MAX_REQUESTS_PER_ORIGIN = 64
_MAX_RETRY_AFTER = 120.0  # maximum seconds of a webhook's Retry-After
_RETRIED = frozenset({408, 425, 429})


class Stopping(Exception):
    """The server is stopping. The notification is delivered after the next start."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """The failure of an attempt. The reason contains no secrets."""

    reason: str
    may_pass: bool
    retry_after: float | None = None


class WebhookClient:
    """Posts notifications.

    Args:
        timeout: Maximum duration of one request in seconds.
        attempts: Maximum number of attempts for one notification.
        first_pause: Seconds before the second attempt. The pause doubles before each further attempt, and is randomly shortened
            by up to half.
        longest_pause: Maximum pause in seconds.
        max_requests: Maximum number of concurrent requests. One authenticated caller can have three quarters of them. None for an
            eighth of the process's file descriptor limit, but at most 128.
        observer: Receives failed attempts, and the outcome of each notification.
    """

    def __init__(
        self,
        guard: WebhookGuard,
        *,
        timeout: float = 15.0,
        attempts: int = 8,
        first_pause: float = 0.5,
        longest_pause: float = 30.0,
        max_requests: int | None = None,
        observer: Observer = NO_OBSERVER,
    ) -> None:
        self._observer = observer
        self.guard = guard
        self._timeout = timeout
        self._attempts = attempts
        self._first_pause = first_pause
        self._longest_pause = longest_pause
        max_requests = max_requests or _default_max_requests()
        self._requests = UpstreamGate(max_requests, sys.maxsize)
        self._max_per_origin = min(_MAX_REQUESTS_PER_ORIGIN, max(1, max_requests // 2))
        self._limiters: WeakValueDictionary[tuple[str, URL], anyio.CapacityLimiter] = WeakValueDictionary()
        self._stopping = anyio.Event()
        self._session: WebhookSession | None = None  # opened for the first request

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Allow `send` during the block, and close all connections at its end."""
        self._stopping = anyio.Event()
        try:
            yield
        finally:
            session, self._session = self._session, None
            if session is not None:
                await session.aclose()

    def stop(self) -> None:
        """Let `pause`, and `send` before a further attempt, raise `Stopping`. Attempts in progress continue."""
        self._stopping.set()

    async def pause(self, seconds: float) -> None:
        """Wait before the next attempt.

        Raises:
            Stopping: The server is stopping.
        """
        with anyio.move_on_after(seconds):
            await self._stopping.wait()
        if self._stopping.is_set():
            raise Stopping

    async def send(
        self,
        config: TaskPushNotificationConfig,
        name: str,
        body: bytes,
        *,
        media_type: str,
        owner: str = "",
        sign: Signature | None = None,
        once: bool = False,
    ) -> bool:
        """Post a notification until the webhook accepts it, a failure is not temporary, or all attempts have failed.

        In the last two cases, log the failure.

        Args:
            config: The webhook.
            name: The identifier of the notification, for `EVENT_HEADER`.
            body: The body of the request.
            media_type: The media type of the body.
            owner: The owner of the task, whose requests are limited.
            sign: Returns headers that sign an attempt; None for no signature. Credentials of the webhook override them.
            once: True to make only one attempt.

        Returns:
            True if the webhook accepted the notification.

        Raises:
            Stopping: The server stopped before another attempt.
        """
        attempts = 1 if once else self._attempts
        headers = {"Content-Type": media_type, EVENT_HEADER: name, **_secrets(config)}
        for attempt in range(1, attempts + 1):
            signed: Mapping[str, str] = {}
            if sign is not None:
                signed = await run_bounded(text_cost(body), sign, config, name, body)
            failure = await self._post(config.url, body, {**signed, **headers}, owner)
            if failure is None:
                self._observer.webhook_delivered(accepted=True)
                return True
            self._observer.webhook_attempt_failed()
            if attempt == attempts or not failure.may_pass:
                logger.warning(
                    "webhook %r of task %s (%s): event %s is given up after attempt %d of %d: %s",
                    config.id,
                    config.task_id,
                    _origin(config.url),
                    name.removeprefix(f"{config.task_id}/"),
                    attempt,
                    attempts,
                    failure.reason,
                )
                self._observer.webhook_delivered(accepted=False)
                break
            await self.pause(self._pause_after(attempt, failure.retry_after))
        return False

    def _pause_after(self, attempt: int, requested: float | None) -> float:
        if requested is not None:
            return min(requested, _MAX_RETRY_AFTER)
        # The pause is random, so that a recovered host does not receive all retries at the same time.
        max_pause = min(self._first_pause * 2 ** min(attempt - 1, 32), self._longest_pause)
        return max_pause * (1 - 0.5 * random.random())  # noqa: S311

    async def _post(self, address: str, body: bytes, headers: dict[str, str], owner: str) -> _Failure | None:
        try:
            url = self.guard.check_url(address)
        except InvalidParamsError:
            return _Failure("the webhook's address may not be called", may_pass=False)
        try:
            async with self._limiter(user_of(owner), url.origin()), self._requests.call(owner):
                with anyio.fail_after(self._timeout):
                    status, retry_after = await self._request(url, body, headers)
        except ForbiddenAddress as error:
            return _Failure(str(error), may_pass=False)
        except ValueError as error:  # an invalid URL or header
            return _Failure(type(error).__name__, may_pass=False)
        except OSError as error:
            return _Failure(str(error) or type(error).__name__, may_pass=True)
        if 200 <= status < 300:
            return None
        may_pass = status in _RETRIED or status >= 500
        return _Failure(f"status {status}", may_pass, retry_after)

    async def _request(self, url: "URL", body: bytes, headers: dict[str, str]) -> tuple[int, float | None]:
        if self._session is None:
            create = await anyio.to_thread.run_sync(_session_type)  # in a thread: the first import takes long
            self._session = self._session or create(self.guard)
        status, retry_after = await self._session.post(url, body, headers)
        return status, _retry_after(retry_after)

    def _limiter(self, caller: str, origin: "URL") -> anyio.CapacityLimiter:
        limiter = self._limiters.get((caller, origin))
        if limiter is None:
            limiter = self._limiters[caller, origin] = anyio.CapacityLimiter(self._max_per_origin)
        return limiter


def _default_max_requests() -> int:
    if resource is None:
        return 128
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 128 if files == resource.RLIM_INFINITY else min(128, max(1, files // 8))


def _session_type() -> type["WebhookSession"]:
    from tailrace.server.runtime.webhooks.session import WebhookSession

    return WebhookSession


def _secrets(config: TaskPushNotificationConfig) -> dict[str, str]:
    headers: dict[str, str] = {}
    if config.token:
        headers[TOKEN_HEADER] = config.token
    if config.authentication is not None and config.authentication.credentials:
        headers["Authorization"] = f"{config.authentication.scheme} {config.authentication.credentials}"
    return headers


def _retry_after(value: str) -> float | None:
    """Return the seconds of ``Retry-After``, a number or a date (RFC 9110, section 10.2.3); None if the value is invalid."""
    if value.isascii() and value.isdigit() and len(value) < 10:
        return float(value)
    try:
        time = parsedate_to_datetime(value)
    except (ValueError, OverflowError):
        return None
    if time.tzinfo is None:
        time = time.replace(tzinfo=UTC)
    return max(0.0, (time - datetime.now(UTC)).total_seconds())


def _origin(url: str) -> str:
    """Return a URL for the log without its path and query, which may contain secrets."""
    try:
        return str(parse_url(url).origin())
    except ValueError:
        return "?"

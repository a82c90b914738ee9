"""Posts notifications to webhooks (A2A 1.0, section 4.3.3): one request for each attempt, and retries.

Failures that may pass (no connection, a timeout, 408, 425, 429, 5xx) are retried, with growing pauses; all other responses end
the attempts for the notification. Redirects are not followed.
"""

import logging
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread
from yarl import URL

from tailrace.server.runtime.observer import NO_OBSERVER, Observer
from tailrace.server.runtime.webhooks.addresses import ForbiddenAddress, WebhookGuard
from tailrace.streaming.a2a.errors import InvalidParamsError
from tailrace.streaming.a2a.requests import TaskPushNotificationConfig

if TYPE_CHECKING:
    from tailrace.server.runtime.webhooks.session import WebhookSession

logger = logging.getLogger("tailrace.server")

EVENT_HEADER = "X-Tailrace-Event"
"""Identifies a notification: ``TASK/NUMBER`` of the event; ``TASK/NUMBER/task`` for the complete task at the end. A
notification that is delivered twice has the same value."""

TOKEN_HEADER = "X-A2A-Notification-Token"  # noqa: S105 — the name of a header

_MAX_REQUESTS_PER_ORIGIN = 64  # open at a time, so that a hanging host does not delay other webhooks
_MAX_RETRY_AFTER = 120.0  # seconds of a webhook's Retry-After that are respected
_RETRIED = frozenset({408, 425, 429})


class Stopping(Exception):
    """The server is stopping, so there is no other attempt; the notification is delivered after the next start."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """The failure of an attempt; the reason is for the log and has no secrets."""

    reason: str
    may_pass: bool
    retry_after: float | None = None


class WebhookClient:
    """Posts notifications.

    Args:
        guard: Checks the webhooks.
        timeout: Seconds for one response.
        attempts: The number of attempts before a notification is given up.
        first_pause: Seconds before the second attempt; doubled for each further one, with a random reduction by up to half.
        longest_pause: The maximum pause.
        observer: Notified of attempts.

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
        self._session: WebhookSession | None = None  # opened for the first request

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Send notifications during the block."""
        self._stopping = anyio.Event()
        try:
            yield
        finally:
            session, self._session = self._session, None
            if session is not None:
                await session.aclose()

    def stop(self) -> None:
        """End the attempts: a caller that waits for the next one gets `Stopping`."""
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
        once: bool = False,
    ) -> bool:
        """Post a notification until the webhook accepts it or it is given up, which is logged.

        Args:
            config: The webhook.
            name: The identifier of the notification, for `EVENT_HEADER`.
            body: Its body.
            media_type: The media type of the body.
            once: Make only one attempt.

        Returns:
            Whether the webhook accepted it.

        Raises:
            Stopping: The server stopped before another attempt.
        """
        attempts = 1 if once else self._attempts
        headers = {"Content-Type": media_type, EVENT_HEADER: name, **_secrets(config)}
        for attempt in range(1, attempts + 1):
            failure = await self._post(config.url, body, headers)
            if failure is None:
                self._observer.webhook_sent(taken=True)
                return True
            self._observer.webhook_tried()
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
                self._observer.webhook_sent(taken=False)
                break
            await self.pause(self._pause_after(attempt, failure.retry_after))
        return False

    def _pause_after(self, attempt: int, requested: float | None) -> float:
        if requested is not None:
            return min(requested, _MAX_RETRY_AFTER)
        # Randomised, so that the webhooks of a recovered host do not all retry at once.
        longest = min(self._first_pause * 2 ** min(attempt - 1, 32), self._longest_pause)
        return longest * (1 - 0.5 * random.random())  # noqa: S311

    async def _post(self, address: str, body: bytes, headers: dict[str, str]) -> _Failure | None:
        """Make one attempt; return None if the webhook accepted the notification."""
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
        except ValueError as error:  # an invalid URL or header
            return _Failure(type(error).__name__, may_pass=False)
        except OSError as error:
            return _Failure(str(error) or type(error).__name__, may_pass=True)
        if 200 <= status < 300:
            return None
        may_pass = status in _RETRIED or status >= 500
        return _Failure(f"status {status}", may_pass, retry_after)

    async def _request(self, url: URL, body: bytes, headers: dict[str, str]) -> tuple[int, float | None]:
        if self._session is None:
            create = await anyio.to_thread.run_sync(_session_type)  # in a thread: the first import takes long
            self._session = self._session or create(self.guard)
        status, retry_after = await self._session.post(url, body, headers)
        return status, _retry_after(retry_after)

    def _limiter(self, origin: URL) -> anyio.CapacityLimiter:
        limiter = self._limiters.get(origin)
        if limiter is None:
            limiter = self._limiters[origin] = anyio.CapacityLimiter(_MAX_REQUESTS_PER_ORIGIN)
        return limiter


def _session_type() -> type["WebhookSession"]:
    from tailrace.server.runtime.webhooks.session import WebhookSession

    return WebhookSession


def _secrets(config: TaskPushNotificationConfig) -> dict[str, str]:
    """Return the headers that authenticate the server to the webhook. A scheme without credentials adds none."""
    headers: dict[str, str] = {}
    if config.token:
        headers[TOKEN_HEADER] = config.token
    if config.authentication is not None and config.authentication.credentials:
        headers["Authorization"] = f"{config.authentication.scheme} {config.authentication.credentials}"
    return headers


def _retry_after(value: str) -> float | None:
    """Parse ``Retry-After``: seconds, or a date (RFC 9110, section 10.2.3)."""
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
    """Return the part of a URL that may be logged: path and query may have secrets."""
    try:
        return str(URL(url).origin())
    except ValueError:
        return "?"

"""Rules for the retries of requests after temporary errors. They are those of the official clients."""

import math
import random
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_RETRIED = frozenset({408, 409, 429, 500, 502, 503, 504, 529})
_FIRST_PAUSE = 0.5  # seconds; doubles with each retry, and is reduced by a random part of up to a quarter
_LONGEST_PAUSE = 8.0  # maximum delay between retries in seconds
_MAX_RETRY_AFTER = 120.0  # maximum delay in seconds that a provider may request, as in the official clients


def should_retry(status: int, headers: Mapping[str, str], delay: float | None) -> bool:
    """Return True if a request may be retried after an error status.

    The header ``x-should-retry`` takes precedence over the status. There is no retry if the provider requests a delay of more
    than two minutes.
    """
    if delay is not None and delay > _MAX_RETRY_AFTER:
        return False
    header = headers.get("x-should-retry")
    return header == "true" or (header != "false" and status in _RETRIED)


def retry_delay(attempt: int, requested: float | None) -> float:
    """Return the delay before a retry in seconds.

    Args:
        attempt: The number of retries before this one.
        requested: The delay that the provider requests; None if it requests none.
    """
    if requested:
        return requested
    return min(_FIRST_PAUSE * 2**attempt, _LONGEST_PAUSE) * (1 - 0.25 * random.random())  # noqa: S311


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Read the delay before a retry in seconds from the headers of a response; None if no header contains a delay.

    ``retry-after-ms`` (milliseconds) takes precedence. ``retry-after`` is a number of seconds, or a date (RFC 9110, section
    10.2.3). The delay for a date in the past is 0.
    """
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        with suppress(ValueError):
            value = float(headers.get(name, ""))
            if math.isfinite(value) and value >= 0:
                return value / unit
    with suppress(ValueError, OverflowError):
        day = parsedate_to_datetime(headers.get("retry-after", ""))
        day = day if day.tzinfo else day.replace(tzinfo=UTC)
        return max(0.0, (day - datetime.now(UTC)).total_seconds())
    return None

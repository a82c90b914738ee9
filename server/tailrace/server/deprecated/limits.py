"""Deprecated: import from `tailrace.server.runtime.limits`."""

from tailrace.server.runtime.limits import (
    OverloadedError,
    PartTooLargeError,
    RateLimitError,
    RequestTooLargeError,
)

__all__ = (
    "OverloadedError",
    "PartTooLargeError",
    "RateLimitError",
    "RequestTooLargeError",
)

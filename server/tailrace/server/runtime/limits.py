"""Limits for each caller and for all callers together, and the errors for requests that exceed a limit.

Tasks and streams are counted, but not events, so that no limit is checked for each token. Only the limits for all callers apply
to unauthenticated callers.

Each error contains the limit and advice. The first two errors of this table also contain the time to wait:

=====================  ========  ====  ==================  ======================================================
error                  JSON-RPC  HTTP  gRPC                reason
=====================  ========  ====  ==================  ======================================================
`RateLimitError`       -32010    429   RESOURCE_EXHAUSTED  the caller reached the limit for one caller
`OverloadedError`      -32011    503   UNAVAILABLE         the server reached its limit, or is stopping
`RequestTooLargeError` -32600    413   INVALID_ARGUMENT    the request is too large; do not retry it
`PartTooLargeError`    -32602    413   INVALID_ARGUMENT    a part is too large; do not retry it
`RequestTimeoutError`  -32600    408   INVALID_ARGUMENT    the body of the request arrived too slowly
=====================  ========  ====  ==================  ======================================================

A2A 1.0 permits rate limits with ``Retry-After``, but defines no error codes. The codes -32010 and -32011 are those of A2A 0.1
(``RateLimitExceeded`` and ``ResourceUnavailable``). A2A 1.0 does not use them. The gRPC statuses are values of
``google.rpc.Code``. The time to wait is a ``google.rpc.RetryInfo`` (AIP-193).
"""

import json
import math
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, cast

from pydantic_core import to_json

from tailrace.server.runtime.caller_message_checks import check_file_urls
from tailrace.server.settings import FILE_SCHEMES
from tailrace.streaming.a2a.errors import (
    ContentTypeNotSupportedError,
    FieldViolation,
    InternalError,
    InvalidParamsError,
    InvalidRequestError,
)
from tailrace.streaming.a2a.models import Message, Part
from tailrace.wrappers.messages import utf8_size

RETRY_AFTER = 2.0
"""Estimated seconds after which a rejected caller should try again."""

_MAX_SHOWN = 100  # maximum characters of a caller's value in an error message


class LimitError(InternalError):
    """A limit is reached. Clients that do not know the error code treat this error as an internal error.

    Args:
        detail: The problem, and advice for the caller.
        limit: The name of the setting; empty if no setting defines the limit.
        allowed: The value of the setting.
        retry_after: Seconds after which the caller should try again. Also an attribute.
    """

    def __init__(
        self, detail: str, *, limit: str = "", allowed: int = 0, retry_after: float = RETRY_AFTER
    ) -> None:
        metadata = {"limit": limit, "allowed": str(allowed)} if limit else {}
        super().__init__(detail, metadata=metadata | {"retryAfter": f"{retry_after:g}"})
        self.retry_after = retry_after

    def details(self) -> list[dict[str, Any]]:
        """Return a ``google.rpc.ErrorInfo`` and a ``google.rpc.RetryInfo``."""
        pause = {
            "@type": "type.googleapis.com/google.rpc.RetryInfo",
            "retryDelay": f"{self.retry_after:g}s",
        }
        return [*super().details(), pause]

    @property
    def headers(self) -> dict[str, str]:
        """The header ``Retry-After`` in whole seconds (RFC 9110, section 10.2.3)."""
        return {"Retry-After": str(math.ceil(self.retry_after))}


class RateLimitError(LimitError):
    """The caller has reached the limit for one caller."""

    code = -32010
    http_status = 429
    status = "RESOURCE_EXHAUSTED"
    reason = "RATE_LIMIT_EXCEEDED"
    message = "Rate limit exceeded"

    @property
    def error_fields(self) -> dict[str, Any]:
        """The member ``error`` in the metadata of the last status of a turn that ended with this error."""
        code = self.reason.lower()
        return {"type": code, "status": self.http_status, "code": code, "retryAfter": self.retry_after}


class OverloadedError(LimitError):
    """All callers together have reached a limit, or the server cannot accept requests now."""

    code = -32011
    http_status = 503
    status = "UNAVAILABLE"
    reason = "RESOURCE_UNAVAILABLE"
    message = "The server is busy"


class RequestTooLargeError(InvalidRequestError):
    """The request is larger than this server accepts.

    Args:
        allowed: The maximum number of bytes or JSON values.
        setting: The name of the setting: ``max_request_bytes`` or ``max_request_values``.
    """

    http_status = 413

    def __init__(self, allowed: int, setting: str = "max_request_bytes") -> None:
        super().__init__(
            f"the request has more than {allowed} JSON values (TAILRACE_BOUNDS: max_request_values); send less per request"
            if setting == "max_request_values"
            else f"the request has more than {allowed} bytes (TAILRACE_MAX_REQUEST_BYTES); send large files by URL",
            metadata={"limit": setting, "allowed": str(allowed)},
        )


class RequestTimeoutError(InvalidRequestError):
    """The body of a request did not arrive in time.

    Args:
        allowed: The time limit in seconds.
    """

    http_status = 408

    def __init__(self, allowed: float) -> None:
        super().__init__(
            f"the request body did not arrive within {allowed:g} seconds (TAILRACE_BOUNDS: body_timeout); send it again",
            metadata={"limit": "body_timeout", "allowed": f"{allowed:g}"},
        )

    @property
    def headers(self) -> dict[str, str]:
        """The header ``Connection: close``, because the rest of the body would otherwise be read as the next request."""
        return {"Connection": "close"}


class RequestMediaTypeError(ContentTypeNotSupportedError):
    """The request has a body, and its ``Content-Type`` is not JSON.

    Args:
        content_type: The ``Content-Type`` of the request; empty if there is none.
    """

    http_status = 415

    def __init__(self, content_type: str = "") -> None:
        actual = f"not {content_type[:_MAX_SHOWN]!r}" if content_type else "and this request has none"
        super().__init__(f"a request with a body needs Content-Type: application/json, {actual}")


class PartTooLargeError(InvalidParamsError):
    """A part of the message is larger than this server accepts."""

    http_status = 413


class Permit:
    """A permit from a `Quota`, which is returned by `release`, at the end of a ``with`` block, or by garbage collection."""

    __slots__ = ("_caller", "_quota")

    def __init__(self, quota: "Quota | None", caller: str) -> None:
        self._quota = quota
        self._caller = caller

    @classmethod
    def none(cls) -> Self:
        """Return a permit that does not count."""
        return cls(None, "")

    def release(self) -> None:
        """Return the permit to its quota. Further calls do nothing."""
        quota, self._quota = self._quota, None
        if quota is not None:
            quota.release(self._caller)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        # If the client disconnects before the response begins, only the garbage collector returns the permit.
        self.release()


class Quota:
    """Counts and limits permits, for each caller and in total.

    Args:
        objects: The counted objects for error messages, in the plural, for example ``streams open``.
        remedy: Advice for error messages to a caller that has too many permits.
        setting: The name of the setting for all callers, for example ``max_streams``.
        caller_setting: The name of the setting for one caller.
        max_total: The maximum number of permits of all callers; 0 for no limit.
        max_per_caller: The maximum number of permits of one caller; 0 for no limit.
    """

    def __init__(
        self,
        objects: str,
        remedy: str,
        *,
        setting: str,
        caller_setting: str,
        max_total: int,
        max_per_caller: int,
    ) -> None:
        self.used = 0
        self._objects = objects
        self._remedy = remedy
        self._setting = setting
        self._caller_setting = caller_setting
        self._max_total = max_total
        self._max_per_caller = max_per_caller
        self._by_caller: dict[str, int] = {}

    @property
    def callers(self) -> int:
        """The number of authenticated callers with a permit."""
        return len(self._by_caller)

    def acquire(self, owner: str) -> Permit:
        """Acquire a permit.

        Args:
            owner: The owner (`Caller.owner`). All tenants of a user share the user's limit.

        Raises:
            RateLimitError: The caller has its maximum number of permits.
            OverloadedError: All permits are in use.
        """
        caller = user_of(owner)
        count = self._by_caller.get(caller, 0)
        if caller and self._max_per_caller and count >= self._max_per_caller:
            raise RateLimitError(
                f"you have {count} {self._objects}, the maximum for one caller; {self._remedy}",
                limit=self._caller_setting,
                allowed=self._max_per_caller,
            )
        if self._max_total and self.used >= self._max_total:
            raise OverloadedError(
                f"there are {self.used} {self._objects}, the maximum of this server; try again later",
                limit=self._setting,
                allowed=self._max_total,
            )
        self.used += 1
        if caller:
            self._by_caller[caller] = count + 1
        return Permit(self, caller)

    def release(self, caller: str) -> None:
        """Take back a permit. Only `Permit` calls this method."""
        self.used -= 1
        if not caller:
            return
        count = self._by_caller[caller] - 1
        if count:
            self._by_caller[caller] = count
        else:
            del self._by_caller[caller]


class Limits:
    """The limits that are checked for each request. 0 means no limit.

    Args:
        max_streams: Maximum number of open streams of all callers.
        max_caller_streams: Maximum number of open streams of one caller.
        max_tasks: Maximum number of running tasks of all callers.
        max_caller_tasks: Maximum number of running tasks of one caller.
        max_part_bytes: Maximum size of one part of a message in bytes.
        file_schemes: The permitted schemes of file URLs in messages; ``*`` for all schemes.
    """

    def __init__(
        self,
        *,
        max_streams: int = 0,
        max_caller_streams: int = 0,
        max_tasks: int = 0,
        max_caller_tasks: int = 0,
        max_part_bytes: int = 0,
        file_schemes: Sequence[str] = FILE_SCHEMES,
    ) -> None:
        self.streams = Quota(
            "streams open",
            "close a stream, or try again later",
            setting="max_streams",
            caller_setting="max_caller_streams",
            max_total=max_streams,
            max_per_caller=max_caller_streams,
        )
        self.tasks = Quota(
            "running tasks",
            "wait until a task has ended, or cancel a task",
            setting="max_tasks",
            caller_setting="max_caller_tasks",
            max_total=max_tasks,
            max_per_caller=max_caller_tasks,
        )
        self._max_part = max_part_bytes
        self._file_schemes = tuple(file_schemes)

    def check_message(self, message: Message) -> None:
        """Check the sizes of the parts of a caller's message, and the URLs of its files.

        Raises:
            PartTooLargeError: A part is larger than ``max_part_bytes``.
            InvalidParamsError: The scheme of a URL is not allowed.
        """
        self.check_files(message)
        if self._max_part:
            for at, part in enumerate(message.parts):
                if size_of(part) > self._max_part:
                    description = (
                        f"larger than the {self._max_part} bytes that this server accepts in one part"
                    )
                    field = f"message.parts[{at}]"
                    raise PartTooLargeError(
                        f"{field} is {description}; send a URL, or several parts",
                        metadata={"limit": "max_part_bytes", "allowed": str(self._max_part)},
                        violations=[FieldViolation(field, description)],
                    )

    def check_files(self, message: Message) -> None:
        """Check the URLs of the files of a caller's message.

        Raises:
            InvalidParamsError: The scheme of a URL is not allowed.
        """
        check_file_urls(message, self._file_schemes)


def size_of(part: Part) -> int:
    """Return the size of a part in bytes. The size of data is that of its JSON."""
    if part.raw is not None:
        return len(part.raw)
    text = part.text if part.text is not None else part.url
    if text is None:
        return len(to_json(part.data))
    return utf8_size(text)


def user_of(owner: str) -> str:
    """Return the user name of an owner, without the tenant and the namespace."""
    if not owner.startswith('["'):
        return owner
    try:
        fields = json.loads(owner)
    except ValueError:
        return owner  # a user name that looks like an owner with a tenant
    return str(cast("list[object]", fields)[-1])

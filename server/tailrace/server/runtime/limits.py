"""Limits of one caller, and of all callers together.

Requests and streams are counted, never events: a limit costs nothing while a response streams. Nothing is stored for a caller
that holds nothing. Unauthenticated callers cannot be distinguished: the limits of one caller do not apply to them, those of the
server do.

Every refusal names the limit, who is at fault, the remedy, and the time to wait:

=====================  ========  ====  ==================  ======================================================
error                  JSON-RPC  HTTP  gRPC                reason
=====================  ========  ====  ==================  ======================================================
`RateLimitError`       -32010    429   RESOURCE_EXHAUSTED  the caller's: it holds all that one caller may have
`OverloadedError`      -32011    503   UNAVAILABLE         the server's: it is full, or about to stop
`RequestTooLargeError` -32600    413   INVALID_ARGUMENT    the caller's: every attempt would be refused
`PartTooLargeError`    -32602    413   INVALID_ARGUMENT    the caller's: every attempt would be refused
`RequestTimeoutError`  -32600    408   INVALID_ARGUMENT    the caller's: its body arrived too slowly
=====================  ========  ====  ==================  ======================================================

A2A 1.0 asks agents to report rate limits, permits ``Retry-After``, and leaves the error codes to the agent. These two are those
of its first version (0.1, ``RateLimitExceeded`` and ``ResourceUnavailable``), which 1.0 does not use otherwise. The statuses
are those of ``google.rpc.Code``; the pause is a ``google.rpc.RetryInfo`` (AIP-193).
"""

import json
import math
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, cast

from pydantic_core import to_json

from tailrace.server.runtime.caller_content import check_file_urls
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
"""Seconds after which a refused caller may try again: an estimate, since the load of other callers is not known."""

_MAX_SHOWN = 100  # characters of a caller's value in an error


class LimitError(InternalError):
    """A limit is reached. Clients that know only A2A's own errors treat it as an internal one.

    Args:
        detail: The problem and the remedy.
        limit: The name of the setting; empty for none.
        allowed: Its value.
        retry_after: Seconds after which to try again.

    Attributes:
        retry_after: As given.
    """

    def __init__(
        self, detail: str, *, limit: str = "", allowed: int = 0, retry_after: float = RETRY_AFTER
    ) -> None:
        metadata = {"limit": limit, "allowed": str(allowed)} if limit else {}
        super().__init__(detail, metadata=metadata | {"retryAfter": f"{retry_after:g}"})
        self.retry_after = retry_after

    def details(self) -> list[dict[str, Any]]:
        """Return the ErrorInfo, then a ``google.rpc.RetryInfo``."""
        pause = {
            "@type": "type.googleapis.com/google.rpc.RetryInfo",
            "retryDelay": f"{self.retry_after:g}s",
        }
        return [*super().details(), pause]

    @property
    def headers(self) -> dict[str, str]:
        """``Retry-After``, in whole seconds (RFC 9110, section 10.2.3)."""
        return {"Retry-After": str(math.ceil(self.retry_after))}


class RateLimitError(LimitError):
    """The caller holds all that one caller may."""

    code = -32010
    http_status = 429
    status = "RESOURCE_EXHAUSTED"
    reason = "RATE_LIMIT_EXCEEDED"
    message = "Rate limit exceeded"


class OverloadedError(LimitError):
    """All callers together hold all that the server allows, or the server is stopping."""

    code = -32011
    http_status = 503
    status = "UNAVAILABLE"
    reason = "RESOURCE_UNAVAILABLE"
    message = "The server is busy"


class RequestTooLargeError(InvalidRequestError):
    """A request is larger than this server accepts.

    Args:
        allowed: The limit: bytes, or JSON values.
        setting: The setting of the limit: ``max_request_bytes`` or ``max_request_values``.
    """

    http_status = 413

    def __init__(self, allowed: int, setting: str = "max_request_bytes") -> None:
        super().__init__(
            f"the request has more than {allowed} JSON values (TAILRACE_BOUNDS: max_request_values); send less at once"
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
        """``Connection: close``: the next bytes on the connection would be the rest of the body."""
        return {"Connection": "close"}


class RequestMediaTypeError(ContentTypeNotSupportedError):
    """The body of a request does not declare that it is JSON.

    Args:
        given: Its ``Content-Type``; empty for none.
    """

    http_status = 415

    def __init__(self, given: str = "") -> None:
        found = f"not {given[:_MAX_SHOWN]!r}" if given else "and this one has none"
        super().__init__(f"a request with a body needs Content-Type: application/json, {found}")


class PartTooLargeError(InvalidParamsError):
    """A part of a message is larger than this server accepts."""

    http_status = 413


class Permit:
    """A permit, until `release`; the end of a ``with`` block and garbage collection release it, too."""

    __slots__ = ("_caller", "_quota")

    def __init__(self, quota: "Quota | None", caller: str) -> None:
        self._quota = quota
        self._caller = caller

    @classmethod
    def none(cls) -> Self:
        """Return a permit that is not counted."""
        return cls(None, "")

    def release(self) -> None:
        """Release it; calling it again does nothing."""
        quota, self._quota = self._quota, None
        if quota is not None:
            quota.give_back(self._caller)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        # A stream whose client disconnected before the response began.
        self.release()


class Quota:
    """Counts permits, for each caller and in total.

    Args:
        what: The counted objects, in the plural, for error messages: ``streams open``.
        remedy: The remedy for a caller that holds too many.
        setting: The setting of the total (``max_streams``).
        caller_setting: The setting for one caller.
        total: The maximum of all callers; 0 for no bound.
        each: The maximum of one caller; 0 for no bound.

    Attributes:
        used: The number of permits in use.
    """

    def __init__(
        self, what: str, remedy: str, *, setting: str, caller_setting: str, total: int, each: int
    ) -> None:
        self.used = 0
        self._what = what
        self._remedy = remedy
        self._setting = setting
        self._caller_setting = caller_setting
        self._total = total
        self._each = each
        self._by_caller: dict[str, int] = {}  # callers that hold a permit

    @property
    def callers(self) -> int:
        """The number of authenticated callers that hold a permit."""
        return len(self._by_caller)

    def take(self, owner: str) -> Permit:
        """Take a permit.

        Args:
            owner: The owner (`tailrace.server.runtime.operations.Caller.owner`): the tenants of a caller share its
                limit.

        Raises:
            RateLimitError: The caller holds all that one caller may.
            OverloadedError: All permits are in use.
        """
        caller = user_of(owner)
        held = self._by_caller.get(caller, 0)
        if caller and self._each and held >= self._each:
            raise RateLimitError(
                f"you have {held} {self._what}, the maximum for one caller; {self._remedy}",
                limit=self._caller_setting,
                allowed=self._each,
            )
        if self._total and self.used >= self._total:
            raise OverloadedError(
                f"there are {self.used} {self._what}, the maximum of this server; try again later",
                limit=self._setting,
                allowed=self._total,
            )
        self.used += 1
        if caller:
            self._by_caller[caller] = held + 1
        return Permit(self, caller)

    def give_back(self, caller: str) -> None:
        """Return a permit; called by `Permit`."""
        self.used -= 1
        if not caller:
            return
        held = self._by_caller[caller] - 1
        if held:
            self._by_caller[caller] = held
        else:
            del self._by_caller[caller]


class Limits:
    """The limits that requests are checked against.

    Args:
        max_streams: Open streams of all callers; 0 for no bound, here and below.
        max_caller_streams: Open streams of one caller.
        max_tasks: Running tasks of all callers.
        max_caller_tasks: Running tasks of one caller.
        max_part_bytes: The size of one part of a message.

    Attributes:
        streams: The open streams.
        tasks: The running tasks.
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
            "close one, or try again later",
            setting="max_streams",
            caller_setting="max_caller_streams",
            total=max_streams,
            each=max_caller_streams,
        )
        self.tasks = Quota(
            "tasks being worked on",
            "wait until one is over, or cancel one",
            setting="max_tasks",
            caller_setting="max_caller_tasks",
            total=max_tasks,
            each=max_caller_tasks,
        )
        self._max_part = max_part_bytes
        self._file_schemes = tuple(file_schemes)

    def check_message(self, message: Message) -> None:
        """Check the sizes of a caller's parts, and the URLs of its files.

        Raises:
            PartTooLargeError: A part is larger than is allowed.
            InvalidParamsError: The scheme of a URL is not allowed.
        """
        self.check_files(message)
        if self._max_part:
            for at, part in enumerate(message.parts):
                if size_of(part) > self._max_part:
                    why = f"larger than the {self._max_part} bytes that this server takes in one part"
                    field = f"message.parts[{at}]"
                    raise PartTooLargeError(
                        f"{field} is {why}; send it by URL, or in several",
                        metadata={"limit": "max_part_bytes", "allowed": str(self._max_part)},
                        violations=[FieldViolation(field, why)],
                    )

    def check_files(self, message: Message) -> None:
        """Check the URLs of the files of a caller's message.

        Raises:
            InvalidParamsError: The scheme of a URL is not allowed.
        """
        check_file_urls(message, self._file_schemes)


def size_of(part: Part) -> int:
    """Return the bytes of a part's content: of its text, file, URL, or data as JSON."""
    if part.raw is not None:
        return len(part.raw)
    text = part.text if part.text is not None else part.url
    if text is None:
        return len(to_json(part.data))
    return utf8_size(text)


def user_of(owner: str) -> str:
    """Return the user of an owner without its tenant."""
    if not owner.startswith('["'):
        return owner
    try:
        named = json.loads(owner)
    except ValueError:
        return owner  # a user of that name
    return str(cast("list[object]", named)[-1])

"""Limits: how much of the server one caller may have, and all callers together.

What is counted is counted once a request or once a stream, never once an event: a limit costs nothing while an answer
streams. Nothing is remembered of a caller that holds nothing. Callers that are not known (no name) cannot be told
apart: for them the limits of a caller do not hold, those of the server do.

Whoever is refused is told which limit it was, whose fault that is, what to do, and when to come back:

=====================  ========  ====  ==================  ======================================================
error                  JSON-RPC  HTTP  gRPC                whose fault
=====================  ========  ====  ==================  ======================================================
`RateLimitError`       -32010    429   RESOURCE_EXHAUSTED  the caller's: it holds all that one caller may have
`OverloadedError`      -32011    503   UNAVAILABLE         the server's: it is full, or about to stop
`RequestTooLargeError` -32600    413   INVALID_ARGUMENT    the caller's: no later attempt would be taken
`PartTooLargeError`    -32602    413   INVALID_ARGUMENT    the caller's, as well
=====================  ========  ====  ==================  ======================================================

A2A 1.0 says that rate limits should be told, and that ``Retry-After`` may be, and leaves the
numbers to the agent; these two are those that its first version had (0.1, ``RateLimitExceeded`` and
``ResourceUnavailable``), and 1.0 gives them no other meaning. The statuses are those of ``google.rpc.Code``; the pause
is a ``google.rpc.RetryInfo``, as AIP-193 has it.
"""

import json
import math
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from time import perf_counter
from types import TracebackType
from typing import Any, Self, cast

import anyio

from tailrace.server.observability.observer import NO_OBSERVER, Observer
from tailrace.streaming.a2a.errors import (
    FieldViolation,
    InternalError,
    InvalidParamsError,
    InvalidRequestError,
)
from tailrace.streaming.a2a.models import Message, Part
from tailrace.wrappers import History
from tailrace.wrappers.history import HistoryConverter
from tailrace.wrappers.messages import utf8_size
from tailrace.wrappers.model import ChunkBatches, Model
from tailrace.wrappers.opened import Exit, Opened
from tailrace.wrappers.options import NO_OPTIONS, RequestOptions

RETRY_AFTER = 2.0
"""Seconds after which whoever was refused may try again: nobody knows how long others will take."""


class LimitError(InternalError):
    """A limit was reached; one of the two below. To those who know A2A's own errors alone it is an internal one.

    Args:
        detail: What happened, and what to do.
        limit: The name of the setting; empty where it is none.
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
        """The ErrorInfo, then a ``google.rpc.RetryInfo``."""
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
    """The caller holds as much as one caller may."""

    code = -32010
    http_status = 429
    status = "RESOURCE_EXHAUSTED"
    reason = "RATE_LIMIT_EXCEEDED"
    message = "Rate limit exceeded"


class OverloadedError(LimitError):
    """The server holds as much as it may, whoever asks; or it is about to stop."""

    code = -32011
    http_status = 503
    status = "UNAVAILABLE"
    reason = "RESOURCE_UNAVAILABLE"
    message = "The server is busy"


class RequestTooLargeError(InvalidRequestError):
    """A request is larger than this server takes.

    Args:
        allowed: How many bytes it may have.
    """

    http_status = 413

    def __init__(self, allowed: int) -> None:
        super().__init__(
            f"the request is larger than the {allowed} bytes that this server takes; send files by URL",
            metadata={"limit": "max_request_bytes", "allowed": str(allowed)},
        )


class PartTooLargeError(InvalidParamsError):
    """A part of a message is larger than this server takes."""

    http_status = 413


class Place:
    """Something in use, until `release`; leaving it as a context manager releases it, and so does forgetting it."""

    __slots__ = ("_caller", "_quota")

    def __init__(self, quota: "Quota | None", caller: str) -> None:
        self._quota = quota
        self._caller = caller

    @classmethod
    def none(cls) -> Self:
        """Nothing: for what nobody counts."""
        return cls(None, "")

    def release(self) -> None:
        """Give it back; once is enough, more does nothing."""
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
        # A stream that nobody began to read: its client left before the answer did.
        self.release()


class Quota:
    """Counts what is in use: by caller, and in all.

    Args:
        what: What is counted, in the plural and as a caller knows it: ``streams open``.
        remedy: What a caller that holds too many can do.
        setting: The setting for all callers together (``max_streams``).
        caller_setting: The setting for one caller.
        total: How many all may hold; 0 for any number.
        each: How many one caller may hold; 0 for any number.

    Attributes:
        used: How many are in use.
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
        self._by_caller: dict[str, int] = {}  # only those that hold something

    @property
    def callers(self) -> int:
        """How many known callers hold something."""
        return len(self._by_caller)

    def take(self, owner: str) -> Place:
        """One more for a caller.

        Args:
            owner: Whose it is (`tailrace.server.operations.Caller.owner`): a caller does not get more by naming
                several tenants.

        Raises:
            RateLimitError: The caller holds all that one caller may.
            OverloadedError: All that there may be are in use.
        """
        caller = _user_of(owner)
        held = self._by_caller.get(caller, 0)
        if caller and self._each and held >= self._each:
            raise RateLimitError(
                f"you have {held} {self._what}, which is as many as one caller may have; {self._remedy}",
                limit=self._caller_setting,
                allowed=self._each,
            )
        if self._total and self.used >= self._total:
            raise OverloadedError(
                f"there are {self.used} {self._what}, which is as many as this server takes; try again later",
                limit=self._setting,
                allowed=self._total,
            )
        self.used += 1
        if caller:
            self._by_caller[caller] = held + 1
        return Place(self, caller)

    def give_back(self, caller: str) -> None:
        """Called by a `Place`."""
        self.used -= 1
        if not caller:
            return
        held = self._by_caller[caller] - 1
        if held:
            self._by_caller[caller] = held
        else:
            del self._by_caller[caller]


class UpstreamGate:
    """Lets so many calls to the provider go on at a time; further ones wait in the order in which they came.

    Args:
        calls: How many at a time; 0 for any number, and then nothing ever waits.
        waiting: How many may wait; 0: none, what cannot begin at once is refused.
        observer: Told how long calls waited.

    Attributes:
        waiting: How many wait.
        under_way: How many go on.
    """

    def __init__(self, calls: int, waiting: int, observer: Observer = NO_OBSERVER) -> None:
        self.waiting = 0
        self.under_way = 0
        self._observer = observer
        self._calls = calls
        self._max_waiting = waiting
        self._free = anyio.Semaphore(calls, fast_acquire=True) if calls else None

    @property
    def full(self) -> bool:
        """Whether a further call would be refused."""
        return self._free is not None and not self._free.value and self.waiting >= self._max_waiting

    def check(self) -> None:
        """Refuse what would only be refused later, once there is a task that would fail of it.

        Raises:
            OverloadedError: A further call would be refused.
        """
        if self.full:
            raise OverloadedError(
                f"{self._calls} calls to the model are under way and {self.waiting} wait, which is as many as this "
                "server takes; try again later",
                limit="max_upstream_waiting",
                allowed=self._max_waiting,
            )

    @asynccontextmanager
    async def call(self) -> AsyncGenerator[None]:
        """A call to the provider, for as long as the block runs; as `enter`, and `leave` at its end."""
        await self.enter()
        try:
            yield
        finally:
            self.leave()

    async def enter(self) -> None:
        """Begin a call to the provider; waits for its turn before. To be followed by `leave`, once.

        Cancelling ends the wait at once.

        Raises:
            OverloadedError: Too many wait already.
        """
        if self._free is not None:
            await self._wait(self._free)
        self.under_way += 1

    def leave(self) -> None:
        """The call is over."""
        self.under_way -= 1
        if self._free is not None:
            self._free.release()

    async def _wait(self, free: anyio.Semaphore) -> None:
        self.check()
        has_to = not free.value
        began = perf_counter()
        self.waiting += 1
        try:
            await free.acquire()
        finally:
            self.waiting -= 1
        if has_to:
            self._observer.waited(perf_counter() - began)


class GatedModel(Model):
    """A model whose calls pass a gate; what it answers passes untouched.

    Args:
        model: The model; closed with this one.
        gate: Says when a call may begin.
    """

    def __init__(self, model: Model, gate: UpstreamGate) -> None:
        self.provider = model.provider
        self.name = model.name
        self._model = model
        self._gate = gate

    @property
    def converter(self) -> HistoryConverter[Any, Any]:
        """The model's own."""
        return self._model.converter

    def stream(
        self, history: History, options: RequestOptions = NO_OPTIONS
    ) -> AbstractAsyncContextManager[ChunkBatches]:
        """As `Model.stream`, once the gate lets it through; raises `OverloadedError` where too many wait."""
        return Opened(partial(self._stream, history, options))

    async def _stream(self, history: History, options: RequestOptions) -> tuple[ChunkBatches, Exit]:
        await self._gate.enter()
        try:
            stream = self._model.stream(history, options)
            return await stream.__aenter__(), partial(self._leave, stream)
        except BaseException:
            self._gate.leave()
            raise

    async def _leave(
        self,
        stream: AbstractAsyncContextManager[ChunkBatches],
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        try:
            return await stream.__aexit__(kind, error, trace)
        finally:
            self._gate.leave()

    async def aclose(self) -> None:
        """Close the model."""
        await self._model.aclose()


class Limits:
    """All limits that are looked at when a request comes.

    Args:
        max_streams: Streams that are open, of all callers; 0 for any number, here and below.
        max_caller_streams: Streams that are open, of one caller.
        max_tasks: Tasks that are worked on, of all callers.
        max_caller_tasks: Tasks that are worked on, of one caller.
        max_part_bytes: Size of one part of a message.

    Attributes:
        streams: The streams that are open.
        tasks: The tasks that are worked on.
    """

    def __init__(
        self,
        *,
        max_streams: int = 0,
        max_caller_streams: int = 0,
        max_tasks: int = 0,
        max_caller_tasks: int = 0,
        max_part_bytes: int = 0,
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

    def check_message(self, message: Message) -> None:
        """Whether the parts of a message are not too large.

        Raises:
            PartTooLargeError: One is larger than is allowed.
        """
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


def size_of(part: Part) -> int:
    """The bytes of what a part holds: of its text, its file, its URL, or its data as JSON."""
    if part.raw is not None:
        return len(part.raw)
    text = part.text if part.text is not None else part.url
    if text is None:
        text = json.dumps(part.data)
    return utf8_size(text)


def _user_of(owner: str) -> str:
    """The user of an owner, whatever its tenant."""
    if not owner.startswith('["'):
        return owner
    try:
        named = json.loads(owner)
    except ValueError:
        return owner  # a user of that name
    return str(cast("list[object]", named)[-1])

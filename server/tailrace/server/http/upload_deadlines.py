"""Deadlines for the upload of request bodies, so that slow clients neither occupy memory for long nor delay the shutdown."""

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from tailrace.server.runtime.limits import OverloadedError, RequestTimeoutError

STOP_TIMEOUT = 1.0
"""Seconds for the rest of a request body after the server has begun to stop."""

SLOWEST = 64 * 1024
"""Minimum upload rate in bytes per second."""

_EXTENSION = "tailrace.uploads"


class UploadDeadlines:
    """The deadlines of all request bodies that an application currently receives.

    Args:
        timeout: Seconds for one body. Each `SLOWEST` bytes that arrive extend the deadline by one second.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._stopping = False
        self._scopes: set[anyio.CancelScope] = set()

    def attach_to(self, scope: Scope) -> None:
        """Store this object in the scope of a request, so that `upload_deadlines_of` returns it."""
        scope[_EXTENSION] = self

    @contextmanager
    def receiving(self) -> Generator[Callable[[int], None]]:
        """Set a deadline for the block. Yield a function to call with the size of each received part.

        Raises:
            RequestTimeoutError: The body did not arrive before the deadline.
            OverloadedError: The server is stopping.
        """
        seconds = STOP_TIMEOUT if self._stopping else self._timeout
        with anyio.CancelScope(deadline=anyio.current_time() + seconds) as scope:
            counted = 0

            def extend(size: int) -> None:
                nonlocal counted
                counted += size
                if counted >= SLOWEST and not self._stopping:  # most bodies do not reach this size
                    scope.deadline += counted / SLOWEST
                    counted = 0

            self._scopes.add(scope)
            try:
                yield extend
            finally:
                self._scopes.discard(scope)
        if scope.cancelled_caught:
            if self._stopping:
                raise OverloadedError("the server is stopping; send the request again in a moment")
            raise RequestTimeoutError(self._timeout)

    async def discard(self, request: Request) -> None:
        """Read and discard the body of a request, for example of a GET request.

        If the server closed the connection with unread data, the client might not receive the response. Reading ends at the
        deadline, or when the client disconnects.
        """
        with suppress(RequestTimeoutError, OverloadedError, ClientDisconnect), self.receiving() as extend:
            async for chunk in request.stream():
                extend(len(chunk))

    @asynccontextmanager
    async def ending_with(self, stopping: anyio.Event) -> AsyncGenerator[None]:
        """If the event is set during the block, shorten all deadlines to `STOP_TIMEOUT` seconds."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._end, stopping)
            yield
            group.cancel_scope.cancel()

    async def _end(self, stopping: anyio.Event) -> None:
        await stopping.wait()
        self._stopping = True
        latest = anyio.current_time() + STOP_TIMEOUT
        for scope in self._scopes:
            scope.deadline = min(scope.deadline, latest)


def has_body(request: Request) -> bool:
    """Return whether the headers of a request announce a body."""
    return request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers


def upload_deadlines_of(scope: Scope) -> UploadDeadlines:
    """Return the object that `UploadDeadlines.attach_to` stored in the scope of a request."""
    deadlines: UploadDeadlines = scope[_EXTENSION]
    return deadlines

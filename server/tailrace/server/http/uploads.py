"""Request bodies that are being received: each has a deadline, and none delays the end of the server."""

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.types import Scope

from tailrace.server.runtime.limits import OverloadedError, RequestTimeoutError

STOP_TIMEOUT = 1.0
"""Seconds for the rest of a request body once the server is stopping."""

SLOWEST = 64 * 1024
"""Bytes a second that extend the deadline: a large body on a slow line is not cut off."""

_EXTENSION = "tailrace.uploads"


class Uploads:
    """The deadlines of all request bodies that an application receives.

    Args:
        timeout: Seconds for one body, and one more for every `SLOWEST` bytes of it that arrived.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._stopping = False
        self._scopes: set[anyio.CancelScope] = set()

    def attach_to(self, scope: Scope) -> None:
        """Have the body of a request received under this object's deadlines (`uploads_of`)."""
        scope[_EXTENSION] = self

    @contextmanager
    def receiving(self) -> Generator[Callable[[int], None]]:
        """Receive one body while the block runs; yields a function to call with the size of each piece.

        Raises:
            RequestTimeoutError: The deadline passed.
            OverloadedError: The server is stopping.
        """
        seconds = STOP_TIMEOUT if self._stopping else self._timeout
        with anyio.CancelScope(deadline=anyio.current_time() + seconds) as scope:
            counted = 0

            def extend(size: int) -> None:
                nonlocal counted
                counted += size
                if counted >= SLOWEST and not self._stopping:  # most bodies are smaller
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
        """Read a body that nothing needs: if a connection is closed before, its client may not get the response.

        Reading ends at the deadline, and with the client.
        """
        with suppress(RequestTimeoutError, OverloadedError, ClientDisconnect), self.receiving() as extend:
            async for piece in request.stream():
                extend(len(piece))

    @asynccontextmanager
    async def ending_with(self, stopping: anyio.Event) -> AsyncGenerator[None]:
        """While the block runs: once the event is set, leave every body `STOP_TIMEOUT` seconds."""
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
    """Return whether a request has a body, by its headers."""
    return request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers


def uploads_of(scope: Scope) -> Uploads:
    """The deadlines for the body of a request."""
    found: Uploads = scope[_EXTENSION]
    return found

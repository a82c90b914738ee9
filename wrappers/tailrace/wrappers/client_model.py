"""Models that are asked through a provider's official client: it knows authentication, retries and base URLs."""

from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, ClassVar, Protocol, cast

import aiohttp
import httpx2
from yarl import URL

from tailrace.wrappers.bodies import PostedBody
from tailrace.wrappers.http_model import HTTPModel, new_session
from tailrace.wrappers.messages import History
from tailrace.wrappers.model import REQUEST_HEADERS

_RETRY_COUNT = "x-stainless-retry-count"  # how often a client had sent the request before
_BODY = "tailrace.body"  # where a client's response has the body as it came


class _StatusError(Protocol):
    """What the official clients raise for an error status."""

    status_code: int
    body: object | None
    message: str
    response: Any


class ClientModel(HTTPModel):
    """A model that is asked through a provider's official client, which sends by a `ClientTransport`.

    Attributes:
        status_errors: What the client raises for an answer with an error status.
        connection_errors: What it raises when there is no answer.
    """

    status_errors: ClassVar[tuple[type[Exception], ...]]
    connection_errors: ClassVar[tuple[type[Exception], ...]]

    @abstractmethod
    def _open(self, history: History, parameters: dict[str, Any]) -> AbstractAsyncContextManager[Any]:
        """The client's streaming response (``with_streaming_response``)."""

    @asynccontextmanager
    async def _send(self, history: History, parameters: dict[str, Any]) -> AsyncGenerator[PostedBody]:
        broken: tuple[type[Exception], ...] = (
            *self.connection_errors,
            httpx2.HTTPError,
            aiohttp.ClientError,
            OSError,
        )
        try:
            async with self._open(history, _with_headers(parameters)) as response:
                yield response.http_response.extensions[_BODY]
        except self.status_errors as error:
            refused = cast("_StatusError", error)
            known = self._refused(
                refused.status_code, refused.response.headers, refused.body, refused.message
            )
            known.tries = _tries(refused.response)
            raise known from error
        except broken as error:
            raise self._unreachable(error, _tries(error)) from error


class ClientTransport(httpx2.AsyncBaseTransport):
    """Sends what an official client asks for as `tailrace.wrappers.http_model.DirectModel` sends its own requests.

    The client reads bodies of errors. That of an answer is read past it: the HTTP clients that it might bring drop what had
    arrived when the connection breaks, or take a multiple of what decoding costs.

    Args:
        connect_timeout: Seconds allowed for opening a connection, where a request says none; so here and below.
        read_timeout: Seconds of silence allowed before and between the pieces of an answer.
    """

    HEADERS: ClassVar = {"accept-encoding": "gzip, deflate"}
    """For all requests of the client: what is understood here, whatever the client itself understands."""

    def __init__(self, connect_timeout: float, read_timeout: float) -> None:
        self._connect_timeout = connect_timeout
        self._read_timeout = read_timeout
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; returns when the head of the answer is there."""
        if self._session is None:
            self._session = new_session(self._connect_timeout, self._read_timeout)
        asked = request.extensions.get("timeout", {})
        connect = asked.get("connect") or self._connect_timeout
        read = asked.get("read") or self._read_timeout
        with _errors_as_the_client_has_them():
            response = await self._session.request(
                request.method,
                URL(str(request.url), encoded=True),
                headers=request.headers.multi_items(),
                data=await request.aread() or None,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(sock_connect=connect, sock_read=read),
            )
        body = PostedBody(response, read)
        headers = [each for each in response.raw_headers if each[0].lower() != b"content-encoding"]
        stream = _Stream(body, is_refusal=response.status >= 400)
        return httpx2.Response(response.status, headers=headers, stream=stream, extensions={_BODY: body})

    async def aclose(self) -> None:
        """Close the kept connections."""
        if self._session is not None:
            await self._session.close()


class _Stream(httpx2.AsyncByteStream):
    """A body as the client reads it. Of a refusal that breaks off, what came counts: that it refused matters more."""

    def __init__(self, body: PostedBody, *, is_refusal: bool) -> None:
        self._body = body
        self._is_refusal = is_refusal

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            with _errors_as_the_client_has_them():
                async for piece in self._body:
                    yield piece
        except httpx2.TransportError:
            if not self._is_refusal:
                raise

    async def aclose(self) -> None:
        self._body.close()


@contextmanager
def _errors_as_the_client_has_them() -> Generator[None]:
    try:
        yield
    except (aiohttp.ClientError, OSError) as error:
        kind = httpx2.TimeoutException if isinstance(error, TimeoutError) else httpx2.NetworkError
        raise kind(str(error)) from error


def _with_headers(parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters with the headers that are set for now; those of the parameters win."""
    headers = REQUEST_HEADERS.get()
    if not headers:
        return parameters
    return {**parameters, "extra_headers": {**headers, **(parameters.get("extra_headers") or {})}}


def _tries(error: object) -> int:
    """How often an official client sent the request that has come to this: the last one says it in a header.

    Args:
        error: Its error where there was no answer, else the answer.
    """
    try:
        counted = cast("Any", error).request.headers.get(_RETRY_COUNT, "")
    except (AttributeError, RuntimeError):  # it was not sent by such a client, or not at all
        return 1
    return 1 + int(counted) if counted.isdecimal() else 1

"""Models whose requests are created by the official client of a provider.

The client handles authentication, retries and base URLs. It sends its requests through `ClientTransport`.
"""

from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, ClassVar, Protocol, cast

import httpx2

from tailrace.wrappers.concurrency.async_resource import Exit
from tailrace.wrappers.http import HttpClient, ResponseBody
from tailrace.wrappers.http.http_model import HTTPModel
from tailrace.wrappers.http.response import Body
from tailrace.wrappers.messages import History
from tailrace.wrappers.model import REQUEST_HEADERS

_RETRY_COUNT = "x-stainless-retry-count"  # request header with the number of retries
# Response headers that are hidden from the official client. ``content-encoding``: the body is already decompressed.
# ``set-cookie``: a cookie for one caller must not be sent in a request for another caller.
_WITHHELD_HEADERS = (b"content-encoding", b"set-cookie")
_BODY = "tailrace.body"  # httpx extension with the body of the response


class _StatusError(Protocol):
    """The exception that official clients raise for an error status."""

    status_code: int
    body: object | None
    message: str
    response: Any


class ClientModel(HTTPModel):
    """A model whose requests are created by the official client of a provider, with a `ClientTransport`.

    Attributes:
        status_errors: The client's exception classes for error statuses.
        connection_errors: The client's exception classes for requests without a response.
    """

    status_errors: ClassVar[tuple[type[Exception], ...]]
    connection_errors: ClassVar[tuple[type[Exception], ...]]

    @abstractmethod
    def _open(self, history: History, parameters: dict[str, Any]) -> AbstractAsyncContextManager[Any]:
        """Request a streaming response with the official client (``with_streaming_response``)."""

    async def _send(self, history: History, parameters: dict[str, Any], cost: int) -> tuple[Body, Exit]:
        sending = self._sending(history, parameters)
        return await sending.__aenter__(), sending.__aexit__

    @asynccontextmanager
    async def _sending(self, history: History, parameters: dict[str, Any]) -> AsyncGenerator[ResponseBody]:
        broken: tuple[type[Exception], ...] = (*self.connection_errors, httpx2.HTTPError, OSError)
        try:
            async with self._open(history, _with_headers(parameters)) as response:
                yield response.http_response.extensions[_BODY]
        except self.status_errors as error:
            refused = cast("_StatusError", error)
            status, headers, request = refused.status_code, refused.response.headers, refused.response.request
            known = (
                self._redirected(status, headers, str(request.url))
                if status < 400
                else self._status_error(status, headers, refused.body, refused.message)
            )
            known.tries = tries_of(refused.response)
            # ``from None``: the client's error message contains the body of the response.
            raise self.redacted_error(known, str(request.url), request.headers) from None
        except broken as error:
            unreachable = self._unreachable_error(error, tries_of(error))
            url, headers = sent_request(error)
            raise self.redacted_error(unreachable, url, headers) from error


class ClientTransport(httpx2.AsyncBaseTransport):
    """httpx transport for official clients. It sends requests with tailrace's HTTP client.

    The official client reads only the bodies of error responses. tailrace reads the other bodies itself, because common HTTP
    clients discard received data when the connection is lost.

    Args:
        connect_timeout: Maximum number of seconds to open a connection. A limit in the request takes precedence.
        read_timeout: Maximum number of seconds without data, before and within a response. A limit in the request takes
            precedence.
    """

    HEADERS: ClassVar = {"accept-encoding": "gzip, deflate"}
    """Headers of all requests: the content encodings that tailrace can decompress."""

    def __init__(self, connect_timeout: float, read_timeout: float) -> None:
        self._connect_timeout = connect_timeout
        self._read_timeout = read_timeout
        self._http: HttpClient | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request. Return the response after its headers have arrived."""
        if self._http is None:
            self._http = HttpClient(self._connect_timeout, self._read_timeout)
        limits = request.extensions.get("timeout", {})
        with _client_errors():
            response = await self._http.request(
                request.method,
                str(request.url),
                request.headers,
                await request.aread(),
                connect_timeout=limits.get("connect"),
                read_timeout=limits.get("read"),
            )
        headers = [each for each in response.headers.fields if each[0].lower() not in _WITHHELD_HEADERS]
        stream = _Stream(response.body, is_refusal=response.status >= 400)
        return httpx2.Response(
            response.status, headers=headers, stream=stream, extensions={_BODY: response.body}
        )

    async def aclose(self) -> None:
        """Close the pooled connections."""
        if self._http is not None:
            await self._http.aclose()


class _Stream(httpx2.AsyncByteStream):
    """A response body for the official client. A truncated error response is no error, because its status is sufficient."""

    def __init__(self, body: ResponseBody, *, is_refusal: bool) -> None:
        self._body = body
        self._is_refusal = is_refusal

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            with _client_errors():
                async for chunk in self._body:
                    yield chunk
        except httpx2.TransportError:
            if not self._is_refusal:
                raise

    async def aclose(self) -> None:
        self._body.close()


@contextmanager
def _client_errors() -> Generator[None]:
    try:
        yield
    except OSError as error:
        kind = httpx2.TimeoutException if isinstance(error, TimeoutError) else httpx2.NetworkError
        raise kind(str(error)) from error


def _with_headers(parameters: dict[str, Any]) -> dict[str, Any]:
    """Add the headers of `REQUEST_HEADERS` to the parameters, whose headers take precedence."""
    headers = REQUEST_HEADERS.get()
    if not headers:
        return parameters
    return {**parameters, "extra_headers": {**headers, **(parameters.get("extra_headers") or {})}}


def sent_request(error: Exception) -> tuple[str, Mapping[str, str]]:
    """Return the URL and headers of a failed request. Both are empty if the client created no request."""
    try:
        request = cast("Any", error).request
        return str(request.url), request.headers
    except (AttributeError, RuntimeError):  # an exception without a request
        return "", {}


def tries_of(error: object) -> int:
    """Return how often an official client has sent a request. The client sends the number of retries in a header.

    Args:
        error: The response, or the exception of the client if there is no response.
    """
    try:
        counted = cast("Any", error).request.headers.get(_RETRY_COUNT, "")
    except (AttributeError, RuntimeError):  # an exception without a request, or another client
        return 1
    return 1 + int(counted) if counted.isdecimal() else 1

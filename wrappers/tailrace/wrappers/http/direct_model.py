"""Models that send their requests with tailrace's HTTP client."""

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, Unpack

import anyio

from tailrace.wrappers.concurrency.async_resource import Exit
from tailrace.wrappers.concurrency.worker_thread import json_cost, run_bounded
from tailrace.wrappers.decoding.lenient_json import read_json
from tailrace.wrappers.decoding.verbatim_json import encode_request
from tailrace.wrappers.errors import UpstreamError, UpstreamFault
from tailrace.wrappers.http import HttpClient, HttpResponse, ReadTimeout
from tailrace.wrappers.http.http_model import ConnectionArguments, HTTPModel
from tailrace.wrappers.http.response import Body
from tailrace.wrappers.http.retries import retry_delay, should_retry
from tailrace.wrappers.messages import History
from tailrace.wrappers.model import REQUEST_HEADERS
from tailrace.wrappers.providers import find_key

_MAX_ERROR_BYTES = 1024 * 1024  # bytes of an error response that are read
_MAX_BODY_BYTES = 64 * 1024 * 1024


class DirectModel(HTTPModel):
    """A model that sends its requests with tailrace's HTTP client, without an official client.

    A request is retried after a temporary error status (for example 429 or 503) and after a connection error, as in the official
    clients. The provider may request a delay before the retry. Otherwise, the delay doubles with each retry. There is no retry
    after a read timeout, or after a response has started. Nor is there a retry if the provider forbids it (header
    ``x-should-retry``) or requests a delay of more than two minutes. Cancellation ends a delay immediately.

    Args:
        name: The model's name.
        base_url: The root URL of the API; None for the provider's default.
        api_key: The API key; None to use the environment variables of the provider (see `tailrace.wrappers.providers`).
        keyless: True to send no key, for example if another header authenticates the requests.
        arguments: See `HTTPModel`.

    Attributes:
        has_embeddings: True if the provider supports OpenAI's Embeddings API. Only then may `embed` be called.

    Raises:
        ConfigurationError: The provider requires an API key, and no key is configured.
    """

    default_base_url: ClassVar[str] = ""
    has_embeddings: ClassVar[bool] = False

    _http: HttpClient | None = None

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        keyless: bool = False,
        **arguments: Unpack[ConnectionArguments],
    ) -> None:
        super().__init__(name, **arguments)
        self._base_url = (base_url or self.default_base_url).rstrip("/")
        self._api_key = None if keyless else find_key(self.provider, name, api_key)

    @abstractmethod
    def _request(
        self, history: History, parameters: Mapping[str, Any]
    ) -> tuple[str, Mapping[str, str], object]:
        """Return the URL, headers and body of a request. The body is bytes, or a value that is encoded as JSON.

        The method is called again for each retry, because some signatures contain the time.
        """

    def _embeddings_request(self, members: Mapping[str, Any]) -> tuple[str, Mapping[str, str], object]:
        """Return the URL, headers and body of a request to the provider's Embeddings API, if ``has_embeddings`` is True."""
        raise NotImplementedError

    async def embed(self, members: Mapping[str, Any]) -> bytes:
        """Send a request to the Embeddings API. Return the body of the response.

        Args:
            members: The members of the request except ``model``.

        Raises:
            UpstreamError: See `stream`. Also raised if the response is larger than 64 MiB.
        """
        return await self._fetch(self._embeddings_request({**members, "model": self.name}))

    async def _fetch(self, request: tuple[str, Mapping[str, str], object]) -> bytes:
        """Send a request (see `_request`). Return the complete body of the response."""
        url, headers, body = request

        def encode() -> tuple[str, Mapping[str, str], bytes]:
            return url, headers, encode_request(body)

        response = await self._send_encoded(json_cost(body), encode)
        data = bytearray()
        try:
            async for chunk in response.body:
                data += chunk
                if len(data) > _MAX_BODY_BYTES:
                    raise UpstreamError(
                        f"the provider's response is larger than {_MAX_BODY_BYTES} bytes",
                        fault=UpstreamFault.INVALID,
                        provider=self.provider,
                    )
        except OSError as error:
            raise self.redacted_error(self.connection_error(error), url, headers) from error
        finally:
            response.close()
        return bytes(data)

    async def aclose(self) -> None:
        """Close the pooled connections."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def _send(self, history: History, parameters: dict[str, Any], cost: int) -> tuple[Body, Exit]:
        response = await self._post(history, parameters, cost)
        return response.body, partial(close_response, response)

    def _encoded(
        self, history: History, parameters: Mapping[str, Any]
    ) -> tuple[str, Mapping[str, str], bytes]:
        url, headers, body = self._request(history, parameters)
        return url, headers, body if isinstance(body, bytes) else encode_request(body)

    async def _post(self, history: History, parameters: Mapping[str, Any], cost: int) -> HttpResponse:
        return await self._send_encoded(cost, partial(self._encoded, history, parameters))

    async def _send_encoded(
        self, cost: int, encode: Callable[[], tuple[str, Mapping[str, str], bytes]], method: str = "POST"
    ) -> HttpResponse:
        """Send a request, with retries.

        Args:
            cost: The cost of ``encode`` for `run_bounded`.
            encode: Returns the URL, headers and body. Called again for each retry.
            method: The method of the request.
        """
        for attempt in range(self._max_retries + 1):
            is_last = attempt == self._max_retries
            url, headers, payload = await run_bounded(cost, encode)
            sent_headers = {**REQUEST_HEADERS.get(), "content-type": "application/json", **headers}
            try:
                response = await self._client().request(method, url, sent_headers, payload)
            except OSError as error:
                # A retry after a read timeout would exceed the read timeout.
                if is_last or isinstance(error, ReadTimeout):
                    raise self.redacted_error(
                        self._unreachable_error(error, attempt + 1), url, sent_headers
                    ) from error
                pause = None
            else:
                if response.status < 300:
                    return response
                rejection = await self._read_error_response(response)
                rejection.tries = attempt + 1
                if is_last or not should_retry(response.status, response.headers, rejection.retry_after):
                    raise rejection
                pause = rejection.retry_after
            await anyio.sleep(retry_delay(attempt, pause))
        raise AssertionError("the last attempt returns or raises")

    async def _read_error_response(self, response: HttpResponse) -> UpstreamError:
        request = response.body.request
        body = bytearray()
        try:
            if response.status < 400:
                redirected = self._redirected(response.status, response.headers, request.url)
                return self.redacted_error(redirected, request.url, request.headers)
            # The status is sufficient if the body does not arrive in time.
            with suppress(OSError):
                async with asyncio.timeout(self._read_timeout):
                    async for data in response.body:
                        body += data
                        if len(body) >= _MAX_ERROR_BYTES:
                            break
        finally:
            response.close()
        try:
            content: object = read_json(bytes(body))
        except (ValueError, RecursionError):
            content = body.decode("utf-8", "replace").strip()
        refused = self._status_error(response.status, response.headers, content, response.reason)
        return self.redacted_error(refused, request.url, request.headers)

    def _client(self) -> HttpClient:
        if self._http is None:
            self._http = HttpClient(self._connect_timeout, self._read_timeout)
        return self._http


async def close_response(response: HttpResponse, *_raised: object) -> None:
    """Close a response, as the `Exit` of an `AsyncResource`."""
    response.close()

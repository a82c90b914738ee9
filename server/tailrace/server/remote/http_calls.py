"""HTTP requests to a remote agent."""

from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import aiohttp

from tailrace.server.remote.agent_card import CARD_PATHS, RemoteCard
from tailrace.server.remote.agent_origins import MAX_REDIRECTS, AgentOrigins, join_url, origin_of
from tailrace.server.remote.http_codecs import Binding
from tailrace.server.runtime.identifier_bounds import MAX_ID_LENGTH
from tailrace.streaming.a2a.errors import A2AError, MethodNotFoundError
from tailrace.streaming.a2a.version_codec import Operation
from tailrace.wrappers import ConfigurationError, TailraceError, UpstreamError, UpstreamFault
from tailrace.wrappers.concurrency.worker_thread import json_cost, run_bounded, text_cost
from tailrace.wrappers.decoding.framing import MAX_EVENT_BYTES, SSEDecoder
from tailrace.wrappers.decoding.json_value_counter import count_json_values
from tailrace.wrappers.http.retries import retry_after

MAX_CARD_BYTES = 1024 * 1024
"""Maximum size of an agent card in bytes."""

MAX_RESPONSE_BYTES = 64 * 1024 * 1024
"""Maximum size of all events of one response in bytes."""

MAX_EVENT_VALUES = 100_000
"""Maximum number of JSON values in one event, or in one response that is not a stream."""

_SMALL = 16 * 1024  # bytes below which the values of an event are not counted

_EVENTS = "text/event-stream"


class CardResponse(NamedTuple):
    """A response with an agent card.

    Attributes:
        body: The response body.
        url: The URL of the card.
        powered_by: The ``X-Powered-By`` header; empty if there is none.
    """

    body: bytes
    url: str
    powered_by: str


class HttpCalls:
    """Calls to an agent over JSON-RPC or HTTP+JSON. Parameters and results are JSON objects of A2A 1.0.

    Args:
        session: Session with connections and timeouts.
        card: The agent card.
        unary_timeout: Timeouts for a message whose response is not streamed.
    """

    def __init__(
        self, session: aiohttp.ClientSession, card: RemoteCard, unary_timeout: aiohttp.ClientTimeout
    ) -> None:
        self._session = session
        self._url = card.url
        self._binding = Binding(card)
        self._unary_timeout = unary_timeout

    async def events(
        self, operation: Operation, fields: dict[str, Any], headers: Mapping[str, str]
    ) -> AsyncGenerator[tuple[dict[str, Any], str]]:
        """Yield the events of one response, each with its SSE id, which may be empty.

        Raises:
            A2AError: The agent returns an error of the protocol.
            UpstreamError: The call fails with another error.
        """
        accept = {"accept": f"{_EVENTS}, application/json", **headers}
        async with self._response(operation, fields, accept) as response:
            if _EVENTS not in response.headers.get("content-type", ""):
                yield await self._read(operation, await read_body(response)), ""
                return
            decoder, remaining_bytes = SSEDecoder(), MAX_RESPONSE_BYTES
            async for data in response.content.iter_any():
                for frame in decoder.feed(data[:remaining_bytes]):
                    if frame.data:
                        yield await self._read(operation, frame.data), _event_id(frame.id)
                remaining_bytes -= len(data)
                if remaining_bytes < 0:
                    raise _too_large(f"{MAX_RESPONSE_BYTES} bytes")

    async def result(
        self, operation: Operation, fields: dict[str, Any], headers: Mapping[str, str]
    ) -> dict[str, Any]:
        """Return the result of an operation whose response is not a stream.

        Raises:
            A2AError: See `events`.
            UpstreamError: See `events`.
        """
        async with self._response(operation, fields, {"accept": "application/json", **headers}) as response:
            return await self._read(operation, await read_body(response))

    async def _read(self, operation: Operation, body: bytes) -> dict[str, Any]:
        """Decode a response with `Binding.read`, and check its number of JSON values."""
        if len(body) <= _SMALL:
            return self._binding.read(operation, body)
        values = count_json_values(body, MAX_EVENT_VALUES)
        if values > MAX_EVENT_VALUES:
            raise _too_large(f"{MAX_EVENT_VALUES} JSON values")
        return await run_bounded(values + text_cost(body), self._binding.read, operation, body)

    @asynccontextmanager
    async def _response(
        self, operation: Operation, fields: dict[str, Any], headers: Mapping[str, str]
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """Send a request, and return the successful response before its body is read."""
        headers = {"content-type": "application/json", "a2a-version": self._binding.version, **headers}
        timeout = self._unary_timeout if operation is Operation.SEND_MESSAGE else self._session.timeout
        requests = await run_bounded(json_cost(fields), self._binding.write, operation, fields)
        with network_errors(self._url):
            for request in requests:
                method, url, body = request
                async with self._session.request(
                    method, url, data=body or None, headers=headers, allow_redirects=False, timeout=timeout
                ) as response:
                    _refuse_encoding(response)
                    if (
                        200 <= response.status < 300
                    ):  # the SDK for JavaScript returns 201 and 202 with HTTP+JSON of A2A 0.3
                        yield response
                        return
                    refusal = await self._refusal(operation, response)
                if response.status != 405 or request is requests[-1]:
                    raise refusal

    async def _refusal(self, operation: Operation, response: aiohttp.ClientResponse) -> TailraceError:
        """Convert an error response to an exception."""
        try:
            await self._read(operation, await read_body(response))
        except A2AError as error:
            return error
        except UpstreamError as error:
            if error.fault is UpstreamFault.PROVIDER:
                return error
        status = response.status
        if status in (404, 405) and not self._binding.is_json_rpc:
            return MethodNotFoundError(f"HTTP {status}")
        problem = "answered with an HTTP error"
        if 300 <= status < 400:
            target = origin_of(join_url(self._url, response.headers.get("location", ""))) or "no address"
            problem = f"redirects to {target}, which is not followed: its card has to name where it is called"
        return UpstreamError(
            f"the agent at {self._url} {problem}",
            fault=UpstreamFault.STATUS,
            status=status,
            retry_after=retry_after(response.headers),
        )


async def fetch_card(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str], origins: AgentOrigins
) -> CardResponse:
    """Fetch an agent card, and follow redirects to permitted origins.

    Args:
        session: Session with connections and timeouts.
        url: URL of the agent, or URL of its card (which ends in ``.json``).
        headers: Headers of the request.
        origins: The permitted origins.

    Raises:
        UpstreamError: There is no card, the agent cannot be reached, or a redirect is not permitted.
        ConfigurationError: The URL is not valid.
    """
    urls = [url] if url.endswith(".json") else [url.rstrip("/") + path for path in CARD_PATHS]
    refusal = None
    for each in urls:
        with network_errors(each):
            result = await _follow_redirects(session, each, headers, origins)
        if not isinstance(result, int):
            return result
        refusal = refusal or UpstreamError(
            f"there is no agent card at {each}", fault=UpstreamFault.STATUS, status=result
        )
    raise refusal or ConfigurationError(f"{url!r} is not the URL of an agent")


async def _follow_redirects(
    session: aiohttp.ClientSession, url: str, headers: Mapping[str, str], origins: AgentOrigins
) -> CardResponse | int:
    """Return the response with the card, or the HTTP status of a response without a card."""
    for _ in range(MAX_REDIRECTS + 1):
        async with session.get(url, headers=headers, allow_redirects=False) as response:
            _refuse_encoding(response)
            if response.status == 200:
                body = await read_body(response, MAX_CARD_BYTES)
                return CardResponse(body, url, response.headers.get("x-powered-by", ""))
            if "location" not in response.headers or not 300 <= response.status < 400:
                return response.status
            url = origins.redirect(url, response.headers["location"])
    raise UpstreamError(
        f"the agent card at {url} exceeds {MAX_REDIRECTS} redirects", fault=UpstreamFault.INVALID
    )


async def read_body(response: aiohttp.ClientResponse, limit: int = MAX_EVENT_BYTES) -> bytes:
    """Read the complete body of a response.

    Raises:
        UpstreamError: The body is larger than the limit.
    """
    body = bytearray()
    async for data in response.content.iter_any():
        body += data
        if len(body) > limit:
            raise _too_large(f"{limit} bytes")
    return bytes(body)


def _event_id(event_id: str) -> str:
    """Return the id of an event; empty if the id is not valid in a request header."""
    return (
        event_id if event_id.isascii() and event_id.isprintable() and len(event_id) <= MAX_ID_LENGTH else ""
    )


def _too_large(allowed: str) -> UpstreamError:
    return UpstreamError(f"the agent's response exceeds {allowed}", fault=UpstreamFault.TOO_LARGE)


def _refuse_encoding(response: aiohttp.ClientResponse) -> None:
    """Reject a compressed response, because decompressed data could exceed the memory."""
    if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise UpstreamError(
            "the agent compressed its response; only uncompressed responses are accepted",
            fault=UpstreamFault.INVALID,
        )


@contextmanager
def network_errors(url: str) -> Generator[None]:
    """Convert errors of the HTTP client to errors of tailrace.

    Raises:
        ConfigurationError: The URL is not valid.
        UpstreamError: The request failed.
    """
    try:
        yield
    except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
        raise ConfigurationError(f"{url!r} is not the URL of an agent") from None
    except TimeoutError:
        raise UpstreamError(
            f"the agent at {url} does not respond in time", fault=UpstreamFault.TIMEOUT
        ) from None
    except aiohttp.ClientConnectorError as error:
        raise UpstreamError(
            f"the agent at {url} cannot be reached: {error.strerror or error}", fault=UpstreamFault.CONNECTION
        ) from None
    except (aiohttp.ClientError, OSError) as error:
        raise UpstreamError(
            f"the connection to the agent at {url} broke off ({type(error).__name__})",
            fault=UpstreamFault.CONNECTION,
        ) from None

"""Models with an HTTP API: sending of requests, reading of streamed responses, and conversion of errors.

`tailrace.wrappers.http.client_model` sends requests through a provider's official client, which supports further
credentials (profiles, fetched tokens). `DirectModel` sends them itself. Connections and reading are the same for both.
"""

import asyncio
import math
import random
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, ClassVar, TypedDict, Unpack
from urllib.parse import urljoin, urlsplit

import anyio

from tailrace.wrappers.concurrency.async_resource import AsyncResource, Exit
from tailrace.wrappers.concurrency.worker_thread import history_cost, json_cost, run_bounded
from tailrace.wrappers.conversion.options import NO_OPTIONS, RequestOptions
from tailrace.wrappers.conversion.parameters import has_tools, merged
from tailrace.wrappers.conversion.tool_ids import with_answers, with_matched_ids
from tailrace.wrappers.conversion.tool_names import ToolNames
from tailrace.wrappers.decoding.decoder import ResponseDecoder
from tailrace.wrappers.decoding.error_reports import provider_error
from tailrace.wrappers.decoding.lenient_json import read_json
from tailrace.wrappers.decoding.verbatim_json import encode_request
from tailrace.wrappers.errors import ConfigurationError, ProtocolError, UpstreamError, UpstreamFault
from tailrace.wrappers.http import ConnectTimeout, HttpClient, HttpResponse, ReadTimeout, TransportError
from tailrace.wrappers.http.response import Body, ChunkStream
from tailrace.wrappers.messages import History
from tailrace.wrappers.model import REQUEST_HEADERS, ChunkBatches, Model
from tailrace.wrappers.providers import find_key, find_provider
from tailrace.wrappers.redaction.redaction import Redactor

_MAX_ERROR_BYTES = 1024 * 1024  # of an error response
_MAX_EMBEDDINGS_BYTES = 64 * 1024 * 1024
_MAX_MESSAGE = 500  # characters of a plain text body that is used as message
_RETRIED = frozenset({408, 409, 429, 500, 502, 503, 504, 529})
_NETWORK_FAULTS = frozenset({UpstreamFault.CONNECTION, UpstreamFault.TRUNCATED})
_FIRST_PAUSE, _LONGEST_PAUSE = (
    0.5,
    8.0,
)  # seconds between retries: doubled each time, reduced by up to a quarter
_CREDENTIALS_REFUSED = (401, 403)
_MAX_RETRY_AFTER = 120.0  # limit of the official clients; longer delays are not awaited


class ConnectionArguments(TypedDict, total=False):
    """Arguments of all models with an HTTP API; see `HTTPModel`."""

    connect_timeout: float
    read_timeout: float
    max_retries: int
    parameters: Mapping[str, Any] | None


class ModelArguments(ConnectionArguments, total=False):
    """Arguments of all models whose requests are sent by tailrace; see `DirectModel`."""

    base_url: str | None
    api_key: str | None


class HTTPModel(Model):
    """A model with an HTTP API that streams responses.

    Args:
        name: The model's name.
        connect_timeout: Seconds allowed for a connection.
        read_timeout: Seconds without data allowed before and within a response.
        max_retries: Maximum number of retries before any data of a response was received.
        parameters: Further members of every request, under the provider's names. A request's options override them, see
            `tailrace.wrappers.conversion.parameters.merged`.
    """

    def __init__(
        self,
        name: str,
        *,
        connect_timeout: float = 10.0,
        read_timeout: float = 60.0,
        max_retries: int = 2,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self._connect_timeout = connect_timeout
        self._read_timeout = read_timeout
        self._max_retries = max_retries
        self._given_parameters = dict(parameters or {})

    @abstractmethod
    def _members(self, options: RequestOptions) -> dict[str, Any]:
        """Convert options to members of this provider's request; empty for `NO_OPTIONS`.

        Raises:
            ValueError: The provider does not support an essential option.
        """

    def _request_members(self, options: RequestOptions) -> dict[str, Any]:
        """Return the further members of one request: the parameters, and those of its options.

        Without tools, the tool choice is omitted, because most providers reject it. A choice that requires a call is
        sent nevertheless, so that the provider reports the error.
        """
        if options is NO_OPTIONS:
            return self._given_parameters
        native = options.native_tools if self.accepts_native_tools else ()
        if not (options.tools or native) and not has_tools(self._given_parameters):
            choice = options.tool_choice
            chosen = choice if choice is not None and choice.mode in ("required", "tool") else None
            options = options.model_copy(update={"tool_choice": chosen, "parallel_tool_calls": None})
        return merged(self._given_parameters, self._members(options))

    @abstractmethod
    def _send(self, history: History, parameters: dict[str, Any]) -> AbstractAsyncContextManager[Body]:
        """Send the request with the further members ``parameters``; yield the body of the response."""

    @abstractmethod
    def _decoder(self) -> ResponseDecoder[Any]:
        """Create a decoder for one response."""

    def stream(
        self, history: History, options: RequestOptions = NO_OPTIONS
    ) -> AbstractAsyncContextManager[ChunkBatches]:
        """Generate the model's response to a conversation; see `Model.stream`.

        Interrupted conversations, and those of other providers, are repaired first: calls and results are matched, and
        ids and tool names that the provider rejects are replaced. Calls in the response have the original tool names.

        Raises:
            ProtocolError: The provider does not support a part of the conversation or an option.
        """
        return AsyncResource(partial(self._ask, history, options))

    async def _ask(self, history: History, options: RequestOptions) -> tuple[ChunkBatches, Exit]:
        names = ToolNames(self.converter.name_rule)
        try:
            parameters = self._request_members(options)
            parameters = await run_bounded(json_cost(parameters), names.in_parameters, parameters)
            history = await run_bounded(history_cost(history), self._matched, history, names)
            sending = self._send(history, parameters)
            body = await sending.__aenter__()
        except ValueError as error:
            raise ProtocolError(f"{self.provider} cannot be asked that: {error}") from error
        stream = ChunkStream(body, self._decoder(), names if names.has_changes else None, self)
        return stream, sending.__aexit__

    def _matched(self, history: History, names: ToolNames) -> History:
        """Return the history with matched calls and results, and with valid ids and names."""
        matched = with_answers(with_matched_ids(history, pattern=self.converter.id_pattern))
        return names.in_history(matched)

    def _silent(self) -> UpstreamError:
        return UpstreamError(
            f"the provider sent nothing for {self._read_timeout:g} seconds",
            fault=UpstreamFault.TIMEOUT,
            provider=self.provider,
        )

    def broken(self, error: Exception) -> UpstreamError:
        """Convert the error of a connection that broke within a response."""
        if is_timeout(error):
            return self._silent()
        return UpstreamError(
            f"the connection broke in the middle of the answer: {_first_line(_cause(error))}",
            fault=UpstreamFault.TRUNCATED,
            provider=self.provider,
        )

    def _unreachable(self, error: Exception, tries: int = 1) -> UpstreamError:
        cause = _cause(error)
        if is_timeout(error) and not isinstance(cause, ConnectTimeout):
            silent = self._silent()
            silent.tries = tries
            return silent
        return UpstreamError(
            f"the provider cannot be reached: {_first_line(cause)}",
            fault=UpstreamFault.TIMEOUT if is_timeout(error) else UpstreamFault.CONNECTION,
            provider=self.provider,
            tries=tries,
        )

    def withheld(self, error: UpstreamError, url: str, headers: Mapping[str, str]) -> UpstreamError:
        """Redact an error for callers, with the complete description in its ``diagnosis``; return the same error.

        Used for all errors of a response: of its status, its connection and its events.

        Args:
            error: The error, not redacted yet.
            url: The request's URL.
            headers: The request's headers.
        """
        if error.status in _CREDENTIALS_REFUSED:
            error.diagnosis = error.diagnosis or error.message
            error.message = (
                f"the provider refused this server's credentials; the operator has to check {self._keys}"
            )
            error.details = None
        elif error.fault in _NETWORK_FAULTS:
            error.diagnosis = error.diagnosis or error.message
        return Redactor.of_request(url, headers).redact(error)

    @property
    def _keys(self) -> str:
        """The names of the settings of the key."""
        try:
            variables = find_provider(self.provider).key_variables
        except ConfigurationError:
            variables = ()
        return " or ".join(("TAILRACE_API_KEY", *variables))

    def _redirected(self, status: int, headers: Mapping[str, str], url: str) -> UpstreamError:
        """Return the error of a redirect; conversation and key are only sent to the configured URL."""
        origin = _origin(url, headers.get("location", ""))
        return UpstreamError(
            f"the provider redirects to {origin or 'no address'}, and redirects are not followed: set the base URL "
            "(TAILRACE_BASE_URL, --base-url) to where the API is",
            fault=UpstreamFault.STATUS,
            provider=self.provider,
            status=status,
        )

    def _refused(
        self, status: int, headers: Mapping[str, str], body: object, message: str = ""
    ) -> UpstreamError:
        """Convert a response with an error status to an error.

        Args:
            status: The HTTP status.
            headers: The response's headers.
            body: The response's body as JSON or text.
            message: Description used if the body has none.
        """
        words = body.strip() if isinstance(body, str) else None
        if words is not None and (words.startswith("<") or len(words) > _MAX_MESSAGE):
            body, report = words, None  # a proxy's HTML page is not a message
        else:
            report = provider_error(body, self.provider) if body else None
        return UpstreamError(
            report.message if report else f"the provider refused: {message or f'HTTP {status}'}",
            fault=UpstreamFault.STATUS,
            provider=self.provider,
            status=status,
            code=report.code if report else None,
            retry_after=retry_after(headers),
            details=body,
        )


class DirectModel(HTTPModel):
    """A model whose requests are sent by tailrace's HTTP client.

    Requests are retried after temporary errors (429, 5xx) and connection errors as by the official clients: after the
    delay that the provider requests, otherwise after a doubling delay; not if the provider forbids it
    (``x-should-retry: false``) or requests a delay of more than two minutes. There are no retries once a response has
    started. Cancellation ends a delay immediately.

    Args:
        name: The model's name.
        base_url: The API's root; the provider's default when None.
        api_key: The key; the environment's when None (the variables in the provider registry).
        keyless: Send no key, because requests are authenticated otherwise.
        arguments: See `HTTPModel`.

    Attributes:
        default_base_url: The provider's default API root.
        has_embeddings: The provider has OpenAI's Embeddings API, for `embed`.

    Raises:
        ConfigurationError: The provider requires a key and there is none.
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
        """Return the request's URL, headers and body, which is sent as JSON unless it is bytes.

        Called for every attempt, since some signatures include the time.
        """

    def _embeddings_request(self, members: Mapping[str, Any]) -> tuple[str, Mapping[str, str], object]:
        """Return URL, headers and body of a request to OpenAI's Embeddings API at this provider.

        Called only if the class sets ``has_embeddings``.
        """
        raise NotImplementedError

    async def embed(self, members: Mapping[str, Any]) -> bytes:
        """Send a request to OpenAI's Embeddings API; return the body of the response.

        Args:
            members: Members of the request; ``model`` is this model.

        Raises:
            UpstreamError: As `stream`, or the response is larger than 64 MiB.
        """
        url, headers, body = self._embeddings_request({**members, "model": self.name})

        def encode() -> tuple[str, Mapping[str, str], bytes]:
            return url, headers, encode_request(body)

        response = await self._post_encoded(json_cost(members), encode)
        data = bytearray()
        try:
            async for piece in response.body:
                data += piece
                if len(data) > _MAX_EMBEDDINGS_BYTES:
                    raise UpstreamError(
                        f"the provider's response is larger than {_MAX_EMBEDDINGS_BYTES} bytes",
                        fault=UpstreamFault.INVALID,
                        provider=self.provider,
                    )
        except OSError as error:
            raise self.withheld(self.broken(error), url, headers) from error
        finally:
            response.close()
        return bytes(data)

    async def aclose(self) -> None:
        """Close the pooled connections."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    def _send(self, history: History, parameters: dict[str, Any]) -> AbstractAsyncContextManager[Body]:
        return AsyncResource(partial(self._posted, history, parameters))

    async def _posted(self, history: History, parameters: Mapping[str, Any]) -> tuple[Body, Exit]:
        response = await self._post(history, parameters)
        return response.body, partial(_close, response)

    def _encoded(
        self, history: History, parameters: Mapping[str, Any]
    ) -> tuple[str, Mapping[str, str], bytes]:
        url, headers, body = self._request(history, parameters)
        return url, headers, body if isinstance(body, bytes) else encode_request(body)

    async def _post(self, history: History, parameters: Mapping[str, Any]) -> HttpResponse:
        cost = history_cost(history) + json_cost(parameters)
        return await self._post_encoded(cost, partial(self._encoded, history, parameters))

    async def _post_encoded(
        self, cost: int, encode: Callable[[], tuple[str, Mapping[str, str], bytes]]
    ) -> HttpResponse:
        """Send a request, with retries.

        Args:
            cost: The cost of ``encode``, for `run_bounded`.
            encode: Returns URL, headers and body of an attempt.
        """
        for attempt in range(self._max_retries + 1):
            last = attempt == self._max_retries
            url, headers, payload = await run_bounded(cost, encode)
            sent = {**REQUEST_HEADERS.get(), "content-type": "application/json", **headers}
            try:
                response = await self._client().request("POST", url, sent, payload)
            except OSError as error:
                # No retry after a read timeout, which is the caller's limit.
                if last or isinstance(error, ReadTimeout):
                    raise self.withheld(self._unreachable(error, attempt + 1), url, sent) from error
                pause = None
            else:
                if response.status < 300:
                    return response
                refused = await self._read_refusal(response)
                refused.tries = attempt + 1
                if last or not _should_retry(response.status, response.headers, refused.retry_after):
                    raise refused
                pause = refused.retry_after
            await anyio.sleep(_pause(attempt, pause))
        raise AssertionError("the last attempt returns or raises")

    async def _read_refusal(self, response: HttpResponse) -> UpstreamError:
        request = response.body.request
        body = bytearray()
        try:
            if response.status < 400:
                redirected = self._redirected(response.status, response.headers, request.url)
                return self.withheld(redirected, request.url, request.headers)
            # The status is sufficient, so an incomplete body is accepted after the timeout.
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
        refused = self._refused(response.status, response.headers, content, response.reason)
        return self.withheld(refused, request.url, request.headers)

    def _client(self) -> HttpClient:
        if self._http is None:
            self._http = HttpClient(self._connect_timeout, self._read_timeout)
        return self._http


async def _close(response: HttpResponse, *_raised: object) -> None:
    response.close()


def is_timeout(error: BaseException) -> bool:
    """Return True for a timeout. The cause decides, since official clients also report dropped connections as timeouts."""
    cause = _cause(error)
    if isinstance(cause, (TransportError, TimeoutError)):
        return isinstance(cause, TimeoutError)
    client = sys.modules.get("httpx2")  # already imported if one of its errors was raised
    return client is not None and isinstance(error, client.TimeoutException)


def _should_retry(status: int, headers: Mapping[str, str], delay: float | None) -> bool:
    """Return True if an error is temporary and its delay is within the limit."""
    if delay is not None and delay > _MAX_RETRY_AFTER:
        return False
    header = headers.get("x-should-retry")
    return header == "true" or (header != "false" and status in _RETRIED)


def _pause(attempt: int, requested: float | None) -> float:
    if requested:
        return requested
    return min(_FIRST_PAUSE * 2**attempt, _LONGEST_PAUSE) * (1 - 0.25 * random.random())  # noqa: S311


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the delay in seconds that a response's headers request; None if they request none.

    ``retry-after-ms`` in milliseconds takes precedence; ``retry-after`` is in seconds (possibly with fractions) or a
    date (RFC 9110, section 10.2.3), where a past date yields 0.
    """
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        with suppress(ValueError):
            value = float(headers.get(name, ""))
            if math.isfinite(value) and value >= 0:
                return value / unit
    with suppress(ValueError):
        day = parsedate_to_datetime(headers.get("retry-after", ""))
        day = day if day.tzinfo else day.replace(tzinfo=UTC)
        return max(0.0, (day - datetime.now(UTC)).total_seconds())
    return None


def _origin(base: str, location: str) -> str:
    """Return scheme, host and port of a URL relative to a base; empty for an invalid URL or another scheme."""
    try:
        parts = urlsplit(urljoin(base, location))
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return ""
    host = parts.hostname or ""
    if parts.scheme not in ("http", "https") or not host:
        return ""
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}"


def _cause(error: BaseException) -> BaseException:
    """Return the transport's error that caused an error; for another transport the innermost cause."""
    while error.__cause__ is not None and not isinstance(error, (TransportError, TimeoutError)):
        error = error.__cause__
    return error


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0].removesuffix(":") or type(error).__name__

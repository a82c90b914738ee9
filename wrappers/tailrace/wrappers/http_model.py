"""Models behind HTTP: sending a request, reading the body of the answer as it comes, and saying what went wrong.

Two ways of sending. `tailrace.wrappers.client_model` goes through a provider's official client where that knows what a
request does not say (profiles, tokens that are fetched). `DirectModel` posts the request itself. The connections and the
reading are the same for both.
"""

import asyncio
import math
import random
import sys
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any
from urllib.request import getproxies

import aiohttp
import anyio
import msgspec
from aiohttp.http_exceptions import HttpProcessingError

from tailrace.wrappers.bodies import PostedBody
from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.decoding import ResponseDecoder
from tailrace.wrappers.error_reports import provider_error
from tailrace.wrappers.errors import ProtocolError, UpstreamError, UpstreamFault
from tailrace.wrappers.loose_json import read_json
from tailrace.wrappers.messages import History
from tailrace.wrappers.model import REQUEST_HEADERS, ArrivingBatches, ChunkBatches, Model, TakeChunks
from tailrace.wrappers.opened import Exit, Opened
from tailrace.wrappers.options import NO_OPTIONS, RequestOptions
from tailrace.wrappers.parameters import merged, offered
from tailrace.wrappers.tool_ids import with_answers, with_matched_ids
from tailrace.wrappers.tool_names import ToolNames

_MAX_ERROR_BYTES = 1024 * 1024  # of an error's body
_MAX_MESSAGE = 500  # characters of a body of plain text that are a message
_RETRIED = frozenset({408, 409, 429, 500, 502, 503, 504, 529})
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 8.0  # seconds between retries: doubled each time, cut by up to a quarter
_MAX_RETRY_AFTER = 120.0  # as the official clients have it; whoever asks for more is not asked again


class HTTPModel(Model):
    """A model behind an HTTP API that streams its answers.

    Args:
        name: The model's name.
        connect_timeout: Seconds allowed for opening a connection.
        read_timeout: Seconds of silence allowed before and between the pieces of an answer.
        max_retries: How often a request is sent again when nothing of an answer was received yet.
        parameters: Further members of every request, under the provider's names. What a request's options ask for as
            well is theirs to say, see `tailrace.wrappers.parameters.merged`.
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
        """What options amount to in this provider's request; nothing for `NO_OPTIONS`.

        Raises:
            ValueError: The provider cannot be told what the answer cannot do without.
        """

    def _asked(self, options: RequestOptions) -> dict[str, Any]:
        """The further members of one request: those of every request, and what its options ask for.

        How to choose among tools is left out where there are none: most providers refuse to be told. That a tool must
        be called is said all the same, so that the provider says what is wrong.
        """
        if options is NO_OPTIONS:
            return self._given_parameters
        if not options.tools and not offered(self._given_parameters):
            choice = options.tool_choice
            chosen = choice if choice is not None and choice.mode in ("required", "tool") else None
            options = options.model_copy(update={"tool_choice": chosen, "parallel_tool_calls": None})
        return merged(self._given_parameters, self._members(options))

    @abstractmethod
    def _send(self, history: History, parameters: dict[str, Any]) -> AbstractAsyncContextManager[PostedBody]:
        """Send the request, with the further members ``parameters``; the body of the answer as it comes."""

    @abstractmethod
    def _decoder(self) -> ResponseDecoder[Any]:
        """A decoder for one answer."""

    def stream(
        self, history: History, options: RequestOptions = NO_OPTIONS
    ) -> AbstractAsyncContextManager[ChunkBatches]:
        """Ask the model to go on with a conversation; see `Model.stream`.

        A conversation that was interrupted, or begun with another provider, is mended first: calls and results
        are matched, and their ids made such as the provider takes, and so are the names of tools: in the calls that
        come back, tools have their own.

        Raises:
            ProtocolError: The provider cannot be told something of the conversation or the options.
        """
        return Opened(partial(self._ask, history, options))

    async def _ask(self, history: History, options: RequestOptions) -> tuple[ChunkBatches, Exit]:
        history = with_answers(with_matched_ids(history, pattern=self.converter.id_pattern))
        names = ToolNames(self.converter.name_rule)
        try:
            parameters = names.in_parameters(self._asked(options))
            sending = self._send(names.in_history(history), parameters)
            body = await sending.__aenter__()
        except ValueError as error:
            raise ProtocolError(f"{self.provider} cannot be asked that: {error}") from error
        return _Batches(_Reading(body, self._decoder(), names, self._broken)), sending.__aexit__

    def _silent(self) -> UpstreamError:
        return UpstreamError(
            f"the provider sent nothing for {self._read_timeout:g} seconds",
            fault=UpstreamFault.TIMEOUT,
            provider=self.provider,
        )

    def _broken(self, error: Exception) -> UpstreamError:
        if is_timeout(error):
            return self._silent()
        return UpstreamError(
            f"the connection broke in the middle of the answer: {_first_words(error)}",
            fault=UpstreamFault.TRUNCATED,
            provider=self.provider,
        )

    def _unreachable(self, error: Exception, tries: int = 1) -> UpstreamError:
        if is_timeout(error):
            silent = self._silent()
            silent.tries = tries
            return silent
        return UpstreamError(
            f"the provider cannot be reached: {_first_words(error)}",
            fault=UpstreamFault.CONNECTION,
            provider=self.provider,
            tries=tries,
        )

    def _refused(
        self, status: int, headers: Mapping[str, str], body: object, message: str = ""
    ) -> UpstreamError:
        """The error that an answer with an error status means.

        Args:
            status: The HTTP status.
            headers: Of the answer.
            body: JSON, or text.
            message: Says it in words where the body does not.
        """
        words = body.strip() if isinstance(body, str) else None
        if words is not None and (words.startswith("<") or len(words) > _MAX_MESSAGE):
            body, said = words, None  # a proxy's page, which is no message to show
        else:
            said = provider_error(body, self.provider) if body else None
        return UpstreamError(
            said.message if said else f"the provider refused: {message or f'HTTP {status}'}",
            fault=UpstreamFault.STATUS,
            provider=self.provider,
            status=status,
            code=said.code if said else None,
            retry_after=retry_after(headers),
            details=body,
        )


class _Batches(ArrivingBatches):
    """The chunks of an answer as its body comes."""

    def __init__(self, reading: "_Reading") -> None:
        self._reading = reading
        self._given = reading.batches()  # which does not hold this, and ends when nobody does

    def __anext__(self) -> Awaitable[Sequence[ChunkWrapper[Any]]]:
        return self._given.__anext__()

    def take_at_once(self, take: TakeChunks) -> None:
        """As `ArrivingBatches.take_at_once`."""
        self._reading.take_at_once(take)


class _Reading:
    """Reads an answer: decodes what its body brings, whoever is given that.

    Args:
        body: The body.
        decoder: Decodes it.
        names: Gives tools their own names back.
        broken: The error that is meant when the connection breaks.
    """

    def __init__(
        self,
        body: PostedBody,
        decoder: ResponseDecoder[Any],
        names: ToolNames,
        broken: Callable[[Exception], UpstreamError],
    ) -> None:
        self._body = body
        self._decoder = decoder
        self._names = names
        self._broken = broken
        self._take: TakeChunks | None = None
        self._left: Sequence[ChunkWrapper[Any]] = ()
        self._failed: Exception | None = None

    def take_at_once(self, take: TakeChunks) -> None:
        """Offer chunks to this first."""
        self._take = take
        self._body.take = self._at_once

    def _at_once(self, data: bytes) -> bool:
        """Decode what came, and have it taken; False where `batches` has to see to it."""
        chunks = self._names.restored(self._decoder.feed(data))
        try:
            if chunks and (self._take is None or not self._take(chunks)):
                self._left = chunks
        except Exception as error:  # of whoever takes, not of the connection
            self._failed = error
        return not (self._left or self._failed or self._decoder.done)

    async def batches(self) -> AsyncGenerator[Sequence[ChunkWrapper[Any]]]:
        """The chunks, but for those that were taken."""
        decoder, names = self._decoder, self._names
        try:
            async for data in self._body:
                if data:
                    chunks = names.restored(decoder.feed(data))
                else:
                    chunks, self._left = self._left, ()
                if chunks:
                    yield chunks
                if decoder.done or self._failed is not None:
                    break
                data, chunks = b"", ()  # what comes next may be taken, and these would be held until the end
            last = [] if self._failed is not None else decoder.close()
        except (aiohttp.ClientError, OSError) as error:
            held = [
                chunk for chunk in decoder.close() if chunk.details is None or chunk.details.error is None
            ]
            held = [*names.restored(held), *names.close()]
            if held:
                yield held  # what waited for more of the stream is part of the answer; why it ended is said here
            raise self._broken(error) from error.with_traceback(
                None
            )  # whose frames hold the body, and that the error
        except UpstreamError:
            held = names.close()
            if held:
                yield held
            raise
        finally:
            self._take = None
        if self._failed is not None:
            raise self._failed
        chunks = [*names.restored(last), *names.close()]
        if chunks:
            yield chunks


class DirectModel(HTTPModel):
    """A model whose requests are posted as they are, over a connection pool of our own.

    A request that was refused for the moment (429, 5xx), or that did not reach the provider, is sent again as the
    official clients do it: after the pause that the provider asks for, else after one of our own, which doubles; not
    at all when the provider says so (``x-should-retry: false``) or asks for a pause of more than two minutes. Once an
    answer has begun nothing is sent again. Cancelling ends a pause at once.
    """

    _session: aiohttp.ClientSession | None = None

    @abstractmethod
    def _request(
        self, history: History, parameters: Mapping[str, Any]
    ) -> tuple[str, Mapping[str, str], object]:
        """The request: address, headers, and the body, which is sent as JSON (as it is where it is bytes).

        Called for every attempt, since some providers sign the time.
        """

    async def aclose(self) -> None:
        """Close the kept connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _send(self, history: History, parameters: dict[str, Any]) -> AbstractAsyncContextManager[PostedBody]:
        return Opened(partial(self._posted, history, parameters))

    async def _posted(self, history: History, parameters: Mapping[str, Any]) -> tuple[PostedBody, Exit]:
        body = PostedBody(await self._post(history, parameters), self._read_timeout)
        return body, partial(_close, body)

    async def _post(self, history: History, parameters: Mapping[str, Any]) -> aiohttp.ClientResponse:
        for attempt in range(self._max_retries + 1):
            last = attempt == self._max_retries
            url, headers, body = self._request(history, parameters)
            payload = body if isinstance(body, bytes) else msgspec.json.encode(body)
            try:
                response = await self._client().post(
                    url,
                    data=payload,
                    headers={**REQUEST_HEADERS.get(), "content-type": "application/json", **headers},
                )
            except (aiohttp.ClientError, OSError) as error:
                # An answer that was waited for in vain is not asked for again: the wait was the limit.
                if last or (is_timeout(error) and not isinstance(error, aiohttp.ConnectionTimeoutError)):
                    raise self._unreachable(error, attempt + 1) from error
                pause = None
            else:
                if response.status < 400:
                    return response
                refused = await self._read_refusal(response)
                refused.tries = attempt + 1
                if last or not _asks_to_retry(response.status, response.headers, refused.retry_after):
                    raise refused
                pause = refused.retry_after
            await anyio.sleep(_pause(attempt, pause))
        raise AssertionError("the last attempt returns or raises")

    async def _read_refusal(self, response: aiohttp.ClientResponse) -> UpstreamError:
        body = bytearray()
        async with response:
            # What it says matters less than that it refused: what comes within the time counts.
            with suppress(TimeoutError, aiohttp.ClientError, OSError):
                async with asyncio.timeout(self._read_timeout):
                    async for data in response.content.iter_any():
                        body += data
                        if len(body) >= _MAX_ERROR_BYTES:
                            break
        try:
            said: object = read_json(bytes(body))
        except (ValueError, RecursionError):
            said = body.decode("utf-8", "replace").strip()
        return self._refused(response.status, response.headers, said, response.reason or "")

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = new_session(self._connect_timeout, self._read_timeout)
        return self._session


def new_session(connect_timeout: float, read_timeout: float) -> aiohttp.ClientSession:
    """A connection pool for requests to a provider; for the event loop that runs, and to be closed."""
    timeout = aiohttp.ClientTimeout(sock_connect=connect_timeout, sock_read=read_timeout)
    # The default allows a hundred connections, and lets further requests wait without saying so.
    connector = aiohttp.TCPConnector(limit=0)
    # Where the environment names no proxy, it is not asked: for each request that is a look for a file, in a thread.
    return aiohttp.ClientSession(connector=connector, timeout=timeout, trust_env=bool(getproxies()))


async def _close(body: PostedBody, *_raised: object) -> None:
    body.close()


def is_timeout(error: BaseException) -> bool:
    """Whether time ran out. The transport calls refused and dropped connections timeouts too: the cause decides."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, aiohttp.ClientError):
            return isinstance(cause, TimeoutError)
        if isinstance(cause, TimeoutError):
            return True
        cause = cause.__cause__
    client = sys.modules.get("httpx2")  # imported by whoever raises its errors
    return client is not None and isinstance(error, client.TimeoutException)


def _asks_to_retry(status: int, headers: Mapping[str, str], asked: float | None) -> bool:
    """Whether a refusal is one for the moment, and the moment is short enough to be waited for."""
    if asked is not None and asked > _MAX_RETRY_AFTER:
        return False
    said = headers.get("x-should-retry")
    return said == "true" or (said != "false" and status in _RETRIED)


def _pause(attempt: int, asked: float | None) -> float:
    if asked:
        return asked
    return min(_FIRST_PAUSE * 2**attempt, _LONGEST_PAUSE) * (1 - 0.25 * random.random())  # noqa: S311


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that an answer asks to be waited, as its headers say it; None where they do not.

    ``retry-after-ms``, milliseconds, is the more exact one; ``retry-after`` is seconds (some send fractions), or the
    time of day after which to come (RFC 9110, section 10.2.3), which may be over: 0 then.
    """
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        with suppress(ValueError):
            asked = float(headers.get(name, ""))
            if math.isfinite(asked) and asked >= 0:
                return asked / unit
    with suppress(ValueError):
        day = parsedate_to_datetime(headers.get("retry-after", ""))
        day = day if day.tzinfo else day.replace(tzinfo=UTC)
        return max(0.0, (day - datetime.now(UTC)).total_seconds())
    return None


def _first_words(error: BaseException) -> str:
    """What the innermost cause says, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    # The text of such an error begins with a status of HTTP that nobody sent.
    words = error.message if isinstance(error, HttpProcessingError) else str(error)
    return words.partition("\n")[0].removesuffix(":") or type(error).__name__

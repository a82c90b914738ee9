"""A model that writes each response of another model to a file."""

import logging
from collections.abc import Awaitable
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any

import anyio
from anyio import to_thread

from tailrace.wrappers.cassettes.cassette import BodyPart, Cassette, Failure, RecordedRequest, request_digest
from tailrace.wrappers.concurrency.async_resource import AsyncResource, Exit
from tailrace.wrappers.conversion.history_converter import HistoryConverter
from tailrace.wrappers.errors import ConfigurationError, UpstreamError
from tailrace.wrappers.http.http_model import BODY_WRAPPER, HTTPModel
from tailrace.wrappers.http.response import Body, SentRequest
from tailrace.wrappers.messages import History
from tailrace.wrappers.model import ChunkBatches, Model
from tailrace.wrappers.providers import find_provider
from tailrace.wrappers.redaction.log_escaping import escape_records_of
from tailrace.wrappers.redaction.redactor import Redactor
from tailrace.wrappers.request_options import NO_OPTIONS, RequestOptions

logger = logging.getLogger("tailrace.wrappers")
escape_records_of("tailrace.wrappers")


class RecordingModel(Model):
    """A model that returns the responses of another model, and writes each response to a file when the response ends.

    A recording contains no headers and no URL. Credentials in texts are removed. A response is not recorded if it ends with an
    exception other than an `UpstreamError`, for example because it is cancelled. Nor is a body recorded that is not UTF-8 and
    contains a credential. If a file cannot be written, a warning is logged.

    If the connection breaks during a response, this model offers no continuation. Each recording therefore belongs to a complete
    request.

    Args:
        model: The other model. Closing this object also closes that model.
        folder: The folder of the recordings. It is created when the first response is recorded.

    Raises:
        ConfigurationError: The other model does not send its requests over HTTP.
    """

    def __init__(self, model: Model, folder: Path) -> None:
        if not isinstance(model, HTTPModel):
            raise ConfigurationError(f"responses of {model.provider} cannot be recorded")
        self.provider = model.provider
        self.name = model.name
        self.accepts_native_tools = model.accepts_native_tools
        self._model = model
        self._folder = folder

    @property
    def converter(self) -> HistoryConverter[Any, Any]:
        """The converter of the other model."""
        return self._model.converter

    def stream(
        self, history: History, options: RequestOptions = NO_OPTIONS
    ) -> AbstractAsyncContextManager[ChunkBatches]:
        """Stream a response of the other model, and record it."""
        recording = _Recording(self._model, self._folder, history, options)
        return AsyncResource(partial(recording.begin, self._model.stream(history, options)))

    async def aclose(self) -> None:
        """Close the other model."""
        await self._model.aclose()


class _Recording:
    def __init__(self, model: Model, folder: Path, history: History, options: RequestOptions) -> None:
        self._model = model
        self._folder = folder
        self._history = history
        self._options = options
        self._recorded = datetime.now(UTC)
        self._request_time = monotonic()
        self._body: _RecordedBody | None = None

    async def begin(self, stream: AbstractAsyncContextManager[ChunkBatches]) -> tuple[ChunkBatches, Exit]:
        token = BODY_WRAPPER.set(self._wrap)
        try:
            chunks = await stream.__aenter__()
        except UpstreamError as error:
            await self._save(Failure.of(error))
            raise
        finally:
            BODY_WRAPPER.reset(token)
        return chunks, partial(self._end, stream.__aexit__)

    def _wrap(self, body: Body) -> Body:
        self._body = _RecordedBody(body, self._request_time)
        return self._body

    async def _end(
        self,
        close_body: Exit,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        try:
            return await close_body(kind, error, trace)
        finally:
            if kind is None:
                await self._save(None)
            elif isinstance(error, UpstreamError):
                await self._save(Failure.of(error))

    async def _save(self, failure: Failure | None) -> None:
        """Write the recording, even if the current task is cancelled."""
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(self._write, failure)

    def _write(self, failure: Failure | None) -> None:
        cassette = self._cassette(failure)
        if cassette is None:
            logger.warning("a response was not recorded: it contains a credential that cannot be removed")
            return
        try:
            cassette.write(self._folder)
        except OSError as error:
            logger.warning("a response was not recorded: %s", error)

    def _cassette(self, failure: Failure | None) -> Cassette | None:
        history, options, body = self._history, self._options, self._body
        redactor = (
            Redactor() if body is None else Redactor.of_request(str(body.request.url), body.request.headers)
        )
        pieces = [] if body is None else without_credentials(body.pieces, redactor)
        if pieces is None:
            return None
        return Cassette(
            provider=self._model.provider,
            model=self._model.name,
            format=find_provider(self._model.provider).format,
            recorded=self._recorded,
            request=RecordedRequest(
                digest=request_digest(history, options),
                history=redactor.without_credentials(history.model_dump(mode="json", exclude_defaults=True)),
                options=redactor.without_credentials(options.model_dump(mode="json", exclude_defaults=True)),
            ),
            pieces=tuple(pieces),
            failure=failure,
        )


def without_credentials(pieces: list[tuple[float, bytes]], redactor: Redactor) -> list[BodyPart] | None:
    """Remove credentials from the chunks of a body. Return None if a body that is not UTF-8 contains a credential.

    If a credential was removed, the result has only one chunk, because several chunks may have contained it.
    """
    body = b"".join(data for _, data in pieces)
    try:
        text = body.decode()
    except UnicodeDecodeError:
        text = body.decode("latin-1")
        return (
            [BodyPart.of(at, data) for at, data in pieces]
            if redactor.without_credentials(text) == text
            else None
        )
    clean = redactor.without_credentials(text)
    if clean == text:
        return [BodyPart.of(at, data) for at, data in pieces]
    return [BodyPart.of(pieces[0][0], clean.encode())]


class _RecordedBody:
    """A response body that stores each chunk that is read, and its time.

    Args:
        body: The body.
        request_time: The time at which the request was sent, on the clock of `monotonic`.

    Attributes:
        pieces: The chunks, each with the number of seconds after the request.
    """

    def __init__(self, body: Body, request_time: float) -> None:
        self.pieces: list[tuple[float, bytes]] = []
        self._body = body
        self._request_time = request_time

    @property
    def request(self) -> SentRequest:
        return self._body.request

    def read_nowait(self) -> bytes | None:
        """Return and store the next chunk; None if no data has arrived, ``b""`` at the end."""
        data = self._body.read_nowait()
        if data:
            self.pieces.append((monotonic() - self._request_time, data))
        return data

    def arrival(self) -> Awaitable[object]:
        return self._body.arrival()

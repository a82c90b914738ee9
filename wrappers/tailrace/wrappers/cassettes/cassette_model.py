"""A model that replays recorded responses without a provider."""

from collections.abc import Awaitable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

import anyio
import anyio.lowlevel

from tailrace.wrappers.cassettes.cassette import Cassette, load_cassettes, request_digest
from tailrace.wrappers.concurrency.async_resource import AsyncResource, Exit
from tailrace.wrappers.concurrency.worker_thread import history_cost, run_bounded
from tailrace.wrappers.conversion.history_converter import HistoryConverter
from tailrace.wrappers.conversion.tool_names import ToolNames
from tailrace.wrappers.errors import UpstreamError, UpstreamFault
from tailrace.wrappers.http.response import ChunkStream
from tailrace.wrappers.messages import History
from tailrace.wrappers.model import ChunkBatches, Model
from tailrace.wrappers.providers import FORMATS
from tailrace.wrappers.request_options import NO_OPTIONS, RequestOptions

_SHOWN = 5  # maximum number of recorded requests in an error message
_CHARACTERS = 60  # maximum number of characters of a text in an error message


class CassetteModel(Model):
    """A model that replays recorded bytes, which the decoder of the recorded provider reads.

    If a request was recorded several times, its responses are replayed in the same order, and then the last response again. If
    the recorded response ended with an error, that error is raised. If a request was not recorded, the model raises an
    `UpstreamError` (status 404), whose message lists recorded requests.

    Args:
        folder: The folder of the recordings.
        timed: True to replay each chunk at its recorded time; False to replay all chunks without delay.

    Raises:
        ConfigurationError: See `tailrace.wrappers.cassettes.cassette.load_cassettes`.
    """

    def __init__(self, folder: Path, *, timed: bool = True) -> None:
        cassettes = load_cassettes(folder)
        self.provider = cassettes[0].provider
        self.name = cassettes[0].model
        self._folder = folder
        self._timed = timed
        self._converter = FORMATS[cassettes[0].format].create_converter()
        self._by_digest: dict[str, list[Cassette]] = {}  # the recordings to replay, the next one first
        for cassette in cassettes:
            self._by_digest.setdefault(cassette.request.digest, []).append(cassette)

    @property
    def converter(self) -> HistoryConverter[Any, Any]:
        """The converter of the provider of the first recording."""
        return self._converter

    def stream(
        self, history: History, options: RequestOptions = NO_OPTIONS
    ) -> AbstractAsyncContextManager[ChunkBatches]:
        """Replay the recorded response to a request. See `Model.stream`."""
        return AsyncResource(partial(self._replay, history, options))

    async def aclose(self) -> None:
        """Do nothing, because there is no connection."""

    async def _replay(self, history: History, options: RequestOptions) -> tuple[ChunkBatches, Exit]:
        request_time = anyio.current_time()
        digest = await run_bounded(history_cost(history), request_digest, history, options)
        recorded = self._by_digest.get(digest)
        if recorded is None:
            raise self._unknown_request_error(history)
        cassette = recorded.pop(0) if len(recorded) > 1 else recorded[0]
        if cassette.failure is not None and not cassette.pieces:
            raise cassette.failure.error(cassette.provider)
        body = _RecordedBody(cassette, request_time if self._timed else None)
        wire_format = FORMATS[cassette.format]
        names = ToolNames(wire_format.create_converter().name_rule)
        names.replace_in_history(history)
        for name in options.tool_names:
            names.request_name(name)
        decoder = wire_format.create_decoder(provider=cassette.provider)
        chunks = ChunkStream(body, decoder, names if names.has_changes else None, _Failures(cassette))
        return chunks, _end_stream

    def _unknown_request_error(self, history: History) -> UpstreamError:
        known = [each[0].request.history for each in self._by_digest.values()]
        summaries = ", ".join(_summary(request) for request in known[:_SHOWN])
        more = f" and {len(known) - _SHOWN} others" if len(known) > _SHOWN else ""
        request = _summary(history.model_dump(mode="json", exclude_defaults=True))
        return UpstreamError(
            f"no response to this request is recorded: {request}. Recorded are {summaries}{more}. A request matches if its conversation, "
            "instructions, tools and options are the same",
            fault=UpstreamFault.STATUS,
            provider=self.provider,
            status=404,
        )


def _summary(history: Mapping[str, Any]) -> str:
    messages = history.get("conversation", ())
    texts = [part["text"] for message in messages for part in message.get("content", ()) if "text" in part]
    last = texts[-1] if texts else ""
    excerpt = last if len(last) <= _CHARACTERS else f"{last[: _CHARACTERS - 1]}…"
    return f"{len(messages)} message{'' if len(messages) == 1 else 's'} with the last text {excerpt!r}"


async def _end_stream(
    _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
) -> None:
    """End a replayed response, which has no resources."""


class _NoRequest:
    url = ""
    headers: Mapping[str, str] = MappingProxyType({})


class _RecordedBody:
    """The response body of a recording.

    Args:
        cassette: The recording.
        request_time: The time at which the request was sent, on the clock of the event loop. None to replay all chunks without
            delay.
    """

    request = _NoRequest()

    def __init__(self, cassette: Cassette, request_time: float | None) -> None:
        self._pieces = cassette.pieces
        self._fails = cassette.failure is not None
        self._request_time = request_time
        self._next = 0

    def read_nowait(self) -> bytes:
        """Return the next chunk; ``b""`` at the end.

        Raises:
            OSError: The recorded response ended with an error.
        """
        if self._next < len(self._pieces):
            self._next += 1
            return self._pieces[self._next - 1].data
        if self._fails:
            raise OSError("the recorded response ended with a failure")
        return b""

    def arrival(self) -> Awaitable[object]:
        if self._request_time is None or self._next == len(self._pieces):
            return anyio.lowlevel.checkpoint()
        return anyio.sleep_until(self._request_time + self._pieces[self._next].at)


class _Failures:
    """Converts the exception at the end of a replayed response to the recorded error."""

    def __init__(self, cassette: Cassette) -> None:
        self._cassette = cassette

    def connection_error(self, error: Exception) -> UpstreamError:
        """Return the recorded error. If no error was recorded, raise ``error``."""
        failure = self._cassette.failure
        if failure is None:
            raise error
        return failure.error(self._cassette.provider)

    def redacted_error(self, error: UpstreamError, url: str, headers: Mapping[str, str]) -> UpstreamError:
        """Return the same error, because the recording contains no credentials."""
        return error

"""Models that are asked through a provider's official client: it knows authentication, retries and base URLs."""

from abc import abstractmethod
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, ClassVar, Protocol, cast

import aiohttp
import httpx2

from tailrace.wrappers.bodies import Body, ClientBody
from tailrace.wrappers.http_model import HTTPModel
from tailrace.wrappers.messages import History
from tailrace.wrappers.model import REQUEST_HEADERS

_RETRY_COUNT = "x-stainless-retry-count"  # how often a client had sent the request before


class _StatusError(Protocol):
    """What the official clients raise for an error status."""

    status_code: int
    body: object | None
    message: str
    response: Any


class ClientModel(HTTPModel):
    """A model that is asked through a provider's official client, which hands out the bytes of a body.

    Attributes:
        status_errors: What the client raises for an answer with an error status.
        connection_errors: What it raises when there is no answer.
    """

    transport_errors: ClassVar[tuple[type[Exception], ...]] = (httpx2.HTTPError,)
    status_errors: ClassVar[tuple[type[Exception], ...]]
    connection_errors: ClassVar[tuple[type[Exception], ...]]

    @abstractmethod
    def _open(self, history: History, parameters: dict[str, Any]) -> AbstractAsyncContextManager[Any]:
        """The client's streaming response (``with_streaming_response``)."""

    @asynccontextmanager
    async def _send(self, history: History, parameters: dict[str, Any]) -> AsyncGenerator[Body]:
        broken: tuple[type[Exception], ...] = (
            *self.connection_errors,
            *self.transport_errors,
            aiohttp.ClientError,
            OSError,
        )
        try:
            async with self._open(history, _with_headers(parameters)) as response:
                yield ClientBody(response.iter_bytes(), self._read_timeout)
        except self.status_errors as error:
            refused = cast("_StatusError", error)
            known = self._refused(
                refused.status_code, refused.response.headers, refused.body, refused.message
            )
            known.tries = _tries(refused.response)
            raise known from error
        except broken as error:
            raise self._unreachable(error, _tries(error)) from error


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

"""Models that use an ``AsyncOpenAI`` or ``AsyncAzureOpenAI`` client of the application.

The client determines authentication, retries, base URL, timeouts and transport. tailrace's own decoder reads the response.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial
from types import TracebackType
from typing import Any

import anyio
import httpx2
import openai

from tailrace.wrappers.concurrency.async_resource import Exit
from tailrace.wrappers.continuation import Prefill
from tailrace.wrappers.errors import ConfigurationError, UpstreamError, UpstreamFault
from tailrace.wrappers.http.official_client_model import sent_request, tries_of
from tailrace.wrappers.http.response import Body, SentRequest
from tailrace.wrappers.messages import History
from tailrace.wrappers.model import REQUEST_HEADERS
from tailrace.wrappers.openai.model import ChatCompletionsModel

# Arguments of the client's method ``create`` that are not members of the body.
_ARGUMENTS = ("extra_headers", "extra_query", "timeout")


class OpenAIModel(ChatCompletionsModel):
    """A model that uses the application's client of the ``openai`` package.

    Args:
        name: The name of the model, or of the deployment of ``AsyncAzureOpenAI``.
        client: The client, which the application must close.
        parameters: Further members of the request (``temperature``, ``max_tokens``, ``tools``, …); None for none.
            ``extra_headers``, ``extra_query``, ``extra_body`` and ``timeout`` become arguments of the client's method ``create``.
        reasoning_field: See `ChatCompletionsModel`.
        content_parts: See `ChatCompletionsModel`.

    Raises:
        ConfigurationError: The base URL of the client is not an HTTP URL, or the client is synchronous.
    """

    def __init__(
        self,
        name: str,
        *,
        client: openai.AsyncOpenAI,
        parameters: Mapping[str, Any] | None = None,
        reasoning_field: str | None = None,
        content_parts: bool = True,
    ) -> None:
        if isinstance(client, openai.OpenAI):
            kind = type(client).__name__
            raise ConfigurationError(
                f"OpenAIModel requires an asynchronous client: pass Async{kind} instead of {kind}"
            )
        super().__init__(
            name,
            base_url=str(client.base_url),
            keyless=True,  # the client authenticates its requests
            parameters=parameters,
            reasoning_field=reasoning_field,
            content_parts=content_parts,
        )
        self._openai = client

    async def _send(self, history: History, parameters: dict[str, Any], cost: int) -> tuple[Body, Exit]:
        members = self._all_members(history, parameters)
        arguments = {name: members.pop(name) for name in _ARGUMENTS if name in members}
        arguments["extra_headers"] = {**REQUEST_HEADERS.get(), **(arguments.get("extra_headers") or {})}
        extra: Mapping[str, Any] = members.pop("extra_body", None) or {}
        # The package has no types for ``**members`` and for the bytes of a response.
        create: Any = self._openai.chat.completions.with_streaming_response.create
        request: AbstractAsyncContextManager[Any] = create(
            model=members.pop("model"),
            messages=members.pop("messages"),
            stream=members.pop("stream"),
            # Members that the package does not define can only be sent in ``extra_body``.
            extra_body={**members, **extra},
            **arguments,
        )
        try:
            response = await request.__aenter__()
        except openai.APIStatusError as error:
            failure = self._status_error(error.status_code, error.response.headers, error.body, error.message)
            failure.tries = tries_of(error.response)
            # ``from None``: the text of the client's error contains the body of the response, which may have credentials.
            failed_request = error.response.request
            raise self.redacted_error(failure, str(failed_request.url), failed_request.headers) from None
        except (openai.APIConnectionError, httpx2.HTTPError, OSError) as error:
            url, headers = sent_request(error)
            raise self.redacted_error(
                self._unreachable_error(error, tries_of(error)), url, headers
            ) from error
        body = _ClientBody(response.iter_bytes(), response.http_request)
        return body, partial(_close, body, request)

    async def _find_prefill(self) -> Prefill | None:
        return None  # detecting the server software would need the credentials of the client

    def _read_timeout_error(self) -> UpstreamError:
        return UpstreamError(
            "the provider sent no data within the read timeout of the client",
            fault=UpstreamFault.TIMEOUT,
            provider=self.provider,
        )


class _ClientBody:
    """A `Body` that reads the response of the client."""

    def __init__(self, chunks: AsyncGenerator[bytes], request: SentRequest) -> None:
        self.request = request
        self._chunks = _with_common_errors(chunks)
        self._chunk: bytes | None = None  # received, but not yet read

    def read_nowait(self) -> bytes | None:
        chunk = self._chunk
        if chunk:
            self._chunk = None
        return chunk

    async def arrival(self) -> None:
        while not self._chunk:
            try:
                self._chunk = await anext(self._chunks)
            except StopAsyncIteration:
                self._chunk = b""
                return

    async def aclose(self) -> None:
        await self._chunks.aclose()


async def _with_common_errors(chunks: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """Convert the exceptions of the transport to the exceptions of `Body`."""
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk
    except httpx2.TimeoutException as error:
        raise TimeoutError from error
    except Exception as error:  # the class of the exception depends on the transport of the client
        raise ConnectionError(str(error) or type(error).__name__) from error


async def _close(
    body: _ClientBody,
    request: AbstractAsyncContextManager[Any],
    kind: type[BaseException] | None,
    error: BaseException | None,
    trace: TracebackType | None,
) -> bool | None:
    """Close the response, even if the task is cancelled. If a part of the body was not read, the connection is closed."""
    with anyio.CancelScope(shield=True):
        await body.aclose()
        return await request.__aexit__(kind, error, trace)

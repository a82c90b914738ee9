"""Models behind the OpenAI Chat Completions API, or behind anything that speaks it.

The openai package's client does what it is good at (authentication, retries before the first byte, base URLs) over
its aiohttp transport; the bytes of the body come to our own decoder as they are, since the package's parsing of a
chunk costs a hundred times more.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import aiohttp
import httpx2
import openai

from tailrace.wrappers.chunks import ChunkWrapper
from tailrace.wrappers.errors import ConfigurationError, UpstreamError, UpstreamFault
from tailrace.wrappers.messages import History
from tailrace.wrappers.model import ChunkBatches, Model
from tailrace.wrappers.openai.chunks import ChatCompletionsDecoder, provider_error
from tailrace.wrappers.openai.history import OpenAIConverter

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam


class ChatCompletionsModel(Model):
    """A model behind ``POST {base_url}/chat/completions``.

    Args:
        name: The model's name.
        base_url: The API's root; the openai package's default (``OPENAI_BASE_URL``, else OpenAI's own) when
            None.
        api_key: The key; ``OPENAI_API_KEY`` when None. A server of one's own that asks for none gets a dummy.
        connect_timeout: Seconds allowed for opening a connection.
        read_timeout: Seconds of silence allowed before and between the pieces of an answer.
        max_retries: How often a request is sent again when nothing of an answer was received yet.
        parameters: Further members of the request (``temperature``, ``max_tokens``, …).

    Raises:
        ConfigurationError: There is no key.
    """

    provider = "openai"

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        connect_timeout: float = 10.0,
        read_timeout: float = 60.0,
        max_retries: int = 2,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self._parameters = dict(parameters or {})
        self._converter = OpenAIConverter()
        self._read_timeout = read_timeout
        timeout = httpx2.Timeout(read_timeout, connect=connect_timeout)
        try:
            self._client = openai.AsyncOpenAI(
                base_url=base_url,
                api_key=api_key,
                max_retries=max_retries,
                timeout=timeout,
                http_client=openai.DefaultAioHttpClient(timeout=timeout),
            )
        except openai.OpenAIError as error:
            raise ConfigurationError(f"no key for the model {name!r}: {error}") from None

    @property
    def converter(self) -> OpenAIConverter:
        """Between the common history and Chat Completions messages."""
        return self._converter

    @asynccontextmanager
    async def stream(self, history: History) -> AsyncGenerator[ChunkBatches]:
        """Ask the model to go on with a conversation; see `Model.stream`."""
        messages = [_plain(message) for message in self._converter.from_history(history)]
        try:
            async with self._client.chat.completions.with_streaming_response.create(
                model=self.name,
                messages=messages,
                stream=True,
                stream_options={"include_usage": True},
                **self._parameters,
            ) as response:
                yield self._batches(response.iter_bytes())
        except openai.APIStatusError as error:
            raise self._refused(error) from error
        except (openai.APIConnectionError, httpx2.HTTPError, aiohttp.ClientError, OSError) as error:
            raise self._unreachable(error) from error

    async def aclose(self) -> None:
        """Close the kept connections."""
        await self._client.close()

    async def _batches(self, body: AsyncIterator[bytes]) -> AsyncIterator[Sequence[ChunkWrapper[Any]]]:
        decoder = ChatCompletionsDecoder(provider=self.provider)
        try:
            while not decoder.done:
                # The transport has a read timeout of its own, but forgets it when the peer breaks HTTP's framing.
                async with asyncio.timeout(self._read_timeout + 1):
                    data = await anext(body, None)
                if data is None:
                    break
                chunks = decoder.feed(data)
                if chunks:
                    yield chunks
        except (TimeoutError, httpx2.HTTPError, aiohttp.ClientError, OSError) as error:
            if _is_timeout(error):
                raise self._silent() from error
            raise UpstreamError(
                f"the connection broke in the middle of the answer: {_first_words(error)}",
                fault=UpstreamFault.TRUNCATED,
                provider=self.provider,
            ) from error
        chunks = decoder.close()
        if chunks:
            yield chunks

    def _silent(self) -> UpstreamError:
        return UpstreamError(
            f"the provider sent nothing for {self._read_timeout:g} seconds",
            fault=UpstreamFault.TIMEOUT,
            provider=self.provider,
        )

    def _unreachable(self, error: Exception) -> UpstreamError:
        if _is_timeout(error):
            return self._silent()
        return UpstreamError(
            f"the provider cannot be reached: {_first_words(error)}",
            fault=UpstreamFault.CONNECTION,
            provider=self.provider,
        )

    def _refused(self, error: openai.APIStatusError) -> UpstreamError:
        said = provider_error(error.body, self.provider) if error.body else None
        retry_after = error.response.headers.get("retry-after", "")
        return UpstreamError(
            said.message if said else f"the provider refused: {error.message}",
            fault=UpstreamFault.STATUS,
            provider=self.provider,
            status=error.status_code,
            code=said.code if said else None,
            retry_after=float(retry_after) if retry_after.replace(".", "", 1).isdigit() else None,
            details=error.body,
        )


def _plain(message: "ChatCompletionMessageParam") -> "ChatCompletionMessageParam":
    """The message with content that is nothing but text as one string: some compatible servers take no list."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = cast("list[dict[str, Any]]", content)
    if any(part.keys() != {"type", "text"} for part in parts):
        return message
    text = "".join(part["text"] for part in parts)
    return cast("ChatCompletionMessageParam", {**message, "content": text})


def _is_timeout(error: BaseException) -> bool:
    """Whether time ran out. The transport calls refused and dropped connections timeouts too: the cause decides."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, aiohttp.ClientError):
            return isinstance(cause, TimeoutError)
        if isinstance(cause, TimeoutError):
            return True
        cause = cause.__cause__
    return isinstance(error, httpx2.TimeoutException | openai.APITimeoutError)


def _first_words(error: BaseException) -> str:
    """What the innermost cause says, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).partition("\n")[0] or type(error).__name__

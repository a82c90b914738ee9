"""Models behind the OpenAI Responses API, or behind anything that speaks it.

Nothing is stored at the provider's: every request holds the whole conversation, and the model's reasoning comes
sealed, to be sent back. Both can be asked for otherwise with the request's own parameters, ``store`` and ``include``.
"""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import openai

from tailrace.wrappers.http_model import ClientModel
from tailrace.wrappers.messages import History
from tailrace.wrappers.openai.model import openai_client
from tailrace.wrappers.openai_responses.chunks import ResponsesDecoder
from tailrace.wrappers.openai_responses.history import ResponsesConverter
from tailrace.wrappers.openai_responses.request import request_members
from tailrace.wrappers.options import RequestOptions

if TYPE_CHECKING:
    from openai.types.responses import ResponseInputItemParam

_SEALED_REASONING = "reasoning.encrypted_content"


class ResponsesModel(ClientModel):
    """A model behind ``POST {base_url}/responses``.

    Args:
        name: The model's name.
        base_url: The API's root; the openai package's default (``OPENAI_BASE_URL``, else OpenAI's own) when
            None.
        api_key: The key; ``OPENAI_API_KEY`` when None. A server of one's own that asks for none gets a dummy.
        connect_timeout: Seconds allowed for opening a connection.
        read_timeout: Seconds of silence allowed before and between the pieces of an answer.
        max_retries: How often a request is sent again when nothing of an answer was received yet.
        parameters: Further members of the request (``tools``, ``reasoning``, ``max_output_tokens``, …), and others
            for ``store`` (False) and ``include`` (sealed reasoning, unless the model refuses it).

    Raises:
        ConfigurationError: There is no key.
    """

    provider = "openai-responses"
    status_errors = (openai.APIStatusError,)
    connection_errors = (openai.APIConnectionError,)

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
        super().__init__(
            name,
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            max_retries=max_retries,
            parameters=parameters,
        )
        self._converter = ResponsesConverter()
        self._seals_reasoning = True
        self._client = openai_client(
            name,
            base_url=base_url,
            api_key=api_key,
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            max_retries=max_retries,
        )

    @property
    def converter(self) -> ResponsesConverter:
        """Between the common history and input items."""
        return self._converter

    async def aclose(self) -> None:
        """Close the kept connections."""
        await self._client.close()

    def _members(self, options: RequestOptions) -> dict[str, Any]:
        return request_members(options)

    @asynccontextmanager
    async def _open(self, history: History, parameters: dict[str, Any]) -> AsyncGenerator[Any]:
        items = [_plain(item) for item in self._converter.from_history(history)]
        sealed = self._seals_reasoning and "include" not in parameters
        async with AsyncExitStack() as stack:
            try:
                response = await stack.enter_async_context(self._create(items, parameters, sealed=sealed))
            except openai.BadRequestError as error:
                # Models that do not reason refuse to be asked for sealed reasoning.
                if not sealed or error.param != "include":
                    raise
                self._seals_reasoning = False
                response = await stack.enter_async_context(self._create(items, parameters, sealed=False))
            yield response

    def _create(
        self, items: "list[ResponseInputItemParam]", parameters: Mapping[str, Any], *, sealed: bool
    ) -> AbstractAsyncContextManager[Any]:
        include = {"include": [_SEALED_REASONING]} if sealed else {}
        request: dict[str, Any] = {"store": False, **include, **parameters}
        return self._client.responses.with_streaming_response.create(
            model=self.name, input=items, stream=True, **request
        )

    def _decoder(self) -> ResponsesDecoder:
        return ResponsesDecoder(provider=self.provider)


def _plain(item: "ResponseInputItemParam") -> "ResponseInputItemParam":
    """The item; a message that holds nothing but text with one string: some compatible servers take no list."""
    fields = cast("dict[str, Any]", item)
    if fields.get("type") != "message":
        return item
    texts: list[str] = []
    for part in fields["content"]:
        if not (part.keys() <= {"type", "text", "annotations"} and "text" in part) or part.get("annotations"):
            return item
        texts.append(part["text"])
    return cast("ResponseInputItemParam", {**fields, "content": "".join(texts)})

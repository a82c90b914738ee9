"""Models served by the OpenAI Responses API or a compatible server.

Every request contains the complete conversation. By default, the provider does not store the response, and returns encrypted
reasoning for the next request. The parameters ``store`` and ``include`` replace these defaults. With ``background`` and
``store``, the provider stores the response while it is generated (see `tailrace.wrappers.openai_responses.background`).
"""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Unpack
from urllib.parse import quote, urlsplit

import anyio

from tailrace.wrappers.concurrency.async_resource import AsyncResource, Exit
from tailrace.wrappers.concurrency.worker_thread import json_cost, run_bounded
from tailrace.wrappers.conversion.adjacent_messages import with_merged_neighbours
from tailrace.wrappers.conversion.text_joining import join_texts
from tailrace.wrappers.conversion.tool_names import ToolNames
from tailrace.wrappers.decoding.lenient_json import as_mappings
from tailrace.wrappers.errors import UpstreamError
from tailrace.wrappers.http import HttpResponse
from tailrace.wrappers.http.direct_model import DirectModel, close_response
from tailrace.wrappers.http.http_model import ModelArguments
from tailrace.wrappers.http.response import Body
from tailrace.wrappers.messages import History
from tailrace.wrappers.model import MAY_CANCEL, ChunkBatches
from tailrace.wrappers.openai.endpoint import OpenAIEndpoint
from tailrace.wrappers.openai_responses.background import BackgroundStream
from tailrace.wrappers.openai_responses.converter import ResponsesConverter
from tailrace.wrappers.openai_responses.decoder import ResponsesDecoder
from tailrace.wrappers.openai_responses.request import request_members
from tailrace.wrappers.request_options import NO_OPTIONS, RequestOptions

_TEXT_TYPES = {"user": "input_text", "assistant": "output_text"}
_SEALED_REASONING = "reasoning.encrypted_content"
_CANCEL_TIMEOUT = 5.0  # seconds


class ResponsesModel(DirectModel):
    """A model that is called with ``POST {base_url}/responses``.

    Args:
        name: The model's name.
        arguments: See `DirectModel`. The default ``base_url`` is the environment variable ``OPENAI_BASE_URL`` or, without it,
            OpenAI's public URL. ``parameters`` may contain any member of the request. By default, ``store`` is False, and
            ``include`` requests encrypted reasoning. If the model rejects ``include``, the request is repeated without it.
            ``background`` requires ``store``. If the context of a background response is exited early, the response is cancelled
            at the provider, unless `MAY_CANCEL` forbids this.

    Raises:
        ConfigurationError: The API key is missing, or ``base_url`` is not an HTTP URL.
    """

    has_embeddings = True
    provider = "openai-responses"
    accepts_native_tools = True

    def __init__(self, name: str, **arguments: Unpack[ModelArguments]) -> None:
        super().__init__(name, **arguments)
        self._seals_reasoning = True
        self._endpoint = OpenAIEndpoint(
            name, "/responses", base_url=arguments.get("base_url"), api_key=self._api_key
        )
        self._embeddings = OpenAIEndpoint(
            name, "/embeddings", base_url=arguments.get("base_url"), api_key=self._api_key
        )

    @property
    def converter(self) -> ResponsesConverter:
        """The converter between the common history and input items."""
        return ResponsesConverter()

    def _members(self, options: RequestOptions) -> dict[str, Any]:
        return request_members(options)

    def _request(
        self, history: History, parameters: Mapping[str, Any]
    ) -> tuple[str, Mapping[str, str], object]:
        items = with_merged_neighbours(
            map(_plain, ResponsesConverter().from_history(history)), text_types=_TEXT_TYPES
        )
        include = {"include": [_SEALED_REASONING]} if self._seals_reasoning else {}
        defaults = {"model": self.name, "input": items, "stream": True, "store": False}
        return self._endpoint.request({**defaults, **include, **parameters})

    async def _post(self, history: History, parameters: Mapping[str, Any], cost: int) -> HttpResponse:
        try:
            return await super()._post(history, parameters, cost)
        except UpstreamError as error:
            # Models without reasoning reject the member ``include``.
            if not self._seals_reasoning or "include" in parameters or not _rejects_include(error):
                raise
        self._seals_reasoning = False
        return await super()._post(history, parameters, cost)

    def _embeddings_request(self, members: Mapping[str, Any]) -> tuple[str, Mapping[str, str], object]:
        return self._embeddings.request(members)

    def _decoder(self) -> ResponsesDecoder:
        return ResponsesDecoder(provider=self.provider)

    # --- background responses -----------------------------------------------------------------------------------

    def stored_id(self, chunks: ChunkBatches) -> str:
        """Return the provider's id of a background response; empty for any other response. See `Model.stored_id`."""
        return chunks.response_id if isinstance(chunks, BackgroundStream) else ""

    def attachment(
        self, interrupted: ChunkBatches | str, options: RequestOptions = NO_OPTIONS
    ) -> AbstractAsyncContextManager[ChunkBatches] | None:
        """Return a request for the rest of a background response whose id is known; otherwise None. See `Model.attachment`."""
        if isinstance(interrupted, str):
            return AsyncResource(partial(self._attach_stored, interrupted, options))
        if not isinstance(interrupted, BackgroundStream) or not interrupted.response_id:
            return None
        return AsyncResource(partial(self._attach, interrupted))

    def _response_chunks(
        self, body: Body, names: ToolNames | None, close_body: Exit
    ) -> tuple[ChunkBatches, Exit]:
        if not self._parameters.get("background"):
            return super()._response_chunks(body, names, close_body)
        stream = BackgroundStream(body, self._decoder(), names, self)
        return stream, partial(self._end_stream, stream, close_body)

    async def _attach(self, broken: BackgroundStream) -> tuple[ChunkBatches, Exit]:
        response = await self._get(broken.response_id, broken.position)
        rest = broken.resumed(response.body)
        return rest, partial(self._end_stream, rest, partial(close_response, response))

    async def _attach_stored(self, response_id: str, options: RequestOptions) -> tuple[ChunkBatches, Exit]:
        names = ToolNames(self.converter.name_rule)
        members = self._request_members(options)
        await run_bounded(json_cost(members), names.replace_in_parameters, members)
        response = await self._get(response_id)
        names_or_none = names if names.has_changes else None
        stream = BackgroundStream(response.body, self._decoder(), names_or_none, self, response_id)
        return stream, partial(self._end_stream, stream, partial(close_response, response))

    async def _get(self, response_id: str, position: int = -1) -> HttpResponse:
        """Request the events of a background response after ``position``; by default, all events."""
        query = {"stream": "true"}
        if position >= 0:
            query["starting_after"] = str(position)
        url, headers = self._address(f"/{quote(response_id, safe='')}", query)
        return await self._send_encoded(0, lambda: (url, headers, b""), "GET")

    async def _end_stream(
        self,
        stream: BackgroundStream,
        close_body: Exit,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        """Close the connection, and cancel a response that has not ended, which the provider would otherwise continue.

        After a lost connection, the response is not cancelled, because its rest can still be read.
        """
        try:
            return await close_body(kind, error, trace)
        finally:
            if not stream.has_ended:
                await self.release(stream)

    async def release(self, stored_response: ChunkBatches | str) -> None:
        """Cancel a background response. See `Model.release`."""
        response_id = stored_response if isinstance(stored_response, str) else self.stored_id(stored_response)
        if not response_id:
            return
        url, headers = self._address(f"/{quote(response_id, safe='')}/cancel", {})
        with anyio.move_on_after(_CANCEL_TIMEOUT, shield=True), suppress(OSError):
            if await MAY_CANCEL.get()():
                response = await self._client().request("POST", url, headers, b"")
                response.close()

    def _address(self, path: str, query: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
        """Return the URL and the headers of a request. ``path`` is appended to the URL of the endpoint."""
        names = ("extra_headers", "extra_query")
        values = {name: self._parameters.get(name) for name in names}
        url, headers, _ = self._endpoint.request(
            {**values, "extra_query": {**(values["extra_query"] or {}), **query}}
        )
        parts = urlsplit(url)
        return parts._replace(path=parts.path + path).geturl(), headers


def _plain(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Replace the content of an item with a string if it has only text. See `plain_content` of Chat Completions."""
    if item.get("type") != "message":
        return item
    texts: list[str] = []
    for part in item["content"]:
        if not (part.keys() <= {"type", "text", "annotations"} and "text" in part) or part.get("annotations"):
            return item
        texts.append(part["text"])
    if item.get("role") == "user" and len([text for text in texts if text]) > 1:
        return item
    return {**item, "content": join_texts(texts)}


def _rejects_include(error: UpstreamError) -> bool:
    bodies = as_mappings([error.details])
    errors = as_mappings([each.get("error") for each in bodies]) or bodies
    return error.status == 400 and any(each.get("param") == "include" for each in errors)

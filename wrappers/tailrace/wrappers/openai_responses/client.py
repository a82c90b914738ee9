"""Models served by the OpenAI Responses API or a compatible server.

By default, the provider stores nothing. Every request contains the complete conversation. The provider returns the
reasoning of the model in encrypted form, so that the next request can send it back. The parameters ``store`` and
``include`` change this behaviour.
"""

from collections.abc import Mapping
from typing import Any, Unpack

from tailrace.wrappers.conversion.adjacent_messages import with_merged_neighbours
from tailrace.wrappers.conversion.request_options import RequestOptions
from tailrace.wrappers.conversion.text_joining import join_texts
from tailrace.wrappers.decoding.lenient_json import as_mappings
from tailrace.wrappers.errors import UpstreamError
from tailrace.wrappers.http import HttpResponse
from tailrace.wrappers.http.http_model import DirectModel, ModelArguments
from tailrace.wrappers.messages import History
from tailrace.wrappers.openai.endpoint import OpenAIEndpoint
from tailrace.wrappers.openai_responses.converter import ResponsesConverter
from tailrace.wrappers.openai_responses.decoder import ResponsesDecoder
from tailrace.wrappers.openai_responses.request import request_members

_TEXT_TYPES = {"user": "input_text", "assistant": "output_text"}
_SEALED_REASONING = "reasoning.encrypted_content"


class ResponsesModel(DirectModel):
    """A model behind ``POST {base_url}/responses``.

    Args:
        name: The model's name.
        arguments: See `DirectModel`. If ``base_url`` is None, the URL comes from ``OPENAI_BASE_URL``, otherwise it is
            OpenAI's public URL. ``parameters`` may contain any member of the request, for example ``tools``,
            ``reasoning`` and ``max_output_tokens``. ``store`` is False by default. ``include`` requests encrypted
            reasoning by default, unless the model rejects this request.

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

    async def _post(self, history: History, parameters: Mapping[str, Any]) -> HttpResponse:
        try:
            return await super()._post(history, parameters)
        except UpstreamError as error:
            # Models without reasoning reject requests for encrypted reasoning. Repeat the request without this
            # member.
            if not self._seals_reasoning or "include" in parameters or not _rejects_include(error):
                raise
        self._seals_reasoning = False
        return await super()._post(history, parameters)

    def _embeddings_request(self, members: Mapping[str, Any]) -> tuple[str, Mapping[str, str], object]:
        return self._embeddings.request(members)

    def _decoder(self) -> ResponsesDecoder:
        return ResponsesDecoder(provider=self.provider)


def _plain(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the item.

    Its content is a string if it has only text; see `tailrace.wrappers.openai.converter.plain_content`.
    """
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
    """Return True if the provider rejected a request because of the member ``include``."""
    bodies = as_mappings([error.details])
    errors = as_mappings([each.get("error") for each in bodies]) or bodies
    return error.status == 400 and any(each.get("param") == "include" for each in errors)

"""Models of Mistral's API, a variant of Chat Completions."""

from collections.abc import Mapping
from typing import Any, Unpack

from tailrace.wrappers.continuation import Prefill
from tailrace.wrappers.conversion.adjacent_messages import with_merged_neighbours
from tailrace.wrappers.http.direct_model import DirectModel
from tailrace.wrappers.http.http_model import ModelArguments
from tailrace.wrappers.messages import History
from tailrace.wrappers.mistral.converter import MistralConverter
from tailrace.wrappers.mistral.decoder import MistralDecoder
from tailrace.wrappers.mistral.request import request_members
from tailrace.wrappers.openai.endpoint import OpenAIEndpoint
from tailrace.wrappers.request_options import RequestOptions


class MistralModel(DirectModel):
    """A model that is called with ``POST {base_url}/chat/completions``.

    See `DirectModel` for the arguments. ``parameters`` may contain any member of the request, for example ``safe_prompt``.
    """

    has_embeddings = True
    provider = "mistral"
    default_base_url = "https://api.mistral.ai/v1"

    def __init__(self, name: str, **arguments: Unpack[ModelArguments]) -> None:
        super().__init__(name, **arguments)
        self._endpoint = OpenAIEndpoint(
            name, "/chat/completions", base_url=self._base_url, api_key=self._api_key
        )
        self._embeddings = OpenAIEndpoint(name, "/embeddings", base_url=self._base_url, api_key=self._api_key)

    @property
    def converter(self) -> MistralConverter:
        """The converter between the common history and Mistral's messages."""
        return MistralConverter()

    async def _find_prefill(self) -> Prefill:
        return Prefill(metadata={"mistral": {"prefix": True}}, has_prefix=True)

    def _members(self, options: RequestOptions) -> dict[str, Any]:
        return request_members(options)

    def _request(
        self, history: History, parameters: Mapping[str, Any]
    ) -> tuple[str, Mapping[str, str], object]:
        # Mistral always sends usage, and rejects unknown members such as ``stream_options``.
        messages = with_merged_neighbours(MistralConverter().from_history(history))
        return self._endpoint.request(
            {"model": self.name, "messages": messages, "stream": True, **parameters}
        )

    def _embeddings_request(self, members: Mapping[str, Any]) -> tuple[str, Mapping[str, str], object]:
        return self._embeddings.request(members)

    def _decoder(self) -> MistralDecoder:
        return MistralDecoder(provider=self.provider)

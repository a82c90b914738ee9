"""Models served by Cohere's Chat API, version 2."""

from collections.abc import Mapping
from typing import Any

from tailrace.wrappers.cohere.converter import CohereConverter
from tailrace.wrappers.cohere.decoder import CohereDecoder
from tailrace.wrappers.cohere.request import request_members
from tailrace.wrappers.conversion.adjacent_messages import with_merged_neighbours
from tailrace.wrappers.conversion.request_parameters import tool_name
from tailrace.wrappers.http.direct_model import DirectModel
from tailrace.wrappers.messages import History
from tailrace.wrappers.request_options import RequestOptions


class CohereModel(DirectModel):
    """A model that is called with ``POST {base_url}/chat``.

    See `DirectModel` for the arguments. ``parameters`` may contain any member of the request, for example ``documents``.
    """

    has_embeddings = True
    provider = "cohere"
    default_base_url = "https://api.cohere.com/v2"

    @property
    def converter(self) -> CohereConverter:
        """The converter between the common history and Chat v2 messages."""
        return CohereConverter()

    def _members(self, options: RequestOptions) -> dict[str, Any]:
        return request_members(options)

    def _request_members(self, options: RequestOptions) -> dict[str, Any]:
        parameters = super()._request_members(options)
        choice = options.tool_choice
        if choice is None or choice.mode != "tool" or not parameters.get("tools"):
            return parameters
        # The API cannot require a call of one specific tool, so only the chosen tool is sent.
        return {
            **parameters,
            "tools": [tool for tool in parameters["tools"] if tool_name(tool) == choice.name],
        }

    def _request(
        self, history: History, parameters: Mapping[str, Any]
    ) -> tuple[str, Mapping[str, str], object]:
        messages = with_merged_neighbours(CohereConverter().from_history(history))
        return (
            f"{self._base_url}/chat",
            {"authorization": f"Bearer {self._api_key}", "accept": "text/event-stream"},
            {**parameters, "model": self.name, "messages": messages, "stream": True},
        )

    def _embeddings_request(self, members: Mapping[str, Any]) -> tuple[str, Mapping[str, str], object]:
        # The endpoint belongs to Cohere's OpenAI-compatible API.
        return (
            f"{self._base_url.removesuffix('/v2')}/compatibility/v1/embeddings",
            {"authorization": f"Bearer {self._api_key}"},
            members,
        )

    def _decoder(self) -> CohereDecoder:
        return CohereDecoder(provider=self.provider)

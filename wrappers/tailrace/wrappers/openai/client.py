"""Models served by the OpenAI Chat Completions API or a compatible server."""

from collections.abc import Mapping
from typing import Any, Unpack

from tailrace.wrappers.conversion.options import RequestOptions
from tailrace.wrappers.conversion.turns import with_merged_neighbours
from tailrace.wrappers.http.model import DirectModel, ModelArguments
from tailrace.wrappers.messages import History
from tailrace.wrappers.openai.converter import OpenAIConverter, plain_content
from tailrace.wrappers.openai.decoder import ChatCompletionsDecoder
from tailrace.wrappers.openai.endpoint import OpenAIEndpoint
from tailrace.wrappers.openai.request import request_members

_LIMITS = ("max_completion_tokens", "max_tokens")
# These hosts support the first member; their reasoning models reject the second.
_OPENAI_HOSTS = ("api.openai.com", ".openai.azure.com", ".services.ai.azure.com")


class ChatCompletionsModel(DirectModel):
    """A model behind ``POST {base_url}/chat/completions``.

    Args:
        name: The model's name.
        reasoning_field: The only message field in which the server accepts reasoning; ``""`` if it accepts none; None to
            return reasoning in the field it came from, which suits most servers.
        content_parts: False for a server that accepts no list of text parts: a user's texts are then joined with blank lines.
            Lists with images and files are sent unchanged.
        keyless: See `DirectModel`.
        arguments: See `DirectModel`. ``base_url`` is ``OPENAI_BASE_URL`` when None, else OpenAI's own. Members of
            ``parameters`` are, for example, ``temperature``, ``max_tokens``, ``tools``.

    Raises:
        ConfigurationError: The key is missing, or ``base_url`` is not an HTTP URL.
    """

    has_embeddings = True
    provider = "openai"

    def __init__(
        self,
        name: str,
        *,
        reasoning_field: str | None = None,
        content_parts: bool = True,
        keyless: bool = False,
        **arguments: Unpack[ModelArguments],
    ) -> None:
        super().__init__(name, keyless=keyless, **arguments)
        self._converter = OpenAIConverter(reasoning_field=reasoning_field)
        self._endpoint = OpenAIEndpoint(
            name, "/chat/completions", base_url=arguments.get("base_url"), api_key=self._api_key
        )
        self._limit = self._limit_member()
        self._content_parts = content_parts
        self._embeddings = OpenAIEndpoint(
            name, "/embeddings", base_url=arguments.get("base_url"), api_key=self._api_key
        )

    @property
    def converter(self) -> OpenAIConverter:
        """The converter between the common history and Chat Completions messages."""
        return self._converter

    def _members(self, options: RequestOptions) -> dict[str, Any]:
        return request_members(options, limit=self._limit)

    def _request(
        self, history: History, parameters: Mapping[str, Any]
    ) -> tuple[str, Mapping[str, str], object]:
        return self._endpoint.request(self._all_members(history, parameters))

    def _all_members(self, history: History, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the request's members: conversation, streaming options and ``parameters``."""
        messages = with_merged_neighbours(
            plain_content(message, parts=self._content_parts)
            for message in self._converter.from_history(history)
        )
        return {
            "model": self.name,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **parameters,
        }

    def _embeddings_request(self, members: Mapping[str, Any]) -> tuple[str, Mapping[str, str], object]:
        return self._embeddings.request(members)

    def _decoder(self) -> ChatCompletionsDecoder:
        return ChatCompletionsDecoder(provider=self.provider)

    def _limit_member(self) -> str:
        """Return the member that limits the output: the operator's choice, else the one that the server supports."""
        for member in _LIMITS:
            if member in self._given_parameters:
                return member
        return _LIMITS[0] if self._endpoint.host.endswith(_OPENAI_HOSTS) else _LIMITS[1]

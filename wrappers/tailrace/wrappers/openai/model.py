"""Models of the OpenAI Chat Completions API or of a compatible server."""

import math
from collections.abc import Mapping
from copy import copy
from typing import Any, Unpack
from urllib.parse import urljoin

from tailrace.wrappers.continuation import Prefill
from tailrace.wrappers.conversion.adjacent_messages import with_merged_neighbours
from tailrace.wrappers.decoding.lenient_json import as_mapping, as_mappings, read_json
from tailrace.wrappers.errors import ConfigurationError, UpstreamError, UpstreamFault
from tailrace.wrappers.http.direct_model import DirectModel
from tailrace.wrappers.http.http_model import ModelArguments
from tailrace.wrappers.messages import History
from tailrace.wrappers.openai.converter import OpenAIConverter, plain_content
from tailrace.wrappers.openai.decoder import ChatCompletionsDecoder
from tailrace.wrappers.openai.endpoint import OpenAIEndpoint
from tailrace.wrappers.openai.prefill import PREFILLS, find_owner
from tailrace.wrappers.openai.request import request_members
from tailrace.wrappers.request_options import RequestOptions

_LIMITS = ("max_completion_tokens", "max_tokens")
# These hosts support ``max_completion_tokens``, and their reasoning models reject ``max_tokens``.
_OPENAI_HOSTS = ("api.openai.com", ".openai.azure.com", ".services.ai.azure.com")


class ChatCompletionsModel(DirectModel):
    """A model that is called with ``POST {base_url}/chat/completions``.

    Args:
        name: The model's name.
        reasoning_field: The only message field in which the server accepts reasoning; ``""`` if it accepts no reasoning. None to
            send reasoning in the field in which it was received, which most servers accept.
        content_parts: False if the server does not accept a list of text parts. The texts of a user message are then joined with
            blank lines.
        prefill: The options with which the server continues a text, as a key of `tailrace.wrappers.openai.prefill.PREFILLS`. None
            to detect the server software before the first continuation (``GET {base_url}/models``).
        keyless: See `DirectModel`.
        arguments: See `DirectModel`. The default ``base_url`` is ``OPENAI_BASE_URL`` or, without this variable, OpenAI's public
            URL. ``parameters`` may contain any member of the request, for example ``temperature``.

    Raises:
        ConfigurationError: The API key is missing, or ``base_url`` is not an HTTP URL.
    """

    has_embeddings = True
    provider = "openai"

    def __init__(
        self,
        name: str,
        *,
        reasoning_field: str | None = None,
        content_parts: bool = True,
        prefill: str | None = None,
        keyless: bool = False,
        **arguments: Unpack[ModelArguments],
    ) -> None:
        super().__init__(name, keyless=keyless, **arguments)
        self._prefill = prefill
        self._converter = OpenAIConverter(reasoning_field=reasoning_field)
        self._endpoint = OpenAIEndpoint(
            name, "/chat/completions", base_url=arguments.get("base_url"), api_key=self._api_key
        )
        self._limit = self._limit_member()
        self._content_parts = content_parts
        self._embeddings, self._moderations = (
            OpenAIEndpoint(name, path, base_url=arguments.get("base_url"), api_key=self._api_key)
            for path in ("/embeddings", "/moderations")
        )

    @property
    def converter(self) -> OpenAIConverter:
        """The converter between the common history and Chat Completions messages."""
        return self._converter

    async def _find_prefill(self) -> Prefill | None:
        if self._prefill is None and not self._endpoint.host.endswith(_OPENAI_HOSTS):
            models = OpenAIEndpoint(
                self.name, "/models", base_url=self._endpoint.base_url, api_key=self._api_key
            )
            self._prefill = await find_owner(self._client(), models)
        return PREFILLS.get(self._prefill or "")

    def _with_root(self, root: str) -> "ChatCompletionsModel":
        self._client()  # creates the client, so that the copy shares it
        model = copy(self)
        model._endpoint = OpenAIEndpoint(
            self.name,
            "/chat/completions",
            base_url=urljoin(self._endpoint.base_url, root),
            api_key=self._api_key,
        )
        return model

    def _members(self, options: RequestOptions) -> dict[str, Any]:
        return request_members(options, limit=self._limit)

    def _request(
        self, history: History, parameters: Mapping[str, Any]
    ) -> tuple[str, Mapping[str, str], object]:
        return self._endpoint.request(self._all_members(history, parameters))

    def _all_members(self, history: History, parameters: Mapping[str, Any]) -> dict[str, Any]:
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

    async def moderate(self, text: str, thresholds: Mapping[str, float] | None = None) -> bool:
        """Return True if OpenAI's Moderations API flags a text. The name of this model is the name of the moderation model.

        Args:
            text: The text.
            thresholds: The minimum score at which a text is flagged, by category. For other categories, and for None, the
                decision
                of the API is used.

        Raises:
            UpstreamError: See `stream`. Also raised if the response has no result.
            ConfigurationError: The response has no score for a category of ``thresholds``.
        """
        body = await self._fetch(self._moderations.request({"input": text, "model": self.name}))
        try:
            results = as_mappings((as_mapping(read_json(body)) or {}).get("results"))
        except (ValueError, RecursionError):
            results = []
        flags = [_is_flagged(each, thresholds or {}) for each in results]
        if not flags or not all(isinstance(flag, bool) for flag in flags):
            raise UpstreamError(
                "the response of the Moderations API has no result",
                fault=UpstreamFault.INVALID,
                provider=self.provider,
            )
        return any(flags)

    def _decoder(self) -> ChatCompletionsDecoder:
        return ChatCompletionsDecoder(provider=self.provider)

    def _limit_member(self) -> str:
        """Return the member that limits the output: from the operator's parameters, or the one that the server supports."""
        for member in _LIMITS:
            if member in self._parameters:
                return member
        return _LIMITS[0] if self._endpoint.host.endswith(_OPENAI_HOSTS) else _LIMITS[1]


def _is_flagged(result: Mapping[str, Any], thresholds: Mapping[str, float]) -> object:
    """Return whether a result of the Moderations API is flagged; a value that is no bool if the result is invalid.

    Raises:
        ConfigurationError: See `ChatCompletionsModel.moderate`.
    """
    if not thresholds:
        return result.get("flagged")
    categories, scores = as_mapping(result.get("categories")), as_mapping(result.get("category_scores"))
    if categories is None or scores is None:
        return None
    for name, threshold in thresholds.items():
        score = scores.get(name)
        if not isinstance(score, int | float):
            raise ConfigurationError(f"the moderation model has no score for the category {name!r}")
        if math.isnan(score):
            return None
        if score >= threshold:
            return True
    flagged = {name for name, flag in categories.items() if flag is True}
    # No threshold replaces the decision of the API about a text without a category.
    return result.get("flagged") is True if not flagged else bool(flagged - thresholds.keys())

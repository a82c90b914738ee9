"""Models behind Mistral's API: Chat Completions of a kind of its own."""

import os
from collections.abc import Mapping
from typing import Any

from tailrace.wrappers.errors import ConfigurationError
from tailrace.wrappers.http_model import DirectModel
from tailrace.wrappers.messages import History
from tailrace.wrappers.mistral.chunks import MistralDecoder
from tailrace.wrappers.mistral.history import MistralConverter
from tailrace.wrappers.mistral.request import request_members
from tailrace.wrappers.openai.endpoint import OpenAIEndpoint
from tailrace.wrappers.options import RequestOptions

_KEY_VARIABLE = "MISTRAL_API_KEY"
_BASE_URL = "https://api.mistral.ai/v1"


class MistralModel(DirectModel):
    """A model behind ``POST {base_url}/chat/completions``.

    Args:
        name: The model's name.
        base_url: The API's root; Mistral's own when None.
        api_key: The key; ``MISTRAL_API_KEY`` when None.
        connect_timeout: Seconds allowed for opening a connection.
        read_timeout: Seconds of silence allowed before and between the pieces of an answer.
        max_retries: How often a request is sent again when nothing of an answer was received yet.
        parameters: Further members of the request (``temperature``, ``safe_prompt``, …).

    Raises:
        ConfigurationError: There is no key.
    """

    provider = "mistral"

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
        key = api_key or os.environ.get(_KEY_VARIABLE)
        if not key:
            raise ConfigurationError(f"no key for the model {name!r}: set {_KEY_VARIABLE}")
        self._converter = MistralConverter()
        self._endpoint = OpenAIEndpoint(
            name, "/chat/completions", base_url=base_url or _BASE_URL, api_key=key
        )

    @property
    def converter(self) -> MistralConverter:
        """Between the common history and Mistral's messages."""
        return self._converter

    def _members(self, options: RequestOptions) -> dict[str, Any]:
        return request_members(options)

    def _request(
        self, history: History, parameters: Mapping[str, Any]
    ) -> tuple[str, Mapping[str, str], object]:
        # Usage always comes; Mistral refuses to be asked for it (``stream_options``), as any member that it does not
        # know.
        messages = self._converter.from_history(history)
        return self._endpoint.request(
            {"model": self.name, "messages": messages, "stream": True, **parameters}
        )

    def _decoder(self) -> MistralDecoder:
        return MistralDecoder(provider=self.provider)

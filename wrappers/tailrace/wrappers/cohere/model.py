"""Models behind Cohere's Chat API, version 2."""

import os
from collections.abc import Mapping
from typing import Any

from tailrace.wrappers.cohere.chunks import CohereDecoder
from tailrace.wrappers.cohere.history import CohereConverter
from tailrace.wrappers.cohere.request import request_members
from tailrace.wrappers.errors import ConfigurationError
from tailrace.wrappers.http_model import DirectModel
from tailrace.wrappers.messages import History
from tailrace.wrappers.options import RequestOptions
from tailrace.wrappers.parameters import tool_name

_BASE_URL = "https://api.cohere.com/v2"
_KEYS = ("CO_API_KEY", "COHERE_API_KEY")


class CohereModel(DirectModel):
    """A model behind ``POST {base_url}/chat``.

    Args:
        name: The model's name.
        base_url: The API's root; Cohere's own when None.
        api_key: The key; ``CO_API_KEY`` or ``COHERE_API_KEY`` when None.
        connect_timeout: Seconds allowed for opening a connection.
        read_timeout: Seconds of silence allowed before and between the pieces of an answer.
        max_retries: How often a request is sent again when nothing of an answer was received yet.
        parameters: Further members of the request (``tools``, ``temperature``, ``max_tokens``, ``documents``, …).

    Raises:
        ConfigurationError: There is no key.
    """

    provider = "cohere"

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
        self._converter = CohereConverter()
        self._url = f"{(base_url or _BASE_URL).rstrip('/')}/chat"
        key = api_key or next((os.environ[name] for name in _KEYS if os.environ.get(name)), None)
        if key is None:
            raise ConfigurationError(f"no key for the model {name!r}: set {' or '.join(_KEYS)}")
        self._headers = {"authorization": f"Bearer {key}", "accept": "text/event-stream"}

    @property
    def converter(self) -> CohereConverter:
        """Between the common history and the messages of Chat v2."""
        return self._converter

    def _members(self, options: RequestOptions) -> dict[str, Any]:
        return request_members(options)

    def _asked(self, options: RequestOptions) -> dict[str, Any]:
        asked = super()._asked(options)
        choice = options.tool_choice
        if choice is None or choice.mode != "tool" or not asked.get("tools"):
            return asked
        # Which tool must be called cannot be said: it is the only one.
        return {**asked, "tools": [tool for tool in asked["tools"] if tool_name(tool) == choice.name]}

    def _request(
        self, history: History, parameters: Mapping[str, Any]
    ) -> tuple[str, Mapping[str, str], object]:
        messages = self._converter.from_history(history)
        return (
            self._url,
            self._headers,
            {**parameters, "model": self.name, "messages": messages, "stream": True},
        )

    def _decoder(self) -> CohereDecoder:
        return CohereDecoder(provider=self.provider)

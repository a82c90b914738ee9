"""Models of Ollama's native API (on this computer, on a remote server, or on ollama.com)."""

import os
from collections.abc import Mapping
from typing import Any, Unpack
from urllib.parse import urlsplit

from tailrace.wrappers.continuation import Prefill
from tailrace.wrappers.conversion.adjacent_messages import with_merged_neighbours
from tailrace.wrappers.errors import ConfigurationError
from tailrace.wrappers.http.direct_model import DirectModel
from tailrace.wrappers.http.http_model import ModelArguments
from tailrace.wrappers.messages import History
from tailrace.wrappers.ollama.converter import OllamaConverter
from tailrace.wrappers.ollama.decoder import OllamaDecoder
from tailrace.wrappers.ollama.request import request_members
from tailrace.wrappers.request_options import RequestOptions

_LOOPBACK = "127.0.0.1"
_PORT = 11434
_ANY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - listening addresses; requests use the loopback address


class OllamaModel(DirectModel):
    """A model that is called with ``POST {base_url}/api/chat``.

    Args:
        name: The model's name.
        arguments: See `DirectModel`. The default ``base_url`` is ``OLLAMA_HOST`` or ``http://127.0.0.1:11434``. As in the
            configuration of Ollama, the scheme and the port may be missing. ``read_timeout`` is 300 seconds by default, because
            it takes time to load a model. ``parameters`` may contain any member of the request, for example ``keep_alive``.

    Raises:
        ConfigurationError: ``base_url`` is not an HTTP URL.
    """

    has_embeddings = True
    provider = "ollama"

    def __init__(self, name: str, **arguments: Unpack[ModelArguments]) -> None:
        arguments.setdefault("read_timeout", 300.0)
        super().__init__(name, **arguments)
        self._url = f"{server_address(self._base_url or os.environ.get('OLLAMA_HOST', ''))}/api/chat"
        self._headers = {"authorization": f"Bearer {self._api_key}"} if self._api_key else {}

    @property
    def converter(self) -> OllamaConverter:
        """The converter between the common history and ``/api/chat`` messages."""
        return OllamaConverter()

    async def _find_prefill(self) -> Prefill:
        return Prefill()  # with some chat templates, the response repeats the last message

    def _members(self, options: RequestOptions) -> dict[str, Any]:
        return request_members(options)

    def _request(
        self, history: History, parameters: Mapping[str, Any]
    ) -> tuple[str, Mapping[str, str], object]:
        messages = with_merged_neighbours(OllamaConverter().from_history(history))
        return (
            self._url,
            self._headers,
            {**parameters, "model": self.name, "messages": messages, "stream": True},
        )

    def _embeddings_request(self, members: Mapping[str, Any]) -> tuple[str, Mapping[str, str], object]:
        # The endpoint belongs to Ollama's OpenAI-compatible API.
        return self._url.removesuffix("/api/chat") + "/v1/embeddings", self._headers, members

    def _decoder(self) -> OllamaDecoder:
        return OllamaDecoder(provider=self.provider)


def server_address(host: str) -> str:
    """Return the root URL of a server, without a trailing slash.

    Args:
        host: ``[scheme://][host][:port][/path]``. Without a scheme, the default port is 11434.

    Raises:
        ConfigurationError: ``host`` has an invalid format.
    """
    text = host.strip().strip("\"'").rstrip("/")
    if text == "ollama.com":
        return "https://ollama.com"
    scheme, separator, address = text.rpartition("://")
    try:
        parts = urlsplit(f"{scheme or 'http'}://{address}")
        port = parts.port
    except ValueError as error:
        raise ConfigurationError(f"{host!r} (base URL or OLLAMA_HOST) is not a URL: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise ConfigurationError(f"{host!r} (base URL or OLLAMA_HOST) is not an HTTP URL")
    name = parts.hostname or _LOOPBACK
    if name in _ANY_ADDRESS:
        name = _LOOPBACK
    if ":" in name:
        name = f"[{name}]"
    if port is None and not separator:
        port = _PORT
    return f"{parts.scheme}://{name}{'' if port is None else f':{port}'}{parts.path}"

"""Models behind Ollama's own API, on this machine, another one, or ollama.com."""

import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from tailrace.wrappers.errors import ConfigurationError
from tailrace.wrappers.http_model import DirectModel
from tailrace.wrappers.messages import History
from tailrace.wrappers.ollama.chunks import OllamaDecoder
from tailrace.wrappers.ollama.history import OllamaConverter
from tailrace.wrappers.ollama.request import request_members
from tailrace.wrappers.options import RequestOptions

_LOOPBACK = "127.0.0.1"
_PORT = 11434
_ANY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - what a server listens on is no address to connect to


class OllamaModel(DirectModel):
    """A model behind ``POST {base_url}/api/chat``.

    Args:
        name: The model's name.
        base_url: The server's root; ``OLLAMA_HOST`` when None, else ``http://127.0.0.1:11434``. As the server itself
            reads that variable, scheme and port may be missing.
        api_key: The key; ``OLLAMA_API_KEY`` when None. A server of one's own needs none.
        connect_timeout: Seconds allowed for opening a connection.
        read_timeout: Seconds of silence allowed before and between the pieces of an answer; before the first piece the
            server may have to load the model.
        max_retries: How often a request is sent again when nothing of an answer was received yet.
        parameters: Further members of the request (``tools``, ``think``, ``format``, ``keep_alive``, and ``options``
            for the temperature and the like).

    Raises:
        ConfigurationError: The address is none.
    """

    provider = "ollama"

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        connect_timeout: float = 10.0,
        read_timeout: float = 300.0,
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
        self._converter = OllamaConverter()
        self._url = f"{server_address(base_url or os.environ.get('OLLAMA_HOST', ''))}/api/chat"
        key = api_key or os.environ.get("OLLAMA_API_KEY")
        self._headers = {"authorization": f"Bearer {key}"} if key else {}

    @property
    def converter(self) -> OllamaConverter:
        """Between the common history and the messages of ``/api/chat``."""
        return self._converter

    def _members(self, options: RequestOptions) -> dict[str, Any]:
        return request_members(options)

    def _request(
        self, history: History, parameters: Mapping[str, Any]
    ) -> tuple[str, Mapping[str, str], object]:
        messages = self._converter.from_history(history)
        return (
            self._url,
            self._headers,
            {**parameters, "model": self.name, "messages": messages, "stream": True},
        )

    def _decoder(self) -> OllamaDecoder:
        return OllamaDecoder(provider=self.provider)


def server_address(host: str) -> str:
    """The root of a server's addresses, without a slash at its end.

    Args:
        host: ``[scheme://]host[:port][/path]``, where the host may be missing too; without a scheme the port is
            11434 unless another is given.

    Raises:
        ConfigurationError: It is none of that.
    """
    text = host.strip().strip("\"'").rstrip("/")
    if text == "ollama.com":
        return "https://ollama.com"
    scheme, separator, rest = text.rpartition("://")
    try:
        parts = urlsplit(f"{scheme or 'http'}://{rest}")
        port = parts.port
    except ValueError as error:
        raise ConfigurationError(f"{host!r} (base URL or OLLAMA_HOST) is not an address: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise ConfigurationError(f"{host!r} (base URL or OLLAMA_HOST) is not an address of HTTP")
    name = parts.hostname or _LOOPBACK
    if name in _ANY_ADDRESS:
        name = _LOOPBACK
    if ":" in name:
        name = f"[{name}]"
    if port is None and not separator:
        port = _PORT
    return f"{parts.scheme}://{name}{'' if port is None else f':{port}'}{parts.path}"

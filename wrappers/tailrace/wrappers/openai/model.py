"""Models behind the OpenAI Chat Completions API, or behind anything that speaks it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from tailrace.wrappers.http_model import DirectModel
from tailrace.wrappers.messages import History
from tailrace.wrappers.openai.chunks import ChatCompletionsDecoder
from tailrace.wrappers.openai.endpoint import OpenAIEndpoint
from tailrace.wrappers.openai.history import OpenAIConverter
from tailrace.wrappers.openai.request import request_members
from tailrace.wrappers.options import RequestOptions

if TYPE_CHECKING:
    from openai.types.chat import ChatCompletionMessageParam

_LIMITS = ("max_completion_tokens", "max_tokens")
# Where the first of these is known for sure, and the second refused by models that reason.
_OPENAI_HOSTS = ("api.openai.com", ".openai.azure.com", ".services.ai.azure.com")


class ChatCompletionsModel(DirectModel):
    """A model behind ``POST {base_url}/chat/completions``.

    Args:
        name: The model's name.
        base_url: The API's root; ``OPENAI_BASE_URL`` when None, else OpenAI's own.
        api_key: The key; ``OPENAI_API_KEY`` when None. A server of one's own that asks for none gets a dummy.
        connect_timeout: Seconds allowed for opening a connection.
        read_timeout: Seconds of silence allowed before and between the pieces of an answer.
        max_retries: How often a request is sent again when nothing of an answer was received yet.
        parameters: Further members of the request (``temperature``, ``max_tokens``, ``tools``, …).
        reasoning_field: The only field in which the server takes reasoning back, ``""`` if it takes none; None where it
            takes back what it gave, as most do.

    Raises:
        ConfigurationError: There is no key, or the address is none.
    """

    provider = "openai"

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
        reasoning_field: str | None = None,
    ) -> None:
        super().__init__(
            name,
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            max_retries=max_retries,
            parameters=parameters,
        )
        self._converter = OpenAIConverter(reasoning_field=reasoning_field)
        self._endpoint = OpenAIEndpoint(name, "/chat/completions", base_url=base_url, api_key=api_key)
        self._limit = self._limit_member()

    @property
    def converter(self) -> OpenAIConverter:
        """Between the common history and Chat Completions messages."""
        return self._converter

    def _members(self, options: RequestOptions) -> dict[str, Any]:
        return request_members(options, limit=self._limit)

    def _request(
        self, history: History, parameters: Mapping[str, Any]
    ) -> tuple[str, Mapping[str, str], object]:
        messages = [_plain(message) for message in self._converter.from_history(history)]
        usual = {"model": self.name, "messages": messages, "stream": True}
        return self._endpoint.request({**usual, "stream_options": {"include_usage": True}, **parameters})

    def _decoder(self) -> ChatCompletionsDecoder:
        return ChatCompletionsDecoder(provider=self.provider)

    def _limit_member(self) -> str:
        """The member that limits the answer: the one that the operator uses, else the one that the server knows."""
        for member in _LIMITS:
            if member in self._given_parameters:
                return member
        return _LIMITS[0] if self._endpoint.host.endswith(_OPENAI_HOSTS) else _LIMITS[1]


def _plain(message: "ChatCompletionMessageParam") -> "ChatCompletionMessageParam":
    """The message with content that is nothing but text as one string: some compatible servers take no list."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = cast("list[dict[str, Any]]", content)
    if any(part.keys() != {"type", "text"} for part in parts):
        return message
    text = "".join(part["text"] for part in parts)
    return cast("ChatCompletionMessageParam", {**message, "content": text})

"""Models served by the Anthropic Messages API or a compatible server.

The client of the ``anthropic`` package handles credentials, base URLs and retries. tailrace's HTTP client sends the requests, and
its decoder reads the responses.
"""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Unpack, cast

from tailrace.wrappers.anthropic.converter import AnthropicConverter
from tailrace.wrappers.anthropic.decoder import AnthropicDecoder
from tailrace.wrappers.anthropic.request import parallel_tool_use, request_members
from tailrace.wrappers.continuation import Prefill
from tailrace.wrappers.errors import ConfigurationError
from tailrace.wrappers.http.http_model import ConnectionArguments
from tailrace.wrappers.http.official_client_model import ClientModel, ClientTransport
from tailrace.wrappers.messages import History
from tailrace.wrappers.request_options import RequestOptions

DEFAULT_MAX_TOKENS = 8192
"""Default maximum number of output tokens. The API requires a maximum, and all current models accept this value."""

# Arguments of the client's method ``create`` that are not members of the request body.
_OPTIONS = ("extra_headers", "extra_query", "timeout")


class AnthropicModel(ClientModel):
    """A model that is called with ``POST {base_url}/v1/messages``.

    Args:
        name: The model's name.
        base_url: The API's root URL, with or without ``/v1``; None for ``ANTHROPIC_BASE_URL`` or, without it, Anthropic's public
            URL.
        api_key: The API key; None for ``ANTHROPIC_API_KEY`` or another credential of the ``anthropic`` package
            (``ANTHROPIC_AUTH_TOKEN``, a profile).
        start_repeated: True if the server sends the beginning of each block twice (see
            `tailrace.wrappers.anthropic.events.MessageEvents`).
        arguments: See `HTTPModel`. ``parameters`` may contain any member of the request, for example ``max_tokens`` (by default
            `DEFAULT_MAX_TOKENS`). The members of ``extra_headers`` are sent as headers.

    Raises:
        ConfigurationError: The API key is missing, or the ``anthropic`` package is not installed.
    """

    provider = "anthropic"

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        start_repeated: bool = False,
        **arguments: Unpack[ConnectionArguments],
    ) -> None:
        super().__init__(name, **arguments)
        try:
            import anthropic as package
        except ImportError:
            raise ConfigurationError(
                "the anthropic package is not installed: pip install 'tailrace[anthropic]'"
            ) from None
        # Set here, because the optional package is imported only in this constructor.
        AnthropicModel.status_errors = (package.APIStatusError,)
        AnthropicModel.connection_errors = (package.APIConnectionError,)
        self._start_repeated = start_repeated
        timeout = package.Timeout(self._read_timeout, connect=self._connect_timeout)
        try:
            self._client = package.AsyncAnthropic(
                # The client appends ``/v1``, but the base URLs of most other providers include ``/v1``.
                base_url=base_url.rstrip("/").removesuffix("/v1") if base_url else None,
                api_key=api_key,
                max_retries=self._max_retries,
                timeout=timeout,
                http_client=package.DefaultAsyncHttpxClient(
                    follow_redirects=False,  # a redirect would send the key and the prompt to the new URL
                    timeout=timeout,
                    headers=ClientTransport.HEADERS,
                    transport=ClientTransport(self._connect_timeout, self._read_timeout),
                ),
            )
        except package.AnthropicError as error:
            raise ConfigurationError(
                f"no key for the model {name!r}: set ANTHROPIC_API_KEY ({error})"
            ) from None
        client = cast("Any", self._client)
        if not any(getattr(client, each, None) for each in ("api_key", "auth_token", "credentials")):
            raise ConfigurationError(f"no key for the model {name!r}: set ANTHROPIC_API_KEY")

    @property
    def converter(self) -> AnthropicConverter:
        """The converter between the common history and the API's messages."""
        return AnthropicConverter()

    async def aclose(self) -> None:
        """Close the pooled connections."""
        await self._client.close()

    async def _find_prefill(self) -> Prefill:
        # The API rejects continuations with status 400 for models since Claude 4.6, and for requests with thinking.
        return Prefill(is_exact=True)

    def _members(self, options: RequestOptions) -> dict[str, Any]:
        if options.tool_choice is None and options.parallel_tool_calls is not None:
            # ``tool_choice`` also contains the setting for parallel calls, which is combined with the operator's tool choice.
            configured = self._parameters.get("tool_choice")
            if isinstance(configured, Mapping):
                choice = cast("Mapping[str, Any]", configured)
                if choice.get("type") != "none":  # the choice ``none`` has no setting for parallel calls
                    choice = {**choice, **parallel_tool_use(options.parallel_tool_calls)}
                other_options = options.model_copy(update={"parallel_tool_calls": None})
                return {**request_members(other_options), "tool_choice": choice}
        return request_members(options)

    def _open(self, history: History, parameters: dict[str, Any]) -> AbstractAsyncContextManager[Any]:
        members = dict(parameters)
        options = {name: members.pop(name) for name in _OPTIONS if name in members}
        system = AnthropicConverter().system_prompt(history)
        if system is not None:
            members["system"] = system
        return self._client.messages.with_streaming_response.create(
            model=self.name,
            messages=AnthropicConverter().from_history(history),
            max_tokens=members.pop("max_tokens", DEFAULT_MAX_TOKENS),
            stream=True,
            # ``extra_body`` may contain members that the package does not define, for example ``temperature``.
            extra_body=members,
            **options,
        )

    def _decoder(self) -> AnthropicDecoder:
        return AnthropicDecoder(provider=self.provider, start_repeated=self._start_repeated)

"""Models behind the Anthropic Messages API, or behind anything that speaks it.

The anthropic package's client does what it is good at (credentials, retries before the first byte, base URLs) over
connections of ours; the bytes of the body come to our own decoder as they are.
"""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

from tailrace.wrappers.anthropic.chunks import AnthropicDecoder
from tailrace.wrappers.anthropic.history import AnthropicConverter
from tailrace.wrappers.anthropic.request import parallel, request_members
from tailrace.wrappers.client_model import ClientModel, ClientTransport
from tailrace.wrappers.errors import ConfigurationError
from tailrace.wrappers.messages import History
from tailrace.wrappers.options import RequestOptions

DEFAULT_MAX_TOKENS = 8192
"""The API demands a limit for every answer; all models that are served today take this one."""

# What the client's ``create`` takes beside the members of the request.
_OPTIONS = ("extra_headers", "extra_query", "timeout")


class AnthropicModel(ClientModel):
    """A model behind ``POST {base_url}/v1/messages``.

    Args:
        name: The model's name.
        base_url: The API's root, with or without ``/v1``; the anthropic package's default (``ANTHROPIC_BASE_URL``,
            else Anthropic's own) when None.
        api_key: The key; ``ANTHROPIC_API_KEY`` when None, or what else the package finds (``ANTHROPIC_AUTH_TOKEN``,
            a profile).
        connect_timeout: Seconds allowed for opening a connection.
        read_timeout: Seconds of silence allowed before and between the pieces of an answer.
        max_retries: How often a request is sent again when nothing of an answer was received yet.
        parameters: Further members of the request (``max_tokens``, ``tools``, ``thinking``, …); ``max_tokens`` is
            `DEFAULT_MAX_TOKENS` without one. ``extra_headers`` are sent as headers, for example
            ``{"anthropic-beta": "…"}``.
        start_repeated: See `tailrace.wrappers.anthropic.MessageEvents`.

    Raises:
        ConfigurationError: There is no key, or the anthropic package is not installed.
    """

    provider = "anthropic"

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
        start_repeated: bool = False,
    ) -> None:
        super().__init__(
            name,
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            max_retries=max_retries,
            parameters=parameters,
        )
        try:
            import anthropic as package
        except ImportError:
            raise ConfigurationError(
                "the anthropic package is not installed: pip install 'tailrace[anthropic]'"
            ) from None
        # Known only now: whoever does not ask Anthropic need not have its package.
        AnthropicModel.status_errors = (package.APIStatusError,)
        AnthropicModel.connection_errors = (package.APIConnectionError,)
        self._converter = AnthropicConverter()
        self._start_repeated = start_repeated
        timeout = package.Timeout(read_timeout, connect=connect_timeout)
        try:
            self._client = package.AsyncAnthropic(
                # The client puts the version there itself, and most other providers' roots have it.
                base_url=base_url.rstrip("/").removesuffix("/v1") if base_url else None,
                api_key=api_key,
                max_retries=max_retries,
                timeout=timeout,
                http_client=package.DefaultAsyncHttpxClient(
                    timeout=timeout,
                    headers=ClientTransport.HEADERS,
                    transport=ClientTransport(connect_timeout, read_timeout),
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
        """Between the common history and the API's messages."""
        return self._converter

    async def aclose(self) -> None:
        """Close the kept connections."""
        await self._client.close()

    def _members(self, options: RequestOptions) -> dict[str, Any]:
        if options.tool_choice is None and options.parallel_tool_calls is not None:
            # Both are said in one place: what is not asked for is as the operator has it.
            given = self._given_parameters.get("tool_choice")
            if isinstance(given, Mapping):
                choice = cast("Mapping[str, Any]", given)
                if choice.get("type") != "none":  # which has no place for it
                    choice = {**choice, **parallel(options.parallel_tool_calls)}
                rest = options.model_copy(update={"parallel_tool_calls": None})
                return {**request_members(rest), "tool_choice": choice}
        return request_members(options)

    def _open(self, history: History, parameters: dict[str, Any]) -> AbstractAsyncContextManager[Any]:
        members = dict(parameters)
        options = {name: members.pop(name) for name in _OPTIONS if name in members}
        system = self._converter.system_prompt(history)
        if system is not None:
            members["system"] = system
        return self._client.messages.with_streaming_response.create(
            model=self.name,
            messages=self._converter.from_history(history),
            max_tokens=members.pop("max_tokens", DEFAULT_MAX_TOKENS),
            stream=True,
            # Not as arguments: what the package does not know (or no longer: ``temperature``) is sent all the same.
            extra_body=members,
            **options,
        )

    def _decoder(self) -> AnthropicDecoder:
        return AnthropicDecoder(provider=self.provider, start_repeated=self._start_repeated)

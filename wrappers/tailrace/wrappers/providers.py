"""Registry of providers and wire formats. `create_model` creates the model for a name ``provider:model``.

A *wire format* is the format of an API (OpenAI Chat Completions, Anthropic Messages, …). Each wire format has a decoder, a
history converter and a model, whose package is imported when it is used. A *provider* is a service with such an API. Many
providers use the format of Chat Completions. The decoder detects the differences between their responses in the stream. The
differences between their requests are attributes of `Provider`.

An application may add providers with `register`.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from tailrace.wrappers.conversion.history_converter import HistoryConverter
from tailrace.wrappers.decoding.decoder import ResponseDecoder
from tailrace.wrappers.errors import ConfigurationError
from tailrace.wrappers.model import Model


@dataclass(frozen=True)
class WireFormat:
    """The format of an API, and the classes for this format.

    Attributes:
        name: The key of the format in `FORMATS` and in metadata.
        title: The name of the format for people.
        module: The package that contains the classes.
        decoder: The name of the `ResponseDecoder` class in the package.
        converter: The name of the `HistoryConverter` class in the package.
        model: The name of the `Model` class in the package's module ``model``.
        arguments: ``"fragments"`` if the arguments of tool calls are streamed in fragments, ``"whole"`` if each call arrives with
            complete arguments.
        reasoning: ``"text"``, or ``"sealed"`` if reasoning is signed or encrypted.
        sends: The content types of requests in addition to text and tools.
        streams: The content types of responses in addition to text, reasoning and tool calls.
        extra: The optional dependency group (extra) that the model requires; empty for none.
        keyless: True if the model does not require a key.
    """

    name: str
    title: str
    module: str
    decoder: str
    converter: str
    model: str
    arguments: str
    reasoning: str
    sends: tuple[str, ...]
    streams: tuple[str, ...]
    extra: str = ""
    keyless: bool = False

    def create_decoder(self, *, provider: str = "") -> ResponseDecoder[Any]:
        """Create a decoder for one response body. Errors contain ``provider`` as the name of the provider."""
        return self._load(self.module, self.decoder)(provider=provider)

    def create_converter(self) -> HistoryConverter[Any, Any]:
        """Create the converter between the common history and the messages of this format."""
        return self._load(self.module, self.converter)()

    def create_model(self, name: str, **arguments: Any) -> Model:
        """Create a model of this format. The arguments are those of the model's class."""
        # Decoding does not need the model's module.
        return self._load(f"{self.module}.model", self.model)(name, **arguments)

    @staticmethod
    def _load(module: str, name: str) -> Callable[..., Any]:
        return getattr(import_module(module), name)


@dataclass(frozen=True)
class Provider:
    """A provider of models.

    Attributes:
        name: The name of the provider, before the colon in ``provider:model``.
        format: The wire format, a key of `FORMATS`.
        aliases: Other names of the provider.
        base_url: The root URL of the API; None for the default of the format.
        base_url_variable: The environment variable that overrides ``base_url``; empty for none.
        key_variables: The environment variables for the key. The first variable that is set is used.
        needs_key: False if most servers of this provider require no key.
        base_url_suffix: A suffix that is appended to the URL from ``base_url_variable``.
        reasoning_field: The only field of Chat Completions in which the provider accepts reasoning; ``""`` if it accepts no
            reasoning. None to send reasoning in the field in which it was received. Used only with the provider's own base URL.
        content_parts: False if the provider rejects a Chat Completions message whose text is a list of parts. Used only with the
            provider's own base URL.
        prefill: A key in `tailrace.wrappers.openai.prefill.PREFILLS`, for continuations of Chat Completions. None to detect the
            server software. Used only with the provider's own base URL.
    """

    name: str
    format: str
    aliases: tuple[str, ...] = ()
    base_url: str | None = None
    base_url_variable: str = ""
    key_variables: tuple[str, ...] = ()
    needs_key: bool = True
    base_url_suffix: str = ""
    reasoning_field: str | None = None
    content_parts: bool = True
    prefill: str | None = None

    @property
    def wire_format(self) -> WireFormat:
        """The wire format of the provider."""
        return FORMATS[self.format]

    def key(self, environment: Mapping[str, str] | None = None) -> str | None:
        """Return the key in the environment variables; None if no variable is set."""
        variables = os.environ if environment is None else environment
        return next((variables[name] for name in self.key_variables if variables.get(name)), None)

    def address(self, environment: Mapping[str, str] | None = None) -> str | None:
        """Return the root URL from the environment, or ``base_url`` if no URL is set; None for the default of the format."""
        variables = os.environ if environment is None else environment
        url = variables.get(self.base_url_variable) if self.base_url_variable else None
        return url.rstrip("/") + self.base_url_suffix if url else self.base_url

    def create_model(
        self, name: str, *, base_url: str | None = None, api_key: str | None = None, **arguments: Any
    ) -> Model:
        """Create a model of this provider.

        Args:
            name: The provider's name of the model.
            base_url: The root URL of the API; None for the provider's default.
            api_key: The API key; None for the key in the environment.
            arguments: Further arguments of the model's class (``read_timeout``, ``parameters``, …).

        Raises:
            ConfigurationError: The key, the base URL or a required package is missing.
        """
        address = base_url or self.address()
        if address is None and self.base_url_suffix:
            raise ConfigurationError(
                f"no address for {self.name}: give a base URL or set {self.base_url_variable}"
            )
        key = api_key or self.key()
        keyless = not self.needs_key or base_url is not None
        if key is None and not keyless:
            raise ConfigurationError(f"no key for {self.name}:{name}: set {' or '.join(self.key_variables)}")
        if key is None and not self.wire_format.keyless:
            key = "none"  # self-hosted servers require no key, but the official clients require one
        if self.reasoning_field is not None and address == self.base_url:
            arguments.setdefault("reasoning_field", self.reasoning_field)
        if not self.content_parts and address == self.base_url:
            arguments.setdefault("content_parts", False)
        if self.prefill is not None and address == self.base_url:
            arguments.setdefault("prefill", self.prefill)
        model = self.wire_format.create_model(name, base_url=address, api_key=key, **arguments)
        model.provider = self.name
        return model


FORMATS: Mapping[str, WireFormat] = {
    each.name: each
    for each in (
        WireFormat(
            "openai",
            "OpenAI Chat Completions",
            "tailrace.wrappers.openai",
            "ChatCompletionsDecoder",
            "OpenAIConverter",
            "ChatCompletionsModel",
            arguments="fragments",
            reasoning="text",
            sends=("images", "audio", "files"),
            streams=("images", "audio", "annotations", "logprobs"),
        ),
        WireFormat(
            "openai-responses",
            "OpenAI Responses",
            "tailrace.wrappers.openai_responses",
            "ResponsesDecoder",
            "ResponsesConverter",
            "ResponsesModel",
            arguments="fragments",
            reasoning="sealed",
            sends=("images", "files"),
            streams=("images", "annotations", "logprobs", "server tools"),
        ),
        WireFormat(
            "anthropic",
            "Anthropic Messages",
            "tailrace.wrappers.anthropic",
            "AnthropicDecoder",
            "AnthropicConverter",
            "AnthropicModel",
            arguments="fragments",
            reasoning="sealed",
            sends=("images", "files"),
            streams=("annotations", "server tools"),
            extra="anthropic",
        ),
        WireFormat(
            "gemini",
            "Gemini generateContent",
            "tailrace.wrappers.gemini",
            "GeminiDecoder",
            "GeminiConverter",
            "GeminiModel",
            arguments="whole",
            reasoning="sealed",
            sends=("images", "audio", "files"),
            streams=("images", "audio", "annotations", "logprobs", "server tools"),
        ),
        WireFormat(
            "ollama",
            "Ollama",
            "tailrace.wrappers.ollama",
            "OllamaDecoder",
            "OllamaConverter",
            "OllamaModel",
            arguments="whole",
            reasoning="text",
            sends=("images",),
            streams=("logprobs",),
            keyless=True,
        ),
        WireFormat(
            "cohere",
            "Cohere Chat v2",
            "tailrace.wrappers.cohere",
            "CohereDecoder",
            "CohereConverter",
            "CohereModel",
            arguments="fragments",
            reasoning="text",
            sends=("images",),
            streams=("annotations", "logprobs"),
        ),
        WireFormat(
            "mistral",
            "Mistral Chat Completions",
            "tailrace.wrappers.mistral",
            "MistralDecoder",
            "MistralConverter",
            "MistralModel",
            arguments="whole",
            reasoning="text",
            sends=("images", "files"),
            streams=("annotations",),
        ),
        WireFormat(
            "bedrock",
            "Amazon Bedrock Converse",
            "tailrace.wrappers.bedrock",
            "BedrockDecoder",
            "BedrockConverter",
            "BedrockModel",
            arguments="fragments",
            reasoning="sealed",
            sends=("images", "files"),
            streams=("annotations",),
            extra="bedrock",
            keyless=True,
        ),
    )
}


def _compatible(
    name: str,
    base_url: str,
    *key_variables: str,
    aliases: tuple[str, ...] = (),
    needs_key: bool = True,
    reasoning_field: str | None = None,
    content_parts: bool = True,
    prefill: str | None = None,
) -> Provider:
    return Provider(
        name,
        "openai",
        aliases,
        base_url=base_url,
        key_variables=key_variables,
        needs_key=needs_key,
        reasoning_field=reasoning_field,
        content_parts=content_parts,
        prefill=prefill,
    )


class _Recordings(Provider):
    """The provider ``replay``. Each of its models is a folder of recorded responses."""

    def create_model(
        self, name: str, *, base_url: str | None = None, api_key: str | None = None, **arguments: Any
    ) -> Model:
        """Create the model that replays the folder ``name``. The other arguments are ignored."""
        return import_module("tailrace.wrappers.cassettes").CassetteModel(Path(name))


RECORDINGS = _Recordings("replay", "", needs_key=False)
"""The provider of recorded responses, ``replay:FOLDER``. It is not in `providers`, because it is not a service."""

_providers: dict[str, Provider] = {}
_names: dict[str, str] = {}  # provider by name or alias in lower case


def register(provider: Provider) -> None:
    """Register a provider. It replaces a provider with the same name.

    Raises:
        ConfigurationError: The name or an alias of the provider belongs to another provider.
    """
    names = [name.lower() for name in (provider.name, *provider.aliases)]
    for name in names:
        if _names.get(name, provider.name) != provider.name:
            raise ConfigurationError(f"the name {name!r} is taken by the provider {_names[name]!r}")
    _providers[provider.name] = provider
    _names.update(dict.fromkeys(names, provider.name))


def providers() -> Iterator[Provider]:
    """Yield all registered providers."""
    yield from list(_providers.values())


def find_provider(name: str) -> Provider:
    """Return the provider with a name or alias, without regard to case.

    Raises:
        ConfigurationError: No provider has this name or alias. The error message lists all providers.
    """
    registered = _names.get(name.lower())
    if registered is None and name.lower() == RECORDINGS.name:
        return RECORDINGS
    if registered is None:
        raise ConfigurationError(
            f"unknown provider {name!r}; known: {', '.join(sorted(_providers))} "
            "(use openai and a base URL for any other OpenAI-compatible server)"
        )
    return _providers[registered]


def find_key(provider: str, model: str, api_key: str | None = None) -> str | None:
    """Return the key for a model: ``api_key``, or the key in the environment if ``api_key`` is empty.

    The result is None if no key is set, and the provider does not require one or is not registered.

    Raises:
        ConfigurationError: The provider requires a key, and no key is set.
    """
    registered = _providers.get(provider)
    key = api_key or (registered.key() if registered is not None else None)
    if key is None and registered is not None and registered.needs_key:
        raise ConfigurationError(
            f"no key for the model {model!r}: set {' or '.join(registered.key_variables)}"
        )
    return key


def configured_providers(environment: Mapping[str, str] | None = None) -> list[Provider]:
    """Return the providers whose key is in the environment, in the order of their registration."""
    return [provider for provider in providers() if provider.key(environment)]


def create_model(
    model: str, *, base_url: str | None = None, api_key: str | None = None, **arguments: Any
) -> Model:
    """Create the model for a name ``provider:model``. `Provider.create_model` describes the other arguments.

    Raises:
        ConfigurationError: The name has no provider or no model, the provider is unknown, or see `Provider.create_model`.
    """
    provider, _, name = model.partition(":")
    if not name:
        ready = [each.name for each in configured_providers()]
        hint = f"; there are keys for {', '.join(ready)}" if ready else ""
        raise ConfigurationError(
            f"{model!r} is not a model name. Use PROVIDER:MODEL, for example openai:gpt-5-mini{hint}"
        )
    return find_provider(provider).create_model(name, base_url=base_url, api_key=api_key, **arguments)


for _provider in (
    Provider(
        "openai",
        "openai",
        ("openai-chat", "openai-completions"),
        key_variables=("OPENAI_API_KEY",),
        base_url_variable="OPENAI_BASE_URL",
        reasoning_field="",
    ),
    Provider("openai-responses", "openai-responses", ("responses",), key_variables=("OPENAI_API_KEY",)),
    Provider(
        "anthropic", "anthropic", ("claude", "anthropic-messages"), key_variables=("ANTHROPIC_API_KEY",)
    ),
    Provider(
        "gemini",
        "gemini",
        ("google", "googleai", "google-gla", "gemini-generate", "google-interactions"),
        key_variables=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    ),
    Provider(
        "ollama",
        "ollama",
        ("ollama-chat", "ollama-generate"),
        key_variables=("OLLAMA_API_KEY",),
        needs_key=False,
    ),
    Provider("cohere", "cohere", ("cohere-v2",), key_variables=("CO_API_KEY", "COHERE_API_KEY")),
    Provider("mistral", "mistral", ("mistralai",), key_variables=("MISTRAL_API_KEY",)),
    Provider("bedrock", "bedrock", ("aws", "amazon", "bedrock-converse", "bedrock-invoke"), needs_key=False),
    Provider(
        "azure",
        "openai",
        ("azure-openai",),
        base_url_variable="AZURE_OPENAI_ENDPOINT",
        base_url_suffix="/openai/v1/",
        key_variables=("AZURE_OPENAI_API_KEY",),
    ),
    _compatible(
        "alibaba",
        "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
        "DASHSCOPE_API_KEY",
        prefill="partial",
    ),
    _compatible("cerebras", "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY", reasoning_field="reasoning"),
    _compatible(
        "deepseek",
        "https://api.deepseek.com/v1",
        "DEEPSEEK_API_KEY",
        reasoning_field="reasoning_content",
        content_parts=False,
        prefill="deepseek",
    ),
    _compatible("fireworks", "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    _compatible("github", "https://models.github.ai/inference", "GITHUB_TOKEN"),
    _compatible(
        "groq",
        "https://api.groq.com/openai/v1",
        "GROQ_API_KEY",
        reasoning_field="reasoning",
        content_parts=False,
        prefill="trailing",
    ),
    _compatible("huggingface", "https://router.huggingface.co/v1", "HF_TOKEN", aliases=("hf",)),
    _compatible(
        "moonshot",
        "https://api.moonshot.ai/v1",
        "MOONSHOT_API_KEY",
        aliases=("kimi",),
        reasoning_field="reasoning_content",
        prefill="partial",
    ),
    _compatible("nvidia", "https://integrate.api.nvidia.com/v1", "NVIDIA_API_KEY"),
    _compatible("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY", prefill="trailing"),
    _compatible("perplexity", "https://api.perplexity.ai", "PERPLEXITY_API_KEY", "PPLX_API_KEY"),
    _compatible("sambanova", "https://api.sambanova.ai/v1", "SAMBANOVA_API_KEY"),
    _compatible("together", "https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    _compatible("xai", "https://api.x.ai/v1", "XAI_API_KEY", aliases=("grok",)),
    _compatible("zai", "https://api.z.ai/api/paas/v4", "ZAI_API_KEY", aliases=("zhipu",)),
    _compatible("litellm", "http://127.0.0.1:4000/v1", "LITELLM_API_KEY", needs_key=False),
    _compatible("llamacpp", "http://127.0.0.1:8080/v1", needs_key=False, aliases=("llama.cpp",)),
    _compatible("lmstudio", "http://127.0.0.1:1234/v1", needs_key=False),
    _compatible("vllm", "http://127.0.0.1:8000/v1", "VLLM_API_KEY", needs_key=False),
):
    register(_provider)

"""Registry of providers and their formats, which resolves ``provider:model``.

A *format* is a wire format (OpenAI Chat Completions, Anthropic Messages, …): its decoder, converter and model client. A
*provider* is a service with such an API: a base URL, and the environment variables of its key. Many providers use Chat
Completions; their peculiarities are detected from the stream, except two that requests depend on: the only accepted
reasoning field, and missing support of text part lists.

Formats are imported when they are used. Applications may register further providers.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from tailrace.wrappers.conversion.converter import HistoryConverter
from tailrace.wrappers.decoding.decoder import ResponseDecoder
from tailrace.wrappers.errors import ConfigurationError
from tailrace.wrappers.model import Model


@dataclass(frozen=True)
class WireFormat:
    """A wire format.

    Attributes:
        name: The format's key in metadata.
        title: The displayed name.
        module: The package of its classes.
        decoder: Class name of the `ResponseDecoder` in the package.
        converter: Class name of the `HistoryConverter` in the package.
        model: Class name of the `Model` in the package's module ``client``.
        arguments: Form of streamed tool call arguments: ``"fragments"`` or ``"whole"``.
        reasoning: Form of reasoning: ``"text"``, or ``"sealed"`` if it is signed and sent back.
        sends: Kinds of content in requests besides text and tools.
        streams: Kinds of content in responses besides text, reasoning and tool calls.
        extra: The distribution's extra that the model client requires; empty for none.
        keyless: The model client may be created without a key.
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
        """Create a decoder for one response body; ``provider`` is the name in errors."""
        return self._load(self.module, self.decoder)(provider=provider)

    def create_converter(self) -> HistoryConverter[Any, Any]:
        """Create the converter between the common history and this format's messages."""
        return self._load(self.module, self.converter)()

    def create_model(self, name: str, **arguments: Any) -> Model:
        """Create a model client of this format with the arguments of its class."""
        # Imported separately: decoding does not need the client.
        return self._load(f"{self.module}.client", self.model)(name, **arguments)

    @staticmethod
    def _load(module: str, name: str) -> Callable[..., Any]:
        return getattr(import_module(module), name)


@dataclass(frozen=True)
class Provider:
    """A provider of models.

    Attributes:
        name: The name in ``provider:model``.
        format: The wire format, a key of `FORMATS`.
        aliases: Other names of the provider.
        base_url: The API's root; None for the format's default.
        base_url_variable: The environment variable that overrides ``base_url``; empty for none.
        key_variables: The environment variables of the key; the first that is set is used.
        needs_key: False if such servers usually require no key.
        base_url_suffix: Suffix appended to the URL in the variable.
        reasoning_field: For Chat Completions, the only field in which the provider accepts or requires reasoning; ``""``
            if it accepts none. None to return reasoning in the field it came from, which suits most providers. Used only
            with the provider's own base URL.
        content_parts: For Chat Completions, False if the provider accepts the text of a message only as one string. Used
            only with the provider's own base URL.
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

    @property
    def wire_format(self) -> WireFormat:
        """The provider's wire format."""
        return FORMATS[self.format]

    def key(self, environment: Mapping[str, str] | None = None) -> str | None:
        """Return the key in the environment; None if there is none."""
        variables = os.environ if environment is None else environment
        return next((variables[name] for name in self.key_variables if variables.get(name)), None)

    def address(self, environment: Mapping[str, str] | None = None) -> str | None:
        """Return the API's root from the environment or the registry; None for the format's default."""
        variables = os.environ if environment is None else environment
        url = variables.get(self.base_url_variable) if self.base_url_variable else None
        return url.rstrip("/") + self.base_url_suffix if url else self.base_url

    def create_model(
        self, name: str, *, base_url: str | None = None, api_key: str | None = None, **arguments: Any
    ) -> Model:
        """Create a model of this provider.

        Args:
            name: The provider's name of the model.
            base_url: The API's root; the provider's default when None.
            api_key: The key; the environment's when None.
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
            key = "none"  # self-hosted servers require no key, but their clients do
        if self.reasoning_field is not None and address == self.base_url:
            arguments.setdefault("reasoning_field", self.reasoning_field)
        if not self.content_parts and address == self.base_url:
            arguments.setdefault("content_parts", False)
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
    )


_providers: dict[str, Provider] = {}
_names: dict[str, str] = {}  # provider name by lower-case name or alias


def register(provider: Provider) -> None:
    """Register a provider; one with the same name is replaced.

    Raises:
        ConfigurationError: One of its names belongs to another provider.
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
    """Return the provider of a case-insensitive name or alias.

    Raises:
        ConfigurationError: There is none; the message lists all providers.
    """
    registered = _names.get(name.lower())
    if registered is None:
        raise ConfigurationError(
            f"unknown provider {name!r}; known: {', '.join(sorted(_providers))} "
            "(openai with a base URL for anything else that is compatible with it)"
        )
    return _providers[registered]


def find_key(provider: str, model: str, api_key: str | None = None) -> str | None:
    """Return the key for a model: the given one, otherwise the environment's.

    Raises:
        ConfigurationError: The provider requires a key and there is none; the message names the variables to set.
    """
    registered = _providers.get(provider)
    key = api_key or (registered.key() if registered is not None else None)
    if key is None and registered is not None and registered.needs_key:
        raise ConfigurationError(
            f"no key for the model {model!r}: set {' or '.join(registered.key_variables)}"
        )
    return key


def configured_providers(environment: Mapping[str, str] | None = None) -> list[Provider]:
    """Return the providers with a key in the environment, in the order of the registry."""
    return [provider for provider in providers() if provider.key(environment)]


def create_model(
    model: str, *, base_url: str | None = None, api_key: str | None = None, **arguments: Any
) -> Model:
    """Create the model of ``provider:model``; for further arguments see `Provider.create_model`.

    Raises:
        ConfigurationError: The text has no provider or no model, the provider is unknown, or its key is missing.
    """
    provider, _, name = model.partition(":")
    if not name:
        ready = [each.name for each in configured_providers()]
        hint = f"; there are keys for {', '.join(ready)}" if ready else ""
        raise ConfigurationError(
            f"a model is named PROVIDER:MODEL, for example openai:gpt-5-mini, not {model!r}{hint}"
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
    _compatible("alibaba", "https://dashscope-intl.aliyuncs.com/compatible-mode/v1", "DASHSCOPE_API_KEY"),
    _compatible("cerebras", "https://api.cerebras.ai/v1", "CEREBRAS_API_KEY", reasoning_field="reasoning"),
    _compatible(
        "deepseek",
        "https://api.deepseek.com/v1",
        "DEEPSEEK_API_KEY",
        reasoning_field="reasoning_content",
        content_parts=False,
    ),
    _compatible("fireworks", "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    _compatible("github", "https://models.github.ai/inference", "GITHUB_TOKEN"),
    _compatible(
        "groq",
        "https://api.groq.com/openai/v1",
        "GROQ_API_KEY",
        reasoning_field="reasoning",
        content_parts=False,
    ),
    _compatible("huggingface", "https://router.huggingface.co/v1", "HF_TOKEN", aliases=("hf",)),
    _compatible(
        "moonshot",
        "https://api.moonshot.ai/v1",
        "MOONSHOT_API_KEY",
        aliases=("kimi",),
        reasoning_field="reasoning_content",
    ),
    _compatible("nvidia", "https://integrate.api.nvidia.com/v1", "NVIDIA_API_KEY"),
    _compatible("openrouter", "https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
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

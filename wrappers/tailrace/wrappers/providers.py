"""Who provides models, and how they are asked: the registry behind ``provider:model``.

A *format* is what is spoken on the wire (OpenAI Chat Completions, Anthropic Messages, …): its decoder, converter and
model client. A *provider* is somebody who speaks one: an address, and the environment variables that hold the key.
Many providers speak Chat Completions; what is peculiar about one is found in the stream, never looked up here, but for
one fact that no stream can say: the field in which reasoning has to go back, where a provider refuses any other.

Nothing of a format is imported before it is used. Further providers may be registered by anybody.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from tailrace.wrappers.decoding import ResponseDecoder
from tailrace.wrappers.errors import ConfigurationError
from tailrace.wrappers.history import HistoryConverter
from tailrace.wrappers.model import Model


@dataclass(frozen=True)
class WireFormat:
    """What is spoken on the wire.

    Attributes:
        name: The key of its namespace in metadata.
        title: For people.
        module: The package of its classes.
        decoder: Name of the `ResponseDecoder` there.
        converter: Name of the `HistoryConverter` there.
        model: Name of the `Model` in the package's module ``model``.
        arguments: How the arguments of tool calls arrive: ``"fragments"`` or ``"whole"``.
        reasoning: How reasoning comes: ``"text"``, or ``"sealed"`` where it is signed and sent back.
        sends: What a request may hold besides text and tools.
        streams: What an answer may hold besides text, reasoning and tool calls.
        extra: The extra of the distribution that its model client needs; empty for none.
        keyless: Its model client may be made without a key: there are other ways in, or none is needed.
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
        """A decoder for the body of one response; ``provider`` is named in errors."""
        return self._load(self.module, self.decoder)(provider=provider)

    def create_converter(self) -> HistoryConverter[Any, Any]:
        """The converter between the common history and this format's messages."""
        return self._load(self.module, self.converter)()

    def create_model(self, name: str, **arguments: Any) -> Model:
        """A model that is asked in this format; arguments as the class takes them."""
        # Apart from the rest: whoever only decodes needs no client.
        return self._load(f"{self.module}.model", self.model)(name, **arguments)

    @staticmethod
    def _load(module: str, name: str) -> Callable[..., Any]:
        return getattr(import_module(module), name)


@dataclass(frozen=True)
class Provider:
    """Somebody who provides models.

    Attributes:
        name: As in ``provider:model``.
        format: What it speaks, a key of `FORMATS`.
        aliases: Other names for it.
        base_url: The API's root; None for the format's own default.
        base_url_variable: The environment variable that overrides it, where one is usual.
        key_variables: The environment variables that hold the key, in order; the first that is set counts.
        needs_key: False where servers of this kind usually ask for none.
        base_url_suffix: Belongs behind the address in the variable.
        reasoning_field: For Chat Completions, where the provider refuses others or demands this: the only field in which
            it takes reasoning back, ``""`` if it takes none. None for most, which take back what they gave. It holds at
            the provider's own address.
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

    @property
    def wire_format(self) -> WireFormat:
        """What it speaks."""
        return FORMATS[self.format]

    def key(self, environment: Mapping[str, str] | None = None) -> str | None:
        """The key that the environment holds for it; None when it holds none."""
        variables = os.environ if environment is None else environment
        return next((variables[name] for name in self.key_variables if variables.get(name)), None)

    def address(self, environment: Mapping[str, str] | None = None) -> str | None:
        """The API's root, from the environment or the registry; None for the format's own default."""
        variables = os.environ if environment is None else environment
        given = variables.get(self.base_url_variable) if self.base_url_variable else None
        return given.rstrip("/") + self.base_url_suffix if given else self.base_url

    def create_model(
        self, name: str, *, base_url: str | None = None, api_key: str | None = None, **arguments: Any
    ) -> Model:
        """A model of this provider.

        Args:
            name: As the provider knows it.
            base_url: The API's root, where it is not the usual one.
            api_key: The key; that of the environment when None.
            arguments: Further arguments of the model's class (``read_timeout``, ``parameters``, …).

        Raises:
            ConfigurationError: There is no key, no address, or a package is missing that it needs.
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
            key = "none"  # servers of one's own ask for none, but their clients do
        if self.reasoning_field is not None and address == self.base_url:
            arguments.setdefault("reasoning_field", self.reasoning_field)
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
) -> Provider:
    return Provider(
        name,
        "openai",
        aliases,
        base_url=base_url,
        key_variables=key_variables,
        needs_key=needs_key,
        reasoning_field=reasoning_field,
    )


_providers: dict[str, Provider] = {}
_names: dict[str, str] = {}  # every name and alias, in lower case, to the name


def register(provider: Provider) -> None:
    """Make a provider known; one that bears the same name is replaced.

    Raises:
        ConfigurationError: One of its names is another provider's.
    """
    names = [name.lower() for name in (provider.name, *provider.aliases)]
    for name in names:
        if _names.get(name, provider.name) != provider.name:
            raise ConfigurationError(f"the name {name!r} is taken by the provider {_names[name]!r}")
    _providers[provider.name] = provider
    _names.update(dict.fromkeys(names, provider.name))


def providers() -> Iterator[Provider]:
    """Every provider that is known."""
    yield from list(_providers.values())


def find_provider(name: str) -> Provider:
    """The provider of a name or alias, in whatever case.

    Raises:
        ConfigurationError: There is none; the message lists those that there are.
    """
    known = _names.get(name.lower())
    if known is None:
        raise ConfigurationError(
            f"unknown provider {name!r}; known: {', '.join(sorted(_providers))} "
            "(openai with a base URL for anything else that is compatible with it)"
        )
    return _providers[known]


def configured_providers(environment: Mapping[str, str] | None = None) -> list[Provider]:
    """The providers for which the environment holds a key, in the order of the registry."""
    return [provider for provider in providers() if provider.key(environment)]


def create_model(
    model: str, *, base_url: str | None = None, api_key: str | None = None, **arguments: Any
) -> Model:
    """The model that ``provider:model`` names; further arguments as `Provider.create_model` takes them.

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
        "deepseek", "https://api.deepseek.com/v1", "DEEPSEEK_API_KEY", reasoning_field="reasoning_content"
    ),
    _compatible("fireworks", "https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    _compatible("github", "https://models.github.ai/inference", "GITHUB_TOKEN"),
    _compatible("groq", "https://api.groq.com/openai/v1", "GROQ_API_KEY", reasoning_field="reasoning"),
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

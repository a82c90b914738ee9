"""The registry: names, keys, addresses, and models by ``provider:model``."""

import pytest

from tailrace.wrappers import ConfigurationError, providers
from tailrace.wrappers.conversion.history_converter import HistoryConverter
from tailrace.wrappers.decoding.decoder import ResponseDecoder
from tailrace.wrappers.model import Model
from tailrace.wrappers.openai.model import ChatCompletionsModel
from tailrace.wrappers.providers import (
    FORMATS,
    Provider,
    configured_providers,
    create_model,
    find_provider,
    register,
)


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in providers.providers():
        for name in (*provider.key_variables, provider.base_url_variable):
            if name:
                monkeypatch.delenv(name, raising=False)


@pytest.fixture
def _registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo the test's registrations."""
    monkeypatch.setattr(providers, "_providers", dict(providers._providers))  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(providers, "_names", dict(providers._names))  # pyright: ignore[reportPrivateUsage]
    return


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_a_decoder_a_converter_and_a_model(name: str) -> None:
    wire = FORMATS[name]
    assert isinstance(wire.create_decoder(provider=name), ResponseDecoder)
    assert isinstance(wire.create_converter(), HistoryConverter)
    assert wire.name == name


@pytest.mark.parametrize("provider", list(providers.providers()), ids=lambda each: each.name)
async def test_every_provider_gives_a_model_that_bears_its_name(provider: Provider) -> None:
    model = provider.create_model("m", base_url="http://127.0.0.1:9/v1", api_key="key")
    assert isinstance(model, Model)
    assert (model.provider, model.name) == (provider.name, "m")
    assert isinstance(model.converter, HistoryConverter)
    await model.aclose()


def test_names_and_aliases_are_found_in_any_case() -> None:
    assert find_provider("Claude") is find_provider("anthropic")
    assert find_provider("GEMINI") is find_provider("google")
    assert find_provider("groq").wire_format is FORMATS["openai"]


def test_an_unknown_provider_is_answered_with_those_that_are_known() -> None:
    with pytest.raises(
        ConfigurationError, match=r"unknown provider 'nobody'; known: alibaba, anthropic, .*vllm"
    ):
        find_provider("nobody")


@pytest.mark.parametrize("text", ["gpt-5", "openai:", ""])
def test_a_model_needs_a_provider_and_a_name(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GROQ_API_KEY", "k")
    with pytest.raises(ConfigurationError, match=r"PROVIDER:MODEL.*there are keys for groq"):
        create_model(text)


def test_a_model_without_a_key_names_the_variable() -> None:
    with pytest.raises(
        ConfigurationError, match="no key for gemini:pro: set GEMINI_API_KEY or GOOGLE_API_KEY"
    ):
        create_model("google:pro")


async def test_the_first_key_that_is_set_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_API_KEY", "second")
    assert find_provider("gemini").key() == "second"
    monkeypatch.setenv("GEMINI_API_KEY", "first")
    assert find_provider("gemini").key() == "first"
    assert [each.name for each in configured_providers()] == ["gemini"]


async def test_a_model_may_hold_colons() -> None:
    model = create_model("ollama:qwen3:4b", base_url="http://127.0.0.1:9")
    assert model.name == "qwen3:4b"
    await model.aclose()


async def test_compatible_providers_have_their_address_and_may_be_given_another() -> None:
    model = create_model("groq:m", api_key="k")
    assert isinstance(model, ChatCompletionsModel)
    assert model._endpoint.url == "https://api.groq.com/openai/v1/chat/completions"  # pyright: ignore[reportPrivateUsage]
    await model.aclose()
    model = create_model("groq:m", api_key="k", base_url="http://127.0.0.1:9/v1")
    assert isinstance(model, ChatCompletionsModel)
    assert model._endpoint.url == "http://127.0.0.1:9/v1/chat/completions"  # pyright: ignore[reportPrivateUsage]
    await model.aclose()


async def test_the_address_of_azure_comes_from_its_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="set AZURE_OPENAI_ENDPOINT"):
        create_model("azure:m", api_key="k")
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", "https://mine.openai.azure.com/")
    assert find_provider("azure").address() == "https://mine.openai.azure.com/openai/v1/"


@pytest.mark.usefixtures("_registry")
async def test_a_provider_can_be_registered() -> None:
    register(Provider("ours", "openai", ("house",), base_url="http://127.0.0.1:9/v1", needs_key=False))
    model = create_model("House:m")
    assert model.provider == "ours"
    await model.aclose()
    register(Provider("ours", "anthropic", ("house",)))
    assert find_provider("ours").format == "anthropic"


@pytest.mark.usefixtures("_registry")
def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="the name 'claude' is taken by the provider 'anthropic'"):
        register(Provider("mine", "openai", ("Claude",)))
    with pytest.raises(ConfigurationError, match="unknown provider 'mine'"):
        find_provider("mine")

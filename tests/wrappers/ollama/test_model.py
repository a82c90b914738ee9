"""The Ollama client: addresses, and members of its requests that other providers do not have."""

import pytest

from support.options import WEATHER, ask
from support.provider_cases import OLLAMA
from support.upstream import ScriptedUpstream
from tailrace.wrappers import ConfigurationError, RequestOptions, ToolChoice
from tailrace.wrappers.ollama.model import OllamaModel, server_address
from tailrace.wrappers.request_options import NO_OPTIONS

pytestmark = pytest.mark.usefixtures("bare_environment")


async def test_the_address_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ScriptedUpstream(OLLAMA.whole_response()) as upstream:
        monkeypatch.setenv("OLLAMA_HOST", upstream.base_url.removeprefix("http://"))
        await ask(OllamaModel("m"), NO_OPTIONS)
        request = await upstream.received()
    assert request.path == "/v1/api/chat"


async def test_no_tools_are_sent_if_none_may_be_called() -> None:
    async with ScriptedUpstream(OLLAMA.whole_response()) as upstream:
        options = RequestOptions(tools=(WEATHER,), tool_choice=ToolChoice(mode="none"))
        await ask(OLLAMA.model_at(upstream), options)
        request = (await upstream.received()).json
    assert "tools" not in request


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("", "http://127.0.0.1:11434"),
        (" ", "http://127.0.0.1:11434"),
        ("example.com", "http://example.com:11434"),
        ("example.com:8080", "http://example.com:8080"),
        (":8080", "http://127.0.0.1:8080"),
        ('"example.com"', "http://example.com:11434"),
        ("0.0.0.0", "http://127.0.0.1:11434"),
        ("0.0.0.0:8080", "http://127.0.0.1:8080"),
        ("[::]:8080", "http://127.0.0.1:8080"),
        ("[::1]", "http://[::1]:11434"),
        ("example.com/ollama/", "http://example.com:11434/ollama"),
        ("http://example.com", "http://example.com"),
        ("https://example.com/", "https://example.com"),
        ("https://example.com:8443/ollama", "https://example.com:8443/ollama"),
        ("ollama.com", "https://ollama.com"),
    ],
)
def test_an_address_may_lack_its_scheme_its_host_and_its_port(host: str, address: str) -> None:
    assert server_address(host) == address


@pytest.mark.parametrize("host", ["example.com:port", "ftp://example.com", "http://[::1", "a:99999"])
def test_what_is_no_address_is_refused(host: str) -> None:
    with pytest.raises(ConfigurationError, match="OLLAMA_HOST"):
        OllamaModel("m", base_url=host)

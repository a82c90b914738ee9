"""Cards of other agents: the chosen interface, tolerated faults, refusals."""

import json
from typing import Any

import pytest

from tailrace.server import Settings
from tailrace.server.protocols.a2a.card import build_card
from tailrace.server.remote.agent_card import RemoteCard, credentials, read_card
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.wrappers import UpstreamError, UpstreamFault

URL = "https://agent.example/sub/.well-known/agent-card.json"


def interface(binding: str, version: Any, url: str = "https://agent.example/a2a") -> dict[str, Any]:
    return {"url": url, "protocolBinding": binding, "protocolVersion": version}


def card(*interfaces: Any, **members: Any) -> RemoteCard:
    fields = {
        "name": "x",
        "supportedInterfaces": list(interfaces) or [interface("JSONRPC", "1.0")],
        **members,
    }
    return read_card(json.dumps(fields).encode(), URL)


@pytest.mark.parametrize(
    ("interfaces", "chosen"),
    [
        ([("JSONRPC", "0.3"), ("HTTP+JSON", "1.0")], ("HTTP+JSON", "1.0")),
        ([("HTTP+JSON", "1.0"), ("JSONRPC", "1.0.1")], ("JSONRPC", "1.0.1")),
        ([("GRPC", "1.0"), ("HTTP+JSON", "1.0")], ("HTTP+JSON", "1.0")),
        ([("soap", "1.0"), ("JSONRPC", "0.3.0")], ("JSONRPC", "0.3.0")),
        ([("JSONRPC", "2.0"), ("JSONRPC", "0.2.6")], ("JSONRPC", "0.3.0")),
        ([("JSONRPC", "")], ("JSONRPC", "1.0")),
        ([("jsonrpc", 1)], ("JSONRPC", "1")),
    ],
)
def test_the_newest_version_is_chosen_then_the_first_binding(
    interfaces: list[tuple[str, Any]], chosen: tuple[str, str]
):
    found = card(*(interface(*each) for each in interfaces))
    assert (found.binding, found.version) == chosen
    assert [each.protocol_binding for each in found.raw.supported_interfaces] == [chosen[0]]


def test_our_own_card_is_read():
    own = build_card(Settings(agent_name="me"), "http://127.0.0.1:8000/")
    found = read_card(own.to_json(), "http://localhost:8000/.well-known/agent-card.json")
    assert (found.name, found.endpoint, found.tenant) == ("me", "http://127.0.0.1:8000/", "")


@pytest.mark.parametrize(("given", "tenant"), [({"tenant": "acme"}, "acme"), ({"tenant": None}, "")])
def test_an_interface_may_have_a_tenant(given: dict[str, Any], tenant: str):
    assert card("nonsense", {**interface("JSONRPC", "1.0"), **given}).tenant == tenant


def test_the_addresses_of_a_card_of_0_3_are_found():
    fields = {
        "name": "old",
        "url": "https://agent.example/rpc",
        "preferredTransport": "JSONRPC",
        "protocolVersion": "0.3.0",
        "capabilities": {"streaming": True, "extensions": [{"uri": EXTENSION_URI}]},
        "defaultInputModes": ["text", ""],
    }
    found = read_card(json.dumps(fields).encode(), URL)
    assert (found.url, found.binding, found.version) == ("https://agent.example/rpc", "JSONRPC", "0.3.0")
    assert found.streaming is found.numbered is True
    assert found.input_modes == ("text",)


def test_addresses_may_be_relative_and_skills_incomplete():
    found = card(
        interface("JSONRPC", "1.0", "/rpc"),
        skills=[{"id": "s", "securityRequirements": [{"schemes": {}}]}, {"name": "n", "tags": ["t"]}, {}],
    )
    assert found.url == "https://agent.example/rpc"
    assert [(skill.id, skill.name, skill.tags) for skill in found.skills] == [
        ("s", "s", ("agent",)),
        ("n", "n", ("t",)),
        ("skill 3", "skill 3", ("agent",)),
    ]
    assert not any(skill.security_requirements for skill in found.skills)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"<html>", "is not an agent card"),
        (b"[]", "is not an agent card"),
        (b"[" * 100_000, "is not an agent card"),
        (b"", "is not an agent card"),
        (b"\xff", "is not an agent card"),
        (b'{"name": 1, "skills": 1}', "no interface at all"),
        (b"{}", "no interface at all"),
        (b'{"supportedInterfaces": "none"}', "no interface at all"),
        (json.dumps({"supportedInterfaces": [interface("JSONRPC", "9.0")]}).encode(), "JSONRPC 9.0"),
        (json.dumps({"supportedInterfaces": [interface("JSONRPC", "1.0", "")]}).encode(), "JSONRPC 1.0"),
    ],
)
def test_an_unsupported_card_is_rejected_with_one_line(body: bytes, words: str):
    with pytest.raises(UpstreamError) as caught:
        read_card(body, URL)
    assert caught.value.fault is UpstreamFault.INVALID
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def key(location: str) -> dict[str, Any]:
    return {"apiKeySecurityScheme": {"location": location, "name": "X-Key"}}


@pytest.mark.parametrize(
    ("schemes", "headers"),
    [
        ({}, {"authorization": "Bearer t"}),
        ({"k": key("header")}, {"x-key": "t"}),
        ({"k": key("cookie")}, {"cookie": "X-Key=t"}),
        ({"k": key("query")}, {"authorization": "Bearer t"}),
        (
            {"k": key("header"), "b": {"httpAuthSecurityScheme": {"scheme": "bearer"}}},
            {"authorization": "Bearer t"},
        ),
        ({"k": {"type": "apiKey", "in": "header", "name": "X-Old"}}, {"x-old": "t"}),
    ],
)
def test_a_token_is_sent_as_the_card_declares(schemes: dict[str, Any], headers: dict[str, str]):
    found = card(securitySchemes=schemes)
    assert credentials(found, "t") == headers
    assert credentials(found, "") == {}

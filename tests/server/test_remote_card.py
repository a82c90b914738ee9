"""Reading other agents' cards: lenient about everything but the address that is needed."""

import json
from typing import Any

import pytest

from tailrace.server import Settings
from tailrace.server.card import build_card
from tailrace.server.remote_card import RemoteAgent, read_card
from tailrace.wrappers import UpstreamError

URL = "https://agent.example/x/.well-known/agent-card.json"
JSONRPC = {"url": "https://agent.example/a2a", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}


def read(card: Any) -> RemoteAgent:
    return read_card(json.dumps(card).encode(), URL)


def test_our_own_card_is_read():
    card = build_card(Settings(agent_name="me"), "http://127.0.0.1:8000/")
    assert read_card(card.to_json(), URL) == RemoteAgent("me", "http://127.0.0.1:8000/")


def test_the_first_interface_that_is_spoken_is_taken():
    other = {"url": "https://agent.example/grpc", "protocolBinding": "GRPC", "protocolVersion": "1.0"}
    old = {**JSONRPC, "url": "https://agent.example/old", "protocolVersion": "0.3"}
    later = {**JSONRPC, "url": "https://agent.example/later"}
    assert read({"supportedInterfaces": [other, old, JSONRPC, later]}).endpoint == JSONRPC["url"]


@pytest.mark.parametrize(
    ("interface", "agent"),
    [
        ({"url": "../rpc", "protocolBinding": "jsonrpc"}, RemoteAgent("", "https://agent.example/x/rpc")),
        ({**JSONRPC, "protocolVersion": "1.0.1"}, RemoteAgent("", "https://agent.example/a2a")),
        ({**JSONRPC, "protocolVersion": 1}, RemoteAgent("", "https://agent.example/a2a")),
        ({**JSONRPC, "tenant": "acme"}, RemoteAgent("", "https://agent.example/a2a", "acme")),
        ({**JSONRPC, "tenant": None}, RemoteAgent("", "https://agent.example/a2a")),
    ],
)
def test_an_interface_may_be_sloppy(interface: dict[str, Any], agent: RemoteAgent):
    assert read({"supportedInterfaces": ["nonsense", interface]}) == agent


@pytest.mark.parametrize(
    ("card", "said"),
    [
        ({}, "it names no interface at all"),
        ({"supportedInterfaces": "none"}, "it names no interface at all"),
        ({"supportedInterfaces": [{"protocolBinding": "JSONRPC", "url": ""}]}, "it names JSONRPC None"),
        ({"supportedInterfaces": [{**JSONRPC, "protocolVersion": "0.3"}]}, "it names JSONRPC 0.3"),
        ({"url": "https://agent.example", "protocolVersion": "0.3.0"}, "it names A2A 0.3.0"),
        ([1], "is no agent card"),
    ],
)
def test_a_card_without_the_address_says_what_it_has_instead(card: Any, said: str):
    with pytest.raises(UpstreamError) as caught:
        read(card)
    assert said in str(caught.value)
    assert URL in str(caught.value)


@pytest.mark.parametrize("body", [b"<html>", b"", b"\xff", b"[" * 100_000])
def test_what_is_no_json_is_no_card(body: bytes):
    with pytest.raises(UpstreamError, match="is no agent card"):
        read_card(body, URL)

"""The extended card: its callers, addresses and formats."""

from typing import Any

import pytest
from a2a.client.card_resolver import parse_agent_card
from a2a.compat.v0_3.types import AgentCard as OldCard
from a2a.types import AgentCard as SdkCard
from google.protobuf.json_format import ParseDict

from support.agents import nothing
from support.http_json import HttpJson
from support.live_server import serving
from support.rpc import Rpc
from tailrace.server import CardSettings, Settings, create_app
from tailrace.server.auth.authentication import ApiKeys, Authenticator, Credentials, Identity
from tailrace.server.protocols.a2a.card import build_card
from tailrace.server.runtime.caller import Caller
from tailrace.streaming.a2a.card_v0_3 import write_card
from tailrace.streaming.a2a.models import AgentCard, AgentSkill

SETTINGS = Settings(store="sqlite://", agent_name="Echo")
KEYS = ApiKeys({"alice": "a-key", "bob": "b-key"})
ADDRESSES = ("/extendedAgentCard", "/v1/card", "/agent/authenticatedExtendedCard")


def extended(caller: Caller) -> AgentCard | None:
    """Return a card with a skill for each caller, and none for Bob."""
    if caller.user == "bob":
        return None
    skill = AgentSkill(id="own", name="Own", description=f"for {caller.user or 'anybody'}", tags=("own",))
    card = build_card(SETTINGS, "https://agents.example/", has_extended=True)
    return card.model_copy(update={"skills": (*card.skills, skill)})


def skills_of(card: dict[str, Any]) -> list[str]:
    return [skill["description"] for skill in card["skills"] if skill["id"] == "own"]


async def test_a_known_caller_gets_its_card_at_every_address_and_by_every_method() -> None:
    app = create_app(SETTINGS, handler=nothing, authenticator=KEYS, extended_card=extended)
    async with serving(app) as url, Rpc(url) as rpc:
        http, key = HttpJson(rpc), {"X-API-Key": "a-key"}
        found = [await http.ask("GET", path, headers=key) for path in ADDRESSES]
        by_rpc = await rpc.call("GetExtendedAgentCard", {}, key)
        by_old_rpc = await rpc.call("agent/getAuthenticatedExtendedCard", {}, key)
        public = await http.ok("GET", "/.well-known/agent-card.json")
        old_public = await http.ok("GET", "/.well-known/agent.json")
    assert [status for status, _ in found] == [200, 200, 200]
    new, old, oldest = (card for _, card in found)
    assert skills_of(new) == skills_of(old) == ["for alice"]
    assert (new, old, old) == (by_rpc["result"], by_old_rpc["result"], oldest)
    assert "supportedInterfaces" in new
    assert old["protocolVersion"] == "0.3.0"
    assert skills_of(public) == []
    assert public["capabilities"]["extendedAgentCard"]
    assert old_public["supportsAuthenticatedExtendedCard"]


async def test_other_callers_do_not_get_the_extended_card() -> None:
    app = create_app(SETTINGS, handler=nothing, authenticator=KEYS, extended_card=extended)
    async with serving(app) as url, Rpc(url) as rpc:
        http = HttpJson(rpc)
        for path in ADDRESSES:
            status, headers, _ = await http.exchange("GET", path)
            assert status == 401
            assert "ApiKey" in headers["www-authenticate"]
        bob = {"X-API-Key": "b-key"}
        status, answer = await http.ask("GET", "/extendedAgentCard", headers=bob)
        assert (status, answer["error"]["details"][0]["reason"]) == (
            400,
            "EXTENDED_AGENT_CARD_NOT_CONFIGURED",
        )
        status, answer = await http.ask("GET", "/v1/card", headers=bob)
        assert (status, answer["error"]) == (400, "AuthenticatedExtendedCardNotConfiguredError")
        for method in ("GetExtendedAgentCard", "agent/getAuthenticatedExtendedCard"):
            assert (await rpc.error(method, {}, bob))["code"] == -32007


class Doors(Authenticator):
    """Admits all callers, and identifies some."""

    async def authenticate(self, credentials: Credentials) -> Identity:
        return Identity(credentials.api_key)

    def schemes(self) -> dict[str, Any]:
        return {"apiKey": {"apiKeySecurityScheme": {"location": "header", "name": "X-API-Key"}}}


async def test_a_caller_that_is_let_in_unknown_does_not_get_it() -> None:
    app = create_app(SETTINGS, handler=nothing, authenticator=Doors(), extended_card=extended)
    async with serving(app) as url, Rpc(url) as rpc:
        http = HttpJson(rpc)
        for path in ADDRESSES:
            status, headers, _ = await http.exchange("GET", path)
            assert (status, headers["www-authenticate"]) == (401, 'Bearer realm="tailrace"')
        body = {"jsonrpc": "2.0", "id": 1, "method": "GetExtendedAgentCard"}
        status, _, _ = await http.exchange("POST", "/", body)
        assert status == 401
        assert skills_of((await http.ask("GET", ADDRESSES[0], headers={"X-API-Key": "eve"}))[1]) == [
            "for eve"
        ]


async def test_without_authentication_every_caller_gets_the_extended_card() -> None:
    card = build_card(SETTINGS, "https://agents.example/", has_extended=True)
    app = create_app(SETTINGS, handler=nothing, extended_card=card)
    async with serving(app) as url, Rpc(url) as rpc:
        assert AgentCard.model_validate(await rpc.result("GetExtendedAgentCard", {})) == card
        assert AgentCard.model_validate(await HttpJson(rpc).ok("GET", "/acme/extendedAgentCard")) == card


async def test_only_the_callers_own_cache_keeps_it() -> None:
    app = create_app(SETTINGS, handler=nothing, authenticator=KEYS, extended_card=extended)
    async with serving(app) as url, Rpc(url) as rpc:
        http, key = HttpJson(rpc), {"X-API-Key": "a-key"}
        status, headers, _ = await http.exchange("GET", "/extendedAgentCard", headers=key)
        assert (status, headers["cache-control"]) == (200, "private, max-age=60")
        assert "Authorization" in headers["vary"]
        known = {**key, "If-None-Match": headers["etag"]}
        assert (await http.exchange("GET", "/extendedAgentCard", headers=known))[0] == 304
        # The card of a caller can change at any time, so a date is no validator.
        since = {**key, "If-Modified-Since": headers["last-modified"]}
        assert (await http.exchange("GET", "/extendedAgentCard", headers=since))[0] == 200
        stranger = {"If-None-Match": headers["etag"]}
        assert (await http.exchange("GET", "/extendedAgentCard", headers=stranger))[0] == 401


async def test_an_agent_without_an_extended_card_declares_none() -> None:
    async with serving(create_app(SETTINGS, handler=nothing)) as url, Rpc(url) as rpc:
        http = HttpJson(rpc)
        for method in ("GetExtendedAgentCard", "agent/getAuthenticatedExtendedCard"):
            assert (await rpc.error(method, {}))["code"] == -32004
        status, answer = await http.ask("GET", "/extendedAgentCard")
        assert (status, answer["error"]["details"][0]["reason"]) == (400, "UNSUPPORTED_OPERATION")
        public = await http.ok("GET", "/.well-known/agent-card.json")
        old = await http.ok("GET", "/.well-known/agent.json")
    assert not public["capabilities"]["extendedAgentCard"]
    assert "supportsAuthenticatedExtendedCard" not in old


@pytest.mark.parametrize(
    ("version", "is_new"),
    [("1.0", True), ("1.0.4", True), ("2.0", True), ("", True), ("0.3", False), ("0.2.6", False)],
)
async def test_the_card_has_the_form_of_the_requested_version(version: str, is_new: bool) -> None:
    """A request in an unsupported version is refused; the card lists the supported ones."""
    async with serving(create_app(SETTINGS, handler=nothing)) as url, Rpc(url) as rpc:
        headers = {"A2A-Version": version}
        _, card = await HttpJson(rpc).ask("GET", "/.well-known/agent-card.json", headers=headers)
    assert ("supportedInterfaces" in card) is is_new


async def test_the_oldest_form_of_the_card_declares_the_authentication() -> None:
    app = create_app(SETTINGS, handler=nothing, authenticator=KEYS)
    async with serving(app) as url, Rpc(url) as rpc:
        headers = {"A2A-Version": "0.1"}
        _, card = await HttpJson(rpc).ask("GET", "/.well-known/agent.json", headers=headers)
    assert (card["name"], card["url"]) == ("Echo", f"{url}/")
    assert card["authentication"] == {"schemes": ["apiKey"]}
    assert card["capabilities"] == {
        "streaming": True,
        "pushNotifications": True,
        "stateTransitionHistory": False,
    }
    assert "securitySchemes" not in card


# --- one card for both versions -----------------------------------------------------------------------------------


def as_a2a_1_0(card: dict[str, Any]) -> SdkCard:
    """Return the fields of a card that the proto of 1.0 defines."""
    return ParseDict(card, SdkCard(), ignore_unknown_fields=True)


async def test_the_default_card_is_read_by_the_clients_of_both_versions() -> None:
    app = create_app(SETTINGS, handler=nothing, authenticator=KEYS)
    async with serving(app) as url, Rpc(url) as rpc:
        http = HttpJson(rpc)
        card = await http.ok("GET", "/.well-known/agent-card.json")
        _, new = await http.ask("GET", "/.well-known/agent-card.json", headers={"A2A-Version": "1.0"})
        _, old = await http.ask("GET", "/.well-known/agent-card.json", headers={"A2A-Version": "0.3"})
    assert as_a2a_1_0(card) == as_a2a_1_0(new)
    in_old = OldCard.model_validate(old)
    in_both = OldCard.model_validate(card)
    assert in_both.model_dump(exclude_none=True) == in_old.model_dump(exclude_none=True)
    by_sdk = parse_agent_card(card)
    assert {(each.protocol_binding, each.protocol_version) for each in by_sdk.supported_interfaces} == {
        ("JSONRPC", "1.0"),
        ("HTTP+JSON", "1.0"),
        ("JSONRPC", "0.3"),
        ("HTTP+JSON", "0.3"),
    }
    assert by_sdk.security_schemes["apiKey"].api_key_security_scheme.name == "X-API-Key"


# --- the address of gRPC ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "address"),
    [
        (None, "agents.example:50051"),
        ("grpc.example:443", "grpc.example:443"),
        ("https://grpc.example", "grpc.example:443"),
        ("http://grpc.example", "grpc.example:80"),
        ("http://grpc.example:8080/", "grpc.example:8080"),
        ("[::1]:50", "[::1]:50"),
    ],
)
def test_the_card_has_the_grpc_address_that_clients_of_both_versions_dial(
    given: str | None, address: str
) -> None:
    settings = Settings(card=CardSettings(grpc_url=given))
    card = build_card(settings, "https://agents.example/agent/", grpc_port=50051)
    addresses = {
        (each.protocol_binding, each.protocol_version): each.url for each in card.supported_interfaces
    }
    assert addresses["GRPC", "1.0"] == addresses["GRPC", "0.3"] == address
    assert {"url": address, "transport": "GRPC"} in write_card(card)["additionalInterfaces"]
    without = build_card(settings, "https://agents.example/agent/")
    assert "GRPC" not in {each.protocol_binding for each in without.supported_interfaces}


@pytest.mark.parametrize(
    ("settings", "schemes", "params"),
    [
        (Settings(model="openai:gpt-5-mini"), None, {"maxRequestBytes": 8388608, "model": "gpt-5-mini"}),
        (Settings(model="openai:gpt-5-mini"), {"key": {}}, {"maxRequestBytes": 8388608}),
        (Settings(model="replay:folder", max_request_bytes=100), None, {"maxRequestBytes": 100}),
        (Settings(max_request_bytes=0), None, {}),
    ],
)
def test_the_card_has_the_limit_of_requests_and_the_model(
    settings: Settings, schemes: dict[str, Any] | None, params: dict[str, Any]
) -> None:
    card = build_card(settings, "https://agents.example/", schemes)
    assert card.capabilities.extensions[0].params == params


def test_a_model_without_instructions_has_examples() -> None:
    examples = [
        build_card(settings, "https://agents.example/").skills[0].examples
        for settings in (
            Settings(model="openai:gpt-5-mini"),
            Settings(model="openai:gpt-5-mini", instructions="Answer questions about rivers."),
            Settings(),
        )
    ]
    assert [len(each) for each in examples] == [4, 0, 0]

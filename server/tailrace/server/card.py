"""The agent card: what this server is and can do (A2A 1.0, section 8), in the form of each version."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Request, Response

from tailrace.server.bindings.http import asked_version
from tailrace.server.bindings.http_json_v0_3 import CARD
from tailrace.server.caching import cached_response
from tailrace.server.offer import Offer
from tailrace.server.settings import Settings
from tailrace.streaming.a2a.card_v0_3 import merge_cards, write_card
from tailrace.streaming.a2a.models import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
)
from tailrace.streaming.a2a.v0_1 import write_card as write_card_v0_1

if TYPE_CHECKING:
    from tailrace.server.signing import CardSigner

CARD_PATH = "/.well-known/agent-card.json"
OLD_CARD_PATH = "/.well-known/agent.json"
"""Where clients before 0.3 look for the card."""

_MODES = ("text/plain", "application/json")

# How the server is reached, in order of preference: binding, version of the protocol.
_INTERFACES = (
    ("JSONRPC", "1.0"),
    ("HTTP+JSON", "1.0"),
    ("GRPC", "1.0"),
    ("JSONRPC", "0.3"),
    ("HTTP+JSON", "0.3"),
    ("GRPC", "0.3"),
)
_GRPC_PORTS = {"http": 80, "https": 443}


def build_card(
    settings: Settings,
    url: str,
    schemes: Mapping[str, Any] | None = None,
    *,
    grpc_port: int | None = None,
    offer: Offer | None = None,
    has_extended: bool = False,
) -> AgentCard:
    """The card of a server.

    Args:
        settings: What to put on it.
        url: What all its addresses begin with: that of its JSON-RPC endpoint, with the slash.
        schemes: Its security schemes by name, any one of which lets a caller in.
        grpc_port: Where the same host answers gRPC, unless ``settings.grpc_url`` says more; None where nothing does.
        offer: What the agent offers and asks for.
        has_extended: There is a further card for callers that are known.
    """
    offer = offer or Offer()
    addresses = {
        (binding, version): url if binding == "JSONRPC" else url.rstrip("/")
        for binding, version in _INTERFACES
        if binding != "GRPC"
    }
    if grpc_port is not None:
        addresses |= {
            ("GRPC", version): _grpc_address(settings.grpc_url, url, grpc_port, version)
            for version in ("1.0", "0.3")
        }
    skill = AgentSkill(id="chat", name="Chat", description=settings.agent_description, tags=("chat", "text"))
    return AgentCard(
        name=settings.agent_name,
        description=settings.agent_description,
        version=settings.agent_version,
        supported_interfaces=tuple(
            AgentInterface(
                url=addresses[binding, version], protocol_binding=binding, protocol_version=version
            )
            for binding, version in _INTERFACES
            if (binding, version) in addresses
        ),
        capabilities=AgentCapabilities(
            streaming=True,
            push_notifications=settings.push_notifications,
            extended_agent_card=has_extended,
            extensions=offer.all_extensions,
        ),
        default_input_modes=offer.input_modes or _MODES,
        default_output_modes=offer.output_modes or _MODES,
        skills=offer.skills or (skill,),
        security_schemes=dict(schemes or {}),
        security_requirements=tuple({"schemes": {name: {"list": []}}} for name in schemes or ()),
    )


def _grpc_address(given: str | None, url: str, port: int | None, version: str) -> str:
    """Where gRPC is: ``host:port`` for clients of 1.0, a URL for those of 0.3, whose cards hold nothing else.

    Args:
        given: What the settings say.
        url: What the other addresses begin with.
        port: The port that is listened on, without TLS.
        version: The version of the protocol.
    """
    if given is None:
        parts, number, scheme = urlsplit(url), port, "http"
    else:
        parts = urlsplit(given if "://" in given else f"//{given}")
        scheme = parts.scheme or urlsplit(url).scheme or "http"
        number = parts.port or _GRPC_PORTS[scheme]
    host = parts.hostname or ""
    address = f"[{host}]:{number}" if ":" in host else f"{host}:{number}"
    return f"{scheme}://{address}" if version.startswith("0.") else address


class CardEndpoint:
    """Serves the card: that of 1.0 where it is asked for or nothing is said, that of 0.3 to older clients.

    ``settings.card_version`` says which of them a client gets that says nothing, or that it gets one for both.

    Args:
        settings: What to put on the card.
        schemes: As for `build_card`.
        grpc_port: Says where gRPC is answered at present; None where it is not.
        offer: As for `build_card`.
        has_extended: As for `build_card`.
        signers: Sign the card of 1.0. (0.3 does not say what a signature is over.)
    """

    def __init__(
        self,
        settings: Settings,
        schemes: Mapping[str, Any],
        grpc_port: Callable[[], int | None] = lambda: None,
        *,
        offer: Offer | None = None,
        has_extended: bool = False,
        signers: "Sequence[CardSigner]" = (),
    ) -> None:
        self._settings = settings
        self._schemes = schemes
        self._grpc_port = grpc_port
        self._offer = offer
        self._has_extended = has_extended
        self._signers = signers

    def add_to(self, router: APIRouter) -> None:
        """Put the addresses of the card into a router."""
        # A client of 0.3 that looks for more than the public card finds that one where there is no more.
        paths = (CARD_PATH, OLD_CARD_PATH) if self._has_extended else (CARD_PATH, OLD_CARD_PATH, CARD.path)
        for path in paths:
            router.add_api_route(path, self._at(path), methods=["GET", "HEAD"], include_in_schema=False)

    def _at(self, path: str) -> Callable[[Request], Awaitable[Response]]:
        async def card(request: Request) -> Response:
            return self._answer(request, path)

        return card

    def _answer(self, request: Request, path: str) -> Response:
        """The card, in the form that is asked for, or else that the address is for."""
        mounted_at = request.url.path.removesuffix(path) + "/"
        url = self._settings.public_url or str(request.url.replace(path=mounted_at, query=""))
        card = build_card(
            self._settings,
            url,
            self._schemes,
            grpc_port=self._grpc_port(),
            offer=self._offer,
            has_extended=self._has_extended,
        )
        version = asked_version(request) or (self._settings.card_version if path == CARD_PATH else "0.3")
        if version == "0.1":
            body = json.dumps(write_card_v0_1(card)).encode()
        elif version.startswith("0."):
            body = json.dumps(write_card(card)).encode()
        elif version == "both":
            body = json.dumps(merge_cards(card)).encode()
        else:
            if self._signers:
                from tailrace.server.signing import sign_card

                card = sign_card(card, self._signers)
            body = card.to_json()
        return cached_response(request, body, vary="A2A-Version")

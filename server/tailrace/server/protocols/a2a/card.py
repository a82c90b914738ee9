"""The agent card (A2A 1.0, section 8), in the format of each protocol version."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Request, Response

from tailrace.server.http.caching import cached_response, this_second
from tailrace.server.http.origin_guard import OriginGuard
from tailrace.server.http.request_headers import requested_version
from tailrace.server.protocols.a2a.http_json_v0_3 import CARD
from tailrace.server.runtime.agent_capabilities import Capabilities
from tailrace.server.settings import Settings
from tailrace.streaming.a2a.card_v0_3 import merge_cards, write_card
from tailrace.streaming.a2a.models import (
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentSkill,
)
from tailrace.streaming.a2a.v0_1 import write_card as write_card_v0_1

if TYPE_CHECKING:
    from tailrace.server.protocols.a2a.card_signing import CardSigner

CARD_PATH = "/.well-known/agent-card.json"
OLD_CARD_PATH = "/.well-known/agent.json"
"""Path of the card for clients of versions before 0.3."""

_MODES = ("text/plain", "application/json")

# The bindings and versions in order of preference.
_INTERFACES = (
    ("JSONRPC", "1.0"),
    ("HTTP+JSON", "1.0"),
    ("GRPC", "1.0"),
    ("JSONRPC", "0.3"),
    ("HTTP+JSON", "0.3"),
    ("GRPC", "0.3"),
)
# Examples of requests to a model without instructions.
_EXAMPLES = (
    "What can you help me with?",
    "Compare TCP and UDP in a table.",
    "Write a Python script that finds duplicate files.",
    "Plan dinner for four in 30 minutes.",
)
_GRPC_PORTS = {"http": 80, "https": 443}


def build_card(
    settings: Settings,
    url: str,
    schemes: Mapping[str, Any] | None = None,
    *,
    grpc_port: int | None = None,
    capabilities: Capabilities | None = None,
    has_extended: bool = False,
) -> AgentCard:
    """Create the card of a server.

    Args:
        settings: Settings for the content of the card.
        url: Base URL of the interfaces, with a slash at the end. It is also the URL of JSON-RPC.
        schemes: Security schemes by name. A caller must use one of them. None or empty if no authentication is required.
        grpc_port: Port of the gRPC server on the host of ``url``; None if there is no gRPC server. ``settings.card.grpc_url``
            overrides the host and the port.
        capabilities: Capabilities of the agent; None for default capabilities.
        has_extended: True if there is an extended card for authenticated callers.
    """
    capabilities = capabilities or Capabilities()
    addresses = {
        (binding, version): url if binding == "JSONRPC" else url.rstrip("/")
        for binding, version in _INTERFACES
        if binding != "GRPC"
    }
    if grpc_port is not None:
        address = _grpc_address(settings.card.grpc_url, url, grpc_port)
        addresses |= {("GRPC", version): address for version in ("1.0", "0.3")}
    skill = AgentSkill(
        id="chat",
        name="Chat",
        description=settings.card.description,
        tags=("chat", "text"),
        examples=_EXAMPLES if settings.model and not settings.instructions else (),
    )
    return AgentCard(
        name=settings.agent_name,
        description=settings.card.description,
        version=settings.card.version,
        supported_interfaces=tuple(
            AgentInterface(
                url=addresses[binding, version], protocol_binding=binding, protocol_version=version
            )
            for binding, version in _INTERFACES
            if (binding, version) in addresses
        ),
        capabilities=AgentCapabilities(
            streaming=True,
            push_notifications=bool(settings.push_notifications),
            extended_agent_card=has_extended,
            extensions=_extensions(settings, capabilities, names_model=not schemes),
        ),
        default_input_modes=capabilities.input_modes or _MODES,
        default_output_modes=capabilities.output_modes or _MODES,
        skills=capabilities.skills or (skill,),
        security_schemes=dict(schemes or {}),
        security_requirements=tuple({"schemes": {name: {"list": []}}} for name in schemes or ()),
    )


def _extensions(
    settings: Settings, capabilities: Capabilities, *, names_model: bool
) -> tuple[AgentExtension, ...]:
    """Return the extensions, with parameters of the stream extension.

    Only callers may know the name of the model, and everyone can read a card. ``names_model`` is therefore False if callers
    must authenticate.
    """
    own, *others = capabilities.all_extensions
    params = dict(own.params or {})
    if settings.max_request_bytes:
        params["maxRequestBytes"] = settings.max_request_bytes
    provider, _, model = (settings.model or "").partition(":")
    if model and names_model and provider != "replay":  # this provider has a folder instead of a model
        params["model"] = model
    return (own.model_copy(update={"params": params}), *others)


def _grpc_address(address: str | None, url: str, port: int) -> str:
    """Return the address of the gRPC server as ``host:port``, which the official clients of A2A 1.0 and 0.3 support."""
    if address is None:
        parts = urlsplit(url)
    else:
        parts = urlsplit(address if "://" in address else f"//{address}")
        port = parts.port or _GRPC_PORTS[parts.scheme or "https"]
    host = parts.hostname or ""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class CardEndpoint:
    """Serves the card in the format of the requested version.

    If a request for `CARD_PATH` names no version, ``settings.card.protocol_version`` selects the format. The default is ``both``:
    one card with the members of 1.0 and of 0.3. A signature does not cover members of 0.3. If the server signs its cards, the
    format of 1.0 therefore replaces ``both``.

    Args:
        origin_guard: Returns the host of the URLs if ``settings.public_url`` is not set.
        grpc_port: Returns the port of the gRPC server; None if it is not running.
        signers: Sign cards in the format of 1.0. Version 0.3 does not define the signed content.
    """

    def __init__(
        self,
        settings: Settings,
        schemes: Mapping[str, Any],
        origin_guard: OriginGuard,
        grpc_port: Callable[[], int | None] = lambda: None,
        *,
        capabilities: Capabilities | None = None,
        has_extended: bool = False,
        signers: "Sequence[CardSigner]" = (),
    ) -> None:
        self._settings = settings
        self._schemes = schemes
        self._origin_guard = origin_guard
        self._grpc_port = grpc_port
        self._capabilities = capabilities
        self._has_extended = has_extended
        self._signers = signers
        self._since = this_second()

    def add_to(self, router: APIRouter) -> None:
        """Add the routes of the card to a router."""
        # If there is no extended card, the path for it serves the public card to clients of 0.3.
        paths = (CARD_PATH, OLD_CARD_PATH) if self._has_extended else (CARD_PATH, OLD_CARD_PATH, CARD.path)
        for path in paths:
            router.add_api_route(path, self._at(path), methods=["GET", "HEAD"], include_in_schema=False)

    def _at(self, path: str) -> Callable[[Request], Awaitable[Response]]:
        async def card(request: Request) -> Response:
            return self._send_card(request, path)

        return card

    def _send_card(self, request: Request, path: str) -> Response:
        mounted_at = request.url.path.removesuffix(path) + "/"
        url = self._settings.public_url
        if not url:
            authority = self._origin_guard.authority(request.scope)
            url = str(request.url.replace(netloc=authority, path=mounted_at, query=""))
        card = build_card(
            self._settings,
            url,
            self._schemes,
            grpc_port=self._grpc_port(),
            capabilities=self._capabilities,
            has_extended=self._has_extended,
        )
        version = requested_version(request) or (
            self._settings.card.protocol_version if path == CARD_PATH else "0.3"
        )
        if version == "both" and self._signers:
            version = "1.0"
        if version == "0.1":
            body = json.dumps(write_card_v0_1(card)).encode()
        elif version.startswith("0."):
            body = json.dumps(write_card(card)).encode()
        elif version == "both":
            body = json.dumps(merge_cards(card)).encode()
        else:
            if self._signers:
                from tailrace.server.protocols.a2a.card_signing import sign_card

                card = sign_card(card, self._signers)
            body = card.to_json()
        return cached_response(request, body, vary="A2A-Version", since=self._since)

"""The agent card: what this server is and can do (A2A 1.0, section 8)."""

from hashlib import sha256

from fastapi import Request, Response

from tailrace.server.settings import Settings
from tailrace.streaming.a2a.models import (
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentSkill,
)
from tailrace.streaming.extension import EXTENSION_URI

PROTOCOL_VERSION = "1.0"


def build_card(settings: Settings, url: str) -> AgentCard:
    """The card of a server that is reached at ``url`` (the address of its JSON-RPC endpoint)."""
    return AgentCard(
        name=settings.agent_name,
        description=settings.agent_description,
        version=settings.agent_version,
        supported_interfaces=(
            AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version=PROTOCOL_VERSION),
        ),
        capabilities=AgentCapabilities(
            streaming=True,
            extensions=(
                AgentExtension(
                    uri=EXTENSION_URI,
                    description="Numbered events, resumable streams, reasoning and tool-call channels, usage.",
                ),
            ),
        ),
        default_input_modes=("text/plain", "application/json"),
        default_output_modes=("text/plain", "application/json"),
        skills=(
            AgentSkill(
                id="chat",
                name="Chat",
                description=settings.agent_description,
                tags=("chat", "text"),
            ),
        ),
    )


def card_response(request: Request, settings: Settings, endpoint: str) -> Response:
    """The card as an HTTP response that caches well: ``ETag``, ``Cache-Control``, and 304 where it is known.

    Args:
        request: The request, whose URL says how the server is reached unless a public URL is set.
        settings: What to put on the card.
        endpoint: The JSON-RPC endpoint's address as seen in this request.
    """
    card = build_card(settings, settings.public_url or endpoint).to_json()
    etag = f'"{sha256(card).hexdigest()[:16]}"'
    headers = {"ETag": etag, "Cache-Control": "public, max-age=60"}
    known = {tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")}
    if etag in known:
        return Response(status_code=304, headers=headers)
    return Response(card, media_type="application/json", headers=headers)

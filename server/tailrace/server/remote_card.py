"""The card of somebody else's agent: what a client needs of it, and no more.

What an agent gets wrong about its own card is forgiven where nothing depends on it; `AgentCard` is stricter, because
it is what we say ourselves.
"""

import json
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urljoin

from tailrace.wrappers import UpstreamError, UpstreamFault

CARD_PATH = "/.well-known/agent-card.json"


@dataclass(frozen=True, slots=True)
class RemoteAgent:
    """What its card says about how to reach an agent.

    Attributes:
        name: For people; empty when the card has none.
        endpoint: The address of its JSON-RPC interface.
        tenant: To be sent with every request; empty for none.
        key_header: Where an API key belongs; empty where it asks for something else, or for nothing.
    """

    name: str
    endpoint: str
    tenant: str = ""
    key_header: str = ""


def read_card(body: bytes, card_url: str) -> RemoteAgent:
    """Find the JSON-RPC interface of A2A 1.0 in an agent card; nothing else of the card has to be right.

    Args:
        body: The card.
        card_url: Where it was found: the root of a relative address, and for the message of an error.

    Raises:
        UpstreamError: It is no JSON object, or names no such interface; the message says what it names.
    """
    try:
        card: Any = json.loads(body)
    except (ValueError, RecursionError):
        card = None
    if not isinstance(card, dict):
        raise UpstreamError(f"what is at {card_url} is no agent card", fault=UpstreamFault.INVALID)
    fields = cast("dict[str, Any]", card)
    interfaces = _objects(fields.get("supportedInterfaces"))
    for interface in interfaces:
        url, version = interface.get("url"), str(interface.get("protocolVersion", "1.0"))
        binding = str(interface.get("protocolBinding", "")).upper()
        if binding == "JSONRPC" and version.split(".")[0] == "1" and isinstance(url, str) and url:
            return RemoteAgent(
                name=str(fields.get("name", "")),
                endpoint=urljoin(card_url, url),
                tenant=str(interface.get("tenant") or ""),
                key_header=_key_header(fields.get("securitySchemes")),
            )
    offered = [f"{each.get('protocolBinding')} {each.get('protocolVersion')}" for each in interfaces]
    if not interfaces and "protocolVersion" in fields:
        offered = [f"A2A {fields['protocolVersion']}"]
    raise UpstreamError(
        f"the agent card at {card_url} names no JSON-RPC interface of A2A 1.0; "
        f"it names {', '.join(offered) or 'no interface at all'}",
        fault=UpstreamFault.INVALID,
    )


def _key_header(schemes: object) -> str:
    """The header for an API key, where that is all that lets callers in."""
    each = list(cast("dict[str, Any]", schemes).values()) if isinstance(schemes, dict) else []
    keys = _objects([scheme.get("apiKeySecurityScheme") for scheme in _objects(each)])
    headers = [str(key["name"]) for key in keys if key.get("location") == "header" and key.get("name")]
    return headers[0] if headers and len(keys) == len(each) else ""


def _objects(value: object) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        return []
    return [cast("dict[str, Any]", each) for each in cast("list[object]", value) if isinstance(each, dict)]

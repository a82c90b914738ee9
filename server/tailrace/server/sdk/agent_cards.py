"""What somebody else's agent says about itself, of any version of A2A: how it is reached, and what it is good at.

What an agent gets wrong about its card is forgiven where nothing depends on it. `tailrace.server.remote_card` reads as
little as a client of A2A 1.0 over JSON-RPC needs; here the official SDK is at hand, and every version and binding that it
speaks can be chosen from.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any
from urllib.parse import urljoin

from a2a.client.card_resolver import parse_agent_card
from a2a.types import a2a_pb2
from google.protobuf.json_format import ParseError

from tailrace.server.sdk.types import to_json
from tailrace.streaming.a2a.errors import InvalidParamsError
from tailrace.streaming.a2a.models import AgentSkill
from tailrace.streaming.extension import EXTENSION_URI
from tailrace.wrappers import UpstreamError, UpstreamFault

CARD_PATHS = ("/.well-known/agent-card.json", "/.well-known/agent.json")
"""Where cards are: since 0.3, and before."""

BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC")
"""Bindings of the protocol, those that pass every proxy first."""


@dataclass(frozen=True, slots=True)
class RemoteCard:
    """An agent card, read.

    Attributes:
        name: For people; empty when the card has none.
        description: What the agent does.
        skills: What it is good at.
        input_modes: Media types that it takes.
        output_modes: Media types that it gives.
        streaming: It can stream its answers.
        numbered: It speaks `tailrace.streaming.extension`: its streams can be gone on with after an event.
        url: The address that is used.
        binding: The binding that is spoken there.
        version: The version of the protocol that is spoken there: ``1.0``, ``0.3.0``.
        raw: The card as an object of the SDK, with that one address.
    """

    name: str
    description: str
    skills: tuple[AgentSkill, ...]
    input_modes: tuple[str, ...]
    output_modes: tuple[str, ...]
    streaming: bool
    numbered: bool
    url: str
    binding: str
    version: str
    raw: a2a_pb2.AgentCard


def read_card(body: bytes, card_url: str, bindings: Sequence[str] = BINDINGS) -> RemoteCard:
    """Read a card of 1.0 or 0.3, and choose where the agent is spoken to: the newest version, then the first binding.

    Args:
        body: The card.
        card_url: Where it was found: the root of a relative address, and for the message of an error.
        bindings: Bindings that may be chosen, the preferred one first. gRPC is left out where it is not installed.

    Raises:
        UpstreamError: It is no card, or names no address that can be spoken to; the message says what it names.
    """
    try:
        fields = json.loads(body)
        raw = parse_agent_card(fields)
    except (ValueError, RecursionError, ParseError, AttributeError, KeyError, TypeError):
        raise UpstreamError(f"what is at {card_url} is no agent card", fault=UpstreamFault.INVALID) from None
    chosen = _choose(raw.supported_interfaces, bindings)
    if chosen is None:
        offered = [f"{each.protocol_binding} {each.protocol_version}" for each in raw.supported_interfaces]
        raise UpstreamError(
            f"the agent card at {card_url} names no interface of A2A 1.0 or 0.3 over {', '.join(bindings)}; "
            f"it names {', '.join(offered) or 'no interface at all'}",
            fault=UpstreamFault.INVALID,
        )
    interface = a2a_pb2.AgentInterface()
    interface.CopyFrom(chosen)
    if interface.protocol_binding != "GRPC":
        interface.url = urljoin(card_url, interface.url)
    if interface.protocol_version.startswith("0."):
        interface.protocol_version = "0.3.0"  # what the SDK speaks to whatever came before 1.0
    del raw.supported_interfaces[:]
    raw.supported_interfaces.append(interface)
    return RemoteCard(
        name=raw.name,
        description=raw.description,
        skills=tuple(_skills(raw.skills)),
        input_modes=tuple(filter(None, raw.default_input_modes)),
        output_modes=tuple(filter(None, raw.default_output_modes)),
        streaming=raw.capabilities.streaming,
        numbered=any(each.uri == EXTENSION_URI for each in raw.capabilities.extensions),
        url=interface.url,
        binding=interface.protocol_binding,
        version=interface.protocol_version or "1.0",
        raw=raw,
    )


def credentials(card: RemoteCard, token: str) -> dict[str, str]:
    """The headers that let a caller with a token in, as the card asks for it; a bearer token where it says nothing.

    Args:
        card: Its security schemes say whether the token is an API key, and in which header or cookie it belongs.
        token: The token; empty for none.
    """
    if not token:
        return {}
    schemes = list(card.raw.security_schemes.values())
    keys = [each.api_key_security_scheme for each in schemes if each.HasField("api_key_security_scheme")]
    if len(keys) == len(schemes):
        for key in keys:
            if key.location == "header":
                return {key.name.lower(): token}
            if key.location == "cookie":
                return {"cookie": f"{key.name}={token}"}
    return {"authorization": f"Bearer {token}"}


def _choose(
    interfaces: Iterable[a2a_pb2.AgentInterface], bindings: Sequence[str]
) -> a2a_pb2.AgentInterface | None:
    spoken = [each for each in bindings if each != "GRPC" or find_spec("grpc") is not None]
    usable = [
        (_age(each.protocol_version), spoken.index(each.protocol_binding), at, each)
        for at, each in enumerate(interfaces)
        if each.url and each.protocol_binding in spoken and _age(each.protocol_version) is not None
    ]
    return min(usable, key=lambda found: found[:3])[3] if usable else None


def _age(version: str) -> int | None:
    """0 for the version of the protocol that is preferred, 1 for one that is spoken too, None for any other."""
    major, _, minor = version.partition(".")
    if major in ("1", ""):
        return 0
    return 1 if major == "0" and minor[:1] in ("2", "3") else None


def _skills(skills: Iterable[a2a_pb2.AgentSkill]) -> Iterable[AgentSkill]:
    """The skills with what our own card must have; who is let in is not for the remote's card to say there."""
    for at, skill in enumerate(skills):
        try:
            fields: Mapping[str, Any] = to_json(skill)
        except InvalidParamsError:
            continue
        name = skill.name or skill.id or f"skill {at + 1}"
        given = {key: value for key, value in fields.items() if key != "securityRequirements"}
        mended = {"id": name, "name": name, "description": name, "tags": ["agent"]}
        yield AgentSkill.model_validate(mended | given)

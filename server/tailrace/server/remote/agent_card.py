"""Reading of a remote agent's card (A2A 1.0 or 0.3).

Members that this client does not use are not validated.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pydantic import ValidationError

from tailrace.server.remote.agent_origins import AgentOrigins, join_url
from tailrace.streaming.a2a.models import AgentSkill
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI
from tailrace.wrappers import UpstreamError, UpstreamFault
from tailrace.wrappers.redaction.log_escaping import printable

if TYPE_CHECKING:
    from a2a.types import a2a_pb2  # requires the extra `sdk`

CARD_PATHS = ("/.well-known/agent-card.json", "/.well-known/agent.json")
"""Well-known paths of an agent card: the path since A2A 0.3, and the earlier path."""

BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC")
"""The supported protocol bindings in order of preference. gRPC is last, because some proxies do not forward it."""

_JAVASCRIPT_SERVER = "Express"
"""The ``X-Powered-By`` header of servers that use the official SDK for JavaScript, which uses Express."""

_LANGGRAPH_EXTENSIONS = "https://langchain.com/a2a/extensions/"
"""The prefix of the extensions that cards of LangGraph's server declare."""

_MAX_URL = 200  # maximum characters of a URL in an error message
_MAX_INTERFACES, _MAX_SKILLS = 100, 1000  # maximum numbers of interfaces and skills that are read from a card

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")  # a token of RFC 9110
# Headers in which a card must not require the API key, because they have a meaning in HTTP or A2A.
_RESERVED = re.compile(
    r"host|connection|keep-alive|te|trailer|upgrade|via|forwarded|expect|cookie|date|origin|referer|user-agent|range|pragma"
    r"|cache-control|traceparent|tracestate|idempotency-key|last-event-id"
    r"|(content|transfer|accept|if|proxy|sec|x-forwarded|x-http|a2a|grpc)-.*|accept|.*-bin"
)


@dataclass(frozen=True, slots=True)
class RemoteCard:
    """An agent card, and the interface that was chosen from it.

    Attributes:
        name: The agent's name; empty when the card has none.
        description: The agent's description; empty when the card has none.
        skills: The agent's skills.
        input_modes: Media types that the agent accepts.
        output_modes: Media types that the agent returns.
        streaming: True if the card declares that the agent streams responses.
        numbered: True if the agent supports `tailrace.streaming.a2a.stream_extension`.
        url: The URL of the chosen interface.
        binding: The protocol binding of that interface.
        version: The protocol version of that interface, such as ``1.0`` or ``0.3.0``.
        tenant: The tenant that every request contains; empty for none.
        encodes_files_twice: True if the interface encodes files twice as base64; see `tailrace.streaming.a2a.v0_3_proto_json`.
        reads_v0_3_files: True if an interface of A2A 1.0 reads only the file parts of 0.3 (LangGraph).
        fields: The JSON object of the card.
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
    tenant: str
    encodes_files_twice: bool
    reads_v0_3_files: bool
    fields: Mapping[str, Any]

    @property
    def endpoint(self) -> str:
        """The value of ``url``."""
        return self.url

    @property
    def raw(self) -> "a2a_pb2.AgentCard":
        """The card as an object of the official SDK, with only the chosen interface.

        Raises:
            UpstreamError: The card is not valid.
        """
        from a2a.types import a2a_pb2

        from tailrace.server.remote.sdk_card import to_sdk_card

        interface = a2a_pb2.AgentInterface(
            url=self.url, protocol_binding=self.binding, protocol_version=self.version, tenant=self.tenant
        )
        return to_sdk_card(self.fields, interface)

    @property
    def may_stream(self) -> bool:
        """True if the client should try a streaming request.

        A card without ``capabilities`` does not exclude streaming.
        """
        return self.streaming or "capabilities" not in self.fields

    @property
    def is_v0_3(self) -> bool:
        """True if the interface has a version before 1.0."""
        return self.version.startswith("0.")


class _Interface(NamedTuple):
    url: str
    binding: str
    version: str
    tenant: str


def read_card(
    body: bytes,
    card_url: str,
    bindings: Sequence[str] = BINDINGS,
    origins: AgentOrigins | None = None,
    powered_by: str = "",
) -> RemoteCard:
    """Read an agent card of A2A 1.0 or 0.3, and choose an interface.

    The newest protocol version is preferred, then the binding that is first in ``bindings``.

    Args:
        body: The response body with the card.
        card_url: The URL of the card, to which its relative URLs refer.
        bindings: Allowed bindings in order of preference. gRPC is skipped if it is not installed.
        origins: The permitted origins; None to permit only the origin of the card.
        powered_by: The ``X-Powered-By`` header of the response, which identifies the SDK of the agent; empty for none.

    Raises:
        UpstreamError: The body is not an agent card, or the card has no supported interface at a permitted origin.
    """
    try:
        card: Any = json.loads(body)
    except (ValueError, RecursionError):
        card = None
    if not isinstance(card, dict):
        raise UpstreamError(f"the resource at {card_url} is not an agent card", fault=UpstreamFault.INVALID)
    fields = cast("dict[str, Any]", card)
    interfaces = list(_interfaces(fields, card_url))
    origins = origins or AgentOrigins(card_url)
    chosen = _choose((each for each in interfaces if _allows(origins, each)), bindings)
    if chosen is None:
        other_interface = _choose(interfaces, bindings)
        if other_interface is not None:
            raise UpstreamError(
                f"the agent card at {card_url} names {printable(other_interface.url, _MAX_URL)}, and calls go to "
                f"{origins.configured} alone: if the agent may be called there, allow its origin "
                "(TAILRACE_AGENT_ORIGINS; --allow-origin; allowed_origins in code)",
                fault=UpstreamFault.INVALID,
            )
        listed = ", ".join(f"{each.binding} {each.version}" for each in interfaces)
        raise UpstreamError(
            f"the agent card at {card_url} names no interface of A2A 1.0 or 0.3 over {', '.join(bindings)}; "
            f"it names {printable(listed, _MAX_URL) or 'no interface at all'}",
            fault=UpstreamFault.INVALID,
        )
    capabilities = _object(fields.get("capabilities"))
    extensions = [_text(each.get("uri")) for each in _objects(capabilities.get("extensions"))]
    numbered = EXTENSION_URI in extensions
    # Over HTTP+JSON, only tailrace servers encode files once for this client. Over gRPC, this client uses the SDK for Python, for
    # which servers encode files twice.
    encodes_twice = {"HTTP+JSON": not numbered, "GRPC": True}.get(chosen.binding, False)
    return RemoteCard(
        name=_text(fields.get("name")),
        description=_text(fields.get("description")),
        skills=tuple(_skills(_objects(fields.get("skills")))),
        input_modes=_texts(fields.get("defaultInputModes")),
        output_modes=_texts(fields.get("defaultOutputModes")),
        streaming=capabilities.get("streaming") is True,
        numbered=numbered,
        url=chosen.url,
        binding=chosen.binding,
        version="0.3.0" if chosen.version.startswith("0.") else chosen.version,
        tenant=chosen.tenant,
        encodes_files_twice=chosen.version.startswith("0.")
        and encodes_twice
        and powered_by != _JAVASCRIPT_SERVER,
        reads_v0_3_files=any(uri.startswith(_LANGGRAPH_EXTENSIONS) for uri in extensions),
        fields=fields,
    )


def credentials(card: RemoteCard, token: str) -> dict[str, str]:
    """Return the header that contains a token, in the form that the card's security schemes require; empty without a token.

    The token is sent in the first header or cookie of the security schemes if all of them are API keys; otherwise as a bearer
    token.

    Raises:
        UpstreamError: The name of the header or cookie is reserved or not valid.
    """
    if not token:
        return {}
    schemes = _objects(list(_object(card.fields.get("securitySchemes")).values()))
    keys = [key for scheme in schemes if (key := _api_key(scheme))]
    if len(keys) == len(schemes):
        for key in keys:
            name, place = _text(key.get("name")), key.get("location", key.get("in"))
            if place == "header":
                return {_checked_name(name, _RESERVED).lower(): token}
            if place == "cookie":
                return {"cookie": f"{_checked_name(name)}={token}"}
    return {"authorization": f"Bearer {token}"}


def _checked_name(name: str, reserved: re.Pattern[str] | None = None) -> str:
    if _NAME.fullmatch(name) and not (reserved and reserved.fullmatch(name.lower())):
        return name
    place = "header" if reserved else "cookie"
    raise UpstreamError(
        f"the agent card requires the API key in the {place} {printable(name, _MAX_URL)!r}, which cannot contain one",
        fault=UpstreamFault.INVALID,
    )


def _api_key(scheme: dict[str, Any]) -> dict[str, Any]:
    return scheme if scheme.get("type") == "apiKey" else _object(scheme.get("apiKeySecurityScheme"))


def _interfaces(fields: Mapping[str, Any], card_url: str) -> Iterator[_Interface]:
    """Yield the interfaces of a card."""
    if "supportedInterfaces" in fields:
        found = islice(_objects(fields["supportedInterfaces"]), _MAX_INTERFACES)
    else:
        version = fields.get("protocolVersion") or "0.3.0"
        main = {"url": fields.get("url"), "transport": fields.get("preferredTransport", "JSONRPC")}
        others = _objects(fields.get("additionalInterfaces"))
        found = (
            {"protocolVersion": version, "protocolBinding": each.get("transport"), **each}
            for each in islice([main, *others] if main["url"] else [], _MAX_INTERFACES)
        )
    for each in found:
        binding, url = _text(each.get("protocolBinding")).upper(), _text(each.get("url"))
        if binding != "GRPC":
            url = join_url(card_url, url)
        yield _Interface(url, binding, str(each.get("protocolVersion") or "1.0"), _text(each.get("tenant")))


def _allows(origins: AgentOrigins, interface: _Interface) -> bool:
    return (origins.allows_grpc if interface.binding == "GRPC" else origins.allows)(interface.url)


def _choose(interfaces: Iterable[_Interface], bindings: Sequence[str]) -> _Interface | None:
    has_grpc = find_spec("grpc") is not None and find_spec("a2a") is not None
    supported = [each for each in bindings if each != "GRPC" or has_grpc]
    usable = [
        each
        for each in interfaces
        if each.url and each.binding in supported and _age(each.version) is not None
    ]
    return min(usable, key=lambda each: (_age(each.version), supported.index(each.binding)), default=None)


def _age(version: str) -> int | None:
    """Return 0 for the preferred protocol version, 1 for an older supported version, and None for other versions."""
    major, _, minor = version.partition(".")
    if major == "1":
        return 0
    return 1 if major == "0" and minor[:1] in ("2", "3") else None


def _skills(skills: Iterable[dict[str, Any]]) -> Iterator[AgentSkill]:
    """Yield the skills without their security requirements, and with defaults for missing members."""
    for at, skill in enumerate(islice(skills, _MAX_SKILLS)):
        members = {key: value for key, value in skill.items() if value and key != "securityRequirements"}
        name = members.get("name") or members.get("id") or f"skill {at + 1}"
        try:
            yield AgentSkill.model_validate(
                {"id": name, "name": name, "description": name, "tags": ["agent"], **members}
            )
        except ValidationError:
            continue


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _texts(value: object) -> tuple[str, ...]:
    return tuple(filter(None, map(_text, cast("list[object]", value)))) if isinstance(value, list) else ()


def _object(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _objects(value: object) -> list[dict[str, Any]]:
    listed = cast("list[object]", value) if isinstance(value, list) else []
    return [cast("dict[str, Any]", each) for each in listed if isinstance(each, dict)]

"""Conversion of an A2A 1.0 agent card to an A2A 0.3 agent card.

Source: A2A 0.3.0, ``types/src/types.ts``.
"""

from collections.abc import Mapping
from typing import Any, cast

from tailrace.streaming.a2a.models import AgentCard

Fields = dict[str, Any]

_VERSION = "0.3.0"

# The type of a security scheme in 0.3, by the member name in 1.0.
_SCHEMES = {
    "apiKeySecurityScheme": "apiKey",
    "httpAuthSecurityScheme": "http",
    "oauth2SecurityScheme": "oauth2",
    "openIdConnectSecurityScheme": "openIdConnect",
    "mtlsSecurityScheme": "mutualTLS",
}


def write_card(card: AgentCard) -> Fields:
    """Return the card in the format of A2A 0.3 (and 0.2).

    It has the card's interfaces for versions before 1.0, or all interfaces if there are none. The first interface is the main
    address.
    """
    fields = card.to_dict()
    fields.pop("signatures", None)  # signatures are valid only for the card in the format of 1.0
    interfaces: list[Fields] = fields.pop("supportedInterfaces")
    supported = [each for each in interfaces if each["protocolVersion"].startswith("0.")] or interfaces
    extended = fields["capabilities"].pop("extendedAgentCard", False)
    schemes = fields.pop("securitySchemes", {})
    requirements = fields.pop("securityRequirements", [])
    fields |= {
        "protocolVersion": _VERSION,
        "url": supported[0]["url"],
        "preferredTransport": supported[0]["protocolBinding"],
        "additionalInterfaces": [
            {"url": each["url"], "transport": each["protocolBinding"]} for each in supported
        ],
        "skills": [_skill(skill) for skill in fields["skills"]],
    }
    if extended:
        fields["supportsAuthenticatedExtendedCard"] = True
    if schemes:
        fields["securitySchemes"] = {name: _scheme(scheme) for name, scheme in schemes.items()}
    if requirements:
        fields["security"] = [_requirement(each) for each in requirements]
    return fields


def write_proto_card(card: AgentCard) -> Fields:
    """Return the card in the ProtoJSON of 0.3, for gRPC. In this format, security schemes are the same as in 1.0."""
    fields = write_card(card)
    new = card.to_dict()
    for skill, new_skill in zip(fields["skills"], new["skills"], strict=True):
        skill.pop("security", None)
        if new_skill.get("securityRequirements"):
            skill["security"] = new_skill["securityRequirements"]
    renamed = {"securitySchemes": "securitySchemes", "security": "securityRequirements"}
    return fields | {name: new[given] for name, given in renamed.items() if new.get(given)}


def merge_cards(card: AgentCard) -> Fields:
    """Return one card for clients of 1.0 and of 0.3. Clients ignore members that they do not know.

    The members of 1.0 are unchanged, except that the signatures are removed: added members would make them invalid.
    """
    new = card.to_dict()
    new.pop("signatures", None)
    return _merged(new, write_card(card))


def _merged(new: Fields, old: Fields) -> Fields:
    """Merge two objects, including nested objects and skills. For other values, ``new`` takes precedence."""
    merged = old | new
    for name in old.keys() & new.keys():
        if isinstance(new[name], dict) and isinstance(old[name], dict):
            merged[name] = _merged(new[name], old[name])
        elif name == "skills":
            skills = zip(cast("list[Fields]", new[name]), cast("list[Fields]", old[name]), strict=True)
            merged[name] = [_merged(one, other) for one, other in skills]
    return merged


def _skill(fields: Fields) -> Fields:
    skill = {name: value for name, value in fields.items() if name != "securityRequirements"}
    if fields.get("securityRequirements"):
        skill["security"] = [_requirement(each) for each in fields["securityRequirements"]]
    return skill


def _scheme(wrapped: Mapping[str, Any]) -> Fields:
    for name, kind in _SCHEMES.items():
        if name in wrapped:
            scheme = dict(cast("Mapping[str, Any]", wrapped[name]))
            if kind == "apiKey":
                scheme["in"] = scheme.pop("location", "header")
            return {"type": kind, **scheme}
    return dict(wrapped)


def _requirement(requirement: Mapping[str, Any]) -> Fields:
    """Convert ``{"schemes": {"name": {"list": [scope]}}}`` to ``{"name": [scope]}``."""
    schemes = cast("Mapping[str, Mapping[str, Any]]", requirement.get("schemes", {}))
    return {name: list(scopes.get("list", ())) for name, scopes in schemes.items()}

"""The operations that belong to no protocol."""

from tailrace.server.http.operator_endpoints import LIVE_PATH, METRICS_PATH, READY_PATH
from tailrace.server.http.playground import COMPONENT_PATH, EMBED_PATH, MODULE_PATHS
from tailrace.server.http.playground.pages import PAGE_PATH
from tailrace.server.http.usage_endpoint import COUNTS, USAGE_PATH
from tailrace.server.protocols.a2a.card import CARD_PATH, OLD_CARD_PATH
from tailrace.server.protocols.a2a.http_json_v0_3 import CARD
from tailrace.server.protocols.openapi.builders import (
    ERRORS,
    Address,
    Json,
    array_of,
    content,
    errors,
    operation,
    parameter,
    response,
    schema_reference,
    string_schema,
)
from tailrace.server.store.usage_store import GROUPS

DESCRIPTION_PATH = "/openapi.json"
KEYS_PATH = "/.well-known/jwks.json"

_CODES = tuple(code for code in ERRORS if code in ("400", "401", "403", "404", "405", "500", "503"))
_OBJECT: Json = {"type": "object"}
_COUNT: Json = {"type": "integer", "minimum": 0}
_SUMS: Json = {
    "type": "object",
    "required": [*COUNTS, "cost_usd"],
    "properties": {
        **dict.fromkeys(GROUPS, string_schema()),
        **dict.fromkeys(COUNTS, _COUNT),
        "cost_usd": string_schema("US dollars, as a decimal number."),
    },
}
_USAGE: Json = {
    "type": "object",
    "required": ["start", "end", "groups", "total"],
    "properties": {
        "start": string_schema(),
        "end": string_schema(),
        "groups": array_of(_SUMS),
        "total": _SUMS,
    },
}
_USAGE_PARAMETERS = (
    parameter(
        "start",
        string_schema(),
        description="Date or time in ISO 8601. A time without an offset is in UTC. Default: 30 days before `end`.",
    ),
    parameter(
        "end",
        string_schema(),
        description="End of the period, exclusive, in the format of `start`. Default: now.",
    ),
    parameter("caller", string_schema(), description="Only model calls of this caller."),
    parameter("agent", string_schema(), description="Only model calls of this agent."),
    parameter("model", string_schema(), description="Only calls to this model."),
    parameter("group_by", string_schema(), description=f"Names separated by commas: {', '.join(GROUPS)}."),
    parameter("format", {"type": "string", "enum": ["json", "csv"]}, description="Overrides `Accept`."),
)


def other_operations() -> dict[Address, Json]:
    """Return the operations, each for GET and HEAD."""
    card = content({"anyOf": [schema_reference("AgentCard"), _OBJECT]})
    html, script = content(string_schema(), "text/html"), content(string_schema(), "text/javascript")
    health = content({"type": "object", "required": ["status"]})
    metrics = content(string_schema(), "text/plain", "application/openmetrics-text")
    usage = {**content(_USAGE), **content(string_schema(), "text/csv")}
    described = {
        CARD_PATH: ("agentCard", "The agent card", card, True),
        OLD_CARD_PATH: ("agentCardOf03", "The agent card for clients of 0.3", card, True),
        CARD.path: ("publicCardOf03", "The agent card for clients of 0.3 over HTTP+JSON", card, True),
        KEYS_PATH: ("cardKeys", "The public keys of the card's signatures (JWK Set)", content(_OBJECT), True),
        DESCRIPTION_PATH: ("openapi", "This description", content(_OBJECT), True),
        LIVE_PATH: ("healthz", "Whether the process responds", health, True),
        READY_PATH: ("readyz", "Whether the server can work", health, True),
        METRICS_PATH: ("metrics", "Metrics for Prometheus", metrics, False),
        USAGE_PATH: (
            "usage",
            "The usage of model calls of the caller; operators get the usage of all callers",
            usage,
            False,
        ),
        PAGE_PATH: ("playground", "The playground", html, True),
        COMPONENT_PATH: ("playgroundElement", "The playground's custom element", script, True),
        EMBED_PATH: ("playgroundEmbedded", "A page with the custom element", html, True),
        **{
            path: (name, f"A module of the element: {path}", script, True)
            for name, path in MODULE_PATHS.items()
        },
    }
    operations: dict[Address, Json] = {}
    for path, (name, summary, body, public) in described.items():
        for method in ("GET", "HEAD"):
            responses = {"200": response("The content.", body), **_failures(path)}
            if public and path not in (LIVE_PATH, READY_PATH):
                responses["304"] = response("The client has the current version.")
            operations[(method, path)] = operation(
                name if method == "GET" else f"{name}Head",
                summary,
                responses,
                tag="Server",
                public=public,
                parameters=_USAGE_PARAMETERS if path == USAGE_PATH else (),
            )
    return operations


def _failures(path: str) -> Json:
    failed = errors("Error", _CODES)
    if path == READY_PATH:
        failed["503"] = response("The server cannot work. The body states the reason.", content(_OBJECT))
    return failed

"""The OpenAPI description of an application."""

import json
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.routing import BaseRoute

from tailrace.server.http.caching import cached_response
from tailrace.server.protocols.openapi.builders import STATUS_ERROR, Address, Json
from tailrace.server.protocols.openapi.http_json_operations import (
    SCHEMAS_0_3,
    http_json,
    http_json_0_3,
    model_schemas,
)
from tailrace.server.protocols.openapi.openai_operations import openai_api
from tailrace.server.protocols.openapi.other_operations import DESCRIPTION_PATH, other_operations
from tailrace.server.protocols.openapi.protocol_operations import SCHEMAS, json_rpc, user_interfaces

_SECURITY_SCHEMES: Mapping[str, Json] = {
    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
    "bearer": {"type": "http", "scheme": "bearer"},
}


def describe(addresses: Iterable[Address] | None = None, *, security: Iterable[str] = ()) -> Json:
    """Return the OpenAPI 3.1 description.

    Args:
        addresses: The operations to describe; None for all operations.
        security: The names of the security schemes (``apiKey``, ``bearer``); empty if no authentication is required.

    Raises:
        KeyError: One of the addresses is unknown.
    """
    known = {
        **other_operations(),
        **http_json_0_3(),  # overrides one path of `other_operations`
        **json_rpc(),
        **openai_api(),
        **user_interfaces(),
        **http_json(),
    }
    paths: dict[str, Json] = {}
    for method, path in known if addresses is None else addresses:
        paths.setdefault(path, {})[method.lower()] = known[(method, path)]
    schemes = {name: _SECURITY_SCHEMES[name] for name in security}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "tailrace",
            "version": version("tailrace"),
            "description": "An A2A agent, and the other protocols that it is called by.",
        },
        "servers": [{"url": "./"}],
        "paths": paths,
        "components": {
            "schemas": {**model_schemas(), **SCHEMAS_0_3, **SCHEMAS, "Error": STATUS_ERROR},
            **({"securitySchemes": schemes} if schemes else {}),
        },
        **({"security": [{name: []} for name in schemes]} if schemes else {}),
    }


def addresses_of(routes: Iterable[BaseRoute]) -> list[Address]:
    """Return the methods and OpenAPI path templates of routes."""
    return [
        (method, str(getattr(route, "path", "")).replace(":path}", "}"))
        for route in routes
        for method in sorted(getattr(route, "methods", None) or ())
    ]


def add_description_to(router: APIRouter, *, security: Mapping[str, Any]) -> None:
    """Add the route of the description to a router, after all other routes."""
    schemes = [
        name
        for name, kind in (("apiKey", "apiKeySecurityScheme"), ("bearer", "httpAuthSecurityScheme"))
        if any(kind in scheme for scheme in security.values())
    ]
    body = b""

    async def description(request: Request) -> Response:
        return cached_response(request, body)

    router.add_api_route(DESCRIPTION_PATH, description, methods=["GET"], include_in_schema=False)
    body = json.dumps(describe(addresses_of(router.routes), security=schemes)).encode()

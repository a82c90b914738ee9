"""The OpenAPI description covers every route and matches the server, by authenticated requests of schemathesis."""

import json
import re
from pathlib import Path

import anyio.to_thread
import pytest
import yarl
from aiohttp import ClientSession

from support.http_json import HttpJson
from support.live_server import serving
from support.openapi_agent import KEY, SETTINGS, create_described_app, echo, run_schemathesis
from support.random_seeds import EVERY_TIME_OTHERS
from support.rpc import Rpc
from tailrace.server import create_app
from tailrace.server.protocols.openapi import describe
from tailrace.server.protocols.openapi.description import addresses_of
from tailrace.server.settings import DEFAULT_ENDPOINTS


async def test_the_description_is_served_where_it_is_enabled() -> None:
    app = create_described_app()
    async with serving(app) as url, Rpc(url) as rpc:
        served = await HttpJson(rpc).ok("GET", "/openapi.json")
    assert served == describe(addresses_of(app.routes), security=["apiKey"])
    quiet = create_described_app(SETTINGS.model_copy(update={"endpoints": DEFAULT_ENDPOINTS}))
    async with serving(quiet) as url, Rpc(url) as rpc:
        assert (await HttpJson(rpc).ask("GET", "/openapi.json"))[0] == 404


def test_every_route_is_described() -> None:
    for app in (create_described_app(), create_app(SETTINGS, handler=echo)):
        addresses = addresses_of(app.routes)
        paths = describe(addresses)["paths"]
        described = {(method.upper(), path) for path, methods in paths.items() for method in methods}
        assert described == set(addresses)


def test_operations_have_names_of_their_own() -> None:
    operations = [each for methods in describe()["paths"].values() for each in methods.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)


def test_every_operation_lists_its_errors() -> None:
    for path, methods in describe()["paths"].items():
        for method, operation in methods.items():
            assert {"401", "403", "404", "405", "503"} <= set(operation["responses"]), (method, path)
            if "requestBody" in operation:
                assert {"400", "408", "413", "415", "429"} <= set(operation["responses"]), (method, path)


def test_references_lead_somewhere() -> None:
    description = describe()
    schemas = description["components"]["schemas"]

    found = re.findall(r'"\$ref": "#/components/schemas/(\w+)"', json.dumps(description))
    assert found
    assert set(found) <= set(schemas)


def test_only_known_security_schemes_are_described() -> None:
    assert "security" not in describe()
    secured = describe(security=["apiKey", "bearer"])
    assert secured["security"] == [{"apiKey": []}, {"bearer": []}]
    assert set(secured["components"]["securitySchemes"]) == {"apiKey", "bearer"}
    assert secured["paths"]["/healthz"]["get"]["security"] == []


@pytest.mark.no_cover  # no coverage: its requests are generated
@pytest.mark.timeout(1800 if EVERY_TIME_OTHERS else 300)  # measured by itself: some minutes, or 20 seconds
async def test_schemathesis_finds_no_failure(tmp_path: Path) -> None:
    few = ("--seed", "1", "--max-examples", "4", "--phases", "fuzzing,stateful")
    arguments = ("--max-examples", "50") if EVERY_TIME_OTHERS else few
    async with serving(create_described_app()) as url:
        status, output = await anyio.to_thread.run_sync(lambda: run_schemathesis(url, tmp_path, *arguments))
    assert status == 0, output[-20_000:]


# --- beyond the description -------------------------------------------------------------------------------------------

_HEADERS = {"X-API-Key": KEY}


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("HEAD", "/healthz", 200, None),
        ("HEAD", "/tasks", 405, "GET"),
        ("OPTIONS", "/tasks", 405, "GET"),
        ("OPTIONS", "/", 405, "GET, HEAD, POST"),
        ("PUT", "/v1/chat/completions", 405, "GET, POST"),
        ("PROPFIND", "/message:send", 405, "POST"),
        ("GET", "/message:send", 405, "POST"),
        ("PUT", "/tasks/1", 405, "DELETE, GET"),
        ("PUT", "/tasks/1:cancel", 405, "POST"),  # which "/tasks/{id}" matches as well
        ("OPTIONS", "/tasks/1:cancel", 405, "POST"),
        ("OPTIONS", "/v1/tasks/1:cancel", 405, "POST"),
        ("OPTIONS", "/acme/tasks/1:cancel", 405, "POST"),
        ("PUT", "/tasks/1:subscribe", 405, "GET, POST"),
        ("PATCH", "/tasks/1/pushNotificationConfigs/2", 405, "DELETE, GET"),
        ("GET", "/nothing/here/at/all", 404, None),
    ],
)
async def test_methods_that_a_path_does_not_support_are_answered_with_those_that_it_does(
    method: str, path: str, status: int, allow: str | None
) -> None:
    async with serving(create_described_app()) as url, Rpc(url) as rpc:
        found, headers, _ = await HttpJson(rpc).exchange(method, path, headers=_HEADERS)
    assert (found, headers.get("allow")) == (status, allow)
    assert method == "HEAD" or headers["content-type"] == "application/json"


@pytest.mark.parametrize("path", ["/tasks/", "/healthz/", "/v1/models/", "/message:send/", "/.well-known/"])
async def test_a_trailing_slash_is_never_a_server_error(path: str) -> None:
    async with serving(create_described_app()) as url, Rpc(url) as rpc:
        for method in ("GET", "POST", "DELETE"):
            status, _, _ = await HttpJson(rpc).exchange(method, path, headers=_HEADERS)
            assert status < 500, (method, path)


@pytest.mark.parametrize(
    "encoded", ["%2e%2e", "%00", "%2F", "%ff", "%ed%a0%80", "a%3Acancel", "%F0%9F%98%80", "%25", "%0d%0a"]
)
async def test_percent_encoded_ids_are_read_as_ids(encoded: str) -> None:
    async with serving(create_described_app()) as url:
        async with ClientSession(headers=_HEADERS) as http:
            for path in (
                "/tasks/{}",
                "/v1/tasks/{}",
                "/conversations/{}",
                "/v1/models/{}",
                "/ai-sdk/{}/stream",
            ):
                address = yarl.URL(url + path.format(encoded), encoded=True)
                async with http.get(address) as response:
                    assert response.status in (200, 204, 400, 404), (path, await response.text())
                    assert response.content_type in (
                        "application/json",
                        "text/plain",
                        "application/octet-stream",
                    )
                    assert not any("\n" in value or "\0" in value for value in response.headers.values())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/message:stream", {"message": {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "hi"}]}}),
        (
            "/v1/message:stream",
            {"message": {"messageId": "1", "role": "ROLE_USER", "content": [{"text": "hi"}]}},
        ),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "stream": True}),
        ("/v1/responses", {"input": "hi", "stream": True}),
        ("/ai-sdk", {"id": "1", "messages": [{"role": "user", "parts": [{"type": "text", "text": "hi"}]}]}),
        (
            "/ag-ui",
            {"threadId": "1", "runId": "1", "messages": [{"id": "1", "role": "user", "content": "hi"}]},
        ),
    ],
)
async def test_streams_are_server_sent_events_in_utf_8(path: str, body: object) -> None:
    async with serving(create_described_app()) as url, Rpc(url) as rpc:
        status, headers, answer = await HttpJson(rpc).exchange("POST", path, body, headers=_HEADERS)
    assert status == 200, answer
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    answer.decode("utf-8")
    assert answer.endswith(b"\n\n")

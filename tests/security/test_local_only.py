"""Without authentication, a server accepts local programs only; pages of other sites reach no server."""

import gc
import json
import socket
import tracemalloc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anyio
import httpx
import pytest
from fastapi import FastAPI
from starlette.types import Scope

from support.agents import Scripted
from support.live_server import serving
from support.rpc import message
from tailrace.server import Settings, create_app, create_router
from tailrace.server.app import Authenticator
from tailrace.server.auth.authentication import Credentials, Identity
from tailrace.server.http.forwarded_addresses import names_remote_client
from tailrace.server.http.origin_guard import OriginGuard, is_loopback
from tailrace.server.runtime.auth_error import AuthError
from tailrace.server.settings import ENDPOINTS

EVIL = "http://evil.example"
SITE = "https://www.example.com"
CALL = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": message()}

# One request for each kind of route, with its error format.
REQUESTS: list[tuple[str, str, Any]] = [
    ("POST", "/", CALL),
    ("POST", "/message:send", message()),
    ("POST", "/message:stream", message()),
    ("POST", "/acme/message:send", message()),
    ("GET", "/tasks", None),
    ("GET", "/tasks/some:subscribe", None),
    ("GET", "/v1/tasks", None),
    ("POST", "/v1/message:send", message()),
    ("GET", "/v1/card", None),
    ("GET", "/.well-known/agent-card.json", None),
    ("GET", "/.well-known/agent.json", None),
    ("GET", "/extendedAgentCard", None),
    ("GET", "/openapi.json", None),
    ("GET", "/metrics", None),
    ("GET", "/", None),
    ("GET", "/tailrace-chat.js", None),
    ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ("POST", "/v1/responses", {"input": "hi"}),
    ("POST", "/v1/completions", {"prompt": "hi"}),
    ("POST", "/v1/embeddings", {"input": "hi"}),
    ("POST", "/v1/conversations", {}),
    ("GET", "/v1/models", None),
    ("POST", "/ai-sdk", {"id": "c", "messages": []}),
    ("POST", "/ag-ui", {"threadId": "t", "runId": "r", "messages": []}),
]


def settings(**given: Any) -> Settings:
    return Settings(store="sqlite://", endpoints=ENDPOINTS, **given)


def keyed(**given: Any) -> Settings:
    return settings(caller_keys="alice:key", **given)


def traced_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@asynccontextmanager
async def agent(settings: Settings, **given: Any) -> AsyncGenerator[tuple[str, aiohttp.ClientSession]]:
    app = create_app(settings, handler=Scripted(), **given)
    async with serving(app) as url, aiohttp.ClientSession() as http:
        yield url, http


async def status_of(http: aiohttp.ClientSession, method: str, url: str, **given: Any) -> int:
    async with http.request(method, url, **given) as response:
        return response.status


async def tasks_of(http: aiohttp.ClientSession, url: str, **headers: str) -> list[Any]:
    async with http.get(f"{url}/tasks", headers=headers) as response:
        assert response.status == 200
        return (await response.json())["tasks"]


def assert_is_refusal(path: str, status: int, body: Any) -> None:
    """Assert a 403 in the error format of that address, with the name of the setting that would allow the request."""
    assert status == 403, (path, status, body)
    a2a = ("/v1/message", "/v1/tasks", "/v1/card")
    if "/v1/" in path and not any(each in path for each in a2a):
        assert body["error"]["type"] == "permission_error"
        error_message = body["error"]["message"]
    elif "/v1/" in path:
        assert body["error"] == "AuthenticationError"
        error_message = body["message"]
    else:
        assert (body["error"]["code"], body["error"]["status"]) == (403, "PERMISSION_DENIED")
        error_message = body["error"]["message"]
    assert "TAILRACE_" in error_message


FOREIGN = {
    "another name": {"Host": "rebind.example:8000"},
    "no name": {"Host": ""},
    "a name that ends in ours": {"Host": "localhost.evil.example"},
    "another address": {"Host": "192.0.2.7:8000"},
    "a page of another site": {"Origin": EVIL},
    "a page without an origin": {"Origin": "null"},
    "a page of this machine at another port": {"Origin": "http://127.0.0.1:1"},
    "what another site embeds": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    "a page that another site embeds": {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Dest": "iframe",
    },
}


@pytest.mark.parametrize("headers", FOREIGN.values(), ids=FOREIGN)
async def test_every_route_refuses_what_is_foreign_and_does_nothing(headers: dict[str, str]) -> None:
    async with agent(settings()) as (url, http):
        for method, path, body in REQUESTS:
            async with http.request(method, url + path, json=body, headers=headers) as response:
                assert_is_refusal(path, response.status, await response.json(content_type=None))
        assert await tasks_of(http, url) == []


@pytest.mark.parametrize("included", [True, False], ids=["included", "mounted"])
async def test_the_router_is_guarded_in_another_application(*, included: bool) -> None:
    app, router = FastAPI(), create_router(settings(), handler=Scripted())
    if included:
        app.include_router(router, prefix="/agent")
    else:
        inner = FastAPI(openapi_url=None)
        inner.include_router(router)
        app.mount("/agent", inner)

    @app.get("/own")
    def own() -> str:
        return "the application's own routes are its own business"

    async with serving(app) as url, aiohttp.ClientSession() as http:
        for headers in FOREIGN.values():
            for method, path, body in REQUESTS:
                async with http.request(method, f"{url}/agent{path}", json=body, headers=headers) as response:
                    assert_is_refusal(path, response.status, await response.json(content_type=None))
            assert await status_of(http, "GET", f"{url}/own", headers=headers) == 200
        for method, path, body in REQUESTS:
            if method == "POST":
                plain = {"data": json.dumps(body), "headers": {"Content-Type": "text/plain"}}
                assert await status_of(http, "POST", f"{url}/agent{path}", **plain) == 415, path
        assert await status_of(http, "GET", f"{url}/agent/.well-known/agent-card.json") == 200


async def test_probes_answer_every_host() -> None:
    async with agent(settings()) as (url, http):
        for path in ("/healthz", "/readyz"):
            assert await status_of(http, "GET", url + path, headers={"Host": "10.1.2.3:8000"}) == 200


async def test_local_names_are_served() -> None:
    async with agent(settings()) as (url, http):
        port = url.rpartition(":")[2]
        for host in ("localhost", "LOCALHOST.", "a.b.localhost", "127.8.9.1", "[::1]"):
            for named in (host, f"{host}:{port}"):
                assert await status_of(http, "GET", f"{url}/tasks", headers={"Host": named}) == 200


async def test_configured_names_are_served() -> None:
    configured = settings(
        public_url="https://agent.example.com/x/",
        card={"grpc_url": "grpc.example.com:443"},
        allowed_hosts=("agent.lan",),
        allowed_origins=(SITE,),
    )
    async with agent(configured) as (url, http):
        for host in ("agent.example.com", "agent.example.com:8443", "agent.lan", "www.example.com"):
            assert await status_of(http, "GET", f"{url}/tasks", headers={"Host": host}) == 200
        assert await status_of(http, "GET", f"{url}/tasks", headers={"Host": "other.example.com"}) == 403


async def test_two_hosts_are_refused() -> None:
    async with agent(settings()) as (url, _):
        head = b"GET /tasks HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
        host, port = url.removeprefix("http://").split(":")
        async with await anyio.connect_tcp(host, int(port)) as stream:
            await stream.send(head)
            assert (await stream.receive()).startswith(b"HTTP/1.1 403 ")


async def test_the_servers_own_page_and_allowed_sites_may_call() -> None:
    async with agent(settings(allowed_origins=(SITE,), public_url="https://agent.example.com")) as (
        url,
        http,
    ):
        for origin in (url, url.replace("127.0.0.1", "localhost"), SITE, "https://agent.example.com"):
            headers = {"Origin": origin, "Host": origin.partition("://")[2], "Sec-Fetch-Site": "same-origin"}
            assert await status_of(http, "POST", url, json=CALL, headers=headers) == 200
        headers = {"Origin": SITE, "Sec-Fetch-Site": "cross-site"}
        assert await status_of(http, "POST", url, json=CALL, headers=headers) == 200
    async with agent(settings(allowed_origins=("*",))) as (url, http):
        assert await status_of(http, "POST", url, json=CALL, headers={"Origin": "null"}) == 200


async def test_a_link_of_another_site_opens_a_page() -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    async with agent(settings()) as (url, http):
        assert await status_of(http, "GET", url, headers=link) == 200
        # A form submission is a navigation, too.
        assert await status_of(http, "POST", url, json=CALL, headers=link) == 403
        assert await status_of(http, "POST", url, json=CALL, headers={**link, "Origin": EVIL}) == 403


# --- with authentication, and open servers ----------------------------------------------------------------------


async def test_a_page_cannot_use_what_a_browser_adds_by_itself() -> None:
    async with agent(keyed()) as (url, http):
        for given in ({"headers": {"Cookie": "tailrace_token=key"}}, {"params": {"api_key": "key"}}):
            headers = given.get("headers", {})
            assert await status_of(http, "GET", f"{url}/tasks", **given) == 200
            for foreign in ({"Origin": EVIL}, {"Sec-Fetch-Site": "cross-site"}):
                request = {**given, "headers": {**headers, **foreign}}
                assert await status_of(http, "GET", f"{url}/tasks", **request) == 403


class _AnyBasic(Authenticator):
    async def authenticate(self, credentials: Credentials) -> Identity:
        return Identity("alice")

    def schemes(self) -> dict[str, Any]:
        return {}


async def test_basic_credentials_are_such() -> None:
    async with agent(settings(), authenticator=_AnyBasic()) as (url, http):
        basic = {"Authorization": "Basic YTpi"}
        assert await status_of(http, "POST", url, json=CALL, headers=basic) == 200
        assert await status_of(http, "POST", url, json=CALL, headers={**basic, "Origin": EVIL}) == 403


async def test_a_key_in_a_header_is_no_other_pages_to_send() -> None:
    async with agent(keyed()) as (url, http):
        for key in ({"X-API-Key": "key"}, {"Authorization": "Bearer key"}):
            headers = {**key, "Host": "agent.lan", "Origin": EVIL, "Sec-Fetch-Site": "cross-site"}
            assert await status_of(http, "GET", f"{url}/v1/models", headers=headers) == 200


async def test_a_public_server_is_not_open_to_every_page() -> None:
    async with agent(settings(allow_anonymous=True)) as (url, http):
        assert await status_of(http, "GET", f"{url}/tasks", headers={"Host": "agent.lan"}) == 200
        assert await status_of(http, "POST", url, json=CALL, headers={"Origin": EVIL}) == 403
    async with agent(settings(allow_anonymous=True, allowed_hosts=("agent.lan",))) as (url, http):
        assert await status_of(http, "GET", f"{url}/tasks", headers={"Host": "agent.lan"}) == 200
        assert await status_of(http, "GET", f"{url}/tasks", headers={"Host": "rebind.example"}) == 403


# --- other machines ---------------------------------------------------------------------------------------------

HERE, UNIX, TEST = ("127.0.0.1", 8000), ("/run/tailrace.sock", None), ("testserver", 80)
LAN, REMOTE = ("192.0.2.1", 8000), ("192.0.2.7", 50000)


async def response_status(
    app: Any, client: Any, server: Any, host: str = "localhost", path: str = "/tasks", **headers: str
) -> int:
    """Call an application as a server would, for a connection between two addresses."""
    sent: list[Any] = []
    scope: Scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": path,
        "query_string": b"",
        "root_path": "",
        "headers": [
            (b"host", host.encode()),
            *((name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()),
        ],
        "client": client,
        "server": server,
    }

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(event: Any) -> None:
        sent.append(event)

    await app(scope, receive, send)
    return sent[0]["status"]


CONNECTIONS = [
    (("127.0.0.1", 50000), HERE, "localhost", True),
    (("::1", 50000), ("::1", 8000), "localhost", True),
    (("::ffff:127.0.0.1", 50000), ("::ffff:127.0.0.1", 8000), "localhost", True),
    (None, UNIX, "localhost", True),
    (("testclient", 50000), TEST, "testserver", True),
    (REMOTE, LAN, "localhost", False),
    (LAN, LAN, "localhost", False),
    # A client that disconnected at once has no address any more.
    (None, LAN, "localhost", False),
    (None, None, "localhost", False),
    # X-Forwarded-For of a client that the server trusts by mistake.
    (("127.0.0.1", 0), LAN, "localhost", False),
    (("unknown", 0), HERE, "localhost", False),
    # A proxy on this machine.
    (REMOTE, HERE, "agent.example.com", True),
    (REMOTE, UNIX, "agent.example.com", True),
    (REMOTE, HERE, "localhost", False),
    (REMOTE, LAN, "agent.example.com", False),
]


@pytest.mark.parametrize(("client", "server", "host", "served"), CONNECTIONS)
async def test_only_local_connections_are_served_by_any_asgi_server(
    client: Any, server: Any, host: str, *, served: bool
) -> None:
    app = create_app(settings(public_url="https://agent.example.com"), handler=Scripted())
    async with app.router.lifespan_context(app):
        assert await response_status(app, client, server, host) == (200 if served else 403)
        assert await response_status(app, client, server, host, "/healthz") == 200


HERE_FOR = {
    "forwarded": ("for=127.0.0.1", 'For="127.0.0.1:50000";proto=http;by=_proxy', 'for="[::1]:50000"'),
    "x_forwarded_for": ("127.0.0.1", "::1", "[::1]:50000", "127.0.0.1:50000", "127.0.0.1, ::ffff:127.0.0.2"),
    "x_real_ip": ("127.0.0.1", "::1"),
}
"""Headers of proxies that name clients on this machine."""

REMOTE_FOR = {
    "forwarded": (
        "for=192.0.2.7",
        'FOR="[2001:db8::7]:50000"',
        "proto=https;for=192.0.2.7;by=127.0.0.1",
        "for=127.0.0.1, for=192.0.2.7",  # the client sent the first element, and the proxy added the second one
        "for=192.0.2.7, for=127.0.0.1",
        "for=127.0.0.1;for=192.0.2.7",
        'for="127.0.0.1, for=192.0.2.7"',
        "for=unknown",
        "for=_hidden",
        "for=localhost",
        "by=127.0.0.1",
        "",
        ", ".join(["for=127.0.0.1"] * 1_000),
    ),
    "x_forwarded_for": ("192.0.2.7", "2001:db8::7", "127.0.0.1, 192.0.2.7", "192.0.2.7:50000", "unknown", ""),
    "x_real_ip": ("192.0.2.7", "[2001:db8::7]"),
}
"""Headers of proxies that name clients on other machines, or do not show where the clients are."""

PEERS = [(("127.0.0.1", 50000), HERE), (("127.0.0.1", 0), HERE), (None, UNIX)]
"""Connections of a proxy on this machine."""


@pytest.mark.parametrize(("client", "server"), PEERS, ids=["loopback", "loopback, by uvicorn", "socket"])
async def test_a_proxy_on_this_machine_makes_no_client_local(client: Any, server: Any) -> None:
    app = create_app(settings(public_url="https://agent.example.com"), handler=Scripted())
    wrong: list[object] = []
    async with app.router.lifespan_context(app):
        for expected, headers in ((200, HERE_FOR), (403, REMOTE_FOR)):
            for name, values in headers.items():
                for value in values:
                    given = {name: value}
                    wrong += [
                        (host, path, given)
                        for host, path, status in (
                            ("localhost", "/tasks", expected),
                            (
                                "agent.example.com",
                                "/tasks",
                                200,
                            ),  # a proxy may forward requests for this host
                            ("localhost", "/metrics", expected),
                            ("agent.example.com", "/metrics", 403),
                        )
                        if await response_status(app, client, server, host, path, **given) != status
                    ]
    assert wrong == []


async def test_the_refusal_of_a_forwarded_request_gives_the_reason() -> None:
    async with agent(settings()) as (url, http):
        async with http.get(f"{url}/tasks", headers={"Forwarded": "for=192.0.2.7"}) as response:
            assert response.status == 403
            assert "a proxy forwards this request" in await response.text()


@pytest.mark.parametrize("name", HERE_FOR)
async def test_a_proxy_on_this_machine_makes_no_grpc_client_local(name: str) -> None:
    header = name.replace("_", "-")
    outcomes: dict[bool, set[str]] = {}
    for has_url in (False, True):
        given: dict[str, Any] = {"card": {"grpc_url": "grpc.example.com:443"}} if has_url else {}
        guard = OriginGuard(settings(**given), authenticated=False)
        for value in (*HERE_FOR[name], *REMOTE_FOR[name]):
            try:
                guard.check_call("ipv4:127.0.0.1:50000", {header: value})
            except AuthError:
                outcomes.setdefault(has_url, set()).add(value)
    assert outcomes == {False: set(REMOTE_FOR[name])}


async def test_long_addresses_are_not_kept_in_memory() -> None:
    # A client that a proxy names without a check would fill a cache of addresses.
    tracemalloc.start()
    before = traced_bytes()
    for number in range(200):
        assert not is_loopback(f"{number}" + "x" * 100_000)
        assert names_remote_client([("x-forwarded-for", f"{number}" + "x" * 100_000)])
    kept = traced_bytes() - before
    tracemalloc.stop()
    assert kept < 1_000_000


async def test_a_local_only_server_on_all_interfaces_refuses_remote_connections() -> None:
    # This machine, by an address that is reachable from others.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return  # without a network there is no other address; CONNECTIONS covers the cases
        address = probe.getsockname()[0]
    app = create_app(settings(), handler=Scripted())
    async with serving(app, host="0.0.0.0") as url, aiohttp.ClientSession() as http:
        assert await status_of(http, "GET", f"{url}/tasks") == 200
        outside = url.replace("127.0.0.1", address)
        assert await status_of(http, "GET", f"{outside}/tasks", headers={"Host": "localhost"}) == 403
        assert await status_of(http, "GET", f"{outside}/healthz") == 200


async def test_an_application_in_the_same_process_is_local() -> None:
    app = create_app(settings(), handler=Scripted())
    transport = httpx.ASGITransport(app)
    async with app.router.lifespan_context(app):
        async with httpx.AsyncClient(transport=transport, base_url="http://agent.example") as http:
            card = (await http.get("/.well-known/agent-card.json")).json()
    assert card["supportedInterfaces"][0]["url"] == "http://agent.example/"


# --- the card ---------------------------------------------------------------------------------------------------


async def card_of(configured: Settings, host: str) -> str:
    async with agent(configured) as (url, http):
        async with http.get(f"{url}/.well-known/agent-card.json", headers={"Host": host}) as response:
            card = await response.text()
        assert response.status == 200
        return json.loads(card)["supportedInterfaces"][0]["url"].replace(url, "SERVER")


@pytest.mark.parametrize("given", [{"caller_keys": "alice:key"}, {"allow_anonymous": True}], ids=str)
async def test_the_card_names_no_host_that_is_not_verified(given: dict[str, Any]) -> None:
    assert await card_of(settings(**given), "evil.example") == "SERVER/"
    assert await card_of(settings(**given), 'evil"<x>') == "SERVER/"
    assert await card_of(settings(**given), "localhost:99") == "http://localhost:99/"
    assert await card_of(settings(**given, allowed_hosts=("agent.lan",)), "agent.lan") == "http://agent.lan/"
    public = settings(**given, public_url="https://agent.example.com/")
    assert await card_of(public, "evil.example") == "https://agent.example.com/"


# --- metrics ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [{"caller_keys": "alice:key"}, {"allow_anonymous": True}], ids=str)
async def test_metrics_without_a_token_are_for_this_machine(given: dict[str, Any]) -> None:
    headers = {"X-API-Key": "key"}
    async with agent(settings(**given)) as (url, http):
        assert await status_of(http, "GET", f"{url}/metrics", headers=headers) == 200
        for foreign in ({"Host": "agent.lan"}, {"X-Forwarded-For": "192.0.2.7"}):
            assert await status_of(http, "GET", f"{url}/metrics", headers={**headers, **foreign}) == 403
    async with agent(settings(**given, metrics_token="scraper")) as (url, http):
        headers = {"Authorization": "Bearer scraper", "Host": "agent.lan"}
        assert await status_of(http, "GET", f"{url}/metrics", headers=headers) == 200


# --- parsed settings ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["http://agent.lan", "agent.lan:8000", "agent.lan/", ""])
def test_a_host_is_a_name_alone(host: str) -> None:
    with pytest.raises(ValueError, match="is not a host"):
        Settings(allowed_hosts=(host,))

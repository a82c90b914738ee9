"""Cross-origin requests from browsers."""

import pytest
from pydantic import ValidationError

from support.agents import nothing
from support.http_json import HttpJson
from support.live_server import serving
from support.rpc import Rpc
from tailrace.server import Settings, create_app

SITE = "https://example.com"
PREFLIGHT = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "a2a-extensions,a2a-version,authorization,content-type,idempotency-key,last-event-id,x-api-key",
}


async def preflight(origins: tuple[str, ...], origin: str) -> tuple[int, dict[str, str]]:
    app = create_app(Settings(store="sqlite://", allowed_origins=origins), handler=nothing)
    async with serving(app) as url, Rpc(url) as rpc:
        status, headers, _ = await HttpJson(rpc).exchange(
            "OPTIONS", "/", headers={"origin": origin, **PREFLIGHT}
        )
        return status, headers


async def test_a_page_of_a_site_that_is_named_may_send_what_clients_send() -> None:
    status, headers = await preflight((SITE,), SITE)
    assert status == 200
    assert headers["access-control-allow-origin"] == SITE
    assert "access-control-allow-credentials" not in headers
    _, headers = await preflight(("*",), "https://other.example")
    assert headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize("origins", [(), ("https://other.example",)])
async def test_no_other_may(origins: tuple[str, ...]) -> None:
    status, headers = await preflight(origins, SITE)
    assert status in (400, 403)
    assert "access-control-allow-origin" not in headers


async def test_it_is_shown_the_headers_that_clients_read_and_errors_too() -> None:
    app = create_app(
        Settings(store="sqlite://", allowed_origins=(SITE,), caller_keys="alice:key"),  # pyright: ignore[reportArgumentType]
        handler=nothing,
    )
    async with serving(app) as url, Rpc(url) as rpc:
        status, headers, _ = await HttpJson(rpc).exchange("POST", "/", {}, {"origin": SITE})
    assert (status, headers["access-control-allow-origin"]) == (401, SITE)
    shown = headers["access-control-expose-headers"].split(", ")
    assert {"A2A-Extensions", "Retry-After", "WWW-Authenticate", "X-Conversation-Id", "X-Task-Id"} == set(
        shown
    )


def test_origins_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_ALLOWED_ORIGINS", SITE)
    assert Settings().allowed_origins == (SITE,)
    monkeypatch.setenv("TAILRACE_ALLOWED_ORIGINS", f'["{SITE}", "http://localhost:3000"]')
    assert Settings().allowed_origins == (SITE, "http://localhost:3000")


@pytest.mark.parametrize(
    "value", ["example.com", "https://example.com/", "https://example.com/page", "https://"]
)
def test_what_is_no_origin_is_refused(value: str) -> None:
    with pytest.raises(ValidationError, match="is not an origin"):
        Settings(allowed_origins=(value,))

"""Signing keys of a token issuer: one fetch for all waiting callers, cached during an outage, without server errors."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from tailrace.server.auth.jwks import FRESH, MAX_AGE, PAUSE, IssuerKeys
from tailrace.server.runtime.limits import OverloadedError

KEY = rsa.generate_private_key(65537, 2048)


def key_set(*kids: str) -> str:
    public = RSAAlgorithm.to_jwk(KEY.public_key(), as_dict=True)
    return json.dumps({"keys": [{**public, "kid": kid, "use": "sig"} for kid in kids]})


class Issuer:
    """A real JWKS server with configurable responses.

    Attributes:
        status: The status of the responses.
        text: The body of the responses.
        fetches: How many requests arrived.
        gate: Responses wait for it.
    """

    def __init__(self) -> None:
        self.status, self.text, self.fetches = 200, key_set("one"), 0
        self.gate = anyio.Event()
        self.gate.set()

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[str]:
        app = web.Application()
        app.router.add_get("/keys", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            _, port = runner.addresses[0]
            yield f"http://127.0.0.1:{port}/keys"
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        self.fetches += 1
        await self.gate.wait()
        return web.Response(status=self.status, text=self.text)


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def keys_of(
    issuer: Issuer, clock: Callable[[], float], patience: float = 5.0
) -> AsyncGenerator[IssuerKeys]:
    async with issuer.serving() as url:
        keys = IssuerKeys(url, clock=clock, timeout=patience)
        async with keys.running():
            yield keys


async def test_all_who_wait_share_one_fetch() -> None:
    issuer = Issuer()
    issuer.gate = anyio.Event()
    async with keys_of(issuer, Clock()) as keys:
        found: list[object] = []

        async def find() -> None:
            found.append(await keys.find("one", "RS256"))

        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(find)
            await anyio.wait_all_tasks_blocked()
            issuer.gate.set()
    assert len(found) == 8
    assert None not in found
    assert issuer.fetches == 1


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (200, "<html>"),
        (200, "[]"),
        (200, '{"keys": 7}'),
        (200, '{"keys": [{"kid": "one"}]}'),
        (500, ""),
        (302, ""),
    ],
)
async def test_an_issuer_that_answers_nonsense_is_an_outage_that_passes(status: int, text: str) -> None:
    issuer, clock = Issuer(), Clock()
    issuer.status, issuer.text = status, text
    async with keys_of(issuer, clock) as keys:
        for _ in range(3):
            with pytest.raises(OverloadedError, match="cannot be fetched at present") as caught:
                await keys.find("one", "RS256")
            assert 0 < caught.value.retry_after <= PAUSE
        assert issuer.fetches == 1
        issuer.status, issuer.text = 200, key_set("one")
        clock.now += PAUSE
        assert await keys.find("one", "RS256") is not None


async def test_an_unresponsive_issuer_delays_requests_only_briefly() -> None:
    issuer = Issuer()
    issuer.gate = anyio.Event()
    async with keys_of(issuer, Clock(), patience=0.1) as keys:
        with anyio.fail_after(10), pytest.raises(OverloadedError):
            await keys.find("one", "RS256")
        issuer.gate.set()


async def test_known_keys_are_used_while_the_issuer_is_away_but_not_for_ever() -> None:
    issuer, clock = Issuer(), Clock()
    async with keys_of(issuer, clock) as keys:
        assert await keys.find("one", "RS256") is not None
        issuer.status = 503
        clock.now += FRESH + 1
        assert await keys.find("one", "RS256") is not None
        clock.now += MAX_AGE
        with pytest.raises(OverloadedError):
            await keys.find("one", "RS256")


async def test_new_keys_are_found_and_invented_ones_cost_one_fetch() -> None:
    issuer, clock = Issuer(), Clock()
    async with keys_of(issuer, clock) as keys:
        assert await keys.find("one", "RS256") is not None
        clock.now += PAUSE
        issuer.text = key_set("one", "two")
        assert await keys.find("two", "RS256") is not None
        before = issuer.fetches
        clock.now += PAUSE
        for number in range(50):
            assert await keys.find(f"invented {number}", "RS256") is None
        assert issuer.fetches == before + 1

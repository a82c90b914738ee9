"""Bearer tokens: every token is accepted or refused, and disabled checks are reported at startup."""

import json
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from support.agents import nothing
from support.live_server import serving
from support.rpc import Rpc
from support.upstream import Head, ScriptedUpstream
from tailrace.server import JwtSettings, Settings, create_app
from tailrace.server.auth.authentication import Credentials
from tailrace.server.auth.bearer import JwtBearer
from tailrace.server.cli.doctor import findings
from tailrace.server.runtime.auth_error import AuthError

RSA_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
JWKS = json.dumps({"keys": [{**RSAAlgorithm.to_jwk(KEY.public_key(), as_dict=True), "kid": "one"}]}).encode()
CALL = b'{"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}'
PATHS = ("/", "/tasks", "/v1/tasks", "/v1/models")


@pytest.fixture
async def keys_url() -> AsyncIterator[str]:
    async with ScriptedUpstream([Head(headers={"content-type": "application/json"}), JWKS]) as issuer:
        yield issuer.base_url + "/jwks.json"


async def statuses(keys_url: str, token: str) -> list[int]:
    """Return the status of a request with the token on each binding."""
    settings = Settings(caller_jwt=JwtSettings(jwks_url=keys_url), store="sqlite://")
    found: list[int] = []
    async with serving(create_app(settings, handler=nothing)) as url, Rpc(url) as rpc:
        headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
        for path in PATHS:
            method = "POST" if path == "/" else "GET"
            async with rpc.http.request(
                method, url + path, data=CALL if path == "/" else None, headers=headers
            ) as page:
                await page.read()
                found.append(page.status)
    return found


def signed(**claims: Any) -> str:
    given = {"sub": "alice", "iss": "me", "exp": time.time() + 60, **claims}
    payload = json.dumps(given).encode()  # `jwt.encode` refuses an issuer that is not a string
    return jwt.PyJWS().encode(payload, KEY, algorithm="RS256", headers={"kid": "one"})


@pytest.mark.parametrize(
    "claims",
    [
        {"sub": "\ud800"},
        {"sub": "a\x00b"},
        {"sub": "a\nb"},
        {"sub": "\u202ea"},
        {"sub": "a" * 2000},
        {"iss": "\udfff"},
        {"iss": "a|b"},
        {"iss": ["me"]},
        {"iss": {"a": 1}},
    ],
    ids=repr,
)
async def test_a_subject_or_issuer_that_is_no_name_is_refused(keys_url: str, claims: dict[str, Any]) -> None:
    assert await statuses(keys_url, signed(**claims)) == [401] * len(PATHS)


async def test_any_printable_subject_is_let_in(keys_url: str) -> None:
    assert await statuses(keys_url, signed(sub="auth0|Zoë 日本")) == [200] * len(PATHS)


def jwk(**members: Any) -> dict[str, Any]:
    return {**RSAAlgorithm.to_jwk(KEY.public_key(), as_dict=True), "kid": "one", **members}


async def accepted(algorithms: Iterable[str], *keys: dict[str, Any]) -> list[str]:
    """Return the algorithms whose tokens are accepted from an issuer with these keys."""
    body = json.dumps({"keys": [jwk(kid="another"), *keys]}).encode()
    found: list[str] = []
    async with ScriptedUpstream([Head(headers={"content-type": "application/json"}), body]) as issuer:
        authenticator = JwtBearer(issuer.base_url)
        for algorithm in algorithms:
            claims = {"sub": "alice", "exp": time.time() + 60}
            signed = jwt.encode(claims, KEY, algorithm=algorithm, headers={"kid": "one"})
            with suppress(AuthError):
                await authenticator.authenticate(Credentials({"authorization": f"Bearer {signed}"}, {}))
                found.append(algorithm)
    return found


@pytest.mark.parametrize("declared", RSA_ALGORITHMS)
async def test_a_key_verifies_the_algorithm_that_it_declares_alone(declared: str) -> None:
    assert await accepted(RSA_ALGORITHMS, jwk(alg=declared)) == [declared]


async def test_a_key_that_declares_no_algorithm_verifies_those_of_its_type() -> None:
    assert await accepted(RSA_ALGORITHMS, jwk()) == list(RSA_ALGORITHMS)


async def test_keys_with_one_id_are_distinguished_by_their_algorithm() -> None:
    assert await accepted(RSA_ALGORITHMS, jwk(alg="PS512"), jwk(alg="RS256")) == ["RS256", "PS512"]


@pytest.mark.parametrize(
    "members",
    [
        {"alg": "RSA-OAEP"},
        {"alg": "HS256"},
        {"alg": "none"},
        {"alg": "ES256"},
        {"alg": ""},
        {"alg": ["RS256"]},
        {"use": "enc"},
        {"key_ops": ["encrypt"]},
        {"key_ops": "verify"},
        {"kty": "oct", "k": "AAAA"},
        {"kty": ["RSA"]},
    ],
    ids=repr,
)
async def test_a_key_for_another_purpose_verifies_no_token(members: dict[str, Any]) -> None:
    assert await accepted(RSA_ALGORITHMS, jwk(**members)) == []


@pytest.mark.parametrize("crit", [["\ud800"], ["a\r\nb"], ["x" * 4000], "\ud800", 5], ids=repr)
async def test_a_header_that_is_nonsense_is_refused(keys_url: str, crit: Any) -> None:
    def part(value: object) -> str:
        return urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    token = f"{part({'alg': 'RS256', 'kid': 'one', 'crit': crit})}.{part({'sub': 'a'})}.eA"
    assert await statuses(keys_url, token) == [401] * len(PATHS)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "issuer and audience"),
        ({"issuer": "me"}, "audience"),
        ({"audience": "us"}, "issuer"),
        ({"issuer": "me", "audience": "us"}, ""),
    ],
    ids=["neither", "issuer", "audience", "both"],
)
async def test_unchecked_claims_are_logged_at_startup(
    given: dict[str, Any], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(
        caller_jwt=JwtSettings(jwks_url="http://127.0.0.1:9/jwks", **given), store="sqlite://", port=0
    )
    async with serving(create_app(settings, handler=nothing)):
        pass
    warnings = [
        record.getMessage()
        for record in caplog.records
        if "is accepted, including tokens" in record.getMessage()
    ]
    found = [finding async for finding in findings(settings, ask=False) if finding.name == "tokens"]
    assert len(warnings) == len(found) == bool(named)
    for text in (*warnings, *(finding.advice for finding in found)):
        assert text.endswith(f"set its {named} too")

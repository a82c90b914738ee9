"""Authentication on every binding, and isolation of callers' tasks."""

import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from support.live_server import serving
from support.rpc import Rpc, message
from support.upstream import Head, ScriptedUpstream
from tailrace.server import JwtSettings, Settings, Turn, create_app
from tailrace.server.auth.authentication import (
    Anonymous,
    ApiKeys,
    Authenticator,
    CombinedAuthenticator,
    Credentials,
    Identity,
    LoggingAuthenticator,
)
from tailrace.server.auth.authenticator_factory import create_authenticator
from tailrace.server.auth.bearer import JwtBearer
from tailrace.server.runtime.auth_error import AuthError
from tailrace.server.runtime.caller import Caller
from tailrace.server.runtime.limits import OverloadedError
from tailrace.streaming import StatusUpdate, TaskState, Update
from tailrace.streaming.a2a.models import AgentCard, Message
from tailrace.wrappers import ConfigurationError

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
OTHER = rsa.generate_private_key(public_exponent=65537, key_size=2048)
CURVE = ec.generate_private_key(ec.SECP256R1())


def jwks() -> bytes:
    keys = [
        {**RSAAlgorithm.to_jwk(KEY.public_key(), as_dict=True), "kid": "one", "use": "sig"},
        {**ECAlgorithm.to_jwk(CURVE.public_key(), as_dict=True), "kid": "two", "use": "sig"},
    ]
    return json.dumps({"keys": keys}).encode()


def token(key: Any = KEY, *, kid: str = "one", algorithm: str = "RS256", **claims: Any) -> str:
    given = {"sub": "alice", "iss": "me", "aud": "us", "exp": time.time() + 60, "scope": "a2a read", **claims}
    kept = {name: value for name, value in given.items() if value is not None}
    return jwt.encode(kept, key, algorithm=algorithm, headers={"kid": kid})


@pytest.fixture
async def keys_url() -> AsyncIterator[str]:
    head = Head(headers={"content-type": "application/json"})
    async with ScriptedUpstream(*[[head, jwks()]] * 20) as issuer:
        yield issuer.base_url + "/jwks.json"


def bearer(value: str) -> Credentials:
    return Credentials({"authorization": f"Bearer {value}"})


# --- keys -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "credentials",
    [
        Credentials({"x-api-key": "k1"}),
        Credentials(query={"api_key": "k1"}, reads=True),
        Credentials({"cookie": "a=b; tailrace_token=k1"}, reads=True),
        Credentials({"cookie": 'prefs={"a":1}; arr[x]=1; n=José; tailrace_token="k1"'}, reads=True),
    ],
)
async def test_a_key_is_found_wherever_a_client_can_put_it(credentials: Credentials) -> None:
    assert await ApiKeys({"bob": "k2", "alice": "k1"}).authenticate(credentials) == Identity("alice")


async def test_cookies_and_query_parameters_do_not_authorize_writes() -> None:
    """A page of another site can make a browser send both."""
    for credentials in (Credentials({"cookie": "tailrace_token=k1"}), Credentials(query={"api_key": "k1"})):
        with pytest.raises(AuthError, match="is required in X-API-Key"):
            await ApiKeys({"alice": "k1"}).authenticate(credentials)


@pytest.mark.parametrize("key", ["", "k", "k11", "\ud800", "K1"])
async def test_any_other_key_is_refused_with_a_challenge(key: str) -> None:
    with pytest.raises(AuthError) as caught:
        await ApiKeys({"alice": "k1"}).authenticate(Credentials({"x-api-key": key}))
    assert caught.value.http_status == 401
    assert "X-API-Key" in caught.value.challenge
    assert "k1" not in str(caught.value)


# --- tokens -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "made", [lambda: token(), lambda: token(CURVE, kid="two", algorithm="ES256")], ids=["rsa", "ec"]
)
async def test_a_token_of_the_issuer_names_its_subject(keys_url: str, made: Callable[[], str]) -> None:
    authenticator = JwtBearer(keys_url, issuer="me", audience="us", scopes=["a2a"])
    for credentials in (bearer(made()), Credentials(query={"access_token": made()}, reads=True)):
        identity = await authenticator.authenticate(credentials)
        assert identity.user == "me|alice"
        assert identity.claims["scope"] == "a2a read"


WRONG: dict[str, Callable[[], str]] = {
    "nothing": lambda: "",
    "no token": lambda: "abc",
    "another key": lambda: token(OTHER),
    "an unknown key": lambda: token(kid="three"),
    "expired": lambda: token(exp=time.time() - 5),
    "without an end": lambda: token(exp=None),
    "without a subject": lambda: token(sub=None),
    "another issuer": lambda: token(iss="you"),
    "another audience": lambda: token(aud="them"),
    "no signature": lambda: token("", algorithm="none"),
    "a shared secret": lambda: token("secret" * 8, algorithm="HS256"),
}


@pytest.mark.parametrize("why", WRONG)
async def test_any_other_token_is_refused(keys_url: str, why: str) -> None:
    with pytest.raises(AuthError) as caught:
        await JwtBearer(keys_url, issuer="me", audience="us").authenticate(bearer(WRONG[why]()))
    assert (caught.value.http_status, caught.value.forbidden) == (401, False)
    assert caught.value.challenge.startswith("Bearer ")


async def test_a_token_that_allows_too_little_is_forbidden(keys_url: str) -> None:
    with pytest.raises(AuthError, match="does not allow write") as caught:
        await JwtBearer(keys_url, scopes=["read", "write"]).authenticate(bearer(token()))
    assert caught.value.http_status == 403


async def test_an_unreachable_issuer_admits_no_caller() -> None:
    with pytest.raises(OverloadedError, match="cannot be fetched") as caught:
        await JwtBearer("http://127.0.0.1:1/jwks.json").authenticate(bearer(token()))
    assert caught.value.retry_after > 0


async def test_any_one_of_several_ways_lets_a_caller_in(keys_url: str) -> None:
    either = CombinedAuthenticator(ApiKeys({"bob": "k2"}), JwtBearer(keys_url, scopes=["admin"]))
    assert (await either.authenticate(Credentials({"x-api-key": "k2"}))).user == "bob"
    with pytest.raises(AuthError) as unknown:
        await either.authenticate(Credentials())
    assert unknown.value.challenge.startswith("ApiKey ")
    assert ", Bearer " in unknown.value.challenge
    with pytest.raises(AuthError) as known:
        await either.authenticate(bearer(token()))
    assert known.value.forbidden
    assert set(either.schemes()) == {"apiKey", "bearer"}


# --- settings ---------------------------------------------------------------------------------------------------


async def test_settings_define_the_permitted_callers() -> None:
    assert isinstance(create_authenticator(Settings()), Anonymous)
    keys = create_authenticator(Settings.model_validate({"caller_keys": "alice:k1, bob:k:2"}))
    assert (await keys.authenticate(Credentials({"x-api-key": "k:2"}))).user == "bob"
    assert isinstance(
        create_authenticator(Settings(caller_jwt=JwtSettings(jwks_url="http://127.0.0.1:1/"))), JwtBearer
    )
    both = Settings.model_validate({"caller_keys": "a:b", "caller_jwt": {"jwks_url": "http://127.0.0.1:1/"}})
    assert isinstance(create_authenticator(both), CombinedAuthenticator)
    with pytest.raises(ConfigurationError, match="TAILRACE_CALLER_KEYS"):
        create_authenticator(Settings.model_validate({"caller_keys": "alice"}))


# --- the server -------------------------------------------------------------------------------------------------


async def ask(turn: Turn) -> AsyncIterator[Update | Message]:
    yield StatusUpdate(TaskState.INPUT_REQUIRED)


@pytest.fixture
async def rpc() -> AsyncIterator[Rpc]:
    app = create_app(
        Settings.model_validate({"store": "sqlite://", "caller_keys": "alice:k1,bob:k2"}), handler=ask
    )
    async with serving(app) as url, Rpc(url) as caller:
        yield caller


ALICE, BOB = {"x-api-key": "k1"}, {"x-api-key": "k2"}


async def test_no_binding_lets_a_stranger_in(rpc: Rpc) -> None:
    for method, path in (
        ("POST", "/"),
        ("POST", "/message:send"),
        ("POST", "/message:stream"),
        ("GET", "/tasks"),
        ("GET", "/tasks/x"),
        ("GET", "/tasks/x:subscribe"),
        ("POST", "/acme/tasks/x:cancel"),
    ):
        async with rpc.http.request(
            method, rpc.url + path, json={} if method == "POST" else None
        ) as response:
            assert response.status == 401, path
            assert response.headers["www-authenticate"].startswith("ApiKey ")
            assert (await response.json())["error"]["status"] == "UNAUTHENTICATED"
    async with rpc.http.get(rpc.url + "/healthz") as response:
        assert response.status == 200


async def test_the_card_is_public_and_declares_the_authentication(rpc: Rpc) -> None:
    path = "/.well-known/agent-card.json"
    async with rpc.http.get(rpc.url + path, headers={"A2A-Version": "1.0"}) as response:
        card = AgentCard.model_validate_json(await response.read())
    assert card.security_schemes == {
        "apiKey": {"apiKeySecurityScheme": {"location": "header", "name": "X-API-Key"}}
    }
    assert card.security_requirements == ({"schemes": {"apiKey": {"list": []}}},)
    async with rpc.http.get(rpc.url + "/.well-known/agent.json") as response:
        old = await response.json()
    assert old["securitySchemes"]["apiKey"] == {"type": "apiKey", "in": "header", "name": "X-API-Key"}
    assert old["security"] == [{"apiKey": []}]


async def test_a_client_names_its_tasks_without_regard_to_others(rpc: Rpc) -> None:
    params = {"id": "mine", "message": {"role": "user", "parts": [{"type": "text", "text": "?"}]}}
    assert (await rpc.call("tasks/send", params, ALICE))["result"]["id"] == "mine"
    canceled = (await rpc.call("tasks/cancel", {"id": "mine"}, ALICE))["result"]
    assert canceled["status"]["state"] == "canceled"
    task = (await rpc.call("tasks/send", params, BOB))["result"]
    assert (task["id"], task["status"]["state"]) == ("mine", "input-required")


async def test_a_foreign_page_cannot_cancel(rpc: Rpc) -> None:
    task = (await rpc.call("SendMessage", message("?"), ALICE))["result"]["task"]
    forged = {"cookie": "tailrace_token=k1", "origin": "https://evil.example", "content-type": "text/plain"}
    async with rpc.http.post(f"{rpc.url}/tasks/{task['id']}:cancel", headers=forged) as response:
        assert response.status == 403
    own = {"cookie": forged["cookie"]}
    async with rpc.http.post(f"{rpc.url}/tasks/{task['id']}:cancel", headers=own) as response:
        assert response.status == 401  # a cookie authorizes reads only
    async with rpc.http.get(f"{rpc.url}/tasks/{task['id']}", headers=forged) as response:
        assert response.status == 403
    async with rpc.http.get(f"{rpc.url}/tasks/{task['id']}", headers=own) as response:
        assert (await response.json())["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
    async with rpc.http.head(f"{rpc.url}/.well-known/agent-card.json") as response:
        assert response.status == 200


@pytest.mark.parametrize("pairs", [":x", "a:", "a:k,", "a:x,b:x", "nonsense"])
def test_ambiguous_caller_keys_are_refused(pairs: str) -> None:
    with pytest.raises(ConfigurationError, match="TAILRACE_CALLER_KEYS"):
        create_authenticator(Settings.model_validate({"caller_keys": pairs}))


async def test_a_caller_may_have_two_keys_while_one_takes_the_place_of_the_other() -> None:
    keys = create_authenticator(Settings.model_validate({"caller_keys": "a:k1,a:k2,b:k3"}))
    for key, user in (("k1", "a"), ("k2", "a"), ("k3", "b")):
        assert (await keys.authenticate(Credentials({"x-api-key": key}))).user == user


async def test_an_invalid_token_is_named_in_the_error(keys_url: str) -> None:
    either = CombinedAuthenticator(ApiKeys({"bob": "k2"}), JwtBearer(keys_url))
    with pytest.raises(AuthError, match="the bearer token is not valid") as caught:
        await either.authenticate(bearer(token(exp=time.time() - 5)))
    assert "ApiKey" in caught.value.challenge
    assert "Bearer" in caught.value.challenge


async def test_an_event_source_is_let_in_by_its_address(rpc: Rpc) -> None:
    task = (await rpc.call("SendMessage", message("?"), ALICE))["result"]["task"]
    canceled = await rpc.call("CancelTask", {"id": task["id"]}, ALICE)
    assert "result" in canceled
    url = f"{rpc.url}/tasks/{task['id']}:subscribe?after=0&api_key=k1"
    async with rpc.http.get(url) as response:
        assert response.status == 200
        assert b"TASK_STATE_CANCELED" in await response.read()


async def test_a_way_of_ones_own_is_a_class() -> None:
    class ByAddress(Authenticator):
        async def authenticate(self, credentials: Credentials) -> Identity:
            user = credentials.headers.get("x-forwarded-user", "")
            if not user:
                raise AuthError("go through the proxy", challenge="Proxy", forbidden=True)
            return Identity(user)

        def schemes(self) -> dict[str, Any]:
            return {}

    app = create_app(Settings(store="sqlite://"), handler=ask, authenticator=ByAddress())
    async with serving(app) as url, aiohttp.ClientSession() as http:
        async with http.get(url + "/tasks") as response:
            assert response.status == 403
        async with http.get(url + "/tasks", headers={"x-forwarded-user": "carol"}) as response:
            assert response.status == 200


async def test_a_refusal_is_logged_without_the_credentials(
    caplog: pytest.LogCaptureFixture,
) -> None:
    authenticator = LoggingAuthenticator(ApiKeys({"alice": "k1"}))
    with pytest.raises(AuthError):
        await authenticator.authenticate(Credentials({"x-api-key": "guessed-secret"}))
    [record] = caplog.records
    assert record.getMessage().startswith("refused a caller (401): ")
    assert "guessed-secret" not in record.getMessage()
    assert await authenticator.authenticate(Credentials({"x-api-key": "k1"})) == Identity("alice")
    assert len(caplog.records) == 1


def test_no_users_name_reads_like_another_users_within_a_tenant() -> None:
    callers = [Caller("u", "t"), Caller('["t", "u"]'), Caller('["t", "u"]', "t"), Caller("u"), Caller()]
    assert len({caller.owner for caller in callers}) == len(callers)

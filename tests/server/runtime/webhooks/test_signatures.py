"""Signed notifications: OpenAI's webhooks, verified by the official client, and JWTs of A2A webhooks."""

import base64
import hashlib
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import jwt
import openai
import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from openai.types.webhooks import UnwrapWebhookEvent
from pydantic import TypeAdapter, ValidationError

from support.live_server import serving
from support.openai_api import MODEL, Facade, facade_over, send_further_message
from support.rounds import answer
from support.rpc import Rpc, message
from support.upstream import Hang, ScriptedUpstream, json_answer
from support.webhook_receiver import Delivery, Receiver, accept, receiving
from tailrace.server import Settings, create_app
from tailrace.server.protocols.a2a.card_signing import CardSigner, SigningKey
from tailrace.streaming import StatusUpdate, TaskState
from tailrace.wrappers import ConfigurationError

SECRET, OLD_SECRET, OTHER_SECRET = (
    f"whsec_{base64.b64encode(bytes([each]) * 32).decode()}" for each in range(3)
)
CARD = "/.well-known/agent-card.json"
KEYS = "/.well-known/jwks.json"
WEATHER: Any = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}
KINDS: list[SigningKey] = [
    ec.generate_private_key(ec.SECP256R1()),
    rsa.generate_private_key(public_exponent=65537, key_size=2048),
    ed25519.Ed25519PrivateKey.generate(),
]


@asynccontextmanager
async def notified(*script: Any, **settings: Any) -> AsyncGenerator[tuple[Facade, Receiver]]:
    """Run a server whose operator has a webhook, and the webhook."""
    async with receiving() as receiver, ScriptedUpstream(*script) as upstream:
        hook = {"url": receiver.url, "secret": f"{SECRET},{OLD_SECRET}"}
        given: dict[str, Any] = {"openai_webhook": hook, "push_notifications": "private", **settings}
        async with facade_over(upstream, **given) as facade:
            yield facade, receiver


def unwrapped(delivery: Delivery, secret: str = SECRET) -> Any:
    """Verify a notification with the official client, and validate it strictly."""
    client = openai.OpenAI(api_key="none", webhook_secret=secret)
    event = client.webhooks.unwrap(delivery.raw, delivery.headers)
    strict: Any = TypeAdapter[Any](UnwrapWebhookEvent).validate_json(delivery.raw, strict=True)
    assert strict == event
    return event


async def test_each_end_of_a_background_response_is_notified_once() -> None:
    script = [
        answer("Hello"),
        answer("Hel", finish="length"),
        json_answer({"error": {"message": "no", "type": "invalid_request_error"}}, 400),
        answer(calls=[("c1", "get_weather", {})]),
        answer("Sunny"),
        [*answer("Wait", finish=None), Hang()],
    ]
    async with notified(*script) as (facade, receiver):
        create: Any = facade.client.responses.create
        options: dict[str, Any] = {"model": MODEL, "background": True}
        expected: dict[str, str] = {}
        for kind in ("completed", "incomplete", "failed"):
            created = await create(**options, input="Hello?")
            expected[created.id] = kind
            await receiver.until(lambda found: len(found) == len(expected))
        called = await create(**options, input="Weather?", tools=[WEATHER])
        expected[called.id] = "completed"
        await receiver.until(lambda found: len(found) == len(expected))
        result = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}
        last = await create(**options, input=[result], previous_response_id=called.id, tools=[WEATHER])
        expected[last.id] = "completed"
        await receiver.until(lambda found: len(found) == len(expected))
        held = await create(**options, input="Wait")
        expected[held.id] = "cancelled"
        await facade.client.responses.cancel(held.id)
        await receiver.until(lambda found: len(found) == len(expected))
        events = [unwrapped(delivery) for delivery in receiver.deliveries]
        assert {event.data.id: event.type for event in events} == {
            name: f"response.{kind}" for name, kind in expected.items()
        }
        for event in events:
            retrieved = await facade.client.responses.retrieve(event.data.id)
            assert event.type == f"response.{retrieved.status}"
            assert retrieved.created_at <= event.created_at
        assert len({event.id for event in events}) == len(events)
        assert [each.headers["Webhook-Id"] for each in receiver.deliveries] == [each.id for each in events]


async def test_a_cancelled_response_with_a_waiting_message_is_notified_as_cancelled() -> None:
    async with notified([*answer("Wait", finish=None), Hang()]) as (facade, receiver):
        responses: Any = facade.client.responses
        created = await responses.create(model=MODEL, background=True, input="Wait")
        async with await responses.retrieve(created.id, stream=True) as events:
            async for event in events:
                if event.type == "response.output_text.delta":
                    break
        await send_further_message(facade, created.id)
        await responses.cancel(created.id)
        [delivery] = await receiver.until(bool)
        retrieved = await responses.retrieve(created.id)
    assert (unwrapped(delivery).type, retrieved.status) == ("response.cancelled", "cancelled")


async def test_other_responses_are_not_notified() -> None:
    async with notified(*[answer("Hello")] * 4) as (facade, receiver):
        create: Any = facade.client.responses.create
        await create(model=MODEL, input="Hello?")
        await create(model=MODEL, input="Hello?", store=False)
        await facade.chat({"role": "user", "content": "Hello?"}, store=True)
        only = await create(model=MODEL, input="Hello?", background=True)
        await receiver.until(bool)
    assert [unwrapped(delivery).data.id for delivery in receiver.deliveries] == [only.id]


async def test_a_signature_of_each_secret_and_of_no_other() -> None:
    async with notified(answer("Hello")) as (facade, receiver):
        create: Any = facade.client.responses.create
        await create(model=MODEL, input="Hello?", background=True)
        [delivery] = await receiver.until(bool)
    assert unwrapped(delivery) == unwrapped(delivery, OLD_SECRET)
    with pytest.raises(openai.InvalidWebhookSignatureError):
        unwrapped(delivery, OTHER_SECRET)
    changed = delivery._replace(raw=delivery.raw.replace(b"completed", b"cancelled"))
    with pytest.raises(openai.InvalidWebhookSignatureError):
        unwrapped(changed)


async def test_the_operators_webhook_is_repeated_and_hidden_from_callers() -> None:
    gate, statuses = anyio.Event(), [503, 503]

    async def refuse_twice(delivery: Delivery) -> web.StreamResponse:
        if statuses:
            return web.Response(status=statuses.pop())
        await gate.wait()
        return await accept(delivery)

    async with notified(answer("Hello")) as (facade, receiver), Rpc(facade.url) as rpc:
        receiver.answer = refuse_twice
        create: Any = facade.client.responses.create
        created = await create(model=MODEL, input="Hello?", background=True)
        await receiver.until(lambda found: len(found) == 3)
        task_id = created.id.split("_")[1]
        listed = await rpc.result("ListTaskPushNotificationConfigs", {"taskId": task_id})
        assert listed.get("configs", []) == []
        error = await rpc.error(
            "CreateTaskPushNotificationConfig",
            {"taskId": task_id, "id": "operator:x", "url": "http://127.0.0.1:9/"},
        )
        assert "operator:" in error["message"]
        gate.set()
    first, *others = (unwrapped(delivery) for delivery in receiver.deliveries)
    assert others == [first, first]


async def test_a_deletion_stops_the_notification_of_a_running_response_and_not_of_those_that_waited() -> None:
    async with notified([*answer("Wait", finish=None), Hang()], answer("Hello")) as (facade, receiver):
        responses: Any = facade.client.responses
        running = await responses.create(model=MODEL, background=True, input="Wait")
        waiting = await responses.create(
            model=MODEL, background=True, input="Hi", previous_response_id=running.id
        )
        await responses.delete(running.id)
        await receiver.until(bool)
        last = await responses.create(model=MODEL, background=True, input="Hello?")
        await receiver.until(lambda found: len(found) == 2)
    events = [unwrapped(delivery) for delivery in receiver.deliveries]
    assert [(each.type, each.data.id) for each in events] == [
        ("response.cancelled", waiting.id),
        ("response.completed", last.id),
    ]


async def test_a_notification_is_sent_to_the_webhook_of_the_current_settings(tmp_path: Path) -> None:
    async def refuse(_: Delivery) -> web.StreamResponse:
        return web.Response(status=503)

    script, store = ScriptedUpstream(answer("Hello")), f"sqlite:///{tmp_path}/t.db"
    async with receiving() as former, receiving() as current, script as upstream:
        former.answer = refuse
        ids: list[str] = []
        attempts = 0
        for receiver, secret in ((former, OLD_SECRET), (current, SECRET)):
            settings: dict[str, Any] = {
                "openai_webhook": {"url": receiver.url, "secret": secret},
                "push_notifications": "private",
                "store": store,
            }
            async with facade_over(upstream, **settings) as facade:
                if receiver is former:
                    create: Any = facade.client.responses.create
                    ids.append((await create(model=MODEL, input="Hello?", background=True)).id)
                await receiver.until(bool)
            attempts = attempts or len(former.deliveries)
    assert len(former.deliveries) == attempts
    assert [unwrapped(delivery).data.id for delivery in current.deliveries] == ids


async def test_the_notification_of_a_server_that_stopped_follows_its_restart(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/t.db"

    async def refuse(delivery: Delivery) -> web.StreamResponse:
        return web.Response(status=503)

    async with receiving() as receiver, ScriptedUpstream(answer("Hello")) as upstream:
        receiver.answer = refuse
        settings: dict[str, Any] = {
            "openai_webhook": {"url": receiver.url, "secret": SECRET},
            "push_notifications": "private",
            "store": store,
        }
        async with facade_over(upstream, **settings) as facade:
            create: Any = facade.client.responses.create
            created = await create(model=MODEL, input="Hello?", background=True)
            await receiver.until(bool)
        receiver.deliveries.clear()
        receiver.answer = accept
        async with facade_over(upstream, **settings):
            [delivery] = await receiver.until(bool)
        assert unwrapped(delivery).data.id == created.id
        # It is delivered: a further start has nothing to deliver.
        receiver.deliveries.clear()
        async with facade_over(upstream, **settings) as facade:
            await facade.client.responses.retrieve(created.id)
        assert receiver.deliveries == []


@pytest.mark.parametrize(
    ("hook", "problem"),
    [
        ({"url": "https://hooks.example/", "secret": "whsec_short"}, "24 to 64 bytes"),
        ({"url": "https://hooks.example/", "secret": "secret"}, "whsec_"),
        ({"url": "", "secret": SECRET}, "url"),
    ],
)
def test_an_invalid_webhook_is_refused_without_its_secret(hook: dict[str, str], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem) as raised:
        Settings.model_validate({"openai_webhook": hook})
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "push", "problem"),
    [
        ("http://127.0.0.1:9/", True, "names an address that this agent does not call"),
        ("https://hooks.example/", False, "requires TAILRACE_PUSH_NOTIFICATIONS"),
    ],
)
def test_a_webhook_that_may_not_be_called_is_refused(url: str, push: bool, problem: str) -> None:
    settings = Settings.model_validate(
        {
            "store": "sqlite://",
            "openai_webhook": {"url": url, "secret": SECRET},
            "push_notifications": push,
        }
    )
    with pytest.raises(ConfigurationError, match=problem):
        create_app(settings, handler=done)


async def done(turn: object) -> AsyncGenerator[StatusUpdate]:
    yield StatusUpdate(TaskState.COMPLETED)


def pem(key: SigningKey) -> bytes:
    no_password = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, no_password)


async def _notifications(
    receiver: Receiver, signers: list[CardSigner], **hook: Any
) -> tuple[list[Delivery], dict[str, Any], dict[str, Any]]:
    """Return the notifications of a task, the card, and the keys that it names."""
    settings = Settings(store="sqlite://", push_notifications="private", public_url="https://agents.example/")
    async with serving(create_app(settings, handler=done, card_signers=signers)) as url, Rpc(url) as rpc:
        receiver.deliveries.clear()
        config = {"url": f"{receiver.url}/?secret=x", **hook}
        await rpc.result(
            "SendMessage",
            {**message("hello"), "configuration": {"taskPushNotificationConfig": config}},
        )
        await receiver.until_end()
        async with rpc.http.get(url + CARD) as response:
            card = await response.json()
        [own] = [
            each for each in card["capabilities"]["extensions"] if each["uri"].startswith("urn:tailrace")
        ]
        address: str = own["params"]["webhookKeys"]
        async with rpc.http.get(url + urlsplit(address).path) as response:
            return list(receiver.deliveries), card, await response.json()


def claims_of(delivery: Delivery, keys: dict[str, Any], receiver: Receiver) -> dict[str, Any]:
    """Verify the JWT of a notification as a receiver does."""
    scheme, token = delivery.headers["Authorization"].split()
    assert scheme == "Bearer"
    header = jwt.get_unverified_header(token)
    assert header["typ"] == "JWT"
    key = jwt.PyJWKSet.from_dict(keys)[header["kid"]]
    origin = receiver.url.removesuffix("/hook")
    required = ["iat", "exp", "jti", "taskId", "request_body_sha256"]
    claims = jwt.decode(
        token, key, algorithms=[header["alg"]], audience=origin, options={"require": required}
    )
    assert claims["request_body_sha256"] == hashlib.sha256(delivery.raw).hexdigest()
    return claims


@pytest.mark.parametrize("key", KINDS, ids=lambda key: type(key).__name__)
async def test_notifications_are_signed_by_a_key_that_the_card_names(key: SigningKey) -> None:
    async with receiving() as receiver:
        signer = CardSigner(key, "k1", jku=f"https://agents.example{KEYS}")
        deliveries, _, keys = await _notifications(receiver, [signer])
        claims = [claims_of(delivery, keys, receiver) for delivery in deliveries]
    assert [each["jti"] for each in claims] == [delivery.event for delivery in deliveries]
    assert {each["iss"] for each in claims} == {"https://agents.example/"}
    assert {each["taskId"] for each in claims} == {deliveries[0].event.partition("/")[0]}
    assert all(each["exp"] - each["iat"] == 300 for each in claims)
    # The form that the official samples verify: the body as compact JSON.
    body = json.dumps(deliveries[0].body, ensure_ascii=False, separators=(",", ":")).encode()
    assert claims[0]["request_body_sha256"] == hashlib.sha256(body).hexdigest()


async def test_the_first_of_several_keys_signs_and_all_are_published() -> None:
    old, new = CardSigner(KINDS[0], "old"), CardSigner(KINDS[2], "new")
    async with receiving() as receiver:
        published: list[dict[str, Any]] = []
        for signers, kid in (([old], "old"), ([old, new], "old"), ([new, old], "new"), ([new], "new")):
            deliveries, _, keys = await _notifications(receiver, signers)
            published.append(keys)
            token = deliveries[0].headers["Authorization"].split()[1]
            assert jwt.get_unverified_header(token)["kid"] == kid
            claims_of(deliveries[0], keys, receiver)
            if len(published) == 3:
                # A receiver that has the keys from before the change of the first key.
                claims_of(deliveries[0], published[1], receiver)


async def test_credentials_of_the_webhook_have_precedence() -> None:
    async with receiving() as receiver:
        hook = {"authentication": {"scheme": "Basic", "credentials": "b3duOm93bg=="}, "token": "T0KEN"}
        deliveries, _, _ = await _notifications(receiver, [CardSigner(KINDS[0], "k1")], **hook)
    assert {each.headers["Authorization"] for each in deliveries} == {"Basic b3duOm93bg=="}
    assert {each.headers["X-A2A-Notification-Token"] for each in deliveries} == {"T0KEN"}


async def test_a_server_without_keys_names_none(tmp_path: Path) -> None:
    settings = Settings(store="sqlite://", push_notifications="private")
    async with serving(create_app(settings, handler=done)) as url, Rpc(url) as rpc:
        async with rpc.http.get(url + CARD) as response:
            extensions = (await response.json())["capabilities"]["extensions"]
    assert not any("webhookKeys" in each.get("params", {}) for each in extensions)
    (tmp_path / "key.pem").write_bytes(pem(KINDS[0]))
    card = {"signing_keys": {"k1": f"{tmp_path}/key.pem"}}
    silent = Settings.model_validate(
        {"store": "sqlite://", "push_notifications": False, "card": card, "public_url": "https://a.example/"}
    )
    async with serving(create_app(silent, handler=done)) as url, Rpc(url) as rpc:
        async with rpc.http.get(url + CARD) as response:
            extensions = (await response.json())["capabilities"]["extensions"]
    assert not any("webhookKeys" in each.get("params", {}) for each in extensions)

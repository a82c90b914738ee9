"""Caller isolation: no route or method of any binding reveals another caller's tasks or conversations.

Alice creates one object of each kind that has an id, in front of a remote agent that repeats all it received. Then Bob
sends requests with her ids and with unknown ids, and an unauthenticated client does. The cases are in
`support.isolation_cases`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from fastapi import FastAPI
from starlette.routing import Route

from support.agents import Scripted
from support.callers import CALLER_KEYS, recalling_agent, serving_callers
from support.isolation import MARKER, Answer, Client, Ids, begin, client_of, shape_of
from support.isolation_cases import GROUPS, NOTHING_NAMED, TARGETS
from tailrace.server import Settings, create_app
from tailrace.server.protocols.a2a.card_signing import CardSigner
from tailrace.server.protocols.a2a.grpc_v0_3 import Grpc03
from tailrace.server.protocols.a2a.grpc_v1_0 import Grpc10
from tailrace.server.protocols.a2a.grpc_version import GrpcVersion
from tailrace.server.settings import ENDPOINTS
from tailrace.streaming.a2a.version_codec import Dialect

T = TypeVar("T")

EVERYTHING = {
    "endpoints": ENDPOINTS,
    "push_notifications": "private",
    "grpc_port": 0,
    "caller_keys": CALLER_KEYS,
    "coalesce": "none",
}
"""Settings that enable every address."""

UNAUTHENTICATED = {"401", "UNAUTHENTICATED"}


def test_every_route_and_method_has_an_isolation_case() -> None:
    settings = Settings.model_validate({"store": "sqlite://", **EVERYTHING})
    signer = CardSigner(rsa.generate_private_key(65537, 2048), "k")
    app = create_app(settings, handler=Scripted(), extended_card=lambda _: None, card_signers=(signer,))
    there = set(targets_of(app))
    missing = sorted(there - TARGETS - NOTHING_NAMED.keys())
    assert not missing, (
        f"no isolation case for: {missing}. Add a case to tests/support/isolation_cases.py that names another caller's "
        "task, conversation, webhook or response; or, where a request cannot name any, a line in NOTHING_NAMED that says why."
    )
    gone = sorted((TARGETS | NOTHING_NAMED.keys()) - there)
    assert not gone, f"remove the isolation cases of routes that no longer exist: {gone}"


def targets_of(app: FastAPI) -> Iterator[str]:
    """Yield the routes, the JSON-RPC methods of every dialect and the gRPC methods of every version."""
    for route in app.routes:
        assert isinstance(route, Route), f"{route} is not a Route: list the routes behind it here"
        yield from (f"{method} {route.path}" for method in (route.methods or set()) - {"HEAD"})
    for dialect in subclasses_of(Dialect):
        yield from (f"JSON-RPC {dialect.version} {name}" for name in dialect.methods)
    versions = set(subclasses_of(GrpcVersion))
    assert versions >= {Grpc03, Grpc10}
    for version in versions:
        service = version.descriptor
        yield from (f"gRPC {service.full_name}/{method.name}" for method in service.methods)


def subclasses_of(kind: type[T]) -> Iterator[type[T]]:
    for each in kind.__subclasses__():
        yield each
        yield from subclasses_of(each)


@pytest.mark.parametrize("group", GROUPS)
async def test_another_callers_ids_are_as_ids_that_nothing_has(group: str) -> None:
    problems: list[str] = []
    async with recalling_agent() as (agent, recorder, recalling):
        async with serving_callers(agent=agent, **EVERYTHING) as url, client_of(url) as client:
            tenant = "north" if "tenant" in group else ""
            alice, unknown = await begin(client, "alice", tenant), Ids.unknown(tenant)
            before = await state_of(client, alice)
            start = len(recorder.requests)
            for case in GROUPS[group]:
                where = f"{case.target}, {case.name}"
                hers = await case.ask(client, "bob", alice)
                nobodys = await case.ask(client, "bob", unknown)
                if case.names_ids and shape_of(hers, alice) != shape_of(nobodys, unknown):
                    problems.append(f"{where}: {shape_of(hers, alice)}\n<>\n{shape_of(nobodys, unknown)}")
                if MARKER in hers.text:
                    problems.append(f"{where}: reveals the message of alice: {hers.text}")
                stranger = await case.ask(client, "", alice)
                if stranger.status not in UNAUTHENTICATED:
                    problems.append(f"{where}: without a key: {stranger}")
            # The id of a tool call is content: a result uses it within the conversation it is sent to.
            secrets = [MARKER, *(each for each in alice.values if each != alice.call)]
            for request in recorder.requests[start:]:
                problems += [
                    f"the remote agent received {each!r}: {request.bytes!r}"
                    for each in secrets
                    if each.encode() in request.bytes
                ]
            after = await state_of(client, alice)
            recalling.go_on.set()
    assert before[:3] == ["TASK_STATE_COMPLETED", "TASK_STATE_INPUT_REQUIRED", "TASK_STATE_WORKING"]
    assert after == before
    assert not problems, "\n\n".join(problems)


NOT_DISTINGUISHED: Mapping[str, str] = {
    "DELETE /conversations/{contextId}": "deleting a conversation that does not exist succeeds",
    "DELETE /{tenant}/conversations/{contextId}": "as above",
    "JSON-RPC 1.0 DeleteConversation": "as above",
    "DELETE /v1/conversations/{conversation_id}": "as above",
    "DELETE /ai-sdk/{chat_id}/stream": "stopping a stream that does not exist succeeds",
    "POST /v1/completions": "has neither a conversation nor a stored object",
}
"""Routes and methods that give a caller the same response for its own id and an unknown one, with the reason."""


@pytest.mark.parametrize("group", GROUPS)
async def test_the_callers_own_ids_are_not_as_ids_that_nothing_has(group: str) -> None:
    """The control: a case that reaches nothing even as its owner would not find a leak."""
    distinguished: dict[str, bool] = {}
    async with recalling_agent() as (agent, _, recalling):
        async with serving_callers(agent=agent, **EVERYTHING) as url, client_of(url) as client:
            tenant = "north" if "tenant" in group else ""
            alice, unknown = await begin(client, "alice", tenant), Ids.unknown(tenant)
            recalling.go_on.set()
            for case in sorted(GROUPS[group], key=lambda case: destruction(case.target)):
                hers = await case.ask(client, "alice", alice)
                nobodys = await case.ask(client, "alice", unknown)
                differs = shape_of(hers, alice) != shape_of(nobodys, unknown)
                distinguished[case.target] = distinguished.get(case.target, False) or differs
    insensitive = {target for target, differs in distinguished.items() if not differs}
    assert insensitive == NOT_DISTINGUISHED.keys() & distinguished.keys()


def destruction(target: str) -> int:
    """Return how much of the caller's objects a request removes: the requests that remove more are sent last."""
    method = target.lower()
    if "delete" not in method:
        return 0
    if "config" in method or "item" in method:
        return 1
    return 3 if "conversation" in method else 2


async def test_what_names_nothing_shows_nothing_of_another_caller() -> None:
    async with recalling_agent() as (agent, _, recalling):
        async with serving_callers(agent=agent, **EVERYTHING) as url, client_of(url) as client:
            alice = await begin(client, "alice")
            for target in NOTHING_NAMED:
                method, _, path = target.partition(" ")
                if method == "GET":
                    at = path.replace("{tenant}", "north").replace("{model:path}", "tailrace")
                    answer = await client.http("bob", method, at)
                    assert not leaks_in(answer, [MARKER, *alice.values]), target
            recalling.go_on.set()


def leaks_in(answer: Answer, words: Iterable[str]) -> list[str]:
    return [word for word in words if word in answer.text]


async def state_of(client: Client, ids: Ids) -> list[str]:
    """Return the states of a caller's tasks, and its webhooks."""
    prefix = f"/{ids.tenant}" if ids.tenant else ""
    tasks = [
        json.loads((await client.http("alice", "GET", f"{prefix}/tasks/{each}?historyLength=0")).body)
        for each in (ids.task, ids.waiting, ids.running)
    ]
    configs = f"{prefix}/tasks/{ids.waiting}/pushNotificationConfigs"
    webhooks = (await client.http("alice", "GET", configs)).body
    assert (ids.config in webhooks, MARKER in webhooks) == (True, True)
    return [*(task["status"]["state"] for task in tasks), webhooks]

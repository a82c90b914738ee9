"""Every request that names a task, a conversation, a webhook or a response, by its route or method.

A new route or method needs a case here, or an entry in `NOTHING_NAMED` with the reason.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any
from uuid import uuid4

from a2a.compat.v0_3 import a2a_v0_3_pb2
from a2a.types import a2a_pb2

from support.isolation import TEXT, Answer, Case, Client, Fields, Ids

Build = Callable[[Ids], Fields]

WEBHOOK = {"url": "http://127.0.0.1:9/"}

NOTHING_NAMED: Mapping[str, str] = {
    "GET /": "the playground, the same for all callers",
    "GET /tailrace-chat.js": "a static file",
    "GET /tailrace-client.js": "a static file",
    "GET /tailrace-highlight.js": "a static file",
    "GET /tailrace-math.js": "a static file",
    "GET /embed.html": "a static file",
    "GET /openapi.json": "describes the routes",
    "GET /.well-known/agent-card.json": "the card, the same for all callers",
    "GET /.well-known/agent.json": "the card, the same for all callers",
    "GET /.well-known/jwks.json": "the public keys that sign the card",
    "GET /healthz": "the server's health",
    "GET /readyz": "the server's health",
    "GET /metrics": "metrics without callers",
    "GET /usage": "its names are of callers and models; tests/server/http/test_usage_endpoint.py has its cases",
    "GET /v1/models": "the names of the agent",
    "POST /v1/conversations": "begins a conversation with a new id",
    "POST /v1/embeddings": "sent on to a provider without a task; nothing is stored",
    "GET /v1/models/{model:path}": "a name of the agent",
    "GET /extendedAgentCard": "the caller's own card",
    "GET /{tenant}/extendedAgentCard": "the caller's own card",
    "GET /v1/card": "the caller's own card",
    "GET /agent/authenticatedExtendedCard": "the caller's own card",
    "JSON-RPC 1.0 GetExtendedAgentCard": "the caller's own card",
    "JSON-RPC 0.3 agent/getAuthenticatedExtendedCard": "the caller's own card",
    "gRPC lf.a2a.v1.A2AService/GetExtendedAgentCard": "the caller's own card",
    "gRPC a2a.v1.A2AService/GetAgentCard": "the caller's own card",
    "POST /": "its methods are listed one by one",
}
"""Routes and methods with requests that cannot name an object of a caller, and the reasons."""


# --- HTTP+JSON ------------------------------------------------------------------------------------------------------


def _http(
    target: str,
    name: str,
    body: Build | None = None,
    *,
    query: str = "",
    headers: Build | None = None,
    **path: str,
) -> Case:
    """A case of an HTTP route.

    Args:
        target: The method and the path, with fields in braces.
        name: The named object.
        body: The JSON body.
        query: The query, with names of ids in braces.
        headers: Further headers.
        path: The names of the ids for the fields of the path.
    """
    method, _, template = target.partition(" ")

    async def ask(client: Client, caller: str, ids: Ids) -> Answer:
        given = {field: getattr(ids, which) for field, which in path.items()}
        at = template.format(tenant=ids.tenant, **given)
        at += query.format(**{each: getattr(ids, each) for each in ("context", "task")}) if query else ""
        return await client.http(caller, method, at, body and body(ids), headers and headers(ids))

    return Case(target, name, ask)


def _message(**fields: Any) -> Fields:
    return {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": TEXT}], **fields}


SENDS: Mapping[str, Build] = {
    "an input-required task": lambda ids: {"message": _message(taskId=ids.waiting)},
    "a working task": lambda ids: {"message": _message(taskId=ids.running)},
    "a completed task": lambda ids: {"message": _message(taskId=ids.task)},
    "a conversation": lambda ids: {"message": _message(contextId=ids.context)},
    "a task and its conversation": lambda ids: {
        "message": _message(taskId=ids.waiting, contextId=ids.context)
    },
    "a referenced task": lambda ids: {"message": _message(referenceTaskIds=[ids.task])},
    "an idempotency key": lambda ids: {
        "message": _message(),
        "metadata": {"urn:tailrace:ext:stream:v1": {"idempotencyKey": ids.key}},
    },
}
"""The ids in a message, in the JSON of A2A 1.0."""


def _v1_0(prefix: str) -> Iterable[Case]:
    # First, because later requests create conversations with these ids.
    conversations = f"{prefix}/conversations"
    yield replace(_http(f"GET {conversations}", "nothing"), names_ids=False)
    yield _http(f"GET {conversations}", "a conversation", query="?relatedTo={context}")
    one = f"{conversations}/{{contextId}}"
    yield _http(f"PATCH {one}", "a conversation", lambda _: {"title": TEXT}, contextId="context")
    for path in (f"POST {prefix}/message:send", f"POST {prefix}/message:stream"):
        for name, body in SENDS.items():
            yield _http(path, name, body)
        yield _http(
            path,
            "an idempotency key in the header",
            lambda _: {"message": _message()},
            headers=lambda ids: {"idempotency-key": ids.key},
        )
    yield replace(_http(f"GET {prefix}/tasks", "nothing"), names_ids=False)
    yield _http(f"GET {prefix}/tasks", "a conversation", query="?contextId={context}&includeArtifacts=true")
    yield _http(f"GET {prefix}/conversations/{{contextId}}", "a conversation", contextId="context")
    yield from _of_tasks(prefix, config="id")
    for which in ("task", "waiting", "running", "name"):
        yield _http(f"DELETE {prefix}/tasks/{{id}}", which, id=which)
    yield _http(f"DELETE {one}", "a conversation", contextId="context")


def _of_tasks(prefix: str, *, config: str, body: Build | None = None) -> Iterable[Case]:
    """The routes of one task; ``config`` is the field of the path that names a webhook."""
    tasks = f"{prefix}/tasks"
    configs = f"{tasks}/{{taskId}}/pushNotificationConfigs"
    for which in ("task", "waiting", "running", "name"):
        yield _http(f"GET {tasks}/{{id}}", which, id=which)
        yield _http(f"POST {tasks}/{{id}}:cancel", which, id=which)
        yield _http(f"POST {tasks}/{{id}}:subscribe", which, id=which)
        yield _http(f"GET {tasks}/{{id}}:subscribe", which, id=which)
        yield _http(f"GET {tasks}/{{id}}:subscribe", f"{which}, after an event", query="?after=1", id=which)
    webhook: Build = body or (lambda ids: {**WEBHOOK, "id": ids.config})
    yield _http(f"POST {configs}", "a webhook", webhook, taskId="waiting")
    yield _http(f"GET {configs}", "its webhooks", taskId="waiting")
    for method in ("GET", "DELETE"):
        named: dict[str, Any] = {"taskId": "waiting", config: "config"}
        yield _http(f"{method} {configs}/{{{config}}}", "a webhook", **named)


def _v0_3() -> Iterable[Case]:
    for path in ("POST /v1/message:send", "POST /v1/message:stream"):
        for name in (
            "an input-required task",
            "a working task",
            "a conversation",
            "a task and its conversation",
        ):
            yield _http(path, name, lambda ids, name=name: _proto_message(SENDS[name](ids)))
    yield _http("GET /v1/tasks", "a conversation", query="?contextId={context}")
    yield from _of_tasks(
        "/v1",
        config="configId",
        body=lambda ids: {"configId": ids.config, "config": {"pushNotificationConfig": WEBHOOK}},
    )


def _proto_message(params: Fields) -> Fields:
    """A message in the proto of 0.3."""
    message = dict(params["message"])
    message["content"] = message.pop("parts")
    return {"message": message, "configuration": {"blocking": True}}


# --- JSON-RPC -------------------------------------------------------------------------------------------------------


def _rpc(version: str, method: str, name: str, params: Build) -> Case:
    async def ask(client: Client, caller: str, ids: Ids) -> Answer:
        return await client.rpc(caller, version, method, params(ids))

    return Case(f"JSON-RPC {version} {method}", name, ask)


def _task_params(which: str) -> Build:
    return lambda ids: {"id": getattr(ids, which)}


def _in_tenant(params: Build) -> Build:
    return lambda ids: {**params(ids), "tenant": "north"}


def _rpc_1_0() -> Iterable[Case]:
    # First, because later requests create conversations with these ids.
    yield replace(_rpc("1.0", "ListConversations", "nothing", lambda _: {}), names_ids=False)
    yield _rpc("1.0", "ListConversations", "a conversation", lambda ids: {"relatedTo": ids.context})
    yield _rpc(
        "1.0", "RenameConversation", "a conversation", lambda ids: {"contextId": ids.context, "title": TEXT}
    )
    for method in ("SendMessage", "SendStreamingMessage"):
        for name, params in SENDS.items():
            yield _rpc("1.0", method, name, params)
            yield _rpc("1.0", method, f"{name}, in a tenant", _in_tenant(params))
    for method in ("GetTask", "CancelTask", "SubscribeToTask"):
        for which in ("task", "waiting", "running", "name"):
            yield _rpc("1.0", method, which, _task_params(which))
            yield _rpc("1.0", method, f"{which}, in a tenant", _in_tenant(_task_params(which)))
    yield _rpc("1.0", "ListTasks", "a conversation", lambda ids: {"contextId": ids.context})
    everything = _rpc("1.0", "ListTasks", "nothing", lambda _: {"includeArtifacts": True})
    yield replace(everything, names_ids=False)
    yield _rpc("1.0", "GetConversation", "a conversation", lambda ids: {"contextId": ids.context})
    for which in ("task", "waiting", "running", "name"):
        yield _rpc("1.0", "DeleteTask", which, _task_params(which))
        yield _rpc("1.0", "DeleteTask", f"{which}, in a tenant", _in_tenant(_task_params(which)))
    yield _rpc("1.0", "DeleteConversation", "a conversation", lambda ids: {"contextId": ids.context})
    for method, params in CONFIGS.items():
        yield _rpc("1.0", method, "a webhook", params)


CONFIGS: Mapping[str, Build] = {
    "CreateTaskPushNotificationConfig": lambda ids: {**WEBHOOK, "taskId": ids.waiting, "id": ids.config},
    "GetTaskPushNotificationConfig": lambda ids: {"taskId": ids.waiting, "id": ids.config},
    "ListTaskPushNotificationConfigs": lambda ids: {"taskId": ids.waiting},
    "DeleteTaskPushNotificationConfig": lambda ids: {"taskId": ids.waiting, "id": ids.config},
}


def _old_message(discriminator: str, **fields: Any) -> Fields:
    part = {discriminator: "text", "text": TEXT}
    return {"messageId": str(uuid4()), "role": "user", "parts": [part], **fields}


def _sent_0_3(**fields: Any) -> Fields:
    message = _old_message("kind", kind="message", **fields)
    return {"message": message, "configuration": {"blocking": True}}


def _rpc_0_3() -> Iterable[Case]:
    for method in ("message/send", "message/stream"):
        for which in ("task", "waiting", "running"):
            yield _rpc("0.3", method, which, lambda ids, which=which: _sent_0_3(taskId=getattr(ids, which)))
        yield _rpc("0.3", method, "a conversation", lambda ids: _sent_0_3(contextId=ids.context))
    for method in ("tasks/get", "tasks/cancel", "tasks/resubscribe"):
        for which in ("task", "waiting", "running", "name"):
            yield _rpc("0.3", method, which, _task_params(which))
    configs = "tasks/pushNotificationConfig"
    yield _rpc(
        "0.3",
        f"{configs}/set",
        "a webhook",
        lambda ids: {"taskId": ids.waiting, "pushNotificationConfig": {**WEBHOOK, "id": ids.config}},
    )
    yield _rpc("0.3", f"{configs}/list", "its webhooks", _task_params("waiting"))
    for method in ("get", "delete"):
        yield _rpc(
            "0.3",
            f"{configs}/{method}",
            "a webhook",
            lambda ids: {"id": ids.waiting, "pushNotificationConfigId": ids.config},
        )
    yield _rpc("0.3", f"{configs}/get", "its only webhook", _task_params("waiting"))


def _rpc_0_1() -> Iterable[Case]:
    # Before the cases that create tasks with these names.
    for method in ("tasks/get", "tasks/cancel", "tasks/resubscribe", "tasks/pushNotification/get"):
        yield _rpc("0.1", method, "name", _task_params("name"))
        yield _rpc("0.1", method, "a response", _task_params("response"))
        yield _rpc("0.1", method, "a conversation", _task_params("context"))
    yield _rpc(
        "0.1",
        "tasks/pushNotification/set",
        "a task",
        lambda ids: {"id": ids.config, "pushNotificationConfig": WEBHOOK},
    )
    yield _rpc(
        "0.1",
        "tasks/pushNotification/set",
        "name",
        lambda ids: {"id": ids.name, "pushNotificationConfig": WEBHOOK},
    )
    for method in ("tasks/send", "tasks/sendSubscribe"):
        # In this version, callers choose the ids of tasks.
        for which in ("task", "waiting", "running", "name"):
            yield _rpc(
                "0.1",
                method,
                which,
                lambda ids, which=which: {"id": getattr(ids, which), "message": _old_message("type")},
            )
        yield _rpc(
            "0.1",
            method,
            "a conversation",
            lambda ids: {
                "id": f"mine-{uuid4().hex}",
                "sessionId": ids.context,
                "message": _old_message("type"),
            },
        )


# --- gRPC -----------------------------------------------------------------------------------------------------------


def _grpc(service: Any, method: str, name: str, request: Build, headers: Build | None = None) -> Case:
    descriptor = service.methods_by_name[method]

    async def ask(client: Client, caller: str, ids: Ids) -> Answer:
        return await client.grpc(caller, descriptor, request(ids), **(headers(ids) if headers else {}))

    return Case(f"gRPC {service.full_name}/{method}", name, ask)


def _grpc_1_0() -> Iterable[Case]:
    service = a2a_pb2.DESCRIPTOR.services_by_name["A2AService"]
    for method in ("SendMessage", "SendStreamingMessage"):
        for name, request in SENDS.items():
            yield _grpc(service, method, name, request)
        yield _grpc(
            service,
            method,
            "an idempotency key in the metadata",
            lambda _: {"message": _message()},
            lambda ids: {"idempotency-key": ids.key},
        )
    for method in ("GetTask", "CancelTask", "SubscribeToTask"):
        for which in ("task", "waiting", "running", "name"):
            yield _grpc(service, method, which, _task_params(which))
            yield _grpc(service, method, f"{which}, in a tenant", _in_tenant(_task_params(which)))
    yield _grpc(service, "ListTasks", "a conversation", lambda ids: {"contextId": ids.context})
    for method, request in CONFIGS.items():
        yield _grpc(service, method, "a webhook", request)


def _grpc_0_3() -> Iterable[Case]:
    service = a2a_v0_3_pb2.DESCRIPTOR.services_by_name["A2AService"]
    for method in ("SendMessage", "SendStreamingMessage"):
        for name in (
            "an input-required task",
            "a working task",
            "a conversation",
            "a task and its conversation",
        ):
            yield _grpc(service, method, name, lambda ids, name=name: _proto_message(SENDS[name](ids)))
    for method in ("GetTask", "CancelTask", "TaskSubscription"):
        for which in ("task", "waiting", "running", "name"):
            yield _grpc(
                service, method, which, lambda ids, which=which: {"name": f"tasks/{getattr(ids, which)}"}
            )
    configs = "pushNotificationConfigs"
    yield _grpc(
        service,
        "CreateTaskPushNotificationConfig",
        "a webhook",
        lambda ids: {
            "parent": f"tasks/{ids.waiting}",
            "configId": ids.config,
            "config": {"pushNotificationConfig": WEBHOOK},
        },
    )
    yield _grpc(
        service,
        "ListTaskPushNotificationConfig",
        "its webhooks",
        lambda ids: {"parent": f"tasks/{ids.waiting}"},
    )
    for method in ("GetTaskPushNotificationConfig", "DeleteTaskPushNotificationConfig"):
        yield _grpc(
            service,
            method,
            "a webhook",
            lambda ids: {"name": f"tasks/{ids.waiting}/{configs}/{ids.config}"},
        )


# --- the OpenAI-compatible API, AI SDK and AG-UI --------------------------------------------------------------------

CHAT, RESPONSES = "POST /v1/chat/completions", "POST /v1/responses"
COMPLETIONS = "POST /v1/completions"


def _openai() -> Iterable[Case]:
    yield from _conversations()  # first: later requests create conversations with these ids
    chat_body: Fields = {"model": "", "messages": [{"role": "user", "content": TEXT}]}
    responses_body: Fields = {"model": "", "input": TEXT}
    for target, body in ((CHAT, chat_body), (RESPONSES, responses_body)):
        for stream in (False, True):
            suffix = ", streamed" if stream else ""
            begun = {**body, "stream": stream}
            yield _http(
                target,
                f"a conversation in the header{suffix}",
                lambda _, begun=begun: begun,
                headers=lambda ids: {"X-Conversation-Id": ids.context},
            )
            for member in ("conversation_id", "context_id"):
                yield _http(
                    target,
                    f"metadata.{member}{suffix}",
                    lambda ids, begun=begun, member=member: {**begun, "metadata": {member: ids.context}},
                )
            yield _http(target, f"user{suffix}", lambda ids, begun=begun: {**begun, "user": ids.context})
    prompt: Fields = {"model": "", "prompt": TEXT}
    for stream in (False, True):
        for target, body in ((CHAT, {**chat_body, "n": 2}), (COMPLETIONS, prompt)):
            begun = {**body, "stream": stream}
            suffix = ", streamed" if stream else ""
            yield _http(
                target,
                f"a conversation and an idempotency key of two choices{suffix}",
                lambda _, begun=begun: begun,
                headers=lambda ids: {"X-Conversation-Id": ids.context, "idempotency-key": ids.key},
            )
    yield _http(CHAT, "a tool call", lambda ids: {"model": "", "messages": _answered_call(ids.call)})
    yield _http(
        CHAT,
        "a tool call of a conversation",
        lambda ids: {"model": "", "messages": _answered_call(ids.call), "user": ids.context},
    )
    for which in ("response", "task", "waiting"):
        yield _http(
            RESPONSES,
            f"the previous response by {which}",
            lambda ids, which=which: {
                **responses_body,
                "previous_response_id": _response(getattr(ids, which)),
            },
        )
    for which in ("response", "task", "waiting", "running"):
        yield from _stored(which)
    yield _http(RESPONSES, "a conversation", lambda ids: {**responses_body, "conversation": ids.context})
    yield _http(
        RESPONSES, "a conversation's id", lambda ids: {**responses_body, "conversation": {"id": ids.context}}
    )
    yield _http(
        RESPONSES,
        "a tool call",
        lambda ids: {
            "model": "",
            "input": [
                {"role": "user", "content": TEXT},
                {"type": "function_call", "call_id": ids.call, "name": "look", "arguments": "{}"},
                {"type": "function_call_output", "call_id": ids.call, "output": TEXT},
            ],
        },
    )


def _stored(which: str) -> Iterable[Case]:
    """The routes of stored responses and completions. ``which`` selects the id."""

    def case(target: str, query: str = "", body: Fields | None = None) -> Case:
        method, _, template = target.partition(" ")
        is_chat = "chat" in template

        async def ask(client: Client, caller: str, ids: Ids) -> Answer:
            given = ids.completion if is_chat and which == "response" else getattr(ids, which)
            prefix = "chatcmpl-{}-1" if is_chat else "resp_{}_1"
            name = given if given.startswith(("resp_", "chatcmpl-")) else prefix.format(given)
            path = f"{template}{query}".replace("{response_id}", name).replace("{completion_id}", name)
            return await client.http(caller, method, path, body)

        return Case(target, f"{which}{query}", ask)

    one, completion = "/v1/responses/{response_id}", "/v1/chat/completions/{completion_id}"
    yield case(f"GET {one}")
    yield case(f"GET {one}", "?stream=true")
    yield case(f"GET {one}", "?stream=true&starting_after=1")
    yield case(f"POST {one}/cancel")
    yield case(f"GET {one}/input_items")
    yield case("GET /v1/chat/completions", "?after={completion_id}")
    yield case(f"GET {completion}")
    yield case(f"POST {completion}", body={"metadata": {"a": TEXT}})
    yield case(f"GET {completion}/messages")
    yield case(f"DELETE {one}")
    yield case(f"DELETE {completion}")


def _conversations() -> Iterable[Case]:
    one = "/v1/conversations/{conversation_id}"
    item = {"type": "message", "role": "user", "content": TEXT}
    routes: tuple[tuple[str, str, Fields | None], ...] = (
        ("GET", one, None),
        ("POST", one, {"metadata": {"a": TEXT}}),
        ("POST", f"{one}/items", {"items": [item]}),
        ("GET", f"{one}/items", None),
        ("GET", f"{one}/items/{{item_id}}", None),
        ("DELETE", f"{one}/items/{{item_id}}", None),
        ("DELETE", one, None),
    )
    for method, path, body in routes:
        named = {"conversation_id": "context", **({"item_id": "item"} if "item_id" in path else {})}
        build: Build | None = None if body is None else lambda _, body=body: body
        yield _http(f"{method} {path}", "a conversation", build, query="", headers=None, **named)


def _response(given: str) -> str:
    return given if given.startswith("resp_") else f"resp_{given}_1"


def _answered_call(call_id: str) -> list[Fields]:
    function = {"name": "look", "arguments": "{}"}
    return [
        {"role": "user", "content": TEXT},
        {"role": "assistant", "tool_calls": [{"id": call_id, "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": call_id, "content": TEXT},
    ]


def _chats() -> Iterable[Case]:
    message = {"id": "u", "role": "user", "parts": [{"type": "text", "text": TEXT}]}
    yield _http("POST /ai-sdk", "a chat", lambda ids: {"id": ids.context, "messages": [message]})
    yield _http(
        "POST /ai-sdk", "a chat, and the last message", lambda ids: {"id": ids.context, "message": message}
    )
    yield _http(
        "POST /ai-sdk",
        "an idempotency key",
        lambda _: {"id": f"mine-{uuid4().hex}", "message": message},
        headers=lambda ids: {"idempotency-key": ids.key},
    )
    for method in ("GET", "DELETE"):
        yield _http(f"{method} /ai-sdk/{{chat_id}}/stream", "a chat", chat_id="context")
    yield _http("GET /ai-sdk/{chat_id}/messages", "a chat", chat_id="context")
    spoken = {"id": "u", "role": "user", "content": TEXT}
    yield _http(
        "POST /ag-ui",
        "a thread",
        lambda ids: {"threadId": ids.context, "runId": "run", "messages": [spoken]},
    )
    yield _http(
        "POST /ag-ui",
        "a thread to join",
        lambda ids: {"threadId": f"{ids.context}", "runId": "run", "messages": []},
    )


def _ordered(cases: Iterable[Case]) -> tuple[Case, ...]:
    """Return the cases in order.

    Requests that only read come first, and again later.
    """
    listed = tuple(cases)
    return (*(case for case in listed if _reads(case.target)), *listed)


def _reads(target: str) -> bool:
    method = target.rpartition("/" if target.startswith("gRPC") else " ")[2]
    if ":subscribe" in target:
        return False  # the stream of a task that waits for input does not end
    return (
        target.startswith("GET ") or method.startswith(("Get", "List")) or method.endswith(("/get", "/list"))
    )


GROUPS: Mapping[str, tuple[Case, ...]] = {
    "HTTP+JSON 1.0": _ordered(_v1_0("")),
    "HTTP+JSON 1.0 in a tenant": _ordered(_v1_0("/{tenant}")),
    "HTTP+JSON 0.3": _ordered(_v0_3()),
    "JSON-RPC 1.0": _ordered(_rpc_1_0()),
    "JSON-RPC 0.3": _ordered(_rpc_0_3()),
    "JSON-RPC 0.1": _ordered(_rpc_0_1()),
    "gRPC 1.0": _ordered(_grpc_1_0()),
    "gRPC 0.3": _ordered(_grpc_0_3()),
    "OpenAI": _ordered(_openai()),
    "AI SDK and AG-UI": _ordered(_chats()),
}
"""The cases by binding."""

TARGETS = frozenset(case.target for cases in GROUPS.values() for case in cases)
"""The routes and methods with a case."""

"""Several agents in one server: each with its provider, its callers and its tasks; and a reload of the configuration."""

import json
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import openai
import pytest

from support.rounds import answer
from support.rpc import message
from support.several_agents import KEYS, PROVIDERS, SeveralAgents, headers_of, serving_agents, steps_of
from support.ui_streams import RUN
from support.upstream import Received, ScriptedUpstream, Wait
from tailrace.server.auth.agent_authentication import parse_callers
from tailrace.server.runtime.caller import Caller
from tailrace.streaming.a2a.stream_extension import EXTENSION_URI

USER = {"role": "user", "content": "Hi"}
UI = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}
BLOCKING = {"configuration": {"blocking": True}}
OLD = {"message": {"messageId": "m1", "role": "user", "kind": "message", "parts": [{"kind": "text", "text": "Hi"}]}}  # fmt: skip


def rpc(method: str, params: dict[str, Any]) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


REQUESTS: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "JSON-RPC 1.0": ("/", rpc("SendMessage", message("Hi")), {}),
    "JSON-RPC 0.3": ("/", rpc("message/send", {**OLD, **BLOCKING}), {"A2A-Version": "0.3"}),
    "HTTP+JSON 1.0": ("/message:send", message("Hi"), {}),
    "HTTP+JSON 0.3": ("/v1/message:send", {"message": {**message("Hi")["message"], "content": [{"text": "Hi"}]}, **BLOCKING}, {"A2A-Version": "0.3"}),
    "Chat Completions": ("/v1/chat/completions", {"model": "", "messages": [USER]}, {}),
    "Responses": ("/v1/responses", {"model": "", "input": "Hi"}, {}),
    "AI SDK": ("/ai-sdk", {"id": "c1", "messages": [UI], "trigger": "submit-message"}, {}),
    "AG-UI": ("/ag-ui", {**RUN, "messages": [{"id": "u1", **USER}]}, {}),
}  # fmt: skip


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[SeveralAgents]:
    async with serving_agents(tmp_path) as found:
        yield found


@pytest.mark.parametrize("wire", REQUESTS)
@pytest.mark.parametrize("name", PROVIDERS)
async def test_each_agent_answers_with_its_own_model_on_every_protocol(
    server: SeveralAgents, name: str, wire: str
) -> None:
    path, body, headers = REQUESTS[wire]
    status, text = await server.post(f"/agents/{name}{path}", body, **headers)
    assert status == 200, text
    assert "Hello" in text or ("Hel" in text and '"lo"' in text)
    [request] = server.upstreams[name].requests
    assert f"You are {name}." in json.dumps(request.json)
    assert all(not upstream.requests for other, upstream in server.upstreams.items() if other != name)


async def test_the_models_of_the_openai_api_at_the_root_are_the_agents(server: SeveralAgents) -> None:
    client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEYS["ann"], max_retries=0)
    assert [model.id async for model in client.models.list()] == list(PROVIDERS)
    for name in PROVIDERS:
        completion = await client.chat.completions.create(model=name, messages=[USER])  # type: ignore[list-item]
        assert completion.choices[0].message.content == "Hello"
        assert len(server.upstreams[name].requests) == 1
        response = await client.responses.create(model=name, input="Hi")
        assert (response.model, response.output_text) == (name, "Hello")
    with pytest.raises(openai.NotFoundError, match="'m-code' does not exist"):
        await client.chat.completions.create(model="m-code", messages=[USER])  # type: ignore[list-item]
    with pytest.raises(openai.BadRequestError, match="model: required"):
        await client.responses.create(input="Hi")
    with pytest.raises(openai.BadRequestError, match="no models for embeddings"):
        await client.embeddings.create(model="code", input="Hi")
    await client.close()


async def test_a_conversation_can_change_the_agent(server: SeveralAgents) -> None:
    client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEYS["ann"], max_retries=0)
    first = await client.responses.create(model="support", input="Who are you?")
    second = await client.responses.create(model="code", input="And you?", previous_response_id=first.id)
    await client.close()
    assert second.model == "code"
    sent = json.dumps(server.upstreams["code"].requests[0].json)
    assert "Who are you?" in sent
    assert "Hello" in sent


@pytest.mark.parametrize("wire", REQUESTS)
async def test_only_the_callers_of_an_agent_may_use_it(server: SeveralAgents, wire: str) -> None:
    path, body, headers = REQUESTS[wire]
    assert (await server.post(f"/agents/code{path}", body, "", **headers))[0] == 401
    status, text = await server.post(f"/agents/code{path}", body, "bob", **headers)
    assert status == 403
    assert "you may not use the agent 'code'" in text
    assert (await server.post(f"/agents/support{path}", body, "bob", **headers))[0] == 200
    assert not server.upstreams["code"].requests


async def test_an_agent_that_a_caller_may_not_use_is_no_model_for_the_caller(server: SeveralAgents) -> None:
    client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEYS["bob"], max_retries=0)
    assert [model.id async for model in client.models.list()] == ["support", "legal"]
    for call in (
        client.chat.completions.create(model="code", messages=[USER]),  # type: ignore[list-item]
        client.responses.create(model="code", input="Hi"),
        client.models.retrieve("code"),
    ):
        with pytest.raises(openai.NotFoundError, match="'code' does not exist or you do not have access"):
            await call
    await client.close()


async def test_the_tasks_of_a_caller_at_one_agent_are_unknown_at_the_others(server: SeveralAgents) -> None:
    _, text = await server.post("/agents/support/", rpc("SendMessage", message("Hi")))
    task = json.loads(text)["result"]["task"]
    for place in ("/agents/code/", "/agents/legal/"):
        for method, params in (
            ("GetTask", {"id": task["id"]}),
            ("CancelTask", {"id": task["id"]}),
            ("SubscribeToTask", {"id": task["id"]}),
            ("SendMessage", message("And?", taskId=task["id"])),
        ):
            _, text = await server.post(place, rpc(method, params))
            assert "TASK_NOT_FOUND" in text, (place, method)
        _, text = await server.post(place, rpc("ListTasks", {}))
        assert json.loads(text)["result"]["tasks"] == []
    _, text = await server.post(
        "/agents/code/", rpc("SendMessage", message("Hi", contextId=task["contextId"]))
    )
    assert "You are support" not in json.dumps(server.upstreams["code"].requests[0].json)
    assert len(server.upstreams["code"].requests[0].json["messages"]) == 1


async def test_a_caller_cannot_choose_the_agent_by_metadata(server: SeveralAgents) -> None:
    params = message("Hi", metadata={EXTENSION_URI: {"agent": "code"}})
    _, text = await server.post("/agents/support/", rpc("SendMessage", params), "bob")
    assert "Hello" in text
    assert not server.upstreams["code"].requests
    params["metadata"] = {EXTENSION_URI: {"agent": "code"}}
    params["message"]["messageId"] = "another"
    _, text = await server.post("/agents/support/", rpc("SendMessage", params), "bob")
    assert "Hello" in text
    assert not server.upstreams["code"].requests


async def test_the_ledger_has_the_usage_of_each_agent(server: SeveralAgents) -> None:
    for name in PROVIDERS:
        await server.post(f"/agents/{name}/", rpc("SendMessage", message("Hi")))
    await server.post("/v1/chat/completions", {"model": "code", "messages": [USER]})
    _, text = await server.get("/usage?group_by=agent,model")
    found = {(each["agent"], each["model"]): each["attempts"] for each in json.loads(text)["groups"]}
    assert found == {("support", "m-support"): 1, ("code", "m-code"): 2, ("legal", "m-legal"): 1}


async def test_there_is_a_catalog_and_a_page_with_the_agents(server: SeveralAgents) -> None:
    status, text = await server.get("/.well-known/api-catalog", "")
    assert status == 200
    [catalog, *agents] = json.loads(text)["linkset"]
    assert [each["title"] for each in catalog["item"]] == list(PROVIDERS)
    for name, agent in zip(PROVIDERS, agents, strict=True):
        assert agent["anchor"] == f"{server.url}/agents/{name}/"
        path = agent["service-desc"][0]["href"].removeprefix(server.url)
        status, text = await server.get(path, "")
        card = json.loads(text)
        assert (status, card["name"]) == (200, name)
        assert {each["url"] for each in card["supportedInterfaces"]} <= {
            f"{server.url}/agents/{name}/",
            f"{server.url}/agents/{name}",
        }
        assert card["securitySchemes"]
        status, text = await server.get(f"/agents/{name}/", "")
        assert (status, "<tailrace-chat" in text) == (200, True)
    status, text = await server.get("/", "")
    assert status == 200
    assert 'href="agents/support/"' in text
    status, text = await server.get("/agents/nobody/v1/models")
    assert (status, json.loads(text)["error"]["message"]) == (
        404,
        "There is no resource at /agents/nobody/v1/models",
    )
    assert (await server.get("/agents/support", ""))[0] == 200  # with a redirect
    status, text = await server.post("/agents/support/tasks", {})
    assert (status, "/agents/support/tasks does not support POST; supported: GET" in text) == (405, True)


async def test_a_call_of_one_agent_requires_an_approval_and_that_of_another_runs(tmp_path: Path) -> None:
    tools = "tools = 'support.approval_tools:buy'"
    expensive = f"{tools}\napprovals = 'support.approval_tools:is_expensive'"
    script = [answer(calls=[("c1", "buy", {"amount": 500})]), answer("Done.")]
    async with serving_agents(tmp_path, {"support": script}, support=expensive, legal=tools) as server:
        path = "/agents/support/"
        _, text = await server.post(path, rpc("SendMessage", message("Buy it")))
        task = json.loads(text)["result"]["task"]
        assert task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        [part] = [
            part for part in task["status"]["message"]["parts"] if "approval_requests" in part.get("data", {})
        ]
        [request] = part["data"]["approval_requests"]
        decision = {"approval_responses": [{"digest": request["digest"], "decision": "approve"}]}
        params = message("", taskId=task["id"], parts=[{"data": decision}])
        _, text = await server.post("/agents/legal/", rpc("SendMessage", params))
        assert "TASK_NOT_FOUND" in text
        _, text = await server.post(path, rpc("SendMessage", params))
        assert "bought for 500" in text
        assert "Done." in text


async def test_a_decision_belongs_to_the_agent_of_the_call(tmp_path: Path) -> None:
    tools = "tools = 'support.approval_tools:buy'\napprovals = 'support.approval_tools:is_expensive'"
    script = [answer(calls=[("c1", "buy", {"amount": 500})]), answer("Done.")]
    scripts: dict[str, Sequence[Any]] = {"support": script}
    async with serving_agents(
        tmp_path, scripts, support=f"{tools}\napprovers = 'role:boss'", legal=tools
    ) as server:
        _, text = await server.post("/v1/responses", {"model": "support", "input": "Buy it"})
        response = json.loads(text)
        [request] = [item for item in response["output"] if item["type"] == "mcp_approval_request"]
        decision = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
        for model, problem in (
            ("legal", "the task belongs to the agent 'support'"),
            ("support", "may not approve"),
        ):
            body = {"model": model, "input": [decision], "previous_response_id": response["id"]}
            status, text = await server.post("/v1/responses", body)
            assert (status, problem in text) == (400, True), text
        assert not server.upstreams["legal"].requests


async def test_input_filters_of_an_agent_apply_to_messages_for_others_in_its_conversation(
    tmp_path: Path,
) -> None:
    (tmp_path / "words.txt").write_text("falcon\n")
    filters = f"input_filters = '{tmp_path}/words.txt'"
    async with serving_agents(tmp_path, legal=filters) as server:
        _, text = await server.post("/v1/responses", {"model": "support", "input": "The falcon"})
        response = json.loads(text)
        body = {"model": "legal", "input": "And?", "previous_response_id": response["id"]}
        status, text = await server.post("/v1/responses", body)
        assert (status, "a filter of the server blocks the message" in text) == (400, True), text
        assistant = {"role": "assistant", "content": "About the falcon"}
        chat = {"messages": [USER, assistant, USER]}
        headers = {"X-Conversation-Id": "k"}
        assert (await server.post("/v1/chat/completions", {"model": "support", **chat}, **headers))[0] == 200
        status, text = await server.post(
            "/v1/chat/completions",
            {
                "model": "legal",
                "messages": [*chat["messages"], {"role": "assistant", "content": "Hello"}, USER],
            },
            **headers,
        )
        assert (status, "a filter of the server blocks the message" in text) == (400, True), text
        assert not server.upstreams["legal"].requests
        status, _ = await server.post("/v1/responses", {**body, "model": "code"})
        assert status == 200


async def test_the_media_types_of_an_agent_apply_at_the_root(tmp_path: Path) -> None:
    async with serving_agents(tmp_path, legal="card = { input_modes = ['text/plain'] }") as server:
        image = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
        content = [{"type": "message", "role": "user", "content": [image]}]
        status, text = await server.post("/v1/responses", {"model": "legal", "input": content})
        assert (status, "accepted: text/plain" in text) == (400, True)
        status, _ = await server.post("/v1/responses", {"model": "support", "input": content})
        assert status == 200


async def test_a_caller_who_may_not_use_an_agent_is_logged(
    server: SeveralAgents, caplog: pytest.LogCaptureFixture
) -> None:
    await server.post("/agents/code/", rpc("SendMessage", message("Hi")), "bob")
    assert "refused a caller (403): you may not use the agent 'code'" in caplog.text


@pytest.mark.parametrize(
    ("callers", "claims", "is_permitted"),
    [
        (["subject:zoe"], {"sub": "zoe"}, True),
        (["subject:zoe"], {"sub": "ann"}, False),
        (["subject:https://idp.example|zoe"], {"sub": "https://idp.example|zoe"}, True),
        (["zoe"], {"sub": "zoe"}, False),  # the name of a caller with an API key
        (["scope:use"], {"sub": "ann", "scope": "read use"}, True),
        (["role:admin"], {"sub": "ann", "roles": ["administrator"]}, False),
        ([], {"sub": "ann"}, False),
        (None, {"sub": "ann"}, True),
    ],
)
def test_callers_with_bearer_tokens_are_named_by_subject_scope_or_role(
    callers: list[str] | None, claims: dict[str, Any], is_permitted: bool
) -> None:
    permits = parse_callers(callers)
    assert permits(Caller("zoe" if callers == ["zoe"] else "user", claims=claims)) is is_permitted


# --- reload ---------------------------------------------------------------------------------------------------------


async def test_a_reload_adds_changes_and_removes_agents(server: SeveralAgents) -> None:
    server.write("support", "legal", support='callers = ["ann"]\ncard = { description = "New." }')
    assert await server.reload() == "the configuration is reloaded; agents: support, legal"
    assert (await server.post("/agents/code/", rpc("SendMessage", message("Hi"))))[0] == 404
    assert (await server.post("/agents/support/", rpc("SendMessage", message("Hi")), "bob"))[0] == 403
    card = "/agents/support/.well-known/agent-card.json"
    assert '"description":"New."' in (await server.get(card))[1]
    assert json.loads((await server.get("/v1/models"))[1])["data"][1]["id"] == "legal"
    server.write(*PROVIDERS)
    await server.reload()
    assert (await server.post("/agents/code/", rpc("SendMessage", message("Hi"))))[0] == 200


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[agents.support]\nmodel = ", "Invalid value (at "),
        (
            "[agents.support]\nmodel = 'nobody:m'\n[callers.ann]\nkeys = ['a']",
            "[agents.support]: unknown provider 'nobody'",
        ),
        (
            "[agents.support]\nmodel = 'openai:m'\napi_key = 'k'",
            "adding the first table [callers.NAME], or removing the last one, requires a restart",
        ),
        (
            "[agents.x]\nmodel = 'openai:m'\napi_key = 'k'\ntools = 'mcp:/nonexistent'\n[callers.ann]\nkeys = ['a']",
            "[agents.x]: the MCP server /nonexistent cannot be started",
        ),
    ],
)
async def test_a_file_that_cannot_be_used_changes_nothing(
    server: SeveralAgents, text: str, problem: str
) -> None:
    server.path.write_text(text)
    line = await server.reload()
    assert line.startswith("the configuration is not reloaded: ")
    assert problem in line
    for name in PROVIDERS:
        assert (await server.post(f"/agents/{name}/", rpc("SendMessage", message("Hi"))))[0] == 200


async def test_a_reload_replaces_the_keys_of_callers(server: SeveralAgents) -> None:
    server.write(*PROVIDERS, keys={"ann": KEYS["ann"], "bob": "another"})
    await server.reload()
    body = rpc("SendMessage", message("Hi"))
    assert (await server.post("/agents/support/", body, "bob"))[0] == 401
    assert (await server.post("/agents/support/", body, "ann"))[0] == 200
    assert (await server.post("/agents/support/", body, "", **{"X-API-Key": "another"}))[0] == 200


async def test_changes_of_the_server_require_a_restart(
    server: SeveralAgents, caplog: pytest.LogCaptureFixture
) -> None:
    server.write(*PROVIDERS, server="port = 1\nbounds = { max_tasks = 3 }")
    await server.reload()
    assert "changes of [server] require a restart: port, bounds" in caplog.text


async def test_a_running_turn_ends_with_the_agent_with_which_it_began(tmp_path: Path) -> None:
    go_on = anyio.Event()
    [head, begin, rest] = steps_of("openai")
    async with serving_agents(tmp_path, {"support": [[head, begin, Wait(go_on), rest]]}) as server:
        body = rpc("SendStreamingMessage", message("Hi"))
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"{server.url}/agents/support/", json=body, headers=headers_of("ann")) as response,
        ):
            seen = b""
            while b"Hel" not in seen:
                seen += await response.content.readany()
            async with ScriptedUpstream(answer("from the new one")) as other:
                server.upstreams["support"] = other
                server.write("support")
                await server.reload()
                _, text = await server.post("/agents/support/", rpc("SendMessage", message("Hi")))
                assert "from the new one" in text
                server.write("code")
                await server.reload()
                go_on.set()
                seen += await response.content.read()
    assert b'"lo"' in seen
    assert b"TASK_STATE_COMPLETED" in seen


async def test_a_message_that_waits_for_a_removed_agent_fails_with_the_reason(tmp_path: Path) -> None:
    go_on = anyio.Event()
    [head, begin, rest] = steps_of("openai")
    requests: list[Received] = []

    async with serving_agents(tmp_path, {"support": [[head, begin, Wait(go_on), rest]]}) as server:
        _, text = await server.post(
            "/v1/responses", {"model": "support", "input": "Hi", "background": True, "store": True}
        )
        first = json.loads(text)
        _, text = await server.post(
            "/v1/responses",
            {"model": "support", "input": "And?", "background": True, "previous_response_id": first["id"]},
        )
        second = json.loads(text)
        requests.append(await server.upstreams["support"].received())
        server.write("code")
        await server.reload()
        go_on.set()
        for response, status in ((first, "completed"), (second, "failed")):
            async with (
                aiohttp.ClientSession() as http,
                http.get(
                    f"{server.url}/v1/responses/{response['id']}?stream=true", headers=headers_of("ann")
                ) as stream,
            ):
                assert f'"type":"response.{status}"' in (await stream.text()).replace(": ", ":")
        _, text = await server.get(f"/v1/responses/{second['id']}")
        assert "no agent 'support' any more" in text

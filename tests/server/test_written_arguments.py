"""Tool call arguments are stored and sent back exactly as the model wrote them, also after a change of server."""

import json
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from support.live_server import serving
from support.openai_api import WEATHER, facade_over
from support.rounds import answer
from support.rpc import Rpc
from support.upstream import ScriptedUpstream
from tailrace.server import Settings, create_app

WRITTEN = ('{"city":"é ☃ \\u00fc","n":[1e2,-0.0],"n":1.0}', '{ "city" : "ß",\n  "city":  "Z" }')


def as_json(text: str) -> bytes:
    return json.dumps(text, ensure_ascii=False).encode()


async def test_the_text_survives_a_restart_of_the_server(tmp_path: Path) -> None:
    first, second = WRITTEN
    answers = [answer(calls=[("c1", "look", first)]), answer(calls=[("c2", "look", second)]), answer("Done.")]
    facts = {"tools": [{"name": "look", "description": "Look.", "parameters": {"type": "object"}}]}
    task: dict[str, Any] = {}
    async with ScriptedUpstream(*answers) as upstream:
        settings = Settings(
            store=f"sqlite:///{tmp_path / 'tasks.db'}",
            model="openai:m",
            base_url=upstream.base_url,
            api_key=SecretStr("none"),
        )
        for turn in range(3):
            message: dict[str, Any] = {
                "messageId": f"m{turn}",
                "role": "ROLE_USER",
                "parts": [{"text": "Look."}],
            }
            if turn:
                results = [{"call_id": f"c{turn}", "output": "nothing"}]
                message |= {"taskId": task["id"], "parts": [{"data": {"tool_results": results}}]}
            # Each turn runs on another server.
            async with serving(create_app(settings)) as url, Rpc(url) as rpc:
                params = {"message": message, "metadata": {"urn:tailrace:ext:stream:v1": facts}}
                task = (await rpc.result("SendMessage", params))["task"]
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert as_json(first) in upstream.requests[1].body
    assert as_json(first) in upstream.requests[2].body
    assert as_json(second) in upstream.requests[2].body


async def test_a_client_of_the_facade_has_the_text_and_sends_it_back() -> None:
    first, _ = WRITTEN
    answers = [answer(calls=[("c1", "get_weather", first)]), answer("Sunny.")]
    async with ScriptedUpstream(*answers) as upstream, facade_over(upstream) as facade:
        question = {"role": "user", "content": "Weather?"}
        completion = await facade.chat(question, tools=[WEATHER])
        reply = completion.choices[0].message.model_dump(exclude_none=True)
        assert reply["tool_calls"][0]["function"]["arguments"] == first
        result = {"role": "tool", "tool_call_id": "c1", "content": "sunny"}
        await facade.chat(question, reply, result, tools=[WEATHER])
    assert as_json(first) in upstream.requests[1].body

"""Responses whose tasks receive a further message of an A2A client while they run."""

from typing import Any

import anyio
import pytest

from support.openai_api import MODEL, Facade, facade_over
from support.response_streams import raw_client
from support.rounds import answer
from support.rpc import Rpc, message
from support.upstream import ScriptedUpstream, Step, Wait

WEATHER: Any = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
CALL = ("c1", "get_weather", {"city": "Paris"})


def _held(go_on: anyio.Event, first: str, last: str) -> list[Step]:
    """A response that waits before its last piece."""
    return [*answer(first, finish=None), Wait(go_on), *answer(last)]


async def _send_follow_up(facade: Facade, response_id: str) -> None:
    """Send an A2A message to the running task of a response."""
    task_id = response_id.removeprefix("resp_").rpartition("_")[0]
    async with Rpc(facade.url) as rpc:
        params = {**message("More?", taskId=task_id), "configuration": {"returnImmediately": True}}
        sent_to = await rpc.result("SendMessage", params)
    assert sent_to["task"]["status"]["state"] == "TASK_STATE_WORKING"


@pytest.mark.parametrize("turn", [1, 2])
async def test_a_response_is_running_and_can_be_cancelled_while_a_message_waits_for_its_task(
    turn: int,
) -> None:
    go_on = anyio.Event()
    scripts = [answer(calls=[CALL])] * (turn - 1) + [_held(go_on, "one ", "two")]
    async with ScriptedUpstream(*scripts) as upstream, facade_over(upstream) as facade:
        async with raw_client(facade.url) as raw:
            body: dict[str, Any] = {"model": MODEL, "input": "Count.", "background": True, "tools": [WEATHER]}
            created = await raw.json("POST", "/responses", body)
            earlier = []
            if turn == 2:
                earlier = [(await raw.resumed(created["id"])).response]
                result = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}
                body |= {"input": [result], "previous_response_id": created["id"]}
                created = await raw.json("POST", "/responses", body)
            async with raw.open_stream(f"/responses/{created['id']}") as frames:
                async for frame in frames:
                    if b'"delta":"one ' in frame:
                        break
            await _send_follow_up(facade, created["id"])
            with anyio.fail_after(10):
                now = await raw.json("GET", f"/responses/{created['id']}")
                assert (now["status"], now["output"][0]["content"][0]["text"]) == ("in_progress", "one ")
                assert [await raw.json("GET", f"/responses/{each['id']}") for each in earlier] == earlier
                for each in earlier:
                    assert await raw.json("POST", f"/responses/{each['id']}/cancel") == each
                cancelled = await raw.json("POST", f"/responses/{created['id']}/cancel")
                await (await upstream.received(turn - 1)).client_left.wait()
            streamed = await raw.resumed(created["id"])
    assert (cancelled["status"], cancelled) == ("cancelled", streamed.response)
    assert len(upstream.requests) == turn  # the waiting message is not processed


async def test_a_response_with_a_further_message_ends_with_its_task() -> None:
    first, second = anyio.Event(), anyio.Event()
    scripts = [_held(first, "one ", "two "), _held(second, "three ", "four")]
    async with ScriptedUpstream(*scripts) as upstream, facade_over(upstream) as facade:
        async with raw_client(facade.url) as raw:
            created = await raw.json(
                "POST", "/responses", {"model": MODEL, "input": "Count.", "background": True}
            )
            async with raw.open_stream(f"/responses/{created['id']}") as frames:
                async for frame in frames:
                    if b'"delta":"one ' in frame:
                        await _send_follow_up(facade, created["id"])
                        first.set()
                    if b"three " in frame:
                        break
            with anyio.fail_after(10):
                now = await raw.json("GET", f"/responses/{created['id']}")
            second.set()
            streamed = await raw.resumed(created["id"])
            again = await raw.json("GET", f"/responses/{created['id']}")
    assert (now["status"], again["status"], again) == ("in_progress", "completed", streamed.response)
    assert again["output"][0]["content"][0]["text"] == "one two \nthree four"

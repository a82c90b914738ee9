"""Responses whose tasks receive a further message of an A2A client while they run."""

from typing import Any

import anyio
import pytest

from support.openai_api import MODEL, facade_over, send_further_message
from support.response_streams import raw_client
from support.rounds import answer
from support.upstream import ScriptedUpstream, Step, Wait

WEATHER: Any = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
CALL = ("c1", "get_weather", {"city": "Paris"})


def _held(go_on: anyio.Event, first: str, last: str, reasoning: str = "") -> list[Step]:
    """A response that waits before its last piece."""
    return [*answer(first, finish=None, reasoning=reasoning), Wait(go_on), *answer(last)]


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
            await send_further_message(facade, created["id"])
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
                        await send_further_message(facade, created["id"])
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


def look(place: str) -> str:
    """Look at a place."""
    return f"{place} is sunny"


async def test_a_running_response_has_the_text_of_all_its_rounds() -> None:
    go_on = anyio.Event()
    round_ = answer("I look. ", calls=[("l1", "look", {"place": "Paris"})], reasoning="First.")
    scripts = [round_, _held(go_on, "It is ", "sunny.", reasoning="Then.")]
    async with ScriptedUpstream(*scripts) as upstream, facade_over(upstream, tools=[look]) as facade:
        async with raw_client(facade.url) as raw:
            body = {"model": MODEL, "input": "Weather?", "background": True}
            created = await raw.json("POST", "/responses", body)
            async with raw.open_stream(f"/responses/{created['id']}") as frames:
                async for frame in frames:
                    if b'"delta":"' in frame and b"It is " in frame:
                        break
            now = await raw.json("GET", f"/responses/{created['id']}")
            go_on.set()
            complete = (await raw.resumed(created["id"])).response
    assert (now["status"], _texts(now)) == ("in_progress", ["First.", "I look. ", "\n\nThen.", "\nIt is "])
    assert _texts(complete) == ["First.", "I look. ", "\n\nThen.", "\nIt is sunny."]


def _texts(response: dict[str, Any]) -> list[str]:
    parts = [part for item in response["output"] for part in item.get("content") or item["summary"]]
    return [part["text"] for part in parts]

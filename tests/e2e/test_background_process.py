"""Background responses over the end of the server's process: resumed with the same bytes."""

from pathlib import Path

import pytest

from support.processes import served
from support.response_streams import Frames, raw_client
from support.rounds import answer, sent
from support.upstream import Hang, Received, ScriptedUpstream, Step

pytestmark = pytest.mark.timeout(180)  # each test starts two processes

BODY = {"model": "", "input": "Count.", "background": True}


def options(upstream: ScriptedUpstream, store: Path) -> list[str]:
    address = ["--model", "openai:scripted", "--base-url", upstream.base_url]
    return [*address, "--store", f"sqlite:///{store}"]


async def test_a_stream_resumes_after_kill_9_with_the_bytes_of_the_first(tmp_path: Path) -> None:
    store = tmp_path / "t.db"
    complete = answer("All ", "there", reasoning="hmm")
    cut = answer("one ", "two ", "three", finish=None)
    async with ScriptedUpstream(complete, [*cut, Hang()]) as upstream:
        with served(tmp_path / "first", *options(upstream, store)) as server:
            await server.ready()
            async with raw_client(server.url) as client:
                before = await client.stream("/responses", BODY)
                seen = Frames()
                async with client.open_stream("/responses", BODY) as frames:
                    async for frame in frames:
                        seen.add(frame)
                        if "three" in "".join(str(event.get("delta", "")) for event in seen.events):
                            break
                    server.kill()
        # The response is continued once, without success: the provider hangs again.
        bounds = '{"read_timeout": 2}'
        with served(tmp_path / "second", *options(upstream, store), TAILRACE_BOUNDS=bounds) as server:
            await server.ready()
            async with raw_client(server.url) as client:
                response_id = seen.events[0]["response"]["id"]
                rest = await client.resumed(response_id, seen.numbers[-1])
                again = await client.resumed(response_id)
                assert (await client.resumed(before.response["id"])).frames == before.frames
                found = await client.json("GET", f"/responses/{before.response['id']}")
                assert found == before.response
                assert await client.json("GET", f"/responses/{response_id}") == rest.response
    assert again.frames == seen.frames + rest.frames
    assert again.numbers == list(range(len(again.frames)))
    [message] = again.response["output"]
    assert (again.response["status"], message["content"][0]["text"]) == ("failed", "one two three")


async def test_a_branch_of_a_running_response_begins_after_the_end_that_follows_a_crash(
    tmp_path: Path,
) -> None:
    def respond(request: Received) -> list[Step]:
        begin, *rest = answer("re ", sent(request)[-1]["content"])
        return [begin, Hang()] if len(upstream.requests) == 1 else [begin, *rest]

    async with ScriptedUpstream(respond) as upstream:
        with served(tmp_path / "first", *options(upstream, tmp_path / "t.db")) as server:
            await server.ready()
            async with raw_client(server.url) as client:
                first = await client.json("POST", "/responses", BODY)
                await upstream.received()
                body = {**BODY, "previous_response_id": first["id"]}
                made = [await client.json("POST", "/responses", {**body, "input": each}) for each in "ab"]
                server.kill()
        with served(tmp_path / "second", *options(upstream, tmp_path / "t.db")) as server:
            await server.ready()
            async with raw_client(server.url) as client:
                for each in made:
                    assert (await client.resumed(each["id"])).response["status"] == "completed"
    texts = sorted([message["content"] for message in sent(request)] for request in upstream.requests[1:])
    assert texts == [["Count."], ["Count.", "re Count.", "a"], ["Count.", "re Count.", "b"]]


async def test_a_response_is_the_same_when_its_events_are_dropped(tmp_path: Path) -> None:
    store = tmp_path / "t.db"
    async with ScriptedUpstream(answer("All ", "there", reasoning="hmm")) as upstream:
        with served(tmp_path / "first", *options(upstream, store)) as server:
            await server.ready()
            async with raw_client(server.url) as client:
                before = await client.stream("/responses", BODY)
        path = f"/responses/{before.response['id']}"
        arguments = options(upstream, store)
        with served(tmp_path / "second", *arguments, TAILRACE_RETENTION='{"events": 0.001}') as server:
            await server.ready()
            async with raw_client(server.url) as client:
                # The server drops the events when it starts.
                while (await client.status(path, stream="true", starting_after="1000")) == 200:
                    pass
                expired = await client.json("GET", path, stream="true", starting_after="1000")
                assert await client.json("GET", path) == before.response
                assert (await client.resumed(before.response["id"])).response == before.response
    assert expired["error"]["code"] == "stream_expired"

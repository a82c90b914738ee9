"""A response of the Responses API on several nodes: the same bytes from each."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest

from support.live_server import serving
from support.nodes import Nodes
from support.postgres import PostgresServer
from support.repeated_requests import HoldingFilter, streams_of_both
from support.response_streams import RawClient, raw_client
from support.rounds import answer, sent
from support.upstream import Received, ScriptedUpstream, Step, Wait
from support.valkey import ValkeyServer
from tailrace.server import Settings, create_app
from tailrace.server.runtime.stream_filter import StreamFilter

BODY = {"model": "", "input": "Count.", "background": True}


@pytest.fixture
async def nodes(postgres: PostgresServer, valkey: ValkeyServer) -> Nodes:
    return await Nodes.empty(postgres, valkey)


@asynccontextmanager
async def clients_of(
    nodes: Nodes,
    upstream: ScriptedUpstream,
    *,
    headers: Mapping[str, str] | None = None,
    input_filters: Sequence[StreamFilter] = (),
) -> AsyncGenerator[Sequence[RawClient]]:
    given = {"store": nodes.store, "events": nodes.events, "model": "openai:scripted", "coalesce": "none"}
    settings = Settings.model_validate({**given, "base_url": upstream.base_url, "api_key": "none"})
    async with AsyncExitStack() as stack:
        clients: list[RawClient] = []
        for _ in range(2):
            app = create_app(settings, input_filters=input_filters)
            url = await stack.enter_async_context(serving(app))
            clients.append(await stack.enter_async_context(raw_client(url, headers)))
        yield clients


async def test_each_node_streams_cancels_and_deletes_a_response(nodes: Nodes) -> None:
    go_on = anyio.Event()
    body = {"model": "", "input": "Count.", "background": True}
    steps = answer("one ", "two ", "three", reasoning="hmm")
    script = [*steps[:3], Wait(go_on), *steps[3:]]
    async with ScriptedUpstream(script, [*steps[:3], Wait(anyio.Event())]) as upstream:
        async with clients_of(nodes, upstream) as (first, second):
            created = await first.json("POST", "/responses", body)
            path = f"/responses/{created['id']}"
            async with second.open_stream(path) as frames:
                seen = [frame async for frame in _until(frames, b'"delta":"one "')]
                assert (await second.json("GET", path))["status"] == "in_progress"
                go_on.set()
                seen += [frame async for frame in frames]
            ended = await first.resumed(created["id"])
            assert seen == ended.frames
            assert (await second.resumed(created["id"], 7)).frames == ended.frames[8:]
            assert await first.json("GET", path) == await second.json("GET", path) == ended.response

            running = await first.json("POST", "/responses", body)
            await upstream.received(1)
            cancelled = await second.json("POST", f"/responses/{running['id']}/cancel")
            assert cancelled["status"] == "cancelled"
            for each in (created, running):
                assert (await second.json("DELETE", f"/responses/{each['id']}"))["deleted"]
                for client in (first, second):
                    assert "error" in await client.json("GET", f"/responses/{each['id']}")


async def test_concurrent_responses_at_several_nodes_after_one_response_do_not_see_each_other(
    nodes: Nodes,
) -> None:
    go_on = anyio.Event()

    def respond(request: Received) -> list[Step]:
        begin, *rest = answer("re ", sent(request)[-1]["content"])
        return [begin, Wait(go_on), *rest] if len(upstream.requests) == 1 else [begin, *rest]

    async with ScriptedUpstream(respond) as upstream, clients_of(nodes, upstream) as clients:
        running = await clients[0].json("POST", "/responses", {**BODY, "input": "start"})
        await upstream.received()
        body = {**BODY, "previous_response_id": running["id"]}
        made = [
            (await clients[at % 2].json("POST", "/responses", {**body, "input": each}))["id"]
            for at, each in enumerate("abc")
        ]
        go_on.set()
        await clients[1].resumed(running["id"])

        async def create(client: RawClient, text: str) -> None:
            made.append((await client.json("POST", "/responses", {**body, "input": text}))["id"])

        async with anyio.create_task_group() as group:
            for at, each in enumerate("defg"):
                group.start_soon(create, clients[at % 2], each)
        for each in made:
            assert (await clients[0].resumed(each)).response["status"] == "completed"
    texts = sorted([message["content"] for message in sent(request)] for request in upstream.requests)
    assert texts == [["start"], *(["start", "re start", each] for each in "abcdefg")]


async def test_a_deletion_cancels_what_waits_at_other_nodes_first(nodes: Nodes) -> None:
    steps = answer("one ", "two")
    async with ScriptedUpstream([*steps[:2], Wait(anyio.Event())]) as upstream:
        async with clients_of(nodes, upstream) as (first, second):
            running = await first.json("POST", "/responses", BODY)
            await upstream.received()
            body = {**BODY, "previous_response_id": running["id"]}
            made = [await client.json("POST", "/responses", body) for client in (second, first, second)]
            assert (await second.json("DELETE", f"/responses/{running['id']}"))["deleted"]
            for each in made:
                assert (await first.json("GET", f"/responses/{each['id']}"))["status"] == "cancelled"
    assert len(upstream.requests) == 1


async def test_each_node_has_the_stored_completions_and_conversations(nodes: Nodes) -> None:
    chat = {"model": "", "messages": [{"role": "user", "content": "Hi"}], "store": True}
    item = {"type": "message", "role": "user", "content": "Hi"}
    async with ScriptedUpstream(answer("Hello"), answer("Bye")) as upstream:
        async with clients_of(nodes, upstream) as (first, second):
            ids = [
                (await each.json("POST", "/chat/completions", {**chat, "metadata": {"a": "1"}}))["id"]
                for each in (first, second)
            ]
            path = f"/chat/completions/{ids[0]}"
            assert (await second.json("POST", path, {"metadata": {"a": "2"}}))["metadata"] == {"a": "2"}
            for client in (first, second):
                listed = await client.json("GET", "/chat/completions")
                assert [each["id"] for each in listed["data"]] == ids
                listed = await client.json("GET", "/chat/completions", **{"metadata[a]": "2"})
                assert [each["id"] for each in listed["data"]] == ids[:1]
            made = await first.json("POST", "/conversations", {"items": [item], "metadata": {"a": "1"}})
            one = f"/conversations/{made['id']}"
            assert (await second.json("POST", one, {"metadata": {"a": "2"}}))["metadata"] == {"a": "2"}
            assert (await first.json("GET", one))["metadata"] == {"a": "2"}
            assert len((await second.json("GET", f"{one}/items"))["data"]) == 1
            assert (await second.json("DELETE", one))["deleted"]
            assert "error" in await first.json("GET", one)


@pytest.mark.parametrize("conversation", ["", "c1"])
async def test_concurrent_requests_with_one_key_at_two_nodes_get_the_same_bytes(
    nodes: Nodes, conversation: str
) -> None:
    hold, go_on = HoldingFilter("Count."), anyio.Event()
    headers = {"Idempotency-Key": "k"}
    if conversation:
        headers["X-Conversation-Id"] = conversation
    steps = answer("one ", "two ", "three")
    async with (
        ScriptedUpstream([*steps[:3], Wait(go_on), *steps[3:]]) as upstream,
        clients_of(nodes, upstream, headers=headers, input_filters=[hold]) as (first, second),
    ):
        one, two = await streams_of_both(
            first,
            second,
            "/responses",
            BODY,
            hold=hold,
            go_on=go_on,
            piece=b'two "',
            is_locked=True,
        )
    assert one == two
    assert len(upstream.requests) == 1


async def _until(frames: AsyncIterator[bytes], last: bytes) -> AsyncIterator[bytes]:
    async for frame in frames:
        yield frame
        if last in frame:
            return

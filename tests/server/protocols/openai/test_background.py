"""Stored and background responses: creation, retrieval, resumption, cancellation and deletion with OpenAI's own client."""

from pathlib import Path
from typing import Any

import anyio
import openai
import pytest

from support.agents import Scripted
from support.openai_api import MODEL, facade_over
from support.response_streams import Frames, RawClient, raw_client
from support.rounds import answer, sent
from support.rpc import Rpc
from support.upstream import ScriptedUpstream, SetEvent, Step, Wait, openai_chunk, sse
from tailrace.server import Bounds

WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
PARIS = ("c1", "get_weather", {"city": "Paris"})


def look(place: str) -> str:
    """Look at a place."""
    return f"{place} is sunny"


def held(go_on: anyio.Event, *pieces: str, reached: anyio.Event | None = None) -> list[Step]:
    """A response that waits before its last piece."""
    *first, last = answer(*pieces[:-1], finish=None), pieces[-1]
    signal = [SetEvent(reached)] if reached is not None else []
    rest = [openai_chunk({"content": last}), openai_chunk({}, finish="stop")]
    return [*first[0], *signal, Wait(go_on), *map(sse, rest), sse("[DONE]")]


@pytest.mark.parametrize("background", [None, False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("store", [None, True, False])
async def test_every_combination_of_background_stream_and_store(
    background: bool | None, stream: bool, store: bool | None
) -> None:
    options: dict[str, Any] = {"model": MODEL, "input": "Hello?", "background": background, "store": store}
    async with ScriptedUpstream(answer("Hel", "lo!", reasoning="hmm")) as upstream:
        async with facade_over(upstream) as facade, raw_client(facade.url) as raw:
            if background and store is False:
                with pytest.raises(openai.BadRequestError) as raised:
                    await facade.client.responses.create(**options, stream=stream)
                assert raised.value.param == "background"
                return
            if stream:
                created = (await raw.stream("/responses", options)).events[0]["response"]
            else:
                created = await raw.json("POST", "/responses", options)
            assert created["background"] is bool(background)
            if store is False:
                with pytest.raises(openai.NotFoundError):
                    await facade.client.responses.retrieve(created["id"])
                return
            last = (await raw.resumed(created["id"])).response
            assert await raw.json("GET", f"/responses/{created['id']}") == last
            assert (last["status"], last["store"]) == ("completed", True)
            assert (await facade.client.responses.retrieve(created["id"])).output_text == "Hello!"


async def test_a_background_response_is_retrieved_while_it_runs() -> None:
    go_on, reached = anyio.Event(), anyio.Event()
    script = held(go_on, "one ", "two ", "three", reached=reached)
    async with ScriptedUpstream(script) as upstream, facade_over(upstream) as facade:
        create: Any = facade.client.responses.create
        created = await create(model=MODEL, input="Count.", background=True)
        assert created.status in ("queued", "in_progress")
        await reached.wait()
        async with raw_client(facade.url) as raw:
            # A stream that has the last piece before the wait is as far as the task.
            async with raw.open_stream(f"/responses/{created.id}") as frames:
                async for frame in frames:
                    if b'"delta":"two "' in frame:
                        break
            now = await raw.json("GET", f"/responses/{created.id}")
            assert (now["status"], now["created_at"]) == ("in_progress", created.created_at)
            assert now["output"][0]["content"][0]["text"] == "one two "
            go_on.set()
            done = await raw.resumed(created.id)
        assert done.types[:3] == ["created", "queued", "in_progress"]
        assert done.response["output"][0]["content"][0]["text"] == "one two three"
        again = await facade.client.responses.retrieve(created.id)
    assert (again.status, again.output_text) == ("completed", "one two three")


async def test_a_client_that_leaves_does_not_cancel_and_resumes_with_the_same_bytes() -> None:
    go_on, reached = anyio.Event(), anyio.Event()
    script = held(go_on, "one ", "two ", "three", reached=reached)
    body = {"model": MODEL, "input": "Count.", "background": True}
    async with ScriptedUpstream(script) as upstream, facade_over(upstream) as facade:
        async with raw_client(facade.url) as raw:
            seen = Frames()
            async with raw.open_stream("/responses", body) as frames:
                async for frame in frames:
                    seen.add(frame)
                    if b'"delta":"one ' in frame:
                        break
            response_id = seen.events[0]["response"]["id"]
            assert not (await upstream.received()).client_left.is_set()
            resumed: dict[int, Frames] = {}

            async def resume(after: int) -> None:
                resumed[after] = await raw.resumed(response_id, after)

            async with anyio.create_task_group() as group:
                for number in seen.numbers:
                    group.start_soon(resume, number)
                await reached.wait()
                go_on.set()
            complete = await raw.resumed(response_id)
    assert complete.frames[: len(seen.frames)] == seen.frames
    for after, found in resumed.items():
        assert found.frames == complete.frames[after + 1 :]
    assert complete.response["status"] == "completed"


@pytest.mark.parametrize("path", ["/responses", "/chat/completions", "/completions"])
async def test_a_client_that_leaves_a_foreground_stream_cancels_if_the_setting_requires_it(path: str) -> None:
    body = {
        "/responses": {"model": MODEL, "input": "Count."},
        "/chat/completions": {"model": MODEL, "n": 2, "messages": [{"role": "user", "content": "Count."}]},
        "/completions": {"model": MODEL, "prompt": "Count."},
    }[path]
    script = held(anyio.Event(), "one ", "two")
    async with ScriptedUpstream(script) as upstream:
        async with facade_over(upstream, on_disconnect="cancel") as facade, raw_client(facade.url) as raw:
            async with raw.open_stream(path, body) as frames:
                async for frame in frames:
                    if b"one " in frame:
                        break
            async with Rpc(facade.url.removesuffix("/v1")) as rpc:
                listed = await rpc.result("ListTasks", {})
                with anyio.fail_after(10):
                    for index, task in enumerate(listed["tasks"]):
                        await (await upstream.received(index)).client_left.wait()
                        await rpc.stream("SubscribeToTask", {"id": task["id"]}, {"Last-Event-ID": "1"})
                listed = await rpc.result("ListTasks", {})
    states = [task["status"]["state"] for task in listed["tasks"]]
    assert states == ["TASK_STATE_CANCELED"] * (2 if path == "/chat/completions" else 1)


async def test_a_client_that_leaves_a_background_stream_never_cancels() -> None:
    go_on, reached = anyio.Event(), anyio.Event()
    body = {"model": MODEL, "input": "Count.", "background": True}
    async with ScriptedUpstream(held(go_on, "one ", "two", reached=reached)) as upstream:
        async with facade_over(upstream, on_disconnect="cancel") as facade, raw_client(facade.url) as raw:
            seen = Frames()
            async with raw.open_stream("/responses", body) as frames:
                async for frame in frames:
                    seen.add(frame)
                    if b"one " in frame:
                        break
            await reached.wait()
            go_on.set()
            complete = await raw.resumed(seen.events[0]["response"]["id"])
    assert complete.response["status"] == "completed"


async def _check_every_number(raw: RawClient, response_id: str, streamed: Frames) -> None:
    """Check that a resumed stream at every number has the bytes of the first one."""
    assert streamed.numbers == list(range(len(streamed.numbers)))
    for after in (None, *streamed.numbers):
        found = await raw.resumed(response_id, after)
        assert found.frames == streamed.frames[0 if after is None else after + 1 :]
    assert await raw.json("GET", f"/responses/{response_id}") == streamed.response


async def test_resumption_at_every_number_of_a_response_with_tools_and_reasoning() -> None:
    script = [
        answer("Let me ", "look. ", reasoning="Where is it?", calls=[("s1", "look", {"place": "Paris"})]),
        answer("And ", "here.\n", reasoning="Again.", calls=[("s2", "look", {"place": "Rome"})]),
        answer("Both ", "are ", "sunny. 🌞", calls=[PARIS], reasoning="Ask the client."),
        answer("Done", "."),
    ]
    body = {"model": MODEL, "input": "Weather?", "tools": [WEATHER], "background": True}
    async with ScriptedUpstream(*script) as upstream, facade_over(upstream, tools=[look]) as facade:
        async with raw_client(facade.url) as raw:
            first = await raw.stream("/responses", body)
            [call] = [item for item in first.response["output"] if item["type"] == "function_call"]
            result = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
            follow_up = {"previous_response_id": first.response["id"], "input": [result]}
            second = await raw.stream("/responses", {**body, **follow_up})
            assert first.response["id"].rpartition("_")[0] == second.response["id"].rpartition("_")[0]
            for streamed in (first, second):
                await _check_every_number(raw, streamed.response["id"], streamed)
    kinds = [item["type"] for item in first.response["output"]]
    assert kinds[-1] == "function_call"
    assert {"reasoning", "message"} <= set(kinds)
    assert second.response["output"][0]["content"][0]["text"] == "Done."
    assert second.response["usage"]["total_tokens"] == 15


async def test_the_official_client_resumes_its_stream() -> None:
    async with ScriptedUpstream(answer(*map(str, range(30)))) as upstream, facade_over(upstream) as facade:
        create: Any = facade.client.responses.create
        stream = await create(model=MODEL, input="Count.", background=True, stream=True)
        events: list[Any] = []
        async for event in stream:
            events.append(event)
            if event.sequence_number == 7:
                break
        await stream.close()
        resumed = await facade.client.responses.retrieve(
            events[0].response.id, stream=True, starting_after=events[-1].sequence_number
        )
        events += [event async for event in resumed]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response.output_text == "".join(map(str, range(30)))


async def test_a_cancelled_response_closes_the_connection_to_the_provider() -> None:
    go_on, reached = anyio.Event(), anyio.Event()
    async with ScriptedUpstream(held(go_on, "one ", "two", reached=reached)) as upstream:
        async with facade_over(upstream) as facade, raw_client(facade.url) as raw:
            created = await raw.json(
                "POST", "/responses", {"model": MODEL, "input": "Count.", "background": True}
            )
            await reached.wait()
            cancelled = await facade.client.responses.cancel(created["id"])
            await (await upstream.received()).client_left.wait()
            again = await raw.json("POST", f"/responses/{created['id']}/cancel")
            streamed = await raw.resumed(created["id"])
            await _check_every_number(raw, created["id"], streamed)
    assert (cancelled.status, cancelled.error) == ("cancelled", None)
    assert again == streamed.response
    assert (streamed.types[-1], again["status"]) == ("failed", "cancelled")


async def test_a_complete_response_is_not_cancelled() -> None:
    async with ScriptedUpstream(answer("Hello")) as upstream, facade_over(upstream) as facade:
        created = await facade.client.responses.create(model=MODEL, input="Hi")
        cancelled = await facade.client.responses.cancel(created.id)
    assert (cancelled.status, cancelled.output_text) == ("completed", "Hello")


async def test_a_deleted_response_and_its_task_are_gone(tmp_path: Path) -> None:
    store = tmp_path / "tasks.db"
    go_on, reached = anyio.Event(), anyio.Event()
    script = (answer("marigold"), held(go_on, "marigold", "two", reached=reached))
    async with ScriptedUpstream(*script) as upstream:
        async with facade_over(upstream, store=f"sqlite:///{store}") as facade, Rpc(facade.url) as rpc:
            responses: Any = facade.client.responses
            done = await responses.create(model=MODEL, input="marigold")
            running = await responses.create(model=MODEL, input="marigold", background=True)
            await reached.wait()
            for each in (done, running):
                await responses.delete(each.id)
                for call in (
                    responses.retrieve(each.id),
                    responses.retrieve(each.id, stream=True),
                    responses.cancel(each.id),
                    responses.delete(each.id),
                    responses.input_items.list(each.id),
                    responses.create(model=MODEL, input="more", previous_response_id=each.id),
                ):
                    with pytest.raises(openai.APIStatusError) as raised:
                        await call
                    assert raised.value.status_code in (400, 404)
            assert (await rpc.result("ListTasks", {}))["tasks"] == []
            await (await upstream.received(1)).client_left.wait()


async def test_the_input_items_of_a_response_are_paged() -> None:
    script = (answer("Hello.", calls=[PARIS]), answer("Sunny."))
    result: Any = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}
    async with ScriptedUpstream(*script) as upstream, facade_over(upstream) as facade:
        responses: Any = facade.client.responses
        first = await responses.create(model=MODEL, input="Weather?", tools=[WEATHER])
        second = await responses.create(
            model=MODEL, input=[result], previous_response_id=first.id, tools=[WEATHER]
        )
        of_first = await responses.input_items.list(first.id)
        pages = [
            [
                item.type
                async for item in await responses.input_items.list(second.id, order="asc", limit=limit)
            ]
            for limit in (1, 3, 100)
        ]
        newest = await responses.input_items.list(second.id, limit=1)
        with pytest.raises(openai.BadRequestError):
            await responses.input_items.list(second.id, limit=0)
        with pytest.raises(openai.BadRequestError):
            await responses.input_items.list(second.id, after="nothing")
    [item] = of_first.data
    assert (item.type, item.role, item.content[0].text) == ("message", "user", "Weather?")
    assert pages == [["message", "message", "function_call", "function_call_output"]] * 3
    assert (newest.data[0].type, newest.has_more) == ("function_call_output", True)


async def test_a_repeated_request_returns_the_same_response() -> None:
    body = {"model": MODEL, "input": "Count.", "background": True}
    go_on, reached = anyio.Event(), anyio.Event()
    script = held(go_on, "one ", "two", reached=reached)
    async with ScriptedUpstream(script) as upstream, facade_over(upstream) as facade:
        client: Any = facade.client.with_options(default_headers={"idempotency-key": "k"})
        first = await client.responses.create(**body)
        await reached.wait()
        second = await client.responses.create(**body)
        go_on.set()
        stream = await facade.client.responses.retrieve(first.id, stream=True)
        events = [event async for event in stream]
        third = await client.responses.create(**body)
    last: Any = events[-1]
    assert first.id == second.id == third.id == last.response.id
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("background", [True, False])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_repeated_request_of_an_earlier_turn_returns_its_response(
    background: bool, stream: bool
) -> None:
    script = [answer("Let me look.", calls=[PARIS]), answer("Sunny.")]
    async with ScriptedUpstream(*script) as upstream, facade_over(upstream) as facade:
        create: Any = facade.client.responses.create
        options: dict[str, Any] = {"model": MODEL, "tools": [WEATHER], "background": background}

        async def ask(key: str, **given: Any) -> Any:
            headers = {"idempotency-key": key}
            made = await create(**options, **given, stream=stream, extra_headers=headers)
            if stream:
                return [event async for event in made][-1].response
            async for _ in await facade.client.responses.retrieve(made.id, stream=True):
                pass
            return await facade.client.responses.retrieve(made.id)

        question = {"input": "Weather?"}
        first = await ask("one", **question)
        result = [{"type": "function_call_output", "call_id": "c1", "output": "sunny"}]
        follow_up = {"previous_response_id": first.id, "input": result}
        second = await ask("two", **follow_up)
        assert first.id != second.id
        assert await ask("one", **question) == first
        assert await ask("two", **follow_up) == second
        if background and not stream:
            headers = {"idempotency-key": "one"}
            repeated = await create(**options, **question, stream=False, extra_headers=headers)
            assert repeated == first
    assert len(upstream.requests) == 2


async def test_a_response_that_waits_too_long_fails_with_a_code_of_the_api() -> None:
    go_on, reached = anyio.Event(), anyio.Event()
    bounds = Bounds(max_context_wait=0.1)
    async with ScriptedUpstream(held(go_on, "a", "b", reached=reached)) as upstream:
        async with facade_over(upstream, bounds=bounds) as facade, raw_client(facade.url) as raw:
            first = await raw.json("POST", "/responses", {"model": MODEL, "input": "1", "background": True})
            await reached.wait()
            following: dict[str, Any] = {"model": MODEL, "input": "2", "previous_response_id": first["id"]}
            created = await raw.json("POST", "/responses", {**following, "background": True})
            assert created["status"] == "queued"
            failed = (await raw.resumed(created["id"])).response
            assert (failed["status"], failed["error"]["code"]) == ("failed", "rate_limit_exceeded")
            assert (
                "did not end within 0.1 s (TAILRACE_BOUNDS: max_context_wait)" in failed["error"]["message"]
            )
            assert await raw.json("GET", f"/responses/{created['id']}") == failed
            with pytest.raises(openai.RateLimitError) as raised:
                await facade.client.responses.create(**following)
            assert raised.value.code == "rate_limit_exceeded"
            assert "upstream" not in str(raised.value.body)
            assert "retry-after" in raised.value.response.headers
            go_on.set()
            assert (await raw.resumed(first["id"])).response["status"] == "completed"


async def test_unknown_ids_are_not_found() -> None:
    async with facade_over(handler=Scripted()) as facade:
        client: Any = facade.client
        response = await client.responses.create(model=facade.model, input="hi")
        task_id = response.id.split("_")[1]
        for given in (
            f"resp_{task_id}_2",
            f"resp_{task_id}_0",
            f"resp_{task_id}_01",
            f"resp_{task_id}",
            "resp_x_1",
            task_id,
            "x",
        ):
            with pytest.raises(openai.NotFoundError):
                await client.responses.retrieve(given)
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.retrieve(f"chatcmpl-{task_id}-1")
        for query in ("stream=true&starting_after=x", "starting_after=-1", "starting_after=", "stream=yes"):
            with pytest.raises(openai.BadRequestError):
                await client.get(f"/responses/{response.id}?{query}", cast_to=object)


async def test_a_direct_message_to_the_agent_is_no_response_of_the_api() -> None:
    async with facade_over(handler=Scripted()) as facade, Rpc(facade.url) as rpc:
        message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
        task = (await rpc.result("SendMessage", {"message": message}))["task"]
        with pytest.raises(openai.NotFoundError):
            await facade.client.responses.retrieve(f"resp_{task['id']}_1")


async def test_the_record_of_a_request_is_not_sent_to_the_model() -> None:
    async with ScriptedUpstream(answer("a"), answer("b")) as upstream, facade_over(upstream) as facade:
        first = await facade.client.responses.create(model=MODEL, input="x", metadata={"secret": "marigold"})
        await facade.client.responses.create(model=MODEL, input="y", previous_response_id=first.id)
        requests = [await upstream.received(at) for at in range(2)]
    assert [message["content"] for message in sent(requests[1])] == ["x", "a", "y"]
    assert all(b"marigold" not in request.body for request in requests)


async def test_a_stored_chat_completion() -> None:
    user = {"role": "user", "content": "Hello?"}
    options: dict[str, Any] = {"metadata": {"a": "b"}}
    async with (
        ScriptedUpstream(answer("Hi", "!"), answer("Bye")) as upstream,
        facade_over(upstream) as facade,
    ):
        completions: Any = facade.client.chat.completions
        stored = await completions.create(model=MODEL, messages=[user], store=True, **options)
        other = await completions.create(model=MODEL, messages=[user])
        found = await completions.retrieve(stored.id)
        messages = await completions.messages.list(stored.id)
        with pytest.raises(openai.NotFoundError):
            await completions.retrieve(other.id)
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        later = [{"role": "system", "content": "Be brief."}, user, {"role": "user", "content": parts}]
        second = await completions.create(model=MODEL, messages=later, store=True)
        listed = await completions.messages.list(second.id)
        gone = await completions.delete(stored.id)
        with pytest.raises(openai.NotFoundError):
            await completions.retrieve(stored.id)
    kept = found.model_dump()
    assert kept.pop("metadata") == {"a": "b"}
    assert kept == stored.model_dump(exclude={"metadata"})
    assert [(each.role, each.content, each.content_parts) for each in messages.data] == [
        ("user", "Hello?", None)
    ]
    assert [(each.role, each.content) for each in listed.data] == [
        ("system", "Be brief."),
        ("user", "Hello?ab"),
    ]
    assert [part.text for part in listed.data[1].content_parts][-2:] == ["a", "b"]
    assert gone.deleted


async def test_a_response_continues_one_that_waits_for_another() -> None:
    go_on = anyio.Event()
    scripts = [held(go_on, "a ", "b"), answer("c"), answer("d")]
    async with ScriptedUpstream(*scripts) as upstream, facade_over(upstream) as facade:
        responses = facade.client.responses
        first = await responses.create(model=MODEL, input="one", background=True)
        await upstream.received()
        second = await responses.create(
            model=MODEL, input="two", background=True, previous_response_id=first.id
        )
        assert second.status == "queued"
        third = await responses.create(
            model=MODEL, input="three", background=True, previous_response_id=second.id
        )
        with pytest.raises(openai.BadRequestError, match="not found"):
            await responses.create(model=MODEL, input="x", previous_response_id=f"{third.id}0")
        go_on.set()
        events = [event async for event in await responses.retrieve(third.id, stream=True)]
        assert events[-1].type == "response.completed"
        items: list[Any] = [item async for item in responses.input_items.list(third.id, order="asc")]
    given = [message["content"] for message in sent(upstream.requests[2])]
    assert given == ["one", "a b", "two", "c", "three"]
    assert [item.content[0].text for item in items] == given


async def test_a_caller_with_all_streams_open_can_get_and_cancel_responses() -> None:
    handler = Scripted()
    options: dict[str, Any] = {"model": "tailrace", "background": True}
    async with facade_over(
        handler=handler, caller_keys="alice:k1", key="k1", bounds=Bounds(max_caller_streams=1)
    ) as facade:
        ended = await facade.client.responses.create(input="Hello?", model="tailrace")
        running = await facade.client.responses.create(input="hold", **options, stream=True)
        async for event in running:
            if event.type == "response.output_text.delta":
                break
        response_id = (await facade.client.responses.retrieve(ended.id)).id
        assert response_id == ended.id
        with pytest.raises(openai.RateLimitError):
            await facade.client.responses.create(input="Hello?", model="tailrace")
        created = await _newest_id(facade.url)
        assert (await facade.client.responses.cancel(created)).status == "cancelled"
        await running.close()


async def _newest_id(url: str) -> str:
    """The id of the response of the newest task of alice."""
    async with Rpc(url) as rpc:
        body: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
        headers = {"X-API-Key": "k1", "A2A-Version": "1.0"}
        async with rpc.http.post(url, json=body, headers=headers) as response:
            return f"resp_{(await response.json())['result']['tasks'][0]['id']}_1"

"""The official clients, over each of their bindings, against one running server.

`make e2e` runs all of them; `make test` only the ones of the project's own environment.
"""

from typing import NamedTuple

import anyio
import pytest

from e2e.clients.agent import ANSWER, FIRST_HALF, PIECES, REASONING, USAGE, Agent
from e2e.clients.heard import (
    StreamedEvent,
    data_of,
    fold,
    history_texts,
    state_of,
    streamed_text,
    task_of,
    texts_of,
)
from e2e.clients.kinds import KINDS_OF_1_0
from e2e.clients.programs import Answer, Client, RefusedError
from tailrace.streaming import EXTENSION_URI

pytestmark = pytest.mark.asyncio(loop_scope="session")


class ErrorNames(NamedTuple):
    """An error's name, its JSON-RPC code, and its HTTP and gRPC statuses."""

    name: str
    code: int
    statuses: tuple[object, ...]


NOT_FOUND = ErrorNames("TaskNotFoundError", -32001, (404, "NOT_FOUND"))
NOT_CANCELABLE = ErrorNames("TaskNotCancelableError", -32002, (400, "FAILED_PRECONDITION"))
UNSUPPORTED = ErrorNames("UnsupportedOperationError", -32004, (400, "FAILED_PRECONDITION", "UNIMPLEMENTED"))


def server_events(events: list[StreamedEvent]) -> list[StreamedEvent]:
    """Return the events without the task that the client itself builds."""
    return [event for event in events if event.kind != "folded"]


def changes(events: list[StreamedEvent]) -> list[str]:
    """Return the states in a stream, in order."""
    return [event.state for event in events if event.kind in ("task", "status")]


async def until(answer: Answer, text: str) -> list[StreamedEvent]:
    """Read a stream up to this text, and leave the rest unread."""
    events: list[StreamedEvent] = []
    async for event in answer:
        events.append(event)
        if event.kind != "folded" and streamed_text(events) == text:
            return events
    raise AssertionError(f"the stream ended with {streamed_text(events)!r}")


async def test_the_card_is_read_and_names_the_agent(client: Client) -> None:
    card = await client.ask("card")
    assert card["name"] == "tailrace"
    assert card["capabilities"]["streaming"] is True
    assert card["capabilities"]["pushNotifications"] is True


async def test_a_send_that_waits_gives_the_whole_task(client: Client) -> None:
    task = task_of(await client.ask("send", text="hello"))
    assert state_of(task) == "completed"
    assert texts_of(task) == [ANSWER]
    assert len(task["artifacts"][0]["parts"]) == 1
    assert history_texts(task) == ["hello", ANSWER]
    assert task["metadata"][EXTENSION_URI]["usage"]["totalTokens"] == USAGE["total_tokens"]


async def test_a_send_that_does_not_wait_gives_a_task_that_goes_on(client: Client, agent: Agent) -> None:
    pause = agent.model.pause()
    task = task_of(await client.ask("send", text=pause.prompt, at_once=True))
    assert state_of(task) in ("submitted", "working")
    subscribed = await client.stream("subscribe", task_id=task["id"])
    begun = await until(subscribed, FIRST_HALF)
    pause.go_on.set()
    rest = [event async for event in subscribed]
    assert streamed_text([*begun, *server_events(rest)]) == ANSWER
    assert changes(server_events(rest))[-1] == "completed"


async def test_a_stream_gives_every_delta_once_and_in_order(client: Client) -> None:
    received = await client.events("stream", text="hello")
    events = server_events(received)
    assert changes(events) == ["submitted", "working", "completed"]
    assert [event.kind for event in events[:2]] == ["task", "status"]
    chunks = [event for event in events if event.kind == "artifact"]
    assert [event.text for event in chunks if event.text] == list(PIECES)
    assert [event.append for event in chunks] == [False] + [True] * (len(chunks) - 1)
    assert [event.last for event in chunks] == [False] * (len(chunks) - 1) + [True]
    assert len({event.artifact_id for event in chunks}) == 1
    assert len({event.task_id for event in events}) == 1
    if client.kind.version == "0.3":
        finals = [event.final for event in events if event.kind == "status"]
        assert finals == [False] * (len(finals) - 1) + [True]
    # The task that the client builds from the stream, for clients that do so.
    assert all(texts_of(event.fields) == [ANSWER] for event in received if event.kind == "folded")


async def test_reasoning_is_an_artifact_of_its_own(client: Client) -> None:
    events = server_events(await client.events("stream", text="think"))
    assert list(fold(events).values()) == [REASONING, ANSWER]
    task = await client.ask("get", task_id=events[0].task_id)
    assert texts_of(task) == [REASONING, ANSWER]


async def test_get_task_returns_the_requested_history(client: Client) -> None:
    sent = task_of(await client.ask("send", text="weather"))
    results = {"tool_results": [{"call_id": "call-1", "name": "get_weather", "output": "snow"}]}
    await client.ask("send", data=results, task_id=sent["id"], context_id=sent["contextId"])
    whole = await client.ask("get", task_id=sent["id"])
    assert state_of(whole) == "completed"
    assert len(whole["history"]) > 1
    short = await client.ask("get", task_id=sent["id"], history_length=1)
    assert short["history"] == whole["history"][-1:]
    assert texts_of(short) == texts_of(whole)


async def test_a_tool_that_the_client_has_is_called_and_its_result_goes_on_with_the_task(
    client: Client, agent: Agent
) -> None:
    question = server_events(await client.events("stream", text="weather"))
    assert changes(question) == ["submitted", "working", "input-required"]
    call = {"call_id": "call-1", "name": "get_weather", "arguments": {"city": "Zürich"}}
    assert data_of(question[-1].fields["status"]["message"]) == [{"tool_calls": [call]}]
    task_id, context_id = question[0].task_id, question[0].fields["contextId"]
    results = {"tool_results": [{"call_id": "call-1", "name": "get_weather", "output": "5 °C\u2028and fog"}]}
    answered = server_events(
        await client.events("stream", data=results, task_id=task_id, context_id=context_id)
    )
    assert {event.task_id for event in answered} == {task_id}
    assert changes(answered)[-1] == "completed"
    assert fold(answered)[answered[-2].artifact_id] == "The tool says: 5 °C\u2028and fog."
    roles = [message["role"] for message in agent.upstream.requests[-1].json["messages"]]
    assert roles == ["user", "assistant", "tool"]


async def test_a_conversation_goes_on_in_its_context(client: Client, agent: Agent) -> None:
    first = task_of(await client.ask("send", text="Capital of France?"))
    second = task_of(await client.ask("send", text="And of Italy?", context_id=first["contextId"]))
    assert second["contextId"] == first["contextId"]
    assert second["id"] != first["id"]
    messages = agent.upstream.requests[-1].json["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert ANSWER in str(messages[1]["content"])


async def test_canceling_ends_the_stream_and_closes_the_connection_to_the_model(
    client: Client, agent: Agent
) -> None:
    pause = agent.model.pause()
    stream = await client.stream("stream", text=pause.prompt)
    begun = await until(stream, FIRST_HALF)
    task = await client.ask("cancel", task_id=begun[0].task_id)
    assert state_of(task) == "canceled"
    assert pause.request is not None
    with anyio.fail_after(10):
        await pause.request.client_left.wait()
    events = [*begun, *server_events([event async for event in stream])]
    assert changes(events) == ["submitted", "working", "canceled"]
    assert streamed_text(events) == FIRST_HALF
    kept = await client.ask("get", task_id=begun[0].task_id)
    assert (state_of(kept), texts_of(kept)) == ("canceled", [FIRST_HALF])


async def test_a_second_reader_gets_the_task_so_far_and_everything_after(
    client: Client, agent: Agent
) -> None:
    pause = agent.model.pause()
    first = await client.stream("stream", text=pause.prompt)
    begun = await until(first, FIRST_HALF)
    second = await client.stream("subscribe", task_id=begun[0].task_id)
    joined = await until(second, FIRST_HALF)
    assert [event.kind for event in joined] == ["task"]
    pause.go_on.set()
    first_rest = server_events([event async for event in first])
    second_rest = server_events([event async for event in second])
    assert streamed_text([*begun, *first_rest]) == ANSWER
    assert streamed_text([*joined, *second_rest]) == ANSWER
    assert second_rest == first_rest


async def test_a_client_that_leaves_comes_back_to_a_task_that_went_on(client: Client, agent: Agent) -> None:
    pause = agent.model.pause()
    stream = await client.stream("stream", text=pause.prompt)
    begun = await until(stream, FIRST_HALF)
    await client.leave(stream)
    again = await client.stream("subscribe", task_id=begun[0].task_id)
    joined = await until(again, FIRST_HALF)
    assert pause.request is not None
    assert not pause.request.client_left.is_set()
    pause.go_on.set()
    received = [event async for event in again]
    assert streamed_text([*joined, *server_events(received)]) == ANSWER
    assert changes(server_events(received)) == ["completed"]
    assert all(texts_of(event.fields) == [ANSWER] for event in received if event.kind == "folded")


async def test_a_task_that_a_client_of_another_version_began_is_followed_and_canceled(
    client: Client, another: Client, agent: Agent
) -> None:
    pause = agent.model.pause()
    theirs = await another.stream("stream", text=pause.prompt)
    begun = await until(theirs, FIRST_HALF)
    ours = await client.stream("subscribe", task_id=begun[0].task_id)
    joined = await until(ours, FIRST_HALF)
    assert state_of(await client.ask("cancel", task_id=begun[0].task_id)) == "canceled"
    for already, stream in ((begun, theirs), (joined, ours)):
        events = [*already, *server_events([event async for event in stream])]
        assert streamed_text(events) == FIRST_HALF
        assert changes(events)[-1] == "canceled"


async def test_a_model_that_fails_fails_the_task_with_a_reason(client: Client) -> None:
    events = server_events(await client.events("stream", text="fail"))
    assert changes(events) == ["submitted", "working", "failed"]
    [part] = events[-1].fields["status"]["message"]["parts"]
    assert "the model is not there" in part["text"]


async def test_what_cannot_be_done_is_refused_by_the_right_error(client: Client) -> None:
    for operation in ("get", "cancel"):
        with pytest.raises(RefusedError) as refused:
            await client.ask(operation, task_id="nobody")
        assert_error(refused.value, NOT_FOUND)
    task = task_of(await client.ask("send", text="hello"))
    with pytest.raises(RefusedError) as refused:
        await client.ask("cancel", task_id=task["id"])
    assert_error(refused.value, NOT_CANCELABLE)
    with pytest.raises(RefusedError) as refused:
        await client.ask("send", text="and?", task_id=task["id"], context_id=task["contextId"])
    assert_error(refused.value, UNSUPPORTED)
    # The server is not affected.
    assert state_of(await client.ask("get", task_id=task["id"])) == "completed"


async def test_following_a_task_that_is_over_is_refused_or_gives_it_as_it_stands(client: Client) -> None:
    """1.0 refuses it; the proto of 0.3 returns the task, and the bindings of 0.3 are equivalent."""
    task = task_of(await client.ask("send", text="hello"))
    if client.kind.version == "0.3":
        [event] = server_events(await client.events("subscribe", task_id=task["id"]))
        assert (event.state, texts_of(event.fields)) == ("completed", [ANSWER])
    else:
        with pytest.raises(RefusedError) as refused:
            await client.events("subscribe", task_id=task["id"])
        assert_error(refused.value, UNSUPPORTED)


def assert_error(error: RefusedError, expected: ErrorNames) -> None:
    """A client reports the error's class, its JSON-RPC code (some within the text), or only a status."""
    named = error.type.endswith(expected.name) or expected.name in error.message
    numbered = error.code == expected.code or f"{expected.code}" in error.message
    assert named or numbered or error.code in expected.statuses, error


async def test_webhooks_can_be_set_and_receive_notifications(client: Client, agent: Agent) -> None:
    pause = agent.model.pause()
    stream = await client.stream("stream", text=pause.prompt)
    begun = await until(stream, FIRST_HALF)
    task_id = begun[0].task_id
    url = f"{agent.webhook.url}/{task_id}"
    set_ = await client.ask("set_webhook", task_id=task_id, config_id="mine", url=url)
    got = await client.ask("get_webhook", task_id=task_id, config_id="mine")
    assert got == set_
    assert got.get("pushNotificationConfig", got)["url"] == url
    if client.kind.lists_webhooks:
        await client.ask("set_webhook", task_id=task_id, config_id="other", url=f"{url}/other")
        listed = await client.ask("list_webhooks", task_id=task_id)
        assert [each.get("pushNotificationConfig", each)["id"] for each in listed] == ["mine", "other"]
        await client.ask("delete_webhook", task_id=task_id, config_id="other")
        assert await client.ask("list_webhooks", task_id=task_id) == [got]
    pause.go_on.set()
    assert changes(server_events([event async for event in stream]))[-1] == "completed"
    delivered = await agent.webhook.until(
        lambda deliveries: any(
            each.path.endswith(task_id) and "ompleted" in str(each.body).lower() for each in deliveries
        )
    )
    [token] = {each.headers["X-A2A-Notification-Token"] for each in delivered if each.path.endswith(task_id)}
    assert token == "t"


async def test_a_webhook_in_the_message_is_notified(client: Client, agent: Agent) -> None:
    hook = f"{agent.webhook.url}/{client.kind.name}/{client.kind.binding}"
    await client.ask("send", text="hello", webhook=hook)
    await agent.webhook.until(
        lambda deliveries: any(
            hook.endswith(each.path) and "ompleted" in str(each.body).lower() for each in deliveries
        )
    )


@pytest.mark.parametrize("client", KINDS_OF_1_0, indirect=True)
async def test_tasks_are_listed_by_the_page(client: Client) -> None:
    begun = task_of(await client.ask("send", text="hello"))
    context = begun["contextId"]
    rest = [await client.ask("send", text="and?", context_id=context) for _ in range(2)]
    tasks = [begun, *map(task_of, rest)]
    first = await client.ask("list", context_id=context, page_size=2)
    assert first["totalSize"] == 3
    last = await client.ask("list", context_id=context, page_size=2, page_token=first["nextPageToken"])
    assert not last.get("nextPageToken")
    listed = [*first["tasks"], *last["tasks"]]
    assert [task["id"] for task in listed] == [task["id"] for task in reversed(tasks)]
    assert [texts_of(task) for task in listed] == [[ANSWER]] * 3


async def test_an_agent_without_an_extended_card_returns_the_error(client: Client) -> None:
    """In 0.3 the client checks the public card first, and no other card exists."""
    try:
        card = await client.ask("extended_card")
    except RefusedError as refused:
        assert_error(refused, UNSUPPORTED)
    else:
        assert card["name"] == "tailrace"

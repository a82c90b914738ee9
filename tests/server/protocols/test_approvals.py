"""Approvals in the protocols of chats: the requests that a client receives, and its decisions."""

import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import ag_ui.core as ag_ui
import aiohttp
import anyio.to_thread
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import TypeAdapter

from support.approval_server import serving_approvals
from support.pages import blocks
from support.rounds import answer, sent
from support.rpc import Rpc, message
from support.upstream import ScriptedUpstream, Step

Fields = dict[str, Any]

MAIL = {"to": "ann@example.com"}
OTHER = {"to": "bob@example.com"}
CALLS = [("c1", "send_mail", MAIL)]
REQUEST_ID = f"mcpr_task_1_{64 * 'a'}"
TWO_CALLS = [*CALLS, ("c2", "send_mail", OTHER)]


class Served(NamedTuple):
    """A server whose tool requires an approval, and the arguments with which the tool ran."""

    url: str
    ran: list[str]
    client: AsyncOpenAI
    http: aiohttp.ClientSession
    upstream: ScriptedUpstream


@asynccontextmanager
async def served(*script: Sequence[Step]) -> AsyncGenerator[Served]:
    async with serving_approvals(*script) as server, aiohttp.ClientSession() as http:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            yield Served(server.url, server.ran, client, http, server.upstream)


def events_in(body: str) -> list[Fields]:
    data = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
    return [json.loads(each) for each in data if each != "[DONE]"]


def results_in(upstream_request: Any) -> list[str]:
    return [each["content"] for each in sent(upstream_request) if each["role"] == "tool"]


# --- Responses --------------------------------------------------------------------------------------------------


def decision(request: Any, approve: bool, **members: Any) -> Any:
    """The input item of a decision."""
    return {
        "type": "mcp_approval_response",
        "approval_request_id": request.id,
        "approve": approve,
        **members,
    }


async def test_a_response_ends_with_the_request_and_the_next_one_carries_out_the_decision() -> None:
    async with served(answer(calls=CALLS), answer("Done.")) as server:
        first = await server.client.responses.create(model="tailrace", input="Send it.")
        assert first.status == "completed"
        [request] = first.output
        assert request.type == "mcp_approval_request"
        assert (request.name, json.loads(request.arguments)) == ("send_mail", MAIL)
        assert server.ran == []
        second = await server.client.responses.create(
            model="tailrace", previous_response_id=first.id, input=[decision(request, True)]
        )
        assert second.output_text == "Done."
        assert server.ran == ["ann@example.com"]
        again = await server.client.responses.retrieve(first.id)
        assert again.output == first.output
        with pytest.raises(openai.BadRequestError, match="waits for an approval"):
            await server.client.responses.create(
                model="tailrace", previous_response_id=second.id, input=[decision(request, True)]
            )
    assert server.ran == ["ann@example.com"]


async def test_the_documented_client_of_the_responses_api_approves_calls() -> None:
    [example] = blocks(Path(__file__).parents[3] / "docs/approvals.md", "py")
    async with served(answer(calls=TWO_CALLS), answer("Done.")) as server:
        with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
            await anyio.to_thread.run_sync(exec, example.text, {"client": client})
    assert server.ran == ["ann@example.com", "bob@example.com"]


async def test_a_rejection_in_the_responses_api_has_a_reason() -> None:
    async with served(answer(calls=CALLS), answer("Fine.")) as server:
        first = await server.client.responses.create(model="tailrace", input="Send it.")
        item = decision(first.output[0], False, reason="too late")
        second = await server.client.responses.create(
            model="tailrace", previous_response_id=first.id, input=[item]
        )
        assert second.output_text == "Fine."
        assert "too late" in results_in(await server.upstream.received(1))[0]
    assert server.ran == []


async def test_a_client_that_sends_the_whole_conversation_continues_the_response_of_the_request() -> None:
    script = (answer(calls=CALLS), answer("Done."), answer("Bye."))
    async with served(*script) as server:
        question: Any = {"role": "user", "content": "Send it."}
        first = await server.client.responses.create(model="tailrace", input=[question])
        conversation: list[Any] = [question, *(item.to_dict() for item in first.output)]
        conversation.append(decision(first.output[0], True))
        second = await server.client.responses.create(model="tailrace", input=conversation)
        assert second.output_text == "Done."
        assert server.ran == ["ann@example.com"]
        # The decision was carried out: the conversation continues without it.
        conversation += [*(item.to_dict() for item in second.output), {"role": "user", "content": "Thanks."}]
        third = await server.client.responses.create(
            model="tailrace",
            input=conversation,
            extra_headers={"X-Conversation-Id": (second.conversation or first.conversation).id},  # pyright: ignore[reportOptionalMemberAccess]
        )
        assert third.output_text == "Bye."
        assert third.conversation == second.conversation
    assert server.ran == ["ann@example.com"]


async def test_decisions_can_come_one_by_one() -> None:
    async with served(answer(calls=TWO_CALLS), answer("Done.")) as server:
        first = await server.client.responses.create(model="tailrace", input="Send both.")
        one, other = first.output
        second = await server.client.responses.create(
            model="tailrace", previous_response_id=first.id, input=[decision(one, True)]
        )
        [left] = second.output
        assert left.type == "mcp_approval_request"
        assert json.loads(left.arguments) == OTHER
        assert left.id != other.id
        third = await server.client.responses.create(
            model="tailrace", previous_response_id=second.id, input=[decision(left, True)]
        )
        assert third.output_text == "Done."
    assert server.ran == ["ann@example.com", "bob@example.com"]


async def test_a_background_response_and_its_stream_end_with_the_request() -> None:
    async with served(answer(calls=CALLS), answer("Done.")) as server:
        stream = await server.client.responses.create(
            model="tailrace", input="Send it.", background=True, stream=True
        )
        events = [event async for event in stream]
        kinds = [event.type for event in events]
        assert kinds[-3:] == [
            "response.output_item.added",
            "response.output_item.done",
            "response.completed",
        ]
        completed = events[-1]
        assert completed.type == "response.completed"
        response = completed.response
        [request] = response.output
        assert request.type == "mcp_approval_request"
        assert (await server.client.responses.retrieve(response.id)).output == response.output
        decided = await server.client.responses.create(
            model="tailrace",
            previous_response_id=response.id,
            input=[decision(request, True)],
            background=True,
            stream=True,
        )
        last = [event async for event in decided][-1]
        assert last.type == "response.completed"
        assert last.response.output_text == "Done."
    assert server.ran == ["ann@example.com"]


async def listed(server: Served, response_id: str) -> list[Fields]:
    """The input items of a response, oldest first."""
    page = await server.client.responses.input_items.list(response_id, order="asc")
    assert len({item.id for item in page.data}) == len(page.data)
    return [item.to_dict() for item in page.data]


async def test_the_items_of_a_conversation_have_the_requests_and_the_decisions() -> None:
    async with served(answer(calls=TWO_CALLS), answer("Done.")) as server:
        client: Any = server.client
        first = await client.responses.create(model="tailrace", input="Send both.")
        one, other = first.output
        items = client.conversations.items

        async def listed() -> list[Fields]:
            page = await items.list(first.conversation.id, order="asc")
            for item in page.data:
                assert await items.retrieve(item.id, conversation_id=first.conversation.id) == item
            return [item.to_dict() for item in page.data]

        calls = ["message", "function_call", "function_call"]
        waiting = await listed()
        assert [item["type"] for item in waiting] == [*calls, "mcp_approval_request", "mcp_approval_request"]
        assert waiting[-2:] == [one.to_dict(), other.to_dict()]
        second = await client.responses.create(
            model="tailrace", previous_response_id=first.id, input=[decision(one, True)]
        )
        [left] = second.output
        half = await listed()
        assert [item["type"] for item in half if item["type"].startswith("mcp_")] == [
            "mcp_approval_request",
            "mcp_approval_response",
            "mcp_approval_request",
        ]
        assert half[-1] == left.to_dict()
        given = [decision(left, False, reason="too late")]
        await client.responses.create(model="tailrace", previous_response_id=second.id, input=given)
        approvals = [item for item in await listed() if item["type"].startswith("mcp_")]
        assert approvals[::2] == [one.to_dict(), left.to_dict()]
        decided = [(item["approval_request_id"], item["approve"], item["reason"]) for item in approvals[1::2]]
        assert decided == [(one.id, True, None), (left.id, False, "too late")]
        for item in approvals:
            with pytest.raises(openai.BadRequestError, match="approval cannot be deleted"):
                await items.delete(item["id"], conversation_id=first.conversation.id)


async def test_the_items_of_an_approval_have_the_same_ids_after_a_deletion_of_an_earlier_item() -> None:
    async with served(answer(calls=[("c1", "send_mail", MAIL)]), answer("Done.")) as server:
        create, items = server.client.responses.create, server.client.conversations.items
        first = await create(model="tailrace", input="Send it.")
        assert first.conversation
        name = first.conversation.id
        await create(model="tailrace", previous_response_id=first.id, input=[decision(first.output[0], True)])
        listed = [item async for item in items.list(name, order="asc")]
        assert [item.id for item in listed if item.type == "mcp_approval_request"] == [first.output[0].id]
        await items.delete(listed[0].id or "", conversation_id=name)
        assert [item async for item in items.list(name, order="asc")] == listed[1:]
        assert await items.retrieve(first.output[0].id or "", conversation_id=name) in listed


async def test_the_result_of_an_executed_call_cannot_be_deleted_while_another_call_waits() -> None:
    async with served(answer("Both.", calls=TWO_CALLS), answer("Done."), answer("Later.")) as server:
        create, items = server.client.responses.create, server.client.conversations.items
        first = await create(model="tailrace", input="Send both.")
        assert first.conversation
        name = first.conversation.id
        one, _ = first.output[-2:]
        second = await create(model="tailrace", previous_response_id=first.id, input=[decision(one, True)])
        [left] = second.output
        page = await items.list(name, order="asc")
        kept: list[Any] = [
            item for item in page.data if item.type in ("function_call", "function_call_output")
        ]
        assert [(item.type, item.call_id) for item in kept] == [
            ("function_call", "c1"),
            ("function_call", "c2"),
            ("function_call_output", "c1"),
        ]
        for item in kept:
            with pytest.raises(openai.BadRequestError, match="before their task has ended"):
                await items.delete(item.id, conversation_id=name)
        assert (await items.list(name, order="asc")).data == page.data
        third = await create(model="tailrace", previous_response_id=second.id, input=[decision(left, True)])
        assert (third.output_text, server.ran) == ("Done.", [MAIL["to"], OTHER["to"]])
        # The task has ended, so the result can be deleted. The call is not executed again.
        await items.delete(kept[2].id, conversation_id=name)
        rest: list[Any] = [item async for item in items.list(name) if item.type == "function_call_output"]
        assert [item.call_id for item in rest] == ["c2"]
        later = await create(model="tailrace", conversation=name, input="More?")
        assert (later.output_text, server.ran) == ("Later.", [MAIL["to"], OTHER["to"]])


async def test_the_input_items_have_the_decisions_with_their_requests() -> None:
    async with served(answer(calls=TWO_CALLS), answer("Done.")) as server:
        create = server.client.responses.create
        first = await create(model="tailrace", input="Send both.")
        one, other = first.output
        second = await create(model="tailrace", previous_response_id=first.id, input=[decision(one, True)])
        [left] = second.output
        third = await create(
            model="tailrace",
            previous_response_id=second.id,
            input=[decision(left, False, reason="too late")],
        )
        of_second, of_third = [await listed(server, each.id) for each in (second, third)]
    assert [item["type"] for item in of_second] == [
        "message",
        "function_call",
        "function_call",
        "mcp_approval_request",
        "mcp_approval_response",
    ]
    request, approved = of_second[-2:]
    assert request == one.to_dict()
    assert approved == {
        "id": approved["id"],
        "type": "mcp_approval_response",
        "approval_request_id": one.id,
        "approve": True,
        "reason": None,
    }
    request, rejected = [item for item in of_third if item["type"].startswith("mcp_")][2:]
    assert request == left.to_dict()
    assert (rejected["approval_request_id"], rejected["approve"]) == (left.id, False)
    assert rejected["reason"] == "too late"
    # The result of the first call follows its decision.
    assert [item["type"] for item in of_third[4:6]] == ["mcp_approval_response", "function_call_output"]
    assert of_third[-2:] == [request, rejected]
    assert other.id != left.id


@pytest.mark.parametrize(
    "item",
    [
        {},
        {"approve": "yes"},
        {"approve": True, "reason": 7},
    ],
)
async def test_a_malformed_decision_of_the_responses_api_is_rejected(item: Any) -> None:
    async with served() as server:
        given: Any = {"type": "mcp_approval_response", "approval_request_id": REQUEST_ID, **item}
        with pytest.raises(openai.BadRequestError, match="input"):
            await server.client.responses.create(model="tailrace", input=[given])


# --- Chat Completions -------------------------------------------------------------------------------------------


async def test_a_chat_completion_describes_the_request_and_continues_without_the_call() -> None:
    async with served(answer(calls=CALLS), answer("Fine.")) as server:
        headers = {"X-Conversation-Id": "c"}
        question: Any = {"role": "user", "content": "Send it."}
        first = await server.client.chat.completions.create(
            model="tailrace", messages=[question], extra_headers=headers
        )
        [choice] = first.choices
        text = choice.message.content or ""
        assert text.startswith("Approval required: send_mail")
        assert "ann@example.com" in text
        assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
        following: Any = [
            question,
            {"role": "assistant", "content": text},
            {"role": "user", "content": "No."},
        ]
        second = await server.client.chat.completions.with_raw_response.create(
            model="tailrace", messages=following, extra_headers=headers
        )
        assert second.parse().choices[0].message.content == "Fine."
        assert second.headers["X-Conversation-Id"] == "c"  # no branch
    assert server.ran == []


# --- AI SDK -----------------------------------------------------------------------------------------------------


async def chat(server: Served, messages: list[Fields]) -> list[Fields]:
    async with server.http.post(f"{server.url}/ai-sdk", json={"id": "c", "messages": messages}) as response:
        return events_in(await response.text())


async def loaded(server: Served) -> list[Fields]:
    async with server.http.get(f"{server.url}/ai-sdk/c/messages") as response:
        return await response.json()


def part_of(messages: list[Fields]) -> Fields:
    [part] = [part for part in messages[1]["parts"] if part["type"] == "dynamic-tool"]
    return part


def responded(messages: list[Fields], **decided: Any) -> list[Fields]:
    """The messages after `addToolApprovalResponse`."""
    part = part_of(messages)
    part["state"] = "approval-responded"
    part["approval"] = {**part["approval"], **decided}
    return messages


QUESTION = {"id": "q", "role": "user", "parts": [{"type": "text", "text": "Send it."}]}


@pytest.mark.parametrize(
    ("decided", "chunk", "state"),
    [
        ({"approved": True}, "tool-output-available", "output-available"),
        ({"approved": False, "reason": "too late"}, "tool-output-denied", "output-denied"),
    ],
)
async def test_a_chat_of_the_ai_sdk_loads_the_request_and_sends_the_decision(
    decided: Fields, chunk: str, state: str
) -> None:
    async with served(answer(calls=CALLS), answer("Done.")) as server:
        chunks = await chat(server, [QUESTION])
        [request] = [each for each in chunks if each["type"] == "tool-approval-request"]
        assert request["toolCallId"] == "c1"
        assert not any(each["type"] == "text-delta" for each in chunks)
        messages = await loaded(server)  # as after a reload
        assert part_of(messages)["state"] == "approval-requested"
        assert part_of(messages)["approval"] == {"id": request["approvalId"]}
        following = await chat(server, responded(messages, **decided))
        [result] = [each for each in following if each["type"].startswith("tool-output")]
        assert (result["type"], result["toolCallId"]) == (chunk, "c1")
        assert following[0]["messageId"] == messages[1]["id"]
        after = await loaded(server)
        assert [each["role"] for each in after] == ["user", "assistant"]
        assert part_of(after)["state"] == state
        assert part_of(after)["approval"] == {"id": request["approvalId"], **decided}
    assert server.ran == (["ann@example.com"] if decided["approved"] else [])


async def test_a_message_after_a_request_continues_the_chat_without_the_call() -> None:
    async with served(answer(calls=CALLS), answer("Fine.")) as server:
        await chat(server, [QUESTION])
        messages = await loaded(server)
        no = {"id": "n", "role": "user", "parts": [{"type": "text", "text": "No."}]}
        chunks = await chat(server, [*messages, no])
        assert [each["delta"] for each in chunks if each["type"] == "text-delta"] == ["Fine."]
    assert server.ran == []


# --- AG-UI ------------------------------------------------------------------------------------------------------

EVENT: TypeAdapter[Any] = TypeAdapter(ag_ui.Event)


async def run(server: Served, messages: list[Fields], **members: Any) -> list[Fields]:
    body = {
        "threadId": "c",
        "runId": str(uuid4()),
        "protocolVersion": "1.0",
        "messages": messages,
        "tools": [],
        "context": [],
        **members,
    }
    async with server.http.post(f"{server.url}/ag-ui", json=body) as response:
        assert response.status == 200, await response.text()
        events = events_in(await response.text())
    for event in events:
        EVENT.validate_python(event)
    return events


def interrupt_in(events: list[Fields]) -> Fields:
    outcome = events[-1]["outcome"]
    assert outcome["type"] == "interrupt"
    [interrupt] = outcome["interrupts"]
    return interrupt


@pytest.mark.parametrize(
    ("entry", "ran"),
    [
        ({"status": "resolved", "payload": {"approved": True}}, ["ann@example.com"]),
        ({"status": "resolved", "payload": {"approved": True, "editedArgs": OTHER}}, ["bob@example.com"]),
        ({"status": "resolved", "payload": {"approved": False, "reason": "too late"}}, []),
        ({"status": "cancelled"}, []),
    ],
)
async def test_a_run_of_ag_ui_is_interrupted_and_resumed(entry: Fields, ran: list[str]) -> None:
    async with served(answer(calls=CALLS), answer("Done.")) as server:
        question = {"id": "q", "role": "user", "content": "Send it."}
        events = await run(server, [question])
        interrupt = interrupt_in(events)
        assert (interrupt["reason"], interrupt["toolCallId"]) == ("tool_call", "c1")
        assert not any(each["type"] == "TEXT_MESSAGE_START" for each in events)
        joined = await run(server, [])  # as after a reload
        assert interrupt_in(joined) == interrupt
        [snapshot] = [each["messages"] for each in joined if each["type"] == "MESSAGES_SNAPSHOT"]
        resumed = await run(server, snapshot, resume=[{"interruptId": interrupt["id"], **entry}])
        assert resumed[-1]["outcome"] == {"type": "success"}
        [result] = [each for each in resumed if each["type"] == "TOOL_CALL_RESULT"]
        assert result["toolCallId"] == "c1"
        final = await run(server, [])
        assert final[-1]["outcome"] == {"type": "success"}
        [messages] = [each["messages"] for each in final if each["type"] == "MESSAGES_SNAPSHOT"]
        assert [each["role"] for each in messages] == ["user", "assistant", "tool", "assistant"]
        if ran:
            assert ran[0] in messages[1]["toolCalls"][0]["function"]["arguments"]
    assert server.ran == ran


async def test_a_client_before_ag_ui_1_0_receives_the_request_as_text() -> None:
    async with served(answer(calls=CALLS)) as server:
        events = await run(server, [{"id": "q", "role": "user", "content": "Send."}], protocolVersion=None)
    assert "outcome" not in events[-1]
    text = "".join(each.get("delta", "") for each in events if each["type"] == "TEXT_MESSAGE_CONTENT")
    assert text.startswith("Approval required: send_mail")


async def test_a_resume_without_a_decision_is_rejected() -> None:
    async with served(answer(calls=CALLS)) as server:
        body: Fields = {"threadId": "c", "runId": "r", "messages": []}
        entry = {"interruptId": "d", "status": "resolved", "payload": {"approved": "yes"}}
        async with server.http.post(f"{server.url}/ag-ui", json={**body, "resume": [entry]}) as response:
            assert response.status == 400
            assert "approved" in await response.text()


# --- A2A and the others -----------------------------------------------------------------------------------------


async def test_a_request_of_one_protocol_is_decided_in_another() -> None:
    async with served(answer(calls=CALLS), answer("Done.")) as server:
        first = await server.client.responses.create(
            model="tailrace", input="Send it.", extra_headers={"X-Conversation-Id": "c"}
        )
        [request] = first.output
        assert request.type == "mcp_approval_request"
        async with Rpc(server.url) as rpc:
            task_id = first.id.removeprefix("resp_").rpartition("_")[0]
            params = message("", taskId=task_id)
            entry = {"digest": request.id.rpartition("_")[2], "decision": "approve"}
            params["message"]["parts"] = [{"data": {"approval_responses": [entry]}}]
            task = (await rpc.result("SendMessage", params))["task"]
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        after = await loaded(server)
        assert part_of(after)["state"] == "output-available"
    assert server.ran == ["ann@example.com"]

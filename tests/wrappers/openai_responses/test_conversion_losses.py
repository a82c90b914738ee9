"""Content that the conversion for the Responses API changes or omits."""

import json
from typing import cast

import pytest
from hypothesis import given, settings

from support import strategies
from support.messages import model, tool, user
from support.responses_items import (
    ASK,
    CALL,
    RESULT,
    ROUND,
    RUN_LOCALLY,
    SHELL,
    SHELL_OUTPUT,
    Fields,
    converter,
    own,
    say,
    sent,
    thought,
)
from tailrace.wrappers import (
    ContentPartData,
    ContentPartFile,
    ContentPartReasoning,
    ContentPartToolCall,
    ContentPartToolResult,
    History,
    Message,
)
from tailrace.wrappers.conversion.result_repair import NO_RESULT


@given(strategies.histories)
@settings(deadline=None)
def test_every_call_that_is_sent_has_an_id_of_its_own_that_the_api_takes(history: History) -> None:
    try:
        items = cast("list[Fields]", converter.from_history(history))
    except ValueError:
        return
    calls = [item["call_id"] for item in items if item["type"] in ("function_call", "custom_tool_call")]
    outputs = [item["call_id"] for item in items if item["type"].endswith("_output")]
    assert len(set(calls)) == len(calls)
    assert all(1 <= len(each) <= 64 for each in calls)
    assert set(outputs) <= set(calls)


def back(*messages: Message) -> tuple[Message, ...]:
    return converter.to_history(converter.from_history(History(conversation=messages))).conversation


LONG_ID = "call_" + "x" * 60
FOREIGN_SEARCH = ContentPartToolCall(
    id="srvtoolu_1", name="web_search", kind="server", metadata={"anthropic": {"type": "server_tool_use"}}
)

# Each documented loss: the message before and after the round trip.
LOSSES: dict[str, tuple[list[Message], list[Message]]] = {
    "an id that is too long gets another": (
        [model(CALL.model_copy(update={"id": LONG_ID})), tool(RESULT.model_copy(update={"id": LONG_ID}))],
        [
            model(CALL.model_copy(update={"id": "call00000"})),
            tool(RESULT.model_copy(update={"id": "call00000"})),
        ],
    ),
    "a call without a result gets one": (
        [model(CALL), ASK],
        [
            model(CALL),
            tool(RESULT.model_copy(update={"output": json.dumps({"error": NO_RESULT})})),
            ASK,
        ],
    ),
    "a result without a call becomes text": (
        [ASK, tool(RESULT)],
        [ASK, user(say(text="The tool get_weather answered: Sunny, 72°F"))],
    ),
    "reasoning of another provider is omitted": (
        [model(ContentPartReasoning(text="hm", signature="s", metadata={"anthropic": {}}), say(text="hi"))],
        [model(say(text="hi"))],
    ),
    "reasoning without encrypted content is omitted": (
        [model(thought("hm", type="reasoning_text", id="rs_1"), thought("so", type="summary_text"), say(text="hi"))],
        [model(say(text="hi"))],
    ),
    "the start of reasoning with another provider's end is omitted": (
        [
            model(
                thought("hm", type="summary_text"),
                ContentPartReasoning(text="foreign"),
                thought("", id="rs_1", encrypted_content="seal"),
                say(text="hi"),
            )
        ],
        [model(thought("", id="rs_1", encrypted_content="seal"), say(text="hi"))],
    ),
    "reasoning at the end is omitted": (
        [model(say(text="hi"), thought("", id="rs_1", encrypted_content="seal"))],
        [model(say(text="hi"))],
    ),
    "the status of reasoning is lost": (
        [model(thought("", id="rs_1", encrypted_content="seal", status="incomplete"), say(text="hi"))],
        [model(thought("", id="rs_1", encrypted_content="seal"), say(text="hi"))],
    ),
    "ids and statuses of messages and calls are lost": (
        [
            model(
                say(text="a", metadata=own(id="msg_1", status="incomplete")),
                CALL.model_copy(update={"metadata": own(id="fc_1", status="incomplete")}),
            ),
            tool(RESULT),
        ],
        [model(say(text="a"), CALL), tool(RESULT)],
    ),
    "a tool run by another provider is omitted": (
        [
            model(
                FOREIGN_SEARCH,
                ContentPartToolResult(id="srvtoolu_1", name="web_search", output="Sunny"),
                say(text="Sunny."),
            )
        ],
        [model(say(text="Sunny."))],
    ),
    "an output that the API rejects for its tool is sent as a function's": (
        [
            model(
                ContentPartToolCall(
                    id="call_1",
                    name="computer",
                    arguments={"action": {"type": "screenshot"}},
                    metadata=own(item={"type": "computer_call", "id": "cu_1", "call_id": "call_1"}),
                )
            ),
            tool(ContentPartToolResult(id="call_1", name="computer", output="there is no screen")),
        ],
        [
            model(ContentPartToolCall(id="call_1", name="computer", arguments={"action": {"type": "screenshot"}})),
            tool(ContentPartToolResult(id="call_1", name="computer", output="there is no screen")),
        ],
    ),
    "a failure of one of the API's own tools is sent unchanged": (
        [model(RUN_LOCALLY), tool(ContentPartToolResult(id="call_1", name="local_shell", output="no", is_error=True))],
        [
            model(RUN_LOCALLY),
            tool(ContentPartToolResult(id="call_1", name="local_shell", output='{"error": "no"}')),
        ],
    ),
    "a result of one of the API's own tools is sent in its form": (
        [
            model(
                ContentPartToolCall(
                    id="call_1",
                    name="shell",
                    arguments={"action": SHELL["action"]},
                    metadata=own(item={**SHELL, "environment": None}),
                )
            ),
            tool(ContentPartToolResult(id="call_1", name="shell", output="a")),
        ],
        [
            model(
                ContentPartToolCall(
                    id="call_1",
                    name="shell",
                    arguments={"action": SHELL["action"]},
                    metadata=own(item={**SHELL, "environment": None}),
                )
            ),
            tool(ContentPartToolResult(id="call_1", name="shell", output=SHELL_OUTPUT["output"])),
        ],
    ),
    "data becomes its JSON": ([user(ContentPartData(data={"a": [1, "é"]}))], [user(say(text='{"a":[1,"é"]}'))]),
    "a model's data becomes its JSON": ([model(ContentPartData(data=[1]))], [model(say(text="[1]"))]),
    "a model's file is named in text": (
        [model(ContentPartFile(data=b"abc", media_type="image/png", filename="cat.png"))],
        [model(say(text="[file cat.png, image/png, 3 bytes]"))],
    ),
    "a model's link is named in text": (
        [model(ContentPartFile(url="https://example.com/a.png", filename="a"))],
        [model(say(text="[a](https://example.com/a.png)"))],
    ),
    "an empty text of the model is omitted": ([model(say(text=""), CALL), tool(RESULT)], ROUND),
    "a message without remaining parts is omitted": ([ASK, model(say(text="")), ASK], [ASK, ASK]),
    "consecutive messages of the model become one": (
        [model(say(text="a")), model(say(text="b", metadata=own(phase="final_answer")))],
        [model(say(text="a"), say(text="b", metadata=own(phase="final_answer")))],
    ),
    "a refusal goes last": (
        [model(CALL, refusal="no"), tool(RESULT)],
        [model(CALL, refusal="no"), tool(RESULT)],
    ),
    "arguments that do not parse become an object": (
        [
            model(CALL.model_copy(update={"arguments": {}, "arguments_text": '{"a": ', "arguments_error": "cut"})),
            tool(RESULT),
        ],
        [model(CALL.model_copy(update={"arguments": {"input": '{"a": '}})), tool(RESULT)],
    ),
    "an output that is not text becomes its JSON": (
        [model(CALL), tool(RESULT.model_copy(update={"output": {"t": [72, "°F"]}}))],
        [model(CALL), tool(RESULT.model_copy(update={"output": '{"t": [72, "°F"]}'}))],
    ),
    "a failure becomes an object with an error": (
        [model(CALL), tool(RESULT.model_copy(update={"output": "no such city", "is_error": True}))],
        [model(CALL), tool(RESULT.model_copy(update={"output": '{"error": "no such city"}'}))],
    ),
    "parts beside results become a message after them": (
        [model(CALL), user(say(text="also"), RESULT, say(text="this"))],
        [model(CALL), tool(RESULT), user(say(text="also"), say(text="this"))],
    ),
    "a result inside the model's message becomes a message": (
        [model(CALL, RESULT, say(text="Sunny."))],
        [model(CALL), tool(RESULT), model(say(text="Sunny."))],
    ),
    "reasoning in messages of other roles is omitted": ([tool(ContentPartReasoning(text="x"))], []),
    "metadata is not sent": (
        [model(say(text="a", metadata={"k": 1}), finish_reason="stop", extra={"annotations": []})],
        [model(say(text="a"))],
    ),
    "a custom tool's parsed arguments become text": (
        [
            model(CALL.model_copy(update={"kind": "custom", "arguments": {"a": 1}})),
            tool(RESULT),
        ],
        [
            model(CALL.model_copy(update={"kind": "custom", "arguments": {}, "arguments_text": '{"a": 1}'})),
            tool(RESULT),
        ],
    ),
    "a custom tool without input gets an empty one": (
        [model(CALL.model_copy(update={"kind": "custom", "arguments": {}})), tool(RESULT)],
        [model(CALL.model_copy(update={"kind": "custom", "arguments": {}, "arguments_text": ""})), tool(RESULT)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_is_the_documented_one(name: str) -> None:
    messages, wanted = LOSSES[name]
    assert back(*messages) == tuple(wanted)


def test_the_context_comes_back_as_the_users_words() -> None:
    history = History(context="In Oakland.", conversation=(ASK,))
    assert converter.to_history(converter.from_history(history)) == History(
        conversation=(user(say(text="In Oakland.")), ASK)
    )


def test_foreign_metadata_is_ignored() -> None:
    odd = own(id=[1], item=3, type={}, encrypted_content=[])
    content = [
        ContentPartReasoning(text="a", metadata=odd),
        ContentPartFile(data=b"abc", metadata=odd),
        ContentPartData(data=1, metadata=odd),
        CALL.model_copy(update={"metadata": odd}),
        FOREIGN_SEARCH.model_copy(update={"metadata": {"openai-responses": 3}}),
    ]
    items = sent(model(*content, openai_responses=3), tool(RESULT.model_copy(update={"metadata": odd})))
    assert [item["type"] for item in items] == ["message", "function_call", "function_call_output"]


def test_an_image_whose_bytes_are_gone_is_sent_without_them() -> None:
    item = {"type": "image_generation_call", "id": "ig_1", "status": "completed"}
    made = ContentPartToolCall(id="ig_1", name="image_generation", kind="server", metadata=own(item=item))
    assert sent(model(made)) == [{**item, "result": None}]


def test_an_image_behind_an_address_is_sent_as_one() -> None:
    item = {"type": "image_generation_call", "id": "ig_1", "status": "completed"}
    made = ContentPartToolCall(id="ig_1", name="image_generation", kind="server", metadata=own(item=item))
    link = ContentPartFile(url="https://example.com/a.png", metadata=own(id="ig_1"))
    assert sent(model(made, link)) == [{**item, "result": "https://example.com/a.png"}]


def test_answers_to_the_apis_own_tools_follow_the_ids_of_their_calls() -> None:
    item = {"type": "local_shell_call_output", "id": "call_1", "output": "a", "status": "completed"}
    answer = ContentPartToolResult(id="call_1", name="local_shell", output="a", metadata=own(item=item))
    again = [model(RUN_LOCALLY), tool(answer)]
    items = sent(*again, *again)
    assert [each.get("call_id", each["id"]) for each in items] == [
        "call_1",
        "call_1",
        "call00001",
        "call00001",
    ]


def test_an_approval_follows_the_id_of_its_request() -> None:
    request = {
        "type": "mcp_approval_request",
        "id": LONG_ID,
        "name": "f",
        "server_label": "s",
        "arguments": "{}",
    }
    call = ContentPartToolCall(id=LONG_ID, name="mcp_approval_request", metadata=own(item=request))
    response = {"type": "mcp_approval_response", "approval_request_id": LONG_ID, "approve": True, "id": "x"}
    answer = ContentPartToolResult(
        id=LONG_ID, name="mcp_approval_request", output=True, metadata=own(item=response)
    )
    assert [
        each["id"] if "approve" not in each else each["approval_request_id"]
        for each in sent(model(call), tool(answer))
    ] == [
        "call00000",
        "call00000",
    ]

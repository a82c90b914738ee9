"""Items of the Responses API from other programs and from complete responses."""

from typing import Any, cast

import pytest
from openai.types.responses import Response, ResponseInputItemParam, ResponseOutputItem, ResponseStreamEvent
from pydantic import TypeAdapter

from support.messages import model, tool, user
from support.responses_items import (
    ASK,
    ASK_ITEM,
    CALL,
    CALL_ITEM,
    LOCAL_SHELL,
    RESULT,
    RESULT_ITEM,
    SEALED,
    SHELL_OUTPUT,
    Fields,
    assistant_item,
    converter,
    input_text,
    own,
    received,
    say,
    sent,
    thought,
    user_item,
)
from tailrace.wrappers import ContentPartData, ContentPartToolResult, History, Role
from tailrace.wrappers.openai_responses import ResponsesDecoder

package_output: TypeAdapter[Any] = TypeAdapter(ResponseOutputItem)
package_events: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)

# --- requests of other programs ---------------------------------------------------------------------------------


def test_system_and_developer_messages_are_joined() -> None:
    items: list[Fields] = [
        {"role": "system", "content": "Be kind."},
        {"type": "message", "role": "developer", "content": [input_text("Be"), input_text("brief.")]},
        {"role": "user", "content": "hi"},
    ]
    history = converter.to_history(cast("list[ResponseInputItemParam]", items))
    assert history == History(system_message="Be kind.\n\nBe\n\nbrief.", conversation=(user(say(text="hi")),))


def test_messages_of_the_model_may_be_written_down_in_short() -> None:
    assert received({"role": "assistant", "content": "a"}) == (model(say(text="a")),)
    assert received({"role": "assistant", "content": [input_text("a")]}) == (model(say(text="a")),)
    assert received({"role": "assistant", "content": ["a"]}) == (model(say(text="a")),)
    assert received({"role": "user", "content": ["a"]}) == (user(say(text="a")),)


def test_content_may_be_one_entry_or_none() -> None:
    assert received({"role": "user", "content": input_text("a")}) == (user(say(text="a")),)
    assert received({"role": "user", "content": None}) == (user(),)
    assert received({"role": "assistant", "content": ""}) == ()


def test_an_approval_answers_its_request() -> None:
    request: Fields = {
        "type": "mcp_approval_request",
        "id": "mcpr_1",
        "name": "f",
        "server_label": "s",
        "arguments": "{}",
    }
    response = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    _, answer = received(request, response)
    assert answer == tool(ContentPartToolResult(id="mcpr_1", name="mcp_approval_request", output=True))
    assert sent(*received(request, response)) == [request, response]


def test_an_item_that_only_refers_to_another_is_kept() -> None:
    reference = {"type": "item_reference", "id": "msg_1"}
    assert received(reference) == (
        model(ContentPartData(data={"type": "item_reference"}, metadata=own(item=reference))),
    )


def test_unknown_content_of_the_model_is_kept() -> None:
    odd = {"type": "output_smell", "smell": "rose"}
    assert received({"type": "message", "role": "assistant", "content": [odd]}) == (
        model(extra={"content_parts": [odd]}),
    )


def test_outputs_of_unknown_calls_are_results_of_unknown_tools() -> None:
    assert received(RESULT_ITEM) == (tool(RESULT.model_copy(update={"name": "unknown"})),)
    assert received({**RESULT_ITEM, "name": "f"}) == (tool(RESULT.model_copy(update={"name": "f"})),)
    [message] = received(SHELL_OUTPUT)
    assert (message.role, message.tool_results[0].name) == (Role.TOOL, "shell")


def test_an_answer_of_the_providers_own_that_names_no_call_stays_with_the_model() -> None:
    search: Fields = {"type": "tool_search_call", "id": "tsc_1", "execution": "server", "arguments": {}}
    found: Fields = {
        "type": "tool_search_output",
        "id": "tso_1",
        "call_id": None,
        "execution": "server",
        "tools": [],
    }
    [message] = received(search, found)
    assert [part.type for part in message.content] == ["tool_call", "tool_result"]
    assert sent(message) == [search, found]


def test_a_function_that_has_the_call_id_of_a_search_is_named_by_its_call() -> None:
    answer = {"type": "function_call_output", "call_id": "call_1", "output": "a"}
    [_, message] = received(LOCAL_SHELL, answer)
    assert message.tool_results[0].name == "local_shell"


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        ([ASK_ITEM, {"role": "critic", "content": "bad"}], "item 1: the role 'critic' is not defined by the Responses API"),
        ([{"content": "hi"}], "item 0: an item with neither a type nor a role"),
        ([user_item({"type": "smell"})], "item 0: a content part of type 'smell' where only text is allowed"),
        ([{"role": "system", "content": [{"type": "input_image"}]}], "of type 'input_image' where only text"),
        ([{"role": "user", "content": 3}], "item 0: content of type int"),
    ],
)  # fmt: skip
def test_what_the_api_does_not_define_is_refused(items: list[Fields], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        received(*items)


# --- the openai package's objects, and messages of streams ------------------------------------------------------


OUTPUT: list[Fields] = [
    {**SEALED, "status": "completed"},
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
    },
    {**CALL_ITEM, "id": "fc_1", "status": "completed"},
]
RESPONSE: Fields = {
    "id": "resp_1",
    "object": "response",
    "created_at": 7,
    "model": "m",
    "status": "completed",
    "output": OUTPUT,
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
}
MESSAGE = model(
    thought("", id="rs_1", encrypted_content="seal"),
    say(text="Let me see.", metadata=own(id="msg_1")),
    CALL.model_copy(update={"metadata": own(id="fc_1")}),
    finish_reason="tool_calls",
)


def test_the_packages_output_may_stand_among_the_items() -> None:
    items: list[Any] = [ASK_ITEM, *[package_output.validate_python(item) for item in OUTPUT], RESULT_ITEM]
    history = converter.to_history(items)
    assert history.conversation == (ASK, MESSAGE.model_copy(update={"metadata": {}}), tool(RESULT))
    assert converter.from_history(history) == [
        ASK_ITEM,
        SEALED,
        assistant_item("Let me see."),
        CALL_ITEM,
        RESULT_ITEM,
    ]


def test_a_message_is_made_of_a_whole_response() -> None:
    assert converter.to_message(Response.model_validate(RESPONSE)) == MESSAGE
    assert converter.to_message(RESPONSE) == MESSAGE
    assert converter.to_message(OUTPUT[1]) == model(say(text="Let me see.", metadata=own(id="msg_1")))


def test_a_message_is_made_of_a_stream() -> None:
    events: list[Fields] = [
        {"type": "response.output_item.done", "output_index": index, "item": item}
        for index, item in enumerate(OUTPUT)
    ]
    events.append({"type": "response.completed", "response": RESPONSE})
    decoder = ResponsesDecoder()
    assert converter.to_message([chunk for each in events for chunk in decoder.wrap(dict(each))]) == MESSAGE
    package = [package_events.validate_python({"sequence_number": 0, **each}) for each in events]
    assert converter.to_message(package) == MESSAGE


def test_one_event_is_one_wrapper() -> None:
    delta = {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "Hi"}
    assert converter.create_chunk_wrapper(delta).get_text() == "Hi"
    assert converter.create_chunk_wrapper({"type": "keepalive"}).raw == {"type": "keepalive"}


def test_results_alone_are_those_of_functions() -> None:
    results = [RESULT, RESULT.model_copy(update={"id": "call_2", "output": {"a": 1}})]
    assert converter.tool_result_messages(results) == [
        RESULT_ITEM,
        {"type": "function_call_output", "call_id": "call_2", "output": '{"a": 1}'},
    ]
    assert converter.tool_result_messages(
        [ContentPartToolResult(id="call_1", name="shell", metadata=own(item=SHELL_OUTPUT))]
    ) == [SHELL_OUTPUT]

"""Parsed requests of the AI SDK and AG-UI."""

from typing import Any

import pytest

from tailrace.server.protocols.ag_ui.request import read_run_request
from tailrace.server.protocols.ai_sdk.request import read_ui_request
from tailrace.server.protocols.openai_error import OpenAIError
from tailrace.wrappers import (
    ContentPartFile,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    Role,
)
from tailrace.wrappers.request_options import ToolChoice

Fields = dict[str, Any]


def user(*parts: Fields) -> Fields:
    return {"id": "u", "role": "user", "parts": list(parts)}


def assistant(*parts: Fields) -> Fields:
    return {"id": "a", "role": "assistant", "parts": list(parts)}


def text(value: str) -> Fields:
    return {"type": "text", "text": value}


def tool(state: str, **fields: Any) -> Fields:
    return {"type": "tool-look", "toolCallId": "c1", "state": state, "input": {"a": 1}, **fields}


def chat(*messages: Fields, **fields: Any) -> Fields:
    return {"id": "chat", "messages": list(messages), "trigger": "submit-message", **fields}


STEP: Fields = {"type": "step-start"}
CALL = ContentPartToolCall(id="c1", name="look", arguments={"a": 1})


# --- the AI SDK -------------------------------------------------------------------------------------------------


def test_new_messages_follow_the_last_assistant_message() -> None:
    request = read_ui_request(chat(user(text("Hi")), assistant(STEP, text("Hello")), user(text("So?"))))
    chat_request = request
    assert (chat_request.key, chat_request.continues, request.message_id) == ("chat", False, "")
    assert [(message.role, message.text) for message in chat_request.earlier] == [
        (Role.USER, "Hi"),
        (Role.MODEL, "Hello"),
    ]
    assert chat_request.new.text == "So?"


def test_one_message_alone_goes_on_with_what_is_stored() -> None:
    chat_request = read_ui_request({"id": "chat", "message": user(text("So?"))})
    assert (chat_request.continues, chat_request.earlier, chat_request.new.text) == (True, (), "So?")


def test_steps_are_rounds_with_their_results() -> None:
    thought: Fields = {"type": "reasoning", "text": "hm"}
    done = tool("output-available", output={"b": 2})
    reply = assistant(STEP, thought, text("Look:"), done, STEP, text("So."))
    earlier = read_ui_request(chat(user(text("Hi")), reply, user(text("Ok")))).earlier
    assert [message.role for message in earlier] == [Role.USER, Role.MODEL, Role.TOOL, Role.MODEL]
    assert earlier[1].content == (ContentPartReasoning(text="hm"), ContentPartText(text="Look:"), CALL)
    assert earlier[2].content == (ContentPartToolResult(id="c1", name="look", output={"b": 2}),)


@pytest.mark.parametrize(
    ("part", "output", "is_error"),
    [
        (tool("output-available", output=[1]), [1], False),
        (tool("output-error", errorText="broken"), "broken", True),
        (
            tool("output-denied", approval={"id": "x", "approved": False, "reason": "not now"}),
            "not now",
            True,
        ),
        (
            tool("approval-responded", approval={"id": "x", "approved": False}),
            "the user did not allow it",
            True,
        ),
        ({**tool("output-available", output="x"), "type": "dynamic-tool", "toolName": "look"}, "x", False),
    ],
    ids=["output", "error", "denied", "answered no", "dynamic"],
)
def test_results_go_on_with_the_assistants_message(part: Fields, output: object, is_error: bool) -> None:
    request = read_ui_request(chat(user(text("Hi")), assistant(STEP, part)))
    assert request.message_id == "a"
    assert request.new.role is Role.TOOL
    [result] = request.new.tool_results
    assert (result.id, result.name, result.output, result.is_error) == ("c1", "look", output, is_error)


@pytest.mark.parametrize("state", ["input-streaming", "input-available", "approval-requested"])
def test_without_a_result_there_is_nothing_to_answer(state: str) -> None:
    with pytest.raises(OpenAIError, match="must end with a message of the user or a tool"):
        read_ui_request(chat(user(text("Hi")), assistant(STEP, text("a"), tool(state))))


def test_input_that_could_not_be_read_is_text() -> None:
    broken = tool("output-error", errorText="no JSON") | {"input": '{"a'}
    [call] = read_ui_request(chat(user(text("Hi")), assistant(STEP, broken))).earlier[1].tool_calls
    assert (call.arguments, call.arguments_text) == ({}, '{"a')


def test_files_are_read_by_address_and_by_value() -> None:
    inline: Fields = {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,iVBORw=="}
    linked: Fields = {
        "type": "file",
        "mediaType": "application/pdf",
        "url": "https://x.example/a",
        "filename": "a.pdf",
    }
    [one, other] = read_ui_request(chat(user(inline, linked))).new.content
    assert one == ContentPartFile(data=b"\x89PNG", media_type="image/png")
    assert other == ContentPartFile(url="https://x.example/a", media_type="application/pdf", filename="a.pdf")


SCHEMA: Fields = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.mark.parametrize(
    "tools",
    [
        [{"name": "look", "description": "Look.", "parameters": SCHEMA}],
        {"look": {"description": "Look.", "inputSchema": {"jsonSchema": SCHEMA}}},
    ],
    ids=["list", "object"],
)
def test_the_body_may_have_further_options(tools: object) -> None:
    more: Fields = {
        "temperature": 0,
        "stopSequences": ["x"],
        "toolChoice": {"type": "tool", "toolName": "look"},
    }
    system: Fields = {"id": "s", "role": "system", "parts": [text("Be kind.")]}
    facts = read_ui_request(
        chat(system, user(text("Hi")), tools=tools, system="Be brief.", **more)
    ).caller_options
    [look] = facts.tools
    assert (look.name, look.description, look.parameters) == ("look", "Look.", SCHEMA)
    assert (facts.temperature, facts.stop, facts.instructions) == (0, ("x",), "Be brief.\n\nBe kind.")
    assert facts.tool_choice == ToolChoice(mode="tool", name="look")


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"messages": []}, "Invalid value for 'id'"),
        ({"id": "chat"}, "Invalid value for 'messages': there is none"),
        ({"id": "", "messages": [user(text("Hi"))]}, "a chat has an id"),
        ({"id": "ü", "messages": [user(text("Hi"))]}, "printable ASCII"),
        (chat({"id": "x", "role": "robot", "parts": []}), r"messages\[0\].role"),
        (chat(user({"type": "file", "url": 1})), r"messages\[0\].parts\[0\]"),
        (chat(user({"type": "file", "url": "data:image/png;base64,?"})), "Invalid value for 'messages"),
        (chat(assistant(tool("output-available", toolCallId=None))), r"messages\[0\]"),
        (chat(user(text("Hi")), tools="look"), "'tools'"),
        (chat(user(text("Hi")), tools={"look": 1}), "'tools'"),
        (chat(user(text("Hi")), tools=[{"name": ""}]), r"tools.0"),
        (chat(user(text("Hi")), toolChoice={"type": "tool"}), "toolChoice"),
        (chat(user(text("Hi")), toolChoice="sometimes"), "toolChoice"),
        (chat(user(text("Hi")), temperature="hot"), "temperature"),
    ],
)
def test_a_chat_that_cannot_be_read_is_refused(body: Fields, why: str) -> None:
    with pytest.raises(OpenAIError, match=why) as refused:
        read_ui_request(body)
    assert refused.value.status == 400


# --- AG-UI ------------------------------------------------------------------------------------------------------


def run(*messages: Fields, **fields: Any) -> Fields:
    return {"threadId": "thread", "runId": "run", "messages": list(messages), **fields}


def ag_ui_message(role: str, content: object, **fields: Any) -> Fields:
    return {"id": f"{role}-1", "role": role, "content": content, **fields}


def ag_ui_call(arguments: str = '{"a": 1}') -> Fields:
    return {"id": "c1", "type": "function", "function": {"name": "look", "arguments": arguments}}


def test_a_run_has_the_complete_conversation() -> None:
    request = read_run_request(
        run(
            ag_ui_message("system", "Be brief."),
            ag_ui_message("developer", "Be kind."),
            ag_ui_message("user", "Hi"),
            ag_ui_message("reasoning", "hm"),
            ag_ui_message("activity", {"x": 1}, activityType="plan"),
            ag_ui_message("assistant", None, toolCalls=[ag_ui_call()]),
            ag_ui_message("tool", "seen", toolCallId="c1"),
            ag_ui_message("assistant", "So."),
            ag_ui_message("user", [{"type": "text", "text": "And "}, {"type": "text", "text": "now?"}]),
            context=[{"description": "The page", "value": "rivers"}],
            tools=[{"name": "look", "description": "Look.", "parameters": SCHEMA}],
            forwardedProps={"temperature": 1},
        )
    )
    assert (request.thread_id, request.run_id) == ("thread", "run")
    chat_request = request.request
    assert chat_request is not None
    assert [message.role for message in chat_request.earlier] == [
        Role.USER,
        Role.MODEL,
        Role.TOOL,
        Role.MODEL,
    ]
    assert chat_request.earlier[1].content == (CALL,)
    assert chat_request.earlier[2].content == (ContentPartToolResult(id="c1", name="look", output="seen"),)
    assert chat_request.new.text == "And now?"
    assert chat_request.caller_options.instructions == "Be brief.\n\nBe kind.\n\nThe page: rivers"
    assert chat_request.caller_options.temperature == 1
    assert chat_request.tool_names == {"look"}


def test_a_failed_tool_has_a_reason() -> None:
    chat_request = read_run_request(
        run(
            ag_ui_message("user", "Hi"),
            ag_ui_message("assistant", "", toolCalls=[ag_ui_call()]),
            ag_ui_message("tool", "half", toolCallId="c1", error="broken"),
        )
    ).request
    assert chat_request is not None
    [result] = chat_request.new.tool_results
    assert (result.output, result.is_error) == ("broken\nhalf", True)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image", "source": {"type": "data", "value": "iVBORw==", "mimeType": "image/png"}},
        {"type": "binary", "mimeType": "image/png", "data": "iVBORw=="},
    ],
    ids=["1.0", "before"],
)
def test_media_are_files(part: Fields) -> None:
    chat_request = read_run_request(run(ag_ui_message("user", [part]))).request
    assert chat_request is not None
    assert chat_request.new.content == (ContentPartFile(data=b"\x89PNG", media_type="image/png"),)


def test_a_file_by_its_address() -> None:
    source = {"type": "url", "value": "https://x.example/a"}
    chat_request = read_run_request(
        run(ag_ui_message("user", [{"type": "document", "source": source}]))
    ).request
    assert chat_request is not None
    assert chat_request.new.content == (ContentPartFile(url="https://x.example/a"),)


@pytest.mark.parametrize("kind", [{"a": 1}, [], None, 1, "state"])
def test_a_part_of_an_unknown_type_is_left_out(kind: object) -> None:
    chat_request = read_run_request(run(ag_ui_message("user", [text("Hi"), {"type": kind}]))).request
    assert chat_request is not None
    assert chat_request.new.text == "Hi"


def test_a_run_without_messages_requests_the_history() -> None:
    assert read_run_request(run()).request is None


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"runId": "run", "messages": []}, "Invalid value for 'threadId'"),
        (run(threadId="ü"), "printable ASCII"),
        (run(ag_ui_message("assistant", "Hi")), "must end with a message of the user or a tool"),
        (run(ag_ui_message("user", [{"type": "image"}])), r"messages\[0\].content\[0\]"),
        (run(ag_ui_message("user", "Hi"), tools=[{"description": "x"}]), r"tools.0.name"),
    ],
)
def test_a_run_that_cannot_be_read_is_refused(body: Fields, why: str) -> None:
    with pytest.raises(OpenAIError, match=why) as refused:
        read_run_request(body)
    assert refused.value.status == 400

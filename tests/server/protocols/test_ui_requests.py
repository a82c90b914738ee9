"""Parsed requests of the AI SDK and AG-UI."""

from typing import Any

import pytest

from tailrace.server.protocols.ag_ui.request import read_run_request
from tailrace.server.protocols.ai_sdk.request import read_ui_request
from tailrace.server.protocols.errors import OpenAIError
from tailrace.wrappers import (
    ContentPartFile,
    ContentPartReasoning,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    Role,
)
from tailrace.wrappers.conversion.options import ToolChoice

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


def test_what_is_new_is_behind_what_the_assistant_said() -> None:
    request = read_ui_request(chat(user(text("Hi")), assistant(STEP, text("Hello")), user(text("So?"))))
    asked = request
    assert (asked.key, asked.continues, request.message_id) == ("chat", False, "")
    assert [(message.role, message.text) for message in asked.earlier] == [
        (Role.USER, "Hi"),
        (Role.MODEL, "Hello"),
    ]
    assert asked.new.text == "So?"


def test_one_message_alone_goes_on_with_what_is_stored() -> None:
    asked = read_ui_request({"id": "chat", "message": user(text("So?"))})
    assert (asked.continues, asked.earlier, asked.new.text) == (True, (), "So?")


def test_steps_are_rounds_with_their_results() -> None:
    thought: Fields = {"type": "reasoning", "text": "hm"}
    done = tool("output-available", output={"b": 2})
    said = assistant(STEP, thought, text("Look:"), done, STEP, text("So."))
    earlier = read_ui_request(chat(user(text("Hi")), said, user(text("Ok")))).earlier
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
def test_the_body_may_ask_for_more(tools: object) -> None:
    more: Fields = {
        "temperature": 0,
        "stopSequences": ["x"],
        "toolChoice": {"type": "tool", "toolName": "look"},
    }
    system: Fields = {"id": "s", "role": "system", "parts": [text("Be kind.")]}
    facts = read_ui_request(chat(system, user(text("Hi")), tools=tools, system="Be brief.", **more)).facts
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


def said(role: str, content: object, **fields: Any) -> Fields:
    return {"id": f"{role}-1", "role": role, "content": content, **fields}


def ag_ui_call(arguments: str = '{"a": 1}') -> Fields:
    return {"id": "c1", "type": "function", "function": {"name": "look", "arguments": arguments}}


def test_a_run_tells_the_whole_conversation() -> None:
    request = read_run_request(
        run(
            said("system", "Be brief."),
            said("developer", "Be kind."),
            said("user", "Hi"),
            said("reasoning", "hm"),
            said("activity", {"x": 1}, activityType="plan"),
            said("assistant", None, toolCalls=[ag_ui_call()]),
            said("tool", "seen", toolCallId="c1"),
            said("assistant", "So."),
            said("user", [{"type": "text", "text": "And "}, {"type": "text", "text": "now?"}]),
            context=[{"description": "The page", "value": "rivers"}],
            tools=[{"name": "look", "description": "Look.", "parameters": SCHEMA}],
            forwardedProps={"temperature": 1},
        )
    )
    assert (request.thread_id, request.run_id) == ("thread", "run")
    asked = request.request
    assert asked is not None
    assert [message.role for message in asked.earlier] == [Role.USER, Role.MODEL, Role.TOOL, Role.MODEL]
    assert asked.earlier[1].content == (CALL,)
    assert asked.earlier[2].content == (ContentPartToolResult(id="c1", name="look", output="seen"),)
    assert asked.new.text == "And now?"
    assert asked.facts.instructions == "Be brief.\n\nBe kind.\n\nThe page: rivers"
    assert asked.facts.temperature == 1
    assert asked.tool_names == {"look"}


def test_a_tool_that_failed_says_why() -> None:
    asked = read_run_request(
        run(
            said("user", "Hi"),
            said("assistant", "", toolCalls=[ag_ui_call()]),
            said("tool", "half", toolCallId="c1", error="broken"),
        )
    ).request
    assert asked is not None
    [result] = asked.new.tool_results
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
    asked = read_run_request(run(said("user", [part]))).request
    assert asked is not None
    assert asked.new.content == (ContentPartFile(data=b"\x89PNG", media_type="image/png"),)


def test_a_file_by_its_address() -> None:
    source = {"type": "url", "value": "https://x.example/a"}
    asked = read_run_request(run(said("user", [{"type": "document", "source": source}]))).request
    assert asked is not None
    assert asked.new.content == (ContentPartFile(url="https://x.example/a"),)


def test_a_run_without_messages_asks_for_what_was_said() -> None:
    assert read_run_request(run()).request is None


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"runId": "run", "messages": []}, "Invalid value for 'threadId'"),
        (run(threadId="ü"), "printable ASCII"),
        (run(said("assistant", "Hi")), "must end with a message of the user or a tool"),
        (run(said("user", [{"type": "image"}])), r"messages\[0\].content\[0\]"),
        (run(said("user", "Hi"), tools=[{"description": "x"}]), r"tools.0.name"),
    ],
)
def test_a_run_that_cannot_be_read_is_refused(body: Fields, why: str) -> None:
    with pytest.raises(OpenAIError, match=why) as refused:
        read_run_request(body)
    assert refused.value.status == 400

"""The API's own tools, their results, and items of other types, as parts of a message."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given, settings

from support.strategies import json_objects
from tailrace.wrappers import (
    ContentPart,
    ContentPartData,
    ContentPartFile,
    ContentPartText,
    ContentPartToolCall,
    ContentPartToolResult,
    FinishReason,
    Message,
    MessageAssembly,
)
from tailrace.wrappers.openai_responses import ResponsesDecoder, wrap_chunk

Fields = dict[str, Any]

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n").decode()
JPEG = base64.b64encode(b"\xff\xd8\xff\xe0").decode()


def event(kind: str, **fields: Any) -> Fields:
    return {"type": f"response.{kind}", "output_index": 0, **fields}


def added(item: Fields, output: int = 0) -> Fields:
    return event("output_item.added", item=item, output_index=output)


def done(item: Fields, output: int = 0) -> Fields:
    return event("output_item.done", item=item, output_index=output)


COMPLETED = {"type": "response.completed", "response": {"status": "completed"}}


def fold(*events: Fields) -> MessageAssembly:
    decoder = ResponsesDecoder()
    assembly = MessageAssembly(think_tags=False)
    for each in events:
        for chunk in decoder.wrap(dict(each)):
            assembly.add(chunk)
    assembly.close()
    return assembly


def message(*events: Fields) -> Message:
    return fold(*events).message()


def call(item: Fields, name: str, arguments: Fields, kind: str = "server") -> ContentPartToolCall:
    own = {"openai-responses": {"item": item}}
    call_id = item.get("call_id") or item["id"]
    return ContentPartToolCall(id=call_id, name=name, arguments=arguments, kind=kind, metadata=own)


WEB_SEARCH = {
    "type": "web_search_call",
    "id": "ws_1",
    "status": "completed",
    "action": {
        "type": "search",
        "query": "weather",
        "sources": [{"type": "url", "url": "https://example.com"}],
    },
}
FILE_SEARCH = {
    "type": "file_search_call",
    "id": "fs_1",
    "status": "completed",
    "queries": ["a", "b"],
    "results": [{"file_id": "f", "text": "found", "score": 0.5}],
}
CODE = {
    "type": "code_interpreter_call",
    "id": "ci_1",
    "status": "completed",
    "code": 'print("a\nb")',
    "container_id": "cntr_1",
    "outputs": [{"type": "logs", "logs": "a\nb"}],
}
MCP = {
    "type": "mcp_call",
    "id": "mcp_1",
    "server_label": "zip",
    "name": "shorten",
    "arguments": '{"url":"x"}',
    "output": "short",
    "error": None,
}
MCP_TOOLS = {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "zip", "tools": [{"name": "shorten"}]}
SHELL = {
    "type": "shell_call",
    "id": "sh_1",
    "call_id": "call_1",
    "status": "completed",
    "action": {"commands": ["ls"]},
    "environment": {"type": "container_reference", "container_id": "cntr_1"},
}
SHELL_OUTPUT = {
    "type": "shell_call_output",
    "id": "sho_1",
    "call_id": "call_1",
    "status": "completed",
    "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
}
TOOL_SEARCH = {
    "type": "tool_search_call",
    "id": "tsc_1",
    "call_id": None,
    "execution": "server",
    "status": "completed",
    "arguments": {"paths": ["get_weather"]},
}
TOOL_SEARCH_OUTPUT = {
    "type": "tool_search_output",
    "id": "tso_1",
    "call_id": None,
    "execution": "server",
    "status": "completed",
    "tools": [{"type": "function", "name": "get_weather"}],
}
PROGRAM = {"type": "program", "id": "cm_1", "call_id": "call_1", "code": "run()", "fingerprint": "seal"}
PROGRAM_OUTPUT = {"type": "program_output", "id": "cmo_1", "call_id": "call_1", "output": "done"}
NEW_TOOL = {"type": "time_travel_call", "id": "tt_1", "status": "completed", "year": 1984}

# Items of tools that the provider runs, and their parts.
SERVER_TOOLS: dict[str, tuple[list[Fields], list[ContentPart]]] = {
    "web search": ([WEB_SEARCH], [call(WEB_SEARCH, "web_search", {"action": WEB_SEARCH["action"]})]),
    "file search": (
        [FILE_SEARCH],
        [
            call(FILE_SEARCH, "file_search", {"queries": ["a", "b"]}),
            ContentPartToolResult(id="fs_1", name="file_search", output=FILE_SEARCH["results"]),
        ],
    ),
    "code interpreter": (
        [CODE],
        [
            call(CODE, "code_interpreter", {"code": CODE["code"], "container_id": "cntr_1"}),
            ContentPartToolResult(id="ci_1", name="code_interpreter", output=CODE["outputs"]),
        ],
    ),
    "a remote server's tool": (
        [MCP],
        [
            call(MCP, "shorten", {"url": "x"}),
            ContentPartToolResult(id="mcp_1", name="shorten", output="short"),
        ],
    ),
    "a remote server's tools": (
        [MCP_TOOLS],
        [
            call(MCP_TOOLS, "mcp_list_tools", {"server_label": "zip"}),
            ContentPartToolResult(id="mcpl_1", name="mcp_list_tools", output=[{"name": "shorten"}]),
        ],
    ),
    "a shell in a container": (
        [SHELL, SHELL_OUTPUT],
        [
            call(SHELL, "shell", {"action": SHELL["action"], "environment": SHELL["environment"]}),
            ContentPartToolResult(
                id="call_1",
                name="shell",
                output=SHELL_OUTPUT["output"],
                metadata={"openai-responses": {"item": SHELL_OUTPUT}},
            ),
        ],
    ),
    "a search for tools": (
        [TOOL_SEARCH, TOOL_SEARCH_OUTPUT],
        [
            call(TOOL_SEARCH, "tool_search", {"paths": ["get_weather"]}),
            ContentPartToolResult(
                id="tsc_1",
                name="tool_search",
                output=TOOL_SEARCH_OUTPUT["tools"],
                metadata={"openai-responses": {"item": TOOL_SEARCH_OUTPUT}},
            ),
        ],
    ),
    "a program": (
        [PROGRAM, PROGRAM_OUTPUT],
        [
            call(PROGRAM, "program", {"code": "run()"}),
            ContentPartToolResult(
                id="call_1",
                name="program",
                output="done",
                metadata={"openai-responses": {"item": PROGRAM_OUTPUT}},
            ),
        ],
    ),
    "an unknown tool": ([NEW_TOOL], [call(NEW_TOOL, "time_travel", {"year": 1984})]),
}


@pytest.mark.parametrize("name", SERVER_TOOLS)
def test_a_tool_that_the_provider_runs_is_a_call_with_its_result(name: str) -> None:
    items, parts = SERVER_TOOLS[name]
    events = [each for place, item in enumerate(items) for each in (added(item, place), done(item, place))]
    assert list(message(*events).content) == parts
    assert list(message(*[done(item, place) for place, item in enumerate(items)]).content) == parts
    whole = {"type": "response.completed", "response": {"status": "completed", "output": items}}
    assert list(message(whole).content) == parts


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, (items, _) in SERVER_TOOLS.items()
        if items[0].get("call_id") is not None or len(items) == 1
    ],
)
def test_single_events_have_the_same_content(name: str) -> None:
    items, parts = SERVER_TOOLS[name]
    assembly = MessageAssembly(think_tags=False)
    for place, item in enumerate(items):
        for each in (added(item, place), done(item, place)):
            for chunk in wrap_chunk(each):
                assembly.add(chunk)
    assert list(assembly.message().content) == parts


def test_an_answer_that_only_the_provider_tools_were_called_for_is_finished() -> None:
    assert fold(done(WEB_SEARCH), COMPLETED).finish_reason is FinishReason.STOP


def test_a_call_begins_where_it_was_announced_under_the_id_of_its_end() -> None:
    begun = {**TOOL_SEARCH, "call_id": "call_a", "arguments": {}, "status": "in_progress"}
    ended = {**TOOL_SEARCH, "call_id": "call_b"}
    text = {"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}
    answer = message(added(begun), done(text, 1), done(ended))
    assert [part.type for part in answer.content] == ["tool_call", "text"]
    assert answer.tool_calls[0].id == "call_b"


def test_the_arguments_of_a_remote_servers_tool_come_in_fragments() -> None:
    events = [
        added({**MCP, "arguments": "", "output": None}),
        event("mcp_call_arguments.delta", delta='{"url"'),
        event("mcp_call_arguments.delta", delta=':"x"}'),
        event("mcp_call_arguments.done", arguments=MCP["arguments"]),
        event("mcp_call.completed"),
    ]
    assert list(message(*events, done(MCP)).content) == SERVER_TOOLS["a remote server's tool"][1]


def test_code_is_a_string_in_the_arguments_while_it_is_written() -> None:
    events = [
        added({**CODE, "code": "", "outputs": None}),
        event("code_interpreter_call_code.delta", delta=""),
        event("code_interpreter_call_code.delta", delta='print("'),
        event("code_interpreter_call_code.delta", delta="a\nb"),
    ]
    half = fold(*events)
    assert half.tool_calls[0].arguments_text == '{"code": "print(\\"a\\nb'
    end = event("code_interpreter_call_code.done", code=CODE["code"])
    assert list(message(*events, end, done(CODE)).content) == SERVER_TOOLS["code interpreter"][1]
    assert list(message(*events, done(CODE)).content) == SERVER_TOOLS["code interpreter"][1]


def test_single_events_give_code_and_arguments_at_the_end() -> None:
    assembly = MessageAssembly(think_tags=False)
    events = [
        added({**CODE, "code": "", "outputs": None}),
        event("code_interpreter_call_code.delta", delta='print("'),
        event("code_interpreter_call_code.done", code=CODE["code"]),
        done(CODE),
    ]
    for each in events:
        for chunk in wrap_chunk(each):
            assembly.add(chunk)
    assert list(assembly.message().content) == SERVER_TOOLS["code interpreter"][1]


def test_complete_code_ends_the_arguments() -> None:
    item = {"type": "code_interpreter_call", "id": "ci_1", "code": "1"}
    answer = message(event("code_interpreter_call_code.delta", delta="1"), done(item))
    assert answer.tool_calls[0].arguments == {"code": "1"}


@pytest.mark.parametrize(
    ("fields", "output"),
    [
        ({"error": "no such tool"}, "no such tool"),
        ({"error": {"type": "http_error", "code": 500}}, {"type": "http_error", "code": 500}),
        ({"status": "failed", "output": None}, "failed"),
        ({"status": "failed", "output": "half"}, "half"),
    ],
)
def test_a_failed_tool_has_a_reason(fields: Fields, output: object) -> None:
    [result] = message(done({**MCP, "output": None, **fields})).tool_results
    assert (result.output, result.is_error) == (output, True)


# --- images -----------------------------------------------------------------------------------------------------


def image(**fields: Any) -> Fields:
    return {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": PNG, **fields}


@pytest.mark.parametrize(
    ("fields", "media_type"),
    [
        ({}, "image/png"),
        ({"result": JPEG}, "image/jpeg"),
        ({"output_format": "webp"}, "image/webp"),
        ({"result": "PHN2Zz4=", "output_format": "svg"}, "image/svg+xml"),
        ({"result": f"data:image/png;base64,{PNG}"}, "image/png"),
    ],
)
def test_an_image_that_was_made_is_a_file(fields: Fields, media_type: str) -> None:
    item = image(revised_prompt="a cat", **fields)
    begun = added(image(result=None, status="in_progress"))
    partial = event("image_generation_call.partial_image", partial_image_b64=PNG, partial_image_index=0)
    made, file = message(begun, partial, done(item)).content
    data = base64.b64decode(item["result"].removeprefix("data:image/png;base64,"))
    assert file == ContentPartFile(
        data=data, media_type=media_type, metadata={"openai-responses": {"id": "ig_1"}}
    )
    assert isinstance(made, ContentPartToolCall)
    assert (made.name, made.kind, made.arguments["revised_prompt"]) == ("image_generation", "server", "a cat")
    assert "result" not in made.metadata["openai-responses"]["item"]  # its bytes are stored once


def test_an_image_behind_an_address_is_a_link() -> None:
    _, file = message(done(image(result="https://example.com/a.png"))).content
    assert isinstance(file, ContentPartFile)
    assert (file.url, file.data) == ("https://example.com/a.png", None)


@pytest.mark.parametrize("result", ["", None, "not base64!", 3])
def test_an_image_that_cannot_be_read_stays_in_its_item(result: object) -> None:
    [made] = message(done(image(result=result))).content
    assert made.metadata["openai-responses"]["item"]["result"] == result


# --- the API's tools that the caller runs ------------------------------------------------------------------------

CALLERS_TOOLS: dict[str, tuple[Fields, str]] = {
    "computer": (
        {"type": "computer_call", "id": "cu_1", "call_id": "call_1", "action": {"type": "screenshot"}},
        "computer",
    ),
    "local shell": (
        {"type": "local_shell_call", "id": "lsh_1", "call_id": "call_1", "action": {"type": "exec", "command": ["ls"]}},
        "local_shell",
    ),
    "shell": ({"type": "shell_call", "id": "sh_1", "call_id": "call_1", "action": {"commands": ["ls"]}}, "shell"),
    "shell of the caller's machine": (
        {**SHELL, "environment": {"type": "local"}},
        "shell",
    ),
    "apply patch": (
        {"type": "apply_patch_call", "id": "ap_1", "call_id": "call_1", "operation": {"type": "delete_file", "path": "a"}},
        "apply_patch",
    ),
    "search for tools": ({**TOOL_SEARCH, "call_id": "call_1", "execution": "client"}, "tool_search"),
    "approval": (
        {"type": "mcp_approval_request", "id": "call_1", "name": "shorten", "server_label": "zip", "arguments": "{}"},
        "mcp_approval_request",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLERS_TOOLS)
def test_a_tool_of_the_apis_that_the_caller_runs_waits_for_an_answer(name: str) -> None:
    item, tool = CALLERS_TOOLS[name]
    assembly = fold(added(item), done(item), COMPLETED)
    [waiting] = assembly.tool_calls
    assert (waiting.id, waiting.name, waiting.kind) == ("call_1", tool, "function")
    assert waiting.metadata == {"openai-responses": {"item": item}}
    assert assembly.message().tool_results == ()
    assert assembly.finish_reason is FinishReason.TOOL_CALLS


# --- other items ------------------------------------------------------------------------------------------------


def test_an_item_that_is_no_call_is_data_with_the_whole_item() -> None:
    item = {"type": "compaction", "id": "cmp_1", "encrypted_content": "seal"}
    part = ContentPartData(data={"type": "compaction"}, metadata={"openai-responses": {"item": item}})
    assert message(added(item), done(item)).content == (part,)


def test_items_stand_in_the_order_in_which_they_came() -> None:
    text = {"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}
    answer = message(done(WEB_SEARCH), done(text, 1), done(FILE_SEARCH, 2), done({"type": "compaction"}, 3))
    assert [part.type for part in answer.content] == ["tool_call", "text", "tool_call", "tool_result", "data"]
    assert isinstance(answer.content[1], ContentPartText)


def test_an_item_of_no_type_is_nothing() -> None:
    assert message(done({"id": "x"}), event("output_item.done", item=None)).content == ()


@given(json_objects)
@settings(deadline=None)
def test_whatever_an_item_holds_it_can_be_kept(fields: Fields) -> None:
    for kind in (
        "odd",
        "odd_call",
        "odd_output",
        "mcp_call",
        "code_interpreter_call",
        "image_generation_call",
    ):
        answer = message(done({**fields, "type": kind}))
        assert Message.model_validate_json(answer.model_dump_json()) == answer


def test_an_item_nested_too_deeply_can_be_kept() -> None:
    value: object = "x"
    for _ in range(60):
        value = [value]
    for kind in ("odd", "odd_call", "odd_output", "mcp_call"):
        answer = message(done({"type": kind, "id": "a", "output": value, "arguments": {"a": value}}))
        json.loads(answer.model_dump_json())

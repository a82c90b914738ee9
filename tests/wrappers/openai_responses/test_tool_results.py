"""Tool results in the form that the API requires for each of its own tools."""

from typing import Any

import pytest
from openai.types.responses import ResponseInputItemParam
from pydantic import TypeAdapter

from tailrace.wrappers import ContentPartToolResult
from tailrace.wrappers.conversion.message_objects import result_text
from tailrace.wrappers.openai_responses.tool_results import function_output, result_item

Fields = dict[str, Any]

package_items: TypeAdapter[Any] = TypeAdapter(ResponseInputItemParam)

SCREENSHOT = {"type": "computer_screenshot", "image_url": "https://example.com/a.png"}
EXIT = {"type": "exit", "exit_code": 0}


def result(output: Any, *, is_error: bool = False) -> ContentPartToolResult:
    return ContentPartToolResult(id="call_1", name="x", output=output, is_error=is_error)


ANSWERS: dict[str, tuple[str, ContentPartToolResult, Fields | None]] = {
    "a patch": (
        "apply_patch_call",
        result("patched"),
        {"type": "apply_patch_call_output", "call_id": "call_1", "status": "completed", "output": "patched"},
    ),
    "a patch that failed": (
        "apply_patch_call",
        result("no such file", is_error=True),
        {
            "type": "apply_patch_call_output",
            "call_id": "call_1",
            "status": "failed",
            "output": '{"error": "no such file"}',
        },
    ),
    "a local shell": (
        "local_shell_call",
        result({"stdout": "a"}),
        {"type": "local_shell_call_output", "id": "call_1", "output": '{"stdout": "a"}'},
    ),
    "a shell, as text": (
        "shell_call",
        result("a"),
        {
            "type": "shell_call_output",
            "call_id": "call_1",
            "output": [{"stdout": "a", "stderr": "", "outcome": EXIT}],
        },
    ),
    "a shell that failed": (
        "shell_call",
        result("a", is_error=True),
        {
            "type": "shell_call_output",
            "call_id": "call_1",
            "output": [
                {"stdout": '{"error": "a"}', "stderr": "", "outcome": {"type": "exit", "exit_code": 1}}
            ],
        },
    ),
    "a shell, in the API's form": (
        "shell_call",
        result([{"stdout": "a", "stderr": "b", "outcome": {"type": "timeout"}}]),
        {
            "type": "shell_call_output",
            "call_id": "call_1",
            "output": [{"stdout": "a", "stderr": "b", "outcome": {"type": "timeout"}}],
        },
    ),
    "a screenshot": (
        "computer_call",
        result(SCREENSHOT),
        {"type": "computer_call_output", "call_id": "call_1", "output": SCREENSHOT},
    ),
    "a screenshot's URL": (
        "computer_call",
        result("https://example.com/a.png"),
        {"type": "computer_call_output", "call_id": "call_1", "output": SCREENSHOT},
    ),
    "no screenshot": ("computer_call", result("there is no screen"), None),
    "a result other than a screenshot": ("computer_call", result({"type": "text"}), None),
    "tools": (
        "tool_search_call",
        result([{"type": "web_search"}]),
        {
            "type": "tool_search_output",
            "call_id": "call_1",
            "execution": "client",
            "status": "completed",
            "tools": [{"type": "web_search"}],
        },
    ),
    "tools in an object": (
        "tool_search_call",
        result({"tools": []}),
        {
            "type": "tool_search_output",
            "call_id": "call_1",
            "execution": "client",
            "status": "completed",
            "tools": [],
        },
    ),
    "no tools": ("tool_search_call", result("none"), None),
    "an approval": (
        "mcp_approval_request",
        result(True),
        {"type": "mcp_approval_response", "approval_request_id": "call_1", "approve": True},
    ),
    "an approval with a reason": (
        "mcp_approval_request",
        result({"approve": False, "reason": "too far"}),
        {
            "type": "mcp_approval_response",
            "approval_request_id": "call_1",
            "approve": False,
            "reason": "too far",
        },
    ),
    "an approval without an answer": (
        "mcp_approval_request",
        result("asleep", is_error=True),
        {"type": "mcp_approval_response", "approval_request_id": "call_1", "approve": False},
    ),
    "neither approved nor not": ("mcp_approval_request", result("perhaps"), None),
    "an unknown tool": ("time_travel_call", result("1984"), None),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_each_tool_of_the_apis_is_answered_in_its_own_form(name: str) -> None:
    kind, answer, item = ANSWERS[name]
    assert result_item({"type": kind}, answer) == item
    if item is not None:
        package_items.validate_python(item)


def test_a_function_has_no_form_of_its_own() -> None:
    assert result_item(None, result("a")) is None


CONTENT: list[Fields] = [
    {"type": "input_text", "text": "a"},
    {"type": "input_image", "detail": "auto", "image_url": "https://example.com/a.png"},
]


@pytest.mark.parametrize(
    ("answer", "output"),
    [
        (result("a"), "a"),
        (result({"t": [72, "°F"]}), '{"t": [72, "°F"]}'),
        (result(None), "null"),
        (result([]), "[]"),
        (result(CONTENT), CONTENT),
        (result([*CONTENT, 1]), '[{"type": "input_text", "text": "a"}, '
         '{"type": "input_image", "detail": "auto", "image_url": "https://example.com/a.png"}, 1]'),
        (result("no", is_error=True), '{"error": "no"}'),
        (result({"error": "no", "code": 1}, is_error=True), '{"error": "no", "code": 1}'),
        (result([{"type": "input_text", "text": "a"}], is_error=True), '{"error": [{"type": "input_text", "text": "a"}]}'),
    ],
)  # fmt: skip
def test_a_function_answers_with_text_or_content(answer: ContentPartToolResult, output: object) -> None:
    item = {"type": "function_call_output", "call_id": "call_1", "output": output}
    assert function_output(answer, "function") == item
    assert function_output(answer, "custom") == {**item, "type": "custom_tool_call_output"}
    package_items.validate_python(item)


def test_a_failure_is_marked_in_its_text() -> None:
    assert result_text(result("no", is_error=True)) == '{"error": "no"}'

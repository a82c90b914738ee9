"""Conversion of tool results to input items of the Responses API."""

from collections.abc import Mapping
from typing import Any, cast

from tailrace.wrappers.conversion.message_objects import result_text
from tailrace.wrappers.decoding.lenient_json import as_mapping, as_text
from tailrace.wrappers.messages import ContentPartToolResult

Fields = dict[str, Any]

# Types of content parts that the output of a function may contain.
_CONTENT = frozenset({"input_text", "input_image", "input_file"})


def result_item(call: Mapping[str, Any] | None, result: ContentPartToolResult) -> Fields | None:
    """Return the input item for the result of a built-in tool that the application ran.

    Args:
        call: The item of the call; None for a function call.
        result: The result of the tool.

    Returns:
        The item. None for a function call, and for output that is not valid for the built-in tool. The call and the result must
        then be sent as a function call and its output.
    """
    kind = call.get("type") if call is not None else None
    output = result.output
    fields = as_mapping(output) or {}
    text = result_text(result)
    match kind:
        case "apply_patch_call":
            status = "failed" if result.is_error else "completed"
            return {"type": f"{kind}_output", "call_id": result.id, "status": status, "output": text}
        case "local_shell_call":
            return {"type": f"{kind}_output", "id": result.id, "output": text}
        case "shell_call":
            outputs: list[Any] = _items(output)
            if not isinstance(output, list):
                outcome = {"type": "exit", "exit_code": int(result.is_error)}
                outputs = [{"stdout": text, "stderr": "", "outcome": outcome}]
            return {"type": f"{kind}_output", "call_id": result.id, "output": outputs}
        case "computer_call":
            screenshot = _screenshot(output)
            if screenshot is None:
                return None
            return {"type": f"{kind}_output", "call_id": result.id, "output": screenshot}
        case "tool_search_call":
            tools: object = fields.get("tools", output)
            if not isinstance(tools, list):
                return None
            item = {"type": "tool_search_output", "call_id": result.id, "execution": "client"}
            return {**item, "status": "completed", "tools": _items(cast("object", tools))}
        case "mcp_approval_request":
            approve = fields.get("approve", output)
            if result.is_error:
                approve = False
            if not isinstance(approve, bool):
                return None
            reason = {"reason": fields["reason"]} if as_text(fields.get("reason")) else {}
            return {
                "type": "mcp_approval_response",
                "approval_request_id": result.id,
                "approve": approve,
                **reason,
            }
        case _:
            return None


def function_output(result: ContentPartToolResult, kind: str) -> Fields:
    """Return the input item for the result of a function.

    Args:
        result: The result of the function.
        kind: The ``kind`` of the call in the common format.
    """
    output = result.output
    kinds = [(as_mapping(part) or {}).get("type") for part in _items(output)]
    # A list of the API's content parts, for example with images, is sent unchanged.
    typed = bool(kinds) and all(each in _CONTENT for each in kinds) and not result.is_error
    return {
        "type": "custom_tool_call_output" if kind == "custom" else "function_call_output",
        "call_id": result.id,
        "output": output if typed else result_text(result),
    }


def _screenshot(output: object) -> Fields | None:
    fields = as_mapping(output)
    if fields is not None:
        return dict(fields) if fields.get("type") == "computer_screenshot" else None
    url = as_text(output)
    if not url.startswith(("data:image/", "https://", "http://")):
        return None
    return {"type": "computer_screenshot", "image_url": url}


def _items(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []

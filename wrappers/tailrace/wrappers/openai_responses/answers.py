"""What tools have answered, as items of a request."""

import json
from collections.abc import Mapping
from typing import Any, cast

from tailrace.wrappers.loose_json import as_mapping, as_text
from tailrace.wrappers.messages import ContentPartToolResult

Fields = dict[str, Any]

# What the output of a function may be made of instead of text.
_CONTENT = frozenset({"input_text", "input_image", "input_file"})


def answer_item(call: Mapping[str, Any] | None, result: ContentPartToolResult) -> Fields | None:
    """The item for the result of a call of one of the API's own tools that the caller ran.

    Args:
        call: The item of the call; None for a function's.
        result: The result.

    Returns:
        None where the output has no form that the API takes for that tool. Then it can only be told as the output of
        a function, and the call as the call of one.
    """
    kind = call.get("type") if call is not None else None
    output = result.output
    given = as_mapping(output) or {}
    text = output_text(result)
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
            tools: object = given.get("tools", output)
            if not isinstance(tools, list):
                return None
            answer = {"type": "tool_search_output", "call_id": result.id, "execution": "client"}
            return {**answer, "status": "completed", "tools": _items(cast("object", tools))}
        case "mcp_approval_request":
            approve = given.get("approve", output)
            if result.is_error:
                approve = False
            if not isinstance(approve, bool):
                return None
            reason = {"reason": given["reason"]} if as_text(given.get("reason")) else {}
            return {
                "type": "mcp_approval_response",
                "approval_request_id": result.id,
                "approve": approve,
                **reason,
            }
        case _:
            return None


def function_output(result: ContentPartToolResult, kind: str) -> Fields:
    """The item for the result of a function.

    Args:
        result: The result.
        kind: Of the call, in the common format's words.
    """
    output = result.output
    kinds = [(as_mapping(part) or {}).get("type") for part in _items(output)]
    # A list of the API's own content parts is sent as that: it may hold images.
    typed = bool(kinds) and all(each in _CONTENT for each in kinds) and not result.is_error
    return {
        "type": "custom_tool_call_output" if kind == "custom" else "function_call_output",
        "call_id": result.id,
        "output": output if typed else output_text(result),
    }


def output_text(result: ContentPartToolResult) -> str:
    """A result in words: its text, or its JSON; that of a failed tool says so."""
    output = result.output
    if result.is_error and "error" not in (as_mapping(output) or {}):
        output = {"error": output}
    return output if isinstance(output, str) else json.dumps(output, ensure_ascii=False)


def _screenshot(output: object) -> Fields | None:
    fields = as_mapping(output)
    if fields is not None:
        return dict(fields) if fields.get("type") == "computer_screenshot" else None
    address = as_text(output)
    if not address.startswith(("data:image/", "https://", "http://")):
        return None
    return {"type": "computer_screenshot", "image_url": address}


def _items(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []

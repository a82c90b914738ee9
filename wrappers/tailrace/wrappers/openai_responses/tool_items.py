"""Conversion of tool calls, their results and other items of the Responses API, except messages and reasoning.

Each built-in tool has its own item types, and OpenAI often adds new types. The conversion therefore usually depends only on the
name of the type: ``…_call`` is a call, ``…_output`` is the result of a call, and any other item is structured data. The metadata
of the content part contains the complete item for later requests.
"""

from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from tailrace.wrappers.decoding.extra_fields import json_text, plain_json
from tailrace.wrappers.decoding.lenient_json import as_mapping, as_text
from tailrace.wrappers.messages import ContentPartData, ContentPartFile, ContentPartToolResult
from tailrace.wrappers.openai_responses.response_progress import CODE, Item

KEY = "openai-responses"
"""Metadata key of fields that must be unchanged in later requests to this API."""

FUNCTION_CALLS = {"function_call": "function", "custom_tool_call": "custom"}
"""The ``kind`` of a call in the common format, by item type."""

Fields = dict[str, Any]

_IMAGE = "image_generation_call"
_MORE_CALLS = frozenset({"mcp_approval_request", "mcp_list_tools", "program"})
# Item types of built-in tools that the application runs. The API rejects their calls without a result.
_CLIENT_CALLS = frozenset({"apply_patch_call", "computer_call", "local_shell_call", "mcp_approval_request"})
# Field that shows whether the application runs the tool, by item type.
_RUNNER_FIELDS = {"shell_call": "environment", "tool_search_call": "execution"}
_OUTPUTS = ("output", "outputs", "results", "tools")
# Fields of a call item that are not arguments.
_NON_ARGUMENTS = frozenset(
    {
        *_OUTPUTS,
        "call_id",
        "caller",
        "created_by",
        "error",
        "fingerprint",
        "id",
        "result",
        "status",
        "svg_usage",
        "type",
    }
)
# Fields of messages, reasoning and function calls that exist in the common format, or are not needed in later requests.
_OMITTED_FIELDS = frozenset(
    {"arguments", "call_id", "content", "input", "name", "role", "summary", "type", "created_by"}
)
_DEFAULT_STATES = ("completed", "in_progress")
# Prefixes of base64-encoded images.
_IMAGE_TYPES = {"/9j/": "image/jpeg", "R0lGOD": "image/gif", "UklGR": "image/webp"}


def json_object(value: object) -> Fields:
    """Return an event, item or response as a new JSON object. The value may be an object of the ``openai`` package.

    Raises:
        ValueError: The value is not an object.
    """
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    if not isinstance(value, BaseModel):
        raise ValueError(f"a value of type {type(value).__name__} where an object is required")
    # The package does not validate its objects, so pydantic would warn about unexpected values.
    return value.model_dump(mode="json", exclude_unset=True, warnings=False)


def text_or_json(value: object) -> str:
    """Return text unchanged, and an object as JSON. Some servers send arguments as an object."""
    fields = as_mapping(value)
    return as_text(value) if fields is None else json_text(fields)


def own_fields(item: Mapping[str, Any]) -> Fields:
    """Return the fields of a message, reasoning item or function call that do not exist in the common format.

    The status is included only if it is unusual, for example ``incomplete`` for a truncated call.
    """
    return {
        name: value
        for name, value in item.items()
        if name not in _OMITTED_FIELDS
        and value not in (None, "")
        and not (name == "status" and value in _DEFAULT_STATES)
    }


def is_call(kind: str) -> bool:
    """Return True if an item type is that of a built-in tool's call."""
    return kind not in FUNCTION_CALLS and (kind.endswith("_call") or kind in _MORE_CALLS)


def is_output(kind: str) -> bool:
    """Return True if an item type is that of a tool result."""
    return kind.endswith("_output") or kind == "mcp_approval_response"


def is_client_call(item: Mapping[str, Any]) -> bool:
    """Return True if an item is a call of a built-in tool that the application runs."""
    kind = as_text(item.get("type"))
    if kind == "shell_call":
        environment = as_mapping(item.get("environment"))
        return environment is None or environment.get("type") == "local"
    return kind in _CLIENT_CALLS or (kind == "tool_search_call" and item.get("execution") == "client")


def call_kind(kind: str, item: Mapping[str, Any] | None = None) -> str:
    """Return the ``kind`` of a call in the common format; empty if it cannot be known yet.

    Args:
        kind: The type of the item.
        item: The fields of the item that have arrived, or None.
    """
    if kind in FUNCTION_CALLS:
        return FUNCTION_CALLS[kind]
    runner_field = _RUNNER_FIELDS.get(kind)
    if runner_field is not None and (item is None or runner_field not in item):
        return ""
    return "function" if item is not None and is_client_call(item) else "server"


def call_name(item: Mapping[str, Any]) -> str:
    """Return the name of the called tool: for a built-in tool, the item type without ``_call``."""
    kind = as_text(item.get("type"))
    return as_text(item.get("name")) if kind == "mcp_call" else kind.removesuffix("_call")


def call_id(item: Mapping[str, Any]) -> str:
    """Return the id of a call."""
    return as_text(item.get("call_id")) or as_text(item.get("id"))


def call_arguments(item: Mapping[str, Any]) -> Fields | str:
    """Return the arguments of a call: JSON text if the API has a member for them, otherwise an object of the other fields."""
    arguments = item.get("arguments")
    if item.get("type") in ("mcp_call", "tool_search_call") and arguments is not None:
        return arguments if isinstance(arguments, str) else json_text(arguments)
    fields = {name: value for name, value in item.items() if name not in _NON_ARGUMENTS and value is not None}
    if isinstance(fields.get("code"), str):
        fields = {"code": fields.pop("code"), **fields}  # it is streamed first
    return fields


def remaining_arguments(progress: Item, item: Mapping[str, Any]) -> str:
    """Return the rest of a call's argument text that the decoder has not returned."""
    arguments = call_arguments(item)
    part = next((part for part in progress.parts.values() if part.length), None)
    if isinstance(arguments, str):
        return part.remaining(arguments) if part is not None else arguments
    if part is None or part.kind != CODE:
        return json_text(arguments)
    remaining = json_text(part.remaining(as_text(arguments.pop("code", ""))))[1:-1]
    return f'{remaining}", {json_text(arguments)[1:]}' if arguments else f'{remaining}"}}'


def stored_item(item: Mapping[str, Any], *, file: ContentPartFile | None = None) -> Fields:
    """Return metadata that contains an item, without the bytes of its image if they are in ``file``."""
    fields = {name: value for name, value in item.items() if file is None or name != "result"}
    return {KEY: {"item": plain_json(fields)}}


def call_result(item: Mapping[str, Any]) -> ContentPartToolResult | None:
    """Return the result in the item of a server tool call; None if the item has no result."""
    output = next((item[name] for name in _OUTPUTS if item.get(name) is not None), None)
    error = item.get("error")
    failed = bool(error) or item.get("status") == "failed"
    if output is None and not failed:
        return None
    reported = error or (output if output is not None else "failed")
    return ContentPartToolResult(
        id=call_id(item), name=call_name(item), output=plain_json(reported), is_error=failed
    )


def output_result(item: Mapping[str, Any], default_call_id: str = "") -> ContentPartToolResult:
    """Convert the item of a tool result to a content part.

    Args:
        item: The item.
        default_call_id: The id of the call for an item without a call id.
    """
    kind = as_text(item.get("type"))
    names = ("call_id", "approval_request_id") if kind != "local_shell_call_output" else ("id",)
    call_id = next((item[name] for name in names if isinstance(item.get(name), str)), default_call_id)
    output = next((item[name] for name in _OUTPUTS if item.get(name) is not None), None)
    if kind == "mcp_approval_response":
        output = item.get("approve")
    return ContentPartToolResult(
        id=call_id or as_text(item.get("id")),
        name=output_tool_name(kind),
        output=plain_json(output),
        is_error=item.get("status") == "failed",
        metadata=stored_item(item),
    )


def output_tool_name(kind: str) -> str:
    """Return the name of the tool for the item type of a result. It is equal to `call_name` of the call."""
    if kind == "mcp_approval_response":
        return "mcp_approval_request"
    return kind.removesuffix("_output").removesuffix("_call")


def data_part(item: Mapping[str, Any]) -> ContentPartData:
    """Return a data part for an item, which is in the metadata of the part."""
    return ContentPartData(data={"type": plain_json(item.get("type"))}, metadata=stored_item(item))


def image_file(item: Mapping[str, Any]) -> ContentPartFile | None:
    """Return the image that a call has generated; None if the call has no valid image."""
    result = item.get("result")
    if item.get("type") != _IMAGE or not isinstance(result, str) or not result:
        return None
    if result.startswith(("http://", "https://")):
        source: Fields = {"url": result}
    else:
        source = {"data": result.partition(",")[2] if result.startswith("data:") else result}
    kind = as_text(item.get("output_format"))
    data = as_text(source.get("data"))
    detected = next((value for prefix, value in _IMAGE_TYPES.items() if data.startswith(prefix)), "image/png")
    try:
        return ContentPartFile.model_validate(
            {
                **source,
                "media_type": f"image/{'svg+xml' if kind == 'svg' else kind}" if kind else detected,
                "metadata": {KEY: {"id": plain_json(item.get("id"))}},
            }
        )
    except ValidationError:
        return None

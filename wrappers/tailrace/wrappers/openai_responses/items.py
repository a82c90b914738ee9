"""The items of a Responses answer that are neither messages nor reasoning: calls, what they answered, and the rest.

Every tool that the API brings along has item types of its own, and more appear every few months. They are told by
their shape: a ``…_call`` is a call, a ``…_output`` what a call answered, anything else structured data. The whole item
is kept under the API's key in the part's metadata, so that it can be sent back as it was.
"""

from collections.abc import Mapping
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from tailrace.wrappers.fields import json_text, plain_json
from tailrace.wrappers.loose_json import as_mapping, as_text
from tailrace.wrappers.messages import ContentPartData, ContentPartFile, ContentPartToolResult
from tailrace.wrappers.openai_responses.progress import CODE, Item

KEY = "openai-responses"
"""What stands under this key in the metadata of parts is this API's own, and is sent back to it."""

FUNCTION_CALLS = {"function_call": "function", "custom_tool_call": "custom"}
"""The items that call a tool of the caller's, and the kind of tool."""

Fields = dict[str, Any]

_IMAGE = "image_generation_call"
_MORE_CALLS = frozenset({"mcp_approval_request", "mcp_list_tools", "program"})
# Calls of the API's own tools that it leaves to the caller: without an answer it refuses the next request.
_RUN_BY_CALLER = frozenset({"apply_patch_call", "computer_call", "local_shell_call", "mcp_approval_request"})
_SIGNS = {"shell_call": "environment", "tool_search_call": "execution"}  # the field that says who runs it
_OUTPUTS = ("output", "outputs", "results", "tools")
# Fields of a call that are not the model's words.
_NOT_ARGUMENTS = frozenset(
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
# Fields of messages, reasoning and function calls that have a place of their own in the common format.
_COMMON = frozenset(
    {"arguments", "call_id", "content", "input", "name", "role", "summary", "type", "created_by"}
)
_USUAL_STATES = ("completed", "in_progress")
# What the base64 text of an image begins with.
_IMAGE_TYPES = {"/9j/": "image/jpeg", "R0lGOD": "image/gif", "UklGR": "image/webp"}


def json_object(value: object) -> Fields:
    """An event, item or response as its JSON object, whichever form it has; the caller's to change.

    Raises:
        ValueError: It is no object.
    """
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    if not isinstance(value, BaseModel):
        raise ValueError(f"a value of type {type(value).__name__} where an object must stand")
    # The package builds its objects without validation, so that odd values are no reason to warn.
    return value.model_dump(mode="json", exclude_unset=True, warnings=False)


def said_text(value: object) -> str:
    """Text; of an object its JSON, since some servers send arguments so."""
    fields = as_mapping(value)
    return as_text(value) if fields is None else json_text(fields)


def own_fields(item: Mapping[str, Any]) -> Fields:
    """The fields of a message, a reasoning item or a function call that only this API knows.

    A state is one of them only where it is not the usual one (a call that was cut off is ``incomplete``).
    """
    return {
        name: value
        for name, value in item.items()
        if name not in _COMMON
        and value not in (None, "")
        and not (name == "status" and value in _USUAL_STATES)
    }


def is_call(kind: str) -> bool:
    """Whether an item of this type is a call of a tool, other than a function call."""
    return kind not in FUNCTION_CALLS and (kind.endswith("_call") or kind in _MORE_CALLS)


def is_output(kind: str) -> bool:
    """Whether an item of this type says what a call has answered."""
    return kind.endswith("_output") or kind == "mcp_approval_response"


def run_by_caller(item: Mapping[str, Any]) -> bool:
    """Whether a call of one of the API's own tools waits for the caller's answer."""
    kind = as_text(item.get("type"))
    if kind == "shell_call":
        environment = as_mapping(item.get("environment"))
        return environment is None or environment.get("type") == "local"
    return kind in _RUN_BY_CALLER or (kind == "tool_search_call" and item.get("execution") == "client")


def call_kind(kind: str, item: Mapping[str, Any] | None = None) -> str:
    """What kind of call an item is, in the common format's words; empty as long as that cannot be told.

    Args:
        kind: The item's type.
        item: The item, as far as it is known.
    """
    if kind in FUNCTION_CALLS:
        return FUNCTION_CALLS[kind]
    sign = _SIGNS.get(kind)
    if sign is not None and (item is None or sign not in item):
        return ""
    return "function" if item is not None and run_by_caller(item) else "server"


def call_name(item: Mapping[str, Any]) -> str:
    """The tool that an item calls: of a remote server its own name, of the API's tools their type's."""
    kind = as_text(item.get("type"))
    return as_text(item.get("name")) if kind == "mcp_call" else kind.removesuffix("_call")


def call_id(item: Mapping[str, Any]) -> str:
    """The id by which a call is answered."""
    return as_text(item.get("call_id")) or as_text(item.get("id"))


def call_arguments(item: Mapping[str, Any]) -> Fields | str:
    """What the model asks of a tool: as text where the item has it as text, else an object."""
    arguments = item.get("arguments")
    if item.get("type") in ("mcp_call", "tool_search_call") and arguments is not None:
        return arguments if isinstance(arguments, str) else json_text(arguments)
    fields = {name: value for name, value in item.items() if name not in _NOT_ARGUMENTS and value is not None}
    if isinstance(fields.get("code"), str):
        fields = {"code": fields.pop("code"), **fields}  # first, as it is streamed
    return fields


def rest_of_arguments(said: Item, item: Mapping[str, Any]) -> str:
    """What of the text of a call's arguments was not said yet.

    Args:
        said: How much was.
        item: The whole item.
    """
    arguments = call_arguments(item)
    part = next((part for part in said.parts.values() if part.length), None)
    if isinstance(arguments, str):
        return part.rest(arguments) if part is not None else arguments
    if part is None or part.kind != CODE:
        return json_text(arguments)
    rest = json_text(part.rest(as_text(arguments.pop("code", ""))))[1:-1]
    return f'{rest}", {json_text(arguments)[1:]}' if arguments else f'{rest}"}}'


def stored_item(item: Mapping[str, Any], *, file: ContentPartFile | None = None) -> Fields:
    """An item as it is kept in metadata; an image's bytes are kept once, in its file."""
    kept = {name: value for name, value in item.items() if file is None or name != "result"}
    return {KEY: {"item": plain_json(kept)}}


def call_result(item: Mapping[str, Any]) -> ContentPartToolResult | None:
    """What a tool that the API ran has answered, where its own item says so."""
    output = next((item[name] for name in _OUTPUTS if item.get(name) is not None), None)
    error = item.get("error")
    failed = bool(error) or item.get("status") == "failed"
    if output is None and not failed:
        return None
    said = error or (output if output is not None else "failed")
    return ContentPartToolResult(
        id=call_id(item), name=call_name(item), output=plain_json(said), is_error=failed
    )


def output_result(item: Mapping[str, Any], answers: str = "") -> ContentPartToolResult:
    """What a call has answered, as an item of its own.

    Args:
        item: The item.
        answers: Id of the call, where the item does not say.
    """
    kind = as_text(item.get("type"))
    names = ("call_id", "approval_request_id") if kind != "local_shell_call_output" else ("id",)
    known = next((item[name] for name in names if isinstance(item.get(name), str)), answers)
    output = next((item[name] for name in _OUTPUTS if item.get(name) is not None), None)
    if kind == "mcp_approval_response":
        output = item.get("approve")
    return ContentPartToolResult(
        id=known or as_text(item.get("id")),
        name=tool_of_output(kind),
        output=plain_json(output),
        is_error=item.get("status") == "failed",
        metadata=stored_item(item),
    )


def tool_of_output(kind: str) -> str:
    """The name of the tool whose answer an item of this type is, as `call_name` gives it."""
    if kind == "mcp_approval_response":
        return "mcp_approval_request"
    return kind.removesuffix("_output").removesuffix("_call")


def data_part(item: Mapping[str, Any]) -> ContentPartData:
    """An item that is nobody's call: what it is, and the whole of it in the metadata."""
    return ContentPartData(data={"type": plain_json(item.get("type"))}, metadata=stored_item(item))


def image_file(item: Mapping[str, Any]) -> ContentPartFile | None:
    """The image that a call has made; None when there is none, or it cannot be read."""
    result = item.get("result")
    if item.get("type") != _IMAGE or not isinstance(result, str) or not result:
        return None
    if result.startswith(("http://", "https://")):
        source: Fields = {"url": result}
    else:
        source = {"data": result.partition(",")[2] if result.startswith("data:") else result}
    kind = as_text(item.get("output_format"))
    begin = as_text(source.get("data"))
    known = next((value for start, value in _IMAGE_TYPES.items() if begin.startswith(start)), "image/png")
    try:
        return ContentPartFile.model_validate(
            {
                **source,
                "media_type": f"image/{'svg+xml' if kind == 'svg' else kind}" if kind else known,
                "metadata": {KEY: {"id": plain_json(item.get("id"))}},
            }
        )
    except ValidationError:
        return None

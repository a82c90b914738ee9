"""Parsers for tools, sampling parameters, output formats and files of a request."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

from pydantic import BaseModel

from tailrace.server.protocols.openai_error import OpenAIError, reject_invalid
from tailrace.server.protocols.task_events import is_mapping
from tailrace.streaming.agent.caller_options import CallerOptions
from tailrace.wrappers import ContentPartFile
from tailrace.wrappers.conversion.files import read_data_url
from tailrace.wrappers.messages import shortened
from tailrace.wrappers.request_options import OutputFormat, ToolChoice, ToolDefinition

M = TypeVar("M", bound=BaseModel)

# Options of the AI SDK and AG-UI, and the names in `CallerOptions`.
_OPTIONS = {
    "maxOutputTokens": "max_output_tokens",
    "temperature": "temperature",
    "topP": "top_p",
    "stopSequences": "stop",
    "seed": "seed",
    "presencePenalty": "presence_penalty",
    "frequencyPenalty": "frequency_penalty",
    "reasoningEffort": "reasoning_effort",
    "parallelToolCalls": "parallel_tool_calls",
}


def parse_ui_options(options: Mapping[str, Any], tools: object, instructions: str) -> CallerOptions:
    """Return the options of an AI SDK or AG-UI request.

    Args:
        options: Members of the request. Other members are ignored.
        tools: The client's tools: a list of definitions, or an object with definitions by name.
        instructions: Instructions for the model; may be empty.

    Raises:
        OpenAIError: A value is invalid.
    """
    choice: object = options.get("toolChoice")
    name = choice.get("toolName") if is_mapping(choice) else None
    return create_caller_options(
        tools=tuple(_tool(fields, f"tools.{at}") for at, fields in enumerate(_listed(tools))),
        tool_choice=tool_choice(choice, name, "toolChoice"),
        instructions=instructions or None,
        **{option: options.get(key) for key, option in _OPTIONS.items()},
    )


def _listed(tools: object) -> Sequence[Mapping[str, Any]]:
    if tools is None:
        return ()
    if is_mapping(tools):
        if not all(map(is_mapping, tools.values())):
            raise _invalid("tools", "each tool is an object")
        return [{"name": name, **fields} for name, fields in tools.items()]
    if not isinstance(tools, list) or not all(map(is_mapping, cast("list[object]", tools))):
        raise _invalid("tools", "it is a list of objects, or an object of them by name")
    return cast("list[Mapping[str, Any]]", tools)


def _tool(fields: Mapping[str, Any], param: str) -> ToolDefinition:
    schema = fields.get("parameters") or fields.get("inputSchema")  # the names in AG-UI and the AI SDK
    if is_mapping(schema) and is_mapping(schema.get("jsonSchema")):
        schema = schema["jsonSchema"]
    return function_definition({**fields, "parameters": schema}, param)


def create_caller_options(**fields: object) -> CallerOptions:
    """Return the options of a request, without None and empty tuples.

    Raises:
        OpenAIError: A value is invalid.
    """
    options = {name: value for name, value in fields.items() if value is not None and value != ()}
    with reject_invalid():
        return CallerOptions.model_validate(options)


def function_definition(fields: Mapping[str, Any], param: str) -> ToolDefinition:
    """Return the definition of a function that the client runs.

    Args:
        fields: ``name``, ``description``, ``parameters`` and ``strict``.
        param: The location of the definition in the request.

    Raises:
        OpenAIError: A value is invalid.
    """
    return _validated(ToolDefinition, fields, ("name", "description", "parameters", "strict"), param)


def output_format(fields: Mapping[str, Any], param: str) -> OutputFormat:
    """Return the JSON format of the response.

    Raises:
        OpenAIError: A value is invalid.
    """
    return _validated(OutputFormat, fields, ("schema", "name", "description", "strict"), param)


def _validated(model: type[M], fields: Mapping[str, Any], names: Sequence[str], param: str) -> M:
    with reject_invalid(param):
        return model.model_validate({name: fields[name] for name in names if fields.get(name) is not None})


def tool_choice(choice: object, name: object, param: str) -> ToolChoice | None:
    """Return the tool choice of a request; None if ``choice`` is None.

    Args:
        choice: A string or an object.
        name: The name of the tool in the object.
        param: The member that contains the choice.

    Raises:
        OpenAIError: The choice is unknown.
    """
    if choice is None:
        return None
    if choice in ("auto", "none", "required"):
        return ToolChoice.model_validate({"mode": choice})
    if isinstance(choice, str) or not isinstance(name, str) or not name:
        where, value = (f"{param}.type", choice.get("type")) if is_mapping(choice) else (param, choice)
        raise unsupported(where, f"The {where} {shortened(value)}")
    return ToolChoice(mode="tool", name=name)


def unsupported(param: str, option: str) -> OpenAIError:
    """Return the error for an unsupported option."""
    return OpenAIError(400, f"{option} is not supported here", param=param, code="unsupported_value")


def file_of(url: object, media_type: object, filename: object, param: str) -> ContentPartFile:
    """Return the file at a URL. A ``data:`` URL is decoded.

    Raises:
        OpenAIError: The file is invalid.
    """
    fields: dict[str, Any] = {"url": url, "media_type": media_type or "", "filename": filename or ""}
    if isinstance(url, str) and url.startswith("data:"):
        try:
            declared, data = read_data_url(url)
        except ValueError as error:
            raise _invalid(param, str(error)) from None
        fields |= {"url": None, "data": data, "media_type": media_type or declared}
    with reject_invalid(param):
        return ContentPartFile.model_validate(fields)


def _invalid(param: str, reason: str) -> OpenAIError:
    return OpenAIError(400, f"Invalid value for '{param}': {reason}", param=param, code="invalid_value")

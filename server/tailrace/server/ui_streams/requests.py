"""What requests of protocols of user interfaces have in common: files, tools, and what is asked of the model."""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, cast

from pydantic import ValidationError

from tailrace.server.facade.asked import choice_by_word, function_definition, request_facts, unsupported
from tailrace.server.facade.errors import OpenAIError
from tailrace.server.facade.events import is_mapping
from tailrace.streaming.request_facts import RequestFacts
from tailrace.wrappers import ContentPartFile
from tailrace.wrappers.files import read_data_url
from tailrace.wrappers.options import ToolChoice, ToolDefinition

# What may be asked of the model, under the names that both protocols' clients have for it.
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


def facts_of(options: Mapping[str, Any], tools: object, instructions: str) -> RequestFacts:
    """What is asked for beyond the message.

    Args:
        options: Members that may say so; others are ignored.
        tools: The client's: a list of definitions, or an object of them by name.
        instructions: Told to the model; nothing when empty.

    Raises:
        OpenAIError: A value is not what it has to be.
    """
    given = {name: options[key] for key, name in _OPTIONS.items() if options.get(key) is not None}
    return request_facts(
        tools=tuple(_tool(fields, f"tools.{at}") for at, fields in enumerate(_listed(tools))),
        tool_choice=_choice(options.get("toolChoice")),
        output=None,
        instructions=instructions or None,
        **given,
    )


def _listed(tools: object) -> Sequence[Mapping[str, Any]]:
    if tools is None:
        return ()
    if is_mapping(tools):
        if not all(map(is_mapping, tools.values())):
            raise _wrong("tools", "each tool is an object")
        return [{"name": name, **fields} for name, fields in tools.items()]
    if not isinstance(tools, list) or not all(map(is_mapping, cast("list[object]", tools))):
        raise _wrong("tools", "it is a list of objects, or an object of them by name")
    return cast("list[Mapping[str, Any]]", tools)


def _tool(fields: Mapping[str, Any], where: str) -> ToolDefinition:
    """A tool, whose schema has one name in each protocol."""
    schema = fields.get("parameters") or fields.get("inputSchema")
    if is_mapping(schema) and is_mapping(schema.get("jsonSchema")):
        schema = schema["jsonSchema"]  # as the AI SDK holds it
    return function_definition({**fields, "parameters": schema}, where)


def _choice(choice: object) -> ToolChoice | None:
    if choice is None:
        return None
    if isinstance(choice, str):
        return choice_by_word(choice)
    name = choice.get("toolName") if is_mapping(choice) else None
    if not isinstance(name, str) or not name:
        raise unsupported("toolChoice", "This toolChoice")
    return ToolChoice(mode="tool", name=name)


def file_of(url: object, media_type: object, filename: object, where: str) -> ContentPartFile:
    """A file by its address, or as a ``data:`` URL.

    Raises:
        OpenAIError: It is none.
    """
    fields: dict[str, Any] = {"url": url, "media_type": media_type or "", "filename": filename or ""}
    if isinstance(url, str) and url.startswith("data:"):
        try:
            said, data = read_data_url(url)
        except ValueError as error:
            raise _wrong(where, str(error)) from None
        fields |= {"url": None, "data": base64.b64encode(data), "media_type": media_type or said}
    try:
        return ContentPartFile.model_validate(fields)
    except ValidationError as error:
        raise OpenAIError.of_validation(error, where) from None


def _wrong(where: str, why: str) -> OpenAIError:
    return OpenAIError(400, f"Invalid value for '{where}': {why}", param=where, code="invalid_value")

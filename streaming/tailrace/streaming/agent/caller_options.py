"""Options that a caller adds to its message: tools, output format and sampling.

The options are in the metadata of the request (`SendMessage`, `SendStreamingMessage`), under the URI of tailrace's extension::

    {"tools": [{"name": "locate", "description": "…", "parameters": {…}}], "toolChoice": {"mode": "auto"},
     "output": {"schema": {…}}, "maxOutputTokens": 500, "temperature": 0, "instructions": "Be brief.", "parallel": true}

The server stores the options in the message's metadata, as the member ``request``. If a message has no options, those of the
newest earlier message with options apply, except a tool choice that forces a call.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from pydantic import ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from tailrace.streaming.a2a.models import Message
from tailrace.streaming.a2a.stream_extension import (
    extension_metadata,
    with_extension_metadata,
    without_extension_metadata,
)
from tailrace.streaming.schemas.schema_bounds import (
    MAX_CHARACTERS,
    PATTERN_SIZE,
    check_patterns,
    count_characters,
    count_values,
)
from tailrace.wrappers.messages import Text, shortened
from tailrace.wrappers.request_options import (
    NO_OPTIONS,
    RequestOptions,
    ToolChoice,
    ToolDefinition,
)


class CallerOptions(RequestOptions):
    """Options of a request: options for the model and options for the turn.

    Attributes:
        instructions: Instructions in addition to those of the agent; None for none.
        parallel: True if the turn does not wait for other tasks of its context; None for the server's setting.
    """

    model_config = ConfigDict(
        frozen=True, extra="ignore", alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
    )

    instructions: Text | None = None
    parallel: bool | None = None

    @property
    def options(self) -> RequestOptions:
        """The options for the model; the object `NO_OPTIONS` if none are set."""
        fields = {name: getattr(self, name) for name in self.model_fields_set - _TURN_OPTIONS}
        return RequestOptions(**fields) if fields else NO_OPTIONS

    def to_metadata(self) -> dict[str, Any]:
        """Return the metadata of a request with these options."""
        fields = self.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return with_extension_metadata({}, **fields)


_TURN_OPTIONS = {"instructions", "parallel"}
NATIVE_TOOLS = ("custom", "namespace", "web_search", "web_search_preview")
"""Permitted types of a tool in the option ``nativeTools``, in the format of the OpenAI Responses API. Other types
give access to files and connections of the server's account."""

MAX_TOOLS = 512
"""Maximum number of tools of a request."""

MAX_TOOL_VALUES = 20_000
"""Maximum number of JSON values in the schemas of a request's tools."""

NO_CALLER_OPTIONS = CallerOptions()
"""The options of a request that sets none."""


def read_caller_options(metadata: Mapping[str, Any]) -> CallerOptions:
    """Read and check the options in a request's metadata.

    Tools with the same name, and references to other documents, are rejected. A tool choice may name a tool of the agent.

    Raises:
        ValueError: An option is invalid. The message names the option.
    """
    options = _read(extension_metadata(metadata))
    if options.tools:
        _check_tools(options.tools)
    if options.native_tools:
        _check_native_tools(options)
    if options.tool_choice is not None:
        _check_choice(options.tool_choice)
    return options


def store_caller_options(message: Message, options: CallerOptions) -> Message:
    """Return the message with the options in its metadata; the same message if no option is set."""
    if not options.model_fields_set:
        return message
    fields = options.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return message.model_copy(update={"metadata": with_extension_metadata(message.metadata, request=fields)})


REQUEST_METADATA_KEYS = ("request", "apiRequest", "agent", "follows")
"""Keys of message metadata that describe the request: its options, data of the API, its agent, and the turn after which a branch
begins."""


def without_caller_options(message: Message) -> Message:
    """Return the message without `REQUEST_METADATA_KEYS` in its metadata, for a model."""
    if extension_metadata(message.metadata).keys().isdisjoint(REQUEST_METADATA_KEYS):
        return message
    return message.model_copy(
        update={"metadata": without_extension_metadata(message.metadata, *REQUEST_METADATA_KEYS)}
    )


def stored_caller_options(messages: Iterable[Message]) -> CallerOptions:
    """Return the options of a task: those of its newest message with options.

    A tool choice that forces a call applies only to its own message. Otherwise, the model could not respond to the result of the
    call.

    Args:
        messages: The task's messages, oldest first.
    """
    for position, message in enumerate(reversed(tuple(messages))):
        fields = extension_metadata(message.metadata).get("request")
        if isinstance(fields, dict):
            options = _read(cast("Mapping[str, Any]", fields))
            forces = options.tool_choice is not None and options.tool_choice.mode in ("required", "tool")
            return options.model_copy(update={"tool_choice": None}) if position and forces else options
    return NO_CALLER_OPTIONS


def runs_in_parallel(messages: Iterable[Message]) -> bool | None:
    """Return the option ``parallel`` of a task; None if not set. The other options are not parsed.

    Args:
        messages: The task's messages, oldest first.
    """
    for message in reversed(tuple(messages)):
        fields = extension_metadata(message.metadata).get("request")
        if isinstance(fields, dict):
            parallel = cast("Mapping[str, Any]", fields).get("parallel")
            return parallel if isinstance(parallel, bool) else None
    return None


def _check_tools(tools: Sequence[ToolDefinition]) -> None:
    import jsonschema_rs  # imported only when it is used, because many servers never use it

    if len(tools) > MAX_TOOLS:
        raise ValueError(f"tools: there are {len(tools)} tools; the maximum is {MAX_TOOLS}")
    if (values := sum(count_values(tool.parameters) for tool in tools)) > MAX_TOOL_VALUES:
        raise ValueError(f"tools: the schemas have {values} JSON values; the maximum is {MAX_TOOL_VALUES}")
    if (characters := sum(count_characters(tool.parameters) for tool in tools)) > MAX_CHARACTERS:
        raise ValueError(f"tools: the schemas have {characters} characters; the maximum is {MAX_CHARACTERS}")
    try:
        check_patterns([tool.parameters for tool in tools])
    except ValueError as error:
        raise ValueError(f"tools: {error}") from None
    # The schemas are compiled, but not applied: the caller validates the arguments.
    patterns = jsonschema_rs.FancyRegexOptions(size_limit=PATTERN_SIZE, dfa_size_limit=PATTERN_SIZE)
    names: set[str] = set()
    for position, tool in enumerate(tools):
        param = f"tools.{position}"
        if tool.name in names:
            raise ValueError(f"{param}.name: two tools have the name {shortened(tool.name)}")
        names.add(tool.name)
        try:
            jsonschema_rs.validator_for(tool.parameters, pattern_options=patterns, retriever=_fetch_nothing)
        except jsonschema_rs.ValidationError as error:
            path = ".".join([f"{param}.parameters", *map(str, error.instance_path)])
            reason = error.message.partition("\n")[0]  # the rest is the schema
            raise ValueError(f"{path}: invalid JSON schema: {reason}") from None
        kind: object = tool.parameters.get("type", "object")
        if kind != "object" and not (isinstance(kind, list) and "object" in kind):
            raise ValueError(f"{param}.parameters.type: must be 'object'")


def _check_native_tools(options: CallerOptions) -> None:
    tools = list(options.native_tools)
    for position, tool in enumerate(tools):
        if tool.get("type") not in NATIVE_TOOLS:
            raise ValueError(
                f"nativeTools.{position}.type: {shortened(tool.get('type'))} is not one of {', '.join(NATIVE_TOOLS)}"
            )
    if len(tools) + len(options.tools) > MAX_TOOLS:
        raise ValueError(
            f"nativeTools: there are {len(tools) + len(options.tools)} tools; the maximum is {MAX_TOOLS}"
        )
    if (values := count_values(tools)) > MAX_TOOL_VALUES:
        raise ValueError(
            f"nativeTools: the definitions have {values} JSON values; the maximum is {MAX_TOOL_VALUES}"
        )
    if (characters := count_characters(tools)) > MAX_CHARACTERS:
        raise ValueError(
            f"nativeTools: the definitions have {characters} characters; the maximum is {MAX_CHARACTERS}"
        )


def _fetch_nothing(uri: str) -> Any:
    raise ValueError(f"the reference {uri} is external; external references are not fetched")


def _check_choice(choice: ToolChoice) -> None:
    if choice.mode == "tool" and not choice.name:
        raise ValueError("toolChoice.name: mode 'tool' needs the name of a tool")


def _read(fields: Mapping[str, Any]) -> CallerOptions:
    if _KNOWN.isdisjoint(fields):
        return NO_CALLER_OPTIONS
    try:
        return CallerOptions.model_validate(fields)
    except ValidationError as error:
        [problem, *_] = error.errors(include_url=False, include_context=False, include_input=False)
        path = ".".join(map(str, problem["loc"]))
        raise ValueError(f"{path}: {problem['msg'].removeprefix('Value error, ')}") from None


_KNOWN = frozenset(map(to_camel, CallerOptions.model_fields))

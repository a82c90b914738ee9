"""Options of a caller's request beside its message: tools of the caller, output format, sampling.

They are in the metadata of a request (`SendMessage`, `SendStreamingMessage`) under the extension's URI::

    {"tools": [{"name": "locate", "description": "…", "parameters": {…}}], "toolChoice": {"mode": "auto"},
     "output": {"schema": {…}}, "maxOutputTokens": 500, "temperature": 0, "instructions": "Be brief.", "parallel": true}

They are stored in the message's metadata ``request``, so that they are known after a restart. A message that continues a task
without options has those of the task's message before it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from pydantic import ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from tailrace.streaming.a2a.extension import extension_facts, with_extension_facts, without_extension_facts
from tailrace.streaming.a2a.models import Message
from tailrace.streaming.schemas.schema_bounds import (
    MAX_CHARACTERS,
    PATTERN_SIZE,
    check_patterns,
    count_characters,
    count_values,
)
from tailrace.wrappers.concurrency.worker_thread import json_cost, text_cost
from tailrace.wrappers.conversion.options import NO_OPTIONS, RequestOptions, ToolChoice, ToolDefinition
from tailrace.wrappers.messages import Text, shortened


class RequestFacts(RequestOptions):
    """The options of a request: those of a model, and of the turn.

    Attributes:
        instructions: Instructions in addition to the agent's own.
        parallel: The turn does not wait for those of other tasks of its context; None for the server's setting.
    """

    model_config = ConfigDict(
        frozen=True, extra="ignore", alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
    )

    instructions: Text | None = None
    parallel: bool | None = None

    @property
    def options(self) -> RequestOptions:
        """The options for a model; `NO_OPTIONS` itself if none is set."""
        given = {name: getattr(self, name) for name in self.model_fields_set - _TURN_OPTIONS}
        return RequestOptions(**given) if given else NO_OPTIONS

    def to_metadata(self) -> dict[str, Any]:
        """Return the metadata of a request with these options."""
        given = self.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return with_extension_facts({}, **given)


_TURN_OPTIONS = {"instructions", "parallel"}
NATIVE_TOOLS = ("custom", "namespace", "web_search", "web_search_preview")
"""Types of native tools that a caller may use; others name files and connections of the server's account."""

MAX_TOOLS = 512
"""Maximum number of tools of a request."""

MAX_TOOL_VALUES = 20_000
"""Maximum number of JSON values in the schemas of a request's tools."""

NO_FACTS = RequestFacts()
"""The options of a request that sets none."""


def read_request_facts(metadata: Mapping[str, Any]) -> RequestFacts:
    """Read the options in a request's metadata.

    A provider would refuse the request, or confuse tools, if their definitions were invalid. External references of schemas
    are not fetched. A tool choice may name a tool of the agent's own, which is not known here.

    Raises:
        ValueError: An option is not valid; the text names it.
    """
    facts = _read(extension_facts(metadata))
    if facts.tools:
        _check_tools(facts.tools)
    if facts.native_tools:
        _check_native_tools(facts)
    if facts.tool_choice is not None:
        _check_choice(facts.tool_choice)
    return facts


def facts_cost(facts: RequestFacts) -> int:
    """Return what reading and writing facts may take, for `run_bounded`."""
    schemas = [tool.parameters for tool in facts.tools]
    schema = facts.output.schema_ if facts.output is not None else None
    texts = sum(text_cost(tool.description) + text_cost(tool.name) for tool in facts.tools)
    schemas += facts.native_tools
    return json_cost(schemas) + json_cost(schema) + text_cost(facts.instructions) + texts


def keep_request_facts(message: Message, facts: RequestFacts) -> Message:
    """Return the message with the options in its metadata; the same message without options."""
    if not facts.model_fields_set:
        return message
    given = facts.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return message.model_copy(update={"metadata": with_extension_facts(message.metadata, request=given)})


REQUEST_FACTS = ("request", "apiRequest")
"""Metadata of a caller's message about its request: the options, and an API's record of it."""


def without_request_facts(message: Message) -> Message:
    """Return the message without `REQUEST_FACTS`, which are not sent to a model."""
    if extension_facts(message.metadata).keys().isdisjoint(REQUEST_FACTS):
        return message
    return message.model_copy(update={"metadata": without_extension_facts(message.metadata, *REQUEST_FACTS)})


def kept_request_facts(messages: Iterable[Message]) -> RequestFacts:
    """Return the options of the newest of a task's messages that has any.

    A tool choice that forces a call applies to that message's turn only: the model responds to the results.

    Args:
        messages: The task's messages, oldest first.
    """
    for position, message in enumerate(reversed(tuple(messages))):
        given = extension_facts(message.metadata).get("request")
        if isinstance(given, Mapping):
            facts = _read(cast("Mapping[str, Any]", given))
            forces = facts.tool_choice is not None and facts.tool_choice.mode in ("required", "tool")
            return facts.model_copy(update={"tool_choice": None}) if position and forces else facts
    return NO_FACTS


def runs_in_parallel(messages: Iterable[Message]) -> bool | None:
    """Return the option ``parallel`` as `kept_request_facts`, without reading the other options.

    Args:
        messages: The task's messages, oldest first.
    """
    for message in reversed(tuple(messages)):
        given = extension_facts(message.metadata).get("request")
        if isinstance(given, Mapping):
            parallel = cast("Mapping[str, Any]", given).get("parallel")
            return parallel if isinstance(parallel, bool) else None
    return None


def _check_tools(tools: Sequence[ToolDefinition]) -> None:
    import jsonschema_rs  # imported when needed: many servers never use it

    if len(tools) > MAX_TOOLS:
        raise ValueError(f"tools: {len(tools)} tools; a request may have {MAX_TOOLS}")
    if (values := sum(count_values(tool.parameters) for tool in tools)) > MAX_TOOL_VALUES:
        raise ValueError(f"tools: their schemas have {values} JSON values, and may have {MAX_TOOL_VALUES}")
    if (characters := sum(count_characters(tool.parameters) for tool in tools)) > MAX_CHARACTERS:
        raise ValueError(f"tools: their schemas have {characters} characters, and may have {MAX_CHARACTERS}")
    try:
        check_patterns([tool.parameters for tool in tools])
    except ValueError as error:
        raise ValueError(f"tools: {error}") from None
    # Compiled, and never matched: the caller checks the model's arguments.
    patterns = jsonschema_rs.FancyRegexOptions(size_limit=PATTERN_SIZE, dfa_size_limit=PATTERN_SIZE)
    names: set[str] = set()
    for position, tool in enumerate(tools):
        where = f"tools.{position}"
        if tool.name in names:
            raise ValueError(f"{where}.name: two tools have the name {shortened(tool.name)}")
        names.add(tool.name)
        try:
            jsonschema_rs.validator_for(tool.parameters, pattern_options=patterns, retriever=_fetch_nothing)
        except jsonschema_rs.ValidationError as error:
            place = ".".join([f"{where}.parameters", *map(str, error.instance_path)])
            reason = error.message.partition("\n")[0]  # the rest shows the schema
            raise ValueError(f"{place}: it is no JSON schema: {reason}") from None
        kind: object = tool.parameters.get("type", "object")
        if kind != "object" and not (isinstance(kind, list) and "object" in kind):
            raise ValueError(f"{where}.parameters.type: it must be 'object': arguments have names")


def _check_native_tools(facts: RequestFacts) -> None:
    tools = list(facts.native_tools)
    for position, tool in enumerate(tools):
        if tool.get("type") not in NATIVE_TOOLS:
            raise ValueError(
                f"nativeTools.{position}.type: {shortened(tool.get('type'))} is not one of {', '.join(NATIVE_TOOLS)}"
            )
    if len(tools) + len(facts.tools) > MAX_TOOLS:
        raise ValueError(f"nativeTools: a request may have {MAX_TOOLS} tools")
    if (values := count_values(tools)) > MAX_TOOL_VALUES:
        raise ValueError(f"nativeTools: they have {values} JSON values, and may have {MAX_TOOL_VALUES}")
    if (characters := count_characters(tools)) > MAX_CHARACTERS:
        raise ValueError(f"nativeTools: they have {characters} characters, and may have {MAX_CHARACTERS}")


def _fetch_nothing(uri: str) -> Any:
    raise ValueError(f"it refers to {uri}, which is not in it")


def _check_choice(choice: ToolChoice) -> None:
    if choice.mode == "tool" and not choice.name:
        raise ValueError("toolChoice.name: mode 'tool' needs the name of a tool")


def _read(facts: Mapping[str, Any]) -> RequestFacts:
    if not any(name in facts for name in _KNOWN):
        return NO_FACTS
    try:
        return RequestFacts.model_validate(facts)
    except ValidationError as error:
        [problem, *_] = error.errors(include_url=False, include_context=False, include_input=False)
        where = ".".join(map(str, problem["loc"]))
        raise ValueError(f"{where}: {problem['msg'].removeprefix('Value error, ')}") from None


_KNOWN = frozenset(map(to_camel, RequestFacts.model_fields))

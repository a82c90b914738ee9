"""What a caller asks of an agent beyond its message: tools of its own, the form of the answer, how it is sampled.

The facts stand under the extension's URI in the metadata of a request (`SendMessage`, `SendStreamingMessage`)::

    {"tools": [{"name": "locate", "description": "…", "parameters": {…}}], "toolChoice": {"mode": "auto"},
     "output": {"schema": {…}}, "maxOutputTokens": 500, "temperature": 0, "instructions": "Be brief."}

They are kept with the message that they came with, as its fact ``request``, so that they are known after a restart. A
message that goes on with a task and brings no such facts is meant with those of the task's message before it.
"""

from collections.abc import Iterable, Mapping
from typing import Any, cast

from pydantic import ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from tailrace.streaming.a2a.models import Message
from tailrace.streaming.extension import extension_facts, with_extension_facts, without_extension_facts
from tailrace.wrappers.messages import Text
from tailrace.wrappers.options import NO_OPTIONS, RequestOptions, ToolChoice, ToolDefinition


class RequestFacts(RequestOptions):
    """What a caller asks for: all that a model can be asked, and instructions.

    Attributes:
        instructions: What the model is to be told beside the agent's own instructions.
    """

    model_config = ConfigDict(
        frozen=True, extra="ignore", alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
    )

    instructions: Text | None = None

    @property
    def options(self) -> RequestOptions:
        """The same for a model; `NO_OPTIONS` itself where nothing is asked for."""
        given = {name: getattr(self, name) for name in self.model_fields_set if name != "instructions"}
        return RequestOptions(**given) if given else NO_OPTIONS

    def to_metadata(self) -> dict[str, Any]:
        """The metadata of a request that asks for this."""
        given = self.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return with_extension_facts({}, **given)


NO_FACTS = RequestFacts()
"""A request that asks for nothing beyond its message."""


def read_request_facts(metadata: Mapping[str, Any]) -> RequestFacts:
    """The facts in a request's metadata.

    A provider would refuse its whole request, or take a tool for another, where the tools are not what they have to be. What
    their schemas refer to outside of themselves is not fetched. A choice may name a tool of the agent's own, which is not
    known here.

    Raises:
        ValueError: One of them is not what it has to be; the text says which.
    """
    facts = _read(extension_facts(metadata))
    if facts.tools:
        _check_tools(facts.tools)
    if facts.tool_choice is not None:
        _check_choice(facts.tool_choice)
    return facts


def keep_request_facts(message: Message, facts: RequestFacts) -> Message:
    """The message with what was asked for with it; itself when that is nothing."""
    if not facts.model_fields_set:
        return message
    given = facts.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return message.model_copy(update={"metadata": with_extension_facts(message.metadata, request=given)})


def without_request_facts(message: Message) -> Message:
    """The message without what was asked for with it, which is not said to a model."""
    if "request" not in extension_facts(message.metadata):
        return message
    return message.model_copy(update={"metadata": without_extension_facts(message.metadata, "request")})


def kept_request_facts(messages: Iterable[Message]) -> RequestFacts:
    """What was asked for with the newest of a task's messages that says so.

    A choice that forces a call counts for that message's turn alone: with the results the model is to answer.

    Args:
        messages: The task's, oldest first.
    """
    for position, message in enumerate(reversed(tuple(messages))):
        given = extension_facts(message.metadata).get("request")
        if isinstance(given, Mapping):
            facts = _read(cast("Mapping[str, Any]", given))
            forces = facts.tool_choice is not None and facts.tool_choice.mode in ("required", "tool")
            return facts.model_copy(update={"tool_choice": None}) if position and forces else facts
    return NO_FACTS


def _check_tools(tools: Iterable[ToolDefinition]) -> None:
    import jsonschema_rs  # here, as many a server never needs it

    names: set[str] = set()
    for position, tool in enumerate(tools):
        where = f"tools.{position}"
        if tool.name in names:
            raise ValueError(f"{where}.name: two tools have the name {tool.name!r}")
        names.add(tool.name)
        try:
            jsonschema_rs.validator_for(tool.parameters, retriever=_fetch_nothing)
        except jsonschema_rs.ValidationError as error:
            place = ".".join([f"{where}.parameters", *map(str, error.instance_path)])
            said = error.message.partition("\n")[0]  # the rest shows the schema
            raise ValueError(f"{place}: it is no JSON schema: {said}") from None
        kind: object = tool.parameters.get("type", "object")
        if kind != "object" and not (isinstance(kind, list) and "object" in kind):
            raise ValueError(f"{where}.parameters.type: it must be 'object': arguments have names")


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

"""The objects of A2A 1.0: the one object model of tailrace. Older dialects are codecs over it.

What holds for all of them (`A2AModel`):

- JSON names are camelCase; snake_case is accepted too. Unknown members are ignored.
- ``null`` means "not set", except inside ``data`` and metadata, which hold any JSON.
- Not set is ``""``, ``()``, ``{}``, ``False`` or None, and is left out of the JSON. Members that the protocol
  requires, and those for which the protocol distinguishes "not set" from "false" or 0, are written.
- Required strings and lists must not be empty: in ProtoJSON empty and missing are the same thing.
- Models are frozen. ``Model.model_validate_json(obj.to_json()) == obj`` for every object.

A model that cannot be built raises pydantic's ``ValidationError``; for a request,
`tailrace.streaming.a2a.errors.InvalidParamsError.from_validation` turns it into the protocol's error.

Source: A2A 1.0.1, ``specification/a2a.proto`` with the ProtoJSON mapping.
"""

import json
from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    SerializerFunctionWrapHandler,
    StrictBool,
    model_serializer,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError, to_json

from tailrace.streaming.a2a.encoding import escape_separators
from tailrace.streaming.a2a.fields import (
    JsonObject,
    JsonValue,
    RequiredText,
    RoleField,
    StateField,
    Text,
    Timestamp,
    not_empty,
)
from tailrace.streaming.a2a.fields import Role as Role  # part of the object model, exported for type checkers
from tailrace.wrappers.concurrency.worker_thread import in_event_loop
from tailrace.wrappers.json_steps import encode_in_steps
from tailrace.wrappers.messages import Base64Data

# --- what all models share --------------------------------------------------------------------------------------


class A2AModel(BaseModel):
    """Base of every A2A object; see the module's docstring."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_not_set(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        members = cast("dict[str, object]", value)
        return {name: member for name, member in members.items() if member is not None}

    def to_dict(self) -> dict[str, Any]:
        """The JSON of the object as plain dicts, lists, strings and numbers."""
        if in_event_loop():
            return self.model_dump(mode="json", exclude_defaults=True)
        return cast("dict[str, Any]", json.loads(self.to_json()))

    def to_json(self) -> bytes:
        """The JSON of the object, compact, in UTF-8, in one line for every reader (see `escape_separators`)."""
        if in_event_loop():
            return escape_separators(self.model_dump_json(exclude_defaults=True).encode())
        return encode_in_steps(self, _encode, _APART)

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Return the object that JSON describes.

        Raises:
            ValidationError: It describes none.
        """
        return cls.model_validate_json(body) if in_event_loop() else cls.model_validate(json.loads(body))


def _encode(value: object) -> bytes:
    if isinstance(value, A2AModel):  # a short text may stand in the place of an item
        return escape_separators(value.model_dump_json(exclude_defaults=True, warnings=False).encode())
    return escape_separators(to_json(value))


def exactly_one(model: A2AModel, *names: str) -> None:
    """Check a ``oneof`` of the proto whose members are not set when they are None.

    Raises:
        PydanticCustomError: None of the members is set, or several are.
    """
    found = [name for name in names if getattr(model, name) is not None]
    _check_one(found, names)


def _check_one(found: list[str], names: tuple[str, ...]) -> None:
    if len(found) != 1:
        context = {
            "names": ", ".join(map(to_camel, names)),
            "found": " and ".join(map(to_camel, found)) or "none",
        }
        raise PydanticCustomError("one_of", "Exactly one of {names} is required; found {found}", context)


# --- messages, artifacts, tasks ---------------------------------------------------------------------------------

ContentKind = Literal["text", "raw", "url", "data"]
"""The member that holds the content of a `Part`."""

_CONTENT: tuple[ContentKind, ...] = ("text", "raw", "url", "data")


class Part(A2AModel):
    """One piece of content: exactly one of text, raw, url and data.

    ``Part(data=None)`` is a data part that holds null; ``kind`` tells it from a part that holds no data.

    Attributes:
        text: Text; may be empty.
        raw: The bytes of a file (base64 in JSON).
        url: Where a file can be fetched.
        data: Any JSON value, null included.
        metadata: Facts about the part.
        filename: A name for people.
        media_type: What the content is: ``text/plain``, ``image/png``, ….
    """

    text: Text | None = None
    raw: Base64Data | None = None
    url: RequiredText | None = None
    data: JsonValue = None
    metadata: JsonObject = {}
    filename: Text = ""
    media_type: Text = ""

    @model_validator(mode="before")
    @classmethod
    def _null_is_not_set(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        members = cast("dict[str, object]", value)
        given = {name: member for name, member in members.items() if member is not None}
        # Null is a value of data, but a client that writes out all its fields means only the one that is not null.
        if "data" in members and not any(name in given for name in _CONTENT):
            given["data"] = None
        return given

    @model_validator(mode="after")
    def _one_content(self) -> Self:
        _check_one([name for name in _CONTENT if name in self.model_fields_set], _CONTENT)
        return self

    @property
    def kind(self) -> ContentKind:
        """Which of the four the part holds."""
        if self.text is not None:
            return "text"
        if self.raw is not None:
            return "raw"
        if self.url is not None:
            return "url"
        return "data"

    @model_serializer(mode="wrap")
    def _write_null_data(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written = handler(self)
        if self.data is None and self.kind == "data":
            written["data"] = None
        return written


_Parts = Annotated[tuple[Part, ...], not_empty("part")]


class Message(A2AModel):
    """One message of a conversation.

    Attributes:
        message_id: Given by whoever made the message.
        role: Who made it.
        parts: The content, at least one part.
        context_id: The conversation; empty where the sender leaves it to the receiver.
        task_id: The task it belongs to; empty for none.
        metadata: Facts about the message.
        extensions: URIs of the extensions that the message uses.
        reference_task_ids: Other tasks to be taken into account.
    """

    message_id: RequiredText
    role: RoleField
    parts: _Parts
    context_id: Text = ""
    task_id: Text = ""
    metadata: JsonObject = {}
    extensions: tuple[Text, ...] = ()
    reference_task_ids: tuple[Text, ...] = ()


class TaskStatus(A2AModel):
    """The status of a task.

    Attributes:
        state: As the lifecycle allows.
        message: What the agent says about it.
        timestamp: When it came to this.
    """

    state: StateField
    message: Message | None = None
    timestamp: Timestamp | None = None


class Artifact(A2AModel):
    """One output of a task, or a chunk of it.

    Attributes:
        artifact_id: Unique within the task.
        parts: The content, at least one part.
        name: A name for people.
        description: A line for people.
        metadata: Facts about the artifact.
        extensions: URIs of the extensions that the artifact uses.
    """

    artifact_id: RequiredText
    parts: _Parts
    name: Text = ""
    description: Text = ""
    metadata: JsonObject = {}
    extensions: tuple[Text, ...] = ()


class Task(A2AModel):
    """A unit of work with its outputs and its history.

    Attributes:
        id: Given by the server.
        status: The present state.
        context_id: The conversation that the task belongs to.
        artifacts: The outputs so far.
        history: The messages, oldest first.
        metadata: Facts about the task.
    """

    id: RequiredText
    status: TaskStatus
    context_id: Text = ""
    artifacts: tuple[Artifact, ...] = ()
    history: tuple[Message, ...] = ()
    metadata: JsonObject = {}


class TaskStatusUpdateEvent(A2AModel):
    """A task's new status."""

    task_id: RequiredText
    context_id: RequiredText
    status: TaskStatus
    metadata: JsonObject = {}


class TaskArtifactUpdateEvent(A2AModel):
    """An artifact, or more of one.

    Attributes:
        task_id: The task.
        context_id: Its conversation.
        artifact: The parts that are new.
        append: True adds the parts to the artifact of that id; False creates or replaces it.
        last_chunk: Nothing follows for this artifact.
        metadata: Facts about the event.
    """

    task_id: RequiredText
    context_id: RequiredText
    artifact: Artifact
    append: StrictBool = False
    last_chunk: StrictBool = False
    metadata: JsonObject = {}


class StreamResponse(A2AModel):
    """One event of a stream: exactly one of the four members."""

    task: Task | None = None
    message: Message | None = None
    status_update: TaskStatusUpdateEvent | None = None
    artifact_update: TaskArtifactUpdateEvent | None = None

    @model_validator(mode="after")
    def _one_event(self) -> Self:
        exactly_one(self, "task", "message", "status_update", "artifact_update")
        return self


# --- the agent card ---------------------------------------------------------------------------------------------


class AgentProvider(A2AModel):
    """The provider of an agent.

    Attributes:
        organization: The name.
        url: The web site.
    """

    organization: RequiredText
    url: RequiredText


class AgentInterface(A2AModel):
    """One way to reach an agent.

    Attributes:
        url: Where.
        protocol_binding: ``JSONRPC``, ``GRPC``, ``HTTP+JSON``, or the URI of another binding.
        protocol_version: Major and minor: ``1.0``.
        tenant: To be sent with every request, where it is set.
    """

    url: RequiredText
    protocol_binding: RequiredText
    protocol_version: RequiredText
    tenant: Text = ""


class AgentExtension(A2AModel):
    """An extension that an agent speaks.

    Attributes:
        uri: Its name.
        description: How this agent uses it.
        required: A client that does not speak it is refused.
        params: Settings of the extension.
    """

    uri: RequiredText
    description: Text = ""
    required: StrictBool = False
    params: JsonObject = {}


class AgentCapabilities(A2AModel):
    """The optional capabilities of an agent. None is "not declared", False is "no"."""

    streaming: StrictBool | None = None
    push_notifications: StrictBool | None = None
    extended_agent_card: StrictBool | None = None
    extensions: tuple[AgentExtension, ...] = ()


class AgentSkill(A2AModel):
    """Something that an agent is good at.

    Attributes:
        id: Unique within the card.
        name: For people.
        description: For people, and for models that choose an agent.
        tags: Keywords, at least one.
        examples: Prompts that show the skill.
        input_modes: Media types taken, where they differ from the card's.
        output_modes: Media types given, where they differ from the card's.
        security_requirements: As in `AgentCard`.
    """

    id: RequiredText
    name: RequiredText
    description: RequiredText
    tags: Annotated[tuple[Text, ...], not_empty("tag")]
    examples: tuple[Text, ...] = ()
    input_modes: tuple[Text, ...] = ()
    output_modes: tuple[Text, ...] = ()
    security_requirements: tuple[JsonObject, ...] = ()


_Modes = Annotated[tuple[Text, ...], not_empty("media type")]


class AgentCard(A2AModel):
    """An agent's description of itself.

    Attributes:
        name: For people.
        description: What the agent does.
        version: The agent's own version.
        supported_interfaces: How to reach it, the preferred way first; at least one.
        capabilities: What it offers.
        default_input_modes: Media types taken, at least one.
        default_output_modes: Media types given, at least one.
        skills: What it is good at, at least one.
        provider: Who offers it.
        documentation_url: Where to read more.
        icon_url: A picture.
        security_schemes: Name → scheme, as JSON in the form of the proto; handed through unchanged.
        security_requirements: Any one of them lets a caller in; handed through unchanged.
        signatures: JSON Web Signatures over the card; handed through unchanged.
    """

    name: RequiredText
    description: RequiredText
    version: RequiredText
    supported_interfaces: Annotated[tuple[AgentInterface, ...], not_empty("interface")]
    capabilities: AgentCapabilities
    default_input_modes: _Modes
    default_output_modes: _Modes
    skills: Annotated[tuple[AgentSkill, ...], not_empty("skill")]
    provider: AgentProvider | None = None
    documentation_url: Text = ""
    icon_url: Text = ""
    security_schemes: JsonObject = {}
    security_requirements: tuple[JsonObject, ...] = ()
    signatures: tuple[JsonObject, ...] = ()


_APART = (Message, Artifact, Task)
"""Encoded one by one: each may have very many values."""

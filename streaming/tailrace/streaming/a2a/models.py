"""The objects of A2A 1.0 as pydantic models. Codecs convert between them and older versions of the protocol.

Rules for all models (`A2AModel`):

- JSON names are camelCase; snake_case is accepted too. Unknown members are ignored.
- ``null`` means "not set", except inside ``data`` and metadata, which may contain any JSON value.
- A member that is not set has the value ``""``, ``()``, ``{}``, ``False`` or None, and is omitted from the JSON, unless the
  protocol requires the member. If the protocol distinguishes "not set" from false or 0, "not set" is None.
- Required strings and lists must not be empty, because in ProtoJSON an empty value means "not set".
- Models are frozen. ``Model.model_validate_json(obj.to_json()) == obj`` for every object.

Invalid values raise pydantic's ``ValidationError``. `InvalidParamsError.from_validation` converts it to an error of the protocol.

Source: A2A 1.0.1, ``specification/a2a.proto`` with the ProtoJSON mapping.
"""

import json
from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StrictBool,
    model_serializer,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError, to_json

from tailrace.streaming.a2a.field_types import (
    JsonObject,
    JsonValue,
    RequiredText,
    RoleField,
    StateField,
    Text,
    Timestamp,
    not_empty,
)
from tailrace.streaming.a2a.field_types import (
    Role as Role,  # exported by this module, for type checkers
)
from tailrace.streaming.a2a.json_encoding import escape_separators
from tailrace.wrappers.concurrency.worker_thread import in_event_loop
from tailrace.wrappers.incremental_json_encoder import encode_in_steps
from tailrace.wrappers.messages import Base64Data

# --- the base class --------------------------------------------------------------------------------------


class A2AModel(BaseModel):
    """Base class of all A2A objects, with the rules in the module docstring."""

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
        """Return the JSON of the object as dicts, lists, strings and numbers."""
        if in_event_loop():
            return self.model_dump(mode="json", exclude_defaults=True)
        return cast("dict[str, Any]", json.loads(self.to_json()))

    def to_json(self) -> bytes:
        """Return the JSON of the object as one line of UTF-8, with escaped separators (see `escape_separators`)."""
        if in_event_loop():
            return escape_separators(self.model_dump_json(exclude_defaults=True).encode())
        return encode_in_steps(self, _encode, _APART)

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Parse and validate a JSON document.

        Raises:
            ValidationError: The JSON is not valid for this class.
        """
        return cls.model_validate_json(body) if in_event_loop() else cls.model_validate(json.loads(body))


def _encode(value: object) -> bytes:
    if isinstance(value, A2AModel):  # otherwise, the value is a slice of a large text, or its placeholder
        return escape_separators(value.model_dump_json(exclude_defaults=True, warnings=False).encode())
    return escape_separators(to_json(value))


def exactly_one(model: A2AModel, *names: str) -> None:
    """Check that exactly one of several members is not None (a ``oneof`` in the proto).

    Raises:
        PydanticCustomError: No member or several members are set.
    """
    present = [name for name in names if getattr(model, name) is not None]
    _check_one(present, names)


def _check_one(present: list[str], names: tuple[str, ...]) -> None:
    if len(present) != 1:
        context = {
            "names": ", ".join(map(to_camel, names)),
            "found": " and ".join(map(to_camel, present)) or "none",
        }
        raise PydanticCustomError("one_of", "Exactly one of {names} is required; found {found}", context)


# --- messages, artifacts, tasks ---------------------------------------------------------------------------------

ContentKind = Literal["text", "raw", "url", "data"]
"""The name of the member that contains the content of a `Part`."""

_CONTENT: tuple[ContentKind, ...] = ("text", "raw", "url", "data")


class Part(A2AModel):
    """One part of a message or artifact. Exactly one of text, raw, url and data is set.

    ``Part(data=None)`` is a data part with the value null.

    Attributes:
        text: Text, which may be empty.
        raw: The content of a file as bytes (base64 in JSON).
        data: Any JSON value, including null.
        media_type: The media type of the content, for example ``text/plain`` or ``image/png``.
    """

    text: Text | None = None
    raw: Base64Data | None = None
    url: RequiredText | None = None
    data: JsonValue = None
    metadata: JsonObject = Field(default_factory=dict)
    filename: Text = ""
    media_type: Text = ""

    @model_validator(mode="before")
    @classmethod
    def _null_is_not_set(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        members = cast("dict[str, object]", value)
        present = {name: member for name, member in members.items() if member is not None}
        # Clients may send null for each member that is not set. Null is a value of ``data`` only if no other content member
        # has a value.
        if "data" in members and not any(name in present for name in _CONTENT):
            present["data"] = None
        return present

    @model_validator(mode="after")
    def _one_content(self) -> Self:
        present = self.model_fields_set
        _check_one([name for name in _CONTENT if name in present], _CONTENT)
        return self

    @property
    def kind(self) -> ContentKind:
        """The name of the member that is set."""
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
        message_id: The id, which the author creates.
        parts: The content, at least one part.
        context_id: The id of the conversation; empty to let the receiver choose.
        task_id: The task of the message; empty for none.
        extensions: URIs of the extensions that the message uses.
        reference_task_ids: Other tasks as context for this message.
    """

    message_id: RequiredText
    role: RoleField
    parts: _Parts
    context_id: Text = ""
    task_id: Text = ""
    metadata: JsonObject = Field(default_factory=dict)
    extensions: tuple[Text, ...] = ()
    reference_task_ids: tuple[Text, ...] = ()


class TaskStatus(A2AModel):
    """The status of a task.

    Attributes:
        message: A message of the agent about the state, or None.
        timestamp: The time of the change; None if it is unknown.
    """

    state: StateField
    message: Message | None = None
    timestamp: Timestamp | None = None


class Artifact(A2AModel):
    """One output of a task, or a chunk of an output.

    Attributes:
        artifact_id: An id that is unique in the task.
        parts: The content, at least one part.
        extensions: URIs of the extensions that the artifact uses.
    """

    artifact_id: RequiredText
    parts: _Parts
    name: Text = ""
    description: Text = ""
    metadata: JsonObject = Field(default_factory=dict)
    extensions: tuple[Text, ...] = ()


class Task(A2AModel):
    """A unit of work with its status, outputs and messages.

    Attributes:
        id: The id, which the server creates.
        context_id: The id of the conversation.
        artifacts: The outputs so far.
        history: The messages, oldest first.
    """

    id: RequiredText
    status: TaskStatus
    context_id: Text = ""
    artifacts: tuple[Artifact, ...] = ()
    history: tuple[Message, ...] = ()
    metadata: JsonObject = Field(default_factory=dict)


class TaskStatusUpdateEvent(A2AModel):
    """The event of a new status of a task."""

    task_id: RequiredText
    context_id: RequiredText
    status: TaskStatus
    metadata: JsonObject = Field(default_factory=dict)


class TaskArtifactUpdateEvent(A2AModel):
    """The event of a new artifact, or of further content of an artifact.

    Attributes:
        artifact: The artifact with its new parts.
        append: True to append the parts to the existing artifact; False to create or replace the artifact.
        last_chunk: True if no further content of the artifact follows.
    """

    task_id: RequiredText
    context_id: RequiredText
    artifact: Artifact
    append: StrictBool = False
    last_chunk: StrictBool = False
    metadata: JsonObject = Field(default_factory=dict)


class StreamResponse(A2AModel):
    """One event of a stream. Exactly one of the four members is set."""

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
    """The organization that provides an agent, with the URL of its web site."""

    organization: RequiredText
    url: RequiredText


class AgentInterface(A2AModel):
    """An address and protocol of an agent.

    Attributes:
        protocol_binding: ``JSONRPC``, ``GRPC``, ``HTTP+JSON``, or the URI of another binding.
        protocol_version: Major and minor version, for example ``1.0``.
        tenant: The tenant for every request; empty for none.
    """

    url: RequiredText
    protocol_binding: RequiredText
    protocol_version: RequiredText
    tenant: Text = ""


class AgentExtension(A2AModel):
    """An extension that an agent supports.

    Attributes:
        uri: The URI that identifies the extension.
        description: The purpose of the extension in this agent.
        required: True if clients must support the extension.
    """

    uri: RequiredText
    description: Text = ""
    required: StrictBool = False
    params: JsonObject = Field(default_factory=dict)


class AgentCapabilities(A2AModel):
    """The optional capabilities of an agent: True for supported, False for not supported, None for not declared."""

    streaming: StrictBool | None = None
    push_notifications: StrictBool | None = None
    extended_agent_card: StrictBool | None = None
    extensions: tuple[AgentExtension, ...] = ()


class AgentSkill(A2AModel):
    """A skill of an agent.

    Attributes:
        id: An id that is unique in the card.
        description: A description for people, and for models that select an agent.
        tags: Keywords, at least one.
        examples: Prompts that show the skill.
        input_modes: Accepted media types; empty for those of the card.
        output_modes: Media types of the output; empty for those of the card.
        security_requirements: See `AgentCard`.
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
    """The description of an agent.

    Attributes:
        supported_interfaces: The addresses of the agent, the preferred address first; at least one.
        default_input_modes: Accepted media types; at least one.
        default_output_modes: Media types of the output; at least one.
        skills: The skills of the agent; at least one.
        security_schemes: The security schemes by name, in the format of the proto. Not validated.
        security_requirements: Security requirements, of which a caller must meet one. Not validated.
        signatures: JSON Web Signatures of the card. Not validated.
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
    security_schemes: JsonObject = Field(default_factory=dict)
    security_requirements: tuple[JsonObject, ...] = ()
    signatures: tuple[JsonObject, ...] = ()


_APART = (Message, Artifact, Task)
"""Models that `encode_in_steps` encodes one by one, because each may be large."""

"""The requests and responses of A2A 1.0's operations.

See `tailrace.streaming.a2a.models` for rules of all objects. Every request may name a tenant.

Source: A2A 1.0.1, ``specification/a2a.proto``.
"""

from typing import Annotated, Any, Self

from pydantic import (
    Field,
    SerializeAsAny,
    SerializerFunctionWrapHandler,
    StrictBool,
    field_validator,
    model_serializer,
    model_validator,
)

from tailrace.streaming.a2a.fields import HistoryLength, JsonObject, RequiredText, StateField, Text, Timestamp
from tailrace.streaming.a2a.models import A2AModel, Message, Task, exactly_one

MAX_PAGE_SIZE = 100
DEFAULT_PAGE_SIZE = 50


class AuthenticationInfo(A2AModel):
    """The authentication of requests to a webhook.

    Attributes:
        scheme: An HTTP authentication scheme: ``Bearer``, ``Basic``, ….
        credentials: What follows the scheme in the Authorization header. A secret.
    """

    scheme: RequiredText
    credentials: Text = Field(default="", repr=False)


class TaskPushNotificationConfig(A2AModel):
    """A webhook for a task's updates.

    Attributes:
        url: Where the updates are posted.
        id: Given by the client or, where it gave none, by the server.
        task_id: The task; empty inside a `SendMessageConfiguration`.
        token: Sent along, so that the webhook knows who calls. A secret.
        authentication: How the webhook wants to be called.
        tenant: The tenant, where the agent has several.
    """

    url: RequiredText
    id: Text = ""
    task_id: Text = ""
    token: Text = Field(default="", repr=False)
    authentication: AuthenticationInfo | None = None
    tenant: Text = ""


class SendMessageConfiguration(A2AModel):
    """The configuration of the response.

    Attributes:
        accepted_output_modes: Media types that the caller can use; empty for any.
        task_push_notification_config: A webhook for the new task.
        history_length: How much history the task in the answer carries; None for the server's choice.
        return_immediately: Answer as soon as the task exists; else when it is over or waits for the caller.
    """

    accepted_output_modes: tuple[Text, ...] = ()
    task_push_notification_config: TaskPushNotificationConfig | None = None
    history_length: HistoryLength | None = None
    return_immediately: StrictBool = False


class SendMessageRequest(A2AModel):
    """Parameters of SendMessage and SendStreamingMessage."""

    message: Message
    configuration: SendMessageConfiguration = SendMessageConfiguration()
    metadata: JsonObject = Field(default={})
    tenant: Text = ""


class SendMessageResponse(A2AModel):
    """Result of SendMessage: exactly one of a task and a message."""

    task: Task | None = None
    message: Message | None = None

    @model_validator(mode="after")
    def _one_result(self) -> Self:
        exactly_one(self, "task", "message")
        return self


class GetTaskRequest(A2AModel):
    """Parameters of GetTask; ``history_length`` as in `SendMessageConfiguration`."""

    id: RequiredText
    history_length: HistoryLength | None = None
    tenant: Text = ""


class GetConversationRequest(A2AModel):
    """Parameters of GetConversation, an operation of the extension.

    Attributes:
        context_id: The conversation.
        history_length: At most so many of the newest messages; 1,000 when None.
    """

    context_id: RequiredText
    history_length: HistoryLength | None = None
    tenant: Text = ""


class Conversation(A2AModel):
    """Result of GetConversation.

    Attributes:
        context_id: The conversation.
        messages: What was said in it, as the agent is told it: the newest messages, oldest first; none of a
            conversation that the caller does not have.
    """

    context_id: Text
    messages: tuple[Message, ...] = ()


class CancelTaskRequest(A2AModel):
    """Parameters of CancelTask."""

    id: RequiredText
    metadata: JsonObject = Field(default={})
    tenant: Text = ""


class SubscribeToTaskRequest(A2AModel):
    """Parameters of SubscribeToTask."""

    id: RequiredText
    tenant: Text = ""


class ListTasksRequest(A2AModel):
    """Parameters of ListTasks: every filter that is set must hold.

    Attributes:
        tenant: The tenant, where the agent has several.
        context_id: Tasks of this conversation.
        status: Tasks in this state; in any where it is the proto's ``TASK_STATE_UNSPECIFIED``.
        page_size: How many tasks at most, 1 to 100.
        page_token: Go on after an earlier answer's ``next_page_token``, with the same filters.
        history_length: As in `SendMessageConfiguration`, for each task.
        status_timestamp_after: Tasks whose status is of this time or later.
        include_artifacts: With their artifacts; else without.
    """

    tenant: Text = ""
    context_id: Text = ""
    status: StateField | None = None
    page_size: Annotated[int, Field(ge=1, le=MAX_PAGE_SIZE)] = DEFAULT_PAGE_SIZE
    page_token: Text = ""
    history_length: HistoryLength | None = None
    status_timestamp_after: Timestamp | None = None
    include_artifacts: StrictBool = False

    @field_validator("status", mode="before")
    @classmethod
    def _unspecified_is_not_set(cls, value: object) -> object:
        return None if value == "TASK_STATE_UNSPECIFIED" else value


class TaskWithArtifacts(Task):
    """A task of ListTasks with ``include_artifacts``: its JSON has the list of artifacts, empty or not."""

    @model_serializer(mode="wrap")
    def _write_artifacts(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"artifacts": [], **handler(self)}


class ListTasksResponse(A2AModel):
    """Result of ListTasks.

    Attributes:
        tasks: Those of the page, the one with the newest status first.
        next_page_token: Where the next page begins; empty on the last one.
        page_size: How many tasks are on this page.
        total_size: How many tasks there are on all pages together.
    """

    tasks: tuple[SerializeAsAny[Task], ...] = ()
    next_page_token: Text = ""
    page_size: int = 0
    total_size: int = 0

    @model_serializer(mode="wrap")
    def _write_all(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # The protocol wants these four always, empty or not.
        return {"tasks": [], "nextPageToken": "", "pageSize": 0, "totalSize": 0} | handler(self)


class GetTaskPushNotificationConfigRequest(A2AModel):
    """Parameters of GetTaskPushNotificationConfig."""

    task_id: RequiredText
    id: RequiredText
    tenant: Text = ""


class DeleteTaskPushNotificationConfigRequest(A2AModel):
    """Parameters of DeleteTaskPushNotificationConfig."""

    task_id: RequiredText
    id: RequiredText
    tenant: Text = ""


class ListTaskPushNotificationConfigsRequest(A2AModel):
    """Parameters of ListTaskPushNotificationConfigs."""

    task_id: RequiredText
    page_size: Annotated[int, Field(ge=0)] = 0
    page_token: Text = ""
    tenant: Text = ""


class ListTaskPushNotificationConfigsResponse(A2AModel):
    """Result of ListTaskPushNotificationConfigs: all of the task's webhooks."""

    configs: tuple[TaskPushNotificationConfig, ...] = ()
    next_page_token: Text = ""

    @model_serializer(mode="wrap")
    def _write_configs(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"configs": []} | handler(self)


class GetExtendedAgentCardRequest(A2AModel):
    """Parameters of GetExtendedAgentCard."""

    tenant: Text = ""

"""Requests and responses of the operations of A2A 1.0 and of tailrace's extension.

The rules of `tailrace.streaming.a2a.models` apply. Every request has an optional tenant.

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

from tailrace.streaming.a2a.field_types import (
    HistoryLength,
    JsonObject,
    RequiredText,
    StateField,
    Text,
    Timestamp,
)
from tailrace.streaming.a2a.models import A2AModel, Message, Task, exactly_one

MAX_PAGE_SIZE = 100
DEFAULT_PAGE_SIZE = 50

MAX_TITLE = 200
"""Maximum number of characters of the title of a conversation."""


class AuthenticationInfo(A2AModel):
    """The authentication of requests to a webhook.

    Attributes:
        scheme: An HTTP authentication scheme: ``Bearer``, ``Basic``, ….
        credentials: The part of the Authorization header after the scheme. Secret.
    """

    scheme: RequiredText
    credentials: Text = Field(default="", repr=False)


class TaskPushNotificationConfig(A2AModel):
    """A webhook for the push notifications of a task.

    Attributes:
        url: URL to which the server sends the push notifications.
        id: The id of the webhook; empty to let the server create it.
        task_id: The id of the task; empty in a `SendMessageConfiguration`.
        token: Token in each push notification, as proof of its origin. Secret.
        authentication: Authentication that the webhook requires; None for none.
    """

    url: RequiredText
    id: Text = ""
    task_id: Text = ""
    token: Text = Field(default="", repr=False)
    authentication: AuthenticationInfo | None = None
    tenant: Text = ""


class SendMessageConfiguration(A2AModel):
    """Configuration of the response.

    Attributes:
        accepted_output_modes: Media types of output that the caller accepts; empty for any.
        task_push_notification_config: A webhook for the task of the message; None for none.
        history_length: Maximum number of messages in the history of the returned task; None for the server's default.
        return_immediately: True to return when the task is created. False to wait until it has ended or waits for input.
    """

    accepted_output_modes: tuple[Text, ...] = ()
    task_push_notification_config: TaskPushNotificationConfig | None = None
    history_length: HistoryLength | None = None
    return_immediately: StrictBool = False


class SendMessageRequest(A2AModel):
    """Parameters of SendMessage and SendStreamingMessage."""

    message: Message
    configuration: SendMessageConfiguration = SendMessageConfiguration()
    metadata: JsonObject = Field(default_factory=dict)
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
    """Parameters of GetTask; see `SendMessageConfiguration` for ``history_length``."""

    id: RequiredText
    history_length: HistoryLength | None = None
    tenant: Text = ""


class GetConversationRequest(A2AModel):
    """Parameters of GetConversation, an operation of tailrace's extension.

    Attributes:
        history_length: Maximum number of messages to return, the newest ones; None for 1,000.
        omit_task_files: True to leave out the content of files in messages of tasks; ListTasks returns it.
        omit_files: True to leave out the content of all files, also in messages that a branch has copied.
    """

    context_id: RequiredText
    history_length: HistoryLength | None = None
    omit_task_files: StrictBool = False
    omit_files: StrictBool = False
    tenant: Text = ""


class Conversation(A2AModel):
    """Result of GetConversation.

    Attributes:
        messages: The newest messages as the agent receives them, oldest first; empty if the caller has no such conversation.
    """

    context_id: Text
    messages: tuple[Message, ...] = ()


class DeleteConversationRequest(A2AModel):
    """Parameters of DeleteConversation, an operation of tailrace's extension. The result is empty."""

    context_id: RequiredText
    tenant: Text = ""


class ListConversationsRequest(A2AModel):
    """Parameters of ListConversations, an operation of the extension. A conversation must match all filters that are set.

    Attributes:
        query: Select conversations whose title contains this text (case-insensitive); empty for all.
        page_size: Maximum number of conversations, 1 to 100.
        page_token: ``next_page_token`` of the previous page, with the same filters; empty for the first page.
        related_to: Select the conversation with this id, the conversations from which it was branched, and the branches of any of
            these; empty for all.
    """

    query: Annotated[Text, Field(max_length=MAX_TITLE)] = ""
    page_size: Annotated[int, Field(ge=1, le=MAX_PAGE_SIZE)] = DEFAULT_PAGE_SIZE
    page_token: Text = ""
    related_to: Text = ""
    tenant: Text = ""


class BranchOrigin(A2AModel):
    """The message before which a branch begins."""

    context_id: Text
    message_id: Text


class ConversationBranch(A2AModel):
    """The beginning of a branch.

    Attributes:
        message_id: The message that began the branch.
        origin: The message of the other conversation before which the branch begins; ``from`` in JSON.
    """

    message_id: Text
    origin: BranchOrigin = Field(alias="from")


class ListedConversation(A2AModel):
    """A conversation in a list.

    Attributes:
        title: The title; by default, the first words of the first message. Empty if it has neither text nor a file with a name.
        create_time: The time of the caller's first message.
        update_time: The time of the caller's newest message.
        branch: The beginning of a branch; None if the conversation is not a branch.
    """

    context_id: Text
    title: Text
    create_time: Timestamp
    update_time: Timestamp
    branch: ConversationBranch | None = None


class ListConversationsResponse(A2AModel):
    """Result of ListConversations.

    Attributes:
        conversations: Conversations of the page, the newest first.
        next_page_token: Token of the next page; empty on the last page.
    """

    conversations: tuple[ListedConversation, ...]
    next_page_token: Text = ""


class RenameConversationRequest(A2AModel):
    """Parameters of RenameConversation, an operation of the extension. The result is a `ListedConversation`.

    Attributes:
        title: The new title; empty for the default title.
    """

    context_id: RequiredText
    title: Annotated[Text, Field(max_length=MAX_TITLE)]
    tenant: Text = ""


class DeleteTaskRequest(A2AModel):
    """Parameters of DeleteTask, an operation of tailrace's extension. The result is empty."""

    id: RequiredText
    tenant: Text = ""


class CancelTaskRequest(A2AModel):
    """Parameters of CancelTask."""

    id: RequiredText
    metadata: JsonObject = Field(default_factory=dict)
    tenant: Text = ""


class SubscribeToTaskRequest(A2AModel):
    """Parameters of SubscribeToTask."""

    id: RequiredText
    tenant: Text = ""


class ListTasksRequest(A2AModel):
    """Parameters of ListTasks. A task must match all filters that are set.

    Attributes:
        context_id: Select tasks of this conversation.
        status: Select tasks in this state; ``TASK_STATE_UNSPECIFIED`` or None for any state.
        page_size: Maximum number of tasks, 1 to 100.
        page_token: ``next_page_token`` of the previous page, with the same filters; empty for the first page.
        history_length: Maximum number of messages of each task; see `SendMessageConfiguration`.
        status_timestamp_after: Select tasks whose status has this or a later timestamp.
        include_artifacts: True to include the artifacts of each task.
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
    """A task of ListTasks with ``include_artifacts``. Its JSON contains ``artifacts`` even if the list is empty."""

    @model_serializer(mode="wrap")
    def _write_artifacts(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"artifacts": [], **handler(self)}


class ListTasksResponse(A2AModel):
    """Result of ListTasks.

    Attributes:
        tasks: Tasks of the page, sorted by the timestamp of their status, newest first.
        page_size: Number of tasks on this page.
        total_size: Number of tasks on all pages.
    """

    tasks: tuple[SerializeAsAny[Task], ...] = ()
    next_page_token: Text = ""
    page_size: int = 0
    total_size: int = 0

    @model_serializer(mode="wrap")
    def _write_all(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # The protocol requires these members even if they are empty.
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
    """Result of ListTaskPushNotificationConfigs: all webhooks of the task."""

    configs: tuple[TaskPushNotificationConfig, ...] = ()
    next_page_token: Text = ""

    @model_serializer(mode="wrap")
    def _write_configs(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {"configs": []} | handler(self)


class GetExtendedAgentCardRequest(A2AModel):
    """Parameters of GetExtendedAgentCard."""

    tenant: Text = ""

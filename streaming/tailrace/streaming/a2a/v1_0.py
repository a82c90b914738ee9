"""The codec for A2A 1.0. The object model has the same version, so that stored events are sent unchanged."""

from collections.abc import Mapping
from typing import Any, ClassVar, cast

from pydantic import ValidationError

from tailrace.streaming.a2a.errors import A2AError, InvalidParamsError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.models import A2AModel, Message, Task
from tailrace.streaming.a2a.requests import (
    CancelTaskRequest,
    DeleteConversationRequest,
    DeleteTaskPushNotificationConfigRequest,
    DeleteTaskRequest,
    GetConversationRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListConversationsRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    RenameConversationRequest,
    SendMessageRequest,
    SendMessageResponse,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
)
from tailrace.streaming.a2a.version_codec import Dialect, Operation

REQUESTS: Mapping[Operation, type[A2AModel]] = {
    Operation.SEND_MESSAGE: SendMessageRequest,
    Operation.SEND_STREAMING_MESSAGE: SendMessageRequest,
    Operation.GET_TASK: GetTaskRequest,
    Operation.LIST_TASKS: ListTasksRequest,
    Operation.CANCEL_TASK: CancelTaskRequest,
    Operation.SUBSCRIBE_TO_TASK: SubscribeToTaskRequest,
    Operation.CREATE_PUSH_CONFIG: TaskPushNotificationConfig,
    Operation.GET_PUSH_CONFIG: GetTaskPushNotificationConfigRequest,
    Operation.LIST_PUSH_CONFIGS: ListTaskPushNotificationConfigsRequest,
    Operation.DELETE_PUSH_CONFIG: DeleteTaskPushNotificationConfigRequest,
    Operation.GET_EXTENDED_CARD: GetExtendedAgentCardRequest,
    Operation.GET_CONVERSATION: GetConversationRequest,
    Operation.DELETE_TASK: DeleteTaskRequest,
    Operation.DELETE_CONVERSATION: DeleteConversationRequest,
    Operation.LIST_CONVERSATIONS: ListConversationsRequest,
    Operation.RENAME_CONVERSATION: RenameConversationRequest,
}
"""Request type of each operation."""


class Version10(Dialect):
    """The codec for A2A 1.0 (the ProtoJSON of ``a2a.proto``)."""

    version = "1.0"
    stores_events = True
    methods: ClassVar[Mapping[str, Operation]] = {str(operation): operation for operation in Operation}

    def read_request(self, operation: Operation, params: Mapping[str, Any]) -> A2AModel:
        """Validate the request."""
        try:
            return REQUESTS[operation].model_validate(dict(params))
        except ValidationError as error:
            raise InvalidParamsError.from_validation(error) from None

    def write_result(self, operation: Operation, result: A2AModel | None) -> bytes:
        """Encode the result. The result of SendMessage is wrapped in a ``SendMessageResponse``."""
        if result is None:
            return b"{}"
        if operation is Operation.SEND_MESSAGE:
            sent = cast("Task | Message", result)
            result = (
                SendMessageResponse(task=sent)
                if isinstance(sent, Task)
                else SendMessageResponse(message=sent)
            )
        return result.to_json()

    def write_event(self, event: Event, *, is_last: bool) -> bytes:
        """Return the stored body."""
        return event.body

    def write_error(self, error: A2AError) -> dict[str, Any]:
        """Return the code, the message and the typed details."""
        return error.to_jsonrpc()

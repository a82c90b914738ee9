"""The interface of codecs, each of which implements one version of the protocol.

A codec converts requests of its version to the object model of A2A 1.0, and encodes tasks, messages, events and errors for its
version. Codecs do not depend on the transport or the engine.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, ClassVar

from tailrace.streaming.a2a.errors import A2AError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.models import A2AModel


class Operation(StrEnum):
    """Operations of an agent. The values are the method names in A2A 1.0, or in the extension (`EXTENSION_OPERATIONS`)."""

    SEND_MESSAGE = "SendMessage"
    SEND_STREAMING_MESSAGE = "SendStreamingMessage"
    GET_TASK = "GetTask"
    LIST_TASKS = "ListTasks"
    CANCEL_TASK = "CancelTask"
    SUBSCRIBE_TO_TASK = "SubscribeToTask"
    CREATE_PUSH_CONFIG = "CreateTaskPushNotificationConfig"
    GET_PUSH_CONFIG = "GetTaskPushNotificationConfig"
    LIST_PUSH_CONFIGS = "ListTaskPushNotificationConfigs"
    DELETE_PUSH_CONFIG = "DeleteTaskPushNotificationConfig"
    GET_EXTENDED_CARD = "GetExtendedAgentCard"
    GET_CONVERSATION = "GetConversation"
    DELETE_TASK = "DeleteTask"
    DELETE_CONVERSATION = "DeleteConversation"
    LIST_CONVERSATIONS = "ListConversations"
    RENAME_CONVERSATION = "RenameConversation"

    @property
    def streams(self) -> bool:
        """True if the response is a stream of events."""
        return self in (Operation.SEND_STREAMING_MESSAGE, Operation.SUBSCRIBE_TO_TASK)


EXTENSION_OPERATIONS = frozenset(
    {
        Operation.GET_CONVERSATION,
        Operation.DELETE_TASK,
        Operation.DELETE_CONVERSATION,
        Operation.LIST_CONVERSATIONS,
        Operation.RENAME_CONVERSATION,
    }
)
"""Operations of the extension ``urn:tailrace:ext:stream:v1``. They are not available over gRPC."""


class Dialect(ABC):
    """The codec for a version of the protocol.

    Attributes:
        version: Major and minor version, as in the header ``A2A-Version``.
        methods: The operations by JSON-RPC method.
        clients_create_task_ids: True if clients create the ids of their tasks. A message with an unknown task id then starts a
            task.
        subscribes_to_ended_tasks: True if a subscription to an ended task returns the task; False if it returns an error.
        streams_errors: True if an error of a streaming request is an event of a stream; False if it is a normal response.
        stores_events: True if stored events have the format of this version.
    """

    version: ClassVar[str]
    clients_create_task_ids: ClassVar[bool] = False
    subscribes_to_ended_tasks: ClassVar[bool] = False
    streams_errors: ClassVar[bool] = False
    stores_events: ClassVar[bool] = False
    methods: ClassVar[Mapping[str, Operation]]

    def for_client(self, user_agent: str) -> "Dialect":
        """Return the codec for a client, whose software may determine the encoding.

        Args:
            user_agent: The user agent of the HTTP or gRPC client; empty for none.
        """
        return self

    @abstractmethod
    def read_request(self, operation: Operation, params: Mapping[str, Any]) -> A2AModel:
        """Convert the parameters of a method to the request of A2A 1.0, and validate them.

        Raises:
            InvalidParamsError: The parameters are not valid.
        """

    @abstractmethod
    def write_result(self, operation: Operation, result: A2AModel | None) -> bytes:
        """Encode the result of a non-streaming operation as JSON. The result of a deletion is None."""

    def for_stream(self, artifact_ids: Iterable[str] = ()) -> "Dialect":
        """Return the codec for one stream, whose earlier events may determine the encoding.

        Args:
            artifact_ids: Ids of the artifacts of the task when the stream begins, in order of creation.
        """
        return self

    @abstractmethod
    def write_event(self, event: Event, *, is_last: bool) -> bytes | None:
        """Encode an event of a stream as JSON; None if this version has no such event.

        Args:
            event: An event whose body is a ``StreamResponse`` of A2A 1.0.
            is_last: True for the last event of the stream.
        """

    @abstractmethod
    def write_error(self, error: A2AError) -> dict[str, Any]:
        """Return the ``error`` member of a JSON-RPC response."""

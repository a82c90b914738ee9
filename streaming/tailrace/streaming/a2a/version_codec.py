"""Interface of a protocol version: a codec for the object model of A2A 1.0.

A dialect decodes the requests of its version to requests of A2A 1.0. It encodes tasks, messages, events and errors in the
form of its version. It is independent of the transport and of the engine.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, ClassVar

from tailrace.streaming.a2a.errors import A2AError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.models import A2AModel


class Operation(StrEnum):
    """Operations of an agent, by their names in A2A 1.0. `EXTENSION_OPERATIONS` belong to the extension."""

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

    @property
    def streams(self) -> bool:
        """True if the response is a stream of events."""
        return self in (Operation.SEND_STREAMING_MESSAGE, Operation.SUBSCRIBE_TO_TASK)


EXTENSION_OPERATIONS = frozenset(
    {Operation.GET_CONVERSATION, Operation.DELETE_TASK, Operation.DELETE_CONVERSATION}
)
"""Operations of the extension ``urn:tailrace:ext:stream:v1``. gRPC does not have them."""


class Dialect(ABC):
    """A version of the protocol.

    Attributes:
        version: Major and minor version, as in ``A2A-Version``.
        methods: Operations by the names of their JSON-RPC methods.
        names_tasks: The client chooses the ids of its tasks; a message with an unknown id starts a task.
        repeats_finished: A subscription to a finished task returns the task; other versions return an error.
        streams_errors: An error of a streaming request is sent as an event of the stream; other versions send it as
            the response.
        stores_events: Stored events already have the form of this version; `write_event` returns them unchanged.
    """

    version: ClassVar[str]
    names_tasks: ClassVar[bool] = False
    repeats_finished: ClassVar[bool] = False
    streams_errors: ClassVar[bool] = False
    stores_events: ClassVar[bool] = False
    methods: ClassVar[Mapping[str, Operation]]

    def for_client(self, user_agent: str) -> "Dialect":
        """Return a codec for one client, if the encoding depends on the program.

        Args:
            user_agent: The user agent of the HTTP or gRPC client; empty for none.
        """
        return self

    @abstractmethod
    def read_request(self, operation: Operation, params: Mapping[str, Any]) -> A2AModel:
        """Decode the parameters of a method to the request of A2A 1.0.

        Raises:
            InvalidParamsError: The parameters are not valid.
        """

    @abstractmethod
    def write_result(self, operation: Operation, result: A2AModel | None) -> bytes:
        """Encode the result of an operation without a stream as JSON. The result of a deletion is None."""

    def for_stream(self, artifact_ids: Iterable[str] = ()) -> "Dialect":
        """Return a codec for one stream, if the encoding of an event depends on earlier ones.

        Args:
            artifact_ids: Ids of the artifacts of the task when the stream begins, in order of creation.
        """
        return self

    @abstractmethod
    def write_event(self, event: Event, *, closes: bool) -> bytes | None:
        """Encode an event of a stream as JSON; None if this version has no such event.

        Args:
            event: An event whose body is a ``StreamResponse`` of A2A 1.0.
            closes: True for the last event of the stream.
        """

    @abstractmethod
    def write_error(self, error: A2AError) -> dict[str, Any]:
        """Return the ``error`` member of a JSON-RPC response."""

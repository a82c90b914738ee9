"""A version of the protocol as a codec over the one object model.

A dialect reads what a client of its version sends into the requests of A2A 1.0, and writes tasks, messages, events and
errors in its own form. It knows neither transport nor engine.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, ClassVar

from tailrace.streaming.a2a.errors import A2AError
from tailrace.streaming.a2a.event import Event
from tailrace.streaming.a2a.models import A2AModel


class Operation(StrEnum):
    """The operations of an agent, under A2A 1.0's names; the last one is our extension's."""

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

    @property
    def streams(self) -> bool:
        """Return whether the response is a stream of events."""
        return self in (Operation.SEND_STREAMING_MESSAGE, Operation.SUBSCRIBE_TO_TASK)


class Dialect(ABC):
    """One version of the protocol.

    Attributes:
        version: As in ``A2A-Version``: major and minor.
        methods: The operations by their JSON-RPC method names.
        names_tasks: The client makes the ids of its tasks: one that is not known begins a task.
        repeats_finished: Following a task that is over gives the task as it stands, where others refuse.
        streams_errors: Clients that ask for a stream expect one with the error in it, where others expect the error
            alone.
        stores_events: The body of an event is what this version writes: `write_event` returns it as it is.
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
            user_agent: The name that the client's HTTP or gRPC library gives itself; empty for none.
        """
        return self

    @abstractmethod
    def read_request(self, operation: Operation, params: Mapping[str, Any]) -> A2AModel:
        """The request that the parameters of a method mean, in A2A 1.0's form.

        Raises:
            InvalidParamsError: They are not what the method takes.
        """

    @abstractmethod
    def write_result(self, operation: Operation, result: A2AModel | None) -> bytes:
        """The result of an operation that does not stream, as JSON; None is the result of a deletion."""

    def for_stream(self, artifact_ids: Iterable[str] = ()) -> "Dialect":
        """Return a codec for one stream, if the encoding of an event depends on earlier ones.

        Args:
            artifact_ids: The artifacts that the task has when the stream begins, in the order of their making.
        """
        return self

    @abstractmethod
    def write_event(self, event: Event, *, closes: bool) -> bytes | None:
        """One event of a stream as JSON; None where this version has no such event.

        Args:
            event: Its body is A2A 1.0's ``StreamResponse``.
            closes: Nothing follows on this stream.
        """

    @abstractmethod
    def write_error(self, error: A2AError) -> dict[str, Any]:
        """The ``error`` member of a JSON-RPC response."""

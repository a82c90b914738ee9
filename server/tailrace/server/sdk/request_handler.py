"""A request handler of the official SDK, which serves the engine with the SDK's routes.

::

    engine = Engine(Store("sqlite:///tailrace.db"), handler)
    routes = create_jsonrpc_routes(RequestHandler(Operations(engine)), "/")

    async with engine.running():
        ...  # serve the routes

The routes of the SDK do not support ids of SSE events, so the number of an event is in the extension's metadata. A subscription
resumes after the number in the header ``Last-Event-ID``.
"""

from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import Any, TypeVar, cast

from a2a.server.context import ServerCallContext
from a2a.server.events.event_queue import Event as SdkEvent
from a2a.server.request_handlers.request_handler import RequestHandler as SdkRequestHandler
from a2a.types import a2a_pb2
from google.protobuf.message import Message as ProtoMessage

from tailrace.server.http.request_headers import parse_cursor
from tailrace.server.protocols.a2a.sdk_errors import as_sdk_error
from tailrace.server.protocols.a2a.sdk_events import to_sdk_event
from tailrace.server.protocols.a2a.sdk_types import from_sdk, to_sdk
from tailrace.server.runtime.caller import Caller
from tailrace.server.runtime.operations import Operations
from tailrace.streaming.a2a.models import A2AModel, Task
from tailrace.streaming.a2a.v1_0 import REQUESTS
from tailrace.streaming.a2a.version_codec import Operation

P = TypeVar("P", bound=ProtoMessage)

CURSOR_HEADER = "last-event-id"


def caller_of(context: ServerCallContext) -> Caller:
    """Return the caller from the SDK's context: the user, if authenticated, and the tenant."""
    user = context.user
    return Caller(user.user_name if user.is_authenticated else "", context.tenant)


class RequestHandler(SdkRequestHandler):
    """Executes the requests of the SDK with the engine.

    All methods raise errors of the SDK. Closing a stream does not cancel the task.

    Args:
        operations: Executes the operations. The engine must be running.
        caller: Returns the caller from the context of the SDK.
    """

    def __init__(
        self, operations: Operations, *, caller: Callable[[ServerCallContext], Caller] = caller_of
    ) -> None:
        self._operations = operations
        self._caller = caller

    async def on_message_send(
        self, params: a2a_pb2.SendMessageRequest, context: ServerCallContext
    ) -> a2a_pb2.Task | a2a_pb2.Message:
        """Send a message (SendMessage). Return a direct message, or the task when it has ended or waits for input."""
        with _raising_sdk_errors():
            result = await self._execute(Operation.SEND_MESSAGE, params, context)
            return (
                to_sdk(result, a2a_pb2.Task) if isinstance(result, Task) else to_sdk(result, a2a_pb2.Message)
            )

    def on_message_send_stream(
        self, params: a2a_pb2.SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[SdkEvent]:
        """Send a message (SendStreamingMessage). Return the task and then its events, or a direct message."""
        return self._stream(Operation.SEND_STREAMING_MESSAGE, params, context)

    def on_subscribe_to_task(
        self, params: a2a_pb2.SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[SdkEvent]:
        """Subscribe to a task (SubscribeToTask). Return the task and its further events.

        If the request has the header ``Last-Event-ID``, return only the events after this event.
        """
        return self._stream(Operation.SUBSCRIBE_TO_TASK, params, context)

    async def on_get_task(self, params: a2a_pb2.GetTaskRequest, context: ServerCallContext) -> a2a_pb2.Task:
        """Return a task (GetTask)."""
        return await self._result(Operation.GET_TASK, params, context, a2a_pb2.Task)

    async def on_list_tasks(
        self, params: a2a_pb2.ListTasksRequest, context: ServerCallContext
    ) -> a2a_pb2.ListTasksResponse:
        """Return a page of the caller's tasks (ListTasks)."""
        return await self._result(Operation.LIST_TASKS, params, context, a2a_pb2.ListTasksResponse)

    async def on_cancel_task(
        self, params: a2a_pb2.CancelTaskRequest, context: ServerCallContext
    ) -> a2a_pb2.Task:
        """Stop the turn of a task, and return the canceled task (CancelTask)."""
        return await self._result(Operation.CANCEL_TASK, params, context, a2a_pb2.Task)

    async def on_create_task_push_notification_config(
        self, params: a2a_pb2.TaskPushNotificationConfig, context: ServerCallContext
    ) -> a2a_pb2.TaskPushNotificationConfig:
        """Register a webhook (CreateTaskPushNotificationConfig)."""
        return await self._result(
            Operation.CREATE_PUSH_CONFIG, params, context, a2a_pb2.TaskPushNotificationConfig
        )

    async def on_get_task_push_notification_config(
        self, params: a2a_pb2.GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> a2a_pb2.TaskPushNotificationConfig:
        """Return a webhook (GetTaskPushNotificationConfig)."""
        return await self._result(
            Operation.GET_PUSH_CONFIG, params, context, a2a_pb2.TaskPushNotificationConfig
        )

    async def on_list_task_push_notification_configs(
        self, params: a2a_pb2.ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> a2a_pb2.ListTaskPushNotificationConfigsResponse:
        """Return the webhooks of a task (ListTaskPushNotificationConfigs)."""
        return await self._result(
            Operation.LIST_PUSH_CONFIGS, params, context, a2a_pb2.ListTaskPushNotificationConfigsResponse
        )

    async def on_delete_task_push_notification_config(
        self, params: a2a_pb2.DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        """Delete a webhook (DeleteTaskPushNotificationConfig)."""
        with _raising_sdk_errors():
            await self._execute(Operation.DELETE_PUSH_CONFIG, params, context)

    async def on_get_extended_agent_card(
        self, params: a2a_pb2.GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> a2a_pb2.AgentCard:
        """Return the extended agent card (GetExtendedAgentCard)."""
        return await self._result(Operation.GET_EXTENDED_CARD, params, context, a2a_pb2.AgentCard)

    async def _result(
        self, operation: Operation, params: ProtoMessage, context: ServerCallContext, kind: type[P]
    ) -> P:
        with _raising_sdk_errors():
            return to_sdk(await self._execute(operation, params, context), kind)

    async def _execute(
        self, operation: Operation, params: ProtoMessage, context: ServerCallContext
    ) -> A2AModel:
        request = from_sdk(params, REQUESTS[operation])
        result = await self._operations.execute(operation, request, self._caller_of(context, request))
        return cast("A2AModel", result)  # the result of a deletion is None, and is not used

    async def _stream(
        self, operation: Operation, params: ProtoMessage, context: ServerCallContext
    ) -> AsyncGenerator[SdkEvent]:
        with _raising_sdk_errors():
            request = from_sdk(params, REQUESTS[operation])
            after = _cursor_of(context) if operation is Operation.SUBSCRIBE_TO_TASK else None
            stream = await self._operations.stream(
                operation, request, self._caller_of(context, request), after=after
            )
            async with aclosing(stream.batches()) as batches:
                async for events in batches:
                    for event in events:
                        yield to_sdk_event(event)

    def _caller_of(self, context: ServerCallContext, request: A2AModel) -> Caller:
        # The context has only a tenant from a path or from JSON-RPC.
        if not context.tenant:
            context = context.model_copy(update={"tenant": getattr(request, "tenant", "")})
        extensions = self._operations.capabilities.activated(context.requested_extensions)
        caller = self._caller(context)
        send_key = caller.send_key or _headers_of(context).get("idempotency-key", "")
        return replace(caller, extensions=extensions, send_key=send_key)


@contextmanager
def _raising_sdk_errors() -> Generator[None]:
    try:
        yield
    except Exception as error:
        raise as_sdk_error(error) from error


def _cursor_of(context: ServerCallContext) -> int | None:
    """Return the number of the event after which a subscription resumes; None without the header ``Last-Event-ID``."""
    return parse_cursor(_headers_of(context).get(CURSOR_HEADER, ""), "Last-Event-ID")


def _headers_of(context: ServerCallContext) -> Mapping[str, str]:
    """Return the headers of a request, or the metadata of a gRPC call."""
    sent = cast("Mapping[str, str]", context.state.get("headers") or {})
    grpc_context: Any = context.state.get("grpc_context")
    if grpc_context is not None:
        sent = dict(cast("Iterable[tuple[str, str]]", grpc_context.invocation_metadata() or ()))
    return sent

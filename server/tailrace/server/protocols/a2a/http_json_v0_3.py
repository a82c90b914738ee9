"""The HTTP+JSON binding of A2A 0.3: routes under ``/v1``, and the format of errors.

Source: A2A 0.3.0, section 3.5.6 (paths) and ``specification/grpc/a2a.proto``. The specification does not define the members of an
error. Some clients read the name of the error from ``error`` or ``type``. The official JavaScript client reads the JSON-RPC error
code from ``code``.
"""

from tailrace.server.http.error_responses import Problem, encode_ascii
from tailrace.server.protocols.a2a.http_json import Route, Version
from tailrace.streaming.a2a.v0_3_proto_json import Version03ProtoJson
from tailrace.streaming.a2a.version_codec import Operation

CARD = Route("GET", "/v1/card", Operation.GET_EXTENDED_CARD)
"""The route of the extended card, or of the public card if there is no extended card (see `CardEndpoint`)."""

ROUTES = (
    Route("POST", "/v1/message:send", Operation.SEND_MESSAGE),
    Route("POST", "/v1/message:stream", Operation.SEND_STREAMING_MESSAGE),
    Route("GET", "/v1/tasks", Operation.LIST_TASKS),
    Route("POST", "/v1/tasks/{id}:cancel", Operation.CANCEL_TASK),
    Route("POST", "/v1/tasks/{id}:subscribe", Operation.SUBSCRIBE_TO_TASK),
    # No event ``end``, because the official clients use GET and treat every event as an event of the task.
    Route("GET", "/v1/tasks/{id}:subscribe", Operation.SUBSCRIBE_TO_TASK),
    Route("POST", "/v1/tasks/{taskId}/pushNotificationConfigs", Operation.CREATE_PUSH_CONFIG),
    Route("GET", "/v1/tasks/{taskId}/pushNotificationConfigs", Operation.LIST_PUSH_CONFIGS),
    Route("GET", "/v1/tasks/{taskId}/pushNotificationConfigs/{configId}", Operation.GET_PUSH_CONFIG),
    Route("DELETE", "/v1/tasks/{taskId}/pushNotificationConfigs/{configId}", Operation.DELETE_PUSH_CONFIG),
    Route("GET", "/v1/tasks/{id}", Operation.GET_TASK),
    CARD,
    Route("GET", "/agent/authenticatedExtendedCard", Operation.GET_EXTENDED_CARD),
)

# Names of errors in 1.0, and the different names in 0.3.
_NAMES = {
    "ExtendedAgentCardNotConfiguredError": "AuthenticatedExtendedCardNotConfiguredError",
    "RequestMediaTypeError": "ContentTypeNotSupportedError",
}


def write_problem(problem: Problem) -> bytes:
    """Encode an error with its name and code."""
    name = _NAMES.get(problem.name, problem.name)
    fields: dict[str, object] = {"error": name, "type": name, "message": problem.message}
    if problem.rpc_code is not None:
        fields["code"] = problem.rpc_code
    if problem.details:
        fields["details"] = problem.details
    return encode_ascii(fields)


VERSION_0_3 = Version(Version03ProtoJson(), ROUTES, write_problem=write_problem)

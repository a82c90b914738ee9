"""The HTTP+JSON binding of A2A 0.3: its addresses under ``/v1``, and the form of its errors.

A client of 0.2.1 and later asks for the extended card at an address of its own, which is here too.

Source: A2A 0.3.0, section 3.5.6 (addresses) and ``specification/grpc/a2a.proto``. It defines errors only as
JSON; clients look for the name of the error, as text, in ``error`` or in ``type``, or (the official ones in JavaScript)
for its JSON-RPC number in ``code``.
"""

from tailrace.server.http.error_responses import Problem, encode_ascii
from tailrace.server.protocols.a2a.http_json import Route, Version
from tailrace.streaming.a2a.v0_3_rest import Version03Http
from tailrace.streaming.a2a.version_codec import Operation

CARD = Route("GET", "/v1/card", Operation.GET_EXTENDED_CARD)
"""The extended card. Where there is none, the public card is put at this address before the binding is."""

ROUTES = (
    Route("POST", "/v1/message:send", Operation.SEND_MESSAGE),
    Route("POST", "/v1/message:stream", Operation.SEND_STREAMING_MESSAGE),
    Route("GET", "/v1/tasks", Operation.LIST_TASKS),
    Route("POST", "/v1/tasks/{id}:cancel", Operation.CANCEL_TASK),
    Route("POST", "/v1/tasks/{id}:subscribe", Operation.SUBSCRIBE_TO_TASK),
    # Without an explicit end: the official clients follow a task by GET, and take every event for one of the task.
    Route("GET", "/v1/tasks/{id}:subscribe", Operation.SUBSCRIBE_TO_TASK),
    Route("POST", "/v1/tasks/{taskId}/pushNotificationConfigs", Operation.CREATE_PUSH_CONFIG),
    Route("GET", "/v1/tasks/{taskId}/pushNotificationConfigs", Operation.LIST_PUSH_CONFIGS),
    Route("GET", "/v1/tasks/{taskId}/pushNotificationConfigs/{configId}", Operation.GET_PUSH_CONFIG),
    Route("DELETE", "/v1/tasks/{taskId}/pushNotificationConfigs/{configId}", Operation.DELETE_PUSH_CONFIG),
    Route("GET", "/v1/tasks/{id}", Operation.GET_TASK),
    CARD,
    Route("GET", "/agent/authenticatedExtendedCard", Operation.GET_EXTENDED_CARD),
)

# What 0.3 calls otherwise than 1.0.
_NAMES = {
    "ExtendedAgentCardNotConfiguredError": "AuthenticatedExtendedCardNotConfiguredError",
    "RequestMediaTypeError": "ContentTypeNotSupportedError",
}


def write_problem(problem: Problem) -> bytes:
    """An error with its name and its number where the clients of 0.3 look for them."""
    name = _NAMES.get(problem.name, problem.name)
    fields: dict[str, object] = {"error": name, "type": name, "message": problem.message}
    if problem.rpc_code is not None:
        fields["code"] = problem.rpc_code
    if problem.details:
        fields["details"] = problem.details
    return encode_ascii(fields)


VERSION_0_3 = Version(Version03Http(), ROUTES, write_problem=write_problem)

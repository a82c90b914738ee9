"""The errors of the protocol: numbers, names, and public messages."""

import json

import pytest
from a2a.utils import errors as official
from pydantic import ValidationError

from tailrace.streaming.a2a import errors, models, requests
from tailrace.streaming.a2a.errors import (
    A2AError,
    FieldViolation,
    InvalidParamsError,
    ParseError,
    TaskNotFoundError,
)
from tailrace.wrappers import ProtocolError

ALL_ERRORS = sorted(A2AError.__subclasses__(), key=lambda error: error.__name__)

# Code, HTTP status, gRPC status, reason, message: the tables of A2A 1.0.1.
TABLE = {
    "TaskNotFoundError": (-32001, 404, "NOT_FOUND", "TASK_NOT_FOUND", "Task not found"),
    "TaskNotCancelableError": (
        -32002,
        400,
        "FAILED_PRECONDITION",
        "TASK_NOT_CANCELABLE",
        "Task cannot be canceled",
    ),
    "PushNotificationNotSupportedError": (
        -32003,
        400,
        "FAILED_PRECONDITION",
        "PUSH_NOTIFICATION_NOT_SUPPORTED",
        "Push Notification is not supported",
    ),
    "UnsupportedOperationError": (
        -32004,
        400,
        "FAILED_PRECONDITION",
        "UNSUPPORTED_OPERATION",
        "This operation is not supported",
    ),
    "ContentTypeNotSupportedError": (
        -32005,
        400,
        "INVALID_ARGUMENT",
        "CONTENT_TYPE_NOT_SUPPORTED",
        "Incompatible content types",
    ),
    "InvalidAgentResponseError": (
        -32006,
        500,
        "INTERNAL",
        "INVALID_AGENT_RESPONSE",
        "Invalid agent response",
    ),
    "ExtendedAgentCardNotConfiguredError": (
        -32007,
        400,
        "FAILED_PRECONDITION",
        "EXTENDED_AGENT_CARD_NOT_CONFIGURED",
        "Authenticated Extended Card is not configured",
    ),
    "ExtensionSupportRequiredError": (
        -32008,
        400,
        "FAILED_PRECONDITION",
        "EXTENSION_SUPPORT_REQUIRED",
        "Extension support required",
    ),
    "VersionNotSupportedError": (
        -32009,
        400,
        "FAILED_PRECONDITION",
        "VERSION_NOT_SUPPORTED",
        "Version not supported",
    ),
    "ParseError": (-32700, 400, "INVALID_ARGUMENT", "PARSE_ERROR", "Invalid JSON payload"),
    "InvalidRequestError": (
        -32600,
        400,
        "INVALID_ARGUMENT",
        "INVALID_REQUEST",
        "Request payload validation error",
    ),
    "MethodNotFoundError": (-32601, 404, "NOT_FOUND", "METHOD_NOT_FOUND", "Method not found"),
    "InvalidParamsError": (-32602, 400, "INVALID_ARGUMENT", "INVALID_PARAMS", "Invalid parameters"),
    "InternalError": (-32603, 500, "INTERNAL", "INTERNAL_ERROR", "Internal error"),
}


def rejection(model: type[models.A2AModel], value: object) -> InvalidParamsError:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(value)
    return InvalidParamsError.from_validation(caught.value)


def test_the_errors_are_those_of_the_table():
    assert {error.__name__ for error in ALL_ERRORS} == set(TABLE)


@pytest.mark.parametrize("error", ALL_ERRORS)
def test_an_error_has_the_numbers_and_names_of_the_protocol(error: type[A2AError]):
    facts = (error.code, error.http_status, error.status, error.reason, error.message)
    assert facts == TABLE[error.__name__]


@pytest.mark.parametrize("error", ALL_ERRORS)
def test_the_module_draws_the_error_in_its_tree(error: type[A2AError]):
    rows = [line.split()[-3:] for line in (errors.__doc__ or "").splitlines() if "── " in line]
    assert [error.__name__, str(error.code), str(error.http_status)] in rows


@pytest.mark.parametrize("theirs", official.A2A_ERROR_MAPPING)
def test_the_official_sdk_means_the_same_by_the_error(theirs: type[official.A2AError]):
    ours = getattr(errors, theirs.__name__)
    mapping = official.A2A_ERROR_MAPPING[theirs]
    assert ours.code == official.JSON_RPC_ERROR_CODE_MAP[theirs]
    assert (ours.http_status, ours.status, ours.reason) == mapping


def test_a_protocol_error_is_caught_as_one():
    with pytest.raises(ProtocolError, match=r"^Task not found: no task 't1'$"):
        raise TaskNotFoundError("no task 't1'")


def test_without_a_detail_the_standard_message_stands_alone():
    assert str(ParseError()) == "Invalid JSON payload"
    assert ParseError().to_jsonrpc() == {
        "code": -32700,
        "message": "Invalid JSON payload",
        "data": [
            {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "PARSE_ERROR",
                "domain": "a2a-protocol.org",
            }
        ],
    }


def test_the_json_rpc_error_carries_the_facts_and_the_wrong_fields():
    error = TaskNotFoundError(
        "no task 't1'", metadata={"taskId": "t1"}, violations=[FieldViolation("id", "Unknown")]
    )
    written = json.loads(json.dumps(error.to_jsonrpc()))
    assert written == {
        "code": -32001,
        "message": "Task not found: no task 't1'",
        "data": [
            {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "TASK_NOT_FOUND",
                "domain": "a2a-protocol.org",
                "metadata": {"taskId": "t1"},
            },
            {
                "@type": "type.googleapis.com/google.rpc.BadRequest",
                "fieldViolations": [{"field": "id", "description": "Unknown"}],
            },
        ],
    }


def test_a_wrong_field_is_named_as_in_the_json():
    error = rejection(
        requests.SendMessageRequest, {"message": {"messageId": "m", "role": "ROLE_USER", "parts": []}}
    )
    assert str(error) == "Invalid parameters: message.parts: At least one part is required"
    assert error.violations == (FieldViolation("message.parts", "At least one part is required"),)


def test_a_wrong_field_inside_a_list_is_named_with_its_index():
    parts = [{"text": "a"}, {"raw": "!"}]
    error = rejection(models.Message, {"messageId": "m", "role": "ROLE_USER", "parts": parts})
    (violation,) = error.violations
    assert violation.field == "parts[1].raw"
    assert violation.description.startswith("not base64")


@pytest.mark.parametrize("name", ["history_length", "historyLength"])
def test_a_wrong_field_is_named_in_camel_case_however_it_was_sent(name: str):
    assert rejection(requests.GetTaskRequest, {"id": "t", name: -1}).violations[0].field == "historyLength"


def test_every_wrong_field_is_listed_and_the_message_counts_them():
    error = rejection(requests.SendMessageRequest, {"message": {}})
    assert [violation.field for violation in error.violations] == [
        "message.messageId",
        "message.role",
        "message.parts",
    ]
    assert str(error) == "Invalid parameters: message.messageId: Field required (and 2 more)"


def test_the_answer_to_ten_thousand_wrong_fields_stays_small():
    no_part: dict[str, object] = {}
    error = rejection(models.Message, {"messageId": "m", "role": 1, "parts": [no_part] * 10_000})
    assert len(error.violations) == 20
    assert str(error).endswith("(and 9999 more)")


def test_parameters_that_are_no_object_are_refused_as_a_whole():
    error = rejection(requests.GetTaskRequest, ["t1"])
    assert error.violations == ()
    assert str(error).startswith("Invalid parameters: Input should be")


@pytest.mark.parametrize(
    "wrong",
    [{"role": "s3cret"}, {"parts": "s3cret"}, {"parts": [{"raw": "s3cret!"}]}, {"taskId": ["s3cret"]}],
)
def test_what_the_caller_sent_is_not_repeated(wrong: dict[str, object]):
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "a"}]} | wrong
    assert "s3cret" not in json.dumps(rejection(models.Message, message).to_jsonrpc())

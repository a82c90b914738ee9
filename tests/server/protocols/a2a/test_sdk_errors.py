"""Conversion of our errors to the official SDK's, and back."""

import pytest
from a2a.utils import errors as sdk_errors
from a2a.utils.error_handlers import build_rest_error_payload

from tailrace.server.protocols.a2a.sdk_errors import as_sdk_error
from tailrace.server.sdk import from_sdk_error, to_sdk_error
from tailrace.streaming.a2a import errors
from tailrace.streaming.a2a.errors import A2AError, FieldViolation
from tailrace.wrappers import StoreError

OURS = sorted(A2AError.__subclasses__(), key=lambda kind: kind.__name__)
# The SDK's client defines further subclasses when it is imported; no handler raises those.
THEIRS = sorted(
    (kind for kind in sdk_errors.A2AError.__subclasses__() if kind.__module__ == sdk_errors.__name__),
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize("kind", OURS)
def test_a_converted_error_has_all_its_fields(kind: type[A2AError]) -> None:
    error = kind(
        "no, because", metadata={"taskId": "t"}, violations=[FieldViolation("message.parts", "empty")]
    )
    theirs = to_sdk_error(error)
    assert type(theirs).__name__.removeprefix("JSON") == kind.__name__
    assert theirs.message == str(error)
    back = from_sdk_error(theirs)
    assert type(back) is kind
    assert (back.detail, back.metadata, back.violations) == (error.detail, error.metadata, error.violations)


@pytest.mark.parametrize("kind", THEIRS)
def test_every_error_of_the_sdk_is_one_of_ours(kind: type[sdk_errors.A2AError]) -> None:
    bare = from_sdk_error(kind())
    assert type(bare).__name__ == kind.__name__.removeprefix("JSON")
    assert bare.detail == ""
    assert from_sdk_error(kind("something else")).detail == "something else"


def test_a_subclass_is_converted_as_its_base_class() -> None:
    class Ours(errors.TaskNotFoundError):
        pass

    class Theirs(sdk_errors.TaskNotFoundError):
        pass

    class Unknown(sdk_errors.A2AError):
        pass

    assert type(to_sdk_error(Ours())) is sdk_errors.TaskNotFoundError
    assert type(from_sdk_error(Theirs())) is errors.TaskNotFoundError
    assert type(from_sdk_error(Unknown("odd"))) is errors.InternalError


def test_the_sdks_routes_write_the_same_status_and_reason_as_ours() -> None:
    for kind in OURS:
        payload = build_rest_error_payload(to_sdk_error(kind(metadata={"taskId": "t"})))["error"]
        if kind is errors.ParseError:
            continue  # the SDK has no status for it
        assert payload["code"] == kind.http_status
        assert payload["status"] == kind.status
        assert payload["details"][0]["reason"] == kind.reason
        assert payload["details"][0]["metadata"] == {"taskId": "t"}


def test_fields_that_are_wrong_reach_the_sdks_clients() -> None:
    error = errors.InvalidParamsError("bad", violations=[FieldViolation("message.parts[0]", "empty")])
    payload = build_rest_error_payload(to_sdk_error(error))["error"]
    assert payload["details"][1]["fieldViolations"] == [{"field": "message.parts[0]", "description": "empty"}]


def test_an_internal_error_reveals_no_details(caplog: pytest.LogCaptureFixture) -> None:
    for cause in (StoreError("disk on fire"), RuntimeError("secret")):
        found = as_sdk_error(cause)
        assert isinstance(found, sdk_errors.InternalError)
        assert str(cause) not in found.message
        assert str(cause) in caplog.text
    theirs = sdk_errors.TaskNotFoundError()
    assert as_sdk_error(theirs) is theirs

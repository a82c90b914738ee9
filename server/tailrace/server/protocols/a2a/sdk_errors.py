"""Conversion between tailrace's errors and the errors of the official SDK.

The routes of the SDK encode the member ``data`` of an error. Its entry ``errors`` becomes the violations of a BadRequest. Its
other entries become the metadata of an ErrorInfo.
"""

from collections.abc import Mapping
from typing import Any, cast

from a2a.utils import errors as sdk_errors

from tailrace.server.http.error_responses import as_a2a_error
from tailrace.server.runtime.auth_error import AuthError
from tailrace.streaming.a2a import errors
from tailrace.streaming.a2a.errors import A2AError, FieldViolation

_CLASSES: Mapping[type[A2AError], type[sdk_errors.A2AError]] = {
    errors.TaskNotFoundError: sdk_errors.TaskNotFoundError,
    errors.TaskNotCancelableError: sdk_errors.TaskNotCancelableError,
    errors.PushNotificationNotSupportedError: sdk_errors.PushNotificationNotSupportedError,
    errors.UnsupportedOperationError: sdk_errors.UnsupportedOperationError,
    errors.ContentTypeNotSupportedError: sdk_errors.ContentTypeNotSupportedError,
    errors.InvalidAgentResponseError: sdk_errors.InvalidAgentResponseError,
    errors.ExtendedAgentCardNotConfiguredError: sdk_errors.ExtendedAgentCardNotConfiguredError,
    errors.ExtensionSupportRequiredError: sdk_errors.ExtensionSupportRequiredError,
    errors.VersionNotSupportedError: sdk_errors.VersionNotSupportedError,
    errors.InvalidRequestError: sdk_errors.InvalidRequestError,
    errors.MethodNotFoundError: sdk_errors.MethodNotFoundError,
    errors.InvalidParamsError: sdk_errors.InvalidParamsError,
    errors.InternalError: sdk_errors.InternalError,
    errors.ParseError: sdk_errors.JSONParseError,
}
_TAILRACE_CLASSES = {theirs: ours for ours, theirs in _CLASSES.items()}


def to_sdk_error(error: A2AError) -> sdk_errors.A2AError:
    """Convert an error of tailrace to an error of the SDK."""
    data: dict[str, Any] = dict(error.metadata)
    if error.violations:
        data["errors"] = [
            {"field": violation.field, "message": violation.description} for violation in error.violations
        ]
    kind = next(
        (_CLASSES[each] for each in type(error).__mro__ if each in _CLASSES), sdk_errors.InternalError
    )
    return kind(str(error), data or None)


def from_sdk_error(error: sdk_errors.A2AError) -> A2AError:
    """Convert an error of the SDK. An error of an unknown class becomes an InternalError."""
    kind = next(
        (_TAILRACE_CLASSES[each] for each in type(error).__mro__ if each in _TAILRACE_CLASSES),
        errors.InternalError,
    )
    data = dict(cast("Mapping[str, object]", vars(error).get("data") or {}))
    listed = cast("list[Mapping[str, object]]", data.pop("errors", None) or [])
    violations = [FieldViolation(str(each.get("field", "")), str(each.get("message", ""))) for each in listed]
    return kind(
        _detail(error, kind),
        metadata={str(name): str(value) for name, value in data.items()},
        violations=violations,
    )


def as_sdk_error(error: Exception) -> sdk_errors.A2AError:
    """Convert an exception to an error of the SDK. Log errors that the server caused.

    The SDK has no error for failed authentication, so an `AuthError` becomes an InvalidRequestError.
    """
    if isinstance(error, sdk_errors.A2AError):
        return error
    if isinstance(error, AuthError):
        return sdk_errors.InvalidRequestError(str(error))
    return to_sdk_error(as_a2a_error(error))


def _detail(error: sdk_errors.A2AError, kind: type[A2AError]) -> str:
    """Return an error's message without the standard text of its class."""
    for standard in (kind.message, type(error).message):
        if error.message.startswith(standard):
            return error.message.removeprefix(standard).removeprefix(": ")
    return error.message

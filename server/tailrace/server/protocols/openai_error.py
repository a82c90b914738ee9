"""Errors in OpenAI's format, for the OpenAI-compatible API, the AI SDK and AG-UI.

The error object is ``{"message", "type", "param", "code"}`` (https://platform.openai.com/docs/guides/error-codes). For an error
of a provider or a remote agent, it also has the member ``upstream``.
"""

import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from fastapi import Response
from pydantic import ValidationError

from tailrace.server.http.error_responses import as_a2a_error, drop_frames, encode_ascii, error_headers
from tailrace.server.runtime.auth_error import AuthError
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.wrappers import TailraceError, UpstreamError, UpstreamFault
from tailrace.wrappers.messages import clipped

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}

# For union types, pydantic adds these names to the location of an error.
_FORMS = frozenset({"str", "list[str]", "list[dict[str,any]]", "dict[str,any]", "_Conversation"})

# Provider errors that the caller can correct.
_CALLERS_FAULT = frozenset({400, 413, 415, 422})

# Without this header, OpenAI's clients retry requests after 409, 429 and 5xx.
_NO_RETRY = {"x-should-retry": "false"}


class OpenAIError(TailraceError):
    """A rejected request or a failed response.

    Args:
        code: The machine-readable error code, or None.
        param: The invalid member of the request, or None.
        kind: The ``type`` of the error; derived from the status if empty.
        headers: Additional headers of the response, or None.
        upstream: The error of a provider or remote agent; None for other errors.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        kind: str = "",
        headers: Mapping[str, str] | None = None,
        upstream: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(clipped(message))
        self.status = status
        self.headers = dict(headers or {})
        self.code = code
        self._param = param and clipped(param)
        self._kind = kind or _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        self._upstream = upstream

    @classmethod
    def from_exception(cls, error: Exception) -> "OpenAIError":
        """Convert an exception. Log errors that the server caused."""
        if isinstance(error, cls):
            drop_frames(error)
            return error
        if isinstance(error, AuthError):
            headers = {"WWW-Authenticate": error.challenge} if error.challenge else None
            code = "insufficient_permissions" if error.forbidden else "invalid_api_key"
            return cls(error.http_status, str(error), code=code, headers=headers)
        a2a_error = as_a2a_error(error)
        return cls(
            a2a_error.http_status,
            str(a2a_error),
            code=a2a_error.reason.lower(),
            headers=error_headers(a2a_error),
        )

    @classmethod
    def from_validation_error(cls, error: ValidationError, prefix: str = "") -> "OpenAIError":
        """Convert pydantic's error for an invalid request.

        Args:
            error: Pydantic's error.
            prefix: The location of the validated object in the request; empty if the object is the request.
        """
        [problem, *_] = error.errors(include_url=False, include_context=False, include_input=False)
        param = prefix + "".join(
            f"[{step}]" if isinstance(step, int) else f".{step}"
            for step in problem["loc"]
            if step not in _FORMS
        )
        param = param.removeprefix(".")
        reason = problem["msg"].removeprefix("Value error, ")
        return cls(400, f"Invalid value for '{param}': {reason}", param=param, code="invalid_value")

    @classmethod
    def from_task(cls, state: TaskState, message: str, fields: Mapping[str, Any]) -> "OpenAIError":
        """Return the error for a task that ended without a complete response.

        Args:
            state: The last state of the task.
            message: The text of the last status.
            fields: The extension's metadata of the last status (``docs/extension.md``, "Response metadata").
        """
        if state is TaskState.CANCELED:
            return cls(409, message or "the task was canceled", code="task_canceled", headers=_NO_RETRY)
        if state is TaskState.REJECTED:
            return cls(400, message or "the agent rejected the request", code="task_rejected")
        error_fields = fields.get("error")
        if not isinstance(error_fields, Mapping):
            return cls(
                500, message or "the agent failed", kind="agent_error", code="task_failed", headers=_NO_RETRY
            )
        return cls._of_upstream(message, cast("Mapping[str, Any]", error_fields))

    @classmethod
    def from_upstream(cls, error: UpstreamError) -> "OpenAIError":
        """Return the error for a failed request to a provider."""
        fields = {
            "type": str(error.fault),
            "status": error.status,
            "code": error.code,
            "retryAfter": error.retry_after,
        }
        details = {name: fact for name, fact in fields.items() if fact is not None}
        return cls._of_upstream(error.message, details)

    @classmethod
    def _of_upstream(cls, message: str, error_fields: Mapping[str, Any]) -> "OpenAIError":
        fault, status, code = error_fields.get("type"), error_fields.get("status"), error_fields.get("code")
        details: dict[str, Any] = {"code": code if isinstance(code, str) else str(fault)}
        if fault in tuple(UpstreamFault):
            details["upstream"] = error_fields  # other faults are limits of this server
        if status == 429:
            pause = error_fields.get("retryAfter")
            headers = {"Retry-After": str(math.ceil(pause))} if isinstance(pause, int | float) else {}
            return cls(429, message, headers=headers, **details)
        if status in _CALLERS_FAULT:
            return cls(400, message, **details)
        own = 504 if fault == UpstreamFault.TIMEOUT else 502
        return cls(own, message, kind="upstream_error", headers=_NO_RETRY, **details)

    def fields(self) -> dict[str, Any]:
        """Return the error object."""
        fields: dict[str, Any] = {
            "message": str(self),
            "type": self._kind,
            "param": self._param,
            "code": self.code,
        }
        return {**fields, "upstream": dict(self._upstream)} if self._upstream else fields

    def body(self) -> bytes:
        """Return the error as JSON, for an HTTP body or an SSE field ``data``."""
        return encode_ascii({"error": self.fields()})

    def response(self, headers: Mapping[str, str] | None = None) -> Response:
        """Return the HTTP response with further headers."""
        return Response(
            self.body(),
            self.status,
            headers={**(headers or {}), **self.headers},
            media_type="application/json",
        )


@contextmanager
def reject_invalid(prefix: str = "") -> Generator[None]:
    """Convert validation errors of pydantic (see `OpenAIError.from_validation_error`)."""
    try:
        yield
    except ValidationError as error:
        raise OpenAIError.from_validation_error(error, prefix) from None


def server_stopping_error(path: str = "", *, has_key: bool = False) -> OpenAIError:
    """Return the error (503) for a response that ends before its turn because the server stops.

    The turn continues after the restart. Without an idempotency key, a repeated request would process the message twice.

    Args:
        path: The path of the stored response; empty if the client cannot retrieve it.
        has_key: True if the request has an idempotency key.
    """
    hints = [f"get it with GET {path}"] if path else []
    if has_key:
        hints.append("repeat the request with the same Idempotency-Key")
    message = "the server is stopping; the response continues after the restart"
    if hints:
        message += f": {', or '.join(hints)}"
    headers = None if has_key else _NO_RETRY
    return OpenAIError(503, message, code="server_stopping", headers=headers)

"""What goes wrong, as OpenAI's clients expect to be told: one error object, and an HTTP status that says whose fault it is.

The object is ``{"message", "type", "param", "code"}``
(https://platform.openai.com/docs/guides/error-codes). What a provider or another agent behind this server has said of
itself stands beside these, in ``upstream``.
"""

import math
from collections.abc import Mapping
from typing import Any, cast

from fastapi import Response
from pydantic import ValidationError

from tailrace.server.auth import AuthError
from tailrace.server.bindings.http import as_a2a_error, encode_ascii, error_headers
from tailrace.streaming.lifecycle import TaskState
from tailrace.wrappers import TailraceError, UpstreamFault

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}

# What pydantic adds to a place where one of several forms may stand.
_FORMS = frozenset({"str", "list[str]", "list[dict[str,any]]", "dict[str,any]", "_Conversation"})

# A provider's refusal that the caller's own request has brought about, and that the caller can mend.
_CALLERS_FAULT = frozenset({400, 413, 415, 422})

# The clients of OpenAI send again what failed with 409, 429 or 5xx, unless they are told not to.
_NO_RETRY = {"x-should-retry": "false"}


class OpenAIError(TailraceError):
    """A request that is not answered, or an answer that is none.

    Args:
        status: The HTTP status.
        message: What happened, for people.
        code: What happened, for programs.
        param: The member of the request that is wrong.
        kind: The error's ``type``; what belongs to the status when empty.
        headers: Of the response.
        upstream: What was said behind this server.

    Attributes:
        status: As given.
        headers: As given.
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
        super().__init__(message)
        self.status = status
        self.headers = dict(headers or {})
        self._code = code
        self._param = param
        self._kind = kind or _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        self._upstream = upstream

    @classmethod
    def of(cls, error: Exception) -> "OpenAIError":
        """What an exception comes to; what is this server's fault is logged."""
        if isinstance(error, cls):
            return error
        if isinstance(error, AuthError):
            headers = {"WWW-Authenticate": error.challenge} if error.challenge else None
            code = "insufficient_permissions" if error.forbidden else "invalid_api_key"
            return cls(error.http_status, str(error), code=code, headers=headers)
        found = as_a2a_error(error)
        return cls(found.http_status, str(found), code=found.reason.lower(), headers=error_headers(found))

    @classmethod
    def of_validation(cls, error: ValidationError, prefix: str = "") -> "OpenAIError":
        """What is wrong with a request that is not of the form that it has to have.

        Args:
            error: What pydantic says.
            prefix: Where in the request the faulty object stands.
        """
        [problem, *_] = error.errors(include_url=False, include_context=False, include_input=False)
        where = prefix + "".join(
            f"[{step}]" if isinstance(step, int) else f".{step}"
            for step in problem["loc"]
            if step not in _FORMS
        )
        where = where.removeprefix(".")
        said = problem["msg"].removeprefix("Value error, ")
        return cls(400, f"Invalid value for '{where}': {said}", param=where, code="invalid_value")

    @classmethod
    def of_task(cls, state: TaskState, message: str, facts: Mapping[str, Any]) -> "OpenAIError":
        """Why a task gave no answer.

        Args:
            state: How it ended.
            message: What the agent said about it.
            facts: Of its last status (``docs/extension.md``, "Facts of an answer").
        """
        if state is TaskState.CANCELED:
            return cls(409, message or "the task was canceled", code="task_canceled", headers=_NO_RETRY)
        if state is TaskState.REJECTED:
            return cls(400, message or "the agent rejected the request", code="task_rejected")
        given = facts.get("error")
        if not isinstance(given, Mapping):
            return cls(
                500, message or "the agent failed", kind="agent_error", code="task_failed", headers=_NO_RETRY
            )
        return cls._of_upstream(message, cast("Mapping[str, Any]", given))

    @classmethod
    def _of_upstream(cls, message: str, given: Mapping[str, Any]) -> "OpenAIError":
        fault, status, code = given.get("type"), given.get("status"), given.get("code")
        said: dict[str, Any] = {"upstream": given, "code": code if isinstance(code, str) else str(fault)}
        if status == 429:
            pause = given.get("retryAfter")
            headers = {"Retry-After": str(math.ceil(pause))} if isinstance(pause, int | float) else {}
            return cls(429, message, headers=headers, **said)
        if status in _CALLERS_FAULT:
            return cls(400, message, **said)
        own = 504 if fault == UpstreamFault.TIMEOUT else 502
        return cls(own, message, kind="upstream_error", headers=_NO_RETRY, **said)

    @property
    def code(self) -> str | None:
        """What happened, for programs."""
        return self._code

    def fields(self) -> dict[str, Any]:
        """The error object."""
        fields: dict[str, Any] = {
            "message": str(self),
            "type": self._kind,
            "param": self._param,
            "code": self._code,
        }
        return {**fields, "upstream": dict(self._upstream)} if self._upstream else fields

    def body(self) -> bytes:
        """The body of a response, or the data of an event of a stream."""
        return encode_ascii({"error": self.fields()})

    def response(self, headers: Mapping[str, str] | None = None) -> Response:
        """The response that says it.

        Args:
            headers: Further headers.
        """
        return Response(
            self.body(),
            self.status,
            headers={**(headers or {}), **self.headers},
            media_type="application/json",
        )


def server_stops() -> OpenAIError:
    """Why an answer ends before its task does."""
    return OpenAIError(503, "the server stops; ask again in a moment", code="server_stopping")

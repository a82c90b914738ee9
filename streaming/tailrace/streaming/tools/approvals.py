"""Approval of tool calls: the policy, the requests and the decisions. Sans-IO.

A call that requires an approval does not run. The turn ends with an `ApprovalRequest`, which contains the arguments and a digest
of the call. A later `ApprovalDecision` with this digest approves the call, rejects it with a reason for the model, or replaces
its arguments. `ToolRunner` computes the digest again before it runs the call. If the arguments have changed, the digest differs,
and the call does not run.

The digest is the SHA-256 hash, in hexadecimal, of the canonical JSON (RFC 8785) of ``{"arguments", "callId", "name"}``. Some
arguments have no canonical form, for example integers beyond 2^53. The result of such a call is an error.

``docs/approvals.md`` describes requests and decisions in A2A, and how the server records them.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Literal

import rfc8785

from tailrace.wrappers import ContentPartToolCall

logger = logging.getLogger("tailrace.streaming")

DEFAULT_LIFETIME = 3600.0
"""Time in seconds within which a call can be approved."""

ALL_TOOLS = "*"
DESTRUCTIVE_TOOLS = "mcp:destructive"
"""Name for all tools of MCP servers, except tools that are declared as read-only or not destructive."""

NeedsApproval = Callable[[ContentPartToolCall], bool]


class ApprovalPolicy:
    """The calls that require an approval.

    Args:
        tools: Names of tools that require an approval. `ALL_TOOLS` means all tools, and `DESTRUCTIVE_TOOLS` means destructive
            tools of MCP servers.
        functions: Functions that return True for a call that requires an approval. An exception counts as True.
        lifetime: Time in seconds within which a call can be approved.
    """

    def __init__(
        self,
        tools: Iterable[str] = (),
        functions: Iterable[NeedsApproval] = (),
        *,
        lifetime: float = DEFAULT_LIFETIME,
    ) -> None:
        self._tools = frozenset(tools)
        self._functions = tuple(functions)
        self.lifetime = lifetime

    def requires(self, call: ContentPartToolCall, annotations: Mapping[str, Any] | None) -> bool:
        """Return True if a call requires an approval. ``annotations`` is None for a tool that is not from an MCP server."""
        if ALL_TOOLS in self._tools or call.name in self._tools:
            return True
        if annotations is not None and DESTRUCTIVE_TOOLS in self._tools and is_destructive(annotations):
            return True
        return any(_returns_true(function, call) for function in self._functions)


def is_destructive(annotations: Mapping[str, Any]) -> bool:
    """Return False if annotations declare a tool as read-only or not destructive. By default, MCP tools are destructive."""
    return annotations.get("readOnlyHint") is not True and annotations.get("destructiveHint") is not False


def _returns_true(function: NeedsApproval, call: ContentPartToolCall) -> bool:
    try:
        return bool(function(call))
    except Exception:
        logger.exception("a function for approvals failed; the call of %s requires an approval", call.name)
        return True


def call_digest(call: ContentPartToolCall) -> str:
    """Return the digest of a call.

    Raises:
        ValueError: The arguments have no canonical form.
    """
    return sha256(
        _canonical({"arguments": _arguments(call), "callId": call.id, "name": call.name})
    ).hexdigest()


def canonical_arguments(call: ContentPartToolCall) -> str:
    """Return the canonical JSON of a call's arguments.

    Raises:
        ValueError: The arguments have no canonical form.
    """
    return _canonical(_arguments(call)).decode()


def _arguments(call: ContentPartToolCall) -> dict[str, Any]:
    return {"input": call.arguments_text or ""} if call.kind == "custom" else dict(call.arguments)


def _canonical(value: dict[str, Any]) -> bytes:
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        raise ValueError(f"the arguments have no canonical JSON (RFC 8785): {error}") from None


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A call that waits for an approval.

    Attributes:
        arguments: The canonical JSON of the arguments.
        expires_at: The time after which the call cannot be approved.
        reason: The reason, if the request is to repeat a call whose result was lost; otherwise empty.
    """

    call_id: str
    name: str
    arguments: str
    digest: str
    expires_at: datetime
    reason: str = ""

    @classmethod
    def of(cls, call: ContentPartToolCall, lifetime: float, reason: str = "") -> "ApprovalRequest":
        """Create the request for a call.

        Raises:
            ValueError: The arguments have no canonical form.
        """
        expires_at = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=lifetime)
        return cls(call.id, call.name, canonical_arguments(call), call_digest(call), expires_at, reason)


@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """The decision about a call.

    Attributes:
        digest: The digest of the request.
        decision: ``approve`` runs the call. ``reject`` returns the reason to the model. ``edit`` runs the call with other
            arguments.
        reason: The reason for a rejection.
        arguments: The arguments of ``edit``; None for other decisions.
    """

    digest: str
    decision: Literal["approve", "reject", "edit"]
    reason: str = ""
    arguments: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class RecordedDecision:
    """A decision that the server recorded in the conversation. See `ApprovalDecision` for the other attributes.

    Attributes:
        digest: The digest of the call to run, with the replaced arguments of ``edit``.
        lost: True if the call may have run already, and its result was lost.
    """

    call_id: str
    digest: str
    decision: Literal["approve", "reject", "edit"]
    reason: str = ""
    arguments: dict[str, Any] | None = None
    lost: bool = False

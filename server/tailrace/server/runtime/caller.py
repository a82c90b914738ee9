"""The caller of a request, independent of the protocol."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tailrace.server.runtime.active_task import NewCompletion, TurnReference
from tailrace.server.runtime.identifier_bounds import check_id


@dataclass(frozen=True)
class Caller:
    """The caller of a request.

    Attributes:
        user: The authenticated name; empty without authentication.
        tenant: The tenant of the request; may be empty.
        version_of_chosen_ids: The protocol version, if callers choose task ids in this version; empty if the server chooses them.
        protocol_version: The protocol version of the request.
        extensions: The activated extensions (see `Capabilities.activated`).
        send_key: The idempotency key of the message (header ``Idempotency-Key``); empty if there is none. The key may also be in
            the metadata of the message.
        fingerprint: The hash that identifies a repeated request; empty to compute the hash from the message. Chat protocols hash
            the body of the request, because their message may depend on stored messages.
        cost: The cost of processing the request (`JsonBody.cost`).
        record: As for `CallContext`.
        completion: As for `CallContext`.
        operator_form: As for `CallContext`.
        claims: As for `Identity`.
        namespace: As for `Identity`.
        agent: The name of the agent that receives the message; if empty, ``namespace`` is the name.
        follows: As for `CallContext`.
        has_assignment_lock: True if the lock of the message's conversation is held (`Operations.assignment_lock`).

    Raises:
        InvalidParamsError: The name of the tenant is too long.
    """

    user: str = ""
    tenant: str = ""
    version_of_chosen_ids: str = ""
    protocol_version: str = "1.0"
    extensions: tuple[str, ...] = ()
    send_key: str = ""
    fingerprint: str = ""
    cost: int = 0
    record: str = ""
    completion: NewCompletion | None = None
    operator_form: str = ""
    claims: Mapping[str, Any] = field(default_factory=dict[str, Any], compare=False)
    namespace: str = ""
    agent: str = ""
    follows: TurnReference | None = None
    has_assignment_lock: bool = False

    def __post_init__(self) -> None:
        check_id("tenant", self.tenant)

    @property
    def speaks(self) -> str:
        """Deprecated name of `protocol_version`; to be removed in 0.3."""
        return self.protocol_version

    @property
    def receiver(self) -> str:
        """The name of the agent that receives the messages of the caller; empty for the only agent of a server."""
        return self.agent or self.namespace

    @property
    def owner(self) -> str:
        """The owner of the caller's tasks: the user name, with the tenant and the namespace if there are any."""
        if self.namespace:
            return json.dumps([self.namespace, self.tenant, self.user])
        if self.tenant or self.user.startswith(
            "["
        ):  # a user name must not equal a combination of user and tenant
            return json.dumps([self.tenant, self.user])
        return self.user

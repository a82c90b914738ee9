"""The caller of a request, as every protocol describes it to the operations."""

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
        tenant: The tenant of the request; empty if the request names no tenant.
        names_tasks_in: The protocol version of a caller that chooses task ids itself; empty if the server chooses them.
        protocol_version: The protocol version of the request.
        extensions: The activated extensions, see `Capabilities.activated`.
        send_key: The idempotency key of a message, which is accepted once however often it is sent (the header
            ``Idempotency-Key``); empty without one. The message's metadata may have it, too.
        fingerprint: The fingerprint of a request whose message depends on earlier ones. Empty to compute it from the
            message.
        cost: The number of values in the request (`JsonBody.cost`): costly work is not done in the event loop.
        record: An API's record of the request, which is stored with its message; may be empty.
        completion: As of `CallContext`.
        operator_form: As of `CallContext`.
        claims: The claims of the caller's token, as of `Identity`.
        namespace: As of `Identity`.
        agent: The name of the agent that receives the request's message; ``namespace`` if empty.
        follows: As of `CallContext`.

    Raises:
        InvalidParamsError: The tenant's name is too long.
    """

    user: str = ""
    tenant: str = ""
    names_tasks_in: str = ""
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

    def __post_init__(self) -> None:
        check_id("tenant", self.tenant)

    @property
    def speaks(self) -> str:
        """Deprecated name of `protocol_version`; to be removed in 0.3."""
        return self.protocol_version

    @property
    def owner(self) -> str:
        """The owner of the caller's tasks: the user name, combined with the tenant and the namespace if there is one."""
        if self.namespace:
            return json.dumps([self.namespace, self.tenant, self.user])
        if self.tenant or self.user.startswith(
            "["
        ):  # a user name must not equal a combination of user and tenant
            return json.dumps([self.tenant, self.user])
        return self.user

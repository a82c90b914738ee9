"""The routes of one agent: the agent card, and every protocol."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from fastapi import APIRouter

from tailrace.server.agent_factory import PreparedAgent
from tailrace.server.auth.authentication import Authenticator
from tailrace.server.http.playground import Playground
from tailrace.server.protocols.a2a.card import CardEndpoint
from tailrace.server.protocols.a2a.http_json import VERSION_1_0, HttpJsonBinding
from tailrace.server.protocols.a2a.http_json_v0_3 import VERSION_0_3
from tailrace.server.protocols.a2a.jsonrpc import JsonRpcBinding
from tailrace.server.protocols.ag_ui import AgUiEndpoint
from tailrace.server.protocols.ai_sdk import AiSdkEndpoint
from tailrace.server.protocols.openai import OpenAIFacade
from tailrace.server.protocols.openai.models import ModelNames
from tailrace.server.runtime.approvals import parse_approvers
from tailrace.server.runtime.caller import Caller
from tailrace.server.runtime.engine import Engine
from tailrace.server.runtime.operations import ExtendedCard, Operations
from tailrace.server.server_core import ServerCore
from tailrace.streaming.a2a.models import AgentCard
from tailrace.streaming.a2a.v0_1 import Version01
from tailrace.streaming.a2a.v0_3 import Version03
from tailrace.streaming.a2a.v1_0 import Version10

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.server.protocols.a2a.card_signing import CardSigner


class AgentRoutes:
    """The routes of one agent.

    Args:
        core: The parts of the server that its agents share.
        engine: Runs the tasks.
        prepared: The agent.
        authentication: Authenticates the agent's callers.
        extended_card: As for `tailrace.server.create_app`.

    Attributes:
        operations: The operations of the agent; gRPC uses them, too.
    """

    def __init__(
        self,
        core: ServerCore,
        engine: Engine,
        prepared: PreparedAgent,
        authentication: Authenticator,
        *,
        extended_card: ExtendedCard | AgentCard | None = None,
    ) -> None:
        self._core = core
        self._settings = prepared.settings
        self._authentication = authentication
        self.operations = Operations(
            engine,
            core.push,
            capabilities=prepared.served.capabilities,
            extended_card=_signed(extended_card, core.signers),
            challenge='Bearer realm="tailrace"' if core.authenticated else "",
            limits=core.limits,
            approvers=parse_approvers(prepared.settings.approvers),
            observer=core.telemetry,
            streams=core.streams,
        )

    def add_to(
        self,
        router: APIRouter,
        models: ModelNames,
        *,
        user_is_key: bool = False,
        grpc_port: Callable[[], int | None] = lambda: None,
        owns_router: bool = False,
    ) -> None:
        """Add the routes to a router.

        Args:
            router: The router.
            models: The model names that clients of the OpenAI-compatible API may use for the agent.
            user_is_key: As for `OpenAIFacade`.
            grpc_port: As for `CardEndpoint`.
            owns_router: Whether the router has only the routes of this agent.
        """
        core, settings, operations = self._core, self._settings, self.operations
        authentication = self._authentication
        # First, because routes are matched in their order.
        versions = Version10(), Version03(), Version01()
        jsonrpc = JsonRpcBinding(operations, settings, authentication, versions)
        router.add_api_route("/", jsonrpc.handle, methods=["POST"], include_in_schema=False)
        CardEndpoint(
            settings,
            core.schemes,
            core.origin_guard,
            grpc_port,
            capabilities=operations.capabilities,
            has_extended=operations.has_extended_card,
            signers=core.signers,
        ).add_to(router)
        if "openai" in settings.endpoints:
            facade = OpenAIFacade(
                operations, settings, authentication, models, core.gate, user_is_key=user_is_key
            )
            facade.add_to(router)
        if "ai-sdk" in settings.endpoints:
            AiSdkEndpoint(operations, settings, authentication).add_to(router)
        if "ag-ui" in settings.endpoints:
            AgUiEndpoint(operations, settings, authentication).add_to(router)
        # 0.3 first: routes of 1.0 may begin with the name of a tenant, and would match the /v1 of 0.3.
        for version in (VERSION_0_3, VERSION_1_0):
            HttpJsonBinding(operations, settings, authentication, version).add_to(router)
        if "playground" in settings.endpoints:
            Playground(yields=not owns_router).add_to(router)
        if "openapi" in settings.endpoints:
            from tailrace.server.protocols.openapi import add_description_to

            add_description_to(router, security=core.schemes)


def _signed(card: ExtendedCard | AgentCard | None, signers: "Sequence[CardSigner]") -> ExtendedCard | None:
    """Return a function that returns the extended card for a caller, signed if there are signers."""
    if card is None or not signers:
        return card if callable(card) or card is None else lambda _: card
    from tailrace.server.protocols.a2a.card_signing import sign_card

    def signed_card(caller: Caller) -> AgentCard | None:
        unsigned = card if isinstance(card, AgentCard) else card(caller)
        return sign_card(unsigned, signers) if unsigned is not None else None

    return signed_card

"""Builder of a FastAPI application for a request handler, with the API of the official SDK before 1.0."""

from a2a.server.request_handlers import RequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.types import AgentCard
from fastapi import FastAPI


class A2AServer:
    """Builds a FastAPI application with the SDK's routes: the card, JSON-RPC and HTTP+JSON.

    Args:
        agent_card: The agent card to publish.
        http_handler: Executes the requests: a `tailrace.server.sdk.RequestHandler`, or a request handler of the SDK.
    """

    def __init__(self, agent_card: AgentCard, http_handler: RequestHandler) -> None:
        self._card = agent_card
        self._handler = http_handler

    def build(self, rpc_url: str = "/") -> FastAPI:
        """Create the application.

        Args:
            rpc_url: The path of the JSON-RPC endpoint.
        """
        app = FastAPI(title=self._card.name, version=self._card.version)
        app.routes.extend(create_agent_card_routes(self._card))
        app.routes.extend(create_jsonrpc_routes(self._handler, rpc_url))
        app.routes.extend(create_rest_routes(self._handler))
        return app

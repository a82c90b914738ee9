"""The OpenAPI description of every route: made from the routes themselves and the models behind them."""

from tailrace.server.protocols.openapi.description import DESCRIPTION_PATH, add_description_to, describe

__all__ = ["DESCRIPTION_PATH", "add_description_to", "describe"]

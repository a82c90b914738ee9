"""The OpenAPI description of every route: generated from the routes and their models."""

from tailrace.server.protocols.openapi.description import DESCRIPTION_PATH, add_description_to, describe

__all__ = ["DESCRIPTION_PATH", "add_description_to", "describe"]

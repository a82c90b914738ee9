"""The OpenAPI description of all routes."""

from tailrace.server.protocols.openapi.description import DESCRIPTION_PATH, add_description_to, describe

__all__ = ["DESCRIPTION_PATH", "add_description_to", "describe"]

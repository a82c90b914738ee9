"""Deprecated: use `tailrace.server.protocols.text_channels`."""

from tailrace.server.protocols.text_channels import DivergedError

__all__ = ["DivergedError"]

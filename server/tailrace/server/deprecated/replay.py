"""Deprecated: import from `tailrace.server.cli.replay`."""

from tailrace.server.cli.replay import ReplayModel

__all__ = ("ReplayModel",)

"""Deprecated: import from `tailrace.server.cli.replay_server`."""

from tailrace.server.cli.replay_server import ReplayModel

__all__ = ("ReplayModel",)

"""Deprecated: import from `tailrace.streaming.a2a.lifecycle`."""

from tailrace.streaming.a2a.lifecycle import IllegalTransition, TaskState

__all__ = (
    "IllegalTransition",
    "TaskState",
)

"""Deprecated: import from `tailrace.streaming.agent.trimming`."""

from tailrace.streaming.agent.trimming import HistoryPolicy, TokenBudget, keep_all

__all__ = (
    "HistoryPolicy",
    "TokenBudget",
    "keep_all",
)

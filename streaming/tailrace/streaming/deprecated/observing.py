"""Deprecated: import from `tailrace.streaming.instrumentation`."""

from tailrace.streaming.instrumentation import RUN_OBSERVER, AnswerWatch, CallWatch, RunObserver

__all__ = (
    "RUN_OBSERVER",
    "AnswerWatch",
    "CallWatch",
    "RunObserver",
)

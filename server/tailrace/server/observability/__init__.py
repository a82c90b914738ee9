"""Traces, metrics and logs; see docs/observability.md.

The engine and the HTTP layer report turns, commits, streams and errors to an `Observer`.
"""

from tailrace.server.runtime.observer import NO_OBSERVER, Observer, TurnWatch

__all__ = ("NO_OBSERVER", "Observer", "TurnWatch")

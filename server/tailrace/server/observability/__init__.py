"""Traces, metrics and logs; see docs/observability.md.

The engine and the HTTP layer notify an `Observer` of turns, commits, streams and refusals, never of single events.
"""

from tailrace.server.runtime.observer import NO_OBSERVER, Observer, TurnWatch

__all__ = ("NO_OBSERVER", "Observer", "TurnWatch")

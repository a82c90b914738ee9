"""What an operator sees: spans, metrics, logs and the state of health; see docs/observability.md.

The engine and what stands around it tell an `Observer` of turns, commits, streams and refusals, never of single events.
"""

from tailrace.server.observability.observer import NO_OBSERVER, Observer, TurnWatch

__all__ = ("NO_OBSERVER", "Observer", "TurnWatch")

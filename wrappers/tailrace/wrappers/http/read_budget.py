"""Limit of the response body bytes read per event-loop tick."""

import asyncio
from weakref import WeakKeyDictionary

SMALL_BYTES = 32 * 1024
"""Minimum bytes of one body that may be read in a tick."""

ROUND_BYTES = 512 * 1024
"""Bytes that may be read in one tick from all larger bodies together: about ten milliseconds of decoding."""


class ReadBudget:
    """Budget of an event-loop tick, shared by bodies that arrive faster than they are decoded.

    A provider with a complete response sends thousands of chunks in one burst. Without a limit, other streams, requests
    and cancellations would wait for the decoding of all bursts in every tick.
    """

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = ROUND_BYTES

    @property
    def is_spent(self) -> bool:
        """Return whether nothing more may be read in this tick beyond `SMALL_BYTES` of a body."""
        return self._left <= 0

    def share(self, size: int) -> int:
        """Return how many of ``size`` bytes may be read in this tick, and charge them; 0 for none."""
        if self._left <= 0:
            return 0
        if self._left == ROUND_BYTES:
            asyncio.get_running_loop().call_soon(self._refill)
        granted = min(size, max(self._left, SMALL_BYTES))
        self._left -= granted
        return granted

    def _refill(self) -> None:
        self._left = ROUND_BYTES


_BUDGETS: WeakKeyDictionary[asyncio.AbstractEventLoop, ReadBudget] = WeakKeyDictionary()


def read_budget(loop: asyncio.AbstractEventLoop) -> ReadBudget:
    """Return the budget of an event loop."""
    budget = _BUDGETS.get(loop)
    if budget is None:
        budget = _BUDGETS[loop] = ReadBudget()
    return budget

"""Limit for the number of body bytes that are read in one event-loop tick. `ResponseBody` uses it."""

import asyncio
from weakref import WeakKeyDictionary

SMALL_BYTES = 32 * 1024
"""A body with at most this many buffered bytes is read without the budget."""

ROUND_BYTES = 512 * 1024
"""Number of bytes that may be read in one tick from all bodies with more buffered bytes than `SMALL_BYTES`. Decoding them takes about ten
milliseconds."""


class ReadBudget:
    """Number of bytes that may still be read in an event-loop tick. All bodies share this budget.

    A provider that has the complete response sends thousands of chunks at once. Without a limit, other streams,
    requests and cancellations would wait until all of these chunks are decoded.
    """

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = ROUND_BYTES

    @property
    def is_spent(self) -> bool:
        """Return True if the budget of this tick is used up. Bodies with at most `SMALL_BYTES` are still read."""
        return self._left <= 0

    def share(self, size: int) -> int:
        """Return how many of ``size`` bytes may be read in this tick, and subtract this number from the budget."""
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
    """Return the read budget of an event loop."""
    budget = _BUDGETS.get(loop)
    if budget is None:
        budget = _BUDGETS[loop] = ReadBudget()
    return budget

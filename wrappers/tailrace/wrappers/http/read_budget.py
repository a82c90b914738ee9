"""Limit for the number of bytes of response bodies that are decoded in one event-loop tick."""

import asyncio
from weakref import WeakKeyDictionary

SMALL_BYTES = 32 * 1024
"""Number of buffered bytes up to which the budget does not apply to a body."""

TICK_BYTES = 512 * 1024
"""Budget of one tick for all bodies with more than `SMALL_BYTES` buffered bytes. Decoding it takes about 10 ms."""


class ReadBudget:
    """The number of bytes that may still be read in the current event-loop tick. All bodies share the budget.

    A provider may send a complete response in one burst of thousands of chunks. Without a limit, other streams, requests and
    cancellations would wait until they are decoded.
    """

    __slots__ = ("_remaining",)

    def __init__(self) -> None:
        self._remaining = TICK_BYTES

    @property
    def is_spent(self) -> bool:
        """True if the budget of this tick is used up."""
        return self._remaining <= 0

    def share(self, size: int) -> int:
        """Return the number of bytes (at most ``size``) that may be read in this tick. Subtract it from the budget."""
        if self._remaining <= 0:
            return 0
        if self._remaining == TICK_BYTES:
            asyncio.get_running_loop().call_soon(self._refill)
        granted = min(size, max(self._remaining, SMALL_BYTES))
        self._remaining -= granted
        return granted

    def _refill(self) -> None:
        self._remaining = TICK_BYTES


_BUDGETS: WeakKeyDictionary[asyncio.AbstractEventLoop, ReadBudget] = WeakKeyDictionary()


def read_budget(loop: asyncio.AbstractEventLoop) -> ReadBudget:
    """Return the read budget of an event loop."""
    budget = _BUDGETS.get(loop)
    if budget is None:
        budget = _BUDGETS[loop] = ReadBudget()
    return budget

"""Budgets: limits on the tokens or the costs of callers in a period.

An attempt can begin only if no budget that applies to its caller is used up. The server ends a running response when such a
budget is used up. The ledger, which several servers may share, contains the usage of ended attempts. To this usage, each server
adds the usage of its own running responses. Until the provider reports the output tokens, each chunk counts as one token.
"""

import logging
import math
from calendar import monthrange
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from tailrace.server.runtime.limits import OverloadedError, RateLimitError, user_of
from tailrace.server.runtime.prices import NANO, PriceTable
from tailrace.server.store.store import INCOMPLETE_STATES, Store, UsageRecord
from tailrace.server.store.usage_store import SpentUsage, milliseconds
from tailrace.server.usage_settings import Budget
from tailrace.wrappers import StoreError, Usage

logger = logging.getLogger("tailrace.server")

SETTLED_AFTER = 60_000
"""Milliseconds after the end of an attempt until every server has persisted it."""

_FOREVER = 2**62

MAX_WINDOWS = 10_000
"""Number of periods in memory above which ended periods are removed."""


class BudgetExceededError(RateLimitError):
    """A budget of the caller, or of all callers, is used up until its period ends."""

    reason = "BUDGET_EXCEEDED"
    message = "The budget is used up"


@dataclass(slots=True)
class _Window:
    """The current period of a budget, for one caller or for all callers.

    Attributes:
        limit: The limit. All amounts of this object are in tokens or in 1e-9 US dollars.
        start: The start of the period, in milliseconds since 1970.
        spent: The usage of ended attempts.
        running: The usage of running attempts of this server.
        settled: The usage in the ledger before ``settled_at``.
        settled_at: A time in milliseconds since 1970. The ledger receives no further attempts that ended earlier.
    """

    budget: Budget
    limit: int
    start: int
    end: datetime
    spent: int = 0
    running: int = 0
    settled: int = 0
    settled_at: int = 0

    def error(self) -> BudgetExceededError | None:
        if self.spent + self.running < self.limit:
            return None
        return _error_of(self)


class Budgets:
    """Checks and enforces budgets.

    Args:
        prices: The prices for the costs of incomplete responses; with budgets in US dollars, they must be loaded.
        is_shared: True if other servers also write the ledger.
    """

    def __init__(
        self, budgets: Sequence[Budget], store: Store, prices: PriceTable, *, is_shared: bool = False
    ) -> None:
        self._budgets = tuple(enumerate(budgets))
        self._store = store
        self._prices = prices
        self._is_shared = is_shared
        self._windows: dict[tuple[int, str], _Window] = {}

    async def check(self, owner: str) -> None:
        """Check that no budget of an owner is used up.

        Raises:
            BudgetExceededError: A budget is used up.
            OverloadedError: The ledger cannot be read.
        """
        try:
            windows = await self._windows_of(owner)
        except StoreError as error:
            logger.error("budgets cannot be checked: %s", error)
            raise OverloadedError("the budget cannot be checked at present; try again later") from None
        for window in windows:
            error = window.error()
            if error is not None:
                raise error

    def begin(self, owner: str, provider: str, model: str) -> "RunningCall | None":
        """Return a counter for an attempt that begins after `check`; None if no budget applies."""
        if not self._budgets:
            return None
        user = user_of(owner)
        price = self._prices.output_price(provider, model)
        units: list[tuple[_Window, int]] = []
        for number, budget in self._budgets:
            window = self._windows.get((number, _key_of(budget, user)))
            if window is not None and _concerns(budget, user):
                units.append((window, 1 if budget.tokens is not None else price))
        return RunningCall(units) if units else None

    def record(self, record: UsageRecord) -> None:
        """Add the usage of an ended attempt to the periods in memory."""
        self._add(record, 1)

    def refund(self, record: UsageRecord) -> None:
        """Subtract the usage of an ended attempt, because the next attempt receives the same response and reports its usage."""
        self._add(record, -1)

    def _add(self, record: UsageRecord, factor: int) -> None:
        for number, budget in self._budgets:
            window = self._windows.get((number, _key_of(budget, record.caller)))
            if window is not None and _concerns(budget, record.caller) and record.ended >= window.start:
                window.spent = max(0, window.spent + factor * self._spent(budget, record))

    def _spent(self, budget: Budget, record: UsageRecord) -> int:
        missing = max(0, record.chunks - record.output_tokens) if record.state in INCOMPLETE_STATES else 0
        tokens = record.input_tokens + record.output_tokens
        return self._amount(
            budget, SpentUsage(record.provider, record.model, tokens, missing, record.cost or 0)
        )

    def _amount(self, budget: Budget, usage: SpentUsage) -> int:
        if budget.tokens is not None:
            return usage.tokens + usage.missing_tokens
        price = self._prices.output_price(usage.provider, usage.model) if usage.missing_tokens else 0
        return usage.cost + usage.missing_tokens * price

    async def _windows_of(self, owner: str) -> list[_Window]:
        user = user_of(owner)
        found: list[_Window] = []
        now = datetime.now(UTC)
        for number, budget in self._budgets:
            if not _concerns(budget, user):
                continue
            key = (number, _key_of(budget, user))
            window = known = self._current(key, now)
            if window is None:
                start, end = period_of(budget.period, now)
                window = _Window(budget, _limit_of(budget), milliseconds(start), end)
                window.settled_at = window.start
            if known is None or self._is_shared:
                spent = await self._load(window, user, milliseconds(now))
                if known is None and (known := self._current(key, now)) is None:
                    self._drop_ended(now)
                    known = self._windows[key] = window
                window = known  # another call may have added the period during `_load`
                window.spent = max(window.spent, spent)
            found.append(window)
        return found

    def _current(self, key: tuple[int, str], now: datetime) -> _Window | None:
        window = self._windows.get(key)
        return window if window is not None and window.end > now else None

    async def _load(self, window: _Window, user: str, now: int) -> int:
        """Return the usage in a period according to the ledger. Attempts before ``settled_at`` are read only once."""
        settled, since = window.settled, window.settled_at
        until = now - SETTLED_AFTER
        if until > since:
            settled += await self._sum(window.budget, user, since, until)
            window.settled, window.settled_at = settled, until
            since = until
        return settled + await self._sum(window.budget, user, since, _FOREVER)

    async def _sum(self, budget: Budget, user: str, start: int, end: int) -> int:
        caller = None if budget.shared else user
        used = await self._store.usage.spent(caller, start, end)
        return sum(self._amount(budget, each) for each in used)

    def _drop_ended(self, now: datetime) -> None:
        if len(self._windows) >= MAX_WINDOWS:
            self._windows = {key: each for key, each in self._windows.items() if each.end > now}


class RunningCall:
    """Counts the tokens of a running attempt.

    Args:
        units: The periods, each with the amount of one token.
    """

    def __init__(self, units: Sequence[tuple[_Window, int]]) -> None:
        self._units = units
        self._tokens = 0

    def add(self, tokens: int) -> None:
        """Add tokens that have arrived.

        Raises:
            BudgetExceededError: A budget is used up.
        """
        self._tokens += tokens
        for window, unit in self._units:
            window.running += tokens * unit
        for window, _ in self._units:
            # A response belongs to the period in which the response ends, so an ended period does not limit it.
            if window.spent + window.running > window.limit and datetime.now(UTC) < window.end:
                raise _error_of(window)

    def end(self) -> None:
        """Subtract the tokens of the attempt, because `Budgets.record` adds its final usage."""
        for window, unit in self._units:
            window.running -= self._tokens * unit
        self._tokens = 0


def period_of(name: str, now: datetime) -> tuple[datetime, datetime]:
    """Return the start and the end of the minute, hour, day or month of a time, in UTC."""
    minute = now.replace(second=0, microsecond=0)
    if name == "minute":
        return minute, minute + timedelta(minutes=1)
    hour = minute.replace(minute=0)
    if name == "hour":
        return hour, hour + timedelta(hours=1)
    day = hour.replace(hour=0)
    if name == "day":
        return day, day + timedelta(days=1)
    month = day.replace(day=1)
    return month, month + timedelta(days=monthrange(month.year, month.month)[1])


def _concerns(budget: Budget, user: str) -> bool:
    return budget.shared or budget.caller is None or budget.caller == user


def _key_of(budget: Budget, user: str) -> str:
    return "" if budget.shared else user


def _limit_of(budget: Budget) -> int:
    return budget.tokens if budget.tokens is not None else int((budget.usd or Decimal(0)) * NANO)


def _error_of(window: _Window) -> BudgetExceededError:
    budget = window.budget
    amount = f"{budget.tokens} tokens" if budget.tokens is not None else f"{budget.usd} US dollars"
    of = "of all callers together" if budget.shared else "of this caller"
    seconds = max(1, math.ceil((window.end - datetime.now(UTC)).total_seconds()))
    return BudgetExceededError(
        f"the budget {of}, {amount} in one {budget.period}, is used up (TAILRACE_BUDGETS); it renews at "
        f"{window.end:%Y-%m-%dT%H:%M:%SZ}",
        limit="budgets",
        allowed=window.limit,
        retry_after=seconds,
    )


def estimated(usage: Usage | None, chunks: int) -> int:
    """Return the tokens of a running response: the reported tokens, but at least one output token for each chunk."""
    if usage is None:
        return chunks
    return usage.input_tokens + max(usage.output_tokens, chunks)

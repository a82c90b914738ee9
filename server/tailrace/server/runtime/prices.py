"""The costs of model calls, from prices in the settings or from the package genai-prices (``tailrace[prices]``)."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from decimal import Decimal
from typing import Any

import anyio

from tailrace.server.store.store import AttemptState, UsageRecord
from tailrace.server.usage_settings import ModelPrice
from tailrace.wrappers import ConfigurationError, Usage
from tailrace.wrappers.usage_details import UsageDetails

logger = logging.getLogger("tailrace.server")

NANO = 10**9
"""Number of units of a cost in one US dollar."""

MAX_COST = 1_000_000 * NANO
"""The maximum cost of an attempt. A higher cost results from a wrong count or price."""

LOAD_SECONDS = 5.0
"""Maximum number of seconds for which a response waits for the prices of the package. After that, its cost is unknown."""

# From US dollars per million tokens to 1e-9 US dollars per token.
_PER_TOKEN = Decimal(NANO) / 1_000_000

# The names of providers in the package.
_PROVIDERS = {
    "openai-responses": "openai",
    "gemini": "google",
    "bedrock": "aws",
    "xai": "x-ai",
    "moonshot": "moonshotai",
}

_Calculate = Callable[[str, str, Usage, UsageDetails], Decimal | None]


class PriceTable:
    """Calculates the cost of attempts.

    The package needs 6 MB of memory, so it is loaded when it is first needed: during the first attempt of a model without a
    configured price, or at the start of a server with budgets in US dollars.

    Args:
        prices: Prices by ``PROVIDER:MODEL``, which override those of the package; None to use only those of the package.

    Attributes:
        is_loaded: True if the prices of the package are loaded, or if it is not installed.
    """

    def __init__(self, prices: Mapping[str, ModelPrice] | None = None) -> None:
        self._prices = prices or {}
        self._calculate: _Calculate | None = None
        self._loading: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self.is_loaded = False

    def needs_load(self, provider: str, model: str) -> bool:
        """Return whether the cost of an attempt depends on prices of the package that are not loaded yet."""
        return not self.is_loaded and bool(provider) and f"{provider}:{model}" not in self._prices

    async def load(self) -> None:
        """Load the prices of the package, if it is installed, in a thread (about a tenth of a second).

        Raises:
            ConfigurationError: The package is installed, but cannot be loaded.
        """
        if not self.is_loaded:
            await asyncio.shield(self._start_loading())
        if self._error is not None:
            raise ConfigurationError(f"the prices of genai-prices cannot be loaded: {self._error}")

    @asynccontextmanager
    async def loading(self) -> AsyncGenerator[None]:
        """Load the prices of the package during the block.

        After the block, also if it was cancelled, they are loaded, unless this takes more than `LOAD_SECONDS`.
        """
        self._start_loading()
        try:
            yield
        finally:
            with anyio.move_on_after(LOAD_SECONDS, shield=True), suppress(ConfigurationError):
                await self.load()

    def _start_loading(self) -> "asyncio.Future[None]":
        if self._loading is None:
            self._loading = asyncio.get_running_loop().run_in_executor(None, self._load)
        return self._loading

    def _load(self) -> None:
        try:
            self._calculate = _load_package()
        except Exception as error:
            self._error = error
            logger.exception(
                "the prices of genai-prices cannot be loaded; the costs of responses are unknown"
            )
        self.is_loaded = True

    def output_price(self, provider: str, model: str) -> int:
        """Return the price of an output token in 1e-9 US dollars; 0 if it is unknown."""
        record = UsageRecord(0, 0, "", "", provider, model, AttemptState.FINAL, 0, 0)
        cost = self.cost(record, Usage(0, 1_000_000, 1_000_000), UsageDetails())
        return (cost or 0) // 1_000_000

    def cost(self, record: UsageRecord, usage: Usage, details: UsageDetails) -> int | None:
        """Return the cost of an attempt in 1e-9 US dollars; None if the price is unknown."""
        price = self._prices.get(f"{record.provider}:{record.model}")
        if price is not None:
            cached_price = price.input if price.cached is None else price.cached
            cached = min(details.cached, usage.input_tokens)
            cost = (usage.input_tokens - cached) * price.input + cached * cached_price
            return _rounded((cost + usage.output_tokens * price.output) * _PER_TOKEN)
        if self._calculate is None or not record.provider:
            return None
        provider = _PROVIDERS.get(record.provider, record.provider)
        for name in filter(None, (record.reported_model, record.model)):
            found = self._calculate(provider, name, usage, details)
            if found is not None:
                return _rounded(found * NANO)
        return None


def _rounded(cost: Decimal) -> int | None:
    """Return a cost as an integer; None above `MAX_COST`, because sums in the database could overflow."""
    return int(cost.to_integral_value()) if cost <= MAX_COST else None


def _load_package() -> _Calculate | None:
    try:
        import genai_prices
    except ImportError:
        return None

    def calculate(provider: str, model: str, usage: Usage, details: UsageDetails) -> Decimal | None:
        parts: dict[str, Any] = {
            "input_tokens": usage.input_tokens,
            "cache_read_tokens": details.cached,
            "cache_write_tokens": details.cache_written,
            "output_tokens": usage.output_tokens,
        }
        try:
            return genai_prices.calc_price(
                genai_prices.Usage(**parts), model_ref=model, provider_id=provider
            ).total_price
        except LookupError:
            return None
        except ValueError as error:  # counts that contradict each other
            logger.warning("the cost of a response of %s:%s is unknown: %s", provider, model, error)
            return None

    calculate("openai", "gpt-5-mini", Usage(1, 1, 2), UsageDetails())  # loads the prices
    return calculate

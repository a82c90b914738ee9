"""Costs of attempts."""

import sys
import threading
from decimal import Decimal

import pytest

from tailrace.server import ModelPrice
from tailrace.server.runtime import prices
from tailrace.server.runtime.prices import NANO, PriceTable
from tailrace.server.store.store import AttemptState, UsageRecord
from tailrace.wrappers import ConfigurationError, Usage
from tailrace.wrappers.usage_details import UsageDetails

MILLION = Usage(1_000_000, 1_000_000, 2_000_000)


def record(provider: str, model: str, reported_model: str = "") -> UsageRecord:
    return UsageRecord(1, 1, "", "", provider, model, AttemptState.FINAL, 0, 0, reported_model)


async def loaded(**prices: ModelPrice) -> PriceTable:
    table = PriceTable({name.replace("_", ":"): price for name, price in prices.items()})
    await table.load()
    return table


@pytest.mark.parametrize(
    "attempt",
    [
        record("openai", "gpt-4o"),
        record("openai-responses", "gpt-4o"),
        record("openai", "my-deployment", "gpt-4o-2024-08-06"),
    ],
)
async def test_the_price_of_the_table_applies(attempt: UsageRecord) -> None:
    table = await loaded()
    assert table.cost(attempt, MILLION, UsageDetails()) == round(12.5 * NANO)
    half = table.cost(attempt, MILLION, UsageDetails(cached=500_000))
    assert half is not None
    assert half < 12.5 * NANO


async def test_a_configured_price_overrides_the_table() -> None:
    price = ModelPrice(input=Decimal(1), output=Decimal(2), cached=Decimal("0.5"))
    table = await loaded(openai_gpt=price)
    assert table.cost(record("openai", "gpt"), MILLION, UsageDetails(cached=500_000)) == round(2.75 * NANO)
    no_discount = await loaded(openai_gpt=ModelPrice(input=Decimal(1), output=Decimal(2)))
    assert no_discount.cost(record("openai", "gpt"), MILLION, UsageDetails(cached=10)) == 3 * NANO


@pytest.mark.parametrize(
    "attempt", [record("vllm", "qwen"), record("openai", "unknown"), record("", "", "gpt-4o")]
)
async def test_other_prices_are_unknown(attempt: UsageRecord) -> None:
    assert (await loaded()).cost(attempt, MILLION, UsageDetails()) is None


async def test_counts_that_contradict_each_other_have_no_cost(caplog: pytest.LogCaptureFixture) -> None:
    table = await loaded()
    attempt = record("openai", "gpt-4o")
    assert table.cost(attempt, Usage(1, 1, 2), UsageDetails(cached=5)) is None
    assert "the cost of a response of openai:gpt-4o is unknown" in caplog.text
    assert (
        table.cost(attempt, Usage(10**15, 0, 10**15), UsageDetails()) is None
    )  # more than a million dollars


async def test_a_configured_price_needs_no_table() -> None:
    table = PriceTable({"openai:gpt": ModelPrice(input=Decimal(1), output=Decimal(2))})
    assert not table.needs_load("openai", "gpt")
    assert table.cost(record("openai", "gpt"), MILLION, UsageDetails()) == 3 * NANO
    assert table.needs_load("openai", "gpt-4o")
    async with table.loading():
        pass
    assert not table.needs_load("openai", "gpt-4o")
    assert table.cost(record("openai", "gpt-4o"), MILLION, UsageDetails()) is not None


async def test_without_the_table_only_configured_prices_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    table = await loaded(openai_gpt=ModelPrice(input=Decimal(1), output=Decimal(2)))
    assert table.cost(record("openai", "gpt-4o"), MILLION, UsageDetails()) is None
    assert table.cost(record("openai", "gpt"), MILLION, UsageDetails()) == 3 * NANO


async def test_a_table_that_cannot_be_loaded_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", object())
    table = PriceTable()
    async with table.loading():
        pass
    assert table.cost(record("openai", "gpt-4o"), MILLION, UsageDetails()) is None
    assert "cannot be loaded" in caplog.text


async def test_a_response_does_not_wait_long_for_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    class Hanging:
        def __getattr__(self, name: str) -> object:
            released.wait()
            raise AttributeError(name)

    monkeypatch.setitem(sys.modules, "genai_prices", Hanging())
    monkeypatch.setattr(prices, "LOAD_SECONDS", 0.01)
    table = PriceTable()
    try:
        async with table.loading():
            pass
        assert not table.is_loaded
        assert table.cost(record("openai", "gpt-4o"), MILLION, UsageDetails()) is None
    finally:
        released.set()
    with pytest.raises(ConfigurationError):
        await table.load()

"""Reads the ledger of a server at ``GET /usage``."""

from collections.abc import Mapping
from typing import Any

import aiohttp

Sums = Mapping[str, Mapping[str, Any]]


async def sums_by_state(url: str, query: str = "", **headers: str) -> Sums:
    """The sums of attempts by their state."""
    address = f"{url}/usage?group_by=state{query}"
    async with aiohttp.ClientSession() as http, http.get(address, headers=headers) as response:
        body = await response.json()
        assert response.status == 200, body
    return {each["state"]: each for each in body["groups"]}


def totals(sums: Sums) -> tuple[int, int]:
    """The input and output tokens of all states."""
    return (
        sum(each["input_tokens"] for each in sums.values()),
        sum(each["output_tokens"] for each in sums.values()),
    )

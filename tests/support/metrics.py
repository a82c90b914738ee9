"""The metrics of a running server in Prometheus's formats."""

from typing import Any

import aiohttp
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families


class Scrape:
    """All samples of one scrape."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = [sample for family in self.families.values() for sample in family.samples]

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples of a name with at least these labels; 0 without samples."""
        return sum(
            sample.value
            for sample in self.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    @property
    def names(self) -> set[str]:
        """The names of all samples."""
        return {sample.name for sample in self.samples}


async def scrape(url: str, headers: dict[str, str] | None = None) -> Scrape:
    """Scrape a server's metrics."""
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics", headers=headers) as response:
        assert response.status == 200, await response.text()
        return Scrape(await response.text())


def openmetrics_names(text: str) -> set[str]:
    """The names of the metric families in a text in OpenMetrics format, which must be valid."""
    known: Any = openmetrics  # the module has no type hints
    return {family.name for family in known.text_string_to_metric_families(text)}

"""The metrics of a server, in the formats of Prometheus and OpenMetrics.

Metrics that OpenTelemetry's conventions for generative AI define have their names and labels. The names of all other metrics
begin with ``tailrace_``. Callers cannot choose the values of labels.
"""

from collections.abc import Callable, Generator, Sequence
from importlib.metadata import version
from itertools import accumulate
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from tailrace.server.runtime.prices import NANO
from tailrace.server.store.store import UsageRecord
from tailrace.server.store.writer import Distribution

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Bucket bounds in seconds. The conventions define the bounds from 0.01.
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_CHUNK_SECONDS = (0.000625, 0.00125, 0.0025, 0.005, *_SECONDS)
_TURN_SECONDS = (*_SECONDS, 163.84, 327.68, 655.36, 1310.72, 2621.44)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304)

_MODEL = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")


class _DistributionCollector(Collector):
    """Exposes a `Distribution` as a histogram without labels."""

    def __init__(self, name: str, help: str, distribution: Distribution) -> None:
        self._name = name
        self._help = help
        self._distribution = distribution

    def collect(self) -> Generator[Metric]:
        """Return the current counts."""
        found = self._distribution
        names = [*map(str, map(float, found.bounds)), "+Inf"]
        counts = list(zip(names, accumulate(found.counts), strict=True))
        yield HistogramMetricFamily(self._name, self._help, buckets=counts, sum_value=found.sum)


class Metrics:
    """All metrics of one server, in a separate registry.

    Attributes:
        registry: The Prometheus registry.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)

        def histogram(name: str, words: str, labels: Sequence[str], bounds: Sequence[float]) -> Histogram:
            return Histogram(name, words, labels, registry=registry, buckets=bounds)

        def counter(name: str, words: str, *labels: str) -> Counter:
            return Counter(name, words, labels, registry=registry)

        build = Gauge(
            "tailrace_build_info", "The version of tailrace; always 1", ["version"], registry=registry
        )
        build.labels(version("tailrace")).set(1)

        self.response_seconds = histogram(
            "gen_ai_client_operation_duration_seconds",
            "Duration of model responses",
            (*_MODEL, "error_type"),
            _TURN_SECONDS,
        )
        self.first_chunk_seconds = histogram(
            "gen_ai_client_operation_time_to_first_chunk_seconds",
            "Time from the request to the first chunk of the response",
            _MODEL,
            _SECONDS,
        )
        self.chunk_seconds = histogram(
            "gen_ai_client_operation_time_per_output_chunk_seconds",
            "Mean time between two chunks of a response",
            _MODEL,
            _CHUNK_SECONDS,
        )
        self.tokens = histogram(
            "gen_ai_client_token_usage",
            "Tokens of requests and responses, as the provider counted them",
            (*_MODEL, "gen_ai_token_type"),
            _TOKENS,
        )
        self.tool_seconds = histogram(
            "gen_ai_execute_tool_duration_seconds",
            "Duration of tool calls",
            ("gen_ai_tool_name", "error_type"),
            _SECONDS,
        )
        self.turn_seconds = histogram(
            "gen_ai_invoke_agent_duration_seconds",
            "Duration of turns, from the beginning to the last event",
            ("gen_ai_agent_name", "error_type"),
            _TURN_SECONDS,
        )
        self.turns = counter("tailrace_turns", "Turns that have ended", "outcome")
        self.streams = counter("tailrace_streams", "Streams that were opened", "kind")
        self.errors = counter("tailrace_errors", "Errors by who caused them", "fault", "type")
        self.wait_seconds = histogram(
            "tailrace_upstream_wait_seconds",
            "Duration of waits of calls to the provider for a permit",
            (),
            _SECONDS,
        )
        self.webhook_notifications = counter(
            "tailrace_webhook_notifications", "Notifications by outcome", "outcome"
        )
        self.webhook_failures = counter(
            "tailrace_webhook_failed_tries", "Failed attempts to deliver a notification"
        )
        self.continuations = counter(
            "tailrace_continuations",
            "Responses that broke off and were continued, by model, route and cause",
            "gen_ai_provider_name",
            "gen_ai_request_model",
            "route",
            "error_type",
        )
        self.rejected_entries = counter(
            "tailrace_broker_rejected_entries",
            "Entries of the broker that were skipped because they are malformed, of an unknown version, or not authentic",
            "purpose",
        )
        usage = ("gen_ai_provider_name", "gen_ai_request_model")
        self.usage_attempts = counter(
            "tailrace_usage_attempts", "Attempts of model calls in the ledger", *usage, "state"
        )
        self.usage_tokens = counter(
            "tailrace_usage_tokens", "Tokens of model calls in the ledger", *usage, "gen_ai_token_type"
        )
        self.usage_cost = counter(
            "tailrace_usage_cost_usd", "Costs of model calls in the ledger, in US dollars", *usage
        )
        self.failed_commits = counter("tailrace_store_failed_commits", "Failed attempts to commit")

    def count_usage(self, record: UsageRecord, provider: str) -> None:
        """Count an attempt of a model call. No label has a name that a caller or a remote agent chooses."""
        labels = (provider, record.model)
        self.usage_attempts.labels(*labels, record.state.value).inc()
        self.usage_tokens.labels(*labels, "input").inc(record.input_tokens)
        self.usage_tokens.labels(*labels, "output").inc(record.output_tokens)
        if record.cost is not None:
            self.usage_cost.labels(*labels).inc(record.cost / NANO)

    def watch(self, name: str, words: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is computed each time the metrics are scraped."""
        Gauge(name, words, registry=self.registry).set_function(value)

    def watch_distribution(self, name: str, words: str, distribution: Distribution) -> None:
        """Add a histogram whose values are read each time the metrics are scraped."""
        self.registry.register(_DistributionCollector(name, words, distribution))

    def exposition(self, accepted: str = "") -> tuple[bytes, str]:
        """Return all metrics and their media type.

        Args:
            accepted: The ``Accept`` header of the request. It selects OpenMetrics; the default is the text format of Prometheus.
        """
        if "application/openmetrics-text" in accepted:
            known: Any = openmetrics  # the library has no type annotations
            return known.generate_latest(self.registry), openmetrics.CONTENT_TYPE_LATEST
        return generate_latest(self.registry), TEXT_TYPE

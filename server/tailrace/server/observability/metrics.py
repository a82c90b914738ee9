"""The metrics of a server, for Prometheus.

Those for which OpenTelemetry's conventions for generative AI have a name carry it, with its attributes as labels; the others
begin with ``tailrace_``. No label holds what a caller chose: their number is bounded by what the operator configured.

What is counted once a commit is counted by `Buckets`, since a quiet server commits every event by itself and the locks of the
client library would cost more than all else here.
"""

from bisect import bisect_left
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

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# As the conventions have them, and finer below: chunks come faster than every ten milliseconds.
_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_CHUNK_SECONDS = (0.000625, 0.00125, 0.0025, 0.005, *_SECONDS)
_TURN_SECONDS = (*_SECONDS, 163.84, 327.68, 655.36, 1310.72, 2621.44)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304)
_LAG = (0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_EVENTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

_MODEL = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model")


class Buckets(Collector):
    """A histogram without labels for one thread: what it costs to count is one search in a short list.

    Args:
        name: Of the metric.
        help: What it means.
        bounds: The upper bounds of its buckets, the smallest first.
    """

    def __init__(self, name: str, help: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._help = help
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Generator[Metric]:
        """The metric as it stands."""
        names = [*map(str, map(float, self._bounds)), "+Inf"]
        counts = list(zip(names, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._name, self._help, buckets=counts, sum_value=self._sum)


class Metrics:
    """Every metric of one server, in a registry of its own: several servers in a process do not mix.

    Attributes:
        registry: Where they are; whoever has metrics of their own may add them.
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

        self.answer_seconds = histogram(
            "gen_ai_client_operation_duration_seconds",
            "How long answers of the model took",
            (*_MODEL, "error_type"),
            _TURN_SECONDS,
        )
        self.first_chunk_seconds = histogram(
            "gen_ai_client_operation_time_to_first_chunk_seconds",
            "From the request to the model to the first chunk of its answer",
            _MODEL,
            _SECONDS,
        )
        self.chunk_seconds = histogram(
            "gen_ai_client_operation_time_per_output_chunk_seconds",
            "Between two chunks of an answer: the mean of each answer",
            _MODEL,
            _CHUNK_SECONDS,
        )
        self.tokens = histogram(
            "gen_ai_client_token_usage",
            "Tokens of requests and answers, as the provider counted them",
            (*_MODEL, "gen_ai_token_type"),
            _TOKENS,
        )
        self.tool_seconds = histogram(
            "gen_ai_execute_tool_duration_seconds",
            "How long tools took",
            ("gen_ai_tool_name", "error_type"),
            _SECONDS,
        )
        self.turn_seconds = histogram(
            "gen_ai_invoke_agent_duration_seconds",
            "How long turns took, from the message's turn to its last event",
            ("gen_ai_agent_name", "error_type"),
            _TURN_SECONDS,
        )
        self.turns = counter("tailrace_turns", "Turns that are over", "outcome")
        self.streams = counter("tailrace_streams", "Streams that were begun", "kind")
        self.errors = counter("tailrace_errors", "What went wrong, by whose fault it was", "fault", "type")
        self.wait_seconds = histogram(
            "tailrace_upstream_wait_seconds",
            "How long calls to the provider waited for others, of those that had to",
            (),
            _SECONDS,
        )
        self.webhook_notifications = counter(
            "tailrace_webhook_notifications", "Notifications that are dealt with", "outcome"
        )
        self.webhook_failures = counter(
            "tailrace_webhook_failed_tries", "Tries to tell a webhook something that failed"
        )
        self.failed_commits = counter("tailrace_store_failed_commits", "Tries to commit that failed")
        self.lag = Buckets(
            "tailrace_store_lag_seconds",
            "From the oldest event of a transaction being handed over to its being kept",
            _LAG,
        )
        self.commit_events = Buckets("tailrace_store_commit_events", "Events in a transaction", _EVENTS)
        registry.register(self.lag)
        registry.register(self.commit_events)

    def watch(self, name: str, words: str, value: Callable[[], float]) -> None:
        """A metric that is looked at when somebody asks, and costs nothing before."""
        Gauge(name, words, registry=self.registry).set_function(value)

    def exposition(self, accepted: str = "") -> tuple[bytes, str]:
        """All metrics as they stand, and the media type.

        Args:
            accepted: What the scraper takes (``Accept``): OpenMetrics where it names it, else Prometheus' own text.
        """
        if "application/openmetrics-text" in accepted:
            known: Any = openmetrics  # the module says nothing of its types
            return known.generate_latest(self.registry), openmetrics.CONTENT_TYPE_LATEST
        return generate_latest(self.registry), TEXT_TYPE

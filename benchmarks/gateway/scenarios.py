"""The scenarios by name, and the servers that take part."""

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.gateway.order import Order
from benchmarks.gateway.servers import SERVERS, Running, Server

_TAILRACE_CLASSES = tuple(server.name for server in SERVERS if server.package == "tailrace")
_VARIED = ("tailrace-every-delta", "tailrace-asyncio")  # one setting changed, to measure its effect
_STORES = tuple(name for name in _TAILRACE_CLASSES if name not in _VARIED)
_A2A_PEERS = ("a2a-sdk", "a2a-sdk-sqlite", "fasta2a")
_SHORT = ("tailrace", "tailrace-memory", "relay", "a2a-sdk", "a2a-sdk-sqlite")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario.

    Attributes:
        name: The name on the command line.
        title: The title in the table.
        measure: A name of `benchmarks.gateway.measures.MEASURES`.
        metric: The figure by which contestants are compared.
        unit: The unit of ``metric`` in the table.
        also: Further figures in the table.
        servers: The servers of a full run.
        short: The servers of a short run; empty to leave it out.
        repeats: Number of repeats; half as many in a short run, and one for slow servers.
        fresh: Start a new server for each measurement.
        tokens, streams, rounds, rate, seconds, starts: As in `Order`.
        slow_rounds: Replaces ``rounds`` for slow servers.
    """

    name: str
    title: str
    measure: str
    metric: str = "cpu_us"
    unit: str = "µs of CPU a chunk"
    also: tuple[str, ...] = ()
    servers: tuple[str, ...] = _STORES
    short: tuple[str, ...] = ()
    repeats: int = 5
    fresh: bool = False
    tokens: int = 20
    streams: int = 1
    rounds: int = 1
    slow_rounds: int = 1
    rate: int = 0
    seconds: float = 0
    starts: int = 50

    def order(self, running: Running, upstream: Running, seed: int) -> Order:
        """Return the order to a reader for a server."""
        return Order(
            self.measure,
            running.server.dialect,
            running.port,
            upstream.port,
            running.process,
            tokens=self.tokens,
            streams=self.streams,
            rounds=self.slow_rounds if running.server.slow else self.rounds,
            rate=self.rate,
            seconds=self.seconds,
            starts=self.starts,
            seed=seed,
            database=running.database,
        )

    def times(self, server: Server, *, short: bool) -> int:
        """Return the number of repeats for a server."""
        if server.slow:
            return 1
        return max(1, self.repeats // 2) if short else self.repeats


_SIXTEEN_THOUSAND = 16_000  # tokens in one figure of a fast server
_BURST = ("wall_us", "chunks_per_event")


def _burst(tokens: int, short: tuple[str, ...] = ()) -> Scenario:
    rounds = max(1, _SIXTEEN_THOUSAND // tokens)
    return Scenario(
        f"burst-{tokens}",
        f"one stream at once, {tokens:,} tokens",
        "burst",
        also=_BURST,
        servers=(*_TAILRACE_CLASSES, "relay", *_A2A_PEERS, "litellm"),
        short=short,
        tokens=tokens,
        rounds=rounds,
        slow_rounds=max(1, 1000 // tokens),
    )


def _many(streams: int, short: tuple[str, ...] = ()) -> Scenario:
    return Scenario(
        f"burst-many-{streams}",
        f"{streams} streams at once, 1,000 tokens each",
        "burst",
        also=_BURST,
        servers=(*_TAILRACE_CLASSES, "relay", *_A2A_PEERS, "litellm"),
        short=short,
        repeats=3,
        tokens=1000,
        streams=streams,
    )


def _paced(
    streams: int,
    servers: tuple[str, ...],
    short: tuple[str, ...] = (),
    *,
    seconds: float = 4,
    starts: int = 50,
) -> Scenario:
    return Scenario(
        f"paced-{streams}",
        f"{streams:,} streams at 50 tokens a second",
        "paced",
        also=("latency_p50_ms", "latency_p99_ms", "first_p50_ms", "first_p99_ms"),
        servers=servers,
        short=short,
        repeats=3,
        streams=streams,
        rate=50,
        seconds=seconds,
        starts=starts,
    )


def _turns(streams: int, short: tuple[str, ...] = ()) -> Scenario:
    return Scenario(
        f"turns-{streams}",
        f"turns of 20 tokens, {streams} at a time",
        "turns",
        metric="turns_s",
        unit="turns a second",
        also=("cpu_us", "turn_p50_ms", "turn_p99_ms"),
        servers=(*_STORES, "tailrace-asyncio", "relay", *_A2A_PEERS, "litellm"),
        short=short,
        repeats=3,
        streams=streams,
        seconds=2,
    )


def _fan_out(streams: int, short: tuple[str, ...] = ()) -> Scenario:
    return Scenario(
        f"fan-out-{streams}",
        f"one task of 1,000 tokens to {streams:,} readers"
        if streams > 1
        else "one task of 1,000 tokens to one reader",
        "fan-out",
        unit="µs of CPU a delivery",
        also=("event_us", "chunks_per_event"),
        servers=("tailrace", "tailrace-memory", "a2a-sdk")
        if streams <= 100
        else ("tailrace", "tailrace-memory"),
        short=short,
        repeats=3,
        tokens=1000,
        streams=streams,
    )


def _memory(name: str, streams: int, servers: tuple[str, ...], short: tuple[str, ...] = ()) -> Scenario:
    return Scenario(
        name,
        f"{streams:,} live streams, {streams:,} idle readers",
        "memory",
        metric="live_rss_kb",
        unit="KB a live stream",
        also=("reader_rss_kb", "start_rss_mb", "start_pss_mb"),
        servers=servers,
        short=short,
        repeats=3,
        fresh=True,
        streams=streams,
        rate=50,
    )


SCENARIOS = (
    _burst(100),
    _burst(500, ("tailrace", "a2a-sdk")),
    _burst(1000),
    _burst(4000, _SHORT),
    _burst(16_000, ("tailrace", "relay")),
    _many(20, ("tailrace", "relay")),
    _many(100),
    _paced(20, ("tailrace", "relay", "direct", "a2a-sdk", "fasta2a", "litellm")),
    _paced(50, (*_STORES, "relay", "direct")),
    _paced(200, (*_TAILRACE_CLASSES, "relay", "direct"), ("tailrace", "relay", "direct")),
    _paced(1000, ("tailrace", "relay", "direct"), starts=200),
    _turns(16, ("tailrace", "relay", "a2a-sdk")),
    _turns(64),
    _fan_out(1),
    _fan_out(10),
    _fan_out(100, ("tailrace",)),
    _fan_out(1000),
    Scenario(
        "fan-out-paced",
        "one task of 100 tokens, 50 a second, to 100 readers",
        "fan-out",
        unit="µs of CPU a delivery",
        also=("event_us", "latency_p50_ms", "latency_p99_ms"),
        servers=("tailrace", "a2a-sdk"),
        repeats=3,
        tokens=100,
        streams=100,
        rate=50,
    ),
    Scenario(
        "cancel-20",
        "a task that is canceled, beside 20 streams at once",
        "cancel",
        metric="cancel_p50_ms",
        unit="ms to cancel, p50",
        also=("cancel_p99_ms", "latency_p50_ms", "latency_p99_ms"),
        servers=("tailrace", "tailrace-memory", "tailrace-every-delta"),
        repeats=3,
        tokens=16_000,
        streams=20,
        rate=50,
        seconds=6,
    ),
    Scenario(
        "resume-one",
        "1,000 clients resume one task that has ended",
        "resume",
        metric="client_us",
        unit="µs of CPU a client",
        also=("event_us", "client_p50_ms", "client_p99_ms"),
        servers=_STORES,
        repeats=3,
        tokens=1000,
        streams=1000,
        rate=1000,
    ),
    Scenario(
        "resume-many",
        "1,000 clients resume 100 tasks that have ended",
        "resume",
        metric="client_us",
        unit="µs of CPU a client",
        also=("event_us", "client_p50_ms", "client_p99_ms"),
        servers=_STORES,
        repeats=3,
        tokens=200,
        streams=1000,
        rounds=100,
        rate=100,
    ),
    Scenario(
        "resume-running",
        "1,000 clients resume one running task",
        "resume-running",
        metric="event_us",
        unit="µs of CPU an event",
        also=("client_us",),
        servers=_STORES,
        repeats=3,
        tokens=300,
        streams=1000,
        rate=50,
        seconds=2,
    ),
    # A worker accepts 1,000 concurrent calls by default.
    _memory("memory", 999, ("tailrace", "tailrace-memory", "relay", "a2a-sdk", "litellm")),
    _memory("memory-200", 200, ("tailrace",), ("tailrace", "relay", "a2a-sdk")),
    Scenario(
        "store-burst",
        "store, tokens without pauses",
        "store",
        metric="stored_bytes",
        unit="bytes a token",
        also=("text_bytes", "chunks_per_event"),
        servers=("tailrace", "tailrace-every-delta", "a2a-sdk-sqlite"),
        repeats=1,
        tokens=1000,
        streams=4,
        rounds=5,
    ),
    Scenario(
        "store-paced",
        "store, 50 tokens a second",
        "store",
        metric="stored_bytes",
        unit="bytes a token",
        also=("text_bytes", "chunks_per_event"),
        servers=("tailrace", "a2a-sdk-sqlite"),
        repeats=1,
        tokens=200,
        streams=20,
        rate=50,
    ),
)


def named(names: Iterable[str]) -> list[Scenario]:
    """Return the scenarios with these names or prefixes, in the order of the table.

    Raises:
        ValueError: No scenario has this name.
    """
    known = [scenario.name for scenario in SCENARIOS]
    wanted: set[str] = set()
    for name in names:
        meant = {name} if name in known else {each for each in known if each.startswith(name)}
        if not meant:
            raise ValueError(f"{name}: there are {', '.join(known)}")
        wanted |= meant
    return [scenario for scenario in SCENARIOS if scenario.name in wanted]

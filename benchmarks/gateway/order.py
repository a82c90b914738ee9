"""The order that describes a measurement to a reader process, and the figures that it returns."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Order:
    """One measurement of one server.

    Attributes:
        measure: A name of `benchmarks.gateway.measures.MEASURES`.
        dialect: The protocol of the server.
        port: The server's port, on this machine.
        upstream: The upstream's port.
        process: The root of the server's processes.
        tokens: Deltas of a response.
        streams: Concurrent responses, subscribers or clients.
        rounds: Repetitions within one figure, for short measurements.
        rate: Deltas per second of a paced response.
        seconds: Duration of the measurement.
        starts: Responses that begin per second, before the measurement.
        seed: The random seed.
        database: The server's SQLite file; empty if it has none.
    """

    measure: str
    dialect: str
    port: int
    upstream: int
    process: int
    tokens: int = 20
    streams: int = 1
    rounds: int = 1
    rate: int = 0
    seconds: float = 0
    starts: int = 50
    seed: int = 0
    database: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object for a reader's standard input."""
        return asdict(self)


Figures = dict[str, float]
"""Figures of a measurement, by name; the names contain the unit."""

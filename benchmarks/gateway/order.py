"""What a reader is told to do, and what it answers: one JSON object each way."""

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Order:
    """One measurement of one server.

    Attributes:
        measure: Which one, a name of `benchmarks.gateway.measures.MEASURES`.
        dialect: What the server speaks.
        port: Where it listens, on this machine.
        upstream: Where the upstream listens.
        process: The root of the server's processes.
        tokens: Pieces of an answer.
        streams: Answers, readers or clients at a time.
        rounds: How often the same is done before the figure is made, for quick ones.
        rate: Pieces a second of a paced answer.
        seconds: How long is measured.
        starts: Answers that begin in a second, before anything is measured.
        seed: Of what is random.
        database: The server's SQLite file; empty where it has none.
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
        """For a reader's standard input."""
        return asdict(self)


Figures = dict[str, float]
"""What a measurement found, by name; the names say the unit."""

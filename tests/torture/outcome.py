"""The outcome of a scenario: counts of violations, and messages about them."""

from collections.abc import Sequence
from dataclasses import dataclass, field

SHOWN_FAULTS = 20


@dataclass
class Outcome:
    """The outcome of one scenario, updated during the scenario.

    Attributes:
        name: The name of the scenario.
        rounds: The number of rounds.
        lost: Events that a client should have received and did not.
        repeated: Events that a client received more than once.
        unfinished: Tasks without an end.
        figures: Other measurements, as text.
        faults: A message for each violation.
        seconds: The duration.
        comparison: Whether another program was measured, whose faults are not violations.
    """

    name: str
    rounds: int = 0
    lost: int = 0
    repeated: int = 0
    unfinished: int = 0
    figures: list[str] = field(default_factory=list[str])
    faults: list[str] = field(default_factory=list[str])
    seconds: float = 0.0
    comparison: bool = False

    @property
    def violated(self) -> bool:
        """Return whether there is a violation."""
        return not self.comparison and bool(self.lost or self.repeated or self.unfinished or self.faults)

    def check(self, holds: object, words: str) -> bool:
        """Record a fault if the condition is false; return the condition."""
        if not holds:
            self.faults.append(words)
        return bool(holds)

    def explain(self) -> str:
        """The faults, one a line; empty without any."""
        counts = {"lost": self.lost, "repeated": self.repeated, "not ended": self.unfinished}
        lines = [f"{name}: {count}" for name, count in counts.items() if count]
        lines += self.faults[:SHOWN_FAULTS]
        if len(self.faults) > SHOWN_FAULTS:
            lines.append(f"… and {len(self.faults) - SHOWN_FAULTS} more")
        return "\n".join(lines)


def table(outcomes: Sequence[Outcome]) -> str:
    """A table with one line for each scenario."""
    rows = [("scenario", "rounds", "lost", "repeated", "non-terminal", "faults", "seconds", "figures")]
    rows += [
        (
            each.name,
            str(each.rounds),
            str(each.lost),
            str(each.repeated),
            str(each.unfinished),
            str(len(each.faults)),
            f"{each.seconds:.0f}",
            "; ".join(each.figures),
        )
        for each in outcomes
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines: list[str] = []
    for name, *numbers, figures in rows:
        cells = [name.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(numbers, widths[1:], strict=True)]
        lines.append("  ".join([*cells, figures]).rstrip())
    return "\n".join(lines)

"""Whether a server can do its work now, in a form that probes and people can read."""

import msgspec


class Health(msgspec.Struct, frozen=True):
    """What was looked at.

    Attributes:
        problems: What does not work, in a few words for whoever looks; by the name of the part (``engine``, ``store``).
            Empty where everything does.
        parts: The names of all parts that were looked at.
    """

    problems: dict[str, str]
    parts: tuple[str, ...]

    @property
    def ready(self) -> bool:
        """Whether requests can be sent here."""
        return not self.problems

    def to_dict(self) -> dict[str, object]:
        """``{"status": "ready" | "not ready", "checks": {PART: "ok" | PROBLEM}}``."""
        checks = {part: self.problems.get(part, "ok") for part in self.parts}
        return {"status": "ready" if self.ready else "not ready", "checks": checks}

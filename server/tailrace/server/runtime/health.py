"""The result of a health check, which ``/readyz`` returns."""

import msgspec


class Health(msgspec.Struct, frozen=True):
    """The result of a health check.

    Attributes:
        problems: A short description of each failure, by the name of the failed part (``engine``, ``store``). Empty if all
            parts work.
        parts: The names of all parts that were checked.
        warnings: Failures that do not affect whether the server accepts requests, by the name of the part (``agents``).
    """

    problems: dict[str, str]
    parts: tuple[str, ...]
    warnings: dict[str, str] = {}

    @property
    def ready(self) -> bool:
        """Return whether the server accepts requests."""
        return not self.problems

    def to_dict(self) -> dict[str, object]:
        """Return ``{"status": "ready" | "not ready", "checks": {PART: "ok" | PROBLEM}}``."""
        found = {**self.warnings, **self.problems}
        checks = {part: found.get(part, "ok") for part in self.parts}
        return {"status": "ready" if self.ready else "not ready", "checks": checks}

"""The result of a health check, which ``/readyz`` returns."""

import msgspec


class Health(msgspec.Struct, frozen=True):
    """The result of a health check.

    Attributes:
        problems: A description of each failure, by the failed part (``engine``, ``store``).
        parts: All checked parts.
        warnings: Failures that do not affect whether the server accepts requests, by part (``agents``).
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

"""Response bodies of Ollama's APIs ``chat`` and ``generate``: one JSON object per line."""

import json
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from benchmarks.bodies.body_writer import CREATED, BodyWriter, Kind, compact


class OllamaWriter(BodyWriter):
    """Writes one line per token or complete call."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._now = datetime.fromtimestamp(CREATED, UTC)
        self._calls = 0

    def begin(self) -> list[bytes]:
        """Return no event."""
        return []

    def open(self, kind: Kind) -> list[bytes]:
        """Return no event."""
        return []

    def delta(self, kind: Kind, piece: str) -> bytes:
        """Return one line; none for a call."""
        if kind is Kind.CALL:
            return b""
        return self._line(
            {"content": "", "thinking": piece} if kind is Kind.REASONING else {"content": piece}
        )

    def shut(self, kind: Kind, whole: str) -> list[bytes]:
        """Return a complete call."""
        if kind is not Kind.CALL:
            return []
        function = {"index": self._calls, "name": "search", "arguments": json.loads(whole)}
        self._calls += 1
        call = {"id": "call_" + self.token(8).lower(), "function": function}
        return [self._line({"content": "", "tool_calls": [call]})]

    def end(self, tokens: int) -> list[bytes]:
        """Return the line with ``done``."""
        counts = {
            "total_duration": 15_556_533_542,
            "load_duration": 4_491_378_417,
            "prompt_eval_count": 24,
            "prompt_eval_duration": 3_054_601_292,
            "eval_count": tokens,
            "eval_duration": 7_356_319_134,
        }
        return [self._line({"content": ""}, done=True, done_reason="stop", **counts)]

    def _line(self, message: dict[str, Any], *, done: bool = False, **fields: Any) -> bytes:
        return self.line({"message": {"role": "assistant", **message}, "done": done, **fields})

    def line(self, fields: dict[str, Any]) -> bytes:
        """Return one line, with the common fields."""
        self._now += timedelta(microseconds=self.rng.randint(13_000, 33_000))
        head = {"model": "qwen3:4b", "created_at": self._now.isoformat().replace("+00:00", "Z")}
        return compact({**head, **fields}) + b"\n"


class GenerateWriter(OllamaWriter):
    """Writes the format of ``/api/generate``, which has no messages and no calls."""

    def shut(self, kind: Kind, whole: str) -> list[bytes]:
        """Return no event."""
        return []

    def _line(self, message: dict[str, Any], *, done: bool = False, **fields: Any) -> bytes:
        content = {"response": message["content"], "done": done}
        if "thinking" in message:
            content["thinking"] = message["thinking"]
        return self.line({**content, **fields})

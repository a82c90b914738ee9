"""Response bodies of Google's Interactions API: steps with a beginning and an end."""

from random import Random
from typing import Any

from benchmarks.bodies.body_writer import BodyWriter, Kind, sse

_STEPS = {Kind.TEXT: "model_output", Kind.REASONING: "thought", Kind.CALL: "function_call"}


class InteractionsWriter(BodyWriter):
    """Writes typed events, with a signature at the end of a thought, and the usage in the last event."""

    lengths = "gemini"

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._id = "v1_" + self.token(40)
        self._index = -1
        self._status = "completed"

    def begin(self) -> list[bytes]:
        """Return the interaction with the status "in progress"."""
        interaction = {"id": self._id, "model": "gemini-3-flash-preview", "object": "interaction"}
        return [
            self._event("interaction.created", interaction={**interaction, "status": "in_progress"}),
            self._event("interaction.status_update", interaction_id=self._id, status="in_progress"),
        ]

    def open(self, kind: Kind) -> list[bytes]:
        """Return the start of a step. For a call, it has the id and the name."""
        self._index += 1
        step = {"type": _STEPS[kind]}
        if kind is Kind.CALL:
            self._status = "requires_action"
            step |= {"id": self.token(8), "name": "search"}
        return [self._event("step.start", index=self._index, step=step)]

    def delta(self, kind: Kind, piece: str) -> bytes:
        """Return one event."""
        delta: dict[str, Any] = {"type": "text", "text": piece}
        if kind is Kind.REASONING:
            delta = {"type": "thought_summary", "content": delta}
        elif kind is Kind.CALL:
            delta = {"type": "arguments_delta", "arguments": piece}
        return self._event("step.delta", index=self._index, delta=delta)

    def shut(self, kind: Kind, whole: str) -> list[bytes]:
        """Return the end of the step, preceded by the signature of a thought."""
        events = [self._event("step.stop", index=self._index)]
        if kind is Kind.REASONING:
            seal = {"type": "thought_signature", "signature": self.token(200)}
            events.insert(0, self._event("step.delta", index=self._index, delta=seal))
        return events

    def end(self, tokens: int) -> list[bytes]:
        """Return the final status, usage, and ``[DONE]``."""
        interaction = {
            "id": self._id,
            "model": "gemini-3-flash-preview",
            "object": "interaction",
            "service_tier": "standard",
            "status": self._status,
            "usage": {
                "total_input_tokens": 24,
                "total_output_tokens": tokens,
                "total_thought_tokens": 0,
                "total_tokens": 24 + tokens,
            },
        }
        completed = self._event("interaction.completed", interaction=interaction)
        return [completed, b"event: done\ndata: [DONE]\n\n"]

    @staticmethod
    def _event(kind: str, **fields: Any) -> bytes:
        return sse({"event_type": kind, **fields}, kind)

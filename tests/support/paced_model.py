"""A model that receives each step of a response in a separate read.

Each step is sent after the previous one was decoded, while the response is awaited.
"""

from collections.abc import Sequence
from typing import Any

import anyio

from support.upstream import Head, ScriptedUpstream, Step, Wait
from tailrace.wrappers.decoding.framing import MAX_EVENT_BYTES
from tailrace.wrappers.openai import ChatCompletionsDecoder, ChoiceDeltaWrapper
from tailrace.wrappers.openai.model import ChatCompletionsModel


class Gate:
    """Lets one waiter pass for each time that it is set."""

    def __init__(self) -> None:
        self._left = 0
        self._more = anyio.Event()

    async def wait(self) -> None:
        """Wait until the gate lets this waiter pass."""
        while not self._left:
            await self._more.wait()
        self._left -= 1

    def set(self) -> None:
        """Let one more waiter pass."""
        self._left += 1
        self._more.set()
        self._more = anyio.Event()

    def close(self) -> None:
        """Discard the remaining passes."""
        self._left = 0


def paced(gate: Gate, steps: Sequence[Step]) -> list[Step]:
    """A script with one read for each step, controlled by the gate of a `PacedModel`."""
    script: list[Step] = [Head()]
    for step in steps:
        script += [Wait(gate), step]
    return [*script, Wait(gate)]


class PacedModel(ChatCompletionsModel):
    """A model for `paced` scripts.

    Args:
        upstream: The server of the scripts.
        gate: The gate of the scripts.
        read_timeout: The read timeout of the model.
        max_event_bytes: Bound on one event.
    """

    def __init__(
        self,
        upstream: ScriptedUpstream,
        gate: Gate,
        *,
        read_timeout: float = 30,
        max_event_bytes: int = MAX_EVENT_BYTES,
    ) -> None:
        super().__init__(
            "scripted",
            base_url=upstream.base_url,
            api_key="none",
            max_retries=0,
            read_timeout=read_timeout,
        )
        self._gate = gate
        self._max_event_bytes = max_event_bytes

    def _decoder(self) -> ChatCompletionsDecoder:
        self._gate.close()
        self._gate.set()
        return _PacingDecoder(self._gate, max_event_bytes=self._max_event_bytes)


class _PacingDecoder(ChatCompletionsDecoder):
    def __init__(self, gate: Gate, *, max_event_bytes: int) -> None:
        super().__init__(provider="openai", max_event_bytes=max_event_bytes)
        self._gate = gate

    def feed(self, data: Any) -> list[ChoiceDeltaWrapper]:
        self._gate.set()
        return super().feed(data)

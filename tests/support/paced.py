"""A model that gets every step of an answer in a read of its own, and while somebody waits for it.

What is to be taken where it arrives has to arrive while it is waited for: here a script goes on when what came before
was decoded, by whichever way it came.
"""

from collections.abc import Sequence

import anyio

from support.upstream import Head, ScriptedUpstream, Step, Wait
from tailrace.wrappers.openai import ChatCompletionsDecoder, ChoiceDeltaWrapper
from tailrace.wrappers.openai.model import ChatCompletionsModel
from tailrace.wrappers.wire import MAX_EVENT_BYTES


class Gate:
    """Lets one go by for each time that it is set."""

    def __init__(self) -> None:
        self._left = 0
        self._more = anyio.Event()

    async def wait(self) -> None:
        """Until it was set once more than others were let by."""
        while not self._left:
            await self._more.wait()
        self._left -= 1

    def set(self) -> None:
        """Let one more go by."""
        self._left += 1
        self._more.set()
        self._more = anyio.Event()

    def close(self) -> None:
        """Forget those that might still go by."""
        self._left = 0


def paced(gate: Gate, steps: Sequence[Step]) -> list[Step]:
    """A script whose steps are a read each, of a `PacedModel` with the gate."""
    script: list[Step] = [Head()]
    for step in steps:
        script += [Wait(gate), step]
    return [*script, Wait(gate)]


class PacedModel(ChatCompletionsModel):
    """The model.

    Args:
        upstream: Plays scripts that are `paced`.
        gate: By this gate.
        read_timeout: As for any model.
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

    def feed(self, data: bytes) -> list[ChoiceDeltaWrapper]:
        self._gate.set()
        return super().feed(data)

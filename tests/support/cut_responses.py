"""A response that is cut at a random byte, and the requirements that its continuation meets.

The tests cut a few responses of each kind of server; ``make torture ARGS="--only continue"`` cuts 1,000.
"""

import random
from dataclasses import dataclass

import anyio

from support.continued_runs import Run, counted_weather
from support.continuing import ARGUMENTS, ContinuingServer
from support.upstream import ScriptedUpstream
from tailrace.streaming import Agent
from tailrace.streaming.a2a.lifecycle import TaskState
from tailrace.streaming.agent.continuation import ContinuationPolicy

PROMPT = ContinuationPolicy(delay=0.0)

_ALPHABET = (
    "a", "be", " river", " stone", "\n", "\n\n", "- ", "**", "`", " ", "é", "水", "流れ", "🌊", "👩‍🚀", ".", ". ", ", ", "#",
)  # fmt: skip
_SILENCE = 1.0  # the read timeout of a model whose server is silent
_ENDINGS = ("close", "reset", "error") * 6 + ("silence",)


@dataclass
class CutResponse:
    """The outcome of a turn whose first response was cut.

    Attributes:
        server: The provider.
        run: The events of the turn.
        ran: The arguments of each call of the tool.
    """

    server: ContinuingServer
    run: Run
    ran: list[tuple[str, int]]

    @property
    def route(self) -> str:
        """The route of the last continuation; empty if the response had finished before the cut."""
        return next(reversed(self.run.routes), "")

    @property
    def expected_text(self) -> str:
        """The text of the last attempt."""
        text = "".join(self.server.pieces)
        return self.server.SECOND + text if self.route == "replace" else text

    @property
    def text(self) -> str:
        """The text that subscribers have."""
        return self.run.texts.get("text", "")

    def faults(self) -> list[str]:
        """The requirements that are not met; empty if all are."""
        run, server = self.run, self.server
        is_replaced = self.route == "replace"
        is_shown = is_replaced and bool(run.texts_before[-1].get("text"))
        spent = sum(map(sum, server.usages)) + sum(server.usage_before_cut)
        held = {
            f"the task is {run.record.state}: {run.record.status}": run.record.state is TaskState.COMPLETED,
            f"the text is {self.text!r}": self.text == self.expected_text,
            f"{server.generations} generations by {run.routes}": server.generations == 1 + is_replaced,
            f"{run.replaced} replaced artifacts by {run.routes}": run.replaced if is_shown else is_replaced or not run.replaced,
            f"the usage is {run.facts.get('usage')}, the server reported {spent}": self._usage() == spent,
            f"{len(run.routes)} continuations": len(run.routes) <= 2,
        }  # fmt: skip
        if server.call:
            calls = [call["arguments"] for call in run.calls]
            arguments = {text for name, text in run.texts.items() if name.startswith("tool-call") and text}
            held |= {
                f"the tool ran with {self.ran}": self.ran == [("Zürich", 3)],
                f"the calls are {calls}": calls == [{"city": "Zürich", "days": 3}],
                f"the arguments are {arguments}": arguments <= {ARGUMENTS},
                f"the texts are {run.texts}": run.texts.get("text-round-2") == "Done.",
            }
        where = f"{server.kind}, {server.ending} at byte {server.cut} of {server.pieces}{' and a call' * server.call}"
        return [f"{where}: {fault}" for fault, holds in held.items() if not holds]

    def _usage(self) -> int:
        """The usage of all attempts of the turn."""
        total = self.run.facts.get("usage", {}).get("totalTokens", 0)
        if not self.run.routes or self.server.call:  # the second round has a usage of its own
            return total
        named = [each["usage"] for each in self.run.facts["attempts"] if "usage" in each]
        attempts = sum(each["inputTokens"] + each["outputTokens"] for each in named)
        return total if total == attempts else -1


async def cut_response(kind: str, chance: random.Random, *, call: bool) -> CutResponse:
    """Cut a random response of a server at a random byte, and read it to its end.

    Args:
        kind: The kind of the server, a key of `support.continuing.FORMAT_OF`.
        chance: Chooses the text, the byte and the failure.
        call: Whether the response ends with a tool call.
    """
    pieces = ["Water", *(chance.choice(_ALPHABET) for _ in range(chance.randint(5, 40))), "end"]
    server = ContinuingServer(kind, pieces, call=call)
    server.cut = chance.randrange(len(server.first_body))
    server.ending = chance.choice(_ENDINGS)
    ran, weather = counted_weather()
    run = Run()
    async with ScriptedUpstream(server.respond, lists_models=True) as upstream:
        model = server.model(upstream, read_timeout=_SILENCE if server.ending == "silence" else 20.0)
        agent = Agent(model, tools=[weather] if call else [], continuation=PROMPT)
        with anyio.fail_after(20):
            await run.drive(agent)
    return CutResponse(server, run, ran)

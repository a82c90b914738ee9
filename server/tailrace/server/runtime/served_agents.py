"""The agents of a server. Each message is for one of them, which its turn uses: its handler and its filters.

A server for one agent has an agent without a name. The name of any other agent is in the metadata of each message for it, so
that the agent is still known when the server recovers a task. Agents can be replaced while turns run (`ServedAgents.replace`).
"""

from collections.abc import AsyncGenerator, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup, TaskStatus

from tailrace.server.runtime.handlers import Handler
from tailrace.server.runtime.input_filter import InputFilter
from tailrace.server.runtime.stream_filter import StreamFilter
from tailrace.streaming.a2a.errors import UnsupportedOperationError
from tailrace.streaming.a2a.models import Message
from tailrace.streaming.a2a.stream_extension import extension_metadata


class UnknownAgentError(UnsupportedOperationError):
    """A message is for an agent that the server no longer has."""


@dataclass(frozen=True, eq=False)
class ServedAgent:
    """An agent of a server.

    Attributes:
        handler: Runs the turns.
        name: The name in messages; empty for the only agent of a server.
        filters: Applied to the updates of the handler, in order.
        input_filters: A message of a caller is refused if one of them changes or blocks a part of it.
        provider: The provider of the model that the handler calls; empty if it is not known.
        model: The name of this model; empty if it is not known.
    """

    handler: Handler
    name: str = ""
    filters: tuple[StreamFilter, ...] = ()
    input_filters: tuple[StreamFilter, ...] = ()
    provider: str = ""
    model: str = ""


@dataclass(eq=False)
class _Use:
    """An agent with the number of its turns.

    Attributes:
        agent: The agent.
        turns: Turns that run now.
        is_replaced: No further turns begin.
        unused: Set when the agent is replaced, and the last turn has ended.
    """

    agent: ServedAgent
    turns: int = 0
    is_replaced: bool = False
    unused: anyio.Event = field(default_factory=anyio.Event)

    def release(self) -> None:
        if self.is_replaced and not self.turns:
            self.unused.set()


class ServedAgents:
    """The agents of a server, by name.

    Args:
        agents: The agents.
    """

    def __init__(self, agents: Iterable[ServedAgent]) -> None:
        self._uses = {agent.name: _Use(agent) for agent in agents}
        self._group: TaskGroup | None = None

    @classmethod
    def of(cls, agents: "Handler | ServedAgents") -> "ServedAgents":
        """Return the agents, or the only agent with a handler."""
        return agents if isinstance(agents, ServedAgents) else cls([ServedAgent(agents)])

    def find(self, name: str) -> ServedAgent:
        """Return an agent.

        Raises:
            UnknownAgentError: There is no such agent.
        """
        return self._use(name).agent

    def _use(self, name: str) -> _Use:
        use = self._uses.get(name)
        if use is None:
            raise UnknownAgentError(
                f"this server has no agent {name!r} any more; send the message to another agent"
                if name
                else "this server has several agents now, and the task is of none of them; send the message to one of them"
            )
        return use

    def input_filter(self, name: str) -> InputFilter:
        """Return the filter of messages for an agent; with the filters of all agents if the name is empty.

        Raises:
            UnknownAgentError: There is no such agent.
        """
        agents = [self.find(name)] if name else [use.agent for use in self._uses.values()]
        return InputFilter(tuple(each for agent in agents for each in agent.input_filters))

    @contextmanager
    def turn(self, message: Message) -> Generator[ServedAgent]:
        """Return the agent of a message, whose turn is the block. A replaced agent has its resources until then.

        Raises:
            UnknownAgentError: There is no such agent.
        """
        use = self._use(agent_name_of(message))
        use.turns += 1
        try:
            yield use.agent
        finally:
            use.turns -= 1
            use.release()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Hold the resources of all handlers while the block runs, which contains all turns.

        Raises:
            TailraceError: A resource is not available.
        """
        async with anyio.create_task_group() as self._group:
            try:
                for use in self._uses.values():
                    await self._group.start(_run, use)
                yield
            finally:
                for use in self._uses.values():
                    use.unused.set()
                self._group = None

    async def replace(self, agents: Iterable[ServedAgent]) -> None:
        """Replace the agents. Turns that have begun end with their agent; an agent that is in both sets is not touched.

        Raises:
            TailraceError: A resource of a new agent is not available. Nothing is replaced then.
        """
        assert self._group is not None  # noqa: S101 — the server runs
        current = {use.agent: use for use in self._uses.values()}
        uses = {agent.name: current.get(agent) or _Use(agent) for agent in agents}
        new = [use for use in uses.values() if use.agent not in current]
        try:
            for use in new:
                await self._group.start(_run, use)
        except BaseException:
            for use in new:
                use.unused.set()
            raise
        before, self._uses = self._uses, uses
        for use in before.values():
            if uses.get(use.agent.name) is not use:
                use.is_replaced = True
                use.release()


async def _run(use: _Use, *, task_status: TaskStatus[None]) -> None:
    """Hold the resources of a handler until it is unused. A handler enters and leaves its scopes in one asyncio task."""
    async with use.agent.handler.running():
        task_status.started()
        await use.unused.wait()


def agent_name_of(message: Message) -> str:
    """Return the name of the agent that a message is for; empty for the only agent of a server."""
    name = extension_metadata(message.metadata).get("agent", "")
    return name if isinstance(name, str) else ""

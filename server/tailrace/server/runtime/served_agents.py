"""The agents of a server. Each message is for one agent.

The turn of the message uses the handler and the filters of this agent. An agent only receives content that its card and its input
filters accept (`ServedAgents.check`). If the resources of an agent fail while the server runs, the server acquires them again.
Until this succeeds, messages to the agent are refused.

With several agents, the metadata of each message has the name of its agent, so that recovery can find the agent.
"""

import logging
import math
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.abc import TaskGroup, TaskStatus

from tailrace.server.runtime.agent_capabilities import Capabilities
from tailrace.server.runtime.handlers import Handler
from tailrace.server.runtime.input_filter import InputFilter
from tailrace.server.runtime.limits import OverloadedError
from tailrace.server.runtime.stream_filter import StreamFilter
from tailrace.streaming.a2a.errors import UnsupportedOperationError
from tailrace.streaming.a2a.models import Message, Role
from tailrace.streaming.a2a.stream_extension import extension_metadata
from tailrace.streaming.agent.caller_options import CallerOptions
from tailrace.streaming.conversion.message_conversion import is_callers
from tailrace.wrappers import TailraceError

logger = logging.getLogger("tailrace.server")

RETRY_DELAY = 1.0
"""Initial delay in seconds before failed resources of an agent are acquired again. The delay doubles after each failure."""

MAX_RETRY_DELAY = 60.0
"""Maximum delay in seconds."""

RELEASE_TIMEOUT = 2.0
"""Minimum time in seconds for the release of all resources when the server stops."""


class UnknownAgentError(UnsupportedOperationError):
    """A message names an agent that the server does not have."""


@dataclass(frozen=True, eq=False)
class ServedAgent:
    """An agent of a server.

    Attributes:
        name: The name in messages; empty if the server has only one agent.
        filters: Filters for the updates of the handler, in the order in which they are applied.
        input_filters: Filters for callers' messages. A message is refused if a filter would change or block a part of it.
        capabilities: The capabilities and requirements of the agent.
        provider: The provider of the model that the handler calls; empty if unknown.
        model: The name of this model; empty if unknown.
        start_error: Returns the error to raise if a resource of the handler is not available.
    """

    handler: Handler
    name: str = ""
    filters: tuple[StreamFilter, ...] = ()
    input_filters: tuple[StreamFilter, ...] = ()
    capabilities: Capabilities = field(default_factory=Capabilities)
    provider: str = ""
    model: str = ""
    start_error: Callable[[TailraceError], TailraceError] = lambda error: error

    async def stream_filters(self, options: CallerOptions) -> tuple[StreamFilter, ...]:
        """Return the filters for the updates of a turn with these options."""
        found = [await each.for_request(options) for each in self.filters]
        return tuple(each for each in found if each is not None)


@dataclass(eq=False)
class _AgentLease:
    """An agent, and its running turns.

    Attributes:
        is_replaced: True if no further turns begin.
        holds_resources: True while the resources of the agent are available.
        unused: Set when the resources of the agent can be released.
    """

    agent: ServedAgent
    turns: int = 0
    is_replaced: bool = False
    holds_resources: bool = False
    unused: anyio.Event = field(default_factory=anyio.Event)

    def release_if_unused(self) -> None:
        if self.is_replaced and not self.turns:
            self.unused.set()

    async def hold(self, *, task_status: TaskStatus[None]) -> None:
        """Hold the resources of the agent until it is unused. Acquire failed resources again after a delay.

        A handler must exit its cancel scopes in the asyncio task that entered them, so this runs in a separate asyncio task.

        Raises:
            BaseException: The resources cannot be acquired at the start.
        """
        agent, delay, has_started = self.agent, RETRY_DELAY, False
        try:
            while not self.unused.is_set():
                try:
                    async with agent.handler.running():
                        if not has_started:
                            task_status.started()
                        has_started = self.holds_resources = True
                        await self.unused.wait()
                except BaseException as error:
                    if not has_started or not _is_fault(error):
                        raise
                    if isinstance(error, TailraceError):
                        reason = agent.start_error(error)
                        logger.error("the resources of the agent %r failed: %s", agent.name, reason)
                    else:
                        logger.exception("the resources of the agent %r failed", agent.name)
                self.holds_resources = False
                with anyio.move_on_after(delay):
                    await self.unused.wait()
                delay = min(2 * delay, MAX_RETRY_DELAY)
        finally:
            self.holds_resources = False
            with anyio.move_on_after(RELEASE_TIMEOUT, shield=True):
                for each in dict.fromkeys((*agent.filters, *agent.input_filters)):
                    await each.aclose()


class ServedAgents:
    """The agents of a server, by name.

    Attributes:
        release_deadline: Time on the clock of `anyio.current_time` at which `running` stops waiting for the release of resources.
            It always waits at least `RELEASE_TIMEOUT` seconds.
    """

    def __init__(self, agents: Iterable[ServedAgent]) -> None:
        self._leases = {agent.name: _AgentLease(agent) for agent in agents}
        self._group: TaskGroup | None = None
        self.release_deadline = -math.inf

    @classmethod
    def from_handler(cls, agents: "Handler | ServedAgents") -> "ServedAgents":
        """Return ``agents``, or wrap a handler as the only agent."""
        return agents if isinstance(agents, ServedAgents) else cls([ServedAgent(agents)])

    def find(self, name: str) -> ServedAgent:
        """Return an agent.

        Raises:
            UnknownAgentError: There is no such agent.
        """
        return self._lease(name).agent

    @property
    def failed(self) -> list[ServedAgent]:
        """The agents whose resources have failed."""
        running = self._leases.values() if self._group is not None else ()
        return [lease.agent for lease in running if not lease.holds_resources]

    def check_available(self, name: str) -> None:
        """Check that the resources of an agent are available.

        Raises:
            UnknownAgentError: There is no such agent.
            OverloadedError: The resources have failed.
        """
        if self.find(name) in self.failed:
            raise OverloadedError(
                "the resources of the agent failed (see the log of the server); send the message again later"
            )

    def _lease(self, name: str) -> _AgentLease:
        lease = self._leases.get(name)
        if lease is None:
            raise UnknownAgentError(
                f"this server has no agent {name!r} any more; send the message to another agent"
                if name
                else "the message is of a time when this server had one agent; send a new message to one of its agents"
            )
        return lease

    async def check(
        self, name: str, messages: Sequence[Message], metadata: dict[str, Any], record: str = ""
    ) -> None:
        """Check the media types of messages to an agent, then all parts of the request with the input filters.

        Args:
            name: The name of the agent. If it is empty, each agent may receive the content. Then the filters of all agents apply,
                and media types are checked only if the server has one agent (see `check_conversation`).
            messages: The message of the request and the earlier messages in the request.
            metadata: As for `InputFilter.check`.
            record: As for `InputFilter.check`.

        Raises:
            UnknownAgentError: There is no such agent.
            ContentTypeNotSupportedError: The agent does not accept the media type of a caller's message.
            BlockedMessageError: An input filter would change or block a part of the request.
            InternalError: An input filter failed.
        """
        agents = [self.find(name)] if name else [lease.agent for lease in self._leases.values()]
        if len(agents) == 1:
            for message in filter(is_callers, messages):
                agents[0].capabilities.check_message(message)
        await InputFilter(tuple(each for agent in agents for each in agent.input_filters)).check(
            messages, metadata, record
        )

    def restricts_content(self, name: str) -> bool:
        """Return whether an agent refuses some content. If so, call `check_conversation`.

        Raises:
            UnknownAgentError: There is no such agent.
        """
        agent = self.find(name)
        return bool(agent.input_filters or agent.capabilities.input_modes)

    async def check_conversation(self, name: str, messages: Sequence[Message]) -> None:
        """Check messages of a conversation that other agents received or sent.

        Args:
            name: The name of the agent that is about to receive the conversation.
            messages: The messages in the order of their turns.

        Raises:
            A2AError: As for `check`.
        """
        others = list(_messages_of_others(messages, name))
        if others:
            await self.check(name, others, {})

    @contextmanager
    def turn(self, message: Message) -> Generator[ServedAgent]:
        """Reserve the agent of a message for its turn, which runs in the block.

        If the agent is replaced, its resources are released after the block.

        Raises:
            UnknownAgentError: There is no such agent.
            OverloadedError: The resources of the agent have failed.
        """
        lease = self._lease(agent_name_of(message))
        self.check_available(lease.agent.name)
        lease.turns += 1
        try:
            yield lease.agent
        finally:
            lease.turns -= 1
            lease.release_if_unused()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Hold the resources of all handlers until the block ends. All turns run in the block.

        Resources that are not released at `release_deadline` are abandoned with a logged error.

        Raises:
            TailraceError: A resource is not available.
        """
        async with anyio.create_task_group() as group:
            self._group = group
            try:
                for lease in self._leases.values():
                    await self._start(lease)
                yield
            finally:
                for lease in self._leases.values():
                    lease.unused.set()
                self._group = None
                earliest = anyio.current_time() + RELEASE_TIMEOUT
                group.cancel_scope.deadline = max(self.release_deadline, earliest)
        if group.cancel_scope.cancelled_caught:
            logger.error("the resources of some agents were not released in time")

    async def _start(self, lease: _AgentLease) -> None:
        assert self._group is not None  # noqa: S101 — the server runs
        lease.unused = anyio.Event()  # a new event, because a server may run several times
        try:
            await self._group.start(lease.hold)
        except TailraceError as error:
            raise lease.agent.start_error(error) from error

    async def replace(self, agents: Iterable[ServedAgent]) -> None:
        """Replace the agents. Running turns complete with the agents with which they began.

        An agent that remains keeps its resources.

        Raises:
            TailraceError: A resource of a new agent is not available. No agent is replaced.
        """
        current = {lease.agent: lease for lease in self._leases.values()}
        leases = {agent.name: current.get(agent) or _AgentLease(agent) for agent in agents}
        new = [lease for lease in leases.values() if lease.agent not in current]
        try:
            for lease in new:
                await self._start(lease)
        except BaseException:
            for lease in new:
                lease.unused.set()
            raise
        before, self._leases = self._leases, leases
        for lease in before.values():
            if leases.get(lease.agent.name) is not lease:
                lease.is_replaced = True
                lease.release_if_unused()


def _is_fault(error: BaseException) -> bool:
    """Return whether resources failed. A cancellation of the engine or a request to exit is not a failure."""
    if isinstance(error, anyio.get_cancelled_exc_class()):
        return anyio.current_effective_deadline() != -math.inf
    return isinstance(error, Exception)


def _messages_of_others(messages: Iterable[Message], name: str) -> Generator[Message]:
    """Yield the messages to other agents, and their responses."""
    agent = ""
    for message in messages:
        if is_callers(message):
            agent = agent_name_of(message)
        if agent != name:
            yield message


def is_for_other_agent(messages: Sequence[Message]) -> bool:
    """Return whether the last message is from the caller, and for another agent than the last response."""
    if len(messages) < 2 or not is_callers(messages[-1]):
        return False
    response = next((at for at in reversed(range(len(messages))) if messages[at].role is Role.AGENT), 0)
    request = next((each for each in reversed(messages[:response]) if is_callers(each)), None)
    # Messages that the caller sent as the beginning of a new conversation have no agent.
    agent = agent_name_of(request) if request is not None else ""
    return bool(agent) and agent != agent_name_of(messages[-1])


def agent_name_of(message: Message) -> str:
    """Return the name of the agent of a message; empty if the server has only one agent."""
    name = extension_metadata(message.metadata).get("agent", "")
    return name if isinstance(name, str) else ""

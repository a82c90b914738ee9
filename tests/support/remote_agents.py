"""Third-party agents: servers made with the official SDK."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from copy import deepcopy

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes, create_rest_routes
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Message,
    Part,
    Role,
    Task,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from starlette.applications import Starlette

from support.live_server import serving


def sdk_card(binding: str = "JSONRPC", version: str = "1.0", *, streaming: bool = True) -> AgentCard:
    """The card of an agent made with the SDK, one path segment below its base URL."""
    url = "rpc" if binding == "JSONRPC" else "rest"
    return AgentCard(
        name="Their agent",
        description="Made with the SDK.",
        version="1",
        supported_interfaces=[
            AgentInterface(url=f"/{url}", protocol_binding=binding, protocol_version=version)
        ],
        capabilities=AgentCapabilities(streaming=streaming),
        default_input_modes=["text"],
        default_output_modes=["text/plain", "image/png"],
        skills=[AgentSkill(id="s", name="Talking", description="Says it back.", tags=["t"])],
    )


@asynccontextmanager
async def sdk_agent(executor: AgentExecutor, card: AgentCard | None = None) -> AsyncGenerator[str]:
    """Serve an executor with the SDK's own handler and routes until the block ends. Yield the URL."""
    card = card or sdk_card()
    handler = DefaultRequestHandler(agent_executor=executor, task_store=InMemoryTaskStore(), agent_card=card)
    routes = [
        *create_agent_card_routes(card),
        *create_jsonrpc_routes(handler, "/rpc", enable_v0_3_compat=True),
        *create_rest_routes(handler, path_prefix="/rest", enable_v0_3_compat=True),
    ]
    try:
        async with serving(Starlette(routes=routes)) as url:
            yield url
    finally:
        await handler.aclose()


class Saying(AgentExecutor):
    """Responds with statuses or messages of a test, without artifacts.

    Args:
        events: The events published for each message, in order; ids are filled in.
    """

    def __init__(self, *events: TaskStatusUpdateEvent | Message) -> None:
        self._events: Sequence[TaskStatusUpdateEvent | Message] = events
        self.contexts: list[RequestContext] = []

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.contexts.append(context)
        ids = {"task_id": context.task_id or "", "context_id": context.context_id or ""}
        if context.current_task is None and isinstance(self._events[0], TaskStatusUpdateEvent):
            status = TaskStatus(state=TaskState.TASK_STATE_SUBMITTED)
            await event_queue.enqueue_event(
                Task(id=ids["task_id"], context_id=ids["context_id"], status=status)
            )
        for event in self._events:
            copy = deepcopy(event)
            if isinstance(copy, TaskStatusUpdateEvent):
                copy.task_id = ids["task_id"]
            copy.context_id = ids["context_id"]
            await event_queue.enqueue_event(copy)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        raise NotImplementedError


def says(state: str, text: str = "") -> TaskStatusUpdateEvent:
    """A status (``completed``, …), with a message if there is text."""
    status = TaskStatus(state=f"TASK_STATE_{state.upper()}")
    if text:
        status.message.CopyFrom(agent_says(text))
    return TaskStatusUpdateEvent(status=status)


def agent_says(text: str) -> Message:
    """A message of the agent."""
    return Message(message_id="said", role=Role.ROLE_AGENT, parts=[Part(text=text)])

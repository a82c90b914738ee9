"""The converters of tailrace in a server of the official SDK. The SDK manages the tasks, and your code calls the provider.

    pip install 'tailrace[sdk]'
    OPENAI_API_KEY=… uvicorn --app-dir examples sdk_server:app
    tailrace ask http://127.0.0.1:8000 "Name a river."

`AgentExecutor` (docs/sdk.md) is a shorter way to serve a model as an agent in such a server.
"""

from collections.abc import Iterable
from typing import Any

from a2a.helpers import new_task_from_user_message, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from openai import AsyncOpenAI
from starlette.applications import Starlette

from tailrace.server.sdk import from_sdk
from tailrace.streaming import Accumulator, convert_a2a_message_to_openai
from tailrace.streaming.a2a import Message
from tailrace.wrappers import Change, Channel
from tailrace.wrappers.openai import wrap_chunk


class ChatExecutor(AgentExecutor):
    """Streams the text of a model's response as one artifact. The accumulator also has the reasoning, the usage and the error."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Respond to one message."""
        assert context.message is not None
        task = context.current_task
        if task is None:
            task = new_task_from_user_message(context.message)
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()

        message, tool_results = convert_a2a_message_to_openai(from_sdk(context.message, Message))
        messages: list[Any] = [*tool_results, *([message] if message else [])]
        answer = Accumulator()
        has_begun = False

        async def show(changes: Iterable[Change]) -> None:
            nonlocal has_begun
            for change in changes:
                if change.channel is Channel.TEXT:
                    part = new_text_part(change.text)
                    await updater.add_artifact([part], artifact_id="text", append=has_begun)
                    has_begun = True

        async with AsyncOpenAI() as client:
            stream = await client.chat.completions.create(model="gpt-5-mini", messages=messages, stream=True)
            async for chunk in stream:
                for wrapper in wrap_chunk(chunk):
                    await show(answer.add(wrapper))
        await show(answer.close())
        if answer.error is not None:  # the stream was interrupted, or the provider reported an error in it
            await updater.failed(new_text_message(str(answer.error)))
        else:
            await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Set the state to canceled. The SDK has already stopped `execute`."""
        assert context.task_id is not None
        assert context.context_id is not None
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


URL = "http://127.0.0.1:8000/"

card = AgentCard(
    name="Chat",
    description="A model behind the SDK's own server.",
    version="1",
    supported_interfaces=[AgentInterface(url=URL, protocol_binding="JSONRPC", protocol_version="1.0")],
    capabilities=AgentCapabilities(streaming=True),
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    skills=[AgentSkill(id="chat", name="Chat", description="Answers.", tags=["chat"])],
)
handler = DefaultRequestHandler(
    agent_executor=ChatExecutor(), task_store=InMemoryTaskStore(), agent_card=card
)
app = Starlette(routes=[*create_agent_card_routes(card), *create_jsonrpc_routes(handler, "/")])

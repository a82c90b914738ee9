"""The server of the official A2A SDK. Its executor uses the openai package."""

import argparse
from importlib import import_module
from typing import Any

# Installed in its own environment, which the type checker does not see.
sdk_agent: Any = import_module("a2a.server.agent_execution")
sdk_handlers: Any = import_module("a2a.server.request_handlers")
sdk_routes: Any = import_module("a2a.server.routes")
sdk_tasks: Any = import_module("a2a.server.tasks")
sdk_types: Any = import_module("a2a.types")
openai: Any = import_module("openai")
starlette: Any = import_module("starlette.applications")
uvicorn: Any = import_module("uvicorn")


class ChatExecutor(sdk_agent.AgentExecutor):
    """Sends one model request per message."""

    def __init__(self, base_url: str) -> None:
        self._client = openai.AsyncOpenAI(base_url=base_url, api_key="none")

    async def execute(self, context: Any, event_queue: Any) -> None:
        """Respond to one message."""
        if context.current_task is None:
            status = sdk_types.TaskStatus(state=sdk_types.TaskState.TASK_STATE_SUBMITTED)
            task = sdk_types.Task(
                id=context.task_id, context_id=context.context_id, status=status, history=[context.message]
            )
            await event_queue.enqueue_event(task)
        updater = sdk_tasks.TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.start_work()
        stream = await self._client.chat.completions.create(
            model="gpt-4o",
            messages=[{"role": "user", "content": context.get_user_input()}],
            stream=True,
            stream_options={"include_usage": True},
        )
        begun = False
        async for chunk in stream:
            text = chunk.choices[0].delta.content if chunk.choices else None
            if text:
                await updater.add_artifact(
                    [sdk_types.Part(text=text)], artifact_id="answer", name="Answer", append=begun
                )
                begun = True
        await updater.complete()

    async def cancel(self, context: Any, event_queue: Any) -> None:
        """Not used in these measurements."""
        await sdk_tasks.TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def make_app(base_url: str, database: str | None) -> Any:
    """Create the application, with tasks in memory, or in a database with SQLAlchemy."""
    if database is None:
        store = sdk_tasks.InMemoryTaskStore()
    else:
        sqlalchemy: Any = import_module("sqlalchemy.ext.asyncio")
        store = sdk_tasks.DatabaseTaskStore(sqlalchemy.create_async_engine(database))
    interface = sdk_types.AgentInterface(
        url="http://127.0.0.1/", protocol_binding="JSONRPC", protocol_version="1.0"
    )
    card = sdk_types.AgentCard(
        name="bench",
        description="A model.",
        version="1",
        supported_interfaces=[interface],
        capabilities=sdk_types.AgentCapabilities(streaming=True),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
    )
    handler = sdk_handlers.DefaultRequestHandler(
        agent_executor=ChatExecutor(base_url), task_store=store, agent_card=card
    )
    return starlette.Starlette(
        routes=[
            *sdk_routes.create_agent_card_routes(card),
            *sdk_routes.create_jsonrpc_routes(handler, rpc_url="/"),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--database", help="sqlite+aiosqlite:///FILE (default: in memory)")
    arguments = parser.parse_args()
    app = make_app(arguments.base_url, arguments.database)
    uvicorn.run(app, host="127.0.0.1", port=arguments.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()

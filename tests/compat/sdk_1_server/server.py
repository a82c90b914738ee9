"""An agent made with a2a-sdk 1.x as its samples are: a streaming model behind an `AgentExecutor` and a `TaskUpdater`."""

import base64
import sys
from importlib import import_module
from typing import Any

port, public, base_url, _folder = sys.argv[1:]

# Installed in an environment of its own.
execution: Any = import_module("a2a.server.agent_execution")
handlers: Any = import_module("a2a.server.request_handlers")
routes: Any = import_module("a2a.server.routes")
tasks: Any = import_module("a2a.server.tasks")
types: Any = import_module("a2a.types")
json_format: Any = import_module("google.protobuf.json_format")
openai: Any = import_module("openai")
applications: Any = import_module("starlette.applications")
uvicorn: Any = import_module("uvicorn")


def item(part: Any) -> dict[str, Any]:
    """Return a part as content of a chat request."""
    if part.raw:
        url = f"data:{part.media_type};base64,{base64.b64encode(part.raw).decode()}"
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "text", "text": part.text}


class Executor(execution.AgentExecutor):  # type: ignore[misc]
    """Streams the model's text as an artifact; keeps the conversation by context."""

    def __init__(self) -> None:
        self._model = openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0)
        self._conversations: dict[str, list[Any]] = {}

    async def execute(self, context: Any, event_queue: Any) -> None:
        if context.current_task is None:
            status = types.TaskStatus(state=types.TaskState.TASK_STATE_SUBMITTED)
            task = types.Task(
                id=context.task_id, context_id=context.context_id, status=status, history=[context.message]
            )
            await event_queue.enqueue_event(task)
        updater = tasks.TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.start_work()
        messages = self._conversations.setdefault(context.context_id, [])
        messages.append({"role": "user", "content": [item(part) for part in context.message.parts]})
        try:
            stream = await self._model.chat.completions.create(model="m", messages=messages, stream=True)
        except openai.APIError as error:
            await updater.failed(updater.new_agent_message([types.Part(text=str(error))]))
            return
        text, question = "", ""
        async for chunk in stream:
            for choice in chunk.choices:
                calls: list[Any] = choice.delta.tool_calls or []
                question += "".join(call.function.arguments for call in calls)
                if not choice.delta.content:
                    continue
                await updater.add_artifact(
                    [types.Part(text=choice.delta.content)],
                    artifact_id=f"answer-{len(messages)}",
                    append=bool(text),
                    last_chunk=False,
                )
                text += choice.delta.content
        messages.append({"role": "assistant", "content": text or question})
        if question:
            await updater.requires_input(updater.new_agent_message([types.Part(text=question)]))
        else:
            await updater.complete()

    async def cancel(self, context: Any, event_queue: Any) -> None:
        await tasks.TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


card = json_format.ParseDict(
    {
        "name": "SDK 1",
        "description": "Answers.",
        "version": "1",
        "supportedInterfaces": [
            {"url": f"{public}/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        ],
        "capabilities": {"streaming": True},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "s", "name": "Answer", "description": "Answers.", "tags": ["t"]}],
    },
    types.AgentCard(),
)
handler = handlers.DefaultRequestHandler(
    agent_executor=Executor(), task_store=tasks.InMemoryTaskStore(), agent_card=card
)
app = applications.Starlette(
    routes=[*routes.create_agent_card_routes(card), *routes.create_jsonrpc_routes(handler, "/rpc")]
)
uvicorn.run(app, host="127.0.0.1", port=int(port))

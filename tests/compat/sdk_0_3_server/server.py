"""An agent made with a2a-sdk 0.3 as its samples are: a streaming model behind an `AgentExecutor` and a `TaskUpdater`."""

import sys
from importlib import import_module
from typing import Any

port, public, base_url, _folder = sys.argv[1:]

# Installed in an environment of its own.
execution: Any = import_module("a2a.server.agent_execution")
apps: Any = import_module("a2a.server.apps")
handlers: Any = import_module("a2a.server.request_handlers")
tasks: Any = import_module("a2a.server.tasks")
types: Any = import_module("a2a.types")
utils: Any = import_module("a2a.utils")
openai: Any = import_module("openai")
uvicorn: Any = import_module("uvicorn")


def item(part: Any) -> dict[str, Any]:
    """Return a part as content of a chat request."""
    if part.root.kind == "file":
        file = part.root.file
        return {
            "type": "image_url",
            "image_url": {"url": f"data:{file.mime_type};base64,{file.bytes}"},
        }
    return {"type": "text", "text": part.root.text}


def text_part(text: str) -> Any:
    return types.Part(root=types.TextPart(text=text))


class Executor(execution.AgentExecutor):  # type: ignore[misc]
    """Streams the model's text as an artifact; keeps the conversation by context."""

    def __init__(self) -> None:
        self._model = openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0)
        self._conversations: dict[str, list[Any]] = {}

    async def execute(self, context: Any, event_queue: Any) -> None:
        if context.current_task is None:
            await event_queue.enqueue_event(utils.new_task(context.message))
        updater = tasks.TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.start_work()
        messages = self._conversations.setdefault(context.context_id, [])
        messages.append({"role": "user", "content": [item(part) for part in context.message.parts]})
        try:
            stream = await self._model.chat.completions.create(model="m", messages=messages, stream=True)
        except openai.APIError as error:
            await updater.failed(updater.new_agent_message([text_part(str(error))]))
            return
        text, question = "", ""
        async for chunk in stream:
            for choice in chunk.choices:
                calls: list[Any] = choice.delta.tool_calls or []
                question += "".join(call.function.arguments for call in calls)
                if not choice.delta.content:
                    continue
                await updater.add_artifact(
                    [text_part(choice.delta.content)],
                    artifact_id=f"answer-{len(messages)}",
                    append=bool(text),
                    last_chunk=False,
                )
                text += choice.delta.content
        messages.append({"role": "assistant", "content": text or question})
        if question:
            message = updater.new_agent_message([text_part(question)])
            await updater.update_status(types.TaskState.input_required, message, final=True)
        else:
            await updater.complete()

    async def cancel(self, context: Any, event_queue: Any) -> None:
        await tasks.TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


card = types.AgentCard(
    name="SDK 0.3",
    description="Answers.",
    version="1",
    url=f"{public}/",
    capabilities=types.AgentCapabilities(streaming=True),
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    skills=[types.AgentSkill(id="s", name="Answer", description="Answers.", tags=["t"])],
)
handler = handlers.DefaultRequestHandler(agent_executor=Executor(), task_store=tasks.InMemoryTaskStore())
uvicorn.run(apps.A2AStarletteApplication(card, handler).build(), host="127.0.0.1", port=int(port))

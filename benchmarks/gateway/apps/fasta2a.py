"""fasta2a with its own in-memory storage and broker."""

import argparse
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any

# Installed in its own environment, which the type checker does not see.
fasta2a: Any = import_module("fasta2a")
fasta2a_broker: Any = import_module("fasta2a.broker")
fasta2a_storage: Any = import_module("fasta2a.storage")
fasta2a_worker: Any = import_module("fasta2a.worker")
openai: Any = import_module("openai")
uvicorn: Any = import_module("uvicorn")


class ChatWorker(fasta2a_worker.Worker):
    """Sends one model request per task."""

    async def run_task(self, params: Any) -> None:
        """Respond to one message."""
        task_id, context_id = params["id"], params["context_id"]
        await self.storage.update_task(task_id, state="working")
        await self.publish_status(task_id, context_id, "working")
        prompt = "".join(part.get("text", "") for part in params["message"]["parts"])
        stream = await client().chat.completions.create(
            model="gpt-4o",
            messages=[{"role": "user", "content": prompt}],
            stream=True,
            stream_options={"include_usage": True},
        )
        texts: list[str] = []
        async for chunk in stream:
            text = chunk.choices[0].delta.content if chunk.choices else None
            if text:
                piece = {"artifact_id": "answer", "parts": [{"text": text}]}
                await self.publish_artifact(task_id, context_id, piece, append=bool(texts), last_chunk=False)
                texts.append(text)
        whole = {"artifact_id": "answer", "parts": [{"text": "".join(texts)}]}
        await self.storage.update_task(task_id, state="completed", new_artifacts=[whole])

    async def cancel_task(self, params: Any) -> None:
        """Not used in these measurements."""

    def build_message_history(self, history: list[Any]) -> list[Any]:
        """Not needed: there is one message."""
        return history

    def build_artifacts(self, result: Any) -> list[Any]:
        """Not needed: `run_task` builds them."""
        return []


_CLIENTS: list[Any] = []


def client() -> Any:
    return _CLIENTS[0]


def make_app(base_url: str) -> Any:
    _CLIENTS.append(openai.AsyncOpenAI(base_url=base_url, api_key="none"))
    storage, broker = fasta2a_storage.InMemoryStorage(), fasta2a_broker.InMemoryBroker()
    worker = ChatWorker(broker=broker, storage=storage)

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncGenerator[None]:
        async with app.task_manager, worker.run():
            yield

    return fasta2a.FastA2A(storage=storage, broker=broker, lifespan=lifespan)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--base-url", required=True)
    arguments = parser.parse_args()
    app = make_app(arguments.base_url)
    uvicorn.run(app, host="127.0.0.1", port=arguments.port, log_level="warning", access_log=False)


if __name__ == "__main__":
    main()

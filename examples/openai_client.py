"""The openai package as a client: it works with any agent of a tailrace server, without knowledge of A2A.

tailrace demo
python examples/openai_client.py http://127.0.0.1:8000/v1
"""

import asyncio
import sys
from uuid import uuid4

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam


async def main(base_url: str) -> None:
    """Ask two questions, the second one about the first."""
    messages: list[ChatCompletionMessageParam] = []
    # Optional: without this header, each question is a separate conversation at the server.
    headers = {"X-Conversation-Id": str(uuid4())}
    async with AsyncOpenAI(base_url=base_url, api_key="none", default_headers=headers) as client:
        for question in ("Name a river.", "Where is it?"):
            messages.append({"role": "user", "content": question})
            print(">", question)
            text = ""
            async for chunk in await client.chat.completions.create(
                model="tailrace", messages=messages, stream=True
            ):
                piece = chunk.choices[0].delta.content or "" if chunk.choices else ""
                print(piece, end="", flush=True)
                text += piece
            print()
            messages.append({"role": "assistant", "content": text})


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

"""Background responses for a library that waits for complete ones."""

from typing import Any

import anyio


class BackgroundResponses:
    """The Responses API of a client: creates background responses, and polls until they are complete."""

    def __init__(self, responses: Any) -> None:
        self._responses = responses

    async def create(self, **options: Any) -> Any:
        response = await self._responses.create(**options, background=True)
        while response.status in ("queued", "in_progress"):
            await anyio.sleep(0.5)
            response = await self._responses.retrieve(response.id)
        return response

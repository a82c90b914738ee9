"""The address of Vercel's AI SDK: ``useChat`` needs nothing but its URL.

A chat is a conversation of the same id. The AI SDK has no word for stopping an answer, its client just leaves; so a
further address stops it.
"""

from fastapi import APIRouter, Request, Response

from tailrace.server.auth import Authenticator
from tailrace.server.facade.errors import OpenAIError
from tailrace.server.operations import Caller, Operations
from tailrace.server.settings import Settings
from tailrace.server.ui_streams.ai_sdk_encoder import UiMessageEncoder
from tailrace.server.ui_streams.ai_sdk_requests import read_chat_id, read_ui_request
from tailrace.server.ui_streams.delivery import Delivery, respond
from tailrace.streaming.a2a.dialect import Operation
from tailrace.streaming.a2a.errors import TaskNotCancelableError
from tailrace.streaming.a2a.models import Task
from tailrace.streaming.a2a.requests import CancelTaskRequest

_HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}


class AiSdkEndpoint:
    """Answers chats of the AI SDK.

    Args:
        operations: What carries out what they ask.
        settings: Limits and intervals.
        authenticator: Says who asks.
    """

    def __init__(self, operations: Operations, settings: Settings, authenticator: Authenticator) -> None:
        self._delivery = Delivery(operations, settings, authenticator)
        self._operations = operations

    def add_to(self, router: APIRouter) -> None:
        """Put all addresses into a router."""
        stream = "/ai-sdk/{chat_id}/stream"
        for path, endpoint, method in (
            ("/ai-sdk", self._chat, "POST"),
            (stream, self._resume, "GET"),
            (stream, self._stop, "DELETE"),
        ):
            router.add_api_route(
                path, endpoint, methods=[method], include_in_schema=False, response_model=None
            )

    async def _chat(self, request: Request) -> Response:
        async def answer() -> Response:
            caller, body = await self._delivery.read(request)
            chat = read_ui_request(body)
            stream, reader = await self._delivery.send(chat.asked, caller)
            return await self._delivery.answer(
                stream, reader, UiMessageEncoder(chat.message_id), headers=_HEADERS
            )

        return await respond(answer, _refusal)

    async def _resume(self, request: Request) -> Response:
        """The answer that a chat is being given, from its beginning; 204 where there is none."""

        async def answer() -> Response:
            caller = await self._delivery.caller_of(request)
            task = await self._running(request, caller)
            if task is None:
                return Response(status_code=204)
            stream, reader = await self._delivery.follow(task.id, caller)
            return await self._delivery.answer(stream, reader, UiMessageEncoder(), headers=_HEADERS)

        return await respond(answer, _refusal)

    async def _stop(self, request: Request) -> Response:
        """Cancel what a chat is being answered by; 204 also where there is nothing to cancel."""

        async def answer() -> Response:
            caller = await self._delivery.caller_of(request)
            task = await self._running(request, caller)
            if task is not None:
                try:
                    await self._operations.answer(
                        Operation.CANCEL_TASK, CancelTaskRequest(id=task.id), caller
                    )
                except TaskNotCancelableError:
                    pass  # it has come to its end by now
            return Response(status_code=204)

        return await respond(answer, _refusal)

    async def _running(self, request: Request, caller: Caller) -> Task | None:
        key = read_chat_id(request.path_params["chat_id"])
        return await self._delivery.newest_task(key, caller, running=True)


def _refusal(error: OpenAIError) -> Response:
    """Its body is the text that the client shows."""
    return Response(str(error), error.status, headers=error.headers, media_type="text/plain")

"""The routes for Vercel's AI SDK. ``useChat`` needs only the URL ``/ai-sdk``.

The id of a chat is the key of the conversation. The AI SDK defines no request that stops a response, so tailrace adds
``DELETE /ai-sdk/{chat_id}/stream``.
"""

from fastapi import APIRouter, Request, Response

from tailrace.server.auth.authentication import Authenticator
from tailrace.server.protocols.ai_sdk.encoder import UiMessageEncoder
from tailrace.server.protocols.ai_sdk.request import read_chat_id, read_ui_request
from tailrace.server.protocols.ai_sdk.snapshot import ui_messages
from tailrace.server.protocols.chat_endpoint import ChatEndpoint, add_routes, json_response
from tailrace.server.protocols.event_translator import EventTranslator
from tailrace.server.protocols.openai_error import OpenAIError
from tailrace.server.runtime.approvals import waiting_requests
from tailrace.server.runtime.caller import Caller
from tailrace.server.runtime.operations import Operations
from tailrace.server.settings import Settings
from tailrace.streaming.a2a.errors import TaskNotCancelableError
from tailrace.streaming.a2a.json_value_counts import cost_of
from tailrace.streaming.a2a.models import Task
from tailrace.streaming.a2a.requests import CancelTaskRequest
from tailrace.streaming.a2a.version_codec import Operation
from tailrace.wrappers.concurrency.worker_thread import run_bounded

_HEADERS = {"x-vercel-ai-ui-message-stream": "v1"}


class AiSdkEndpoint:
    """Responds to AI SDK requests."""

    def __init__(self, operations: Operations, settings: Settings, authenticator: Authenticator) -> None:
        self._endpoint = ChatEndpoint(operations, settings, authenticator)
        self._operations = operations

    def add_to(self, router: APIRouter) -> None:
        """Add the routes to a router."""
        stream = "/ai-sdk/{chat_id}/stream"
        routes = {
            ("POST", "/ai-sdk"): self._chat,
            ("GET", stream): self._resume,
            ("DELETE", stream): self._stop,
            ("GET", "/ai-sdk/{chat_id}/messages"): self._messages,
        }
        add_routes(router, routes, _text_response)

    async def _chat(self, request: Request) -> Response:
        caller, chat = await self._endpoint.read(request, read_ui_request)
        stream, call_ids = await self._endpoint.send(chat, caller)
        turn = EventTranslator(tools=chat.tool_names, known_ids=call_ids)
        return await self._endpoint.stream(stream, UiMessageEncoder(turn, chat.message_id), _HEADERS)

    async def _resume(self, request: Request) -> Response:
        """Stream the running response of a chat from its beginning, or return 204."""
        task, caller = await self._running_task(request)
        if task is None:
            return Response(status_code=204)
        stream, turn = await self._endpoint.subscribe(task.id, caller)
        return await self._endpoint.stream(stream, UiMessageEncoder(turn), _HEADERS)

    async def _stop(self, request: Request) -> Response:
        task, caller = await self._running_task(request)
        if task is not None:
            try:
                await self._operations.execute(Operation.CANCEL_TASK, CancelTaskRequest(id=task.id), caller)
            except TaskNotCancelableError:
                pass  # the task ended after `_running_task`
        return Response(status_code=204)

    async def _messages(self, request: Request) -> Response:
        caller = await self._endpoint.authenticate(request)
        key = read_chat_id(request.path_params["chat_id"])
        task, stored = await self._endpoint.conversation(key, caller)
        waiting = waiting_requests(task) if task is not None else ()
        return await json_response(await run_bounded(cost_of(stored), ui_messages, stored, waiting))

    async def _running_task(self, request: Request) -> tuple[Task | None, Caller]:
        caller = await self._endpoint.authenticate(request)
        key = read_chat_id(request.path_params["chat_id"])
        return await self._endpoint.newest_task(key, caller, running=True), caller


def _text_response(error: OpenAIError) -> Response:
    """Return an error as plain text, which the client displays."""
    return Response(str(error), error.status, headers=error.headers, media_type="text/plain")

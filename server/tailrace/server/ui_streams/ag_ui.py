"""The address of AG-UI: one request is one run, and its answer a stream of events."""

from fastapi import APIRouter, Request, Response

from tailrace.server.auth import Authenticator
from tailrace.server.facade.endpoints import answer_headers
from tailrace.server.facade.errors import OpenAIError
from tailrace.server.operations import Caller, Operations
from tailrace.server.settings import Settings
from tailrace.server.ui_streams.ag_ui_encoder import AgUiEncoder
from tailrace.server.ui_streams.ag_ui_requests import RunRequest, read_run_request
from tailrace.server.ui_streams.ag_ui_snapshot import before_answer, joined, snapshot
from tailrace.server.ui_streams.delivery import Delivery, respond


class AgUiEndpoint:
    """Answers runs of AG-UI.

    Args:
        operations: What carries out what they ask.
        settings: Limits and intervals.
        authenticator: Says who asks.
    """

    def __init__(self, operations: Operations, settings: Settings, authenticator: Authenticator) -> None:
        self._delivery = Delivery(operations, settings, authenticator)
        self._operations = operations

    def add_to(self, router: APIRouter) -> None:
        """Put the address into a router."""
        router.add_api_route(
            "/ag-ui", self._run, methods=["POST"], include_in_schema=False, response_model=None
        )

    async def _run(self, request: Request) -> Response:
        async def answer() -> Response:
            caller, body = await self._delivery.read(request)
            run = read_run_request(body)
            if run.asked is None:
                return await self._join(run, caller)
            stream, reader = await self._delivery.send(run.asked, caller)
            return await self._delivery.answer(stream, reader, AgUiEncoder(run.thread_id, run.run_id))

        return await respond(answer, OpenAIError.response)

    async def _join(self, run: RunRequest, caller: Caller) -> Response:
        """Tell what was said in a thread, and go on with what is being said."""
        task = await self._delivery.newest_task(run.thread_id, caller)
        if task is None:
            return self._delivery.tell(joined(AgUiEncoder(run.thread_id, run.run_id, ()), None), {})
        said = await self._operations.conversation(task.context_id, caller)
        if task.status.state.terminal or task.status.state.interrupted:
            encoder = AgUiEncoder(run.thread_id, run.run_id, snapshot(said))
            return self._delivery.tell(joined(encoder, task), answer_headers(task.context_id, task.id))
        stream, reader = await self._delivery.follow(task.id, caller)
        encoder = AgUiEncoder(run.thread_id, run.run_id, snapshot(before_answer(said, task.id)))
        return await self._delivery.answer(stream, reader, encoder)

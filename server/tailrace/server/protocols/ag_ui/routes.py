"""The route of AG-UI. A request starts one run, and the response streams the events of the run."""

from collections.abc import Sequence

from fastapi import APIRouter, Request, Response

from tailrace.server.auth.authentication import Authenticator
from tailrace.server.protocols.ag_ui.encoder import AgUiEncoder
from tailrace.server.protocols.ag_ui.request import RunRequest, read_run_request
from tailrace.server.protocols.ag_ui.snapshot import finished_run, snapshot
from tailrace.server.protocols.chat_endpoint import ChatEndpoint, add_routes, conversation_headers, is_running
from tailrace.server.protocols.encoder import Fields, frame_payloads
from tailrace.server.protocols.event_translator import EventTranslator
from tailrace.server.runtime.caller import Caller
from tailrace.server.runtime.operations import Operations
from tailrace.server.settings import Settings
from tailrace.streaming.a2a.json_value_counts import cost_of, cost_of_task
from tailrace.wrappers.concurrency.worker_thread import run_bounded


class AgUiEndpoint:
    """Responds to AG-UI requests."""

    def __init__(self, operations: Operations, settings: Settings, authenticator: Authenticator) -> None:
        self._endpoint = ChatEndpoint(operations, settings, authenticator)

    def add_to(self, router: APIRouter) -> None:
        """Add the route to a router."""
        add_routes(router, {("POST", "/ag-ui"): self._run})

    async def _run(self, request: Request) -> Response:
        caller, run = await self._endpoint.read(request, read_run_request)
        if run.request is None:
            return await self._join(run, caller)
        stream, call_ids = await self._endpoint.send(run.request, caller)
        turn = EventTranslator(
            tools=run.request.tool_names, known_ids=call_ids, with_approvals=run.has_outcome
        )
        return await self._endpoint.stream(stream, _encoder(turn, run))

    async def _join(self, run: RunRequest, caller: Caller) -> Response:
        """Send the messages of a thread to the client, and stream the running response, if there is one."""
        task, stored = await self._endpoint.conversation(run.thread_id, caller)
        if task is not None and is_running(task):
            stream, turn = await self._endpoint.subscribe(task.id, caller)
            messages = await run_bounded(cost_of(stored), snapshot, stored)
            return await self._endpoint.stream(stream, _encoder(turn, run, messages))
        turn = EventTranslator()
        if task is not None:
            turn.task_id, turn.context_id = task.id, task.context_id

        def frames() -> bytes:
            encoder = _encoder(turn, run, snapshot(stored))
            return frame_payloads(finished_run(encoder, task))

        cost = cost_of(stored) + (cost_of_task(task) if task is not None else 0)
        body = await run_bounded(cost, frames)
        headers = {"cache-control": "no-store", **conversation_headers(turn)}
        return Response(body, headers=headers, media_type="text/event-stream")


def _encoder(
    translator: EventTranslator, run: RunRequest, messages: Sequence[Fields] | None = None
) -> AgUiEncoder:
    return AgUiEncoder(translator, run.thread_id, run.run_id, messages, has_outcome=run.has_outcome)

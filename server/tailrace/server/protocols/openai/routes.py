"""Routes of OpenAI's APIs: Chat Completions, Responses, Completions, Embeddings and Models.

Each choice of a response is a separate task.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TypedDict
from uuid import uuid4

from fastapi import APIRouter, Request, Response

from tailrace.server.auth.authentication import Authenticator, Credentials
from tailrace.server.http.request_headers import credentials_of
from tailrace.server.protocols import ui_events
from tailrace.server.protocols.chat_endpoint import (
    CONVERSATION_HEADER,
    ChatEndpoint,
    add_routes,
    cancel_on_disconnect,
    conversation_headers,
    json_response,
)
from tailrace.server.protocols.chat_request import ChatRequest
from tailrace.server.protocols.encoder import Fields
from tailrace.server.protocols.event_translator import EventTranslator
from tailrace.server.protocols.openai.chat_completions_encoder import ChatCompletionEncoder
from tailrace.server.protocols.openai.completions_encoder import CompletionEncoder
from tailrace.server.protocols.openai.conversations_routes import ConversationsRoutes
from tailrace.server.protocols.openai.embeddings import encode_embeddings, read_embedding_request
from tailrace.server.protocols.openai.models import ModelNames
from tailrace.server.protocols.openai.request import (
    read_chat_request,
    read_completion_request,
    read_responses_request,
)
from tailrace.server.protocols.openai.responses_routes import StoredResponses
from tailrace.server.protocols.openai.stored_completions_routes import StoredCompletions
from tailrace.server.protocols.openai.stored_request import StoredRequest, hash_of
from tailrace.server.protocols.openai.stored_response_events import turn_id
from tailrace.server.protocols.openai_error import OpenAIError, server_stopping_error
from tailrace.server.protocols.serial_texts import SerialTexts
from tailrace.server.protocols.turn_events import RepeatedTurn
from tailrace.server.runtime.active_task import NewCompletion
from tailrace.server.runtime.caller import Caller
from tailrace.server.runtime.event_stream import EventStream
from tailrace.server.runtime.operations import Operations
from tailrace.server.runtime.upstream_gate import UpstreamGate
from tailrace.server.settings import Settings
from tailrace.streaming.a2a.json_encoding import encode_json
from tailrace.wrappers import UpstreamError
from tailrace.wrappers.concurrency.worker_thread import json_text_cost, run_bounded, text_cost

logger = logging.getLogger("tailrace.server")

_KEY_HEADER = "x-api-key"


_Encoder = ChatCompletionEncoder | CompletionEncoder
_Body = Mapping[str, object]


class _KeyOptions(TypedDict):
    header: str
    user_is_key: bool


class OpenAIFacade:
    """Serves clients of OpenAI's APIs.

    Args:
        authenticator: Identifies callers. Bearer tokens are also used as API keys.
        user_is_key: True to use the member ``user`` as the key of the conversation if a request has no other key.
    """

    def __init__(
        self,
        operations: Operations,
        settings: Settings,
        authenticator: Authenticator,
        models: ModelNames,
        gate: UpstreamGate,
        *,
        user_is_key: bool = False,
    ) -> None:
        self._max_values = settings.bounds.max_request_values
        self._endpoint = ChatEndpoint(operations, settings, authenticator, _credentials)
        self._responses = StoredResponses(self._endpoint, notifies=settings.openai_webhook is not None)
        self._completions_stored = StoredCompletions(self._endpoint)
        self._conversations = ConversationsRoutes(self._endpoint)
        self._models = models
        self._gate = gate
        self._user_is_key = user_is_key
        self._started = int(time.time())

    def add_to(self, router: APIRouter) -> None:
        """Add the routes to a router."""
        routes = {
            ("POST", "/v1/chat/completions"): self._chat_completions,
            ("POST", "/v1/responses"): self._create_response,
            ("POST", "/v1/completions"): self._completions,
            ("POST", "/v1/embeddings"): self._embeddings,
            ("GET", "/v1/models"): self._list_models,
            ("GET", "/v1/models/{model:path}"): self._model,
        }
        add_routes(router, routes)
        for stored in (self._responses, self._completions_stored, self._conversations):
            add_routes(router, stored.routes())

    async def _chat_completions(self, request: Request) -> Response:
        key = self._key_options(request)

        def parse(body: _Body) -> list[ChatRequest]:
            return read_chat_request(body, **key).each_choice()

        return await self._respond(request, parse, ChatCompletionEncoder)

    async def _create_response(self, request: Request) -> Response:
        key = self._key_options(request)

        def parse(body: _Body) -> ChatRequest:
            native_tools = self._models.accepts_native_tools(str(body.get("model") or ""))
            return read_responses_request(body, native_tools=native_tools, **key)

        caller, chat = await self._endpoint.read(request, parse)
        model, caller = self._models.select(chat.model, caller)
        return await self._responses.create(replace(chat, model=model, created=int(time.time())), caller)

    async def _completions(self, request: Request) -> Response:
        return await self._respond(request, read_completion_request, CompletionEncoder)

    async def _embeddings(self, request: Request) -> Response:
        caller, embedding_request = await self._endpoint.read(request, read_embedding_request)
        model = self._models.embedding(embedding_request.model)

        async def embed() -> bytes:
            async with self._gate.call(caller.owner):
                return await model.embed(embedding_request.members())

        try:
            operations = self._endpoint.operations
            with operations.limits.tasks.acquire(caller.owner):
                async with operations.direct_call(caller, model) as call:
                    body = await cancel_on_disconnect(request, embed())
                    encoded, call.usage, call.reported_model = await run_bounded(
                        text_cost(body), encode_embeddings, body, embedding_request.model, model.provider
                    )
            return Response(encoded, media_type="application/json")
        except UpstreamError as error:
            logger.warning("embeddings: %s", error.diagnosis or error)
            raise OpenAIError.from_upstream(error) from None

    async def _list_models(self, request: Request) -> Response:
        listed = self._models.listed_for(await self._endpoint.authenticate(request))
        return await json_response({"object": "list", "data": list(map(self._model_fields, listed))})

    async def _model(self, request: Request) -> Response:
        caller = await self._endpoint.authenticate(request)
        return await json_response(
            self._model_fields(self._models.known_name(request.path_params["model"], caller))
        )

    def _model_fields(self, name: str) -> Fields:
        return {"id": name, "object": "model", "created": self._started, "owned_by": "tailrace"}

    def _with_cost_of_choices(self, caller: Caller, choices: Sequence[ChatRequest]) -> Caller:
        """Return the caller with the cost of all choices.

        Raises:
            OpenAIError: The messages are too large for so many choices.
        """
        each = len(choices) // len({id(choice.new) for choice in choices})
        if each == 1:
            return caller
        cost = caller.cost * each
        if self._max_values and cost > self._max_values:
            raise OpenAIError(
                413,
                f"the request is too large for {each} choices: {caller.cost} JSON values and KiB for each, of "
                f"{self._max_values} for all (TAILRACE_BOUNDS: max_request_values); send less, or request fewer choices",
                param="n",
                code="too_many_choices",
            )
        return replace(caller, cost=cost)

    def _key_options(self, request: Request) -> _KeyOptions:
        return {"header": request.headers.get(CONVERSATION_HEADER, ""), "user_is_key": self._user_is_key}

    async def _respond(
        self,
        request: Request,
        parse: Callable[[_Body], list[ChatRequest]],
        create_encoder: Callable[..., _Encoder],
    ) -> Response:
        caller, choices = await self._endpoint.read(request, parse)
        caller = self._with_cost_of_choices(caller, choices)
        model, caller = self._models.select(choices[0].model, caller)
        created = int(time.time())
        # The prefix of the context ids must be the same for a repeated request, because some of its choices may already exist.
        key = hash_of(caller.send_key) if caller.send_key else uuid4().hex
        turns: list[tuple[EventStream | RepeatedTurn, _Encoder]] = []
        try:
            for choice in choices:
                chat = replace(choice, model=model, created=created)
                if chat.store and chat.choices > 1:
                    chat = replace(chat, choice_context_prefix=key)
                if chat.store and not chat.choice:
                    record = StoredRequest.from_chat_request(chat, "chat.completion")
                    chat = replace(
                        chat,
                        record=await run_bounded(caller.cost, record.to_json),
                        completion=NewCompletion(model, dict(chat.metadata)),
                    )
                stream, call_ids = await self._endpoint.send(chat, caller)
                texts = SerialTexts(live=chat.stream, last_round=chat.caller_options.output is not None)
                translator = EventTranslator(
                    tools=chat.tool_names, known_ids=call_ids, texts=texts, with_approvals=False
                )
                encoder = create_encoder(translator, chat, *(previous for _, previous in turns[-1:]))
                turns.append((stream, encoder))
            if choices[0].stream:
                [(stream, encoder), *following] = turns
                canceled = [each.task_id for each, _ in turns], caller
                return await self._endpoint.stream(stream, encoder, following=following, canceled=canceled)
            return await _complete_response(
                turns, is_stored=bool(choices[0].store), has_key=bool(caller.send_key)
            )
        except BaseException:
            for stream, _ in turns:
                stream.close()
            raise


async def _complete_response(
    turns: Sequence[tuple[EventStream | RepeatedTurn, _Encoder]], *, is_stored: bool, has_key: bool
) -> Response:
    """Wait until all choices have ended, and return the complete object.

    Args:
        turns: The turns with their encoders.
        is_stored: True if the client can retrieve the completion.
        has_key: True if the request has an idempotency key.

    Raises:
        OpenAIError: A turn failed, or the server is stopping.
    """
    headers: dict[str, str] = {}
    response: Fields = {}
    path = ""
    total = 0
    try:
        for stream, encoder in turns:
            try:
                events, cost = await _events_of(stream, encoder.translator)
            finally:
                headers = headers or conversation_headers(encoder.translator)
            first, ended = (events[0], events[-1]) if events else (None, None)
            if is_stored and not path and isinstance(first, ui_events.TurnStarted):
                path = f"/v1/chat/completions/{turn_id(first.task_id, first.first_turn, 'chat.completion')}"
            if not isinstance(ended, ui_events.TurnEnded):
                raise server_stopping_error(path, has_key=has_key)
            if ended.error is not None:
                raise ended.error
            response = await run_bounded(cost, encoder.complete, events, ended)
            total += cost
        body = await run_bounded(total, encode_json, response)
        return Response(body, headers=headers, media_type="application/json")
    except Exception as error:
        failure = OpenAIError.from_exception(error)
        failure.headers = {**headers, **failure.headers}
        raise failure from None


async def _events_of(
    stream: EventStream | RepeatedTurn, translator: EventTranslator
) -> tuple[list[ui_events.UiEvent], int]:
    events: list[ui_events.UiEvent] = []
    total = 0
    async with aclosing(stream.batches()) as batches:
        async for batch in batches:
            for event in batch:
                cost = json_text_cost(event.body)
                events += await run_bounded(cost, translator.feed, event)
                total += cost
            if translator.ended:
                break
    return events, total


def _credentials(request: Request) -> Credentials:
    """Return the credentials of a request. OpenAI's clients send API keys as bearer tokens."""
    credentials = credentials_of(request)
    if credentials.bearer and not credentials.headers.get(_KEY_HEADER):
        headers = {**credentials.headers, _KEY_HEADER: credentials.bearer}
        return Credentials(headers, credentials.query, reads=credentials.reads)
    return credentials

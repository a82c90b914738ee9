"""The ASGI application, and a router to mount in somebody else's.

What a server needs is decided here and nowhere else: which handler does the work, where tasks are kept, and which
addresses answer.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI, Request, Response

from tailrace.server.bindings.jsonrpc import JsonRpcBinding
from tailrace.server.card import card_response
from tailrace.server.engine import Engine
from tailrace.server.handlers import FunctionHandler, Handler, HandlerFunction, ModelHandler
from tailrace.server.settings import Settings
from tailrace.server.store import Store
from tailrace.wrappers import ConfigurationError
from tailrace.wrappers.model import Model
from tailrace.wrappers.openai.model import ChatCompletionsModel


def create_app(
    settings: Settings | None = None,
    *,
    handler: Handler | HandlerFunction | None = None,
    store: Store | None = None,
) -> FastAPI:
    """An application that serves one agent at its root.

    Args:
        settings: Read from the environment when None.
        handler: Does the work; made from ``settings.model`` when None.
        store: Keeps tasks and conversations; made from ``settings.store`` when None.

    Raises:
        ConfigurationError: Neither a handler nor a model is given, or a setting cannot be used.
    """
    router = create_router(settings, handler=handler, store=store)
    app = FastAPI(title="tailrace", docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(router)
    return app


def create_router(
    settings: Settings | None = None,
    *,
    handler: Handler | HandlerFunction | None = None,
    store: Store | None = None,
) -> APIRouter:
    """The agent's addresses as a router, to be included in a FastAPI application under any prefix.

    The engine starts and stops with the application that includes the router.

    Args:
        settings: As for `create_app`.
        handler: As for `create_app`.
        store: As for `create_app`.

    Raises:
        ConfigurationError: As `create_app`.
    """
    settings = settings or Settings()
    engine = Engine(
        store or Store(settings.store),
        _as_handler(handler, settings),
        max_history_messages=settings.max_history_messages,
    )
    binding = JsonRpcBinding(engine, settings)

    @asynccontextmanager
    async def lifespan(_app: object) -> AsyncGenerator[None]:
        async with engine.running():
            yield

    router = APIRouter(lifespan=lifespan)

    @router.get("/.well-known/agent-card.json")
    async def agent_card(request: Request) -> Response:  # pyright: ignore[reportUnusedFunction]
        path = request.url.path.removesuffix("/.well-known/agent-card.json")
        return card_response(request, settings, str(request.url.replace(path=path + "/", query="")))

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:  # pyright: ignore[reportUnusedFunction]
        return {"status": "ok"}

    @router.post("/")
    async def jsonrpc(request: Request) -> Response:
        return await binding.handle(request)

    return router


def create_model(settings: Settings) -> Model:
    """The model that ``settings.model`` names as ``provider:model``.

    Raises:
        ConfigurationError: No model is set, or its provider is unknown.
    """
    provider, _, name = (settings.model or "").partition(":")
    if not name:
        raise ConfigurationError(
            "no model: give --model PROVIDER:MODEL or set TAILRACE_MODEL, for example openai:gpt-5-mini"
        )
    if provider != ChatCompletionsModel.provider:
        raise ConfigurationError(
            f"unknown provider {provider!r} in {settings.model!r}; known: {ChatCompletionsModel.provider} "
            "(with --base-url for anything compatible with it)"
        )
    return ChatCompletionsModel(
        name,
        base_url=settings.base_url,
        api_key=settings.api_key.get_secret_value() if settings.api_key else None,
        connect_timeout=settings.connect_timeout,
        read_timeout=settings.read_timeout,
        max_retries=settings.upstream_retries,
    )


def _as_handler(handler: Handler | HandlerFunction | None, settings: Settings) -> Handler:
    if isinstance(handler, Handler):
        return handler
    if handler is not None:
        return FunctionHandler(handler)
    return ModelHandler(
        create_model(settings),
        instructions=settings.instructions,
        merge_reads=settings.coalesce == "read",
    )
